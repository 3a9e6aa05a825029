// SPDX-License-Identifier: Apache-2.0
#include "driver_api.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "names.h"

namespace npu {
namespace {

#ifdef __APPLE__
constexpr const char* kSuffix = ".dylib";
#else
constexpr const char* kSuffix = ".so";
#endif

constexpr const char* kRoles[] = {"vendor", "second", "emulator"};

/*! \brief The folder of the library that contains this function. */
std::string OwnFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr) {
    return ".";
  }
  std::string path = info.dli_fname;
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool Exists(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file != nullptr) std::fclose(file);
  return file != nullptr;
}

/*! \brief The file of a role's driver; `part` is "_build" for a build half of its own. */
std::string PathOf(const std::string& folder, const std::string& role, const char* part) {
  return folder + "/lib" + kPackage + (role == "vendor" ? "_driver" : "_" + role) + part + kSuffix;
}

/*! \brief The folders of drivers, in the order of the search. */
std::vector<std::string> Folders() {
  std::vector<std::string> folders;
  const char* folder = std::getenv(kDriverFolderVariable);
  if (folder != nullptr && *folder != '\0') {
    struct stat status;
    if (stat(folder, &status) != 0 || !S_ISDIR(status.st_mode)) {
      throw DriverError(std::string("the environment variable ") + kDriverFolderVariable + " is '" +
                        folder +
                        "', and there is no such folder; name one with drivers, or unset it");
    }
    bool has_driver = false;
    for (const char* role : kRoles) {
      for (const char* part : {"_build", ""}) has_driver |= Exists(PathOf(folder, role, part));
    }
    if (!has_driver) {
      throw DriverError(std::string("the environment variable ") + kDriverFolderVariable +
                        " names a folder without a driver: there is neither " +
                        PathOf(folder, "vendor", "") + " nor " + PathOf(folder, "emulator", "") +
                        "; build one there, or unset it");
    }
    folders.emplace_back(folder);
  }
  folders.push_back(OwnFolder());
  return folders;
}

/*! \brief The table of a driver in the form of this release, if it has the required functions. */
template <typename Api>
Api AdoptTable(const Api* table, const std::string& path, const char* half, size_t least) {
  if (table == nullptr) {
    throw DriverError("the driver " + path + " has no " + half + " half for version " +
                      std::to_string(NPU_DRIVER_API_VERSION) + " of the driver interface");
  }
  if (table->version == 0 || table->size < least) {
    throw DriverError("the driver " + path + " has a " + half + " half of " +
                      std::to_string(table->size) + " bytes and of version " +
                      std::to_string(table->version) +
                      ", which no npu_driver.h has had; set size and version as the header says");
  }
  // Fields beyond a shorter table are absent; extra fields of a longer one are ignored.
  Api api = {};
  size_t size = table->size < sizeof(Api) ? table->size : sizeof(Api);
  std::memcpy(static_cast<void*>(&api), table, size);
  return api;
}

void Require(bool has, const char* function, const std::string& path) {
  if (has) return;
  throw DriverError("the driver " + path + " has no " + function +
                    ", which every driver must have; see npu_driver.h");
}

/*! \brief The library of a role; `build` asks for one with a build half of its own first. */
std::string FindLibrary(const std::string& role, bool build) {
  for (const std::string& folder : Folders()) {
    for (const char* part : {"_build", ""}) {
      if (*part != '\0' && !build) continue;
      std::string path = PathOf(folder, role, part);
      if (Exists(path)) return path;
    }
  }
  return "";
}

/*! \brief The advice for a reason of the dynamic loader. */
std::string AdviceOn(const std::string& reason) {
  const auto says = [&](const char* words) { return reason.find(words) != std::string::npos; };
  if (says("undefined symbol") || says("symbol not found")) {
    return ". It is not linked with what defines this symbol: add the SDK's library to "
           "NPU_VENDOR_DRIVER_LIBRARIES, or the missing source to NPU_VENDOR_DRIVER_SOURCES, in "
           "vendor/vendor.cmake; then build the backend again";
  }
  if (says("cannot open shared object file") || says("Library not loaded")) {
    return ". It is linked with a library that is not found here: install the SDK, or add the "
           "library's folder to LD_LIBRARY_PATH";
  }
  if (says("file too short") || says("invalid ELF header") || says("wrong ELF class") ||
      says("not a mach-o file")) {
    return ". It is not a shared library for this machine: build it again, or remove it";
  }
  return "";
}

template <typename Api>
std::vector<InstalledDriver<Api>> FindDrivers(const char* entry, bool build) {
  std::vector<InstalledDriver<Api>> drivers;
  std::vector<std::string> roles = {kDefaultDriver};
  for (const char* role : kRoles) {
    if (roles.front() != role) roles.emplace_back(role);
  }
  for (const std::string& role : roles) {
    std::string path = FindLibrary(role, build);
    if (path.empty()) continue;
    // RTLD_LOCAL: all drivers export the same names. Never closed: a driver's threads may still
    // run.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* message = dlerror();
      const std::string reason = message == nullptr ? "no reason given" : message;
      std::string sentence = "the driver " + path + " cannot be loaded: ";
      sentence += reason;
      throw DriverError(sentence += AdviceOn(reason));
    }
    using Entry = const Api* (*)(uint32_t);
    auto function = reinterpret_cast<Entry>(dlsym(library, entry));
    // A driver only for boards has no build half.
    if (function == nullptr && build) continue;
    if (function == nullptr) {
      throw DriverError("the driver " + path + " exports no function " + entry);
    }
    InstalledDriver<Api> driver;
    driver.role = role;
    driver.api = Adopt(function(NPU_DRIVER_API_VERSION), path);
    for (const auto& other : drivers) {
      // Programs know their driver by its name.
      if ((role == "second" || other.role == "second") &&
          std::strcmp(other.api.name, driver.api.name) == 0) {
        throw DriverError("the driver " + path + " calls itself '" + driver.api.name +
                          "', as the " + other.role + " driver does; give it a name of its own");
      }
    }
    drivers.push_back(std::move(driver));
  }
  return drivers;
}

template <typename Api>
std::string List(const std::vector<InstalledDriver<Api>>& drivers) {
  std::string list;
  for (const auto& driver : drivers) {
    if (!list.empty()) list += ", ";
    list += "'" + std::string(driver.api.name) + "' (" + driver.role + ")";
  }
  return list.empty() ? "none" : list;
}

}  // namespace

npu_build_api Adopt(const npu_build_api* table, const std::string& path) {
  constexpr size_t kLeast = offsetof(npu_build_api, extension) + sizeof(table->extension);
  npu_build_api api = AdoptTable(table, path, "build", kLeast);
  Require(api.name != nullptr, "name", path);
  Require(api.create != nullptr, "create", path);
  Require(api.add_input != nullptr, "add_input", path);
  Require(api.add_tensor != nullptr, "add_tensor", path);
  Require(api.mark_output != nullptr, "mark_output", path);
  Require(api.finish != nullptr, "finish", path);
  return api;
}

npu_run_api Adopt(const npu_run_api* table, const std::string& path) {
  constexpr size_t kLeast = offsetof(npu_run_api, extension) + sizeof(table->extension);
  npu_run_api api = AdoptTable(table, path, "run", kLeast);
  Require(api.name != nullptr, "name", path);
  Require(api.load != nullptr, "load", path);
  Require(api.create_request != nullptr, "create_request", path);
  Require(api.bind_input != nullptr, "bind_input", path);
  Require(api.bind_output != nullptr, "bind_output", path);
  Require((api.submit == nullptr) == (api.wait == nullptr), "submit with its wait", path);
  Require(api.execute != nullptr || api.submit != nullptr, "execute", path);
  const bool has_states = api.allocate_state != nullptr;
  Require(has_states == (api.free_state != nullptr), "allocate_state with its free_state", path);
  Require(has_states == (api.write_state != nullptr), "allocate_state with its write_state", path);
  Require(has_states == (api.read_state != nullptr), "allocate_state with its read_state", path);
  if (api.read_counters == nullptr) api.counter_count = 0;
  return api;
}

const std::vector<InstalledDriver<npu_build_api>>& BuildDrivers() {
  static const auto drivers = FindDrivers<npu_build_api>("npu_driver_build", true);
  return drivers;
}

const std::vector<InstalledDriver<npu_run_api>>& RunDrivers() {
  static const auto drivers = FindDrivers<npu_run_api>("npu_driver_run", false);
  return drivers;
}

const npu_build_api& BuildDriver(const std::string& role) {
  for (const auto& driver : BuildDrivers()) {
    if (role.empty() || driver.role == role) return driver.api;
  }
  throw DriverError("there is no driver " + (role.empty() ? "" : "'" + role + "' ") +
                    "that compiles; installed: " + List(BuildDrivers()));
}

const npu_run_api& RunDriver(const std::string& name) {
  for (const auto& driver : RunDrivers()) {
    if (name == driver.api.name) return driver.api;
  }
  throw DriverError("was compiled by the driver '" + name + "', which is not installed here; " +
                    "installed: " + List(RunDrivers()));
}

}  // namespace npu
