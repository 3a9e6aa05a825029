// SPDX-License-Identifier: Apache-2.0
/*!
 * \file integer_sums.cc
 * \brief Results of products of integers; most become elements of 8 bits.
 */
#include "integer_sums.h"

#include <algorithm>
#include <cmath>

namespace npu::emulator {

// The values of a type's elements, less the zero point.
Interval FactorsOf(npu_dtype dtype, int32_t zero_point) {
  const Interval limits = LimitsOf(dtype);
  return {limits.low - zero_point, limits.high - zero_point};
}

// The possible sums of this many products.
Interval SumsOf(const Interval& a, const Interval& b, int64_t depth) {
  int64_t largest_a = std::max(-a.low, a.high);
  int64_t largest_b = std::max(-b.low, b.high);
  // With more, they wrap anyway.
  int64_t largest = largest_a * largest_b * std::min<int64_t>(depth, INT32_MAX);
  return {-largest, largest};
}

namespace {

// Finds the programs that Simd::requantize computes.
class Recognizer {
 public:
  // Rows or columns of the result are `channels`; `memory` has room for Floats(channels).
  Recognizer(const VectorProgram& program, const TensorView& out, int64_t channels, bool by_column,
             int32_t* memory)
      : program_(program), out_(out), channels_(channels) {
    int64_t room = channels + kSlack;
    how.addend = reinterpret_cast<int64_t*>(memory);
    how.bias = memory + 2 * room;
    how.multiplier = memory + 3 * room;
    how.shift = memory + 4 * room;
    how.by_column = by_column;
  }

  static int64_t Floats(int64_t channels) { return 5 * (channels + kSlack); }

  bool Run() {
    if (out_.dtype != NPU_INT8 && out_.dtype != NPU_UINT8) return false;
    for (int32_t i = 0; i < program_.instruction_count; ++i) {
      const npu_vector_instruction& instruction = program_.instructions[i];
      bool parameter = instruction.opcode == NPU_VECTOR_CONSTANT ||
                       (instruction.opcode == NPU_VECTOR_LOAD && instruction.a != 0);
      if (parameter) continue;
      if (!Step(instruction)) return false;
      chain_ = i;
    }
    if (stage_ < kRescaled || chain_ != program_.instruction_count - 1) return false;
    if (!has_bias_) std::fill_n(how.bias, channels_ + kSlack, 0);
    int32_t least = *std::min_element(how.shift, how.shift + channels_);
    int32_t most = *std::max_element(how.shift, how.shift + channels_);
    how.saturates = out_.dtype == NPU_INT8 && how.least == INT8_MIN && how.most == INT8_MAX;
    how.high = least >= 32 && most <= 53 && how.zero_point > -256 && how.zero_point < 256;
    const bool adds = how.high && !how.by_column;
    for (int64_t i = 0; adds && i < channels_; ++i) {
      how.addend[i] = int64_t{how.bias[i]} * how.multiplier[i] +
                      (int64_t{1} << (how.shift[i] - 1)) +
                      how.zero_point * (int64_t{1} << how.shift[i]);
    }
    return true;
  }

  Requantization how;

 private:
  // The step that the values after the sum have reached.
  enum Stage { kNothing, kSum, kBiased, kRescaled, kMoved, kLimited };

  bool Step(const npu_vector_instruction& instruction) {
    int32_t a = instruction.a, b = instruction.b;
    switch (instruction.opcode) {
      case NPU_VECTOR_LOAD:
        return Reach(kSum, stage_ == kNothing);
      case NPU_VECTOR_ADD: {
        int32_t other = a == chain_ ? b : a;
        if ((a == chain_) == (b == chain_)) return false;
        if (stage_ == kSum) {
          has_bias_ = true;
          return Read(other, how.bias) && Reach(kBiased, true);
        }
        return Number(other, &how.zero_point) && Reach(kMoved, stage_ == kRescaled);
      }
      case NPU_VECTOR_RESCALE:
        how.rounding = static_cast<npu_rounding>(instruction.immediate);
        return a == chain_ && Read(b, how.multiplier) && Read(instruction.c, how.shift) &&
               Reach(kRescaled, stage_ == kSum || stage_ == kBiased);
      case NPU_VECTOR_MAXIMUM:
      case NPU_VECTOR_MINIMUM: {
        int32_t other = a == chain_ ? b : a;
        int32_t limit = 0;
        if ((a == chain_) == (b == chain_) || !Number(other, &limit)) return false;
        auto apply = [&](int32_t value) {
          return instruction.opcode == NPU_VECTOR_MAXIMUM ? std::max(value, limit)
                                                          : std::min(value, limit);
        };
        how.least = apply(how.least);
        how.most = apply(how.most);
        return Reach(kLimited, stage_ >= kRescaled);
      }
      default:
        return false;
    }
  }

  bool Reach(Stage stage, bool allowed) {
    stage_ = stage;
    return allowed;
  }

  // A parameter that is one number.
  bool Number(int32_t value, int32_t* number) const {
    if (value < 0 || value == chain_) return false;
    const npu_vector_instruction& instruction = program_.instructions[value];
    if (instruction.opcode != NPU_VECTOR_CONSTANT) return false;
    *number = static_cast<int32_t>(std::llround(instruction.immediate));
    return true;
  }

  // A parameter that is a number, or one for each channel.
  bool Read(int32_t value, int32_t* all) const {
    int32_t number = 0;
    if (Number(value, &number)) {
      std::fill_n(all, channels_ + kSlack, number);
      return true;
    }
    if (value < 0 || value == chain_) return false;
    const npu_vector_instruction& instruction = program_.instructions[value];
    if (instruction.opcode != NPU_VECTOR_LOAD || instruction.a == 0) return false;
    const TensorView& tensor = program_.inputs[instruction.a];
    auto* floats = reinterpret_cast<float*>(all);
    if (ElementCount(tensor) == 1) {
      ActiveSimd().load_integers(tensor.dtype, tensor.data, 1, floats);
      std::fill_n(all + 1, channels_ + kSlack - 1, all[0]);
      return true;
    }
    int axis = how.by_column ? out_.rank - 1 : 1;
    for (int d = 0; d < tensor.rank; ++d) {
      int64_t wanted = d + out_.rank - tensor.rank == axis ? channels_ : 1;
      if (tensor.dims[d] != wanted) return false;
    }
    ActiveSimd().load_integers(tensor.dtype, tensor.data, channels_, floats);
    std::fill_n(all + channels_, kSlack, 32);
    return true;
  }

  const VectorProgram& program_;
  const TensorView& out_;
  int64_t channels_;
  Stage stage_ = kNothing;
  bool has_bias_ = false;
  // The last value that depends on the sum.
  int32_t chain_ = -1;
};

}  // namespace

SumStore::SumStore(const VectorProgram& epilogue, const TensorView& out, int64_t row_length,
                   const Interval& sums, int64_t channels, bool by_column, int32_t* memory)
    : simd_(ActiveSimd()),
      integers_(IsIntegerEpilogue(epilogue, out.dtype)),
      // Sums that are stored unchanged have wrapped already.
      fits_(integers_ && (epilogue.instruction_count == 0 || FitsInt32(epilogue, sums, true))),
      row_length_(row_length),
      channels_(channels),
      narrow_(epilogue, out, row_length, fits_),
      wide_(epilogue, out) {
  Recognizer recognizer(epilogue, out, channels, by_column, memory);
  requantizes_ = fits_ && recognizer.Run();
  how_ = recognizer.how;
  out_ = static_cast<uint8_t*>(out.data);
}

int64_t SumStore::ParameterFloats(int64_t channels) { return Recognizer::Floats(channels); }

void SumStore::Begin(float* registers) const {
  if (fits_ || !integers_) {
    narrow_.Begin(registers + kValues);
  } else {
    wide_.Begin(reinterpret_cast<int64_t*>(registers + kValues));
  }
}

void SumStore::StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row,
                         int64_t column, float* registers) const {
  if (requantizes_) return Requantize(tile, rows, columns, row, column);
  if (fits_) return narrow_.StoreTile(tile, rows, columns, row, column, registers + kValues);
  if (integers_) {
    for (int64_t r = 0; r < rows; ++r) {
      StoreWide(tile + r * kPanelColumns, columns, row + r, column, registers);
    }
    return;
  }
  simd_.load(NPU_INT32, tile, rows * kPanelColumns, registers);
  narrow_.StoreTile(registers, rows, columns, row, column, registers + kValues);
}

void SumStore::StoreLines(const float* sums, int64_t lines, int64_t columns, int64_t stride,
                          int64_t row, int64_t column) const {
  Requantization how = how_;
  how.one_channel = true;
  simd_.requantize(how, sums, lines, stride, columns, row % channels_,
                   out_ + row * row_length_ + column, columns);
}

void SumStore::StoreRun(const float* sums, int64_t count, int64_t row, int64_t column,
                        float* registers) const {
  if (requantizes_) return Requantize(sums, 1, count, row, column);
  if (fits_) return narrow_.StoreRun(sums, count, row, column, registers + kValues);
  for (int64_t i = 0; i < count; i += Evaluator::kBlock) {
    int64_t block = std::min(Evaluator::kBlock, count - i);
    if (integers_) {
      StoreWide(sums + i, block, row, column + i, registers);
    } else {
      simd_.load(NPU_INT32, sums + i, block, registers);
      narrow_.StoreRun(registers, block, row, column + i, registers + kValues);
    }
  }
}

void SumStore::Requantize(const float* sums, int64_t rows, int64_t columns, int64_t row,
                          int64_t column) const {
  simd_.requantize(how_, sums, rows, kPanelColumns, columns,
                   how_.by_column ? column : row % channels_, out_ + row * row_length_ + column,
                   row_length_);
}

void SumStore::StoreWide(const float* sums, int64_t count, int64_t row, int64_t column,
                         float* registers) const {
  auto* values = reinterpret_cast<int64_t*>(registers);
  LoadIntegers(NPU_INT32, sums, count, values);
  wide_.StoreRun(values, count, row * row_length_ + column,
                 reinterpret_cast<int64_t*>(registers + kValues));
}

}  // namespace npu::emulator
