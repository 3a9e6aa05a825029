// SPDX-License-Identifier: Apache-2.0
/*!
 * \file byte_products.h
 * \brief Matmul and Convolution of elements of 8 bits, of which those of int16 consist.
 *
 * Elements of 8 bits, less their zero points, fit into int16. Two steps of the depth are a pair,
 * which instructions of all processors multiply and add at once, exactly; see simd.h. So products
 * are those of real numbers, with pairs for floats: the same panels, tiles and planes. Padding and
 * missing elements at the edges are zeros after the subtraction. Some processors multiply four
 * steps at once, as elements of 8 bits: there, quads are used like pairs; see quads.h.
 */
#ifndef EMULATOR_KERNELS_BYTE_PRODUCTS_H_
#define EMULATOR_KERNELS_BYTE_PRODUCTS_H_

#include <cstddef>

#include "kernels.h"

namespace npu::emulator {

/*! \brief Bytes of scratch memory for Multiply. */
size_t ScratchOf(const MatMulArgs& args, int threads);
size_t ScratchOf(const ConvolutionArgs& args, int threads);
void Multiply(const MatMulArgs& args, const KernelContext& context);
void Multiply(const ConvolutionArgs& args, const KernelContext& context);
/*! \brief See PackedMatMulBBytes and PackMatMulB. */
size_t PackedByteMatMulBBytes(const TensorView& b, bool transpose_b);
void PackByteMatMulB(const TensorView& b, bool transpose_b, void* packed);

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_BYTE_PRODUCTS_H_
