// SPDX-License-Identifier: Apache-2.0
#include "reduction.h"
#include "along_axis.h"
#include "lowering.h"

namespace npu {
namespace {

void Mean(Lowering& op) { LowerReduction(op, NPU_REDUCE_MEAN); }

REGISTER_LOWERING("relax.mean", Mean).TakesQuantized();

void Sum(Lowering& op) { LowerReduction(op, NPU_REDUCE_SUM); }

REGISTER_LOWERING("relax.sum", Sum);

void Max(Lowering& op) { LowerReduction(op, NPU_REDUCE_MAX); }

REGISTER_LOWERING("relax.max", Max);

void Min(Lowering& op) { LowerReduction(op, NPU_REDUCE_MIN); }

REGISTER_LOWERING("relax.min", Min);

void Prod(Lowering& op) { LowerReduction(op, NPU_REDUCE_PRODUCT); }

REGISTER_LOWERING("relax.prod", Prod);

void Variance(Lowering& op) { LowerVariance(op, false); }

REGISTER_LOWERING("relax.variance", Variance);

void Std(Lowering& op) { LowerVariance(op, true); }

REGISTER_LOWERING("relax.std", Std);

void ArgMax(Lowering& op) { LowerArgument(op, true); }

REGISTER_LOWERING("relax.argmax", ArgMax);

void ArgMin(Lowering& op) { LowerArgument(op, false); }

REGISTER_LOWERING("relax.argmin", ArgMin);

}  // namespace
}  // namespace npu
