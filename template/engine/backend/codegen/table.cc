// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace npu {
namespace {

/*! \brief The result of one instruction, before it is rounded to float32. */
double Compute(npu_vector_opcode opcode, double a, double b, double c) {
  switch (opcode) {
    case NPU_VECTOR_ADD:
      return a + b;
    case NPU_VECTOR_SUBTRACT:
      return a - b;
    case NPU_VECTOR_MULTIPLY:
      return a * b;
    case NPU_VECTOR_DIVIDE:
      return a / b;
    case NPU_VECTOR_MAXIMUM:
      return std::isnan(a) || a > b ? a : b;
    case NPU_VECTOR_MINIMUM:
      return std::isnan(a) || a < b ? a : b;
    case NPU_VECTOR_FLOOR_DIVIDE:
      return std::floor(a / b);
    case NPU_VECTOR_REMAINDER:
      return std::fmod(a, b);
    case NPU_VECTOR_LESS:
      return a < b;
    case NPU_VECTOR_EQUAL:
      return a == b;
    case NPU_VECTOR_SELECT:
      return a != 0 ? b : c;
    case NPU_VECTOR_ABSOLUTE:
      return std::fabs(a);
    case NPU_VECTOR_POWER:
      return std::pow(a, b);
    case NPU_VECTOR_EXP:
      return std::exp(a);
    case NPU_VECTOR_LOG:
      return std::log(a);
    case NPU_VECTOR_SQRT:
      return std::sqrt(a);
    case NPU_VECTOR_TANH:
      return std::tanh(a);
    case NPU_VECTOR_ERF:
      return std::erf(a);
    case NPU_VECTOR_SIGMOID:
      return 1 / (1 + std::exp(-a));
    case NPU_VECTOR_SIN:
      return std::sin(a);
    case NPU_VECTOR_COS:
      return std::cos(a);
    case NPU_VECTOR_TAN:
      return std::tan(a);
    case NPU_VECTOR_ATAN:
      return std::atan(a);
    case NPU_VECTOR_FLOOR:
      return std::floor(a);
    case NPU_VECTOR_TRUNCATE:
      return std::trunc(a);
    case NPU_VECTOR_ROUND_EVEN:
      return std::nearbyint(a);
    case NPU_VECTOR_ROUND_AWAY:
      return std::round(a);
    case NPU_VECTOR_LOAD:
    case NPU_VECTOR_CONSTANT:
    case NPU_VECTOR_RESCALE:
      break;
  }
  return 0;
}

}  // namespace

std::pair<double, double> EndsOf(npu_dtype dtype) {
  if (dtype == NPU_UINT8) return {0, 255};
  return dtype == NPU_INT16 ? std::make_pair(-32768.0, 32767.0) : std::make_pair(-128.0, 127.0);
}

std::vector<uint8_t> TableOf(const npu_vector_program& program, npu_dtype from, npu_dtype to) {
  const double first = EndsOf(from).first;
  const auto [least, most] = EndsOf(to);
  std::vector<uint8_t> table(256);
  for (size_t i = 0; i < table.size(); ++i) {
    const double number = static_cast<double>(i) + first;
    std::vector<float> values;
    for (int32_t k = 0; k < program.instruction_count; ++k) {
      const npu_vector_instruction& step = program.instructions[k];
      auto at = [&](int32_t index) {
        return index < 0 ? 0.0 : static_cast<double>(values[static_cast<size_t>(index)]);
      };
      double value = 0;
      if (step.opcode == NPU_VECTOR_LOAD) {
        value = number;
      } else if (step.opcode == NPU_VECTOR_CONSTANT) {
        value = step.immediate;
      } else {
        value = Compute(step.opcode, at(step.a), at(step.b), at(step.c));
      }
      values.push_back(static_cast<float>(value));
    }
    const double result = std::nearbyint(values.back());
    const double stored = std::isnan(result) ? 0 : std::min(std::max(result, least), most);
    table[i] = static_cast<uint8_t>(static_cast<int64_t>(stored));
  }
  return table;
}

}  // namespace npu
