// SPDX-License-Identifier: Apache-2.0
/*!
 * \file integers.h
 * \brief Vector programs and reductions in int64.
 */
#ifndef EMULATOR_KERNELS_INTEGERS_H_
#define EMULATOR_KERNELS_INTEGERS_H_

#include <cstdint>

#include "evaluator.h"

namespace npu::emulator {

/*! \brief Elements of a tensor of integers as int64; a bool is 0 or 1. */
void LoadIntegers(npu_dtype dtype, const void* data, int64_t count, int64_t* out);
/*! \brief The low bits of each number; for a bool, whether it is not 0. */
void StoreIntegers(npu_dtype dtype, const int64_t* values, int64_t count, void* out);
/*! \brief NPU_VECTOR_RESCALE. */
int64_t Rescale(int64_t a, int64_t b, int64_t c, npu_rounding rounding);
/*! \brief One instruction of a vector program (no load, constant or rescale) that exists for int64.
 *  `out` may be an operand. */
void ApplyIntegers(npu_vector_opcode opcode, const int64_t* a, const int64_t* b, const int64_t* c,
                   int64_t count, int64_t* out);

/*! \brief The smallest and the largest value. */
struct Interval {
  int64_t low, high;
};

/*! \brief The numbers of a type of integers. */
Interval LimitsOf(npu_dtype dtype);

/*! \brief Whether a program of integers computes the same in int32: no value leaves its range.
 *  Looks at the elements of small inputs, so it may depend on data; results do not. In an epilogue,
 *  input 0 is in the interval. */
bool FitsInt32(const VectorProgram& program, Interval accumulator, bool epilogue);

/*! \brief Evaluates a vector program in int64; otherwise like Evaluator, with registers and blocks
 *  of the same size. */
class IntegerEvaluator {
 public:
  IntegerEvaluator(const VectorProgram& program, const TensorView& out);

  /*! \brief Sets the constants, before blocks. */
  void Begin(int64_t* registers) const;

  /*! \brief Stores elements from `index` on. `values` is input 0 of an epilogue, else null. */
  void StoreRun(const int64_t* values, int64_t count, int64_t index, int64_t* registers) const;

 private:
  static constexpr int64_t kBlock = Evaluator::kBlock;

  void StoreBlock(const int64_t* values, int64_t count, int64_t index, int64_t* registers) const;
  void Load(const Broadcast& input, int64_t index, int64_t count, int64_t* out) const;

  const VectorProgram program_;
  char* out_;
  npu_dtype dtype_;
  Broadcast inputs_[NPU_MAX_VECTOR_INPUTS];
};

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_INTEGERS_H_
