// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "quantization.h"

namespace npu {
namespace {

void Quantize(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor scale = QuantizationParameter(op, 1);
  const Tensor zero_point = QuantizationParameter(op, 2);
  // The type of the output implies out_dtype; storing to it saturates.
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    Value steps = v.RoundEven(v.Divide(v.Load(data), v.Load(scale)));
    return v.Add(steps, v.Load(zero_point));
  });
}

REGISTER_LOWERING("relax.quantize", Quantize);

}  // namespace
}  // namespace npu
