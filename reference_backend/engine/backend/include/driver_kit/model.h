// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/model.h
 * \brief The build half of a driver whose SDK takes a model file: asks and calls the SDK's tool, a
 * program with an interpreter of its own. For POSIX systems.
 *
 * What the tool does cannot hurt the process that compiles a model: a crash, a hang, or an answer
 * that makes no sense is a decline with a sentence.
 *
 * \code
 * constexpr npu::kit::ModelTool kTool = {"acme_npu", "sdk/compile.py", __FILE__};
 * constexpr npu_option_info kOptions[] = {npu::kit::kSdkCommand, npu::kit::kSdkTimeout,
 *                                         npu::kit::kSdkFolder, npu::kit::kSdkCache};
 *
 * std::string Reason(const Program& program, const Node& node) {
 *   return npu::kit::AskTool(kTool, program, node);
 * }
 * std::vector<uint8_t> Compile(const Program& program) {
 *   return npu::kit::CompileByTool(kTool, program);
 * }
 * std::string Identity(const Program& program) {
 *   return npu::kit::FingerprintOfTool(kTool, program);
 * }
 * \endcode
 *
 * The protocol: docs/region-file.md of npu-scaffold.
 */
#ifndef DRIVER_KIT_MODEL_H_
#define DRIVER_KIT_MODEL_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "driver_kit/program.h"
#include "driver_kit/region_file.h"
#include "driver_kit/tool_process.h"

namespace npu::kit {

// The options that AskTool and CompileByTool read, for the driver's list; what it leaves out has
// its default.
constexpr npu_option_info kSdkCommand = {
    "sdk_command",
    NPU_OPTION_TEXT,
    "",
    0,
    0,
    nullptr,
    0,
    "the command of the SDK's tool, words separated by spaces; empty: the one of the backend",
};
constexpr npu_option_info kSdkTimeout = {
    "sdk_timeout_s", NPU_OPTION_INT, "600", 1,
    1 << 20,         nullptr,        0,     "how many seconds the SDK's tool may take for a region",
};
constexpr npu_option_info kSdkFolder = {
    "sdk_folder",
    NPU_OPTION_TEXT,
    "",
    0,
    0,
    nullptr,
    0,
    "the folder that keeps what the SDK's tool read, wrote and printed; empty: nothing is kept",
};
constexpr npu_option_info kSdkCache = {
    "sdk_cache", NPU_OPTION_TEXT,
    "",          0,
    0,           nullptr,
    0,           "the folder that keeps the SDK's programs for the next process; empty: none",
};

/*! \brief The options of a driver without those about the tool, which programs do not depend on. */
inline std::map<std::string, std::string> OptionsForSdk(const Program& program) {
  std::map<std::string, std::string> options = program.options;
  for (const npu_option_info& own : {kSdkCommand, kSdkTimeout, kSdkFolder, kSdkCache}) {
    options.erase(own.key);
  }
  return options;
}

/*! \brief What the tool's exit code says. */
constexpr int kToolCompiled = 0;
constexpr int kToolDeclined = 3;
/*! \brief How long the tool may think about a node, or need to start. */
constexpr int kAnswerSeconds = 60;

// ---- Questions ----

/*! \brief What is known of a command; of each there is one, for all threads. */
struct ToolState {
  std::mutex mutex;
  std::unique_ptr<ToolWorker> worker;
  /*! \brief Why the tool does not even start; then it is not tried again. */
  std::string failure;
  /*! \brief What the tool says of itself: another one has other answers. */
  std::string fingerprint;
  std::map<std::string, std::string> answers;
  int64_t questions = 0;
  /*! \brief By digest of region and fingerprint: why there is no program. */
  std::map<std::string, std::string> reasons;
  /*! \brief Programs of this process, if the user names no place: a region is tried first, and
   *  then compiled. */
  std::unique_ptr<ToolFolder> programs;
};

inline ToolState& StateOf(const ToolCommand& command) {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, ToolState> states;
  // A script that was changed is another tool, also in a process that goes on.
  std::vector<std::string> key = command.words;
  for (const std::string& word : command.words) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(word, error)) continue;
    const auto changed = std::filesystem::last_write_time(word, error);
    if (!error) key.push_back(std::to_string(changed.time_since_epoch().count()));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  return states[key];
}

/*! \brief Starts the worker if there is none; the caller has the lock. */
inline void RequireWorker(ToolState* state, const ToolCommand& command, const Program& program) {
  if (!state->failure.empty()) Decline(state->failure);
  if (state->worker != nullptr && state->worker->IsMine()) return;
  std::string why;
  const npu_status status = Try(&why, [&] {
    state->worker = std::make_unique<ToolWorker>(command, std::vector<std::string>{"answer"},
                                                 OptionOf(program, "sdk_folder"));
    std::string hello;
    const std::string expected = "npu-region " + std::to_string(kRegionVersion) + " ";
    if (!state->worker->Receive(&hello, kAnswerSeconds)) {
      Decline("the SDK's tool does not start: it " + state->worker->WhyNot());
    }
    if (hello.rfind(expected, 0) != 0) {
      Decline("the SDK's tool begins with '" + OneLine(hello).substr(0, 80) + "' instead of '" +
              expected + "...'");
    }
    state->fingerprint = hello.substr(expected.size());
  });
  if (status == NPU_OK) return;
  // Whoever interrupts may ask again.
  if (state->worker == nullptr || !state->worker->WasInterrupted()) state->failure = why;
  state->worker.reset();
  Decline(why);
}

/*! \brief Why the SDK has no such node, or "": the function `reason` of the tool. */
inline std::string AskTool(const ModelTool& tool, const Program& program, const Node& node) {
  std::string reason;
  Try(&reason, [&] {
    const ToolCommand command = CommandOf(tool, program);
    Fields fields = RegionFields(program, {node}, {}, tool.channels_last, false);
    fields.emplace_back("options", TextOfOptions(OptionsForSdk(program)));
    const std::string question = ObjectText(fields);
    ToolState& state = StateOf(command);
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto known = state.answers.find(question);
    if (known != state.answers.end()) {
      reason = known->second;
      return;
    }
    RequireWorker(&state, command, program);
    const std::string number = std::to_string(++state.questions);
    fields.emplace_back("id", Quoted(number));
    std::string answer;
    if (!state.worker->Send(ObjectText(fields) + "\n") ||
        !state.worker->Receive(&answer, kAnswerSeconds)) {
      reason = "the SDK's tool " + state.worker->WhyNot() + ", asked about " + program.NameOf(node);
      const bool was_interrupted = state.worker->WasInterrupted();
      state.worker.reset();
      if (was_interrupted) return;
    } else if (answer != number && answer.rfind(number + " ", 0) != 0) {
      reason = "the SDK's tool answers another question, asked about " + program.NameOf(node);
      state.worker.reset();
    } else {
      reason = OneLine(answer.substr(number.size()));
    }
    state.answers[question] = reason;
  });
  return reason;
}

/*! \brief What the SDK and the tool say of themselves: others make other programs. */
inline std::string FingerprintOfTool(const ModelTool& tool, const Program& program) {
  const ToolCommand command = CommandOf(tool, program);
  ToolState& state = StateOf(command);
  const std::lock_guard<std::mutex> lock(state.mutex);
  RequireWorker(&state, command, program);
  return state.fingerprint;
}

// ---- Programs ----

/*! \brief What the tool says of a region. */
struct ToolAnswer {
  bool is_declined = false;
  /*! \brief The program, or the reason. */
  std::string text;
  /*! \brief What users should know, in lines. */
  std::string warnings;
};

/*! \brief How many warnings a region may have. */
constexpr size_t kMostWarnings = 100;

/*! \brief The lines of answer.txt: the id, and a warning in each further one. */
inline std::vector<std::string> LinesOfAnswer(const std::filesystem::path& path) {
  std::istringstream lines(ContentsOf(path));
  std::string line;
  std::getline(lines, line);
  std::vector<std::string> found = {OneLine(line)};
  size_t more = 0;
  while (std::getline(lines, line)) {
    line = OneLine(line);
    if (line.empty() || std::find(found.begin(), found.end(), line) != found.end()) continue;
    if (found.size() <= kMostWarnings) {
      found.push_back(line);
    } else {
      ++more;
    }
  }
  if (more > 0) found.push_back("and " + std::to_string(more) + " more warnings");
  return found;
}

inline std::string NpyHeader(const Value& input, int64_t count) {
  constexpr const char* kTypes[] = {"<f4", "<f2", "|i1", "|u1", "<i4", "<i8", "|b1", "<i2"};
  std::string text = "{'descr': '" + std::string(kTypes[input.dtype]) +
                     "', 'fortran_order': False, 'shape': (" + std::to_string(count) + ",";
  for (int32_t i = 0; i < input.rank; ++i) text += " " + std::to_string(input.dims[i]) + ",";
  text += "), }";
  // The elements are aligned to 64 bytes; 10 are before the text.
  text.resize((text.size() + 1 + 10 + 63) / 64 * 64 - 10, ' ');
  text.back() = '\n';
  const char size[] = {static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return std::string("\x93NUMPY\x01\x00", 8) + std::string(size, 2) + text;
}

/*! \brief Writes what enters a region for a user's data: calibration/input0.npy and so on. */
inline void WriteSamples(const Program& program, const ToolFolder& folder) {
  if (program.samples.empty()) return;
  const std::filesystem::path place = folder / "calibration";
  std::error_code error;
  std::filesystem::create_directory(place, error);
  for (size_t i = 0; i < program.samples.size(); ++i) {
    const Samples& samples = program.samples[i];
    WriteContents(place / ("input" + std::to_string(i) + ".npy"), samples.data,
                  BytesOf(samples, program.inputs[i]), NpyHeader(program.inputs[i], samples.count));
  }
}

/*! \brief Runs the tool for a region whose files are written; declines if it does not answer. */
inline ToolAnswer RunTool(const ToolCommand& command, const Program& program,
                          const ToolFolder& folder, const std::string& id) {
  const int64_t seconds = SecondsOf(program);
  int status = 0;
  bool is_done = false;
  {
    const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const Descriptor log = OpenLog(folder / "log.txt");
    const pid_t process = Start(command, {"compile", folder.path().string()}, nothing.number(),
                                log.number(), log.number());
    if (process < 0) Decline("the SDK's tool cannot be started: there is no " + command.words[0]);
    std::vector<std::string> deleted;
    if (!folder.is_kept()) deleted.push_back(folder.path().string());
    const Guard guard(process, deleted);
    is_done = WaitFor(process, seconds, &status);
  }
  // The node at fault: the one that the tool named last, or the only one.
  std::string label = OneLine(ContentsOf(folder / "node.txt"));
  const std::set<std::string> labels(program.labels.begin(), program.labels.end());
  if (labels.count(label) == 0) label = labels.size() == 1 ? program.labels[0] : "";
  const std::string at = label.empty() ? "" : " at " + label;
  const auto fail = [&](const std::string& what) {
    const std::string last = LastLineOf(folder / "log.txt");
    const std::string log = folder.is_kept() ? "; its log is " + (folder / "log.txt").string() : "";
    Decline("the SDK's tool " + what + at + (last.empty() ? "" : ": " + last) + log);
  };
  if (!is_done) fail("took more than " + std::to_string(seconds) + " s, and was ended,");
  const bool is_declined = WIFEXITED(status) && WEXITSTATUS(status) == kToolDeclined;
  if (!WIFEXITED(status) || (WEXITSTATUS(status) != kToolCompiled && !is_declined)) {
    fail(EndOf(status));
  }
  const std::vector<std::string> lines = LinesOfAnswer(folder / "answer.txt");
  if (lines[0] != id) {
    fail("does not say that its answer is for this region (answer.txt)");
  }
  if (is_declined) {
    const std::string reason = OneLine(ContentsOf(folder / "reason.txt"));
    if (reason.empty()) fail("declines without a reason (reason.txt)");
    return {true, reason, ""};
  }
  const std::string bytes = ContentsOf(folder / "program.bin");
  if (bytes.empty()) fail("wrote no program (program.bin)");
  std::string warnings;
  for (size_t i = 1; i < lines.size(); ++i) warnings += lines[i] + '\n';
  return {false, bytes, warnings};
}

/*! \brief The bytes of a program: what the tool makes of it, as Program::opaque. */
inline std::vector<uint8_t> CompileByTool(const ModelTool& tool, const Program& program) {
  Program whole = program;
  whole.options = OptionsForSdk(program);
  for (const Value& output : program.outputs) {
    if (program.nodes.empty()) break;
    if (program.At(static_cast<int32_t>(output.place)).source == Source::kConstant) {
      Decline("a constant is no result of the SDK's programs");
    }
  }
  // What only copies inputs needs no SDK.
  if (program.nodes.empty()) return Serialize(whole);
  const ToolCommand command = CommandOf(tool, program);
  Fields fields = RegionFields(program, program.nodes, program.labels, tool.channels_last, true);
  fields.emplace_back("backend", Quoted(tool.backend));
  const std::string options = TextOfOptions(whole.options);
  if (!program.samples.empty()) {
    fields.emplace_back("calibration", std::to_string(program.samples[0].count));
  }
  const std::string text = ObjectText(fields);
  std::vector<std::pair<const void*, size_t>> parts = {{text.data(), text.size()},
                                                       {program.constants, program.constant_bytes},
                                                       {options.data(), options.size()}};
  for (size_t i = 0; i < program.samples.size(); ++i) {
    parts.emplace_back(program.samples[i].data, BytesOf(program.samples[i], program.inputs[i]));
  }
  const std::string id = DigestOf(parts);
  fields.emplace_back("id", Quoted(id));
  ToolState& state = StateOf(command);
  std::string key;
  std::filesystem::path kept;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    RequireWorker(&state, command, program);
    const std::string& print = state.fingerprint;
    key = DigestOf({{id.data(), id.size()}, {print.data(), print.size()}});
    const auto reason = state.reasons.find(key);
    if (reason != state.reasons.end()) Decline(reason->second);
    const std::string cache = OptionOf(program, "sdk_cache");
    if (cache.empty() && state.programs == nullptr) {
      state.programs = std::make_unique<ToolFolder>("", "programs");
    }
    kept = (cache.empty() ? state.programs->path() : std::filesystem::path(cache)) / (key + ".bin");
  }
  const std::filesystem::path notes = kept.string() + ".txt";
  const auto serialized = [&whole, &program](const std::string& bytes,
                                             const std::string& warnings) {
    std::istringstream lines(warnings);
    std::string line;
    while (std::getline(lines, line)) whole.Warn(line);
    whole.opaque = reinterpret_cast<const uint8_t*>(bytes.data());
    whole.opaque_bytes = bytes.size();
    // The run half waits as long.
    if (SecondsOf(program) != kToolSeconds) {
      whole.options[kSdkTimeout.key] = OptionOf(program, kSdkTimeout.key);
    }
    return Serialize(whole);
  };
  const std::string known = ContentsOf(kept);
  if (!known.empty()) return serialized(known, ContentsOf(notes));
  const ToolFolder folder(OptionOf(program, "sdk_folder"), "compile");
  const std::string region = ObjectText(fields) + "\n";
  WriteContents(folder / "region.json", region.data(), region.size());
  WriteContents(folder / "constants.bin", program.constants, program.constant_bytes);
  WriteContents(folder / "options.json", options.data(), options.size());
  WriteSamples(program, folder);
  const ToolAnswer answer = RunTool(command, program, folder, id);
  if (answer.is_declined) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    Decline(state.reasons[key] = answer.text);
  }
  // Whole or not at all: several processes may compile the same.
  std::error_code error;
  std::filesystem::create_directories(kept.parent_path(), error);
  const auto keep = [&](const std::filesystem::path& path, const std::string& contents) {
    std::string part = path.string() + ".XXXXXX";
    const Descriptor made(mkstemp(part.data()));
    if (made.number() < 0 || fchmod(made.number(), 0644) != 0) return false;
    std::ofstream file(part, std::ios::binary);
    file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    file.close();
    if (file) std::filesystem::rename(part, path, error);
    if (file && !error) return true;
    std::filesystem::remove(part, error);
    return false;
  };
  std::string warnings = answer.warnings;
  if ((!warnings.empty() && !keep(notes, warnings)) || !keep(kept, answer.text)) {
    warnings += "the program cannot be kept in " + kept.parent_path().string() + "\n";
  }
  return serialized(answer.text, warnings);
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_MODEL_H_
