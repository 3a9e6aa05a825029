// SPDX-License-Identifier: Apache-2.0
/*!
 * \file products.h
 * \brief Products of matrices, for the functions of vendor/isa_semantics.h.
 */
#ifndef ISA_EMULATOR_PRODUCTS_H_
#define ISA_EMULATOR_PRODUCTS_H_

#include <cstdint>

#include "isa_emulator/state.h"

namespace npu::isa {

/*! \brief A matrix of weights: k rows, `stride` bytes apart, of n elements without gaps. */
struct Weights {
  const uint8_t* data;
  Name type;
  int64_t stride, k, n;
};

/*! \brief The most rows of a block. */
constexpr int64_t kMostRows = 128;

/*!
 * \brief totals[r][c] = sum of rows[r][i] * weights[i][c], for `count` rows of k elements.
 *
 * Of float32, in float32, in the order of i. Of i8 and u8, as int32, whose sums wrap.
 */
void MultiplyRows(State& s, const uint8_t* const* rows, int64_t count, Name type,
                  const Weights& weights, void* totals);

using ProductRow = void (*)(const uint8_t* row, const uint8_t* weights, uint8_t* sums, int64_t n);

/*! \brief sums[c] += row[c] * weights[c], of the types of `MultiplyRows` for data of a type. */
ProductRow ProductRowOf(Name type);

}  // namespace npu::isa

#endif  // ISA_EMULATOR_PRODUCTS_H_
