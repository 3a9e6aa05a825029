// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void PRelu(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor alpha = op.Input(1);
  const int64_t axis = (op.Int("axis") + data.rank()) % data.rank();
  std::vector<npu_dim> dims = alpha.dims();
  dims.resize(data.rank() - axis, FixedDim(1));
  const Tensor slope = op.View(alpha, dims);
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    Value x = v.Load(data);
    Value factor = v.Load(slope);
    Value result = v.Select(v.Less(v.Constant(0), x), x, v.Multiply(x, factor));
    return v.AsStep(NPU_STEP_PRELU, "relax.nn.prelu", {x, factor}, result);
  });
}

REGISTER_LOWERING("relax.nn.prelu", PRelu);

}  // namespace
}  // namespace npu
