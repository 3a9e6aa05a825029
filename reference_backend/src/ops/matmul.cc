// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

void MatMul(Lowering& op) {
  // The attribute out_dtype is in the type of the output.
  npu_matmul matmul = {};
  matmul.a = op.Input(0).id;
  matmul.b = op.Input(1).id;
  matmul.out = op.Output().id;
  matmul.transpose_a = op.InputIsTransposed(0);
  matmul.transpose_b = op.InputIsTransposed(1);
  matmul.epilogue = op.Epilogue();
  op.Emit(matmul);
}

REGISTER_LOWERING("relax.matmul", MatMul).TakesEpilogue().AbsorbsTranspose();

}  // namespace
}  // namespace tvm_example_npu
