// SPDX-License-Identifier: Apache-2.0
/*!
 * \file triangle.h
 * \brief Shared code of tril and triu.
 */
#ifndef LOWERINGS_TRIANGLE_H_
#define LOWERINGS_TRIANGLE_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief Keeps the elements up to the diagonal number `k`, or (`upper`) from it on; the others
 *  become zero. */
inline void LowerTriangle(Lowering& op, bool upper) {
  const Tensor data = op.Input(0);
  const int rank = data.rank();
  const int64_t k = op.Int("k");
  const auto numbers = [&](int dim, const std::vector<npu_dim>& dims) {
    std::vector<int64_t> values(op.FixedSize(data, dim));
    std::iota(values.begin(), values.end(), 0);
    return op.Constant(dims, values);
  };
  const Tensor rows = numbers(rank - 2, {data.dims()[rank - 2], FixedDim(1)});
  const Tensor columns = numbers(rank - 1, {data.dims()[rank - 1]});
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    const Value diagonal = v.Subtract(v.Load(columns), v.Load(rows));
    const Value below = v.Less(diagonal, v.Constant(static_cast<double>(upper ? k : k + 1)));
    const Value zero = v.Constant(0);
    const Value value = v.Load(data);
    return upper ? v.Select(below, zero, value) : v.Select(below, value, zero);
  });
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_TRIANGLE_H_
