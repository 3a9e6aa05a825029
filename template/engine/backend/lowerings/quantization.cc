// SPDX-License-Identifier: Apache-2.0
#include "quantization.h"
#include "lowering.h"

namespace npu {
namespace {

// The type of the output implies out_dtype; storing to it saturates. Without parameters, the
// tensor of integers has them.
Value Quantize(const Lowering&, VectorBuilder& v, const Values& x) {
  if (x.size() == 1) return x[0];
  return v.Add(v.RoundEven(v.Divide(x[0], x[1])), x[2]);
}

void QuantizeByChannel(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor scale = QuantizationParameter(op, 1);
  const Tensor zero_point = QuantizationParameter(op, 2);
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return Quantize(op, v, {v.Load(data), v.Load(scale), v.Load(zero_point)});
  });
}

// After a dequantize in the same composite, a quantize rescales integers.
REGISTER_ELEMENTWISE("relax.quantize", Quantize).When(HasOneScale).TakesQuantized();
REGISTER_LOWERING("relax.quantize", QuantizeByChannel);

// The type of the output implies out_dtype.
Value Dequantize(const Lowering& op, VectorBuilder& v, const Values& x) {
  const npu_dtype from = op.InputDtype(0);
  if (from != NPU_INT8 && from != NPU_UINT8 && from != NPU_INT16) {
    op.Refuse(
        "its data must be int8, uint8 or int16: differences of wider integers are not exact "
        "here");
  }
  if (x.size() == 1) return x[0];
  Value result = v.Multiply(v.Subtract(x[0], x[2]), x[1]);
  if (op.OutputDtype() != NPU_FLOAT16) return result;
  const double largest = 65504;  // TVM saturates here, where a conversion would give infinity.
  return v.Minimum(v.Maximum(result, v.Constant(-largest)), v.Constant(largest));
}

void DequantizeByChannel(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor scale = QuantizationParameter(op, 1);
  const Tensor zero_point = QuantizationParameter(op, 2);
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return Dequantize(op, v, {v.Load(data), v.Load(scale), v.Load(zero_point)});
  });
}

REGISTER_ELEMENTWISE("relax.dequantize", Dequantize).When(HasOneScale);
REGISTER_LOWERING("relax.dequantize", DequantizeByChannel);

}  // namespace
}  // namespace npu
