// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_avx512vnni.cc
 * \brief The inner loops that AVX-512's dot products of integers (VNNI) make faster.
 */
#include "simd.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)

#define SIMD_BYTES 64
#include "simd_loops.h"

namespace npu::emulator {

const IntegerProducts* VnniProducts() {
  static constexpr IntegerProducts kProducts = {
      Taps, GemmPairs, {GemmQuads, 1, JoinRows, JoinPairs, ConvolveQuads, StartTile}};
  return &kProducts;
}

}  // namespace npu::emulator

#else  // Another architecture, or a build without the flags of this file.

namespace npu::emulator {

const IntegerProducts* VnniProducts() { return nullptr; }

}  // namespace npu::emulator

#endif
