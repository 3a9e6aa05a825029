// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_loops.h
 * \brief The inner loops, for vectors of SIMD_BYTES bytes; see simd.h for what they compute.
 *
 * Written with the vector extensions of GCC and Clang; intrinsics only for the few things that
 * these lack.
 */
#include <type_traits>

#include "simd.h"

#if SIMD_BYTES > 16 || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define SIMD_UNROLL _Pragma("unroll")
#else
#define SIMD_UNROLL _Pragma("GCC unroll 16")
// Functions that pass vectors have internal linkage, so no other code depends on their ABI.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace npu::emulator {

namespace {

// clang-format off: each needs those before it.
#include "simd_vectors.h"
#include "simd_functions.h"
#include "simd_conversions.h"
#include "simd_sums.h"
#include "simd_moves.h"
#include "simd_finish.h"
#include "simd_gemm.h"
#if SIMD_BYTES >= 32
#include "simd_depthwise.h"
#else
constexpr decltype(Simd::plane) ConvolvePlane = nullptr;
#endif
#include "simd_pairs.h"
#include "simd_weights.h"
#include "simd_rescale.h"
#include "simd_programs.h"
#include "simd_rows.h"
// clang-format on

constexpr Simd Table(const char* name) {
  return {name,          SIMD_BYTES >= 32 ? kMostRows : kPanelRows,
          Gemm,          Dot,
          Taps,          Gather,
          Transpose,     Take,
          LoadElements,  StoreElements,
          Fill,          Spread,
          Apply,         GemmPairs,
          Pair,          Join,
          WidenHalves,   Chain,
          LoadAsInt32,   StoreFromInt32,
          ApplyInt32,    Requantize,
          Weigh,         MultiplyWeights,
          FinishRows,    ReduceElements,
          ConvolvePlane, SoftmaxRows,
          VariancesOf,   Normalize};
}

}  // namespace

}  // namespace npu::emulator
