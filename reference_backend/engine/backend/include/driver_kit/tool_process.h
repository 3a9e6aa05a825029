// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/tool_process.h
 * \brief Processes of a vendor's tool: where it is, how it is started, asked, waited for and ended.
 * For POSIX systems. Drivers need model.h and tool_graph.h.
 */
#ifndef DRIVER_KIT_TOOL_PROCESS_H_
#define DRIVER_KIT_TOOL_PROCESS_H_

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver_kit/program.h"

// NOLINTNEXTLINE(readability-redundant-declaration)
extern char** environ;

namespace npu::kit {

/*! \brief Where the tool is, unless a user says otherwise. It may grow at its end. */
struct ModelTool {
  /*! \brief The backend's name. In capitals, with "_SDK_COMMAND", it is the environment variable
   *  that names another command. */
  const char* backend;
  /*! \brief A file in the folder vendor/; one that ends with ".py" is run by the Python that
   *  compiles the model, or by the first python3. */
  const char* script;
  /*! \brief __FILE__ of a file in vendor/driver/, for installations that are editable. */
  const char* source;
  bool channels_last = false;
};

inline std::string OptionOf(const Program& program, const char* key) {
  const auto found = program.options.find(key);
  return found == program.options.end() ? "" : found->second;
}

/*! \brief How many seconds the tool may take, unless the option sdk_timeout_s says otherwise: to
 *  compile a program, to load it, and to run it. */
constexpr int64_t kToolSeconds = 600;

inline int64_t SecondsOf(const Program& program) {
  const std::string given = OptionOf(program, "sdk_timeout_s");
  return given.empty() ? kToolSeconds : std::strtoll(given.c_str(), nullptr, 10);
}

// ---- Files ----

inline std::string ContentsOf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteContents(const std::filesystem::path& path, const void* data, size_t size,
                          const std::string& header = "") {
  std::ofstream file(path, std::ios::binary);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  file.flush();
  if (!file) Decline("the file " + path.string() + " for the SDK's tool cannot be written");
}

/*! \brief The length in bytes of the character at `i`; 0 if it is not UTF-8. */
inline size_t CharacterAt(const std::string& text, size_t i) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - i < length) return 0;
  for (size_t k = 1; k < length; ++k) {
    if (byte(i + k) < 0x80 || byte(i + k) > 0xbf) return 0;
  }
  // No longer form of a shorter character, no half of a pair, nothing beyond the last one.
  const unsigned char second = byte(i + 1);
  const bool is_right = (first != 0xe0 || second >= 0xa0) && (first != 0xed || second < 0xa0) &&
                        (first != 0xf0 || second >= 0x90) && (first != 0xf4 || second < 0x90);
  return is_right ? length : 0;
}

/*! \brief A tool's text in one line, without white space at its ends, and not too long for a
 *  sentence; what is not UTF-8 becomes question marks. */
inline std::string OneLine(const std::string& text) {
  constexpr size_t kMost = 2000;
  std::string line;
  for (size_t i = 0; i < text.size() && line.size() < kMost;) {
    const size_t length = CharacterAt(text, i);
    const bool is_control =
        length == 1 && (static_cast<unsigned char>(text[i]) < 0x20 || text[i] == 0x7f);
    line += length == 0 ? "?" : is_control ? " " : text.substr(i, length);
    i += length == 0 ? 1 : length;
  }
  const size_t first = line.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(' ') - first + 1);
}

inline std::string LastLineOf(const std::filesystem::path& path) {
  std::istringstream lines(ContentsOf(path));
  std::string line, last;
  while (std::getline(lines, line)) {
    if (line.find_first_not_of(" \r\t") != std::string::npos) last = line;
  }
  return OneLine(last.substr(0, 300));
}

/*! \brief A new folder, named by what the tool is asked to do; deleted at the end unless it is in
 * one that the user named, and has more than an empty log. */
class ToolFolder {
 public:
  ToolFolder(const std::string& parent, const std::string& task) : is_kept_(!parent.empty()) {
    std::error_code error;
    const std::filesystem::path place =
        is_kept_ ? std::filesystem::absolute(parent) : std::filesystem::temp_directory_path(error);
    std::filesystem::create_directories(place, error);
    std::string path = (place / ((is_kept_ ? "" : "region-") + task + "-XXXXXX")).string();
    if (mkdtemp(path.data()) == nullptr) {
      Decline("no folder for the SDK's tool can be made in " + place.string());
    }
    path_ = path;
  }
  ToolFolder(const ToolFolder&) = delete;
  ToolFolder& operator=(const ToolFolder&) = delete;
  ~ToolFolder() {
    std::error_code error;
    // After a fork the folder is the parent's.
    if (owner_ != getpid() || (is_kept_ && !IsEmpty())) return;
    std::filesystem::remove_all(path_, error);
  }

  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  bool is_kept() const { return is_kept_; }

 private:
  bool IsEmpty() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
      if (entry.path().filename() != "log.txt" || entry.file_size(error) > 0) return false;
    }
    return true;
  }

  bool is_kept_;
  std::filesystem::path path_;
  pid_t owner_ = getpid();
};

// ---- Commands ----

struct ToolCommand {
  std::vector<std::string> words;
  /*! \brief Whether it is the backend's: then Python's variables are those of this process. */
  bool is_own = false;
};

inline std::vector<std::string> WordsOf(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
}

/*! \brief The Python of this process, as it was called: its path tells its environment. */
inline std::string PythonOfProcess() {
  // Words end with a zero.
  std::ifstream words("/proc/self/cmdline", std::ios::binary);
  std::string first;
  std::getline(words, first, '\0');
  const bool is_python = std::filesystem::path(first).filename().string().rfind("python", 0) == 0;
  return is_python ? first : "python3";
}

/*! \brief The folder of the library that contains this code. */
inline std::filesystem::path FolderOfLibrary() {
  static const char here = 0;
  Dl_info info = {};
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

inline ToolCommand CommandOf(const ModelTool& tool, const Program& program) {
  const auto option = program.options.find("sdk_command");
  std::string given = option == program.options.end() ? "" : option->second;
  if (given.empty()) {
    std::string variable = std::string(tool.backend) + "_SDK_COMMAND";
    for (char& c : variable) c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr) given = value;
  }
  const std::vector<std::string> words = WordsOf(given);
  if (!words.empty()) return {words, false};
  const std::filesystem::path vendor =
      std::filesystem::path(tool.source).parent_path().parent_path();
  std::vector<std::filesystem::path> places = {FolderOfLibrary() / "vendor" / tool.script,
                                               std::filesystem::absolute(vendor / tool.script)};
  // A compiler's cache may have made it relative to the folder of the build, which the library of
  // an editable install is in.
  if (vendor.is_relative()) {
    std::filesystem::path folder = FolderOfLibrary();
    for (; folder.has_relative_path(); folder = folder.parent_path()) {
      places.push_back((folder / vendor / tool.script).lexically_normal());
    }
  }
  for (const std::filesystem::path& place : places) {
    std::error_code error;
    if (!std::filesystem::exists(place, error)) continue;
    if (place.extension() == ".py") return {{PythonOfProcess(), place.string()}, true};
    return {{place.string()}, true};
  }
  Decline("the SDK's tool is neither " + places[0].string() + " nor " + places[1].string() +
          "; the option sdk_command names another one");
}

/*! \brief Starts a command in a process group of its own; -1 if it cannot. */
inline pid_t Start(const ToolCommand& command, const std::vector<std::string>& arguments, int in,
                   int out, int log) {
  std::vector<std::string> words = command.words;
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv, variables;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // Another Python has other packages.
    const std::string text = *variable;
    const bool is_python = text.rfind("PYTHONPATH=", 0) == 0 || text.rfind("PYTHONHOME=", 0) == 0;
    if (command.is_own || !is_python) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, in, 0);
  posix_spawn_file_actions_adddup2(&files, out, 1);
  posix_spawn_file_actions_adddup2(&files, log, 2);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = -1;
  const int error =
      posix_spawnp(&child, argv[0], &files, &attributes, argv.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error == 0 ? child : -1;
}

/*! \brief A file descriptor. */
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

inline Descriptor OpenLog(const std::filesystem::path& path) {
  return Descriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

/*! \brief Ends a process and all that it started. */
inline void End(pid_t process) {
  if (process <= 0) return;  // To kill(2), these are many processes.
  kill(-process, SIGKILL);
  kill(process, SIGKILL);
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
}

/*!
 * \brief Ends a process and all that it started when this one is gone, however it ended: a tool
 *  that hangs in its SDK does not notice.
 *
 * It is a shell that reads until this process has closed its end. A signal at the death of a parent
 * would come with that of the thread that started the tool.
 */
class Guard {
 public:
  /*! \brief `folders`: those that this process would have deleted. */
  Guard(pid_t process, const std::vector<std::string>& folders) {
    int ends[2] = {-1, -1};
    if (process < 0 || pipe2(ends, O_CLOEXEC) != 0) return;
    const Descriptor in(ends[0]);
    end_ = Descriptor(ends[1]);
    const Descriptor nothing(open("/dev/null", O_WRONLY | O_CLOEXEC));
    const std::string script = R"(read end; kill -s KILL -- "-$0"; rm -rf -- "$@")";
    const ToolCommand shell = {{"/bin/sh", "-c", script, std::to_string(process)}, true};
    const int out = nothing.number();
    shell_ = Start(shell, folders, in.number(), out, out);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() {
    if (shell_ > 0 && owner_ == getpid()) End(shell_);
  }

 private:
  Descriptor end_{-1};
  pid_t shell_ = -1, owner_ = getpid();
};

using Clock = std::chrono::steady_clock;

/*! \brief Notices Ctrl-C, which the process also gets: its handler, Python's for example, may only
 *  take a note until the call is over. */
class Interrupts {
 public:
  Interrupts() : before_(Count()) {
    const std::lock_guard<std::mutex> lock(Mutex());
    if (Users()++ > 0 || sigaction(SIGINT, nullptr, &Previous()) != 0) return;
    // Without a handler the process ends.
    const bool handles = (Previous().sa_flags & SA_SIGINFO) == 0 &&
                         Previous().sa_handler != SIG_DFL && Previous().sa_handler != SIG_IGN;
    if (!handles) return;
    struct sigaction action = Previous();
    action.sa_handler = [](int signal) {
      Count() = Count() + 1;
      Previous().sa_handler(signal);
    };
    sigaction(SIGINT, &action, nullptr);
    Installed() = true;
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts() {
    const std::lock_guard<std::mutex> lock(Mutex());
    if (--Users() > 0 || !Installed()) return;
    sigaction(SIGINT, &Previous(), nullptr);
    Installed() = false;
  }

  bool Happened() const { return Count() != before_; }

 private:
  static std::mutex& Mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static int& Users() {
    static int users = 0;
    return users;
  }
  static bool& Installed() {
    static bool installed = false;
    return installed;
  }
  static volatile std::sig_atomic_t& Count() {
    static volatile std::sig_atomic_t count = 0;
    return count;
  }
  static struct sigaction& Previous() {
    static struct sigaction previous = {};
    return previous;
  }

  std::sig_atomic_t before_;
};

/*! \brief Waits for a process; false if it took too long, or the user interrupts, and it was ended.
 */
inline bool WaitFor(pid_t process, int64_t seconds, int* status) {
  if (process <= 0) return false;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
  std::chrono::milliseconds pause(1);
  const Interrupts interrupts;
  for (;;) {
    const pid_t ended = waitpid(process, status, WNOHANG);
    if (ended == process) return true;
    if ((ended < 0 && errno != EINTR) || Clock::now() >= end || interrupts.Happened()) break;
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(20)) pause *= 2;
  }
  End(process);
  return false;
}

/*! \brief What became of a process that did not do as it should. */
inline std::string EndOf(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return "crashed (signal " + std::to_string(number) + ", " + strsignal(number) + ")";
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

// ---- Workers ----

/*! \brief How long a line of a worker may be. */
constexpr size_t kMostInLine = 1 << 20;

/*! \brief A process of the tool that answers on its standard output what it reads from its input.
 */
class ToolWorker {
 public:
  ToolWorker(const ToolCommand& command, const std::vector<std::string>& arguments,
             const std::string& log_folder)
      : folder_(log_folder, arguments[0]) {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      Decline("the SDK's tool cannot be started: no more files can be open");
    }
    socket_ = Descriptor(ends[0]);
    // A tool that hangs does not read either.
    const timeval limit = {kToolSeconds, 0};
    setsockopt(socket_.number(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    const Descriptor other(ends[1]);
    const Descriptor log = OpenLog(folder_ / "log.txt");
    process_ = Start(command, arguments, other.number(), other.number(), log.number());
    if (process_ < 0) Decline("the SDK's tool cannot be started: there is no " + command.words[0]);
    // A program is in a folder of its own.
    std::vector<std::string> folders(arguments.begin() + 1, arguments.end());
    if (!folder_.is_kept()) folders.push_back(folder_.path().string());
    guard_ = std::make_unique<Guard>(process_, folders);
  }
  ToolWorker(const ToolWorker&) = delete;
  ToolWorker& operator=(const ToolWorker&) = delete;
  ~ToolWorker() {
    // After a fork the process is the parent's.
    if (process_ > 0 && owner_ == getpid()) End(process_);
  }

  bool IsMine() const { return owner_ == getpid(); }

  /*! \brief Whether the tool takes all bytes. */
  bool Send(const void* data, size_t size) {
    const char* bytes = static_cast<const char*>(data);
    const Interrupts interrupts;
    size_t sent = 0;
    while (sent < size) {
      const ssize_t count = send(socket_.number(), bytes + sent, size - sent, MSG_NOSIGNAL);
      is_interrupted_ = count < 0 && interrupts.Happened();
      if (count < 0 && errno == EINTR && !is_interrupted_) continue;
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }

  bool Send(const std::string& text) { return Send(text.data(), text.size()); }

  /*! \brief Reads a line; false if the tool ended or took too long, or if the user interrupts. */
  bool Receive(std::string* line, int64_t seconds) {
    const Interrupts interrupts;
    const Clock::time_point end = BeginWaiting(seconds);
    while (!Take(line)) {
      is_interrupted_ = interrupts.Happened();
      if (is_interrupted_ || is_endless_ || Clock::now() >= end || !ReceiveMore(end)) return false;
    }
    return true;
  }

  /*! \brief Remembers for WhyNot how long an answer may take, and returns when it is late. */
  Clock::time_point BeginWaiting(int64_t seconds) {
    seconds_ = seconds;
    return Clock::now() + std::chrono::seconds(seconds);
  }

  /*! \brief Reads what is there; waits for it until `end`, for a signal, or for a moment. False if
   *  the tool closed its end. */
  bool ReceiveMore(Clock::time_point end) {
    constexpr int64_t kMoment = 50;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int64_t pause = left < 0 ? 0 : left < kMoment ? left : kMoment;
    pollfd waiting = {socket_.number(), POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(pause));
    if (ready <= 0) return ready == 0 || errno == EINTR;
    char part[65536];
    const ssize_t count = recv(socket_.number(), part, sizeof(part), 0);
    if (count <= 0) return count < 0 && errno == EINTR;
    received_.append(part, static_cast<size_t>(count));
    return true;
  }

  /*! \brief Whether a line was read; then it is taken out. */
  bool Take(std::string* line) {
    const size_t at = received_.find('\n');
    is_endless_ = at == std::string::npos && received_.size() > kMostInLine;
    if (at == std::string::npos) return false;
    *line = received_.substr(0, at);
    received_.erase(0, at + 1);
    return true;
  }

  /*! \brief Whether so many bytes were read; then they are taken out. */
  bool Take(void* data, size_t size) {
    if (received_.size() < size) return false;
    std::memcpy(data, received_.data(), size);
    received_.erase(0, size);
    return true;
  }

  /*! \brief Whether a line was to be taken that does not end. */
  bool IsEndless() const { return is_endless_; }

  bool WasInterrupted() const { return is_interrupted_; }

  /*! \brief Why there was no answer, in words that follow "the SDK's tool". */
  std::string WhyNot() {
    if (process_ < 0) return "has ended before";
    int status = 0;
    const bool hangs = is_interrupted_ || is_endless_ || IsOpen();
    if (hangs) End(process_);
    const bool has_ended = !hangs && WaitFor(process_, 10, &status);
    process_ = -1;
    if (is_interrupted_) return "was interrupted, and ended";
    if (is_endless_) return "answers with a line that does not end";
    if (!has_ended) return "gave no answer in " + std::to_string(seconds_) + " s";
    const std::string last = LastLineOf(folder_ / "log.txt");
    return EndOf(status) + (last.empty() ? "" : ": " + last);
  }

 private:
  /*! \brief Whether the tool still has its end of the socket. */
  bool IsOpen() const {
    char byte;
    return recv(socket_.number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  ToolFolder folder_;
  Descriptor socket_{-1};
  pid_t process_ = -1, owner_ = getpid();
  std::unique_ptr<Guard> guard_;
  std::string received_;
  int64_t seconds_ = 0;
  bool is_interrupted_ = false, is_endless_ = false;
};

}  // namespace npu::kit

#endif  // DRIVER_KIT_TOOL_PROCESS_H_
