// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_avx512vnni.cc
 * \brief Inner loops for AVX-512 with its dot products of integers (VNNI).
 */
#include "simd.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)

#define SIMD_BYTES 64
#include "simd.inc"

namespace npu::emulator {

const Simd* Avx512VnniSimd() {
  static constexpr Simd kSimd = Table("avx512vnni");
  return &kSimd;
}

}  // namespace npu::emulator

#else  // Another architecture, or a build without the flags of this file.

namespace npu::emulator {

const Simd* Avx512VnniSimd() { return nullptr; }

}  // namespace npu::emulator

#endif
