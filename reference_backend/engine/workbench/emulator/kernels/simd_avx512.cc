// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_avx512.cc
 * \brief Inner loops for AVX-512 F, BW, DQ and VL (512-bit vectors).
 */
#include "simd.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#define SIMD_BYTES 64
#include "simd_loops.h"

namespace npu::emulator {

const Simd* Avx512Simd() {
  static constexpr Simd kSimd = Table("avx512");
  return &kSimd;
}

}  // namespace npu::emulator

#else  // Another architecture, or a build without the flags of this file.

namespace npu::emulator {

const Simd* Avx512Simd() { return nullptr; }

}  // namespace npu::emulator

#endif
