// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd.h
 * \brief Inner loops, compiled once for each instruction set.
 *
 * Translation units of instruction sets must not make inline functions that others could share: the
 * linker keeps any one copy, and the processor may not have its instructions. So this header and
 * simd_loops.h use no C++ standard library beyond types.
 */
#ifndef EMULATOR_KERNELS_SIMD_H_
#define EMULATOR_KERNELS_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "npu_driver.h"

namespace npu::emulator {

/*!
 * \name Packed operands of a matrix product
 * The left one is cut to panels of 8 rows, which hold 8 values for each step of the depth; the
 * right one to panels of 32 columns likewise. Missing rows and columns are zeros. A product of
 * integers has the same panels, but a value is a pair: two steps of the depth as two int16, the
 * first in the lower half. Whatever holds floats may hold pairs or int32 then.
 * @{
 */
constexpr int kPanelRows = 8;
constexpr int kPanelColumns = 32;
/*! @} */

/*! \brief The most rows of a tile that loops compute at once. */
constexpr int kMostRows = 3 * kPanelRows;

/*! \brief Floats that loops may read and write after the end of scratch buffers. */
constexpr int kSlack = 64;

/*! \brief What `Simd::taps` does with the elements of a window. */
enum class Tap { kMultiplyAdd, kAdd, kMaximum, kMultiplyAddPairs };

/*! \brief Columns `column`... of a panel are elements `base`... of a row of the source. */
struct Segment {
  int64_t base;
  int32_t column;
  int32_t count;
};

/*! \brief An operand of an instruction: element i is data[i & mask]. The mask is -1, or 0 for the
 *  same number everywhere, which is then stored kSplat times. */
struct VectorOperand {
  const float* data = nullptr;
  int64_t mask = -1;
};
constexpr int kSplat = 64;

/*! \brief Turns sums of a product into elements of 8 bits: sum + bias, rescaled, plus the zero
 *  point, limited to `least` and `most`. All of it is in int32. */
struct Requantization {
  /*! \brief One for each channel; there are kSlack more. */
  int32_t* bias = nullptr;
  int32_t* multiplier = nullptr;
  int32_t* shift = nullptr;
  npu_rounding rounding = NPU_ROUND_HALF_UP;
  /*! \brief Shifts are 32 to 53 and the zero point has 9 bits, which takes less work. */
  bool high = false;
  /*! \brief If high and by row: the bias times the multiplier, and the zero point and a half before
   * the shift. Products with a sum and these are added as 64 bits. */
  int64_t* addend = nullptr;
  /*! \brief The limits are those of int8. */
  bool saturates = false;
  /*! \brief Whether columns are channels; otherwise rows are. */
  bool by_column = false;
  /*! \brief All rows are of one channel. */
  bool one_channel = false;
  int32_t zero_point = 0, least = INT32_MIN, most = INT32_MAX;
};

/*! \brief The most common end of a matrix product: sum + first + second, then limited. Element c of
 *  row r is first[r * first_row + c * first_step], where a step is 0 or 1. A missing operand is -0
 *  or an infinity, which change nothing. */
struct Finish {
  const float* first = nullptr;
  const float* second = nullptr;
  int64_t first_row = 0, second_row = 0;
  int first_step = 0, second_step = 0;
  /*! \brief As MAXIMUM and then MINIMUM; not NaN. */
  float least = 0, most = 0;
};

/*! \brief A tile of a product of real numbers: element (i, j) is the sum over k of
 *  left[i / 8 * left_pitch + k * 8 + i % 8] * right[k * right_stride + j]. */
struct ProductTile {
  /*! \brief At most Simd::rows: whole panels, or 8 or less; at most 32. */
  int rows = 0, columns = 0;
  int64_t depth = 0;
  const float* left = nullptr;
  int64_t left_pitch = 0;
  const float* right = nullptr;
  int64_t right_stride = 0;
  /*! \brief Where element (i, j) goes to i * 32 + j, added to what is there if `accumulate`.
   *  Columns up to a whole vector are read and written. */
  float* tile = nullptr;
  bool accumulate = false;
  /*! \brief If not null: sums are finished and stored here, and `tile` may be written. */
  float* out = nullptr;
  int64_t out_stride = 0;
  Finish how = {};
};

/*! \brief The windows of a convolution in two dimensions, and a channel of its data. */
struct Plane {
  int64_t height, width;
  int64_t out_height, out_width;
  int64_t window_height, window_width;
  int64_t pad_top, pad_left;
  int64_t dilation_y, dilation_x;
  /*! \brief The same in both dimensions. */
  int64_t stride;
  /*! \brief Data and weights are whole numbers, and sums less than 2^24: they are stored as int32
   *  and not finished. */
  bool whole = false;

  /*! \brief Whether Simd::plane has a loop for such windows. */
  bool HasLoop() const {
    return window_height == window_width && (window_width == 3 || window_width == 5) &&
           (stride == 1 || stride == 2);
  }
};

/*! \brief See QuadProducts::plane. */
constexpr int64_t kPlaneTaps = 8;

/*! \brief Lines of the output that loops for planes compute at once. Planes of image models have
 *  multiples of it: 7, 14, 28, 56, 112. */
constexpr int kPlaneLines = 7;

/*! \brief Loops for products of quads: a value in a panel is four steps of the depth as elements
 *  of 8 bits, signed ones in the left operand and unsigned ones in the right operand. Elements of
 *  the other type have their sign bit flipped, which moves their zero point by 128. */
struct QuadProducts {
  /*! \brief As Simd::gemm of a panel. Sums are int32 and wrap. */
  void (*gemm)(int rows, int columns, int64_t depth, const float* a, const float* b, int64_t ldb,
               float* tile, bool accumulate);
  /*! \brief Steps of the depth in a block of a left panel, which is stored row by row; 1: no
   *  blocks. */
  int block;
  /*! \brief Makes quads of the elements in four rows; those of a null row are `missing`. With
   *  `turn`, sign bits are flipped. */
  void (*join)(const uint8_t* const* rows, int64_t count, uint8_t missing, bool turn, float* out);
  /*! \brief Makes quads of successive rows of `count` pairs of elements, a multiple of 8. */
  void (*join_pairs)(const uint8_t* pairs, int64_t rows, int64_t count, bool turn, float* out);
  /*! \brief Sums of the windows of one channel, less its zero point, which is `missing`: lines
   *  [top, top + lines) of the output, without gaps. Rows of the window have at most kPlaneTaps
   *  elements without dilation, and strides are 1 or 2. Sign bits are flipped on request. */
  void (*plane)(const Plane& plane, const uint8_t* data, bool turn, uint8_t missing,
                const uint8_t* weights, bool turn_weights, int64_t top, int64_t lines, float* out);
  /*! \brief tile[i * 32 + j] = rows[i] + columns[j]. Without `rows`, adds to the tile instead;
   *  without `columns`, 0. */
  void (*start)(int rows, const int32_t* of_rows, const int32_t* of_columns, float* tile);
  /*! \brief A faster product for operands of less than `deep` steps. */
  const QuadProducts* shallow = nullptr;
  int64_t deep = 0;

  const QuadProducts& For(int64_t depth) const { return depth < deep ? *shallow : *this; }
};

/*! \brief One instruction of a vector program (not a load, not a constant), element by element, as
 *  driver_kit/vector_opcodes.h defines it: what Simd::apply does where it has no vectors. */
void ApplyEach(npu_vector_opcode opcode, const VectorOperand& a, const VectorOperand& b,
               const VectorOperand& c, int64_t count, float* out);

/*! \brief The inner loops of one instruction set. Buffers may overlap only where stated. */
struct Simd {
  const char* name;

  /*! \brief The most rows of a product of real numbers: 8 or kMostRows. */
  int rows;
  void (*gemm)(const ProductTile& product);
  /*! \brief Sum of a[k] * b[k]. */
  float (*dot)(int64_t depth, const float* a, const float* b);
  /*! \brief out[i] = over all t, weights[t] * data[offsets[t] + i] and so on. Whole vectors are
   * read and written. `weights` is for products only. `taps` is at least 1. */
  void (*taps)(Tap kind, int64_t taps, const int64_t* offsets, const float* weights,
               const float* data, int64_t count, float* out);
  /*! \brief panel[k * 32 + column + i] = data[offsets[k] + base + i] for each segment. Unless
   *  `exact`, whole vectors are read and written. */
  void (*gather)(int64_t depth, const int64_t* offsets, int segments, const Segment* segment,
                 bool exact, const float* data, float* panel);
  /*! \brief out[c * out_stride + r] = data[r * data_stride + c]. */
  void (*transpose)(int64_t rows, int64_t columns, const float* data, int64_t data_stride,
                    float* out, int64_t out_stride);
  /*! \brief out[l * out_stride + i] = data[l * line_stride + i * stride] for each line l. */
  void (*take)(int64_t lines, int64_t count, const float* data, int64_t line_stride, int64_t stride,
               float* out, int64_t out_stride);
  /*! \brief Converts elements to float32. */
  void (*load)(npu_dtype dtype, const void* data, int64_t count, float* out);
  /*! \brief Converts float32 to elements. */
  void (*store)(npu_dtype dtype, const float* data, int64_t count, void* out);
  /*! \brief out[i] = value. */
  void (*fill)(float value, int64_t count, float* out);
  /*! \brief tile[i * 32 + j] = values[i] for all 32 columns. */
  void (*spread)(int64_t rows, const float* values, float* tile);
  /*! \brief One instruction of a vector program (not a load, not a constant). `out` may be an
   *  operand. */
  void (*apply)(npu_vector_opcode opcode, const VectorOperand& a, const VectorOperand& b,
                const VectorOperand& c, int64_t count, float* out);
  /*! \brief As gemm of a panel, with pairs: each is a[0] * b[0] + a[1] * b[1]. Sums are int32 and
   *  wrap. */
  void (*gemm_pairs)(int rows, int columns, int64_t depth, const float* a, const float* b,
                     int64_t ldb, float* tile, bool accumulate);
  /*! \brief Makes pairs of elements of int8 or uint8 in two rows, less `zero`. Without `high` the
   *  second half is 0. */
  void (*pair)(npu_dtype dtype, const void* low, const void* high, int64_t count, int32_t zero,
               float* out);
  /*! \brief The same for neighbours in one row, 2 * count of them. */
  void (*join)(npu_dtype dtype, const void* data, int64_t count, int32_t zero, float* out);
  /*! \brief Expands 4-bit numbers, two in a byte, to elements of int8 or uint8; see Halve. */
  void (*widen)(npu_dtype dtype, const uint8_t* halves, int64_t count, uint8_t* out);
  /*! \brief Sets the second half of each pair to the first half of the next one; before, it is 0.
   */
  void (*chain)(int64_t count, float* out);
  /*! \brief Converts elements of integers to int32. */
  void (*load_integers)(npu_dtype dtype, const void* data, int64_t count, float* out);
  /*! \brief Stores the low bits of each int32; as a bool, whether it is not 0. */
  void (*store_integers)(npu_dtype dtype, const float* data, int64_t count, void* out);
  /*! \brief As apply, in int32, for those opcodes that IntervalOf of integers.cc knows. */
  void (*apply_integers)(const npu_vector_instruction& instruction, const VectorOperand& a,
                         const VectorOperand& b, const VectorOperand& c, int64_t count, float* out);
  /*! \brief Requantizes rows of int32, `stride` apart, whose first channel is `channel`. Whole
   * vectors of each row are read. */
  void (*requantize)(const Requantization& how, const float* sums, int64_t rows, int64_t stride,
                     int64_t columns, int64_t channel, uint8_t* out, int64_t out_stride);
  /*! \brief Rows of a panel of weights, 32 elements of int8 or uint8, as real numbers: column c
   * less zeros[c], times scales[c]. With 4 bits, column c is the low half of byte c, and column c +
   * 16 the high half. */
  void (*weigh)(npu_dtype dtype, int bits, const void* data, int64_t rows, const float* zeros,
                const float* scales, float* out);
  /*! \brief sums[c] += scales[c] * the sum over all rows k of a[k * 8] * (column c - zeros[c]). */
  void (*weigh_row)(npu_dtype dtype, int bits, const void* data, int64_t rows, const float* zeros,
                    const float* scales, const float* a, float* sums);
  /*! \brief Stores rows of sums, `stride` apart. */
  void (*finish)(const Finish& how, const float* sums, int64_t rows, int64_t stride,
                 int64_t columns, float* out, int64_t out_stride);
  /*! \brief Combines elements with ADD, MULTIPLY, MAXIMUM or MINIMUM; `count` is at least 1. */
  float (*reduce)(npu_vector_opcode opcode, const float* data, int64_t count);
  /*! \brief Convolves one channel and finishes it as a row; for windows that have a loop. Null if
   * the processor cannot load parts of vectors. */
  void (*plane)(const Plane& plane, const float* data, const float* weights, const Finish& how,
                float* out);
  /*! \brief Computes for each row its maximum, the exponentials of its elements minus that maximum,
   *  their sum and, unless `quotients` is null, the quotients of exponentials and sum. `columns` is
   *  at least 1. Exponentials may replace the data, quotients either of them, and sums the maxima.
   */
  void (*softmax)(const float* data, int64_t rows, int64_t columns, float* maxima,
                  float* exponentials, float* sums, float* quotients);
  /*! \brief Computes for each row its mean, the squares of its elements minus that mean, and their
   *  mean. `columns` is at least 1. */
  void (*variances)(const float* data, int64_t rows, int64_t columns, float* means, float* squares,
                    float* variances);
  /*! \brief out[i] = (data[i] - mean) * factor * gamma[i * step] + beta[i * step], where the step
   * is 0 or 1. `out` may be the data. */
  void (*normalize)(const float* data, int64_t count, float mean, float factor, const float* gamma,
                    const float* beta, int step, float* out);
  /*! \brief Null if the processor has no instructions for them. */
  const QuadProducts* quads = nullptr;
};

/*! \brief The loops of one instruction set; null if they are not in this build. */
const Simd* GenericSimd();
const Simd* Avx2Simd();
const Simd* Avx512Simd();

/*! \brief VNNI's changes to AVX-512's loops. */
struct IntegerProducts {
  decltype(Simd::taps) taps;
  decltype(Simd::gemm_pairs) gemm_pairs;
  QuadProducts quads;
};
const IntegerProducts* VnniProducts();

/*! \brief The product of quads with AMX, and its QuadProducts::block; null if it is not in this
 *  build. */
decltype(QuadProducts::gemm) AmxGemm();
constexpr int kAmxBlock = 16;

/*! \brief The best loops of this processor, or the choice of SelectSimd. */
const Simd& ActiveSimd();
/*! \brief For tests: activates the set of this name from now on; false if the processor or the
 *  build lacks it. */
bool SelectSimd(const char* name);

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_SIMD_H_
