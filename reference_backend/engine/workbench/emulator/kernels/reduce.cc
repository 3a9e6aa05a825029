// SPDX-License-Identifier: Apache-2.0
/*!
 * \file reduce.cc
 * \brief Reduction.
 */
#include <algorithm>
#include <limits>

#include "evaluator.h"
#include "integers.h"
#include "internal.h"

namespace npu::emulator {

namespace {

constexpr int64_t kBlock = Evaluator::kBlock;
// This many elements are added one by one; the sums of such chains are added at the end.
constexpr int64_t kChain = 128;

// Dimensions that are all kept or all reduced; adjacent ones are merged where possible.
struct Dimensions {
  int rank = 0;
  int64_t sizes[NPU_MAX_RANK];
  int64_t strides[NPU_MAX_RANK];

  int64_t Count() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= sizes[d];
    return count;
  }
  // The offset of element `index`; the innermost dimension comes first.
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
  // Whether the innermost dimension is reduced: the elements of a sum are adjacent, not the sums.
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
    } else if (args.kind == NPU_REDUCE_PRODUCT) {
      opcode_ = NPU_VECTOR_MULTIPLY;
      start_ = 1;
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

/*! \brief The same in int64, where the order of elements does not matter. */
class IntegerReducer {
 public:
  explicit IntegerReducer(const ReduceArgs& args)
      : shape_(args),
        data_(static_cast<const char*>(args.data.data)),
        dtype_(args.data.dtype),
        element_(static_cast<int64_t>(ElementSize(args.data.dtype))) {
    if (args.kind == NPU_REDUCE_PRODUCT) {
      opcode_ = NPU_VECTOR_MULTIPLY;
      start_ = 1;
    } else if (args.kind == NPU_REDUCE_MAX) {
      opcode_ = NPU_VECTOR_MAXIMUM;
      start_ = LimitsOf(dtype_).low;
    } else if (args.kind == NPU_REDUCE_MIN) {
      opcode_ = NPU_VECTOR_MINIMUM;
      start_ = LimitsOf(dtype_).high;
    }
  }

  // Elements [first, first + count) of the result, at most kBlock; `memory` is for kBlock numbers.
  void Block(int64_t first, int64_t count, int64_t* memory, int64_t* results) const {
    std::fill_n(results, count, start_);
    if (shape_.count == 0) return;
    if (shape_.inner_reduced) {
      for (int64_t i = 0; i < count; ++i) {
        results[i] = Row(shape_.kept.Offset(first + i), memory);
      }
      return;
    }
    int64_t inner = shape_.kept.sizes[0];
    for (int64_t i = 0; i < count;) {
      int64_t run = std::min(count - i, inner - (first + i) % inner);
      int64_t offset = shape_.kept.Offset(first + i);
      for (int64_t j = 0; j < shape_.count; ++j) {
        Load(offset + shape_.reduced.Offset(j), run, memory);
        ApplyIntegers(opcode_, results + i, memory, nullptr, run, results + i);
      }
      i += run;
    }
  }

  const Shape& shape() const { return shape_; }

 private:
  void Load(int64_t offset, int64_t count, int64_t* memory) const {
    LoadIntegers(dtype_, data_ + offset * element_, count, memory);
  }

  // Lanes of partial results, which are combined at the end.
  int64_t Row(int64_t offset, int64_t* memory) const {
    constexpr int64_t kLanes = 8;
    int64_t lanes[kLanes];
    std::fill_n(lanes, kLanes, start_);
    int64_t inner = shape_.reduced.rank == 0 ? 1 : shape_.reduced.sizes[0];
    for (int64_t i = 0; i < shape_.count; i += inner) {
      int64_t row = offset + shape_.reduced.Offset(i);
      for (int64_t j = 0; j < inner; j += kBlock) {
        int64_t count = std::min(kBlock, inner - j);
        Load(row + j, count, memory);
        // Adds one half to the other until few are left.
        for (; count > kLanes; count -= count / 2) {
          int64_t half = count / 2;
          ApplyIntegers(opcode_, memory, memory + count - half, nullptr, half, memory);
        }
        ApplyIntegers(opcode_, lanes, memory, nullptr, count, lanes);
      }
    }
    for (int64_t i = 1; i < kLanes; ++i) {
      ApplyIntegers(opcode_, lanes, lanes + i, nullptr, 1, lanes);
    }
    return lanes[0];
  }

  Shape shape_;
  const char* data_;
  npu_dtype dtype_;
  int64_t element_;
  npu_vector_opcode opcode_ = NPU_VECTOR_ADD;
  int64_t start_ = 0;
};

// Results, and the memory of a reducer.
constexpr int64_t kWorkerBlocks = 3;

int64_t WorkerNumbers(const ReduceArgs& args) {
  return kWorkerBlocks * kBlock + Evaluator::Registers(args.epilogue);
}

// Calls `body(begin, count, results, memory, registers)` for blocks of the output, which begin at
// the same elements for any number of threads.
template <typename Number, typename Body>
void ForBlocks(const ReduceArgs& args, int64_t reduced, const KernelContext& context,
               const Body& body) {
  int64_t numbers = WorkerNumbers(args);
  int64_t grain = std::min(Grain(std::max<int64_t>(reduced, 1)), kBlock);
  Parallel(context, ElementCount(args.out), grain, [&](int64_t begin, int64_t end, int worker) {
    Number* results = static_cast<Number*>(context.scratch) + worker * numbers;
    Number* memory = results + kBlock;
    body(begin, end - begin, results, memory, results + kWorkerBlocks * kBlock);
  });
}

}  // namespace

size_t ScratchBytes(const ReduceArgs& args, int threads) {
  size_t number = IsInteger(args.data.dtype) ? sizeof(int64_t) : sizeof(float);
  return static_cast<size_t>(threads * WorkerNumbers(args)) * number;
}

void Execute(const ReduceArgs& args, const KernelContext& context) {
  int64_t count = ElementCount(args.out);
  if (count == 0) return;
  if (IsInteger(args.data.dtype)) {
    IntegerReducer reducer(args);
    IntegerEvaluator evaluator(args.epilogue, args.out);
    ForBlocks<int64_t>(
        args, reducer.shape().count, context,
        [&](int64_t begin, int64_t size, int64_t* results, int64_t* memory, int64_t* registers) {
          evaluator.Begin(registers);
          reducer.Block(begin, size, memory, results);
          evaluator.StoreRun(results, size, begin, registers);
        });
    return;
  }
  Reducer reducer(args);
  Evaluator evaluator(args.epilogue, args.out, count);
  float divisor = static_cast<float>(reducer.shape().count);
  ForBlocks<float>(
      args, reducer.shape().count, context,
      [&](int64_t begin, int64_t size, float* results, float* memory, float* registers) {
        evaluator.Begin(registers);
        reducer.Block(begin, size, memory, results);
        if (args.kind == NPU_REDUCE_MEAN) {
          for (int64_t i = 0; i < size; ++i) results[i] /= divisor;
        }
        evaluator.StoreRun(results, size, 0, begin, registers);
      });
}

}  // namespace npu::emulator
