// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "driver_kit/vector_opcodes.h"

namespace npu {

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
      const double value = step.opcode == NPU_VECTOR_LOAD ? number
                           : step.opcode == NPU_VECTOR_CONSTANT
                               ? step.immediate
                               : ResultOf(step.opcode, at(step.a), at(step.b), at(step.c));
      values.push_back(static_cast<float>(value));
    }
    const double result = std::nearbyint(values.back());
    const double stored = std::isnan(result) ? 0 : std::min(std::max(result, least), most);
    table[i] = static_cast<uint8_t>(static_cast<int64_t>(stored));
  }
  return table;
}

}  // namespace npu
