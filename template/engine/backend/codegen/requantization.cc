// SPDX-License-Identifier: Apache-2.0
#include "requantization.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <tuple>

#include "table.h"

namespace npu {

namespace {

std::vector<double> NumbersOf(const CallView& call, const EntryRef& entry) {
  return Numbers(call.graph().nodes[entry.node]);
}

/*! \brief The multipliers, with as many bits as the chip's, for 32-bit numbers or for `wide` 48-bit
 *  ones. */
Factors MakeFactors(const CallView& call, const Requantization& rule,
                    const std::vector<double>& factors, bool wide = false) {
  const int bits = wide ? rule.wide_multiplier_bits : rule.multiplier_bits;
  // Fewer bits would give wide numbers more than 64 bits.
  const int least_shift = wide ? std::max(rule.least_shift, bits - 13) : rule.least_shift;
  Factors made;
  made.rounding = rule.rounding;
  // As in TOSA, which rounds twice only with 31-bit multipliers.
  if (wide && rule.rounding == NPU_ROUND_DOUBLE) made.rounding = NPU_ROUND_HALF_UP;
  for (double factor : factors) {
    int exponent = 0;
    const double mantissa = std::frexp(factor, &exponent);  // In [0.5, 1).
    auto multiplier = static_cast<int64_t>(std::nearbyint(std::ldexp(mantissa, bits)));
    int64_t shift = bits - exponent;
    if (multiplier == int64_t{1} << bits) {
      multiplier /= 2;
      --shift;
    }
    if (!(factor > 0) || shift < least_shift || shift > rule.most_shift) {
      std::ostringstream text;
      text << std::setprecision(9)
           << "the scales of its arguments and of its result make a factor of " << factor
           << ", a shift by " << shift << "; supported: " << least_shift << " to "
           << rule.most_shift;
      call.Refuse(text.str());
    }
    made.multipliers.push_back(multiplier);
    made.shifts.push_back(shift);
  }
  return made;
}

}  // namespace

bool HasWideSums(const CallView& call) { return call.InputDtype(0) == NPU_INT16; }

std::vector<double> AccumulatorScale(const CallView& call, const std::vector<double>& counts) {
  std::vector<double> scale = {1};
  for (size_t node : call.unit().dequantized) {
    const std::vector<double> numbers = NumbersOf(call, call.graph().nodes[node].inputs.at(1));
    if (numbers.empty()) call.Refuse("an argument has no constant scale");
    const std::vector<double>& longer = numbers.size() > scale.size() ? numbers : scale;
    std::vector<double> product(longer.size());
    for (size_t i = 0; i < product.size(); ++i) {
      product[i] = scale[scale.size() == 1 ? 0 : i] * numbers[numbers.size() == 1 ? 0 : i];
    }
    scale = std::move(product);
  }
  if (scale.size() > 1) {
    // The weight of a transposed convolution has the channels of one group.
    const std::vector<npu_dim> out = call.OutputDims();
    const int channel = call.unit().lowering->channel;
    const auto channels =
        static_cast<size_t>(out[channel < 0 ? out.size() + channel : channel].size);
    const size_t count = scale.size();
    while (scale.size() < channels) scale.push_back(scale[scale.size() - count]);
  }
  if (counts.empty()) return scale;
  std::vector<double> means;
  for (double count : counts) means.push_back(scale.at(0) / count);
  return means;
}

std::optional<IntegerSteps> ReadIntegerSteps(const CallView& call, const Units& units,
                                             const std::vector<double>& scale, bool wide,
                                             const Requantization& rule) {
  const Graph& graph = call.graph();
  const Unit& unit = call.unit();
  const Node& quantize = graph.nodes[unit.Last()];
  if (quantize.op != "relax.quantize") return {};
  const std::vector<double> step = NumbersOf(call, quantize.inputs.at(1));
  const std::vector<double> zero = NumbersOf(call, quantize.inputs.at(2));
  if (step.size() != 1 || zero.size() != 1) return {};

  auto quantized = [&](double number) { return std::nearbyint(number / step[0]) + zero[0]; };
  IntegerSteps steps;
  steps.zero_point = zero[0];
  std::tie(steps.least, steps.most) = EndsOf(call.OutputDtype());
  size_t value = unit.anchor;
  for (const auto& [index, lowering] : unit.epilogue) {
    const Node& node = graph.nodes[index];
    if (index == unit.Last()) break;
    const bool first = node.inputs.at(0).node == value;
    if (node.op == "relax.add") {
      const EntryRef other = node.inputs.at(first ? 1 : 0);
      const std::vector<double> numbers = NumbersOf(call, other);
      if (units.inlined.count(other.node) != 0) {
        const Node& dequantize = graph.nodes[other.node];
        const std::vector<double> scales = NumbersOf(call, dequantize.inputs.at(1));
        const std::vector<double> zeros = NumbersOf(call, dequantize.inputs.at(2));
        if (scales.size() != 1 || zeros.size() != 1) return {};
        steps.addends.push_back(
            {dequantize.inputs.at(0), zeros[0], MakeFactors(call, rule, {scales[0] / step[0]})});
      } else if (!numbers.empty() && steps.bias_values.empty() && steps.addends.empty() &&
                 (scale.size() == 1 || numbers.size() == scale.size())) {
        const std::optional<std::vector<int64_t>> bias = InSteps(numbers, scale, wide);
        if (!bias.has_value()) return {};
        steps.bias_values = *bias;
        steps.bias_dims = ReadDims(graph.Info(other));
      } else {
        return {};
      }
    } else if (node.op == "relax.nn.relu") {
      steps.least = std::max(steps.least, zero[0]);
    } else if (node.op == "relax.clip") {
      const Unit clip(graph, index, lowering);
      const CallView at(&graph, &clip);
      steps.least = std::max(steps.least, quantized(at.Float("min")));
      steps.most = std::min(steps.most, quantized(at.Float("max")));
    } else {
      return {};
    }
    value = index;
  }
  steps.least = std::min(steps.least, steps.most);
  std::vector<double> factors(scale.size());
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = scale[i] / step[0];
  steps.factor = MakeFactors(call, rule, factors, wide);
  return steps;
}

FinerSteps CommonSteps(const CallView& call, const Requantization& rule, int bits) {
  std::vector<double> scales;
  for (size_t node : call.unit().dequantized) {
    const std::vector<double> numbers = NumbersOf(call, call.graph().nodes[node].inputs.at(1));
    if (numbers.size() != 1) call.Refuse("an argument has no constant scale, or several");
    scales.push_back(numbers[0]);
  }
  FinerSteps finer;
  // A sum has one bit more.
  finer.scale = std::ldexp(*std::max_element(scales.begin(), scales.end()), bits - 30);
  for (double scale : scales) {
    finer.factors.push_back(MakeFactors(call, rule, {scale / finer.scale}));
  }
  return finer;
}

std::optional<std::vector<int64_t>> InSteps(const std::vector<double>& numbers,
                                            const std::vector<double>& scale, bool wide) {
  std::vector<int64_t> steps;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double count = std::nearbyint(numbers[i] / scale[scale.size() == 1 ? 0 : i]);
    if (!(std::abs(count) < (wide ? 0x1p47 : 0x1p31))) return {};
    steps.push_back(static_cast<int64_t>(count));
  }
  return steps;
}

void RequireSumsFit(const CallView& call, double terms) {
  double largest = terms;
  const size_t count =
      call.IsQuantized() ? call.unit().dequantized.size() : std::min<size_t>(call.InputCount(), 2);
  for (size_t i = 0; i < count; ++i) {
    const auto [least, most] = EndsOf(call.InputDtype(i));
    const double zero = call.ZeroPoint(i);
    largest *= std::max(most - zero, zero - least);
  }
  const int bits = HasWideSums(call) ? 48 : 32;
  if (largest >= std::ldexp(1, bits - 1)) {
    std::ostringstream text;
    text << "sums of " << terms << " products may be larger than the " << bits
         << " bits of the accumulator";
    call.Refuse(text.str());
  }
}

}  // namespace npu
