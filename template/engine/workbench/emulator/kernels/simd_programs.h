// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_programs.h
 * \brief The instructions of vector programs. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_PROGRAMS_H_
#define EMULATOR_KERNELS_SIMD_PROGRAMS_H_

// So many elements fit into int.
// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result)

// Calls `function` on each vector of the operands; the last is padded with zeros.
template <typename Function, typename... Operands>
inline void Map(int64_t count, float* out, Function function, Operands... operands) {
  constexpr int kUnroll = 4;
  static_assert(kUnroll * kLanes <= kSplat, "that many numbers are there");
  int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes) {
    SIMD_UNROLL
    for (int j = 0; j < kUnroll * kLanes; j += kLanes) {
      Store(function(Load(operands.data + (i & operands.mask) + j)...), out + i + j);
    }
  }
  for (; i + kLanes <= count; i += kLanes) {
    Store(function(Load(operands.data + (i & operands.mask))...), out + i);
  }
  if (i == count) return;
  size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  auto part = [=](const VectorOperand& operand) {
    V value = {};
    __builtin_memcpy(&value, operand.data + (i & operand.mask), bytes);
    return value;
  };
  V value = function(part(operands)...);
  __builtin_memcpy(out + i, &value, bytes);
}

void Power(int64_t count, float* out, const VectorOperand& a, const VectorOperand& b) {
  // Models mostly want squares and cubes.
  bool uniform = b.mask == 0;
  if (uniform && b.data[0] == 2) return Map(count, out, [](V x) { return x * x; }, a);
  if (uniform && b.data[0] == 3) return Map(count, out, [](V x) { return x * x * x; }, a);
  ApplyEach(NPU_VECTOR_POWER, a, b, {}, count, out);
}

void Apply(npu_vector_opcode opcode, const VectorOperand& a, const VectorOperand& b,
           const VectorOperand& c, int64_t count, float* out) {
  switch (opcode) {
    case NPU_VECTOR_ADD:
      return Map(count, out, [](V x, V y) { return x + y; }, a, b);
    case NPU_VECTOR_SUBTRACT:
      return Map(count, out, [](V x, V y) { return x - y; }, a, b);
    case NPU_VECTOR_MULTIPLY:
      return Map(count, out, [](V x, V y) { return x * y; }, a, b);
    case NPU_VECTOR_DIVIDE:
      return Map(count, out, [](V x, V y) { return x / y; }, a, b);
    case NPU_VECTOR_MAXIMUM:
      return Map(count, out, Maximum<V>, a, b);
    case NPU_VECTOR_MINIMUM:
      return Map(count, out, Minimum<V>, a, b);
    case NPU_VECTOR_EXP:
      return Map(count, out, Exp, a);
    case NPU_VECTOR_LOG:
      return Map(count, out, Log, a);
    case NPU_VECTOR_SQRT:
      return Map(count, out, SquareRoot, a);
    case NPU_VECTOR_TANH:
      return Map(count, out, Tanh, a);
    case NPU_VECTOR_ERF:
      return Map(count, out, Erf, a);
    case NPU_VECTOR_SIGMOID:
      return Map(count, out, Sigmoid, a);
    case NPU_VECTOR_FLOOR:
      return Map(count, out, Floor, a);
    case NPU_VECTOR_ROUND_EVEN:
      return Map(count, out, RoundEven, a);
    case NPU_VECTOR_ROUND_AWAY:
      return Map(count, out, RoundAway, a);
    case NPU_VECTOR_LESS:
      return Map(count, out, [](V x, V y) { return x < y ? Splat(1) : Splat(0); }, a, b);
    case NPU_VECTOR_SELECT:
      return Map(count, out, [](V x, V y, V z) { return x != 0 ? y : z; }, a, b, c);
    case NPU_VECTOR_EQUAL:
      return Map(count, out, [](V x, V y) { return x == y ? Splat(1) : Splat(0); }, a, b);
    case NPU_VECTOR_ABSOLUTE:
      return Map(count, out, Absolute, a);
    case NPU_VECTOR_TRUNCATE:
      return Map(count, out, Truncate, a);
    case NPU_VECTOR_FLOOR_DIVIDE:
      return Map(count, out, [](V x, V y) { return Floor(x / y); }, a, b);
    case NPU_VECTOR_POWER:
      return Power(count, out, a, b);
    default:
      return ApplyEach(opcode, a, b, c, count, out);
  }
}

template <typename Function>
inline auto OnIntegers(Function function) {
  return [=](auto... values) __attribute__((always_inline)) { return (V)function((VI)values...); };
}

void ApplyInt32(const npu_vector_instruction& instruction, const VectorOperand& a,
                const VectorOperand& b, const VectorOperand& c, int64_t count, float* out) {
  const VI zero = {};
  const VI one = zero + 1;
  switch (instruction.opcode) {
    case NPU_VECTOR_ADD:
      return Map(count, out, OnIntegers([](VI x, VI y) { return (VI)((VU)x + (VU)y); }), a, b);
    case NPU_VECTOR_SUBTRACT:
      return Map(count, out, OnIntegers([](VI x, VI y) { return (VI)((VU)x - (VU)y); }), a, b);
    case NPU_VECTOR_MULTIPLY:
      return Map(count, out, OnIntegers([](VI x, VI y) { return (VI)((VU)x * (VU)y); }), a, b);
    case NPU_VECTOR_MAXIMUM:
      return Map(count, out, OnIntegers([](VI x, VI y) { return x > y ? x : y; }), a, b);
    case NPU_VECTOR_MINIMUM:
      return Map(count, out, OnIntegers([](VI x, VI y) { return x < y ? x : y; }), a, b);
    case NPU_VECTOR_LESS:
      return Map(count, out, OnIntegers([=](VI x, VI y) { return x < y ? one : zero; }), a, b);
    case NPU_VECTOR_EQUAL:
      return Map(count, out, OnIntegers([=](VI x, VI y) { return x == y ? one : zero; }), a, b);
    case NPU_VECTOR_SELECT:
      return Map(count, out, OnIntegers([](VI x, VI y, VI z) { return x != 0 ? y : z; }), a, b, c);
    case NPU_VECTOR_ABSOLUTE:
      return Map(count, out, OnIntegers([](VI x) { return x < 0 ? (VI)(0 - (VU)x) : x; }), a);
    case NPU_VECTOR_RESCALE:
      switch (static_cast<npu_rounding>(instruction.immediate)) {
        case NPU_ROUND_HALF_UP:
          return Map(count, out, Rescale<NPU_ROUND_HALF_UP>, a, b, c);
        case NPU_ROUND_DOUBLE:
          return Map(count, out, Rescale<NPU_ROUND_DOUBLE>, a, b, c);
        case NPU_ROUND_HALF_EVEN:
          return Map(count, out, Rescale<NPU_ROUND_HALF_EVEN>, a, b, c);
        case NPU_ROUND_HALF_AWAY:
          return Map(count, out, Rescale<NPU_ROUND_HALF_AWAY>, a, b, c);
        case NPU_ROUND_DOWN:
          return Map(count, out, Rescale<NPU_ROUND_DOWN>, a, b, c);
        case NPU_ROUND_TO_ZERO:
          return Map(count, out, Rescale<NPU_ROUND_TO_ZERO>, a, b, c);
      }
      return;
    default:
      return;
  }
}

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

#endif  // EMULATOR_KERNELS_SIMD_PROGRAMS_H_
