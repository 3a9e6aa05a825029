// SPDX-License-Identifier: Apache-2.0
#include "weights.h"

#include <algorithm>

namespace npu {

namespace {

int64_t NumberAt(const DequantizedMatrix& matrix, int64_t index) {
  const auto byte = static_cast<uint8_t>(matrix.bytes[static_cast<size_t>(index)]);
  return matrix.dtype == NPU_INT8 ? int64_t{static_cast<int8_t>(byte)} : int64_t{byte};
}

/*! \brief The scale, or the zero point, of an element; there may be one for all elements. */
double Of(const std::vector<double>& numbers, const DequantizedMatrix& matrix, int64_t index) {
  if (numbers.size() == 1) return numbers[0];
  return numbers[static_cast<size_t>(index / matrix.inner) % numbers.size()];
}

bool HasFourBits(const DequantizedMatrix& matrix) {
  const int64_t least = matrix.dtype == NPU_INT8 ? -8 : 0;
  for (size_t i = 0; i < matrix.bytes.size(); ++i) {
    const int64_t number = NumberAt(matrix, static_cast<int64_t>(i));
    if (number < least || number > least + 15) return false;
  }
  return true;
}

}  // namespace

DequantizedMatrix WeightsOf(const Graph& graph, const Unit& unit, const std::string& who) {
  const Node& dequantize = graph.nodes[*unit.weights];
  const Node& constant = graph.nodes[dequantize.inputs.at(0).node];
  const std::vector<Dim>& dims = graph.Info(unit.inputs.at(1)).shape;
  DequantizedMatrix matrix;
  matrix.bytes = BytesOf(constant);
  matrix.dtype = MakeDesc(constant.outputs[0], who).dtype;
  matrix.scales = Numbers(graph.nodes[dequantize.inputs.at(1).node]);
  matrix.zero_points = Numbers(graph.nodes[dequantize.inputs.at(2).node]);
  if (matrix.scales.empty() || matrix.zero_points.empty() || dims.size() < 2 ||
      (matrix.dtype != NPU_INT8 && matrix.dtype != NPU_UINT8)) {
    throw Refusal(who + ": its weights are not a matrix of int8 or uint8 with constant scales");
  }
  const std::vector<Dim>& shape = constant.outputs[0].shape;
  const Unit of_dequantize(graph, *unit.weights, nullptr);
  int64_t axis = CallView(&graph, &of_dequantize).Int("axis");
  const auto rank = static_cast<int64_t>(shape.size());
  for (axis = (axis + rank) % std::max<int64_t>(rank, 1) + 1; axis < rank; ++axis) {
    matrix.inner *= shape[static_cast<size_t>(axis)].size;
  }
  matrix.transposed = unit.transposed.at(1);
  matrix.depth = dims[dims.size() - (matrix.transposed ? 1 : 2)].size;
  matrix.columns = dims[dims.size() - (matrix.transposed ? 2 : 1)].size;
  return matrix;
}

bool ReadWeights(const DequantizedMatrix& matrix, IntegerWeights* weights) {
  const auto count =
      static_cast<int64_t>(std::max(matrix.scales.size(), matrix.zero_points.size()));
  const int64_t depth = matrix.depth;
  const int64_t columns = matrix.columns;
  const bool one_matrix = static_cast<int64_t>(matrix.bytes.size()) == depth * columns;
  // Distances between the elements of a column, and between those of a row.
  const int64_t down = matrix.transposed ? 1 : columns;
  const int64_t along = matrix.transposed ? depth : 1;
  const bool same = std::all_of(matrix.zero_points.begin(), matrix.zero_points.end(),
                                [&](double zero) { return zero == matrix.zero_points[0]; });
  int64_t block = 0;
  if (count > 1 && matrix.inner == along && count == columns) {
    if (!same) block = depth;
  } else if (count > 1) {
    // Blocks follow each other in a column, or are whole rows.
    const bool rows = matrix.inner % columns == 0 && !matrix.transposed;
    const bool pieces = depth % matrix.inner == 0 && matrix.transposed;
    const bool by_row = matrix.inner == 1 && matrix.transposed && count == depth;
    if (!by_row && !((rows || pieces) && count * matrix.inner == depth * columns)) return false;
    block = matrix.inner / (matrix.transposed ? 1 : columns);
  }
  // With smaller blocks, the scales would take as much memory as the weights.
  constexpr int64_t kLeastBlock = 4;
  if (block != 0 && (!one_matrix || depth % block != 0 || block < kLeastBlock)) return false;

  weights->bits = HasFourBits(matrix) ? 4 : 8;
  weights->zero_point = static_cast<int32_t>(matrix.zero_points[0]);
  weights->block = block;
  if (block == 0) {
    weights->scales.assign(matrix.scales.begin(), matrix.scales.end());
    return true;
  }
  for (int64_t k = 0; k < depth; k += block) {
    for (int64_t n = 0; n < columns; ++n) {
      const int64_t index = k * down + n * along;
      weights->scales.push_back(static_cast<float>(Of(matrix.scales, matrix, index)));
      if (same) continue;
      const auto zero = static_cast<int64_t>(Of(matrix.zero_points, matrix, index));
      weights->zero_points.push_back(static_cast<uint8_t>(zero));
    }
  }
  return true;
}

std::vector<float> RealNumbers(const DequantizedMatrix& matrix) {
  std::vector<float> numbers(matrix.bytes.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const auto steps =
        static_cast<double>(NumberAt(matrix, index)) - Of(matrix.zero_points, matrix, index);
    numbers[i] = static_cast<float>(steps) * static_cast<float>(Of(matrix.scales, matrix, index));
  }
  return numbers;
}

}  // namespace npu
