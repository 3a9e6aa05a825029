// SPDX-License-Identifier: Apache-2.0
#include "signature.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <utility>

#include "artifact.h"
#include "names.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

/*! \brief A symbol whose value no argument has determined yet. */
constexpr int64_t kUnknown = -1;

std::string ShapeText(const DLTensor& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.ndim; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return text + ")";
}

template <typename T>
T Get(const json::Object& object, const char* key) {
  return object[ffi::String(key)].cast<T>();
}

/*! \brief Whether brackets outside of strings are nested deeper than codegen ever nests them. */
bool IsTooDeep(std::string_view text) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++i;
    if (in_string) continue;
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (depth > kDeepest) return true;
  }
  return false;
}

}  // namespace

json::Object ParseObject(std::string_view text, const char* section) {
  std::string defect = std::string("is corrupt: its ") + section;
  if (!IsUtf8(text)) throw ArtifactError(defect + " is not UTF-8");
  if (IsTooDeep(text)) throw ArtifactError(defect + " is nested too deeply");
  ffi::String message;
  json::Value value = json::Parse(ffi::String(text.data(), text.size()), &message);
  if (!message.empty()) throw ArtifactError(defect + " is not JSON: " + std::string(message));
  auto object = value.try_cast<json::Object>();
  if (!object.has_value()) throw ArtifactError(defect + " is not a JSON object");
  return *object;
}

Signature::Signature(const std::string& symbol, std::string_view graph_json)
    : symbol_(Readable(symbol)) {
  json::Object root = ParseObject(graph_json, "graph");
  // Foreign graphs show as a missing key, a wrong type or a bad index.
  try {
    Read(root);
  } catch (const ffi::Error&) {
    throw ArtifactError("is corrupt: its graph was not written by this backend");
  }
}

void Signature::Read(const json::Object& root) {
  if (Readable(Get<ffi::String>(root, "symbol")) != symbol_)
    TVM_FFI_THROW(ValueError) << "another region";
  for (const ffi::Any& name : Get<json::Array>(root, "symbols")) {
    symbols_.push_back(Readable(name.cast<ffi::String>()));
  }
  auto nodes = Get<json::Array>(root, "nodes");
  for (const ffi::Any& index : Get<json::Array>(root, "arg_nodes")) {
    auto node = nodes[index.cast<int64_t>()].cast<json::Object>();
    if (Get<ffi::String>(node, "op") != "input") continue;
    arguments_.push_back(ReadArgument(node, 0));
  }
  input_count_ = arguments_.size();
  for (const ffi::Any& pair : Get<json::Array>(root, "heads")) {
    auto head = pair.cast<json::Array>();
    auto node = nodes[head[0].cast<int64_t>()].cast<json::Object>();
    Argument argument = ReadArgument(node, head[1].cast<int64_t>());
    argument.name = "output " + std::to_string(arguments_.size() - input_count_);
    arguments_.push_back(std::move(argument));
  }
}

/*! \brief The driver's name of an element type. */
static npu_dtype DriverDtype(DLDataType dtype) {
  if (dtype.lanes == 1) {
    switch (dtype.code << 8 | dtype.bits) {
      case kDLFloat << 8 | 32:
        return NPU_FLOAT32;
      case kDLFloat << 8 | 16:
        return NPU_FLOAT16;
      case kDLInt << 8 | 8:
        return NPU_INT8;
      case kDLUInt << 8 | 8:
        return NPU_UINT8;
      case kDLInt << 8 | 16:
        return NPU_INT16;
      case kDLInt << 8 | 32:
        return NPU_INT32;
      case kDLInt << 8 | 64:
        return NPU_INT64;
      case kDLBool << 8 | 8:
        return NPU_BOOL;
      default:
        break;
    }
  }
  throw ArtifactError("is corrupt: its graph has the element type '" +
                      std::string(ffi::DLDataTypeToString(dtype)) + "', which no driver has");
}

Argument Signature::ReadArgument(const json::Object& node, int64_t index) const {
  Argument argument;
  argument.name = Readable(Get<ffi::String>(node, "name"));
  auto attrs = Get<json::Object>(node, "attrs");
  auto dtypes = Get<json::Array>(attrs, "dtype")[0].cast<json::Array>();
  if (dtypes.empty()) return argument;
  argument.is_tensor = true;
  argument.dtype = ffi::StringToDLDataType(dtypes[index].cast<ffi::String>());
  argument.driver_dtype = DriverDtype(argument.dtype);
  bool is_symbolic = attrs.count(ffi::String("symbolic_shape")) != 0;
  auto shapes = Get<json::Array>(attrs, is_symbolic ? "symbolic_shape" : "shape");
  for (const ffi::Any& size : shapes[0].cast<json::Array>()[index].cast<json::Array>()) {
    ExpectedDim dim;
    if (is_symbolic) {
      auto pair = size.cast<json::Array>();
      dim.factor = pair[0].cast<int64_t>();
      dim.symbol = pair[1].cast<int>();
    } else {
      dim.factor = size.cast<int64_t>();
    }
    if (dim.factor < 0 || dim.symbol >= static_cast<int>(symbols_.size())) {
      throw ArtifactError("is corrupt: its graph has an impossible shape");
    }
    argument.shape_text += (argument.dims.empty() ? "" : ", ") + DimText(dim);
    argument.dims.push_back(dim);
  }
  argument.shape_text = "(" + argument.shape_text + ")";
  return argument;
}

/*! \brief A size as text, e.g. "4*n". */
std::string Signature::DimText(const ExpectedDim& dim) const {
  if (dim.symbol < 0) return std::to_string(dim.factor);
  const std::string& name = symbols_[static_cast<size_t>(dim.symbol)];
  return dim.factor == 1 ? name : std::to_string(dim.factor) + "*" + name;
}

bool Signature::Check(const ffi::PackedArgs& args, npu_buffer* buffers) const {
  if (static_cast<size_t>(args.size()) != arguments_.size()) {
    TVM_FFI_THROW(ValueError) << kBackend << ": the region '" << symbol_ << "' takes "
                              << input_count_ << " arguments and "
                              << arguments_.size() - input_count_
                              << " outputs, but was called with " << args.size();
  }
  // Few regions have more than one symbol.
  constexpr size_t kInlineSymbols = 8;
  int64_t inline_values[kInlineSymbols];
  std::vector<int64_t> many_values;
  int64_t* values = inline_values;
  if (symbols_.size() > kInlineSymbols) {
    many_values.resize(symbols_.size());
    values = many_values.data();
  }
  std::fill_n(values, symbols_.size(), kUnknown);
  bool writes_elements = false;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!arguments_[i].is_tensor) continue;
    auto tensor = args[static_cast<int>(i)].try_cast<DLTensor*>();
    if (!tensor.has_value() || *tensor == nullptr) {
      TVM_FFI_THROW(TypeError) << Describe(arguments_[i]) << " must be a tensor";
    }
    const DLTensor& view = **tensor;
    CheckTensor(arguments_[i], view, values);
    npu_buffer& buffer = buffers[i];
    buffer.size = sizeof(buffer);
    buffer.dtype = arguments_[i].driver_dtype;
    buffer.rank = view.ndim;
    buffer.dims = view.shape;
    buffer.data = static_cast<char*>(view.data) + view.byte_offset;
    buffer.bytes = ffi::GetDataSize(view);
    buffer.state = nullptr;
    writes_elements = writes_elements || (i >= input_count_ && buffer.bytes > 0);
  }
  // The driver's symbols are at least 1. An empty batch has an empty result.
  bool is_empty = std::find(values, values + symbols_.size(), 0) != values + symbols_.size();
  if (is_empty && writes_elements) {
    TVM_FFI_THROW(ValueError) << kBackend << ": the region '" << symbol_
                              << "' was called with a size of 0, which its result does not "
                              << "have; sizes that are not a batch must be at least 1";
  }
  return !is_empty;
}

std::string Signature::Describe(const Argument& argument) const {
  return std::string(kBackend) + ": argument '" + argument.name + "' of the region '" + symbol_ +
         "'";
}

void Signature::CheckTensor(const Argument& argument, const DLTensor& tensor,
                            int64_t* values) const {
  if (tensor.device.device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << Describe(argument) << " is not in host memory (device type "
                              << tensor.device.device_type << ")";
  }
  if (tensor.dtype.code != argument.dtype.code || tensor.dtype.bits != argument.dtype.bits ||
      tensor.dtype.lanes != argument.dtype.lanes) {
    TVM_FFI_THROW(TypeError) << Describe(argument) << " must be "
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
      // A factor of 0 does not determine the symbol.
      int64_t& value = values[dim.symbol];
      if (value == kUnknown && dim.factor != 0) value = size / dim.factor;
      fits = dim.factor == 0 ? size == 0 : size % dim.factor == 0 && size / dim.factor == value;
    }
  }
  if (!fits) {
    TVM_FFI_THROW(ValueError) << Describe(argument) << " must have the shape "
                              << argument.shape_text << ", got " << ShapeText(tensor)
                              << " (a symbol has one value in a call)";
  }
  if (!ffi::IsContiguous(tensor)) {
    TVM_FFI_THROW(ValueError) << Describe(argument) << " must be contiguous";
  }
}

}  // namespace npu
