// SPDX-License-Identifier: Apache-2.0
/*!
 * \file integers.cc
 * \brief Plain loops over int64, which compilers turn into vectors.
 */
#include "integers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

template <typename T>
void LoadAll(const void* data, int64_t count, int64_t* out) {
  auto* from = static_cast<const T*>(data);
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
      ApplyIntegers(instruction.opcode, operand(instruction.a), operand(instruction.b),
                    operand(instruction.c), count, to);
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
