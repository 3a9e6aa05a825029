// SPDX-License-Identifier: Apache-2.0
/*!
 * \file build.cc
 * \brief The build half: which nodes XNNPACK has.
 */
#include <cmath>
#include <string>

#include "driver_kit/build.h"
#include "scales.h"

namespace {

using npu::kit::CountOf;
using npu::kit::Dims;
using npu::kit::Kind;
using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Source;
using npu::kit::Value;

std::string StepReason(const Node& node) {
  switch (node.step) {
    case NPU_STEP_ADD:
    case NPU_STEP_BIAS:
    case NPU_STEP_RESIDUAL:
    case NPU_STEP_MULTIPLY:
    case NPU_STEP_SCALE:
    case NPU_STEP_SUBTRACT:
    case NPU_STEP_DIVIDE:
    case NPU_STEP_MAXIMUM:
    case NPU_STEP_MINIMUM:
    case NPU_STEP_ABSOLUTE:
    case NPU_STEP_CEIL:
    case NPU_STEP_FLOOR:
    case NPU_STEP_NEGATE:
    case NPU_STEP_ROUND_EVEN:
    case NPU_STEP_SIGMOID:
    case NPU_STEP_SQUARE:
    case NPU_STEP_SQRT:
    case NPU_STEP_RSQRT:
    case NPU_STEP_SILU:
    case NPU_STEP_RELU:
      return "";
    case NPU_STEP_CLIP:
      return node.numbers[1] < node.numbers[2] ? ""
                                               : "a clamp has a least value below its greatest";
    case NPU_STEP_LEAKY_RELU:
      return std::isfinite(node.numbers[1]) && node.numbers[1] != 0 ? "" : "the slope is not 0";
    default:
      return "XNNPACK has no node for " + NameOf(node);
  }
}

std::string MatmulReason(const Program& program, const Node& node) {
  const Dims a = DimsOf(program.At(node.inputs[0])), out = DimsOf(program.At(node.out));
  const Value& b = program.At(node.inputs[1]);
  if (b.source != Source::kConstant) return "the second operand of a matmul must be a constant";
  if (CountOf(b) != b.dims[b.rank - 1] * b.dims[b.rank - 2]) {
    return "the second operand of a matmul is one matrix";
  }
  if (node.matmul.transpose_a != 0) return "the first operand of a matmul is not transposed";
  if (out.size() > 3) return "a matmul has 3 dimensions at most";
  if (a.size() != out.size() || !std::equal(a.begin(), a.end() - 1, out.begin())) {
    return "the first operand of a matmul is not broadcast";
  }
  return "";
}

template <typename T>
std::string WindowReason(const T& op) {
  if (op.spatial_rank != 2) return "windows have two spatial dimensions";
  for (int i = 0; i < 2; ++i) {
    if (op.pads_begin[i] < 0 || op.pads_end[i] < 0) return "padding is not negative";
  }
  return "";
}

std::string PoolReason(const Program& program, const Node& node) {
  const Value &data = program.At(node.inputs[0]), &out = program.At(node.out);
  const npu_pool& pool = node.pool;
  if (pool.spatial_rank != 2) return WindowReason(pool);
  int64_t elements = 1;
  for (int i = 0; i < 2; ++i) {
    if (pool.kind == NPU_POOL_AVERAGE_ADAPTIVE) {
      if (data.dims[1 + i] % out.dims[1 + i] != 0) return "windows of a pool have one size";
      elements *= data.dims[1 + i] / out.dims[1 + i];
      continue;
    }
    elements *= pool.window[i];
    if (pool.kind != NPU_POOL_MAX && pool.dilations[i] != 1) return "a mean has no dilation";
    const int64_t beyond = (out.dims[1 + i] - 1) * pool.strides[i] + pool.window[i] -
                           data.dims[1 + i] - pool.pads_begin[i] - pool.pads_end[i];
    if (pool.kind == NPU_POOL_AVERAGE_INCLUDE_PAD && beyond > 0) {
      return "no window of a mean reaches beyond the padding";
    }
  }
  const bool is_global = pool.kind == NPU_POOL_AVERAGE_ADAPTIVE && out.dims[1] * out.dims[2] == 1;
  if (elements == 1 && !is_global) return "a window has more than one element";
  return pool.kind == NPU_POOL_AVERAGE_ADAPTIVE ? "" : WindowReason(pool);
}

std::string CopyReason(const Program& program, const Node& node) {
  const Value &data = program.At(node.inputs[0]), &out = program.At(node.out);
  for (int32_t i = 0; i < data.rank; ++i) {
    if (node.copy.permutation[i] != i) return "XNNPACK cannot transpose";
    if (node.copy.data_offset[i] != 0 || node.copy.data_step[i] != 1 ||
        node.copy.out_step[i] != 1 || out.dims[i] < node.copy.out_offset[i] + data.dims[i]) {
      return "XNNPACK cannot slice";
    }
  }
  return "";
}

/*! \brief Whether a node moves elements, or compares them, whatever their scale. */
bool TakesIntegers(const Node& node) {
  return IntegersOf(node) >= 0 || node.kind == Kind::kReshape || node.kind == Kind::kCopy ||
         (node.kind == Kind::kPool && node.pool.kind == NPU_POOL_MAX);
}

constexpr char kOneScale[] = "a tensor of integers has one scale and one zero point";

std::string QuantizationReason(const Program& program, const Node& node) {
  const double scale = node.numbers[1], zero = node.numbers[2];
  if (!(scale > 0) || !std::isnormal(static_cast<float>(scale))) {
    return "a scale is positive and normal";
  }
  const bool is_signed = program.At(IntegersOf(node)).dtype == NPU_INT8;
  if (zero < (is_signed ? -128 : 0) || zero > (is_signed ? 127 : 255)) {
    return "a zero point is a number of the integer type";
  }
  if (node.kind == Kind::kQuantize) return "";
  const Node* other = ScaleOf(program, node.inputs[0]);
  return other == nullptr || (other->numbers[1] == scale && other->numbers[2] == zero) ? ""
                                                                                       : kOneScale;
}

std::string Reason(const Program& program, const Node& node) {
  if (IntegersOf(node) >= 0 && (node.inputs[1] >= 0 || node.inputs[2] >= 0)) return kOneScale;
  for (int32_t id : {node.inputs[0], node.inputs[1], node.inputs[2], node.out}) {
    if (id < 0) continue;
    const npu_dtype dtype = program.At(id).dtype;
    const bool is_byte = dtype == NPU_INT8 || dtype == NPU_UINT8;
    if (dtype != NPU_FLOAT32 && !(is_byte && TakesIntegers(node))) {
      return "only float32 is computed";
    }
    if (program.At(id).rank > 4) return "a tensor has 4 dimensions at most";
  }
  switch (node.kind) {
    case Kind::kStep:
      return StepReason(node);
    case Kind::kReshape:
      return "";
    case Kind::kMatmul:
      return MatmulReason(program, node);
    case Kind::kConvolution:
      if (program.At(node.inputs[1]).source != Source::kConstant) {
        return "the weight of a convolution must be a constant";
      }
      return WindowReason(node.convolution);
    case Kind::kPool:
      return PoolReason(program, node);
    case Kind::kReduce:
      return node.reduce.kind == NPU_REDUCE_MEAN && program.At(node.inputs[0]).rank == 4 &&
                     (node.reduce.axes == 0x6 || node.reduce.axes == 0xc)
                 ? ""
                 : "XNNPACK reduces only to means over rows and columns";
    case Kind::kCopy:
      return CopyReason(program, node);
    case Kind::kQuantize:
    case Kind::kDequantize:
      return QuantizationReason(program, node);
    default:
      return "XNNPACK has no node for a " + NameOf(node);
  }
}

constexpr npu_option_info kOptions[] = {
    {"threads", NPU_OPTION_INT, "1", 1, 64, nullptr, 0, "how many threads a request runs on"},
};

constexpr npu::kit::Driver kDriver = {"xnnpack",
                                      "2.0",
                                      Reason,
                                      kOptions,
                                      1,
                                      /*channels_last=*/true,
                                      /*compile=*/nullptr,
                                      /*integers=*/false,
                                      /*quantization=*/true};

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = npu::kit::BuildTable<kDriver>();
  return &api;
}
