// SPDX-License-Identifier: Apache-2.0
/*!
 * \file model.h
 * \brief Loads an exported model without Python, calls its functions, and opens sessions of it.
 */
#ifndef RUN_MODEL_MODEL_H_
#define RUN_MODEL_MODEL_H_

#include <dlfcn.h>
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"

namespace run_model {

namespace ffi = tvm::ffi;

constexpr const char* kBackend = BACKEND_NAME;
constexpr const char* kRuntime = "lib" BACKEND_PACKAGE "_runtime.so";

/*! \brief An error that the user can fix; the message is a sentence. */
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/*! \brief Host memory for tensors. */
struct HostMemory {
  static constexpr size_t kAlignment = 64;
  void AllocData(DLTensor* tensor) {
    size_t size = ffi::GetDataSize(*tensor);
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, std::max(size, kAlignment));
    if (tensor->data == nullptr) throw UserError("There is not enough memory for the inputs.");
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

using Dims = std::vector<int64_t>;

inline ffi::Tensor MakeTensor(const Dims& shape, DLDataType dtype) {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t count = 1;
  for (int64_t size : shape) {
    if (size < 0 || (size > 0 && count > kMost / size)) {
      throw UserError("An input has an impossible shape.");
    }
    count *= size;
  }
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()), dtype,
                                  DLDevice{kDLCPU, 0});
}

/*! \brief Refuses a file that would crash the dynamic loader (it maps without checks), or that the
 *  loader would refuse with a poor message. */
inline void CheckLibrary(const std::string& path) {
  constexpr size_t kHeader = 64, kMachine = 18, kTable = 40, kEntry = 58, kCount = 60;
  char header[kHeader] = {}, mine[kHeader] = {};
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw UserError("There is no file '" + path + "' that can be read.");
  auto size = static_cast<uint64_t>(file.tellg());
  file.seekg(0).read(header, kHeader);
  if (!file || std::memcmp(header, "\177ELF\002", 5) != 0) {
    throw UserError("'" + path + "' is not a shared library of 64 bits.");
  }
  std::ifstream("/proc/self/exe", std::ios::binary).read(mine, kHeader);
  if (std::memcmp(header + kMachine, mine + kMachine, 2) != 0) {
    throw UserError("'" + path + "' was compiled for another kind of processor: set the target.");
  }
  // Its last part is the table of sections.
  uint64_t table = 0;
  uint16_t entry = 0, count = 0;
  std::memcpy(&table, header + kTable, sizeof(table));
  std::memcpy(&entry, header + kEntry, sizeof(entry));
  std::memcpy(&count, header + kCount, sizeof(count));
  if (table > size || size - table < uint64_t{entry} * count) {
    throw UserError("'" + path + "' is truncated: copy it again.");
  }
}

inline ffi::Function FunctionOf(const ffi::Module& module, const std::string& name) {
  ffi::Optional<ffi::Function> function = module->GetFunction(name);
  if (!function.has_value()) throw UserError("The model has no function '" + name + "'.");
  return *function;
}

template <typename... Args>
ffi::Any CallOf(const ffi::Module& module, const std::string& name, Args&&... args) {
  return FunctionOf(module, name)(std::forward<Args>(args)...);
}

/*! \brief Calls a function with any number of arguments. */
inline ffi::Any CallWith(const ffi::Module& module, const std::string& name,
                         const std::vector<ffi::AnyView>& args) {
  ffi::Any result;
  FunctionOf(module, name).CallPacked(args.data(), static_cast<int32_t>(args.size()), &result);
  return result;
}

/*! \brief Loads the backend's runtime, and its driver with it: TVM's runtime does not know it. */
inline void LoadBackend() {
  if (dlopen(kRuntime, RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw UserError(std::string("The runtime of the backend does not load: ") + dlerror() +
                    ". Put it beside TVM's libraries, and set LD_LIBRARY_PATH.");
  }
}

/*! \brief Loads a library and makes a virtual machine for it, as relax.VirtualMachine does. */
inline ffi::Module LoadModel(const std::string& path) {
  CheckLibrary(path);
  // With a path, or the loader would look in the system's folders.
  ffi::Module library = ffi::Module::LoadFromFile(std::filesystem::absolute(path).string());
  if (!library->GetFunction("vm_load_executable").has_value()) {
    throw UserError("'" + path + "' is not a model that export_library() of TVM has written.");
  }
  auto machine = CallOf(library, "vm_load_executable").cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  CallOf(machine, "vm_initialization", static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return machine;
}

/*! \brief What a model keeps from one call to the next; it is a number. */
class Session {
 public:
  explicit Session(ffi::Module machine) : machine_(std::move(machine)) {
    if (!machine_->GetFunction(NameOf("open")).has_value()) {
      throw UserError(
          "The model keeps nothing from one call to the next, so that it has no sessions: call it "
          "without one.");
    }
    id_ = CallOf(machine_, NameOf("open")).cast<int64_t>();
  }
  ~Session() { (*machine_->GetFunction(NameOf("close")))(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /*! \brief Calls a function with the inputs that are no states; returns the other results. */
  ffi::Any Call(const std::string& function, const std::vector<ffi::Tensor>& inputs) const {
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    arguments.emplace_back(id_);
    return CallWith(machine_, FormOf(function), arguments);
  }

  /*! \brief The name of the form of a function whose last argument is a session. */
  static std::string FormOf(const std::string& function) { return function + "_in_session"; }

 private:
  static std::string NameOf(const std::string& what) {
    return std::string(kBackend) + "_session_" + what;
  }

  ffi::Module machine_;
  int64_t id_ = 0;
};

}  // namespace run_model

#endif  // RUN_MODEL_MODEL_H_
