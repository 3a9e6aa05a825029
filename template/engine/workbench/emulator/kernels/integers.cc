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

namespace npu::emulator {

namespace {

// Sums, differences and products of unsigned numbers wrap around.
uint64_t Bits(int64_t a) { return static_cast<uint64_t>(a); }
int64_t Wrapped(uint64_t a) { return static_cast<int64_t>(a); }

int64_t Negative(int64_t a) { return Wrapped(0 - Bits(a)); }

// The least number divided by -1 traps on some processors: it has no quotient.
int64_t Divide(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? Negative(a) : a / b; }
int64_t Remainder(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

int64_t FloorDivide(int64_t a, int64_t b) {
  int64_t rest = Remainder(a, b);
  bool below = rest != 0 && (rest < 0) != (b < 0);
  return Divide(a, b) - (below ? 1 : 0);
}

// NOLINTNEXTLINE(modernize-use-using): __extension__ goes with typedef only.
__extension__ typedef __int128 Wide;

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

template <typename T>
void LoadAll(const void* data, int64_t count, int64_t* out) {
  auto* from = static_cast<const T*>(data);
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): T may be int8_t, which is a number here.
  for (int64_t i = 0; i < count; ++i) out[i] = from[i];
}

template <typename T>
void StoreAll(const int64_t* values, int64_t count, void* out) {
  auto* to = static_cast<T*>(out);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(values[i]);
}

}  // namespace

void LoadIntegers(npu_dtype dtype, const void* data, int64_t count, int64_t* out) {
  switch (dtype) {
    case NPU_INT8:
      return LoadAll<int8_t>(data, count, out);
    case NPU_UINT8:
      return LoadAll<uint8_t>(data, count, out);
    case NPU_INT16:
      return LoadAll<int16_t>(data, count, out);
    case NPU_INT32:
      return LoadAll<int32_t>(data, count, out);
    case NPU_INT64:
      return LoadAll<int64_t>(data, count, out);
    case NPU_BOOL:
      LoadAll<uint8_t>(data, count, out);
      for (int64_t i = 0; i < count; ++i) out[i] = out[i] != 0 ? 1 : 0;
      return;
    case NPU_FLOAT32:
    case NPU_FLOAT16:
      return;
  }
}

void StoreIntegers(npu_dtype dtype, const int64_t* values, int64_t count, void* out) {
  switch (dtype) {
    case NPU_INT8:
      return StoreAll<int8_t>(values, count, out);
    case NPU_UINT8:
      return StoreAll<uint8_t>(values, count, out);
    case NPU_INT16:
      return StoreAll<int16_t>(values, count, out);
    case NPU_INT32:
      return StoreAll<int32_t>(values, count, out);
    case NPU_INT64:
      return StoreAll<int64_t>(values, count, out);
    case NPU_BOOL: {
      auto* to = static_cast<uint8_t*>(out);
      for (int64_t i = 0; i < count; ++i) to[i] = values[i] != 0 ? 1 : 0;
      return;
    }
    case NPU_FLOAT32:
    case NPU_FLOAT16:
      return;
  }
}

void ApplyIntegers(npu_vector_opcode opcode, const int64_t* a, const int64_t* b, const int64_t* c,
                   int64_t count, int64_t* out) {
  auto map = [=](auto function) {
    for (int64_t i = 0; i < count; ++i) out[i] = function(a[i], b[i]);
  };
  switch (opcode) {
    case NPU_VECTOR_ADD:
      return map([](int64_t x, int64_t y) { return Wrapped(Bits(x) + Bits(y)); });
    case NPU_VECTOR_SUBTRACT:
      return map([](int64_t x, int64_t y) { return Wrapped(Bits(x) - Bits(y)); });
    case NPU_VECTOR_MULTIPLY:
      return map([](int64_t x, int64_t y) { return Wrapped(Bits(x) * Bits(y)); });
    case NPU_VECTOR_DIVIDE:
      return map(Divide);
    case NPU_VECTOR_MAXIMUM:
      return map([](int64_t x, int64_t y) { return x > y ? x : y; });
    case NPU_VECTOR_MINIMUM:
      return map([](int64_t x, int64_t y) { return x < y ? x : y; });
    case NPU_VECTOR_FLOOR_DIVIDE:
      return map(FloorDivide);
    case NPU_VECTOR_REMAINDER:
      return map(Remainder);
    case NPU_VECTOR_LESS:
      return map([](int64_t x, int64_t y) -> int64_t { return x < y ? 1 : 0; });
    case NPU_VECTOR_EQUAL:
      return map([](int64_t x, int64_t y) -> int64_t { return x == y ? 1 : 0; });
    case NPU_VECTOR_SELECT:
      for (int64_t i = 0; i < count; ++i) out[i] = a[i] != 0 ? b[i] : c[i];
      return;
    case NPU_VECTOR_ABSOLUTE:
      for (int64_t i = 0; i < count; ++i) out[i] = a[i] < 0 ? Negative(a[i]) : a[i];
      return;
    default:
      return;  // float32 only
  }
}

namespace {

constexpr Interval kInt32 = {INT32_MIN, INT32_MAX};

bool Inside(const Interval& inner, const Interval& outer) {
  return inner.low >= outer.low && inner.high <= outer.high;
}

// The range of a tensor; for a large one, that of its type.
Interval IntervalOf(const TensorView& tensor) {
  switch (tensor.dtype) {
    case NPU_INT8:
      return {INT8_MIN, INT8_MAX};
    case NPU_UINT8:
      return {0, UINT8_MAX};
    case NPU_INT16:
      return {INT16_MIN, INT16_MAX};
    case NPU_BOOL:
      return {0, 1};
    default:
      break;
  }
  constexpr int64_t kSmall = 4096;
  int64_t count = ElementCount(tensor);
  if (count == 0 || count > kSmall) {
    return tensor.dtype == NPU_INT32 ? kInt32 : Interval{INT64_MIN, INT64_MAX};
  }
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
