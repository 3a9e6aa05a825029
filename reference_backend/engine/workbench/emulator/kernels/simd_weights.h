// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_weights.h
 * \brief Weights of integers in products of real numbers. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_WEIGHTS_H_
#define EMULATOR_KERNELS_SIMD_WEIGHTS_H_

// Offsets inside of a panel fit into int.
// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result)

constexpr int kPanelVectors = kPanelColumns / kLanes;

// A row of a panel of weights as int32.
template <typename T, int kBits>
inline void WidenWeights(const char* data, VI* row) {
  if constexpr (kBits == 8) {
    SIMD_UNROLL
    for (int v = 0; v < kPanelVectors; ++v) row[v] = Widen<T>(data + v * kLanes);
  } else {
    // The sign bit of four bits is worth 8.
    constexpr int kSign = T(-1) < 0 ? 8 : 0;
    SIMD_UNROLL
    for (int v = 0; v < kPanelVectors / 2; ++v) {
      VI both = Widen<uint8_t>(data + v * kLanes);
      row[v] = ((both & 15) ^ kSign) - kSign;
      row[v + kPanelVectors / 2] = ((both >> 4) ^ kSign) - kSign;
    }
  }
}

template <typename T, int kBits>
struct WeighRows {
  static void Run(const char* data, int64_t rows, const float* zeros, const float* scales,
                  float* out) {
    V zero[kPanelVectors], scale[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      zero[v] = Load(zeros + v * kLanes);
      scale[v] = Load(scales + v * kLanes);
    }
    for (int64_t k = 0; k < rows; ++k, out += kPanelColumns) {
      VI row[kPanelVectors];
      WidenWeights<T, kBits>(data + k * kPanelColumns * kBits / 8, row);
      SIMD_UNROLL
      for (int v = 0; v < kPanelVectors; ++v) {
        Store((__builtin_convertvector(row[v], V) - zero[v]) * scale[v], out + v * kLanes);
      }
    }
  }
};

template <typename T, int kBits>
struct WeighRow {
  static void Run(const char* data, int64_t rows, const float* zeros, const float* scales,
                  const float* a, float* sums) {
    // As many sums as hide the latency of an addition.
    constexpr int kStreams = kPanelVectors < 8 ? 8 / kPanelVectors : 1;
    VI zero[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      zero[v] = __builtin_convertvector(Load(zeros + v * kLanes), VI);
    }
    V sum[kStreams][kPanelVectors] = {};
    auto add = [&](int64_t k, int s) {
      VI row[kPanelVectors];
      WidenWeights<T, kBits>(data + k * kPanelColumns * kBits / 8, row);
      V factor = Splat(a[k * kPanelRows]);
      SIMD_UNROLL
      for (int v = 0; v < kPanelVectors; ++v) {
        sum[s][v] = Fma(__builtin_convertvector(row[v] - zero[v], V), factor, sum[s][v]);
      }
    };
    int64_t k = 0;
    for (; k + kStreams <= rows; k += kStreams) {
      SIMD_UNROLL
      for (int s = 0; s < kStreams; ++s) add(k + s, s);
    }
    for (; k < rows; ++k) add(k, 0);
    for (int v = 0; v < kPanelVectors; ++v) {
      for (int s = 1; s < kStreams; ++s) sum[0][v] += sum[s][v];
      float* to = sums + v * kLanes;
      Store(Fma(sum[0][v], Load(scales + v * kLanes), Load(to)), to);
    }
  }
};

// Calls the loop for a type and a number of bits.
template <template <typename, int> class How, typename... Arguments>
inline void OfWeights(npu_dtype dtype, int bits, const void* data, Arguments... arguments) {
  const char* bytes = static_cast<const char*>(data);
  if (dtype == NPU_INT8) {
    if (bits == 4) return How<int8_t, 4>::Run(bytes, arguments...);
    return How<int8_t, 8>::Run(bytes, arguments...);
  }
  if (bits == 4) return How<uint8_t, 4>::Run(bytes, arguments...);
  How<uint8_t, 8>::Run(bytes, arguments...);
}

void Weigh(npu_dtype dtype, int bits, const void* data, int64_t rows, const float* zeros,
           const float* scales, float* out) {
  OfWeights<WeighRows>(dtype, bits, data, rows, zeros, scales, out);
}

void MultiplyWeights(npu_dtype dtype, int bits, const void* data, int64_t rows, const float* zeros,
                     const float* scales, const float* a, float* sums) {
  OfWeights<WeighRow>(dtype, bits, data, rows, zeros, scales, a, sums);
}

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

#endif  // EMULATOR_KERNELS_SIMD_WEIGHTS_H_
