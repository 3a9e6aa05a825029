// SPDX-License-Identifier: Apache-2.0
/*!
 * \file integers.cc
 * \brief Plain loops over int64, which compilers turn into vectors.
 */
#include "integers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "driver_kit/vector_opcodes.h"

namespace npu::emulator {

namespace {

// NOLINTNEXTLINE(modernize-use-using): __extension__ goes with typedef only.
__extension__ typedef __int128 Wide;

}  // namespace

// For c = 0, `half` is 0, and so is every remainder.
int64_t Rescale(int64_t a, int64_t b, int64_t c, npu_rounding rounding) {
  int shift = static_cast<int>(std::min<int64_t>(std::max<int64_t>(c, 0), 62));
  Wide product = static_cast<Wide>(a) * b;
  Wide half = (Wide{1} << shift) >> 1;
  Wide rest = product & ((Wide{1} << shift) - 1);
  Wide result = product >> shift;
  switch (rounding) {
    case NPU_ROUND_HALF_UP:
      result = (product + half) >> shift;
      break;
    case NPU_ROUND_DOUBLE:
      if (shift > 31) half += a >= 0 ? 1 << 30 : -(1 << 30);
      result = (product + half) >> shift;
      break;
    case NPU_ROUND_HALF_EVEN:
      if (rest > half || (rest == half && half != 0 && (result & 1) != 0)) ++result;
      break;
    case NPU_ROUND_HALF_AWAY:
      if (rest > half || (rest == half && half != 0 && product >= 0)) ++result;
      break;
    case NPU_ROUND_DOWN:
      break;
    case NPU_ROUND_TO_ZERO:
      if (rest != 0 && product < 0) ++result;
      break;
  }
  return static_cast<int64_t>(static_cast<uint64_t>(result));
}

void LoadIntegers(npu_dtype dtype, const void* data, int64_t count, int64_t* out) {
  WithElement(dtype, [=](auto type) {
    auto* from = static_cast<const decltype(type)*>(data);
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8_t is a number here.
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(from[i]);
  });
  for (int64_t i = 0; dtype == NPU_BOOL && i < count; ++i) out[i] = out[i] != 0 ? 1 : 0;
}

void StoreIntegers(npu_dtype dtype, const int64_t* values, int64_t count, void* out) {
  WithElement(dtype, [=](auto type) {
    using T = decltype(type);
    auto* to = static_cast<T*>(out);
    const int64_t* from = values;
    if (dtype == NPU_BOOL) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] != 0 ? 1 : 0;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
    }
  });
}

Interval LimitsOf(npu_dtype dtype) {
  if (dtype == NPU_BOOL) return {0, 1};
  return WithElement(dtype, [](auto type) -> Interval {
    using Limits = std::numeric_limits<decltype(type)>;
    return {Limits::min(), Limits::max()};
  });
}

void ApplyIntegers(npu_vector_opcode opcode, const int64_t* a, const int64_t* b, const int64_t* c,
                   int64_t count, int64_t* out) {
  WithFunction<int64_t>(opcode, [=](auto function, auto operands) {
    // Results might lie where the count is, for all that the compiler knows.
    const int64_t size = count;
    for (int64_t i = 0; i < size; ++i) {
      out[i] = function(a[i], operands > 1 ? b[i] : 0, operands > 2 ? c[i] : 0);
    }
  });
}

namespace {

constexpr Interval kInt32 = {INT32_MIN, INT32_MAX};

bool Inside(const Interval& inner, const Interval& outer) {
  return inner.low >= outer.low && inner.high <= outer.high;
}

// The range of a tensor; for a large one, that of its type.
Interval IntervalOf(const TensorView& tensor) {
  constexpr int64_t kSmall = 4096;
  int64_t count = ElementCount(tensor);
  if (ElementSize(tensor.dtype) < 4 || count == 0 || count > kSmall) return LimitsOf(tensor.dtype);
  Interval found = {INT64_MAX, INT64_MIN};
  const char* data = static_cast<const char*>(tensor.data);
  auto element = static_cast<int64_t>(ElementSize(tensor.dtype));
  constexpr int64_t kBlock = 64;
  int64_t values[kBlock];
  for (int64_t i = 0; i < count; i += kBlock) {
    int64_t block = std::min(kBlock, count - i);
    LoadIntegers(tensor.dtype, data + i * element, block, values);
    for (int64_t k = 0; k < block; ++k) {
      found = {std::min(found.low, values[k]), std::max(found.high, values[k])};
    }
  }
  return found;
}

// The result of an instruction whose operands are in int32; false if it is not one of those that
// Simd::apply_integers knows.
bool IntervalOf(npu_vector_opcode opcode, const Interval& a, const Interval& b, const Interval& c,
                Interval* result) {
  auto among = [&](std::initializer_list<int64_t> values) {
    *result = {std::min(values), std::max(values)};
    return true;
  };
  switch (opcode) {
    case NPU_VECTOR_ADD:
      return among({a.low + b.low, a.high + b.high});
    case NPU_VECTOR_SUBTRACT:
      return among({a.low - b.high, a.high - b.low});
    case NPU_VECTOR_MULTIPLY:
      return among({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
    case NPU_VECTOR_MAXIMUM:
      return among({std::max(a.low, b.low), std::max(a.high, b.high)});
    case NPU_VECTOR_MINIMUM:
      return among({std::min(a.low, b.low), std::min(a.high, b.high)});
    case NPU_VECTOR_LESS:
    case NPU_VECTOR_EQUAL:
      return among({0, 1});
    case NPU_VECTOR_SELECT:
      return among({b.low, b.high, c.low, c.high});
    case NPU_VECTOR_ABSOLUTE:
      return among({0, std::max(-a.low, a.high)});
    case NPU_VECTOR_RESCALE: {
      Interval product;
      IntervalOf(NPU_VECTOR_MULTIPLY, a, b, c, &product);
      int64_t shift = std::min<int64_t>(std::max<int64_t>(c.low, 0), 62);
      // Rounding, and the addend of double rounding, make a difference of less than 2.
      return among({std::min<int64_t>(product.low >> shift, 0) - 2,
                    std::max<int64_t>(product.high >> shift, 0) + 2});
    }
    default:
      return false;
  }
}

}  // namespace

bool FitsInt32(const VectorProgram& program, Interval accumulator, bool epilogue) {
  if (epilogue && !Inside(accumulator, kInt32)) return false;
  constexpr int32_t kMostInstructions = 64;
  if (program.instruction_count > kMostInstructions) return false;
  Interval values[kMostInstructions];
  for (int32_t i = 0; i < program.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program.instructions[i];
    // Operands that the opcode does not have may be any number.
    auto operand = [&](int32_t number) {
      return number >= 0 && number < i ? values[number] : Interval{0, 0};
    };
    if (instruction.opcode == NPU_VECTOR_CONSTANT) {
      if (std::fabs(instruction.immediate) > INT32_MAX) return false;
      values[i].low = values[i].high = std::llround(instruction.immediate);
    } else if (instruction.opcode == NPU_VECTOR_LOAD) {
      bool result = epilogue && instruction.a == 0;
      values[i] = result ? accumulator : IntervalOf(program.inputs[instruction.a]);
    } else if (!IntervalOf(instruction.opcode, operand(instruction.a), operand(instruction.b),
                           operand(instruction.c), &values[i])) {
      return false;
    }
    if (!Inside(values[i], kInt32)) return false;
  }
  return true;
}

IntegerEvaluator::IntegerEvaluator(const VectorProgram& program, const TensorView& out)
    : program_(program), out_(static_cast<char*>(out.data)), dtype_(out.dtype) {
  for (int i = 0; i < program.input_count; ++i) inputs_[i] = Broadcast(program.inputs[i], out);
}

void IntegerEvaluator::Begin(int64_t* registers) const {
  for (int i = 0; i < program_.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program_.instructions[i];
    if (instruction.opcode != NPU_VECTOR_CONSTANT) continue;
    std::fill_n(registers + i * kBlock, kBlock, std::llround(instruction.immediate));
  }
}

void IntegerEvaluator::Load(const Broadcast& input, int64_t index, int64_t count,
                            int64_t* out) const {
  input.ForRuns(index, count, [&](int64_t offset, int64_t run) {
    const char* data = input.data + offset * static_cast<int64_t>(input.element);
    bool repeats = input.strides[0] == 0;
    LoadIntegers(input.dtype, data, repeats ? 1 : run, out);
    if (repeats) std::fill_n(out, run, *out);
    out += run;
  });
}

void IntegerEvaluator::StoreBlock(const int64_t* values, int64_t count, int64_t index,
                                  int64_t* registers) const {
  const int64_t* result = values;
  for (int i = 0; i < program_.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program_.instructions[i];
    int64_t* to = registers + i * kBlock;
    result = to;
    if (instruction.opcode == NPU_VECTOR_CONSTANT) continue;
    if (instruction.opcode != NPU_VECTOR_LOAD) {
      // Operands that the opcode does not have may be any number.
      auto operand = [&](int32_t number) {
        return number >= 0 && number < i ? registers + number * kBlock : to;
      };
      const int64_t* a = operand(instruction.a);
      const int64_t* b = operand(instruction.b);
      const int64_t* c = operand(instruction.c);
      if (instruction.opcode == NPU_VECTOR_RESCALE) {
        auto rounding = static_cast<npu_rounding>(instruction.immediate);
        for (int64_t k = 0; k < count; ++k) to[k] = Rescale(a[k], b[k], c[k], rounding);
      } else {
        ApplyIntegers(instruction.opcode, a, b, c, count, to);
      }
    } else if (values != nullptr && instruction.a == 0) {
      std::copy_n(values, count, to);
    } else {
      Load(inputs_[instruction.a], index, count, to);
    }
  }
  StoreIntegers(dtype_, result, count, out_ + index * static_cast<int64_t>(ElementSize(dtype_)));
}

void IntegerEvaluator::StoreRun(const int64_t* values, int64_t count, int64_t index,
                                int64_t* registers) const {
  for (int64_t i = 0; i < count; i += kBlock) {
    StoreBlock(values == nullptr ? nullptr : values + i, std::min(kBlock, count - i), index + i,
               registers);
  }
}

}  // namespace npu::emulator
