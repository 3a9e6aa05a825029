// SPDX-License-Identifier: Apache-2.0
/*!
 * \file products.h
 * \brief Matmul and Convolution of integers.
 */
#ifndef EMULATOR_KERNELS_PRODUCTS_H_
#define EMULATOR_KERNELS_PRODUCTS_H_

#include <cstddef>

#include "kernels.h"

namespace npu::emulator {

/*!
 * \name The functions of similar names in kernels.h, for operands of integers
 * @{
 */
size_t PackedIntegerMatMulBBytes(const TensorView& b, bool transpose_b);
void PackIntegerMatMulB(const TensorView& b, bool transpose_b, void* packed);
size_t PackedIntegerConvolutionWeightBytes(const TensorView& weight, int64_t groups);
void PackIntegerConvolutionWeight(const TensorView& weight, int64_t groups, void* packed);
size_t IntegerMatMulScratch(const MatMulArgs& args, int threads);
void IntegerMatMul(const MatMulArgs& args, const KernelContext& context);
size_t IntegerConvolutionScratch(const ConvolutionArgs& args, int threads);
void IntegerConvolution(const ConvolutionArgs& args, const KernelContext& context);
/*! @} */

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_PRODUCTS_H_
