// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void MaxPool1D(Lowering& op) { LowerMaxPool(op, 1); }

REGISTER_LOWERING("relax.nn.max_pool1d", MaxPool1D);

void MaxPool2D(Lowering& op) { LowerMaxPool(op, 2); }

REGISTER_LOWERING("relax.nn.max_pool2d", MaxPool2D);

void MaxPool3D(Lowering& op) { LowerMaxPool(op, 3); }

REGISTER_LOWERING("relax.nn.max_pool3d", MaxPool3D);

void AvgPool1D(Lowering& op) { LowerAvgPool(op, 1); }

REGISTER_LOWERING("relax.nn.avg_pool1d", AvgPool1D).TakesQuantized();

void AvgPool2D(Lowering& op) { LowerAvgPool(op, 2); }

REGISTER_LOWERING("relax.nn.avg_pool2d", AvgPool2D).TakesQuantized();

void AvgPool3D(Lowering& op) { LowerAvgPool(op, 3); }

REGISTER_LOWERING("relax.nn.avg_pool3d", AvgPool3D).TakesQuantized();

void AdaptiveAvgPool1D(Lowering& op) { LowerAdaptiveAvgPool(op, 1); }

REGISTER_LOWERING("relax.nn.adaptive_avg_pool1d", AdaptiveAvgPool1D).TakesQuantized();

void AdaptiveAvgPool2D(Lowering& op) { LowerAdaptiveAvgPool(op, 2); }

REGISTER_LOWERING("relax.nn.adaptive_avg_pool2d", AdaptiveAvgPool2D).TakesQuantized();

void AdaptiveAvgPool3D(Lowering& op) { LowerAdaptiveAvgPool(op, 3); }

REGISTER_LOWERING("relax.nn.adaptive_avg_pool3d", AdaptiveAvgPool3D).TakesQuantized();

}  // namespace
}  // namespace npu
