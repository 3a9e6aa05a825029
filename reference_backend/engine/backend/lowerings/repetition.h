// SPDX-License-Identifier: Apache-2.0
/*!
 * \file repetition.h
 * \brief Shared code of tile and repeat.
 */
#ifndef LOWERINGS_REPETITION_H_
#define LOWERINGS_REPETITION_H_

#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief One dimension of the data, and how often it or each of its elements is repeated. */
struct Repetition {
  npu_dim dim;
  int64_t whole = 1;
  int64_t each = 1;
};

/*! \brief Lowers a repetition of each dimension. The data gets dimensions of size 1, along which a
 *  load broadcasts. */
inline void LowerRepetition(Lowering& op, const std::vector<Repetition>& repetitions) {
  std::vector<npu_dim> narrow, wide;
  bool mergeable = false;
  for (const Repetition& item : repetitions) {
    if (item.whole != 1) {
      narrow.push_back(FixedDim(1));
      wide.push_back(FixedDim(item.whole));
    }
    const bool plain = item.whole == 1 && item.each == 1;
    if (plain && mergeable && (item.dim.symbol < 0 || narrow.back().symbol < 0)) {
      // Merge adjacent dimensions without repeats: the number of dimensions is limited.
      npu_dim& merged = narrow.back();
      merged.size *= item.dim.size;
      merged.symbol = merged.symbol < 0 ? item.dim.symbol : merged.symbol;
      wide.back() = merged;
    } else {
      narrow.push_back(item.dim);
      wide.push_back(item.dim);
    }
    mergeable = plain;
    if (item.each != 1) {
      narrow.push_back(FixedDim(1));
      wide.push_back(FixedDim(item.each));
    }
  }
  if (wide.size() > NPU_MAX_RANK) op.Refuse("repeats too many dimensions at once");
  const Tensor data = op.View(op.Input(0), narrow);
  const Tensor out = op.Temporary(data.desc.dtype, wide);
  op.Elementwise(out, [&](VectorBuilder& v) { return v.Load(data); });
  op.SetOutput(0, op.View(out, op.OutputDims()));
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_REPETITION_H_
