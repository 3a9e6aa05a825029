// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_generic.cc
 * \brief Inner loops for the processor's baseline (128-bit vectors).
 */
#define SIMD_BYTES 16
#include "simd_loops.h"

namespace npu::emulator {

const Simd* GenericSimd() {
  static constexpr Simd kSimd = Table("generic");
  return &kSimd;
}

}  // namespace npu::emulator
