// SPDX-License-Identifier: Apache-2.0
/*!
 * \file products.cc
 * \brief Matmul and Convolution of integers: those of int16 in bytes.
 */
#include "products.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "byte_products.h"
#include "integers.h"
#include "internal.h"

namespace npu::emulator {

namespace {

// An operand, its zero point, and where it is packed.
struct Factor {
  TensorView* tensor;
  int32_t* zero_point;
  const void** packed = nullptr;
};

Factor FirstOf(MatMulArgs* args) { return {&args->a, &args->a_zero_point}; }
Factor FirstOf(ConvolutionArgs* args) { return {&args->data, &args->data_zero_point}; }
Factor SecondOf(MatMulArgs* args) { return {&args->b, &args->b_zero_point, &args->packed_b}; }
Factor SecondOf(ConvolutionArgs* args) {
  return {&args->weight, &args->weight_zero_point, &args->packed_weight};
}

size_t PackedBytesOf(const MatMulArgs& args) {
  return PackedIntegerMatMulBBytes(args.b, args.transpose_b);
}
size_t PackedBytesOf(const ConvolutionArgs& args) {
  return PackedIntegerConvolutionWeightBytes(args.weight, args.groups);
}

// Bytes of int16: the higher ones are int8, the lower ones uint8.
void SplitBytes(const int16_t* from, int64_t begin, int64_t end, int8_t* high, uint8_t* low) {
  for (int64_t i = begin; i < end; ++i) {
    high[i] = static_cast<int8_t>(from[i] >> 8);
    low[i] = static_cast<uint8_t>(from[i] & 0xff);
  }
}

// An int16, and its zero point, are 256 times an int8 plus a uint8, so that a sum is that of two
// products of 8 bits, or of four if both operands are int16. Their sums must not wrap; see the
// rules.
template <typename Args>
class WideProduct {
 public:
  WideProduct(const Args& args, int threads, Scratch scratch)
      : args_(args),
        integers_(IsIntegerEpilogue(args.epilogue, args.out.dtype)),
        count_(ElementCount(args.out)) {
    numbers_ = 2 * Evaluator::kBlock + Evaluator::Registers(args.epilogue);
    registers_ = scratch.Take<int64_t>(threads * numbers_);
    parts_ = {{args, 1}};
    Divide(FirstOf, &scratch);
    if (SecondOf(&parts_[0].args).tensor->dtype == NPU_INT16) Divide(SecondOf, &scratch);
    size_t rest = 0;
    for (Part& part : parts_) {
      part.args.out.dtype = NPU_INT32;
      part.args.out.data = scratch.Take<int32_t>(count_);
      part.args.epilogue = VectorProgram();
      rest = std::max(rest, ScratchOf(part.args, threads));
    }
    rest_ = scratch.Take<char>(static_cast<int64_t>(rest));
    bytes = scratch.used();
  }

  void Run(const KernelContext& context) {
    for (const Bytes& split : splits_) {
      Parallel(context, split.count, Grain(1), [&](int64_t begin, int64_t end, int) {
        SplitBytes(split.from, begin, end, split.high, split.low);
      });
    }
    KernelContext inner = context;
    inner.scratch = rest_;
    for (const Part& part : parts_) Multiply(part.args, inner);
    IntegerEvaluator integers(args_.epilogue, args_.out);
    Evaluator reals(args_.epilogue, args_.out, count_);
    auto run = [&](int64_t begin, int64_t end, int worker) {
      int64_t* sums = registers_ + worker * numbers_;
      auto* real = reinterpret_cast<float*>(sums + Evaluator::kBlock);
      int64_t* registers = sums + 2 * Evaluator::kBlock;
      if (integers_) integers.Begin(registers);
      if (!integers_) reals.Begin(reinterpret_cast<float*>(registers));
      for (int64_t i = begin; i < end; i += Evaluator::kBlock) {
        int64_t block = std::min(Evaluator::kBlock, end - i);
        std::fill_n(sums, block, 0);
        for (const Part& part : parts_) {
          auto* of_part = static_cast<const int32_t*>(part.args.out.data) + i;
          for (int64_t k = 0; k < block; ++k) sums[k] += part.factor * of_part[k];
        }
        std::copy_n(sums, block, real);
        if (integers_) integers.StoreRun(sums, block, i, registers);
        if (!integers_) reals.StoreRun(real, block, 0, i, reinterpret_cast<float*>(registers));
      }
    };
    Parallel(context, count_, Evaluator::kBlock, run);
  }

  size_t bytes = 0;

 private:
  // A product of bytes; the sum has this many of them.
  struct Part {
    Args args;
    int64_t factor;
  };
  struct Bytes {
    const int16_t* from;
    int64_t count;
    int8_t* high;
    uint8_t* low;
  };

  // Divides one operand of all parts into its bytes.
  void Divide(Factor (*find)(Args*), Scratch* scratch) {
    const Factor whole = find(&parts_[0].args);
    const int64_t count = ElementCount(*whole.tensor);
    const bool is_packed = whole.packed != nullptr && *whole.packed != nullptr;
    Bytes split = {static_cast<const int16_t*>(whole.tensor->data), count, nullptr, nullptr};
    if (!is_packed) {
      split.high = scratch->Take<int8_t>(count);
      split.low = scratch->Take<uint8_t>(count);
      splits_.push_back(split);
    }
    std::vector<Part> halves;
    for (const Part& part : parts_) {
      for (bool high : {true, false}) {
        Part half = {part.args, part.factor * (high ? 256 : 1)};
        const Factor factor = find(&half.args);
        factor.tensor->dtype = high ? NPU_INT8 : NPU_UINT8;
        factor.tensor->data = high ? static_cast<void*>(split.high) : split.low;
        *factor.zero_point = high ? *factor.zero_point >> 8 : *factor.zero_point & 0xff;
        if (is_packed && !high) {
          *factor.packed = static_cast<const char*>(*factor.packed) + PackedBytesOf(half.args);
        }
        halves.push_back(half);
      }
    }
    parts_ = std::move(halves);
  }

  const Args& args_;
  bool integers_;
  int64_t count_;
  std::vector<Part> parts_;
  std::vector<Bytes> splits_;
  int64_t numbers_;
  int64_t* registers_;
  char* rest_;
};

template <typename Args>
size_t AnyScratch(const Args& args, npu_dtype dtype, int threads) {
  if (dtype == NPU_INT16) return WideProduct<Args>(args, threads, Scratch(nullptr)).bytes;
  return ScratchOf(args, threads);
}

template <typename Args>
void AnyProduct(const Args& args, npu_dtype dtype, const KernelContext& context) {
  if (dtype != NPU_INT16) return Multiply(args, context);
  WideProduct<Args>(args, Threads(context), Scratch(context.scratch)).Run(context);
}

}  // namespace

bool FitHalves(npu_dtype dtype, const void* data, size_t bytes) {
  auto* numbers = static_cast<const uint8_t*>(data);
  // Both ranges, from -8 and from 0, have 16 numbers.
  const unsigned first = dtype == NPU_INT8 ? 8 : 0;
  return std::all_of(numbers, numbers + bytes,
                     [&](uint8_t number) { return ((number + first) & UINT8_MAX) < 16; });
}

void Halve(const uint8_t* packed, size_t bytes, uint8_t* halves) {
  for (size_t i = 0; i < bytes; i += 2) {
    const int high = i + 1 < bytes ? packed[i + 1] << 4 : 0;
    halves[i / 2] = static_cast<uint8_t>((packed[i] & 15) | high);
  }
}

size_t PackedIntegerMatMulBBytes(const TensorView& b, bool transpose_b) {
  if (b.dtype == NPU_INT16) {
    TensorView half = b;
    half.dtype = NPU_INT8;
    return 2 * PackedByteMatMulBBytes(half, transpose_b);
  }
  return PackedByteMatMulBBytes(b, transpose_b);
}

void PackIntegerMatMulB(const TensorView& b, bool transpose_b, void* packed) {
  if (b.dtype != NPU_INT16) return PackByteMatMulB(b, transpose_b, packed);
  const int64_t count = ElementCount(b);
  std::vector<int8_t> high(static_cast<size_t>(count));
  std::vector<uint8_t> low(high.size());
  SplitBytes(static_cast<const int16_t*>(b.data), 0, count, high.data(), low.data());
  TensorView half = b;
  half.dtype = NPU_INT8;
  half.data = high.data();
  PackByteMatMulB(half, transpose_b, packed);
  half.dtype = NPU_UINT8;
  half.data = low.data();
  const size_t bytes = PackedByteMatMulBBytes(half, transpose_b);
  PackByteMatMulB(half, transpose_b, static_cast<char*>(packed) + bytes);
}

size_t IntegerMatMulScratch(const MatMulArgs& args, int threads) {
  return AnyScratch(args, args.a.dtype, threads);
}

void IntegerMatMul(const MatMulArgs& args, const KernelContext& context) {
  AnyProduct(args, args.a.dtype, context);
}

size_t IntegerConvolutionScratch(const ConvolutionArgs& args, int threads) {
  return AnyScratch(args, args.data.dtype, threads);
}

void IntegerConvolution(const ConvolutionArgs& args, const KernelContext& context) {
  AnyProduct(args, args.data.dtype, context);
}

}  // namespace npu::emulator
