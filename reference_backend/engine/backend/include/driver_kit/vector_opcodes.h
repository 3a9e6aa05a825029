// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/vector_opcodes.h
 * \brief The opcodes of vector programs: their names, operands and meaning, all in one list.
 *
 * To add one: append it to npu_vector_opcode, and a step of its name to npu_step_kind, then to the
 * list. All else is made from that: VectorBuilder's method, listings, checks, and the emulator's
 * loop over elements, until simd_programs.h has one over vectors.
 */
#ifndef DRIVER_KIT_VECTOR_OPCODES_H_
#define DRIVER_KIT_VECTOR_OPCODES_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "npu_driver.h"

// In the order of npu_vector_opcode. Functions of a, b and c have a method of VectorBuilder:
//   BOTH(NAME, Method, name, operands, of real numbers, of int64)
//   REALS(NAME, Method, name, operands, of real numbers)
// The others are OTHER(NAME, name, operands, whether it exists for real numbers, step).
#define NPU_VECTOR_OPCODES(BOTH, REALS, OTHER)                                            \
  OTHER(LOAD, load, 0, true, NPU_STEP_OTHER)                                              \
  OTHER(CONSTANT, constant, 0, true, NPU_STEP_OTHER)                                      \
  BOTH(ADD, Add, add, 2, a + b, Wrapped(Bits(a) + Bits(b)))                               \
  BOTH(SUBTRACT, Subtract, subtract, 2, a - b, Wrapped(Bits(a) - Bits(b)))                \
  BOTH(MULTIPLY, Multiply, multiply, 2, (a * b), Wrapped(Bits(a) * Bits(b)))              \
  BOTH(DIVIDE, Divide, divide, 2, a / b, Quotient(a, b))                                  \
  BOTH(MAXIMUM, Maximum, maximum, 2, std::isnan(a) || a > b ? a : b, a > b ? a : b)       \
  BOTH(MINIMUM, Minimum, minimum, 2, std::isnan(a) || a < b ? a : b, a < b ? a : b)       \
  BOTH(FLOOR_DIVIDE, FloorDivide, floor_divide, 2, std::floor(static_cast<float>(a / b)), \
       FloorOfQuotient(a, b))                                                             \
  BOTH(REMAINDER, Remainder, remainder, 2, std::fmod(a, b), Rest(a, b))                   \
  BOTH(LESS, Less, less, 2, a < b, a < b)                                                 \
  BOTH(EQUAL, Equal, equal, 2, a == b, a == b)                                            \
  BOTH(SELECT, Select, select, 3, a != 0 ? b : c, a != 0 ? b : c)                         \
  BOTH(ABSOLUTE, Absolute, absolute, 1, std::fabs(a), a < 0 ? Wrapped(0 - Bits(a)) : a)   \
  REALS(POWER, Power, power, 2, std::pow(a, b))                                           \
  REALS(EXP, Exp, exp, 1, std::exp(a))                                                    \
  REALS(LOG, Log, log, 1, std::log(a))                                                    \
  REALS(SQRT, Sqrt, sqrt, 1, std::sqrt(a))                                                \
  REALS(TANH, Tanh, tanh, 1, std::tanh(a))                                                \
  REALS(ERF, Erf, erf, 1, std::erf(a))                                                    \
  REALS(SIGMOID, Sigmoid, sigmoid, 1, 1 / (1 + std::exp(-a)))                             \
  REALS(SIN, Sin, sin, 1, std::sin(a))                                                    \
  REALS(COS, Cos, cos, 1, std::cos(a))                                                    \
  REALS(TAN, Tan, tan, 1, std::tan(a))                                                    \
  REALS(ATAN, Atan, atan, 1, std::atan(a))                                                \
  REALS(FLOOR, Floor, floor, 1, std::floor(a))                                            \
  REALS(TRUNCATE, Truncate, truncate, 1, std::trunc(a))                                   \
  REALS(ROUND_EVEN, RoundEven, round_even, 1, std::nearbyint(a))                          \
  REALS(ROUND_AWAY, RoundAway, round_away, 1, std::round(a))                              \
  OTHER(RESCALE, rescale, 3, false, NPU_STEP_RESCALE)

namespace npu {

/*! \brief An opcode of vector programs. */
struct VectorOpcode {
  npu_vector_opcode opcode;
  const char* name;
  int32_t operands;
  /*! \brief Whether it exists in int64, and in float32. */
  bool integers, reals;
  /*! \brief The step that it is; OTHER for loads and constants, which are operands of steps. */
  npu_step_kind step;
};

/*! \brief All of them, by npu_vector_opcode. */
constexpr VectorOpcode kVectorOpcodes[] = {
#define NPU_BOTH(NAME, Method, name, operands, real, integer) \
  {NPU_VECTOR_##NAME, #name, operands, true, true, NPU_STEP_##NAME},
#define NPU_REALS(NAME, Method, name, operands, real) \
  {NPU_VECTOR_##NAME, #name, operands, false, true, NPU_STEP_##NAME},
#define NPU_OTHER(NAME, name, operands, reals, step) \
  {NPU_VECTOR_##NAME, #name, operands, true, reals, step},
    NPU_VECTOR_OPCODES(NPU_BOTH, NPU_REALS, NPU_OTHER)
#undef NPU_BOTH
#undef NPU_REALS
#undef NPU_OTHER
};

constexpr bool HasAllVectorOpcodes() {
  int32_t count = 0;
  for (const VectorOpcode& item : kVectorOpcodes) count += item.opcode == count ? 1 : 0;
  return count == NPU_VECTOR_OPCODE_COUNT;
}
static_assert(HasAllVectorOpcodes(), "the list is that of npu_driver.h, in the same order");

/*! \brief The step that an instruction is; also of an opcode of the vendor's own. */
constexpr npu_step_kind StepOf(npu_vector_opcode opcode) {
  return opcode < NPU_VECTOR_OPCODE_COUNT ? kVectorOpcodes[opcode].step : NPU_STEP_OTHER;
}

// ---- What they compute ----

namespace integers {

// Sums, differences and products of unsigned numbers wrap around.
constexpr uint64_t Bits(int64_t a) { return static_cast<uint64_t>(a); }
constexpr int64_t Wrapped(uint64_t a) { return static_cast<int64_t>(a); }

// The least number divided by -1 traps on some processors: it has no quotient.
constexpr int64_t Quotient(int64_t a, int64_t b) {
  return b == 0 ? 0 : b == -1 ? Wrapped(0 - Bits(a)) : a / b;
}
constexpr int64_t Rest(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

constexpr int64_t FloorOfQuotient(int64_t a, int64_t b) {
  const int64_t rest = Rest(a, b);
  return Quotient(a, b) - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
}

}  // namespace integers

/*! \brief Calls `body(function, operands)` with what an opcode computes, if it is a function of
 * three numbers `T`: int64_t, or float or double, unrounded. Only the first `operands` matter. */
template <typename T, typename Body>
void WithFunction(npu_vector_opcode opcode, const Body& body) {
  using namespace integers;  // NOLINT(google-build-using-namespace)
  constexpr bool kReal = std::is_floating_point_v<T>;
  switch (opcode) {
#define NPU_CALL(operands, result)                                                             \
  body([](T a, [[maybe_unused]] T b, [[maybe_unused]] T c) { return static_cast<T>(result); }, \
       std::integral_constant<int32_t, operands>())
#define NPU_REALS(NAME, Method, name, operands, real) \
  case NPU_VECTOR_##NAME:                             \
    if constexpr (kReal) NPU_CALL(operands, real);    \
    break;
#define NPU_BOTH(NAME, Method, name, operands, real, integer) \
  case NPU_VECTOR_##NAME:                                     \
    if constexpr (kReal) NPU_CALL(operands, real);            \
    if constexpr (!kReal) NPU_CALL(operands, integer);        \
    break;
#define NPU_OTHER(NAME, name, operands, reals, step)
    NPU_VECTOR_OPCODES(NPU_BOTH, NPU_REALS, NPU_OTHER)
#undef NPU_CALL
#undef NPU_BOTH
#undef NPU_REALS
#undef NPU_OTHER
    default:
      break;
  }
}

/*! \brief The result of an instruction, not yet rounded to float32; NaN if it has none. */
inline double ResultOf(npu_vector_opcode opcode, double a, double b, double c) {
  double result = std::numeric_limits<double>::quiet_NaN();
  WithFunction<double>(opcode, [&](auto function, auto) { result = function(a, b, c); });
  return result;
}

}  // namespace npu

#endif  // DRIVER_KIT_VECTOR_OPCODES_H_
