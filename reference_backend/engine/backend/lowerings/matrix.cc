// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void MatMul(Lowering& op) {
  // The type of the output implies out_dtype.
  npu_matmul matmul = {};
  matmul.a = op.Input(0).id;
  matmul.b = op.Input(1).id;
  matmul.out = op.Output().id;
  matmul.transpose_a = op.InputIsTransposed(0);
  matmul.transpose_b = op.InputIsTransposed(1);
  matmul.epilogue = op.Epilogue();
  op.Emit(matmul);
}

bool HasVector(const Lowering& op) {
  return op.InputDims(0).size() == 1 || op.InputDims(1).size() == 1;
}

// A vector on the left is a row, on the right a column; the result lacks the dimension of size 1.
void MatMulOfVector(Lowering& op) {
  const bool row = op.Input(0).rank() == 1;
  const bool column = op.Input(1).rank() == 1;
  std::vector<npu_dim> dims = op.OutputDims();
  if (column) dims.push_back(FixedDim(1));
  if (row) dims.insert(dims.end() - 1, FixedDim(1));

  npu_matmul matmul = {};
  matmul.a = row ? op.View(op.Input(0), {FixedDim(1), op.Input(0).dims()[0]}).id : op.Input(0).id;
  matmul.b =
      column ? op.View(op.Input(1), {op.Input(1).dims()[0], FixedDim(1)}).id : op.Input(1).id;
  matmul.transpose_a = op.InputIsTransposed(0);
  matmul.transpose_b = op.InputIsTransposed(1);
  const npu_vector_program* epilogue = op.Epilogue();
  const Tensor product = op.Temporary(epilogue == nullptr ? op.OutputDtype() : NPU_FLOAT32, dims);
  matmul.out = product.id;
  op.Emit(matmul);
  if (epilogue == nullptr) {
    op.SetOutput(0, op.View(product, op.OutputDims()));
    return;
  }
  // A sum over dimensions of size 1 gives the shape of the result, which the epilogue's inputs
  // have.
  npu_reduce reduce = {};
  reduce.data = product.id;
  reduce.out = op.Output().id;
  reduce.kind = NPU_REDUCE_SUM;
  const uint32_t end = static_cast<uint32_t>(product.rank());
  if (column) reduce.axes |= 1u << (end - 1);
  if (row) reduce.axes |= 1u << (end - 2);
  reduce.epilogue = epilogue;
  op.Emit(reduce);
}

REGISTER_LOWERING("relax.matmul", MatMulOfVector)
    .When(HasVector)
    .TakesEpilogue()
    .AbsorbsTranspose();
REGISTER_LOWERING("relax.matmul", MatMul)
    .TakesEpilogue()
    .AbsorbsTranspose()
    .TakesQuantized(-1)
    .TakesIntegerWeights();

}  // namespace
}  // namespace npu
