// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_avx2.cc
 * \brief Inner loops for AVX2, FMA and F16C (256-bit vectors).
 */
#include "simd.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define SIMD_BYTES 32
#include "simd_loops.h"

namespace npu::emulator {

const Simd* Avx2Simd() {
  static constexpr Simd kSimd = Table("avx2");
  return &kSimd;
}

}  // namespace npu::emulator

#else  // Another architecture, or a build without the flags of this file.

namespace npu::emulator {

const Simd* Avx2Simd() { return nullptr; }

}  // namespace npu::emulator

#endif
