// SPDX-License-Identifier: Apache-2.0
/*!
 * \file requantization.h
 * \brief What happens to the sums of a quantized op, as numbers; knows nothing of the driver.
 */
#ifndef CODEGEN_REQUANTIZATION_H_
#define CODEGEN_REQUANTIZATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "lowering.h"
#include "units.h"

namespace npu {

/*! \brief Multipliers and shifts: factor is about multiplier / 2^shift. */
struct Factors {
  std::vector<int64_t> multipliers, shifts;
  npu_rounding rounding = NPU_ROUND_HALF_UP;
};

/*! \brief The steps from an accumulator to the quantized result. */
struct IntegerSteps {
  struct Addend {
    EntryRef data;
    double zero_point = 0;
    Factors factor;
    /*! \brief The data at the driver, once they are there; the same for `bias`. */
    Tensor tensor = {};
  };

  /*! \brief In steps of the accumulator; empty: there is none. */
  std::vector<int64_t> bias_values;
  std::vector<npu_dim> bias_dims;
  Tensor bias;
  /*! \brief From steps of the accumulator to steps of the result. */
  Factors factor;
  /*! \brief Added tensors, in steps of the result. */
  std::vector<Addend> addends;
  double zero_point = 0, least = 0, most = 0;
};

/*! \brief The scale that several arguments get, and the factors to it. */
struct FinerSteps {
  double scale = 1;
  std::vector<Factors> factors;
};

/*! \brief Whether the sums of a quantized op have up to 48 bits, in an int64, instead of 32. */
bool HasWideSums(const CallView& call);
/*! \brief The factor that turns accumulators into real numbers: one, or one per channel, or one for
 *  each of the `counts` of elements over which a mean is taken. */
std::vector<double> AccumulatorScale(const CallView& call, const std::vector<double>& counts);
/*! \brief Reads the steps from the composite; none if they need real numbers. `scale` is that of
 *  the accumulator, which is `wide` if it has up to 48 bits. */
std::optional<IntegerSteps> ReadIntegerSteps(const CallView& call, const Units& units,
                                             const std::vector<double>& scale, bool wide,
                                             const Requantization& rule);
/*! \brief Steps in which a sum of an op's arguments loses nothing that matters: finer than those of
 *  each, so that the arguments, which have this many `bits`, fill an int32. */
FinerSteps CommonSteps(const CallView& call, const Requantization& rule, int bits);
/*! \brief Real numbers in steps of an accumulator of one scale, or of one for each number; none if
 *  it could not hold them. */
std::optional<std::vector<int64_t>> InSteps(const std::vector<double>& numbers,
                                            const std::vector<double>& scale, bool wide);
/*! \brief Refuses sums of so many products that the accumulator could overflow. */
void RequireSumsFit(const CallView& call, double terms);

}  // namespace npu

#endif  // CODEGEN_REQUANTIZATION_H_
