// SPDX-License-Identifier: Apache-2.0
/*!
 * \file internal.h
 * \brief Shared by all kernels: scratch memory and loops.
 */
#ifndef EMULATOR_KERNELS_INTERNAL_H_
#define EMULATOR_KERNELS_INTERNAL_H_

#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "simd.h"

namespace npu::emulator {

/*! \brief How many pieces of size `b` hold `a`. */
inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/*! \brief Rounds floats up to whole cache lines: vectors that straddle two are slower. */
inline int64_t WholeLines(int64_t floats) { return CeilDivide(floats, 16) * 16; }

/*! \brief How many matrices a tensor has. */
inline int64_t BatchCount(const TensorView& tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor.rank - 2; ++d) count *= tensor.dims[d];
  return count;
}

/*! \brief Which matrix of an operand belongs to a matrix of the output. */
inline int64_t BatchIndex(const TensorView& tensor, const TensorView& out, int64_t batch) {
  int64_t index = 0;
  int64_t stride = 1;
  for (int d = 3; d <= tensor.rank; ++d) {
    int64_t size = tensor.dims[tensor.rank - d];
    int64_t out_size = out.dims[out.rank - d];
    if (size != 1) index += batch % out_size * stride;
    stride *= size;
    batch /= out_size;
  }
  return index;
}

/*! \brief Allocates scratch memory. With a null base it only counts, so that the function that lays
 *  out a kernel's memory also computes its size. */
class Scratch {
 public:
  explicit Scratch(void* base) : base_(static_cast<char*>(base)) {}

  /*! \brief The next `count` elements; null if there is no memory. */
  template <typename T>
  T* Take(int64_t count) {
    char* piece = base_ == nullptr ? nullptr : base_ + used_;
    size_t bytes = static_cast<size_t>(count) * sizeof(T);
    used_ += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    return reinterpret_cast<T*>(piece);
  }

  /*! \brief Bytes handed out so far. */
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

/*! \brief How many threads a kernel will have. */
inline int Threads(const KernelContext& context) {
  return context.pool == nullptr ? 1 : context.pool->size();
}

/*! \brief Loops over chunks, on the pool if there is one; see ThreadPool::ParallelFor. */
template <typename Body>
void Parallel(const KernelContext& context, int64_t count, int64_t grain, const Body& body) {
  if (context.pool != nullptr) {
    context.pool->ParallelFor(count, grain, body);
  } else {
    for (int64_t i = 0; i < count; i += grain) body(i, i + grain < count ? i + grain : count, 0);
  }
}

/*! \brief How many items of this cost make a chunk that is worth a thread. */
inline int64_t Grain(int64_t operations) {
  constexpr int64_t kWorthwhile = 65536;
  return operations < 1 ? kWorthwhile : CeilDivide(kWorthwhile, operations);
}

/*! \brief Runs Elementwise as one loop if it is the last step of a normalization along rows, which
 *  are the last dimensions: (data - mean) * factor * gamma + beta. Results are the same. */
bool Normalize(const ElementwiseArgs& args, const KernelContext& context);

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_INTERNAL_H_
