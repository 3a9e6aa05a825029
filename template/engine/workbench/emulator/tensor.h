// SPDX-License-Identifier: Apache-2.0
/*!
 * \file tensor.h
 * \brief Shapes, possibly symbolic.
 */
#ifndef EMULATOR_TENSOR_H_
#define EMULATOR_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "support.h"

namespace npu::emulator {

/*! \brief The most elements that a tensor may have. */
constexpr int64_t kMaxElements = int64_t{1} << 40;

/*! \brief A size that is known at the call. */
struct Symbol {
  std::string name;
  /*! \brief Its largest value, for which memory is planned; the smallest is 1. */
  int64_t bound;
};

/*!
 * \brief One dimension: fixed, or a part of a symbolic size.
 *
 * A whole symbolic dimension has begin 0 and the limit size * bound. A tile of it covers
 * [begin, begin + limit), cut where the dimension ends: it may be shorter, or empty.
 */
struct Dim {
  /*! \brief The extent; with a symbol, the factor of the symbol's value. */
  int64_t size = 0;
  int32_t symbol = -1;
  int64_t begin = 0;
  int64_t limit = 0;

  /*! \brief The extent; `symbols` has the value of each symbol. */
  int64_t Extent(const int64_t* symbols) const {
    if (symbol < 0) return size;
    int64_t left = size * symbols[symbol] - begin;
    return left < 0 ? 0 : left > limit ? limit : left;
  }
  /*! \brief The largest extent. */
  int64_t Most() const { return symbol < 0 ? size : limit; }
  bool operator==(const Dim& other) const {
    return size == other.size && symbol == other.symbol && begin == other.begin &&
           limit == other.limit;
  }
};

/*! \brief Shape and type of a dense, row-major tensor. */
struct Desc {
  npu_dtype dtype = NPU_FLOAT32;
  int32_t rank = 0;
  Dim dims[NPU_MAX_RANK];
};

/*! \brief For messages, e.g. `float32`. */
const char* Name(npu_dtype dtype);

/*! \brief The most bytes that a tensor may take. */
int64_t MostBytes(const Desc& desc);

/*! \brief A tensor without memory; `symbols` has the value of each symbol. */
TensorView Resolve(const Desc& desc, const int64_t* symbols);

/*! \brief For messages, e.g. `float32 [n, 4]`. */
std::string ToString(const Desc& desc, const std::vector<Symbol>& symbols);

}  // namespace npu::emulator

#endif  // EMULATOR_TENSOR_H_
