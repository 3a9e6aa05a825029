// SPDX-License-Identifier: Apache-2.0
/*!
 * \file integer_sums.h
 * \brief What products of integers have in common: the range of their sums, and their results.
 */
#ifndef EMULATOR_KERNELS_INTEGER_SUMS_H_
#define EMULATOR_KERNELS_INTEGER_SUMS_H_

#include <cstdint>

#include "evaluator.h"
#include "integers.h"
#include "internal.h"

namespace npu::emulator {

/*! \brief How many pairs hold a depth. */
inline int64_t PairsOf(int64_t depth) { return CeilDivide(depth, 2); }

/*! \brief The values of a type's elements, less the zero point. */
Interval FactorsOf(npu_dtype dtype, int32_t zero_point);
/*! \brief The possible sums of this many products. */
Interval SumsOf(const Interval& a, const Interval& b, int64_t depth);

/*! \brief Sums of products of integers, in int32, on their way through the epilogue. */
class SumStore : public TileStore {
 public:
  /*! \brief The result's rows, or columns (`by_column`), are `channels`; `memory` has room for
   *  ParameterFloats(channels), and stays. */
  SumStore(const VectorProgram& epilogue, const TensorView& out, int64_t row_length,
           const Interval& sums, int64_t channels, bool by_column, int32_t* memory);

  static int64_t ParameterFloats(int64_t channels);
  /*! \brief How many floats. */
  static int64_t Registers(const VectorProgram& epilogue) {
    return kValues + 2 * Evaluator::Registers(epilogue);
  }

  void Begin(float* registers) const override;
  void StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row, int64_t column,
                 float* registers) const override;
  /*! \brief Lines of one row, `stride` apart; only if StoresLines(). */
  void StoreLines(const float* sums, int64_t lines, int64_t columns, int64_t stride, int64_t row,
                  int64_t column) const;
  bool StoresLines() const { return requantizes_; }
  /*! \brief A piece of one row. */
  void StoreRun(const float* sums, int64_t count, int64_t row, int64_t column,
                float* registers) const;

 private:
  // Room for a block of int64.
  static constexpr int64_t kValues = 2 * Evaluator::kBlock;

  void Requantize(const float* sums, int64_t rows, int64_t columns, int64_t row,
                  int64_t column) const;
  void StoreWide(const float* sums, int64_t count, int64_t row, int64_t column,
                 float* registers) const;

  const Simd& simd_;
  // The epilogue is of integers; int32 suffices for it; Simd::requantize computes it.
  bool integers_, fits_, requantizes_ = false;
  int64_t row_length_, channels_;
  Requantization how_;
  uint8_t* out_ = nullptr;
  Evaluator narrow_;
  IntegerEvaluator wide_;
};

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_INTEGER_SUMS_H_
