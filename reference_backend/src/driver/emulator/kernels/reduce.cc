// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file reduce.cc
 * \brief Reduction.
 */
#include <algorithm>
#include <limits>

#include "evaluator.h"
#include "internal.h"

namespace tvm_example_npu::emulator {

namespace {

constexpr int64_t kBlock = Evaluator::kBlock;
// So many elements are added up one after the other; then their sums are.
constexpr int64_t kChain = 128;

// Dimensions of one kind that can be walked as one are one.
struct Dimensions {
  int rank = 0;
  int64_t sizes[NPU_MAX_RANK];
  int64_t strides[NPU_MAX_RANK];

  int64_t Count() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= sizes[d];
    return count;
  }
  // Where element `index` lies; the innermost dimension is the first.
  int64_t Offset(int64_t index) const {
    int64_t offset = 0;
    for (int d = 0; d < rank; ++d) {
      offset += index % sizes[d] * strides[d];
      index /= sizes[d];
    }
    return offset;
  }
};

struct Shape {
  explicit Shape(const ReduceArgs& args) {
    int64_t stride = 1;
    int last = -1;
    for (int d = args.data.rank - 1; d >= 0; --d) {
      int64_t size = args.data.dims[d];
      if (size == 1) continue;
      int kind = (args.axes >> d) & 1;
      Dimensions& dimensions = kind != 0 ? reduced : kept;
      if (kind == last) {
        dimensions.sizes[dimensions.rank - 1] *= size;
      } else {
        dimensions.sizes[dimensions.rank] = size;
        dimensions.strides[dimensions.rank++] = stride;
        if (last == -1) inner_reduced = kind != 0;
        last = kind;
      }
      stride *= size;
    }
    count = reduced.Count();
  }

  Dimensions kept, reduced;
  // Whether the elements of a sum lie side by side, or the sums do.
  bool inner_reduced = true;
  int64_t count;
};

class Reducer {
 public:
  explicit Reducer(const ReduceArgs& args)
      : simd_(ActiveSimd()),
        shape_(args),
        data_(static_cast<const char*>(args.data.data)),
        dtype_(args.data.dtype),
        element_(static_cast<int64_t>(ElementSize(args.data.dtype))) {
    float infinity = std::numeric_limits<float>::infinity();
    bool least = args.kind == NPU_REDUCE_MIN;
    if (args.kind == NPU_REDUCE_MAX || least) {
      opcode_ = least ? NPU_VECTOR_MINIMUM : NPU_VECTOR_MAXIMUM;
      start_ = least ? infinity : -infinity;
    }
  }

  // Elements [first, first + count) of the result, at most kBlock; `memory` is for 2 kBlock floats.
  void Block(int64_t first, int64_t count, float* memory, float* results) const {
    if (shape_.count == 0) {
      simd_.fill(start_, count, results);
    } else if (shape_.inner_reduced) {
      for (int64_t i = 0; i < count; ++i) {
        results[i] = Row(shape_.kept.Offset(first + i), memory);
      }
    } else {
      int64_t inner = shape_.kept.sizes[0];
      for (int64_t i = 0; i < count;) {
        int64_t run = std::min(count - i, inner - (first + i) % inner);
        Columns(shape_.kept.Offset(first + i), run, memory, results + i);
        i += run;
      }
    }
  }

  const Shape& shape() const { return shape_; }

 private:
  // Elements from `offset`, converted in `memory` unless they are float32.
  const float* Elements(int64_t offset, int64_t count, float* memory) const {
    const char* data = data_ + offset * element_;
    if (dtype_ == NPU_FLOAT32) return reinterpret_cast<const float*>(data);
    simd_.load(dtype_, data, count, memory);
    return memory;
  }

  float Combine(float a, float b) const {
    float pair[] = {a, b};
    return simd_.reduce(opcode_, pair, 2);
  }

  float Row(int64_t offset, float* memory) const {
    int64_t inner = shape_.reduced.rank == 0 ? 1 : shape_.reduced.sizes[0];
    if (inner == shape_.count && (dtype_ == NPU_FLOAT32 || inner <= kBlock)) {
      return simd_.reduce(opcode_, Elements(offset, inner, memory), inner);
    }
    float total = start_;
    float chain = start_;
    for (int64_t i = 0, links = 0; i < shape_.count; i += inner) {
      int64_t row = offset + shape_.reduced.Offset(i);
      int64_t step = dtype_ == NPU_FLOAT32 ? inner : kBlock;
      for (int64_t j = 0; j < inner; j += step) {
        int64_t count = std::min(step, inner - j);
        chain = Combine(chain, simd_.reduce(opcode_, Elements(row + j, count, memory), count));
        if (++links % kChain == 0) {
          total = Combine(total, chain);
          chain = start_;
        }
      }
    }
    return Combine(total, chain);
  }

  void Columns(int64_t offset, int64_t count, float* memory, float* results) const {
    float* chain = memory;
    float* converted = memory + kBlock;
    simd_.fill(start_, count, results);
    simd_.fill(start_, count, chain);
    for (int64_t i = 0; i < shape_.count; ++i) {
      const float* row = Elements(offset + shape_.reduced.Offset(i), count, converted);
      simd_.apply(opcode_, {chain}, {row}, {}, count, chain);
      if ((i + 1) % kChain == 0) {
        simd_.apply(opcode_, {results}, {chain}, {}, count, results);
        simd_.fill(start_, count, chain);
      }
    }
    simd_.apply(opcode_, {results}, {chain}, {}, count, results);
  }

  const Simd& simd_;
  Shape shape_;
  const char* data_;
  npu_dtype dtype_;
  int64_t element_;
  npu_vector_opcode opcode_ = NPU_VECTOR_ADD;
  float start_ = 0;
};

int64_t WorkerFloats(const ReduceArgs& args) {
  return 3 * kBlock + Evaluator::Registers(args.epilogue);
}

}  // namespace

size_t ReduceScratch(const ReduceArgs& args, int threads) {
  return static_cast<size_t>(threads * WorkerFloats(args)) * sizeof(float);
}

void Reduce(const ReduceArgs& args, const KernelContext& context) {
  int64_t count = ElementCount(args.out);
  if (count == 0) return;
  Reducer reducer(args);
  Evaluator evaluator(args.epilogue, args.out, count);
  int64_t floats = WorkerFloats(args);
  float divisor = static_cast<float>(reducer.shape().count);
  // Blocks begin at the same elements for any number of threads.
  int64_t cost = std::max<int64_t>(reducer.shape().count, 1);
  int64_t grain = std::min(Grain(cost), kBlock);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* results = static_cast<float*>(context.scratch) + worker * floats;
    float* memory = results + kBlock;
    float* registers = memory + 2 * kBlock;
    evaluator.Begin(registers);
    reducer.Block(begin, end - begin, memory, results);
    if (args.kind == NPU_REDUCE_MEAN) {
      for (int64_t i = 0; i < end - begin; ++i) results[i] /= divisor;
    }
    evaluator.StoreRun(results, end - begin, 0, begin, registers);
  };
  Parallel(context, count, grain, run);
}

}  // namespace tvm_example_npu::emulator
