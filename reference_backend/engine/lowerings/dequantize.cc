// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "quantization.h"

namespace npu {
namespace {

void Dequantize(Lowering& op) {
  const Tensor data = op.Input(0);
  if (data.desc.dtype != NPU_INT8 && data.desc.dtype != NPU_UINT8) {
    op.Refuse("its data must be int8 or uint8: differences of wider integers are not exact here");
  }
  const Tensor scale = QuantizationParameter(op, 1);
  const Tensor zero_point = QuantizationParameter(op, 2);
  // The type of the output implies out_dtype.
  const Tensor out = op.Output();
  op.Elementwise(out, [&](VectorBuilder& v) {
    Value steps = v.Subtract(v.Load(data), v.Load(zero_point));
    Value result = v.Multiply(steps, v.Load(scale));
    if (out.desc.dtype != NPU_FLOAT16) return result;
    const double largest = 65504;  // TVM saturates here, where a conversion would give infinity.
    return v.Minimum(v.Maximum(result, v.Constant(-largest)), v.Constant(largest));
  });
}

REGISTER_LOWERING("relax.dequantize", Dequantize);

}  // namespace
}  // namespace npu
