// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_rows.h
 * \brief Loops that make a number of each row. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_ROWS_H_
#define EMULATOR_KERNELS_SIMD_ROWS_H_

// Elements from index `i` on, all of a vector or `count` of them.
struct Plainly {
  const float* data;
  V operator()(int64_t i) const { return Load(data + i); }
  V operator()(int64_t i, int64_t count) const { return LoadPart(data + i, count); }
};

// Combines the elements that `get` returns; asks for each once.
template <typename Combine, typename Get>
__attribute__((always_inline)) inline float ReduceWith(Combine combine, float neutral, Get get,
                                                       int64_t count) {
  constexpr int kStreams = 4;
  constexpr int64_t kStretch = int64_t{kStreams} * kLanes;
  V sum = Splat(neutral);
  int64_t i = 0;
  if (count >= kStretch) {
    V sums[kStreams];
    SIMD_UNROLL
    for (int s = 0; s < kStreams; ++s) sums[s] = get(int64_t{s} * kLanes);
    for (i = kStretch; i + kStretch <= count; i += kStretch) {
      SIMD_UNROLL
      for (int s = 0; s < kStreams; ++s) sums[s] = combine(sums[s], get(i + int64_t{s} * kLanes));
    }
    sum = combine(combine(sums[0], sums[1]), combine(sums[2], sums[3]));
  }
  for (; i + kLanes <= count; i += kLanes) sum = combine(sum, get(i));
  if (i < count) {
    V part = get(i, count - i);
    V rest = Splat(neutral);
    __builtin_memcpy(&rest, &part, static_cast<size_t>(count - i) * sizeof(float));
    sum = combine(sum, rest);
  }
  float lanes[kLanes];
  Store(sum, lanes);
  V4 four = LoadAs<V4>(lanes);
  for (int lane = 4; lane < kLanes; lane += 4) four = combine(four, LoadAs<V4>(lanes + lane));
  return combine(combine(four[0], four[1]), combine(four[2], four[3]));
}

float ReduceElements(npu_vector_opcode opcode, const float* data, int64_t count) {
  const Plainly get = {data};
  switch (opcode) {
    case NPU_VECTOR_MAXIMUM:
      return ReduceWith([](auto a, auto b) { return Maximum(a, b); }, data[0], get, count);
    case NPU_VECTOR_MINIMUM:
      return ReduceWith([](auto a, auto b) { return Minimum(a, b); }, data[0], get, count);
    case NPU_VECTOR_MULTIPLY:
      return ReduceWith([](auto a, auto b) { return a * b; }, 1, get, count);
    default:
      return ReduceWith([](auto a, auto b) { return a + b; }, 0, get, count);
  }
}

// A function of elements, computed on request and stored.
template <typename Function>
struct Stored {
  Function of;
  const float* data;
  float* out;
  V operator()(int64_t i) const {
    V value = of(Load(data + i));
    Store(value, out + i);
    return value;
  }
  V operator()(int64_t i, int64_t count) const {
    V value = of(LoadPart(data + i, count));
    StorePart(value, count, out + i);
    return value;
  }
};

// Stores a function of elements, and returns the sum of its results.
template <typename Function>
float StoreAndSum(Function of, const float* data, int64_t count, float* out) {
  const Stored<Function> get = {of, data, out};
  return ReduceWith([](auto a, auto b) { return a + b; }, 0, get, count);
}

// With `kInside`, no exponential is as small as a number that is not normal.
template <bool kInside>
float SumOfExponentials(const float* data, float maximum, int64_t count, float* out) {
  auto of = [=](V x) __attribute__((always_inline)) {
    return kInside ? ExpInside(x - maximum) : Exp(x - maximum);
  };
  return StoreAndSum(of, data, count, out);
}

// An exponential by their sum; a division would take several times as long. The first is at most 1
// and the second at least 1, so the product with the inverse, corrected by the remainder, is the
// rounded quotient, except for quotients so small that the remainder is subnormal: they may be off
// by one bit. Without a fused product, the remainder would be lost.
inline V Quotient(V value, V sum, V inverse) {
#if SIMD_BYTES >= 32
  V quotient = value * inverse;
  return Fma(Fma(-quotient, sum, value), inverse, quotient);
#else
  (void)inverse;
  return value / sum;
#endif
}

// The maximum of a row, and whether its exponentials are normal numbers.
bool HasMaximumNear(const float* data, int64_t count, float* maximum) {
#if SIMD_BYTES >= 32
  const Plainly get = {data};
  auto reduce = [&](auto combine, float neutral) {
    return ReduceWith(combine, neutral, get, count);
  };
  *maximum = reduce([](auto a, auto b) { return Greater(a, b); }, data[0]);
  const float minimum = reduce([](auto a, auto b) { return Less(a, b); }, data[0]);
  const float sum = reduce([](auto a, auto b) { return a + b; }, 0);
  // These two let NaN pass; it is in the sum.
  if (*maximum - minimum < 87 && sum == sum) return true;
#endif
  *maximum = ReduceElements(NPU_VECTOR_MAXIMUM, data, count);
  return false;
}

void SoftmaxRows(const float* data, int64_t rows, int64_t columns, float* maxima,
                 float* exponentials, float* sums, float* quotients) {
  // Of several rows at once: a row's last steps then do not keep the next row waiting.
  constexpr int64_t kRows = 4;
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = Minimum<int64_t>(kRows, rows - first);
    float inverses[kRows];
    bool inside[kRows] = {};
    for (int64_t row = 0; row < count; ++row) {
      inside[row] = HasMaximumNear(data + row * columns, columns, &maxima[first + row]);
    }
    for (int64_t row = 0; row < count; ++row) {
      const float* from = data + row * columns;
      float* to = exponentials + row * columns;
      sums[first + row] = inside[row]
                              ? SumOfExponentials<true>(from, maxima[first + row], columns, to)
                              : SumOfExponentials<false>(from, maxima[first + row], columns, to);
    }
    for (int64_t row = 0; row < count; ++row) inverses[row] = 1 / sums[first + row];
    for (int64_t row = 0; row < count && quotients != nullptr; ++row) {
      const float* from = exponentials + row * columns;
      float* to = quotients + row * columns;
      const V sum = Splat(sums[first + row]), inverse = Splat(inverses[row]);
      int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) {
        Store(Quotient(Load(from + i), sum, inverse), to + i);
      }
      if (i == columns) continue;
      StorePart(Quotient(LoadPart(from + i, columns - i), sum, inverse), columns - i, to + i);
    }
    data += count * columns;
    exponentials += count * columns;
    if (quotients != nullptr) quotients += count * columns;
  }
}

void VariancesOf(const float* data, int64_t rows, int64_t columns, float* means, float* squares,
                 float* variances) {
  const auto divisor = static_cast<float>(columns);
  for (int64_t row = 0; row < rows; ++row) {
    means[row] = ReduceElements(NPU_VECTOR_ADD, data + row * columns, columns) / divisor;
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float mean = means[row];
    auto of = [=](V x) __attribute__((always_inline)) { return (x - mean) * (x - mean); };
    const int64_t first = row * columns;
    variances[row] = StoreAndSum(of, data + first, columns, squares + first) / divisor;
  }
}

void Normalize(const float* data, int64_t count, float mean, float factor, const float* gamma,
               const float* beta, int step, float* out) {
  auto run = [&](auto same) __attribute__((always_inline)) {
    constexpr bool kSame = decltype(same)::value;
    const V one_gamma = Splat(gamma[0]), one_beta = Splat(beta[0]);
    auto normal = [&](V x, V scale, V shift) __attribute__((always_inline)) {
      return (x - mean) * factor * scale + shift;
    };
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V scale = kSame ? one_gamma : Load(gamma + i), shift = kSame ? one_beta : Load(beta + i);
      Store(normal(Load(data + i), scale, shift), out + i);
    }
    if (i == count) return;
    const int64_t rest = count - i;
    V scale = kSame ? one_gamma : LoadPart(gamma + i, rest);
    V shift = kSame ? one_beta : LoadPart(beta + i, rest);
    StorePart(normal(LoadPart(data + i, rest), scale, shift), rest, out + i);
  };
  step == 0 ? run(std::true_type()) : run(std::false_type());
}

#endif  // EMULATOR_KERNELS_SIMD_ROWS_H_
