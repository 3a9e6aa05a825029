// Template-owned: 'copier update' brings changes and merges your edits.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file runtime.cc
 * \brief The module that TVM calls: it carries a program and hands TVM's buffers to the driver.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace tvm_example_npu {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr const char* kBackend = "example_npu";

/*! \brief Throws what the driver says. */
void CheckDriver(npu_status status, const std::string& doing) {
  if (status == NPU_OK) return;
  const char* reason = RunApi().error();
  TVM_FFI_THROW(RuntimeError) << kBackend << ": the driver failed while " << doing << ": "
                              << (reason == nullptr ? "no reason given" : reason);
}

/*! \brief The device, open as long as a module uses it. */
std::shared_ptr<npu_device> OpenDevice() {
  static std::mutex mutex;
  static std::weak_ptr<npu_device> shared;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<npu_device> device = shared.lock();
  if (device == nullptr) {
    npu_device* opened = nullptr;
    CheckDriver(RunApi().open(0, &opened), "opening device 0");
    device.reset(opened, RunApi().close);
    shared = device;
  }
  return device;
}

/*! \brief A loaded program and the requests that wait to be used again. */
class LoadedProgram {
 public:
  explicit LoadedProgram(const std::string& bytes) : device_(OpenDevice()) {
    CheckDriver(RunApi().load(device_.get(), reinterpret_cast<const uint8_t*>(bytes.data()),
                              bytes.size(), &program_),
                "loading a program");
  }

  ~LoadedProgram() {
    for (npu_request* request : idle_) RunApi().destroy_request(request);
    RunApi().unload(program_);
  }

  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;

  /*! \brief A request for the use of one call; concurrent calls get one each. */
  class Lease {
   public:
    explicit Lease(LoadedProgram* owner) : owner_(owner) {
      {
        std::lock_guard<std::mutex> lock(owner_->mutex_);
        if (!owner_->idle_.empty()) {
          request_ = owner_->idle_.back();
          owner_->idle_.pop_back();
          return;
        }
      }
      CheckDriver(RunApi().create_request(owner_->program_, &request_), "creating a request");
    }
    ~Lease() {
      std::lock_guard<std::mutex> lock(owner_->mutex_);
      owner_->idle_.push_back(request_);
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    npu_request* get() const { return request_; }

   private:
    LoadedProgram* owner_;
    npu_request* request_ = nullptr;
  };

  /*! \brief What all requests did so far. */
  ffi::Map<ffi::String, ffi::Any> Counters() {
    npu_counters total = {};
    std::lock_guard<std::mutex> lock(mutex_);
    for (npu_request* request : idle_) {
      npu_counters counters = {};
      CheckDriver(RunApi().counters(request, &counters), "reading counters");
      total.submissions += counters.submissions;
      total.commands += counters.commands;
      total.matrix_operations += counters.matrix_operations;
      total.arena_bytes += counters.arena_bytes;
    }
    return {
        {"submissions", static_cast<int64_t>(total.submissions)},
        {"commands", static_cast<int64_t>(total.commands)},
        {"matrix_operations", static_cast<int64_t>(total.matrix_operations)},
        {"arena_bytes", static_cast<int64_t>(total.arena_bytes)},
    };
  }

 private:
  std::shared_ptr<npu_device> device_;
  npu_program* program_ = nullptr;
  std::mutex mutex_;
  std::vector<npu_request*> idle_;
};

/*! \brief A size that a call must have: `factor`, or `factor` times a symbol's value. */
struct ExpectedDim {
  int64_t factor = 0;
  int symbol = -1;
};

/*! \brief What an argument of a region must be. */
struct Argument {
  std::string name;
  /*! \brief False for a shape or a number, which the program does not read. */
  bool is_tensor = false;
  DLDataType dtype = {};
  std::vector<ExpectedDim> dims;
  /*! \brief The dims as text, e.g. "(n, 3, 8, 8)". */
  std::string shape_text;
};

std::string ShapeText(const DLTensor& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.ndim; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return text + ")";
}

[[noreturn]] void ThrowCorrupt() {
  TVM_FFI_THROW(ValueError) << kBackend << ": the saved module is truncated or corrupt; "
                            << "export the library again";
  TVM_FFI_UNREACHABLE();
}

/*! \brief The arguments of a region: what codegen wrote into the graph's JSON. */
class Signature {
 public:
  explicit Signature(const std::string& graph_json) {
    // What is not the JSON of codegen shows as a missing key, a wrong type or a bad index.
    try {
      Read(ParseFlat(graph_json));
    } catch (const ffi::Error&) {
      ThrowCorrupt();
    }
  }

  const std::vector<Argument>& arguments() const { return arguments_; }
  size_t input_count() const { return input_count_; }
  size_t symbol_count() const { return symbols_.size(); }

 private:
  /*! \brief Parses JSON that is nested no deeper than a graph is: the parser recurses. */
  static json::Object ParseFlat(const std::string& text) {
    constexpr int kDeepest = 64;
    int depth = 0;
    for (char c : text) {
      depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
      if (depth > kDeepest) ThrowCorrupt();
    }
    return json::Parse(text).cast<json::Object>();
  }

  void Read(const json::Object& root) {
    for (const ffi::Any& name : Get<json::Array>(root, "symbols")) {
      symbols_.emplace_back(name.cast<ffi::String>());
    }
    auto nodes = Get<json::Array>(root, "nodes");
    for (const ffi::Any& item : Get<json::Array>(root, "arg_nodes")) {
      auto node = nodes[item.cast<int64_t>()].cast<json::Object>();
      if (Get<ffi::String>(node, "op") != "input") continue;
      arguments_.push_back(ReadArgument(node, 0));
    }
    input_count_ = arguments_.size();
    for (const ffi::Any& item : Get<json::Array>(root, "heads")) {
      auto head = item.cast<json::Array>();
      auto node = nodes[head[0].cast<int64_t>()].cast<json::Object>();
      Argument argument = ReadArgument(node, head[1].cast<int64_t>());
      argument.name = "output " + std::to_string(arguments_.size() - input_count_);
      arguments_.push_back(std::move(argument));
    }
  }

  template <typename T>
  static T Get(const json::Object& object, const char* key) {
    return object[ffi::String(key)].cast<T>();
  }

  Argument ReadArgument(const json::Object& node, int64_t index) {
    Argument argument;
    argument.name = std::string(Get<ffi::String>(node, "name"));
    auto attrs = Get<json::Object>(node, "attrs");
    auto dtypes = Get<json::Array>(attrs, "dtype")[0].cast<json::Array>();
    if (dtypes.empty()) return argument;
    argument.is_tensor = true;
    argument.dtype = ffi::StringToDLDataType(dtypes[index].cast<ffi::String>());
    bool is_symbolic = attrs.count(ffi::String("symbolic_shape")) != 0;
    auto shapes = Get<json::Array>(attrs, is_symbolic ? "symbolic_shape" : "shape");
    for (const ffi::Any& item : shapes[0].cast<json::Array>()[index].cast<json::Array>()) {
      ExpectedDim dim;
      if (is_symbolic) {
        auto pair = item.cast<json::Array>();
        dim.factor = pair[0].cast<int64_t>();
        dim.symbol = pair[1].cast<int>();
      } else {
        dim.factor = item.cast<int64_t>();
      }
      if (dim.factor < 0 || dim.symbol >= static_cast<int>(symbols_.size())) ThrowCorrupt();
      argument.shape_text += (argument.dims.empty() ? "" : ", ") + DimText(dim);
      argument.dims.push_back(dim);
    }
    argument.shape_text = "(" + argument.shape_text + ")";
    return argument;
  }

  /*! \brief A size as text, e.g. "4*n". */
  std::string DimText(const ExpectedDim& dim) const {
    if (dim.symbol < 0) return std::to_string(dim.factor);
    const std::string& name = symbols_[static_cast<size_t>(dim.symbol)];
    return dim.factor == 1 ? name : std::to_string(dim.factor) + "*" + name;
  }

  std::vector<Argument> arguments_;
  size_t input_count_ = 0;
  std::vector<std::string> symbols_;
};

/*! \brief Writes the parts of a module as bytes. */
class Writer {
 public:
  void Write(uint64_t value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    bytes_.append(bytes, sizeof(value));
  }
  void Write(const std::string& text) {
    Write(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/*! \brief Reads what Writer wrote; anything else is an error, not a crash. */
class Reader {
 public:
  explicit Reader(const ffi::Bytes& bytes) : at_(bytes.data()), left_(bytes.size()) {}

  uint64_t ReadNumber() {
    uint64_t value = 0;
    if (left_ < sizeof(value)) ThrowCorrupt();
    std::memcpy(&value, at_, sizeof(value));
    Skip(sizeof(value));
    return value;
  }
  std::string ReadText() {
    uint64_t size = ReadNumber();
    if (size > left_) ThrowCorrupt();
    std::string text(at_, static_cast<size_t>(size));
    Skip(static_cast<size_t>(size));
    return text;
  }
  void ExpectEnd() const {
    if (left_ != 0) ThrowCorrupt();
  }

 private:
  void Skip(size_t size) {
    at_ += size;
    left_ -= size;
  }

  const char* at_;
  size_t left_;
};

/*! \brief One compiled region. */
class JSONRuntime : public ffi::ModuleObj {
 public:
  JSONRuntime(std::string symbol, std::string graph_json, ffi::Array<ffi::String> const_names,
              std::string program)
      : symbol_(std::move(symbol)),
        graph_json_(std::move(graph_json)),
        const_names_(std::move(const_names)),
        program_(std::move(program)),
        signature_(graph_json_) {}

  const char* kind() const final { return kBackend; }

  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto self = ffi::GetObjectPtr<ffi::Object>(this);
    if (name == symbol_) {
      return ffi::Function::FromPacked(
          [self, this](ffi::PackedArgs args, ffi::Any*) { Call(args); });
    }
    if (name == "get_symbol") {
      return ffi::Function::FromTyped([self, this] { return ffi::String(symbol_); });
    }
    if (name == "get_const_vars") {
      return ffi::Function::FromTyped([self, this] { return const_names_; });
    }
    if (name == "__init_" + symbol_) {
      return ffi::Function::FromTyped([self, this](const ffi::Array<ffi::Tensor>&) {
        Load();  // The constants are inside the program.
        return 0;
      });
    }
    if (name == "save_to_bytes") {
      return ffi::Function::FromTyped([self, this] { return SaveToBytes(); });
    }
    if (name == "counters") {
      return ffi::Function::FromTyped([self, this] { return Load()->Counters(); });
    }
    return std::nullopt;
  }

  ffi::Bytes SaveToBytes() const final {
    Writer writer;
    writer.Write(kFormatVersion);
    writer.Write(symbol_);
    writer.Write(graph_json_);
    writer.Write(const_names_.size());
    for (const ffi::String& name : const_names_) writer.Write(std::string(name));
    writer.Write(program_);
    return ffi::Bytes(writer.Take());
  }

  ffi::String InspectSource(const ffi::String&) const final { return graph_json_; }

  static ffi::Module Create(const ffi::String& symbol, const ffi::String& graph_json,
                            const ffi::Array<ffi::String>& const_names, const ffi::Bytes& program) {
    return ffi::Module(ffi::make_object<JSONRuntime>(std::string(symbol), std::string(graph_json),
                                                     const_names, std::string(program)));
  }

  static ffi::Module LoadFromBytes(const ffi::Bytes& bytes) {
    Reader reader(bytes);
    uint64_t version = reader.ReadNumber();
    if (version != kFormatVersion) {
      TVM_FFI_THROW(ValueError) << kBackend << ": the saved module has format version " << version
                                << ", this runtime reads version " << kFormatVersion
                                << "; export the library again with this version";
    }
    std::string symbol = reader.ReadText();
    std::string graph_json = reader.ReadText();
    ffi::Array<ffi::String> const_names;
    for (uint64_t count = reader.ReadNumber(); count > 0; --count) {
      const_names.push_back(reader.ReadText());
    }
    std::string program = reader.ReadText();
    reader.ExpectEnd();
    return ffi::Module(ffi::make_object<JSONRuntime>(std::move(symbol), std::move(graph_json),
                                                     const_names, std::move(program)));
  }

 private:
  static constexpr uint64_t kFormatVersion = 1;
  /*! \brief A symbol whose value no argument has told yet. */
  static constexpr int64_t kUnknown = -1;

  /*! \brief The program on the device, loaded by the first who needs it. */
  LoadedProgram* Load() {
    LoadedProgram* loaded = loaded_.load(std::memory_order_acquire);
    if (loaded == nullptr) {
      std::lock_guard<std::mutex> lock(load_mutex_);
      if (owned_ == nullptr) owned_ = std::make_unique<LoadedProgram>(program_);
      loaded = owned_.get();
      loaded_.store(loaded, std::memory_order_release);
    }
    return loaded;
  }

  void Call(const ffi::PackedArgs& args) {
    const std::vector<Argument>& expected = signature_.arguments();
    if (static_cast<size_t>(args.size()) != expected.size()) {
      TVM_FFI_THROW(ValueError) << kBackend << ": the region '" << symbol_ << "' takes "
                                << signature_.input_count() << " arguments and "
                                << expected.size() - signature_.input_count()
                                << " outputs, but was called with " << args.size();
    }
    // Few regions have more than one symbol; none has many.
    constexpr size_t kInlineSymbols = 8;
    int64_t inline_values[kInlineSymbols];
    std::vector<int64_t> more_values;
    int64_t* values = inline_values;
    if (signature_.symbol_count() > kInlineSymbols) {
      more_values.resize(signature_.symbol_count());
      values = more_values.data();
    }
    std::fill_n(values, signature_.symbol_count(), kUnknown);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!expected[i].is_tensor) continue;
      auto tensor = args[static_cast<int>(i)].try_cast<DLTensor*>();
      if (!tensor.has_value()) {
        TVM_FFI_THROW(TypeError) << Who(expected[i]) << " must be a tensor, got '"
                                 << args[static_cast<int>(i)].GetTypeKey() << "'";
      }
      CheckTensor(expected[i], **tensor, values);
    }
    if (std::find(values, values + signature_.symbol_count(), 0) !=
        values + signature_.symbol_count()) {
      // The driver's symbols are at least 1. An empty batch has an empty result.
      bool writes_elements = false;
      for (size_t i = signature_.input_count(); i < expected.size(); ++i) {
        const DLTensor* output = args[static_cast<int>(i)].cast<DLTensor*>();
        writes_elements = writes_elements || ffi::GetDataSize(*output) > 0;
      }
      if (!writes_elements) return;
      TVM_FFI_THROW(ValueError) << kBackend << ": the region '" << symbol_
                                << "' was called with a size of 0, which its result does not "
                                << "have; sizes that are not a batch must be at least 1";
    }

    LoadedProgram::Lease request(Load());
    size_t input = 0;
    size_t output = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!expected[i].is_tensor) continue;
      const DLTensor* tensor = args[static_cast<int>(i)].cast<DLTensor*>();
      void* data = static_cast<char*>(tensor->data) + tensor->byte_offset;
      npu_status status =
          i < signature_.input_count()
              ? RunApi().bind_input(request.get(), input++, data, tensor->shape, tensor->ndim)
              : RunApi().bind_output(request.get(), output++, data, tensor->shape, tensor->ndim);
      if (status != NPU_OK) CheckDriver(status, "binding " + Who(expected[i]));
    }
    npu_status status = RunApi().submit(request.get());
    if (status == NPU_OK) status = RunApi().wait(request.get());
    if (status != NPU_OK) CheckDriver(status, "running the region '" + symbol_ + "'");
  }

  std::string Who(const Argument& argument) const {
    return std::string(kBackend) + ": argument '" + argument.name + "' of the region '" + symbol_ +
           "'";
  }

  void CheckTensor(const Argument& argument, const DLTensor& tensor, int64_t* values) const {
    if (tensor.device.device_type != kDLCPU) {
      TVM_FFI_THROW(ValueError) << Who(argument) << " is not in host memory (device type "
                                << tensor.device.device_type << ")";
    }
    if (tensor.dtype.code != argument.dtype.code || tensor.dtype.bits != argument.dtype.bits ||
        tensor.dtype.lanes != argument.dtype.lanes) {
      TVM_FFI_THROW(TypeError) << Who(argument) << " must be "
                               << ffi::DLDataTypeToString(argument.dtype) << ", got "
                               << ffi::DLDataTypeToString(tensor.dtype);
    }
    bool fits = static_cast<size_t>(tensor.ndim) == argument.dims.size();
    for (size_t i = 0; fits && i < argument.dims.size(); ++i) {
      const ExpectedDim& dim = argument.dims[i];
      int64_t size = tensor.shape[i];
      if (dim.symbol < 0) {
        fits = size == dim.factor;
      } else {
        int64_t& value = values[dim.symbol];
        if (value == kUnknown && dim.factor != 0) value = size / dim.factor;
        fits = size == value * dim.factor;
      }
    }
    if (!fits) {
      TVM_FFI_THROW(ValueError) << Who(argument) << " must have the shape " << argument.shape_text
                                << ", got " << ShapeText(tensor)
                                << " (a symbol has one value in a call)";
    }
    if (!ffi::IsContiguous(tensor)) {
      TVM_FFI_THROW(ValueError) << Who(argument) << " must be contiguous";
    }
  }

  std::string symbol_;
  std::string graph_json_;
  ffi::Array<ffi::String> const_names_;
  std::string program_;
  Signature signature_;
  std::mutex load_mutex_;
  std::unique_ptr<LoadedProgram> owned_;
  std::atomic<LoadedProgram*> loaded_{nullptr};
};

ffi::Map<ffi::String, ffi::Any> Info() {
  return {
      {"backend", ffi::String(kBackend)},
      {"driver_api_version", static_cast<int64_t>(RunApi().version)},
  };
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("runtime.ExampleNPUJSONRuntimeCreate", JSONRuntime::Create)
      .def("ffi.Module.load_from_bytes.example_npu", JSONRuntime::LoadFromBytes)
      .def("example_npu.runtime.info", Info);
}

}  // namespace
}  // namespace tvm_example_npu
