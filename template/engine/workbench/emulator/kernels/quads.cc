// SPDX-License-Identifier: Apache-2.0
/*!
 * \file quads.cc
 * \brief Operands of products of quads.
 */
#include "quads.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace npu::emulator {

namespace {

// Each of the four bytes is 1.
constexpr uint32_t kOnes = 0x01010101;

constexpr int64_t kTile = int64_t{kPanelRows} * kPanelColumns;

uint32_t NumberOf(float cell) {
  uint32_t number;
  std::memcpy(&number, &cell, sizeof(number));
  return number;
}

template <size_t kCount>
std::array<float, kCount> ManyOnes() {
  std::array<float, kCount> made;
  float one;
  std::memcpy(&one, &kOnes, sizeof(one));
  made.fill(one);
  return made;
}

}  // namespace

float ZeroQuad(npu_dtype dtype, int32_t zero_point) {
  uint32_t quad = static_cast<uint32_t>(ZeroOfQuads(dtype, zero_point, false)) * kOnes;
  float cell;
  std::memcpy(&cell, &quad, sizeof(cell));
  return cell;
}

void FinishLeftPanel(const Simd& simd, int64_t depth, int32_t left_zero, int32_t right_zero,
                     float* panel, int32_t* of_rows) {
  constexpr int64_t kMostBlock = 64;
  const QuadProducts& quads = simd.quads->For(depth);
  const int64_t block = quads.block;
  for (int64_t k = 0; k < depth && block > 1; k += block) {
    const int64_t steps = std::min(block, depth - k);
    float copy[kPanelRows * kMostBlock];
    std::copy_n(panel + k * kPanelRows, steps * kPanelRows, copy);
    simd.transpose(steps, kPanelRows, copy, kPanelRows, panel + k * kPanelRows, steps);
  }
  static const auto ones = ManyOnes<static_cast<size_t>(kPanelColumns)>();
  float sums[kTile];
  quads.gemm(kPanelRows, 1, depth, panel, ones.data(), 0, sums, false);
  const uint32_t of_zeros = static_cast<uint32_t>(4 * depth) * static_cast<uint32_t>(left_zero) *
                            static_cast<uint32_t>(right_zero);
  for (int64_t i = 0; i < kPanelRows; ++i) {
    const uint32_t sum = NumberOf(sums[i * kPanelColumns]) * static_cast<uint32_t>(right_zero);
    of_rows[i] = static_cast<int32_t>(of_zeros - sum);
  }
}

void SumColumns(const Simd& simd, int64_t depth, int32_t left_zero, const float* panel,
                int64_t stride, int32_t* of_columns) {
  static const auto ones = ManyOnes<static_cast<size_t>(kMostSteps * kPanelRows)>();
  float sums[kTile];
  simd.quads->gemm(1, kPanelColumns, depth, ones.data(), panel, stride, sums, false);
  for (int i = 0; i < kPanelColumns; ++i) {
    const uint32_t sum = NumberOf(sums[i]) * static_cast<uint32_t>(left_zero);
    of_columns[i] = static_cast<int32_t>(0 - sum);
  }
}

}  // namespace npu::emulator
