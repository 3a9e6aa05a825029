// SPDX-License-Identifier: Apache-2.0
/*!
 * \file oracle.h
 * \brief The same operations as plain loops, the reference of the kernels.
 *
 * Written to be read, not to be fast. Sums and functions are computed in double; each instruction
 * of a vector program is rounded to float32, as the kernels' are. Integers are computed in 128
 * bits, and each instruction is cut to 64.
 */
#ifndef EMULATOR_KERNELS_ORACLE_H_
#define EMULATOR_KERNELS_ORACLE_H_

#include <cstdint>

#include "kernels.h"

namespace npu::emulator::oracle {

/*! \brief Element `index` of a tensor, converted to float32. */
float Load(const TensorView& tensor, int64_t index);
/*! \brief Sets element `index` of a tensor from float32. */
void Store(const TensorView& tensor, int64_t index, float value);
/*! \brief Element `index` of a tensor of integers. */
int64_t LoadInteger(const TensorView& tensor, int64_t index);
/*! \brief Sets element `index` of a tensor of integers to the low bits of a number. */
void StoreInteger(const TensorView& tensor, int64_t index, int64_t value);

/*!
 * \name Operations
 * Packed operands are ignored: the plain ones are read.
 * @{
 */
void MatMul(const MatMulArgs& args);
void Convolution(const ConvolutionArgs& args);
void Pool(const PoolArgs& args);
void Elementwise(const ElementwiseArgs& args);
void Reduce(const ReduceArgs& args);
void Copy(const CopyArgs& args);
void Gather(const GatherArgs& args);
void Update(const UpdateArgs& args);
void Scan(const PlainArgs<npu_scan>& args);
void Order(const PlainArgs<npu_order>& args);
void Lookup(const PlainArgs<npu_lookup>& args);
/*! @} */

}  // namespace npu::emulator::oracle

#endif  // EMULATOR_KERNELS_ORACLE_H_
