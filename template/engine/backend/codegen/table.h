// SPDX-License-Identifier: Apache-2.0
/*!
 * \file table.h
 * \brief The numbers of quantized tensors, and functions of 8-bit ones as tables.
 */
#ifndef CODEGEN_TABLE_H_
#define CODEGEN_TABLE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "npu_driver.h"

namespace npu {

/*! \brief The least and the largest number of a quantized tensor: int8, uint8 or int16. */
std::pair<double, double> EndsOf(npu_dtype dtype);

/*! \brief The results of a vector program for all 256 numbers of a type; see npu_lookup.
 *
 * In float32, as the header says, with each function rounded once.
 *
 * \param program It has one input, and no RESCALE.
 * \param from The type of the input, int8 or uint8.
 * \param to The type of the result, int8 or uint8.
 */
std::vector<uint8_t> TableOf(const npu_vector_program& program, npu_dtype from, npu_dtype to);

}  // namespace npu

#endif  // CODEGEN_TABLE_H_
