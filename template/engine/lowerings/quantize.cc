// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "quantization.h"

namespace npu {
namespace {

// The type of the output implies out_dtype; storing to it saturates.
Value Quantize(const Lowering&, VectorBuilder& v, const Values& x) {
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

// After a dequantize of its composite, this rescales integers.
REGISTER_ELEMENTWISE("relax.quantize", Quantize).When(HasOneScale).TakesQuantized();
REGISTER_LOWERING("relax.quantize", QuantizeByChannel);

}  // namespace
}  // namespace npu
