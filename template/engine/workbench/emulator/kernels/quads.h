// SPDX-License-Identifier: Apache-2.0
/*!
 * \file quads.h
 * \brief Operands of products of quads; see QuadProducts.
 *
 * With l and r as they are multiplied, and their zero points y and z, the sum of (l - y) * (r - z)
 * is that of l * r, less z times the sum of l, less y times the sum of r, plus y * z for each step
 * of the depth. Steps that only fill up the depth must have y in the left operand or z in the right
 * one. All of it wraps, so it is exact where the result is.
 */
#ifndef EMULATOR_KERNELS_QUADS_H_
#define EMULATOR_KERNELS_QUADS_H_

#include <cstdint>

#include "internal.h"

namespace npu::emulator {

/*! \brief Whether an operand's sign bits are flipped. */
inline bool IsTurned(npu_dtype dtype, bool left) { return (dtype == NPU_UINT8) == left; }
/*! \brief The zero point of an operand as it is multiplied. */
inline int32_t ZeroOfQuads(npu_dtype dtype, int32_t zero_point, bool left) {
  if (!IsTurned(dtype, left)) return zero_point;
  return left ? zero_point - 128 : zero_point + 128;
}
/*! \brief The zero point as an element in memory. */
inline uint8_t ZeroByte(int32_t zero_point) { return static_cast<uint8_t>(zero_point & 0xff); }
/*! \brief A quad of zero points of a right operand. */
float ZeroQuad(npu_dtype dtype, int32_t zero_point);

/*! \brief Finishes a left panel, where step k of row i is panel[k * kPanelRows + i]: puts it in the
 *  order that the processor wants, and writes its rows' addends to the product. */
void FinishLeftPanel(const Simd& simd, int64_t depth, int32_t left_zero, int32_t right_zero,
                     float* panel, int32_t* of_rows);

/*! \brief The addends of the columns of a right panel, `stride` apart, to the product. There are at
 *  most kMostSteps. */
void SumColumns(const Simd& simd, int64_t depth, int32_t left_zero, const float* panel,
                int64_t stride, int32_t* of_columns);
constexpr int64_t kMostSteps = 256;

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_QUADS_H_
