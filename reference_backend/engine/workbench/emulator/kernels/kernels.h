// SPDX-License-Identifier: Apache-2.0
/*!
 * \file kernels.h
 * \brief The arithmetic of the emulator, on tensors in memory.
 *
 * One function per operation of the driver, with the meaning that the driver's header gives it.
 * Shapes are known and have been checked by the caller; a dimension of 0 is fine. Arithmetic is in
 * float32: loads convert from the tensor's type, stores convert to it. float16 rounds to nearest
 * even; integers round to nearest even and saturate, NaN becomes 0; a bool is 1 where the value is
 * not 0 (NaN is not 0). Vector programs and reductions of integers are in int64 instead, which
 * stores cut to the low bits.
 *
 * Kernels neither allocate nor throw nor keep state. Each has a function for the size of its
 * scratch memory, which reads shapes and types but no data: the only pointer that it looks at is
 * that of packed data, which may be null. Results are bit-identical for every number of threads.
 *
 * Memory of `out` may not overlap that of inputs, with one exception: an input of a vector program
 * (also of an epilogue, then not input 0) with the shape and type of `out` may be `out` itself.
 */
#ifndef EMULATOR_KERNELS_KERNELS_H_
#define EMULATOR_KERNELS_KERNELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../thread_pool.h"
#include "npu_driver.h"

namespace npu::emulator {

/*! \brief How many element types there are. */
constexpr int32_t kDtypeCount = NPU_INT16 + 1;

/*! \brief Whether this is an integer type; a bool is one of 1 bit. */
inline bool IsInteger(npu_dtype dtype) { return dtype != NPU_FLOAT32 && dtype != NPU_FLOAT16; }

/*! \brief The type in which a matmul or a convolution sums up, by the type of its first operand. */
inline npu_dtype AccumulatorOf(npu_dtype operand) {
  if (!IsInteger(operand)) return NPU_FLOAT32;
  return operand == NPU_INT16 ? NPU_INT64 : NPU_INT32;
}

/*! \brief How many bits a packed integer weight has, for operand a of this type; 0 if both operands
 *  are of one kind. `bits` is npu_matmul's. */
inline int32_t WeightBits(npu_dtype a, npu_dtype b, int32_t bits) {
  if (IsInteger(a) || !IsInteger(b)) return 0;
  return bits == 4 ? 4 : 8;
}

/*! \brief Whether a packed weight may be halved, with the operands' types: a product of integers
 *  may have a weight of 8 bits whose numbers need 4. */
inline bool MayBeHalved(npu_dtype a, npu_dtype b) {
  return IsInteger(a) && (b == NPU_INT8 || b == NPU_UINT8);
}

/*! \brief Whether all loads of a vector program are of integers; `type_of` tells the type of an
 *  input. */
template <typename TypeOf>
bool LoadsIntegers(const npu_vector_instruction* instructions, size_t count,
                   const TypeOf& type_of) {
  for (size_t i = 0; i < count; ++i) {
    bool load = instructions[i].opcode == NPU_VECTOR_LOAD;
    if (load && !IsInteger(type_of(instructions[i].a))) return false;
  }
  return true;
}

/*! \brief A dense, row-major tensor in memory, aligned to its elements. Kernels write only to the
 *  one called `out`. */
struct TensorView {
  void* data = nullptr;
  npu_dtype dtype = NPU_FLOAT32;
  int32_t rank = 0;
  int64_t dims[NPU_MAX_RANK] = {};
};

/*! \brief Calls `body(T())` with the type of elements in memory: bools are uint8_t, and real
 * numbers unsigned integers of their size. */
template <typename Body>
auto WithElement(npu_dtype dtype, const Body& body) {
  switch (dtype) {
    // NOLINTNEXTLINE(bugprone-branch-clone): they differ in the type.
    case NPU_INT8:
      return body(int8_t());
    case NPU_INT16:
      return body(int16_t());
    case NPU_FLOAT16:
      return body(uint16_t());
    case NPU_INT32:
      return body(int32_t());
    case NPU_FLOAT32:
      return body(uint32_t());
    case NPU_INT64:
      return body(int64_t());
    case NPU_UINT8:
    case NPU_BOOL:
      break;
  }
  return body(uint8_t());
}

/*! \brief Bytes of one element. */
size_t ElementSize(npu_dtype dtype);
/*! \brief Elements of a tensor; 1 for a scalar. */
int64_t ElementCount(const TensorView& tensor);

/*! \brief A vector program over tensors in memory; an epilogue of no instructions stores results
 *  unchanged. At most NPU_MAX_VECTOR_INPUTS inputs. */
struct VectorProgram {
  const npu_vector_instruction* instructions = nullptr;
  int32_t instruction_count = 0;
  /*! \brief In an epilogue, entry 0 is ignored (the accumulator). */
  const TensorView* inputs = nullptr;
  int32_t input_count = 0;
};

/*! \brief Whether a program that loads no accumulator is computed in int64. */
bool IsIntegerProgram(const VectorProgram& program, npu_dtype out);
/*! \brief The same for an epilogue whose accumulator is an integer. */
bool IsIntegerEpilogue(const VectorProgram& program, npu_dtype out);

/*! \brief The resources of a kernel. */
struct KernelContext {
  /*! \brief As many bytes as the kernel's scratch function asks for, aligned to 64. */
  void* scratch = nullptr;
  /*! \brief Null: the caller's thread works alone, and scratch is for 1 thread. */
  ThreadPool* pool = nullptr;
};

/*! \brief Alignment of scratch memory; packed operands are fastest at it too. */
constexpr size_t kScratchAlignment = 64;

/*! \brief Operands of MatMul: both real numbers, both integers, or real numbers and weights of
 *  integers, as npu_driver.h says. */
struct MatMulArgs {
  /*! \brief Rank 2 or more; leading dimensions broadcast to those of `out`. */
  TensorView a, b, out;
  bool transpose_a = false;
  bool transpose_b = false;
  int32_t a_zero_point = 0, b_zero_point = 0;
  /*! \brief For weights of integers; there are `b_scales` if `b_block` is not 0, and then there may
   *  be `b_zero_points`, with data that is not null. */
  int32_t b_bits = 0;
  int64_t b_block = 0;
  TensorView b_scales, b_zero_points;
  /*! \brief `b` packed by PackMatMulB, or null. If given, `b.data` is not read. */
  const void* packed_b = nullptr;
  /*! \brief Whether `packed_b` was halved by Halve. */
  bool b_halved = false;
  VectorProgram epilogue;
};

/*! \brief Operands of Convolution, with types as MatMul's; spatial dimensions as in `data`, from
 *  entry 0. */
constexpr int64_t kMostSpread = 64;
struct ConvolutionArgs {
  TensorView data, weight, out;
  int32_t spatial_rank = 0;
  int64_t strides[NPU_MAX_SPATIAL] = {};
  int64_t dilations[NPU_MAX_SPATIAL] = {};
  int64_t pads_begin[NPU_MAX_SPATIAL] = {};
  /*! \brief Only the shape of `out` matters: this is for the caller's checks. */
  int64_t pads_end[NPU_MAX_SPATIAL] = {};
  int64_t groups = 1;
  int32_t data_zero_point = 0, weight_zero_point = 0;
  /*! \brief Whether all elements of the data are 0 but those at spread_first,
   *  spread_first + spread, ... in each spatial dimension, and `data.data` has these alone. Only
   * for real numbers, strides of 1, one group, and at most kMostSpread elements for each in
   * `data.data`. Weights that are not finite are not multiplied by these zeros. */
  bool is_spread = false;
  int64_t spread[NPU_MAX_SPATIAL] = {1, 1, 1};
  int64_t spread_first[NPU_MAX_SPATIAL] = {};
  /*! \brief `weight` packed by PackConvolutionWeight, or null. If given, `weight.data` is not
   *  read. */
  const void* packed_weight = nullptr;
  /*! \brief Whether `packed_weight` was halved by Halve. */
  bool weight_halved = false;
  /*! \brief If not 0: the packed weight of float32 consists of parts of `weight_part` output
   *  channels, which begin `weight_pitch` bytes apart. */
  int64_t weight_part = 0, weight_pitch = 0;
  VectorProgram epilogue;
};

/*! \brief Operands of Pool. */
struct PoolArgs {
  TensorView data, out;
  npu_pool_kind kind = NPU_POOL_MAX;
  int32_t spatial_rank = 0;
  /*! \brief These are not read for NPU_POOL_AVERAGE_ADAPTIVE. */
  int64_t window[NPU_MAX_SPATIAL] = {};
  int64_t strides[NPU_MAX_SPATIAL] = {};
  int64_t dilations[NPU_MAX_SPATIAL] = {};
  int64_t pads_begin[NPU_MAX_SPATIAL] = {};
  int64_t pads_end[NPU_MAX_SPATIAL] = {};
};

/*! \brief Operands of Elementwise. */
struct ElementwiseArgs {
  VectorProgram program;
  TensorView out;
};

/*! \brief Operands of Reduce. `out` has the kept dimensions, with or without the reduced ones as
 *  1. Over no elements, a sum is 0, a product 1, a mean NaN, a maximum -infinity, a minimum
 *  +infinity. Integers have no mean; then `out` and all that the epilogue loads are integers, and
 *  over no elements, a maximum is the least number of the data's type, a minimum the largest. */
struct ReduceArgs {
  TensorView data, out;
  npu_reduce_kind kind = NPU_REDUCE_SUM;
  uint32_t axes = 0;
  VectorProgram epilogue;
};

/*! \brief How many elements of a dimension there are from `offset` on in steps; negative ones go
 *  backwards. 0 where the offset is outside of it. */
inline int64_t StepsIn(int64_t size, int64_t offset, int64_t step) {
  if (offset < 0 || offset >= size) return 0;
  return (step > 0 ? (size - 1 - offset) / step : offset / -step) + 1;
}

/*! \brief Operands of Copy, which moves a box as a Transfer of program.h does. It moves bytes: all
 *  types are exact. `data` and `out` have the same rank and type. */
struct CopyArgs {
  CopyArgs() {
    std::fill_n(data_step, NPU_MAX_RANK, 1);
    std::fill_n(out_step, NPU_MAX_RANK, 1);
  }

  /*! \brief Without the memory of `data` there is no box: `out` is only filled. */
  TensorView data, out;
  int32_t permutation[NPU_MAX_RANK] = {};
  int64_t data_offset[NPU_MAX_RANK] = {};
  int64_t data_step[NPU_MAX_RANK];
  int64_t out_offset[NPU_MAX_RANK] = {};
  int64_t out_step[NPU_MAX_RANK];
  bool fill = false;
  double fill_value = 0;

  /*! \brief The extent of the box in a dimension of `out`: what fits into both. */
  int64_t Extent(int dimension) const {
    int32_t from = permutation[dimension];
    return std::min(StepsIn(data.dims[from], data_offset[from], data_step[from]),
                    StepsIn(out.dims[dimension], out_offset[dimension], out_step[dimension]));
  }
};

/*! \brief Operands of Gather; indices outside of the data are moved to its ends. Along the axis,
 *  `data` has elements unless `out` has none. */
struct GatherArgs {
  TensorView data, indices, out;
  int32_t axis = 0;
  bool elementwise = false;
};

/*! \brief Operands of Update: slices of `value` go to their positions along the axis of `out`;
 *  those outside of it to none. */
struct UpdateArgs {
  TensorView value, positions, out;
  int32_t axis = 0;
};

/*! \brief A plain operation at work (operations.h): its tensors, in the order of its list. */
template <typename Op>
struct PlainArgs {
  /*! \brief The first tensor that is read. */
  const TensorView& data() const { return reads[0]; }

  Op op;
  TensorView reads[NPU_MAX_OPERANDS], out;
};

/*!
 * \name Packed constants
 * Operands in the order in which the kernels read them, real numbers as float32, integers
 * unchanged, or in half a byte. `weight_bits` comes from WeightBits. The layout does not depend on
 * the machine (but for its byte order, little-endian): programs may store it.
 * @{
 */
size_t PackedMatMulBBytes(const TensorView& b, bool transpose_b, int32_t weight_bits);
void PackMatMulB(const TensorView& b, bool transpose_b, int32_t weight_bits, void* packed);
size_t PackedConvolutionWeightBytes(const TensorView& weight, int64_t groups);
void PackConvolutionWeight(const TensorView& weight, int64_t groups, void* packed);
/*! \brief Whether Halve keeps these numbers: -8 to 7, or 0 to 15 of uint8. */
bool FitHalves(npu_dtype dtype, const void* data, size_t bytes);
/*! \brief The bytes of a packed weight that is halved. */
inline size_t HalvedBytes(size_t bytes) { return (bytes + 1) / 2; }
/*! \brief Stores two packed numbers in a byte, the first one in its lower half. */
void Halve(const uint8_t* packed, size_t bytes, uint8_t* halves);
/*! @} */

/*!
 * \name Scratch memory, in bytes, for a pool of `threads` threads
 * @{
 */
size_t ScratchBytes(const MatMulArgs& args, int threads);
size_t ScratchBytes(const ConvolutionArgs& args, int threads);
size_t ScratchBytes(const PoolArgs& args, int threads);
size_t ScratchBytes(const ElementwiseArgs& args, int threads);
size_t ScratchBytes(const ReduceArgs& args, int threads);
size_t ScratchBytes(const CopyArgs& args, int threads);
size_t ScratchBytes(const GatherArgs& args, int threads);
size_t ScratchBytes(const UpdateArgs& args, int threads);
/*! @} */

/*!
 * \name Kernels
 * @{
 */
void Execute(const MatMulArgs& args, const KernelContext& context);
void Execute(const ConvolutionArgs& args, const KernelContext& context);
void Execute(const PoolArgs& args, const KernelContext& context);
void Execute(const ElementwiseArgs& args, const KernelContext& context);
void Execute(const ReduceArgs& args, const KernelContext& context);
void Execute(const CopyArgs& args, const KernelContext& context);
void Execute(const GatherArgs& args, const KernelContext& context);
void Execute(const UpdateArgs& args, const KernelContext& context);
/*! @} */

/*!
 * \brief Runs successive kernels in one pass over rows, which are the last dimensions, with the
 * same results, if they are one of these:
 *  - a softmax: the maximum of each row, the exponentials of the data minus that maximum, their
 *    sum, and their quotients;
 *  - a variance: the mean of each row, the squares of the data minus that mean, and a function of
 *    the mean of these squares.
 *
 * `fourth` is what follows, or null. Needs the scratch memory of the kernels alone. Returns how
 * many of them it has run: 0, 3 or 4.
 */
int RunRowSteps(const ReduceArgs& first, const ElementwiseArgs& second, const ReduceArgs& third,
                const ElementwiseArgs* fourth, const KernelContext& context);

/*! \brief The instruction set in use: "generic", "avx2", "avx512", "avx512vnni" or "amx". */
const char* KernelInstructionSet();

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_KERNELS_H_
