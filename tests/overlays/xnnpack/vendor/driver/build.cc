// SPDX-License-Identifier: Apache-2.0
/*!
 * \file build.cc
 * \brief The build half: which nodes XNNPACK has.
 */
#include <cmath>
#include <string>

#include "driver_kit/build.h"

namespace {

using npu::kit::CountOf;
using npu::kit::Dims;
using npu::kit::Kind;
using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Scales;
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

constexpr char kOneScale[] = "a tensor of integers has one scale and one zero point";

/*! \brief Whether a factor between scales is one that XNNPACK has. */
bool IsFactor(double factor, double least, double most) { return factor >= least && factor < most; }

/*! \brief Why XNNPACK has no such product of integers, or "". */
std::string ProductReason(const Program& program, const Node& node) {
  const Scales &data = *program.ScalesOf(node.inputs[0]), &out = *program.ScalesOf(node.out);
  const Scales* weight = program.ScalesOf(node.inputs[1]);
  if (weight == nullptr) return "the weight of integers has a scale";
  const bool is_signed = program.At(node.inputs[0]).dtype == NPU_INT8;
  const bool has_several = weight->scales.size() > 1;
  if (has_several && (!is_signed || node.kind != Kind::kConvolution || weight->axis != 0)) {
    return "only a convolution of int8 has a scale for each channel of its weight";
  }
  for (size_t i = 0; i < weight->scales.size(); ++i) {
    if (is_signed && weight->zero_points[i] != 0) return "a weight of int8 has no zero point";
    const float factor = data.scales[0] * weight->scales[i] / out.scales[0];
    if (!std::isnormal(factor) || factor >= 256) return "a factor of the sums is below 256";
  }
  return "";
}

/*! \brief Why XNNPACK has no such step of integers, or "". */
std::string IntegerStepReason(const Program& program, const Node& node) {
  const Scales* a = program.ScalesOf(node.inputs[0]);
  const Scales* b = node.inputs[1] < 0 ? nullptr : program.ScalesOf(node.inputs[1]);
  const Scales& out = *program.ScalesOf(node.out);
  const bool is_signed = program.At(node.out).dtype == NPU_INT8;
  switch (node.step) {
    case NPU_STEP_ADD:
    case NPU_STEP_RESIDUAL:
    case NPU_STEP_SUBTRACT:
      if (a == nullptr || b == nullptr) return "both operands are integers with scales";
      for (const Scales* scales : {a, b}) {
        if (!IsFactor(scales->scales[0] / out.scales[0], 0x1p-10, 0x1p8)) {
          return "a factor of a sum is from 2^-10 to 2^8";
        }
      }
      return "";
    case NPU_STEP_MULTIPLY:
      if (a == nullptr || b == nullptr) return "both operands are integers with scales";
      return IsFactor(a->scales[0] * b->scales[0] / out.scales[0], 0x1p-16, 0x1p8)
                 ? ""
                 : "the factor of a product is from 2^-16 to 2^8";
    case NPU_STEP_SIGMOID:
      return out.scales[0] == 0x1p-8f && out.zero_points[0] == (is_signed ? -128 : 0)
                 ? ""
                 : "a sigmoid of integers has the scale 1/256";
    case NPU_STEP_RELU:
    case NPU_STEP_CLIP:
      return a != nullptr && *a == out ? StepReason(node) : "limits do not change the scale";
    default:
      return "XNNPACK has no " + NameOf(node) + " of integers";
  }
}

/*! \brief Why XNNPACK has no such node of integers, or "". */
std::string IntegerReason(const Program& program, const Node& node) {
  const Scales *data = program.ScalesOf(node.inputs[0]), *out = program.ScalesOf(node.out);
  for (int32_t id : {node.inputs[0], node.inputs[1], node.out}) {
    const Scales* scales = id < 0 ? nullptr : program.ScalesOf(id);
    if (scales == nullptr) continue;
    const bool is_signed = program.At(id).dtype == NPU_INT8;
    for (size_t i = 0; i < scales->scales.size(); ++i) {
      if (!std::isnormal(scales->scales[i])) return "a scale is normal";
      const int32_t zero = scales->zero_points[i];
      if (zero < (is_signed ? -128 : 0) || zero > (is_signed ? 127 : 255)) {
        return "a zero point is a number of the integer type";
      }
    }
    if (scales->scales.size() > 1 && id != node.inputs[1]) return kOneScale;
  }
  const auto is_type_of = [&](int32_t id) {
    return id < 0 || program.At(id).dtype == program.At(node.out).dtype;
  };
  switch (node.kind) {
    case Kind::kQuantize:
      return data == nullptr ? "" : "XNNPACK cannot change a scale";
    case Kind::kDequantize:
    case Kind::kReshape:
    case Kind::kCopy:
      return "";
    case Kind::kPool:
      if (node.pool.kind == NPU_POOL_MAX) return "";
      return "an average pool is one of float32";
    default:
      break;
  }
  if (data == nullptr || out == nullptr) return "XNNPACK computes from integers to integers";
  if (!is_type_of(node.inputs[0]) || !is_type_of(node.inputs[1])) {
    return "operands and result have one element type";
  }
  switch (node.kind) {
    case Kind::kConvolution:
    case Kind::kMatmul:
      return ProductReason(program, node);
    case Kind::kReduce:
      return IsFactor(data->scales[0] / out->scales[0], 0x1p-8, 0x1p8)
                 ? ""
                 : "the factor of a mean is from 2^-8 to 2^8";
    default:
      return IntegerStepReason(program, node);
  }
}

std::string Reason(const Program& program, const Node& node) {
  const bool converts = node.kind == Kind::kQuantize || node.kind == Kind::kDequantize;
  if (converts && node.inputs[1] >= 0) return kOneScale;
  bool has_integers = false;
  for (int i = 0; i < 4; ++i) {
    const int32_t id = i < 3 ? node.inputs[i] : node.out;
    if (id < 0) continue;
    if (program.At(id).rank > 4) return "a tensor has 4 dimensions at most";
    const npu_dtype dtype = program.At(id).dtype;
    if (dtype == NPU_FLOAT32) continue;
    has_integers = true;
    const bool is_bias = i == 2 && dtype == NPU_INT32 && program.ScalesOf(id) != nullptr;
    const bool is_moved =
        node.kind == Kind::kReshape || node.kind == Kind::kCopy || node.kind == Kind::kPool;
    const bool is_byte = dtype == NPU_INT8 || dtype == NPU_UINT8;
    if (!is_bias && !(is_byte && (is_moved || program.ScalesOf(id) != nullptr))) {
      return "only float32, and integers with scales, are computed";
    }
  }
  if (has_integers) {
    const std::string reason = IntegerReason(program, node);
    if (!reason.empty()) return reason;
  }
  switch (node.kind) {
    case Kind::kStep:
      return StepReason(node);
    case Kind::kReshape:
    case Kind::kQuantize:
    case Kind::kDequantize:
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
                                      /*quantization=*/false,
                                      /*scales=*/true};

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = npu::kit::BuildTable<kDriver>();
  return &api;
}
