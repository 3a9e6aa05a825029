// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/program.h
 * \brief A program as a list of nodes, for drivers that have no format of their own.
 *
 * The kit is for a vendor's driver: what every driver needs but no SDK provides. Like npu_driver.h,
 * it only grows: `Node` at its end, `Kind` and `Driver` by new values and fields. It has headers
 * only, and throws only inside `Try`.
 *
 * A node is an operation of npu_driver.h without its epilogue, or one step of a vector program.
 */
#ifndef DRIVER_KIT_PROGRAM_H_
#define DRIVER_KIT_PROGRAM_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "driver_kit/vector_opcodes.h"
#include "npu_driver.h"

namespace npu::kit {

// ---- Failures ----

/*! \brief Why a call is not NPU_OK. */
struct Failure {
  npu_status status;
  std::string reason;
};

[[noreturn]] inline void Decline(const std::string& reason) { throw Failure{NPU_DECLINED, reason}; }

[[noreturn]] inline void Refuse(const std::string& reason) { throw Failure{NPU_INVALID, reason}; }

/*! \brief Runs a function of a table; an exception, even one of the SDK, becomes a status and a
 *  sentence: none may cross the C interface. */
template <typename F>
npu_status Try(std::string* reason, F&& function) {
  try {
    function();
    return NPU_OK;
  } catch (const Failure& failure) {
    *reason = failure.reason;
    return failure.status;
  } catch (const std::bad_alloc&) {
    *reason = "there is not enough memory";
    return NPU_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    *reason = error.what();
    return NPU_DEVICE_ERROR;
  } catch (...) {
    *reason = "the SDK threw an exception that is no std::exception";
    return NPU_DEVICE_ERROR;
  }
}

// ---- Values ----

using Dims = std::vector<int64_t>;

/*! \brief Where the elements of a value come from. */
enum class Source : int32_t { kInput = 0, kConstant = 1, kNode = 2 };

/*! \brief A tensor of a program, or an input or output as the caller sees it. Never grows. */
struct Value {
  Source source;
  npu_dtype dtype;
  int32_t rank;
  /*! \brief Of drivers with `symbols`: in how many groups, one behind the other, the rows of an
   *  open batch are; a call may have fewer of each. 0: nothing is open. */
  int32_t groups;
  int64_t dims[NPU_MAX_RANK];
  /*! \brief For an input its number, for a constant where its elements begin, for an output the
   *  value that it stores. */
  int64_t place;
};

inline Dims DimsOf(const Value& value) { return Dims(value.dims, value.dims + value.rank); }

/*! \brief How many elements the dimensions before one have. */
inline int64_t CountBefore(const int64_t* dims, int32_t dim) {
  int64_t count = 1;
  for (int32_t i = 0; i < dim; ++i) count *= dims[i];
  return count;
}

/*! \brief The dimension of a value that has its groups of rows, or -1. */
inline int32_t GrowingOf(const Value& value) {
  int32_t dim = -1;
  int64_t before = 1;
  for (int32_t i = 0; i < value.rank && before <= value.groups; ++i) {
    dim = i;
    before *= value.dims[i];
  }
  return dim;
}

inline int64_t CountOf(const Value& value) {
  int64_t count = 1;
  for (int32_t i = 0; i < value.rank; ++i) count *= value.dims[i];
  return count;
}

inline size_t ElementSize(npu_dtype dtype) {
  switch (dtype) {
    case NPU_FLOAT32:
    case NPU_INT32:
      return 4;
    case NPU_FLOAT16:
    case NPU_INT16:
      return 2;
    case NPU_INT64:
      return 8;
    default:
      return 1;
  }
}

inline size_t BytesOf(const Value& value) {
  return static_cast<size_t>(CountOf(value)) * ElementSize(value.dtype);
}

/*! \brief What the integers of a value stand for: (number - zero point) * scale. */
struct Scales {
  /*! \brief The dimension whose indices have scales of their own, if there are several. */
  int32_t axis = 0;
  /*! \brief One, or one for each index of that dimension; as many zero points. */
  std::vector<float> scales;
  std::vector<int32_t> zero_points;

  bool operator==(const Scales& other) const {
    return scales == other.scales && zero_points == other.zero_points &&
           (scales.size() == 1 || axis == other.axis);
  }
};

/*! \brief Samples of an input, one behind the other, each dense and row-major. */
struct Samples {
  const void* data = nullptr;
  int64_t count = 0;
};

inline size_t BytesOf(const Samples& samples, const Value& input) {
  return static_cast<size_t>(samples.count) * BytesOf(input);
}

/*! \brief Whether a value can have such scales. */
inline bool IsSane(const Scales& scales, const Value& value) {
  const size_t count = scales.scales.size();
  if (value.dtype == NPU_FLOAT32 || value.dtype == NPU_FLOAT16 || value.dtype == NPU_BOOL ||
      count == 0 || scales.zero_points.size() != count) {
    return false;
  }
  for (float scale : scales.scales) {
    if (!(scale > 0) || !std::isfinite(scale)) return false;
  }
  return count == 1 || (scales.axis >= 0 && scales.axis < value.rank &&
                        value.dims[scales.axis] == static_cast<int64_t>(count));
}

// ---- Nodes ----

/*! \brief What a node does. */
enum class Kind : int32_t {
  /*! \brief Inputs: both operands, and perhaps a bias of one element for each column. */
  kMatmul = 0,
  /*! \brief Inputs: data, weight, and perhaps a bias of one element for each channel. */
  kConvolution = 1,
  kPool = 2,
  kReduce = 3,
  kCopy = 4,
  /*! \brief Inputs: data and indices. */
  kGather = 5,
  kScan = 6,
  kOrder = 7,
  /*! \brief One step of a vector program, which `step` names. Its inputs broadcast. */
  kStep = 8,
  /*! \brief The same elements under another shape. */
  kReshape = 9,
  /*! \brief Inputs: data and table. Only for drivers with `integers`. */
  kLookup = 10,
  /*! \brief Input: data of float32. The result, of 8 or 16 bits, is data / scale, rounded to the
   *  nearest (halves to even), plus the zero point, saturated. numbers[1] is the scale, numbers[2]
   *  the zero point. Only for drivers with `quantization`, as kDequantize.
   *
   *  Scales that differ by channel are a constant, inputs[1], of one dimension, with one for each
   *  index of dimension `quantization.axis` of the data; so are zero points, inputs[2], of an
   *  integer type. The number is then 0. An SDK with one scale for each tensor declines them.
   *
   *  For drivers with `scales`, the data may also be integers of other scales.
   */
  kQuantize = 11,
  /*! \brief Input: data of 8 or 16 bits. The result is (data - zero point) * scale in float32. */
  kDequantize = 12,
  /*! \brief Inputs: any number of tensors, `Program::InputsOf`. For drivers with `scales`, each may
   *  have scales of its own. */
  kConcat = 13,
  kSoftmax = 14,
  kResize = 15,
  /*! \brief Inputs: data, weight, and perhaps a bias of one element for each channel. */
  kTransposedConvolution = 16,
  /*! \brief An operation of the vendor's own, which `Program::NameOf` names; see
   *  Builder::AddVendorNode. */
  kVendor = 17,
  /*! \brief Inputs: data, value and positions. An npu_update, only for drivers with `updates`. The
   *  memory of the result may be that of the data (Program::states): then only slices are written.
   */
  kUpdate = 18,
};

/*! \brief Of each kind: its name in messages and listings, and the inputs that it always has. */
struct KindInfo {
  const char* name;
  int32_t inputs;
};
/*! \brief Each kind has a row, in their order. */
inline constexpr KindInfo kKinds[] = {{"matmul", 2},
                                      {"convolution", 2},
                                      {"pool", 1},
                                      {"reduction", 1},
                                      {"copy", 1},
                                      {"gather", 2},
                                      {"scan", 1},
                                      {"order", 1},
                                      {"step", 0},
                                      {"reshape", 1},
                                      {"lookup", 2},
                                      {"quantize", 1},
                                      {"dequantize", 1},
                                      {"concat", 1},
                                      {"softmax", 1},
                                      {"resize", 1},
                                      {"transposed_convolution", 2},
                                      {"vendor", 0},
                                      {"update", 3}};
constexpr int32_t kKindCount = sizeof(kKinds) / sizeof(kKinds[0]);

/*! \brief Whether quantized tensors may have this type. */
inline bool IsNarrow(npu_dtype dtype) {
  return dtype == NPU_INT8 || dtype == NPU_UINT8 || dtype == NPU_INT16;
}

/*! \brief Whether zero points may have this type. */
inline bool IsZeroPoint(npu_dtype dtype) { return IsNarrow(dtype) || dtype == NPU_INT32; }

/*! \brief Of kQuantize and kDequantize: the dimension of the data whose indices have scales or zero
 *  points of their own, if they are inputs. */
struct Quantization {
  int32_t axis;
};

/*! \brief The most bytes of a struct of attributes of kVendor. */
constexpr size_t kVendorBytes = 128;

/*! \brief A node. Its results are limited to `least` and `most`. */
struct Node {
  Kind kind;
  npu_step_kind step;
  /*! \brief Values; -1 where there is none. A kConcat or kVendor may have more: see
   *  `Program::InputsOf`. */
  int32_t inputs[NPU_MAX_OPERANDS];
  int32_t out;
  float least, most;
  /*! \brief Of a step: limits, slopes and the like, in the places of its operands. Other numbers
   *  are constants of one element. */
  double numbers[NPU_MAX_OPERANDS];
  /*! \brief The operation. Its tensors are `inputs` and `out`, its epilogue is NULL. */
  union {
    npu_matmul matmul;
    npu_convolution convolution;
    npu_pool pool;
    npu_reduce reduce;
    npu_copy copy;
    npu_gather gather;
    npu_scan scan;
    npu_order order;
    npu_lookup lookup;
    Quantization quantization;
    npu_concat concat;
    npu_softmax softmax;
    npu_resize resize;
    npu_transposed_convolution transposed_convolution;
    npu_update update;
    /*! \brief A struct of the vendor's; see SetAttributes. */
    unsigned char vendor[kVendorBytes];
  };
};
static_assert(std::is_trivially_copyable_v<Node> && std::is_trivially_copyable_v<Value>,
              "bytes are read and written as they are");

inline Node MakeNode(Kind kind) {
  Node node;
  std::memset(static_cast<void*>(&node), 0, sizeof(node));
  node.kind = kind;
  for (int32_t& input : node.inputs) input = -1;
  node.out = -1;
  node.least = -std::numeric_limits<float>::infinity();
  node.most = std::numeric_limits<float>::infinity();
  return node;
}

/*! \brief Keeps the attributes of a kVendor node: a struct without pointers. */
template <typename T>
void SetAttributes(const T& attributes, Node* node) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kVendorBytes,
                "attributes are bytes, and few");
  std::memcpy(node->vendor, &attributes, sizeof(T));
}

template <typename T>
T ReadAttributes(const Node& node) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kVendorBytes,
                "attributes are bytes, and few");
  T attributes;
  std::memcpy(&attributes, node.vendor, sizeof(T));
  return attributes;
}

/*! \brief The name of a node in messages and listings; `Program::NameOf` also names kVendor. */
inline std::string NameOf(const Node& node) {
  // Those that are no opcodes: of epilogues, and ops as a whole.
  constexpr const char* kEpilogue[] = {"other", "", "bias", "residual", "", "", "scale"};
  constexpr const char* kOps[] = {"relu",      "clip",   "leaky_relu", "prelu", "gelu",
                                  "gelu_tanh", "silu",   "softplus",   "selu",  "ceil",
                                  "rsqrt",     "square", "negate",     "sign",  "cast"};
  if (node.kind == Kind::kStep && node.step == NPU_STEP_HARD_SWISH) return "hard_swish";
  if (node.kind != Kind::kStep) return kKinds[static_cast<int32_t>(node.kind)].name;
  if (node.step >= NPU_STEP_RELU && node.step <= NPU_STEP_CAST) {
    return kOps[node.step - NPU_STEP_RELU];
  }
  for (const VectorOpcode& opcode : kVectorOpcodes) {
    if (opcode.step == node.step && node.step != NPU_STEP_OTHER) return opcode.name;
  }
  if (node.step >= NPU_STEP_OTHER && node.step <= NPU_STEP_SCALE) return kEpilogue[node.step];
  return "step " + std::to_string(node.step);
}

// ---- Programs ----

/*! \brief How far an SDK may read beyond the end of a tensor, and how tensors are aligned. */
constexpr size_t kAlignment = 64;
inline size_t Aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

/*! \brief A state that a kUpdate replaces slices of: its value before a call, which is an input,
 *  and after it, which is an output. They have one memory. */
struct State {
  int32_t before, after;
};

/*! \brief The data that the build half passes to the run half. */
struct Program {
  /*! \brief The values of the driver's options. */
  std::map<std::string, std::string> options;
  /*! \brief As the caller sees them. */
  std::vector<Value> inputs, outputs;
  std::vector<Value> values;
  /*! \brief In an order in which they can run. */
  std::vector<Node> nodes;
  /*! \brief The elements of constants; in the build half only in `compile` and `composite`. */
  const uint8_t* constants = nullptr;
  size_t constant_bytes = 0;
  /*! \brief The largest value of the open size, for which all sizes that depend on it are; 0: there
   *  is none. Only in the build half. */
  int64_t bound = 0;
  /*! \brief By node: the text of set_label of the operation that it belongs to; "" if it had none.
   *  A profile adds up the times of each text, and the engine finds the op of a sentence by it. */
  std::vector<std::string> labels;
  /*! \brief What an SDK has compiled of the nodes, for its runtime; the kit does not read it. A
   *  program that has such bytes has no elements of constants: they are in there. */
  const uint8_t* opaque = nullptr;
  size_t opaque_bytes = 0;
  /*! \brief By value; only for drivers with `scales`. */
  std::map<int32_t, Scales> scales = {};
  /*! \brief By the result of a node: its inputs behind `Node::inputs`. */
  std::map<int32_t, std::vector<int32_t>> more_inputs = {};
  /*! \brief By the result of a kVendor node: its name. */
  std::map<int32_t, std::string> names = {};
  /*! \brief By input: what enters it for a user's data, only while `compile` runs; empty if the
   *  user gave none. */
  std::vector<Samples> samples = {};
  /*! \brief Where `Warn` writes; NULL: nowhere. */
  std::vector<std::string>* warnings = nullptr;
  /*! \brief Only for drivers with `updates`. */
  std::vector<State> states = {};

  /*! \brief Tells users a sentence about the program, such as a warning of the SDK; the label of an
   *  operation in it says which one. For `Driver::compile`. */
  void Warn(const std::string& sentence) const {
    if (warnings != nullptr) warnings->push_back(sentence);
  }

  /*! \brief What the integers of a value stand for; NULL for real numbers, and for integers that
   *  are only moved, or are indices. */
  const Scales* ScalesOf(int32_t value) const {
    const auto found = scales.find(value);
    return found == scales.end() ? nullptr : &found->second;
  }
  /*! \brief The values that a node reads, in order: all that it has. */
  std::vector<int32_t> InputsOf(const Node& node) const {
    std::vector<int32_t> found;
    for (int32_t input : node.inputs) {
      if (input >= 0) found.push_back(input);
    }
    const auto more = more_inputs.find(node.out);
    if (more != more_inputs.end()) {
      found.insert(found.end(), more->second.begin(), more->second.end());
    }
    return found;
  }
  /*! \brief The name of a node in messages and listings. */
  std::string NameOf(const Node& node) const {
    const auto name = names.find(node.out);
    return name == names.end() ? kit::NameOf(node) : name->second;
  }
  const Value& At(int32_t value) const { return values[static_cast<size_t>(value)]; }
  const void* Data(const Value& constant) const {
    return constants + static_cast<size_t>(constant.place);
  }
};

/*! \brief The nodes as text, for `describe`. */
inline std::string Listing(const Program& program) {
  std::string text;
  for (const Node& node : program.nodes) {
    text += program.NameOf(node);
    const Value& value = program.At(node.out);
    for (int32_t i = 0; i < value.rank; ++i) {
      text += (i == 0 ? " -> " : " x ") + std::to_string(value.dims[i]);
    }
    if (const Scales* scales = program.ScalesOf(node.out)) {
      const bool is_one = scales->scales.size() == 1;
      char end[64];
      std::snprintf(end, sizeof(end), ", scale %.9g%s, zero point %d",
                    static_cast<double>(scales->scales[0]), is_one ? "" : " ...",
                    static_cast<int>(scales->zero_points[0]));
      text += end;
    }
    text += '\n';
  }
  return text;
}

/*! \brief Detects damage: FNV-1a over words. */
inline uint64_t HashOf(const uint8_t* bytes, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, size - at < sizeof(word) ? size - at : sizeof(word));
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

/*! \brief The beginning of a program. Bytes are written and read on machines of the same kind. */
struct ProgramHeader {
  char magic[8];
  /*! \brief Of everything that follows it. */
  uint64_t hash;
  uint64_t node_size;
  uint64_t option_bytes, inputs, outputs, values, nodes, constants;
};
constexpr char kProgramMagic[8] = "npukit1";
/*! \brief Of a program with opaque bytes: they are in the place of the constants. */
constexpr char kOpaqueMagic[8] = "npukit2";

inline std::vector<uint8_t> Serialize(const Program& program) {
  std::string options;
  for (const auto& [key, value] : program.options) {
    options += key + '\0';
    options += value + '\0';
  }
  // An empty key ends the options; an older kit reads no further.
  options += '\0';
  for (const std::string& label : program.labels) options += label + '\0';
  // Each as one text of integers, which no locale changes.
  for (const auto& [value, scales] : program.scales) {
    options += std::to_string(value) + ' ' + std::to_string(scales.axis);
    for (size_t i = 0; i < scales.scales.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &scales.scales[i], sizeof(bits));
      options += ' ' + std::to_string(bits) + ' ' + std::to_string(scales.zero_points[i]);
    }
    options += '\0';
  }
  for (const auto& [value, inputs] : program.more_inputs) {
    options += "inputs " + std::to_string(value);
    for (int32_t input : inputs) options += ' ' + std::to_string(input);
    options += '\0';
  }
  for (const auto& [value, name] : program.names) {
    options += "name " + std::to_string(value) + ' ' + name + '\0';
  }
  for (const State& state : program.states) {
    options += "state " + std::to_string(state.before) + ' ' + std::to_string(state.after) + '\0';
  }
  options.resize(Aligned(options.size()));
  ProgramHeader header = {};
  const bool is_opaque = program.opaque_bytes > 0;
  std::memcpy(header.magic, is_opaque ? kOpaqueMagic : kProgramMagic, sizeof(header.magic));
  header.node_size = sizeof(Node);
  header.option_bytes = options.size();
  header.inputs = program.inputs.size();
  header.outputs = program.outputs.size();
  header.values = program.values.size();
  header.nodes = program.nodes.size();
  header.constants = is_opaque ? program.opaque_bytes : program.constant_bytes;
  std::vector<uint8_t> bytes(sizeof(header));
  auto append = [&](const auto* items, size_t count) {
    const auto* data = reinterpret_cast<const uint8_t*>(items);
    bytes.insert(bytes.end(), data, data + count * sizeof(*items));
  };
  append(options.data(), options.size());
  append(program.inputs.data(), program.inputs.size());
  append(program.outputs.data(), program.outputs.size());
  append(program.values.data(), program.values.size());
  append(program.nodes.data(), program.nodes.size());
  bytes.resize(Aligned(bytes.size()));
  append(is_opaque ? program.opaque : program.constants, header.constants);
  constexpr size_t kHashed = offsetof(ProgramHeader, node_size);
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.hash = HashOf(bytes.data() + kHashed, bytes.size() - kHashed);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

/*! \brief Whether a shape has elements, but no more than memory could hold. */
inline bool IsSane(const Value& value) {
  if (value.rank < 0 || value.rank > NPU_MAX_RANK) return false;
  if (value.dtype < NPU_FLOAT32 || value.dtype > NPU_INT16 || value.place < 0) return false;
  int64_t count = 1;
  for (int32_t i = 0; i < value.rank; ++i) {
    if (value.dims[i] < 1 || value.dims[i] > (int64_t{1} << 40) / count) return false;
    count *= value.dims[i];
  }
  if (value.groups == 0) return true;
  const int32_t dim = GrowingOf(value);
  if (dim < 0) return false;
  const int64_t before = CountBefore(value.dims, dim);
  return value.groups % before == 0 && value.dims[dim] % (value.groups / before) == 0;
}

/*! \brief Whether the attributes of a node, whose inputs are known, may be used as indices. */
inline bool IsSane(const Node& node, const Program& program) {
  const auto window = [](const auto& op) {
    if (op.spatial_rank < 1 || op.spatial_rank > NPU_MAX_SPATIAL) return false;
    constexpr int64_t kMost = 1 << 30;
    for (int32_t i = 0; i < op.spatial_rank; ++i) {
      if (op.strides[i] < 1 || op.strides[i] > kMost || op.dilations[i] < 1 ||
          op.dilations[i] > kMost || op.pads_begin[i] < -kMost || op.pads_begin[i] > kMost ||
          op.pads_end[i] < -kMost || op.pads_end[i] > kMost) {
        return false;
      }
    }
    return true;
  };
  const int32_t rank = node.inputs[0] < 0 ? 0 : program.At(node.inputs[0]).rank;
  const int32_t out_rank = program.At(node.out).rank;
  switch (node.kind) {
    case Kind::kMatmul:
      return rank >= 2 && program.At(node.inputs[1]).rank >= 2 && out_rank >= 2;
    case Kind::kConvolution:
      return window(node.convolution) && rank == node.convolution.spatial_rank + 2 &&
             out_rank == rank && program.At(node.inputs[1]).rank == rank &&
             node.convolution.groups >= 1;
    case Kind::kPool:
      if (node.pool.spatial_rank < 1 || rank != node.pool.spatial_rank + 2 || out_rank != rank) {
        return false;
      }
      // Only the shapes count.
      if (node.pool.kind == NPU_POOL_AVERAGE_ADAPTIVE) return rank <= NPU_MAX_SPATIAL + 2;
      if (!window(node.pool)) return false;
      for (int32_t i = 0; i < node.pool.spatial_rank; ++i) {
        if (node.pool.window[i] < 1 || node.pool.window[i] > 1 << 30) return false;
      }
      return node.pool.kind >= NPU_POOL_MAX && node.pool.kind < NPU_POOL_AVERAGE_ADAPTIVE;
    case Kind::kCopy:
      if (out_rank != rank) return false;
      for (int32_t i = 0; i < rank; ++i) {
        if (node.copy.permutation[i] < 0 || node.copy.permutation[i] >= rank) return false;
      }
      return true;
    case Kind::kGather:
      return node.gather.axis >= 0 && node.gather.axis < rank;
    case Kind::kScan:
      return node.scan.axis >= 0 && node.scan.axis < rank && out_rank == rank;
    case Kind::kOrder:
      return node.order.axis >= 0 && node.order.axis < rank && out_rank == rank;
    case Kind::kReshape:
      return CountOf(program.At(node.inputs[0])) == CountOf(program.At(node.out));
    case Kind::kQuantize:
    case Kind::kDequantize: {
      const bool quantizes = node.kind == Kind::kQuantize;
      const Value& real = program.At(quantizes ? node.inputs[0] : node.out);
      const Value& narrow = program.At(quantizes ? node.out : node.inputs[0]);
      for (int32_t i : {1, 2}) {
        if (node.inputs[i] < 0) continue;
        const Value& each = program.At(node.inputs[i]);
        const int32_t axis = node.quantization.axis;
        if (each.source != Source::kConstant || each.rank != 1 || axis < 0 || axis >= rank ||
            each.dims[0] != program.At(node.inputs[0]).dims[axis] ||
            (i == 1 ? each.dtype != NPU_FLOAT32 : !IsZeroPoint(each.dtype))) {
          return false;
        }
      }
      const bool rescales = quantizes && program.ScalesOf(node.inputs[0]) != nullptr;
      return (real.dtype == NPU_FLOAT32 || rescales) && IsNarrow(narrow.dtype) &&
             CountOf(real) == CountOf(narrow);
    }
    case Kind::kConcat: {
      const Value& out = program.At(node.out);
      const int32_t axis = node.concat.axis;
      if (axis < 0 || axis >= out_rank) return false;
      int64_t size = 0;
      for (const int32_t id : program.InputsOf(node)) {
        const Value& input = program.At(id);
        if (input.rank != out_rank || input.dtype != out.dtype) return false;
        for (int32_t i = 0; i < out_rank; ++i) {
          if (i != axis && input.dims[i] != out.dims[i]) return false;
        }
        size += input.dims[axis];
      }
      return size == out.dims[axis];
    }
    case Kind::kSoftmax:
      return node.softmax.axis >= 0 && node.softmax.axis < rank && out_rank == rank &&
             CountOf(program.At(node.inputs[0])) == CountOf(program.At(node.out));
    case Kind::kResize:
      for (int32_t axis : node.resize.axes) {
        if (axis < 0 || axis >= rank) return false;
      }
      return out_rank == rank && node.resize.kind >= NPU_RESIZE_NEAREST &&
             node.resize.kind <= NPU_RESIZE_CUBIC &&
             node.resize.position >= NPU_RESIZE_HALF_PIXEL &&
             node.resize.position <= NPU_RESIZE_TF_HALF_PIXEL_FOR_NN &&
             node.resize.rounding >= NPU_RESIZE_ROUND_FLOOR &&
             node.resize.rounding <= NPU_RESIZE_ROUND_EVEN;
    case Kind::kTransposedConvolution:
      return window(node.transposed_convolution) &&
             rank == node.transposed_convolution.spatial_rank + 2 && out_rank == rank &&
             program.At(node.inputs[1]).rank == rank && node.transposed_convolution.groups >= 1;
    case Kind::kVendor:
      return program.names.count(node.out) != 0;
    case Kind::kUpdate: {
      const Value &data = program.At(node.inputs[0]), &out = program.At(node.out);
      const Value &value = program.At(node.inputs[1]), &positions = program.At(node.inputs[2]);
      const int32_t axis = node.update.axis;
      if (axis < 0 || axis >= rank || DimsOf(data) != DimsOf(out) || value.rank != rank) {
        return false;
      }
      for (int32_t i = 0; i < rank; ++i) {
        if (value.dims[i] != (i == axis ? CountOf(positions) : data.dims[i])) return false;
      }
      return data.dtype == out.dtype && value.dtype == out.dtype &&
             (positions.dtype == NPU_INT32 || positions.dtype == NPU_INT64);
    }
    case Kind::kLookup:
      return CountOf(program.At(node.inputs[1])) == 256 &&
             ElementSize(program.At(node.inputs[0]).dtype) == 1 &&
             CountOf(program.At(node.inputs[0])) == CountOf(program.At(node.out));
    case Kind::kReduce:
    case Kind::kStep:
      return true;
  }
  return false;
}

/*! \brief Reads a text that Serialize writes for the scales of a value; false: it is none. */
inline bool ReadScales(const std::string& text, Program* program) {
  std::vector<int64_t> numbers;
  const char* at = text.c_str();
  for (char* end = nullptr; *at != '\0'; at = end) {
    numbers.push_back(std::strtoll(at, &end, 10));
    if (end == at) return false;
  }
  if (numbers.size() < 4 || numbers.size() % 2 != 0 || numbers[0] < 0 ||
      static_cast<uint64_t>(numbers[0]) >= program->values.size()) {
    return false;
  }
  Scales scales;
  scales.axis = static_cast<int32_t>(numbers[1]);
  for (size_t i = 2; i < numbers.size(); i += 2) {
    const auto bits = static_cast<uint32_t>(numbers[i]);
    std::memcpy(&scales.scales.emplace_back(), &bits, sizeof(bits));
    scales.zero_points.push_back(static_cast<int32_t>(numbers[i + 1]));
  }
  const auto value = static_cast<int32_t>(numbers[0]);
  if (!IsSane(scales, program->At(value))) return false;
  return program->scales.emplace(value, std::move(scales)).second;
}

/*! \brief Reads a text that Serialize writes for what a node has behind its own fields. */
inline bool ReadMore(const std::string& text, Program* program) {
  const auto is = [&text](const char* word) { return text.rfind(word, 0) == 0; };
  if (!is("inputs ") && !is("name ") && !is("state ")) return ReadScales(text, program);
  char* at = nullptr;
  const long long out = std::strtoll(text.c_str() + text.find(' '), &at, 10);
  const auto count = static_cast<long long>(program->values.size());
  if (out < 0 || out >= count || *at != ' ') return false;
  const auto value = static_cast<int32_t>(out);
  if (is("name ")) return program->names.emplace(value, at + 1).second;
  if (is("state ")) {
    const long long after = std::strtoll(at, &at, 10);
    if (after < 0 || after >= count || *at != '\0') return false;
    program->states.push_back({value, static_cast<int32_t>(after)});
    return true;
  }
  std::vector<int32_t> inputs;
  while (*at == ' ') {
    const char* from = at;
    const long long input = std::strtoll(from, &at, 10);
    if (at == from || input < 0 || input >= count) return false;
    inputs.push_back(static_cast<int32_t>(input));
  }
  return *at == '\0' && program->more_inputs.emplace(value, std::move(inputs)).second;
}

/*! \brief Whether a state may have one memory before and after a call: its kUpdate alone reads the
 *  input, and one output stores its result. */
inline bool CanShare(const State& state, const Program& program) {
  const Value& before = program.At(state.before);
  if (before.source != Source::kInput || before.groups != 0 ||
      program.At(state.after).groups != 0 ||
      program.inputs[static_cast<size_t>(before.place)].groups != 0) {
    return false;
  }
  const auto is_before = [&](int32_t id) {
    const Value& value = program.At(id);
    return value.source == Source::kInput && value.place == before.place;
  };
  int64_t readers = 0, updates = 0, stores = 0;
  for (const Node& node : program.nodes) {
    for (int32_t id : program.InputsOf(node)) readers += is_before(id) ? 1 : 0;
    const bool is_it = node.kind == Kind::kUpdate && node.out == state.after;
    updates += is_it && node.inputs[0] == state.before ? 1 : 0;
  }
  for (const Value& output : program.outputs) {
    const auto id = static_cast<int32_t>(output.place);
    readers += is_before(id) ? 1 : 0;
    if (id == state.after && output.groups != 0) return false;
    stores += id == state.after ? 1 : 0;
  }
  return readers == 1 && updates == 1 && stores == 1;
}

/*! \brief Reads a program, which points into the bytes. Refuses what is corrupt. */
inline Program Parse(const uint8_t* bytes, size_t size) {
  auto require = [](bool holds) {
    if (!holds) Refuse("the program is corrupt, or of another version of the driver");
  };
  ProgramHeader header;
  require(bytes != nullptr && size >= sizeof(header));
  std::memcpy(&header, bytes, sizeof(header));
  const bool is_opaque = std::memcmp(header.magic, kOpaqueMagic, sizeof(header.magic)) == 0;
  require(is_opaque || std::memcmp(header.magic, kProgramMagic, sizeof(header.magic)) == 0);
  constexpr size_t kHashed = offsetof(ProgramHeader, node_size);
  require(header.hash == HashOf(bytes + kHashed, size - kHashed));
  size_t at = sizeof(header);
  auto take = [&](uint64_t count, size_t each) {
    require(each > 0 && count <= (size - at) / each);
    const uint8_t* from = bytes + at;
    at += count * each;
    return from;
  };
  Program program;
  const char* text = reinterpret_cast<const char*>(take(header.option_bytes, 1));
  const char* end = text + header.option_bytes;
  auto word = [&] {
    const void* stop = std::memchr(text, '\0', static_cast<size_t>(end - text));
    require(stop != nullptr);
    std::string result = text;
    text = static_cast<const char*>(stop) + 1;
    return result;
  };
  while (text < end && *text != '\0') {
    std::string key = word();
    require(text < end);
    program.options[key] = word();
  }
  if (text < end) ++text;
  auto read = [&](std::vector<Value>* values, uint64_t count) {
    const uint8_t* from = take(count, sizeof(Value));
    values->resize(count);
    if (count > 0) std::memcpy(values->data(), from, count * sizeof(Value));
    for (const Value& value : *values) require(IsSane(value));
  };
  read(&program.inputs, header.inputs);
  read(&program.outputs, header.outputs);
  read(&program.values, header.values);
  // Nodes of a driver that was built with an older or newer kit are shorter or longer.
  require(header.node_size >= offsetof(Node, matmul) && header.node_size < 65536);
  const uint8_t* nodes = take(header.nodes, header.node_size);
  const size_t known_size = header.node_size < sizeof(Node) ? header.node_size : sizeof(Node);
  for (uint64_t i = 0; i < header.nodes; ++i) {
    Node node = MakeNode(Kind::kStep);
    std::memcpy(static_cast<void*>(&node), nodes + i * header.node_size, known_size);
    program.nodes.push_back(node);
    // An older kit wrote none.
    program.labels.push_back(text < end ? word() : "");
  }
  while (text < end && *text != '\0') require(ReadMore(word(), &program));
  require(Aligned(at) <= size && size - Aligned(at) == header.constants);
  (is_opaque ? program.opaque : program.constants) = bytes + Aligned(at);
  (is_opaque ? program.opaque_bytes : program.constant_bytes) = header.constants;
  require(!is_opaque || header.constants > 0);

  std::vector<bool> written(program.values.size(), false);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    const uint64_t place = static_cast<uint64_t>(value.place);
    switch (value.source) {
      case Source::kInput:
        require(place < program.inputs.size() &&
                BytesOf(value) == BytesOf(program.inputs[static_cast<size_t>(place)]));
        written[i] = true;
        break;
      case Source::kConstant:
        require(is_opaque ||
                (place <= header.constants && BytesOf(value) <= header.constants - place));
        written[i] = true;
        break;
      case Source::kNode:
        break;
      default:
        require(false);
    }
  }
  auto is_known = [&](int64_t value) {
    return value >= 0 && static_cast<size_t>(value) < written.size();
  };
  auto is_written = [&](int64_t value) {
    return is_known(value) && written[static_cast<size_t>(value)];
  };
  for (const Node& node : program.nodes) {
    require(node.kind >= Kind::kMatmul && static_cast<int32_t>(node.kind) < kKindCount);
    for (int32_t i = 0; i < NPU_MAX_OPERANDS; ++i) {
      const bool may_lack = i >= kKinds[static_cast<int32_t>(node.kind)].inputs;
      require((may_lack && node.inputs[i] == -1) || is_written(node.inputs[i]));
    }
    const auto more = program.more_inputs.find(node.out);
    if (more != program.more_inputs.end()) {
      require(node.kind == Kind::kConcat || node.kind == Kind::kVendor);
      for (int32_t input : more->second) require(is_written(input));
    }
    require(is_known(node.out) && !is_written(node.out) && IsSane(node, program));
    written[static_cast<size_t>(node.out)] = true;
  }
  for (const Value& output : program.outputs) {
    require(is_written(output.place));
    const Value& value = program.At(static_cast<int32_t>(output.place));
    require(BytesOf(output) == BytesOf(value));
    require(!is_opaque || value.source != Source::kConstant);
  }
  for (const State& state : program.states) require(CanShare(state, program));
  return program;
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_PROGRAM_H_
