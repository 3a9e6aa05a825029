// SPDX-License-Identifier: Apache-2.0
/*!
 * \file products.cc
 * \brief Matmul and Convolution of integers.
 *
 * Elements of 8 bits, less their zero points, fit into int16. Two steps of the depth are a pair,
 * which instructions of all processors multiply and add at once, exactly; see simd.h. So products
 * are those of real numbers, with pairs for floats: the same panels, tiles and planes. Padding and
 * missing elements at the edges are zeros after the subtraction. Some processors multiply four
 * steps at once, as elements of 8 bits: there, quads are used like pairs; see quads.h.
 */
#include "products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "gemm.h"
#include "integers.h"
#include "internal.h"
#include "quads.h"
#include "windows.h"

namespace npu::emulator {

namespace {

int64_t PairsOf(int64_t depth) { return CeilDivide(depth, 2); }

// The values of a type's elements, less the zero point.
Interval FactorsOf(npu_dtype dtype, int32_t zero_point) {
  int64_t low = dtype == NPU_INT8 ? INT8_MIN : 0;
  return {low - zero_point, low + UINT8_MAX - zero_point};
}

// The possible sums of this many products.
Interval SumsOf(const Interval& a, const Interval& b, int64_t depth) {
  int64_t largest_a = std::max(-a.low, a.high);
  int64_t largest_b = std::max(-b.low, b.high);
  // With more, they wrap anyway.
  int64_t largest = largest_a * largest_b * std::min<int64_t>(depth, INT32_MAX);
  return {-largest, largest};
}

// ---- Results ----

// Finds the programs that Simd::requantize computes.
class Recognizer {
 public:
  // Rows or columns of the result are `channels`; `memory` has room for Floats(channels).
  Recognizer(const VectorProgram& program, const TensorView& out, int64_t channels, bool by_column,
             int32_t* memory)
      : program_(program), out_(out), channels_(channels) {
    int64_t room = channels + kSlack;
    how.addend = reinterpret_cast<int64_t*>(memory);
    how.bias = memory + 2 * room;
    how.multiplier = memory + 3 * room;
    how.shift = memory + 4 * room;
    how.by_column = by_column;
  }

  static int64_t Floats(int64_t channels) { return 5 * (channels + kSlack); }

  bool Run() {
    if (out_.dtype != NPU_INT8 && out_.dtype != NPU_UINT8) return false;
    for (int32_t i = 0; i < program_.instruction_count; ++i) {
      const npu_vector_instruction& instruction = program_.instructions[i];
      bool parameter = instruction.opcode == NPU_VECTOR_CONSTANT ||
                       (instruction.opcode == NPU_VECTOR_LOAD && instruction.a != 0);
      if (parameter) continue;
      if (!Step(instruction)) return false;
      chain_ = i;
    }
    if (stage_ < kRescaled || chain_ != program_.instruction_count - 1) return false;
    if (!has_bias_) std::fill_n(how.bias, channels_ + kSlack, 0);
    int32_t least = *std::min_element(how.shift, how.shift + channels_);
    int32_t most = *std::max_element(how.shift, how.shift + channels_);
    how.saturates = out_.dtype == NPU_INT8 && how.least == INT8_MIN && how.most == INT8_MAX;
    how.high = least >= 32 && most <= 53 && how.zero_point > -256 && how.zero_point < 256;
    const bool adds = how.high && !how.by_column;
    for (int64_t i = 0; adds && i < channels_; ++i) {
      how.addend[i] = int64_t{how.bias[i]} * how.multiplier[i] +
                      (int64_t{1} << (how.shift[i] - 1)) +
                      how.zero_point * (int64_t{1} << how.shift[i]);
    }
    return true;
  }

  Requantization how;

 private:
  // The step that the values after the sum have reached.
  enum Stage { kNothing, kSum, kBiased, kRescaled, kMoved, kLimited };

  bool Step(const npu_vector_instruction& instruction) {
    int32_t a = instruction.a, b = instruction.b;
    switch (instruction.opcode) {
      case NPU_VECTOR_LOAD:
        return Reach(kSum, stage_ == kNothing);
      case NPU_VECTOR_ADD: {
        int32_t other = a == chain_ ? b : a;
        if ((a == chain_) == (b == chain_)) return false;
        if (stage_ == kSum) {
          has_bias_ = true;
          return Read(other, how.bias) && Reach(kBiased, true);
        }
        return Number(other, &how.zero_point) && Reach(kMoved, stage_ == kRescaled);
      }
      case NPU_VECTOR_RESCALE:
        how.rounding = static_cast<npu_rounding>(instruction.immediate);
        return a == chain_ && Read(b, how.multiplier) && Read(instruction.c, how.shift) &&
               Reach(kRescaled, stage_ == kSum || stage_ == kBiased);
      case NPU_VECTOR_MAXIMUM:
      case NPU_VECTOR_MINIMUM: {
        int32_t other = a == chain_ ? b : a;
        int32_t limit = 0;
        if ((a == chain_) == (b == chain_) || !Number(other, &limit)) return false;
        auto apply = [&](int32_t value) {
          return instruction.opcode == NPU_VECTOR_MAXIMUM ? std::max(value, limit)
                                                          : std::min(value, limit);
        };
        how.least = apply(how.least);
        how.most = apply(how.most);
        return Reach(kLimited, stage_ >= kRescaled);
      }
      default:
        return false;
    }
  }

  bool Reach(Stage stage, bool allowed) {
    stage_ = stage;
    return allowed;
  }

  // A parameter that is one number.
  bool Number(int32_t value, int32_t* number) const {
    if (value < 0 || value == chain_) return false;
    const npu_vector_instruction& instruction = program_.instructions[value];
    if (instruction.opcode != NPU_VECTOR_CONSTANT) return false;
    *number = static_cast<int32_t>(std::llround(instruction.immediate));
    return true;
  }

  // A parameter that is a number, or one for each channel.
  bool Read(int32_t value, int32_t* all) const {
    int32_t number = 0;
    if (Number(value, &number)) {
      std::fill_n(all, channels_ + kSlack, number);
      return true;
    }
    if (value < 0 || value == chain_) return false;
    const npu_vector_instruction& instruction = program_.instructions[value];
    if (instruction.opcode != NPU_VECTOR_LOAD || instruction.a == 0) return false;
    const TensorView& tensor = program_.inputs[instruction.a];
    auto* floats = reinterpret_cast<float*>(all);
    if (ElementCount(tensor) == 1) {
      ActiveSimd().load_integers(tensor.dtype, tensor.data, 1, floats);
      std::fill_n(all + 1, channels_ + kSlack - 1, all[0]);
      return true;
    }
    int axis = how.by_column ? out_.rank - 1 : 1;
    for (int d = 0; d < tensor.rank; ++d) {
      int64_t wanted = d + out_.rank - tensor.rank == axis ? channels_ : 1;
      if (tensor.dims[d] != wanted) return false;
    }
    ActiveSimd().load_integers(tensor.dtype, tensor.data, channels_, floats);
    std::fill_n(all + channels_, kSlack, 32);
    return true;
  }

  const VectorProgram& program_;
  const TensorView& out_;
  int64_t channels_;
  Stage stage_ = kNothing;
  bool has_bias_ = false;
  // The last value that depends on the sum.
  int32_t chain_ = -1;
};

// Sums in int32 on their way through the epilogue.
class SumStore : public TileStore {
 public:
  // The result's rows, or columns (`by_column`), are `channels`; see Recognizer for `memory`.
  SumStore(const VectorProgram& epilogue, const TensorView& out, int64_t row_length,
           const Interval& sums, int64_t channels, bool by_column, int32_t* memory)
      : simd_(ActiveSimd()),
        integers_(IsIntegerEpilogue(epilogue, out.dtype)),
        // Sums that are stored unchanged have wrapped already.
        fits_(integers_ && (epilogue.instruction_count == 0 || FitsInt32(epilogue, sums, true))),
        row_length_(row_length),
        channels_(channels),
        narrow_(epilogue, out, row_length, fits_),
        wide_(epilogue, out) {
    Recognizer recognizer(epilogue, out, channels, by_column, memory);
    requantizes_ = fits_ && recognizer.Run();
    how_ = recognizer.how;
    out_ = static_cast<uint8_t*>(out.data);
  }

  // How many floats.
  static int64_t Registers(const VectorProgram& epilogue) {
    return kValues + 2 * Evaluator::Registers(epilogue);
  }

  void Begin(float* registers) const override {
    if (fits_ || !integers_) {
      narrow_.Begin(registers + kValues);
    } else {
      wide_.Begin(reinterpret_cast<int64_t*>(registers + kValues));
    }
  }

  void StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row, int64_t column,
                 float* registers) const override {
    if (requantizes_) return Requantize(tile, rows, columns, row, column);
    if (fits_) return narrow_.StoreTile(tile, rows, columns, row, column, registers + kValues);
    if (integers_) {
      for (int64_t r = 0; r < rows; ++r) {
        StoreWide(tile + r * kPanelColumns, columns, row + r, column, registers);
      }
      return;
    }
    simd_.load(NPU_INT32, tile, rows * kPanelColumns, registers);
    narrow_.StoreTile(registers, rows, columns, row, column, registers + kValues);
  }

  // Lines of one row, `stride` apart; only if StoresLines().
  void StoreLines(const float* sums, int64_t lines, int64_t columns, int64_t stride, int64_t row,
                  int64_t column) const {
    Requantization how = how_;
    how.one_channel = true;
    simd_.requantize(how, sums, lines, stride, columns, row % channels_,
                     out_ + row * row_length_ + column, columns);
  }
  bool StoresLines() const { return requantizes_; }

  // A piece of one row.
  void StoreRun(const float* sums, int64_t count, int64_t row, int64_t column,
                float* registers) const {
    if (requantizes_) return Requantize(sums, 1, count, row, column);
    if (fits_) return narrow_.StoreRun(sums, count, row, column, registers + kValues);
    for (int64_t i = 0; i < count; i += Evaluator::kBlock) {
      int64_t block = std::min(Evaluator::kBlock, count - i);
      if (integers_) {
        StoreWide(sums + i, block, row, column + i, registers);
      } else {
        simd_.load(NPU_INT32, sums + i, block, registers);
        narrow_.StoreRun(registers, block, row, column + i, registers + kValues);
      }
    }
  }

 private:
  // Room for a block of int64.
  static constexpr int64_t kValues = 2 * Evaluator::kBlock;

  void Requantize(const float* sums, int64_t rows, int64_t columns, int64_t row,
                  int64_t column) const {
    simd_.requantize(how_, sums, rows, kPanelColumns, columns,
                     how_.by_column ? column : row % channels_, out_ + row * row_length_ + column,
                     row_length_);
  }

  void StoreWide(const float* sums, int64_t count, int64_t row, int64_t column,
                 float* registers) const {
    auto* values = reinterpret_cast<int64_t*>(registers);
    LoadIntegers(NPU_INT32, sums, count, values);
    wide_.StoreRun(values, count, row * row_length_ + column,
                   reinterpret_cast<int64_t*>(registers + kValues));
  }

  const Simd& simd_;
  // The epilogue is of integers; int32 suffices for it; Simd::requantize computes it.
  bool integers_, fits_, requantizes_ = false;
  int64_t row_length_, channels_;
  Requantization how_;
  uint8_t* out_ = nullptr;
  Evaluator narrow_;
  IntegerEvaluator wide_;
};

// ---- Operands of matmul ----

struct Matrix {
  const char* data;
  npu_dtype dtype;
  int32_t zero_point;
  // Rows of a left operand, columns of a right one.
  int64_t lines, depth;
  // Whether the elements of a line are contiguous, or those of a step of the depth.
  bool lines_dense;
};

Matrix MatrixOf(const TensorView& tensor, bool transposed, bool left, int32_t zero_point) {
  int64_t rows = tensor.dims[tensor.rank - 2];
  int64_t columns = tensor.dims[tensor.rank - 1];
  bool lines_first = left != transposed;
  return {
      static_cast<const char*>(tensor.data), tensor.dtype, zero_point, lines_first ? rows : columns,
      lines_first ? columns : rows,          lines_first};
}

void PackPanel(const Simd& simd, const Matrix& matrix, int width, int64_t index, float* panel) {
  int64_t pairs = PairsOf(matrix.depth);
  int64_t first = index * width;
  int64_t lines = std::min<int64_t>(width, matrix.lines - first);
  if (lines < width) std::fill_n(panel, width * pairs, 0.0f);
  if (!matrix.lines_dense) {
    for (int64_t k = 0; k < pairs; ++k) {
      const char* low = matrix.data + 2 * k * matrix.lines + first;
      const char* high = 2 * k + 1 < matrix.depth ? low + matrix.lines : nullptr;
      simd.pair(matrix.dtype, low, high, lines, matrix.zero_point, panel + k * width);
    }
    return;
  }
  constexpr int64_t kStep = 128;
  float joined[kPanelColumns * kStep];
  for (int64_t k = 0; k < pairs; k += kStep) {
    int64_t count = std::min(kStep, pairs - k);
    int64_t whole = std::min(count, matrix.depth / 2 - k);
    for (int64_t line = 0; line < lines; ++line) {
      const char* from = matrix.data + (first + line) * matrix.depth + 2 * k;
      float* to = joined + line * kStep;
      simd.join(matrix.dtype, from, whole, matrix.zero_point, to);
      if (whole == count) continue;
      simd.pair(matrix.dtype, from + 2 * whole, nullptr, 1, matrix.zero_point, to + whole);
    }
    simd.transpose(lines, count, joined, kStep, panel + k * width, width);
  }
}

void Pack(const Matrix& matrix, int64_t count, int width, const KernelContext& context,
          float* panels) {
  const Simd& simd = ActiveSimd();
  int64_t floats = width * PairsOf(matrix.depth);
  int64_t each = CeilDivide(matrix.lines, width);
  Parallel(context, count * each, Grain(floats), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      Matrix one = matrix;
      one.data += i / each * matrix.lines * matrix.depth;
      PackPanel(simd, one, width, i % each, panels + i * floats);
    }
  });
}

// The same for a panel of quads, padded with the zero point.
void PackQuadPanel(const Simd& simd, const Matrix& matrix, bool left, int64_t index, float* panel) {
  const int width = left ? kPanelRows : kPanelColumns;
  const bool turn = IsTurned(matrix.dtype, left);
  const uint8_t missing = ZeroByte(matrix.zero_point);
  const int64_t quads = CeilDivide(matrix.depth, 4);
  const int64_t first = index * width;
  const int64_t lines = std::min<int64_t>(width, matrix.lines - first);
  auto* data = reinterpret_cast<const uint8_t*>(matrix.data);
  if (lines < width) std::fill_n(panel, width * quads, 0.0f);
  if (!matrix.lines_dense) {
    for (int64_t k = 0; k < quads; ++k) {
      const uint8_t* rows[4];
      for (int64_t r = 0; r < 4; ++r) {
        bool inside = 4 * k + r < matrix.depth;
        rows[r] = inside ? data + (4 * k + r) * matrix.lines + first : nullptr;
      }
      simd.quads->join(rows, lines, missing, turn, panel + k * width);
    }
    return;
  }
  constexpr int64_t kStep = 128;
  uint8_t bytes[kStep * kPanelColumns * 4];
  for (int64_t k = 0; k < quads; k += kStep) {
    const int64_t count = std::min(kStep, quads - k);
    const int64_t whole = std::min(4 * count, matrix.depth - 4 * k);
    for (int64_t line = 0; line < lines; ++line) {
      uint8_t* to = bytes + line * 4 * kStep;
      const uint8_t* from = data + (first + line) * matrix.depth + 4 * k;
      const uint8_t sign = turn ? 0x80 : 0;
      for (int64_t i = 0; i < whole; ++i) to[i] = from[i] ^ sign;
      for (int64_t i = whole; i < 4 * count; ++i) to[i] = missing ^ sign;
    }
    simd.transpose(lines, count, reinterpret_cast<const float*>(bytes), kStep, panel + k * width,
                   width);
  }
}

void PackQuads(const Matrix& matrix, int64_t count, bool left, const KernelContext& context,
               float* panels, int32_t right_zero = 0, int32_t* of_rows = nullptr) {
  const Simd& simd = ActiveSimd();
  const int width = left ? kPanelRows : kPanelColumns;
  const int64_t quads = CeilDivide(matrix.depth, 4);
  const int64_t each = CeilDivide(matrix.lines, width);
  const int32_t left_zero = ZeroOfQuads(matrix.dtype, matrix.zero_point, true);
  Parallel(context, count * each, Grain(width * quads), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      Matrix one = matrix;
      one.data += i / each * matrix.lines * matrix.depth;
      float* panel = panels + i * width * quads;
      PackQuadPanel(simd, one, left, i % each, panel);
      if (!left) continue;
      FinishLeftPanel(simd, quads, left_zero, right_zero, panel, of_rows + i * kPanelRows);
    }
  });
}

// With few rows, summing columns would take as long as the product.
bool HasQuads(int64_t rows, npu_dtype left, int32_t left_zero_point) {
  constexpr int64_t kFewRows = 8;
  return ActiveSimd().quads != nullptr &&
         (rows >= kFewRows || ZeroOfQuads(left, left_zero_point, true) == 0);
}

// The choice of the algorithm, and its memory.
struct MatMulPlan {
  MatMulPlan(const MatMulArgs& args, int threads, Scratch scratch)
      : a(MatrixOf(args.a, args.transpose_a, true, args.a_zero_point)),
        b(MatrixOf(args.b, args.transpose_b, false, args.b_zero_point)),
        batch(BatchCount(args.out)),
        a_count(BatchCount(args.a)),
        b_count(BatchCount(args.b)),
        collapsed(b_count == 1 && a_count == batch && batch > 1 && a.lines_dense) {
    if (collapsed) {
      a.lines *= batch;
      batch = a_count = 1;
    }
    values = HasQuads(a.lines, a.dtype, a.zero_point) ? Values::kQuads : Values::kPairs;
    int64_t steps = values == Values::kQuads ? CeilDivide(a.depth, 4) : PairsOf(a.depth);
    a_floats = PanelFloats(a.lines, steps, kPanelRows);
    b_floats = PanelFloats(b.lines, steps, kPanelColumns);
    b_bytes = 2 * PanelFloats(b.lines, PairsOf(a.depth), kPanelColumns);
    bool packed = args.packed_b != nullptr;
    a_panels = scratch.Take<float>(a_count * a_floats);
    if (!packed) b_panels = scratch.Take<float>(b_count * b_floats);
    a_panel_rows = CeilDivide(a.lines, kPanelRows) * kPanelRows;
    if (values == Values::kQuads) of_rows = scratch.Take<int32_t>(a_count * a_panel_rows);
    gemm = GemmPlan(a.lines, b.lines, steps, batch, nullptr, packed, values,
                    SumStore::Registers(args.epilogue), threads, &scratch);
    parameters = scratch.Take<int32_t>(Recognizer::Floats(b.lines));
    bytes = scratch.used();
  }

  Matrix a, b;
  int64_t batch, a_count, b_count;
  // One product with the rows of all matrices.
  bool collapsed;
  Values values = Values::kPairs;
  int64_t a_floats = 0, b_floats = 0, a_panel_rows = 0;
  // For a matrix that is packed as 8-bit elements.
  int64_t b_bytes = 0;
  float* a_panels = nullptr;
  float* b_panels = nullptr;
  // The addends of rows for a product of quads.
  int32_t* of_rows = nullptr;
  int32_t* parameters = nullptr;
  GemmPlan gemm;
  size_t bytes = 0;
};

// ---- Operands of convolution ----

// Groups of one input channel and few outputs. Packing leaves their weights unchanged.
bool IsDepthwise(const TensorView& weight, int64_t groups) {
  return groups > 1 && weight.dims[1] == 1 && weight.dims[0] <= 4 * groups &&
         ElementCount(weight) > 0;
}

int64_t TapsOf(const TensorView& weight) {
  int64_t taps = 1;
  for (int d = 2; d < weight.rank; ++d) taps *= weight.dims[d];
  return taps;
}

// Pairs of a packed weight: those of two channels, tap by tap.
int64_t WeightPairs(const TensorView& weight, int64_t groups) {
  int64_t depth = PairsOf(weight.dims[1]) * TapsOf(weight);
  return groups * PanelFloats(weight.dims[0] / groups, depth, kPanelRows);
}

void PackWeightBytes(const TensorView& weight, int64_t groups, char* packed) {
  const char* data = static_cast<const char*>(weight.data);
  if (IsDepthwise(weight, groups)) {
    std::copy_n(data, ElementCount(weight), packed);
    return;
  }
  int64_t channels = weight.dims[1];
  int64_t taps = TapsOf(weight);
  int64_t lines = weight.dims[0] / groups;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t first = 0; first < lines; first += kPanelRows) {
      for (int64_t k = 0; k < PairsOf(channels) * taps; ++k) {
        for (int64_t i = 0; i < int64_t{2} * kPanelRows; ++i) {
          int64_t line = first + i / 2;
          int64_t channel = k / taps * 2 + i % 2;
          bool inside = line < lines && channel < channels;
          int64_t at = ((group * lines + line) * channels + channel) * taps + k % taps;
          *packed++ = inside ? data[at] : 0;
        }
      }
    }
  }
}

// Taps of a depthwise convolution, two by two: where the first one reads, and which they are.
struct TapPairs {
  int64_t* offsets = nullptr;
  int64_t* first = nullptr;
  int64_t* second = nullptr;
  int64_t* taken = nullptr;
};

// Whether sums are those of QuadProducts::plane.
bool HasQuadPlanes(const ConvolutionArgs& args, const Windows& windows) {
  return ActiveSimd().quads != nullptr && windows.IsFlat() && windows.window[2] <= kPlaneTaps &&
         windows.dilations[2] == 1 && windows.strides[2] <= 2 &&
         ZeroOfQuads(args.weight.dtype, args.weight_zero_point, true) == 0;
}

// The choice of the algorithm, and its memory.
struct ConvolutionPlan {
  // Sums that a depthwise one computes at once; they stay in the cache.
  static constexpr int64_t kBlock = 2048;

  ConvolutionPlan(const ConvolutionArgs& args, int threads, Scratch scratch)
      : windows(args.data, args.out, args.spatial_rank, args.weight.dims + 2, args.strides,
                args.dilations, args.pads_begin),
        depthwise(IsDepthwise(args.weight, args.groups)),
        plain(windows.taps == 1 && windows.Dense()),
        outputs(args.out.dims[1]),
        group_channels(args.weight.dims[1]),
        values(!depthwise && ActiveSimd().quads != nullptr ? Values::kQuads : Values::kPairs),
        group_planes(CeilDivide(group_channels, values == Values::kQuads ? 4 : 2)),
        depth(group_planes * windows.taps) {
    int64_t registers = SumStore::Registers(args.epilogue);
    weight_bytes =
        depthwise ? ElementCount(args.weight) : 2 * WeightPairs(args.weight, args.groups);
    if (args.packed_weight == nullptr || args.weight_halved) {
      weight = scratch.Take<char>(weight_bytes);
    }
    channel_floats = WholeLines(windows.in_size);
    if (depthwise && HasQuadPlanes(args, windows)) {
      values = Values::kQuads;
      lines = std::max<int64_t>(kBlock / windows.out[2] / kPlaneLines, 1) * kPlaneLines;
      buffer_floats = WholeLines(std::min(lines, windows.out[1]) * windows.out[2] + kSlack);
      worker_floats = buffer_floats + registers;
    } else if (depthwise && windows.HasLoop(ActiveSimd())) {
      // Real numbers hold the sums of so few products.
      values = Values::kReals;
      weights = scratch.Take<float>(weight_bytes);
      buffer_floats = WholeLines(windows.out_size + kSlack);
      worker_floats = channel_floats + buffer_floats + registers;
    } else if (depthwise) {
      weights = scratch.Take<float>(weight_bytes);
      plane_floats = WholeLines(windows.plane_size + kSlack);
      buffer_floats = windows.BufferFloats();
      for (int64_t** one : {&pairs.offsets, &pairs.first, &pairs.second, &pairs.taken}) {
        *one = scratch.Take<int64_t>(windows.taps);
      }
      worker_floats = plane_floats + channel_floats + buffer_floats + registers;
    } else {
      group_rows = CeilDivide(outputs / args.groups, kPanelRows) * kPanelRows;
      weights = scratch.Take<float>(args.groups * group_rows * depth);
      if (values == Values::kQuads) of_rows = scratch.Take<int32_t>(args.groups * group_rows);
      offsets = scratch.Take<int64_t>(std::max(depth, windows.taps));
      if (!plain) {
        planes = scratch.Take<float>(args.groups * group_planes * windows.plane_size + kSlack);
      }
      worker_floats = channel_floats;
      const GatheredColumns columns = windows.Columns();
      gemm = GemmPlan(outputs / args.groups, windows.out_size, depth, args.groups, &columns, true,
                      values, registers, threads, &scratch);
    }
    workers = scratch.Take<float>(threads * worker_floats);
    parameters = scratch.Take<int32_t>(Recognizer::Floats(outputs));
    bytes = scratch.used();
  }

  Windows windows;
  bool depthwise;
  // The data is used in place.
  bool plain;
  int64_t outputs, group_channels;
  Values values;
  // Otherwise, planes are pairs or quads of channels; if depthwise, of taps, or real numbers.
  int64_t group_planes, depth;
  // Of panels.
  int64_t group_rows = 0;
  // Of the output: what a depthwise one with quads computes at once, a multiple of its loops' 4.
  int64_t lines = 0;
  int64_t weight_bytes = 0, channel_floats = 0, plane_floats = 0, buffer_floats = 0;
  int64_t worker_floats = 0;
  char* weight = nullptr;
  float* weights = nullptr;
  // The addends of rows for a product of quads.
  int32_t* of_rows = nullptr;
  int64_t* offsets = nullptr;
  TapPairs pairs;
  float* planes = nullptr;
  float* workers = nullptr;
  int32_t* parameters = nullptr;
  GemmPlan gemm;
  size_t bytes = 0;
};

// Makes one tap of pairs of two taps that read neighbouring elements. Returns the number of taps.
int64_t PairTaps(const ConvolutionPlan& plan) {
  int64_t taps = plan.windows.taps;
  TapPairs pairs = plan.pairs;
  plan.windows.Offsets(pairs.offsets);
  std::fill_n(pairs.taken, taps, 0);
  int64_t count = 0;
  for (int64_t tap = 0; tap < taps; ++tap) {
    if (pairs.taken[tap] != 0) continue;
    int64_t next =
        std::find(pairs.offsets, pairs.offsets + taps, pairs.offsets[tap] + 1) - pairs.offsets;
    if (next < taps && pairs.taken[next] != 0) next = taps;
    if (next < taps) pairs.taken[next] = 1;
    pairs.taken[tap] = 1;
    pairs.first[count] = tap;
    pairs.second[count++] = next;
  }
  // Taps come in their order, so no offset is overwritten before it is read.
  for (int64_t i = 0; i < count; ++i) pairs.offsets[i] = pairs.offsets[pairs.first[i]];
  return count;
}

void Depthwise(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
               const SumStore& store, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  int64_t channels = args.data.dims[1];
  int64_t each = plan.outputs / channels;
  int64_t taps = plan.windows.taps;
  const char* data = static_cast<const char*>(args.data.data);
  Windows windows = plan.windows;
  windows.taps = PairTaps(plan);
  for (int64_t row = 0; row < plan.outputs; ++row) {
    for (int64_t i = 0; i < windows.taps; ++i) {
      const char* first = weight + row * taps + plan.pairs.first[i];
      bool alone = plan.pairs.second[i] == taps;
      const char* second = alone ? nullptr : weight + row * taps + plan.pairs.second[i];
      simd.pair(args.weight.dtype, first, second, 1, args.weight_zero_point,
                plan.weights + row * taps + i);
    }
  }
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* plane = plan.workers + worker * plan.worker_floats;
    float* channel = plane + plan.plane_floats;
    float* buffer = channel + plan.channel_floats;
    float* registers = buffer + plan.buffer_floats;
    store.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      simd.pair(args.data.dtype, data + i * windows.in_size, nullptr, windows.in_size,
                args.data_zero_point, channel);
      windows.FillCells(simd, channel, 0, plane);
      simd.chain(windows.plane_size, plane);
      for (int64_t row = i * each; row < (i + 1) * each; ++row) {
        const float* weights = plan.weights + row % plan.outputs * taps;
        windows.ApplyTo(store, simd, Tap::kMultiplyAddPairs, plan.pairs.offsets, weights, plane,
                        buffer, row, registers);
      }
    }
  };
  Parallel(context, args.data.dims[0] * channels, Grain(windows.out_size * taps), run);
}

// The padding of planes: zero points.
float PaddingOf(const ConvolutionArgs& args, bool quads) {
  return quads ? ZeroQuad(args.data.dtype, args.data_zero_point) : 0;
}

void DepthwiseQuads(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
                    const SumStore& store, const KernelContext& context) {
  const Windows& windows = plan.windows;
  const int64_t channels = args.data.dims[1];
  const int64_t each = plan.outputs / channels;
  const Plane plane = windows.FlatPlane();
  auto* data = static_cast<const uint8_t*>(args.data.data);
  auto* weights = reinterpret_cast<const uint8_t*>(weight);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* sums = plan.workers + worker * plan.worker_floats;
    float* registers = sums + plan.buffer_floats;
    store.Begin(registers);
    for (int64_t row = begin * each; row < end * each; ++row) {
      for (int64_t top = 0; top < plane.out_height; top += plan.lines) {
        const int64_t lines = std::min(plan.lines, plane.out_height - top);
        ActiveSimd().quads->plane(plane, data + row / each * windows.in_size,
                                  IsTurned(args.data.dtype, false), ZeroByte(args.data_zero_point),
                                  weights + row % plan.outputs * windows.taps,
                                  IsTurned(args.weight.dtype, true), top, lines, sums);
        store.StoreRun(sums, lines * plane.out_width, row, top * plane.out_width, registers);
      }
    }
  };
  Parallel(context, args.data.dims[0] * channels, Grain(windows.out_size * windows.taps), run);
}

// Elements less their zero point.
void LoadDifferences(npu_dtype dtype, const char* data, int64_t count, int32_t zero, float* out) {
  ActiveSimd().load(dtype, data, count, out);
  if (zero == 0) return;
  float zeros[kSplat];
  std::fill_n(zeros, kSplat, static_cast<float>(zero));
  ActiveSimd().apply(NPU_VECTOR_SUBTRACT, {out}, {zeros, 0}, {}, count, out);
}

void DepthwiseReals(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
                    const SumStore& store, const KernelContext& context) {
  const Windows& windows = plan.windows;
  const int64_t channels = args.data.dims[1];
  const int64_t each = plan.outputs / channels;
  Plane plane = windows.FlatPlane();
  plane.whole = true;
  const float zero = 0;
  Finish how;
  how.first = how.second = &zero;
  const auto* data = static_cast<const char*>(args.data.data);
  LoadDifferences(args.weight.dtype, weight, plan.weight_bytes, args.weight_zero_point,
                  plan.weights);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* channel = plan.workers + worker * plan.worker_floats;
    float* sums = channel + plan.channel_floats;
    float* registers = sums + plan.buffer_floats;
    store.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      LoadDifferences(args.data.dtype, data + i * windows.in_size, windows.in_size,
                      args.data_zero_point, channel);
      for (int64_t row = i * each; row < (i + 1) * each; ++row) {
        const float* weights = plan.weights + row % plan.outputs * windows.taps;
        ActiveSimd().plane(plane, channel, weights, how, sums);
        store.StoreRun(sums, windows.out_size, row, 0, registers);
      }
    }
  };
  Parallel(context, args.data.dims[0] * channels, Grain(windows.out_size * windows.taps), run);
}

// Packed weights as quads.
void WidenToQuads(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
                  const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const int64_t pairs = PairsOf(plan.group_channels);
  const int64_t bytes = int64_t{2} * kPanelRows * pairs * plan.windows.taps;
  const int64_t panels = args.groups * plan.group_rows / kPanelRows;
  const npu_dtype dtype = args.weight.dtype;
  Parallel(context, panels, Grain(plan.depth * kPanelRows), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* panel = plan.weights + i * kPanelRows * plan.depth;
      simd.quads->join_pairs(reinterpret_cast<const uint8_t*>(weight) + i * bytes, pairs,
                             kPanelRows * plan.windows.taps, IsTurned(dtype, true), panel);
      FinishLeftPanel(simd, plan.depth, ZeroOfQuads(dtype, args.weight_zero_point, true),
                      ZeroOfQuads(args.data.dtype, args.data_zero_point, false), panel,
                      plan.of_rows + i * kPanelRows);
    }
  });
}

// Fills a plane of quads with up to four of `channels` channels, from `channel` on.
void FillQuads(const ConvolutionArgs& args, const ConvolutionPlan& plan, int64_t channel,
               int64_t channels, float* cells, float* plane) {
  const Simd& simd = ActiveSimd();
  auto* data = static_cast<const uint8_t*>(args.data.data) + channel * plan.windows.in_size;
  const uint8_t* rows[4];
  for (int64_t r = 0; r < 4; ++r) {
    rows[r] = r < channels ? data + r * plan.windows.in_size : nullptr;
  }
  simd.quads->join(rows, plan.windows.in_size, ZeroByte(args.data_zero_point),
                   IsTurned(args.data.dtype, false), cells);
  plan.windows.FillCells(simd, cells, PaddingOf(args, true), plane);
}

void Product(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
             const SumStore& store, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const Windows& windows = plan.windows;
  int64_t tasks = plan.gemm.tasks();
  int64_t rows = plan.outputs / args.groups;
  int64_t weight_floats = PanelFloats(rows, plan.depth, kPanelRows);
  const bool quads = plan.values == Values::kQuads;
  if (quads) {
    WidenToQuads(args, plan, weight, context);
  } else {
    Parallel(context, plan.weight_bytes / 2, Grain(1), [&](int64_t begin, int64_t end, int) {
      simd.join(args.weight.dtype, weight + 2 * begin, end - begin, args.weight_zero_point,
                plan.weights + begin);
    });
  }
  windows.Offsets(plan.offsets);
  for (int64_t k = windows.taps; k < plan.depth; ++k) {
    plan.offsets[k] = plan.offsets[k - windows.taps] + windows.plane_size;
  }
  int64_t planes = args.groups * plan.group_planes;
  for (int64_t n = 0; n < args.data.dims[0]; ++n) {
    auto fill = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t p = begin; p < end; ++p) {
        int64_t pair = p % plan.group_planes;
        int64_t channel = n * args.data.dims[1] + p / plan.group_planes * plan.group_channels;
        if (quads) {
          FillQuads(args, plan, channel + 4 * pair, plan.group_channels - 4 * pair,
                    plan.workers + worker * plan.worker_floats,
                    plan.planes + p * windows.plane_size);
          continue;
        }
        const char* low =
            static_cast<const char*>(args.data.data) + (channel + 2 * pair) * windows.in_size;
        const char* high = 2 * pair + 1 < plan.group_channels ? low + windows.in_size : nullptr;
        float* cells = plan.workers + worker * plan.worker_floats;
        simd.pair(args.data.dtype, low, high, windows.in_size, args.data_zero_point, cells);
        windows.FillCells(simd, cells, PaddingOf(args, false),
                          plan.planes + p * windows.plane_size);
      }
    };
    if (!plan.plain) Parallel(context, planes, Grain(windows.plane_size), fill);
    auto run = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t group = i / tasks;
        Gemm gemm;
        gemm.left = plan.weights + group * weight_floats;
        if (plan.plain) {
          int64_t channel = n * args.data.dims[1] + group * plan.group_channels;
          gemm.elements = static_cast<const char*>(args.data.data) + channel * windows.in_size;
          gemm.element_rows = plan.group_channels;
          gemm.dtype = args.data.dtype;
          gemm.zero_point = args.data_zero_point;
        } else {
          gemm.data = plan.planes + group * plan.group_planes * windows.plane_size;
          gemm.offsets = plan.offsets;
        }
        if (quads) {
          gemm.left_zero = ZeroOfQuads(args.weight.dtype, args.weight_zero_point, true);
          gemm.of_rows = plan.of_rows + group * plan.group_rows;
        }
        gemm.out_row = n * plan.outputs + group * rows;
        plan.gemm.Run(gemm, store, i % tasks, worker);
      }
    };
    Parallel(context, args.groups * tasks, Grain(plan.gemm.cost()), run);
  }
}

// ---- One name for both ----

size_t ScratchOf(const MatMulArgs& args, int threads) {
  return MatMulPlan(args, threads, Scratch(nullptr)).bytes;
}
size_t ScratchOf(const ConvolutionArgs& args, int threads) {
  return ConvolutionPlan(args, threads, Scratch(nullptr)).bytes;
}

void Multiply(const MatMulArgs& args, const KernelContext& context) {
  MatMulPlan plan(args, Threads(context), Scratch(context.scratch));
  SumStore store(args.epilogue, args.out, plan.b.lines,
                 SumsOf(FactorsOf(args.a.dtype, args.a_zero_point),
                        FactorsOf(args.b.dtype, args.b_zero_point), plan.a.depth),
                 plan.b.lines, true, plan.parameters);
  const bool quads = plan.values == Values::kQuads;
  if (quads) {
    PackQuads(plan.a, plan.a_count, true, context, plan.a_panels,
              ZeroOfQuads(plan.b.dtype, plan.b.zero_point, false), plan.of_rows);
    if (args.packed_b == nullptr) PackQuads(plan.b, plan.b_count, false, context, plan.b_panels);
  } else {
    Pack(plan.a, plan.a_count, kPanelRows, context, plan.a_panels);
    if (args.packed_b == nullptr) Pack(plan.b, plan.b_count, kPanelColumns, context, plan.b_panels);
  }
  int64_t tasks = plan.gemm.tasks();
  auto run = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t batch = i / tasks;
      int64_t b_index = plan.collapsed ? 0 : BatchIndex(args.b, args.out, batch);
      int64_t a_index = plan.collapsed ? 0 : BatchIndex(args.a, args.out, batch);
      Gemm gemm;
      gemm.left = plan.a_panels + a_index * plan.a_floats;
      if (args.packed_b == nullptr) {
        gemm.right = plan.b_panels + b_index * plan.b_floats;
      } else {
        const int64_t begin = b_index * plan.b_bytes / (args.b_halved ? 2 : 1);
        gemm.narrow = static_cast<const char*>(args.packed_b) + begin;
        gemm.halved = args.b_halved;
        gemm.element_rows = plan.b.depth;
        gemm.dtype = args.b.dtype;
        gemm.zero_point = args.b_zero_point;
      }
      if (quads) {
        gemm.left_zero = ZeroOfQuads(plan.a.dtype, plan.a.zero_point, true);
        gemm.of_rows = plan.of_rows + a_index * plan.a_panel_rows;
      }
      gemm.out_row = batch * plan.a.lines;
      plan.gemm.Run(gemm, store, i % tasks, worker);
    }
  };
  Parallel(context, plan.batch * tasks, Grain(plan.gemm.cost()), run);
}

void Multiply(const ConvolutionArgs& args, const KernelContext& context) {
  ConvolutionPlan plan(args, Threads(context), Scratch(context.scratch));
  SumStore store(args.epilogue, args.out, plan.windows.out_size,
                 SumsOf(FactorsOf(args.data.dtype, args.data_zero_point),
                        FactorsOf(args.weight.dtype, args.weight_zero_point),
                        plan.group_channels * plan.windows.taps),
                 plan.outputs, false, plan.parameters);
  const char* weight = static_cast<const char*>(args.packed_weight);
  if (weight == nullptr) {
    PackWeightBytes(args.weight, args.groups, plan.weight);
    weight = plan.weight;
  } else if (args.weight_halved) {
    auto* halves = reinterpret_cast<const uint8_t*>(weight);
    auto* widened = reinterpret_cast<uint8_t*>(plan.weight);
    auto widen = [&](int64_t begin, int64_t end, int) {
      const int64_t count = std::min(2 * end, plan.weight_bytes) - 2 * begin;
      ActiveSimd().widen(args.weight.dtype, halves + begin, count, widened + 2 * begin);
    };
    Parallel(context, CeilDivide(plan.weight_bytes, 2), Grain(1), widen);
    weight = plan.weight;
  }
  auto compute = !plan.depthwise                 ? Product
                 : plan.values == Values::kQuads ? DepthwiseQuads
                 : plan.values == Values::kReals ? DepthwiseReals
                                                 : Depthwise;
  compute(args, plan, weight, store, context);
}

// ---- Products of int16 ----

// An operand, its zero point, and where it is packed.
struct Factor {
  TensorView* tensor;
  int32_t* zero_point;
  const void** packed = nullptr;
};

Factor FirstOf(MatMulArgs* args) { return {&args->a, &args->a_zero_point}; }
Factor FirstOf(ConvolutionArgs* args) { return {&args->data, &args->data_zero_point}; }
Factor SecondOf(MatMulArgs* args) { return {&args->b, &args->b_zero_point, &args->packed_b}; }
Factor SecondOf(ConvolutionArgs* args) {
  return {&args->weight, &args->weight_zero_point, &args->packed_weight};
}

size_t PackedBytesOf(const MatMulArgs& args) {
  return PackedIntegerMatMulBBytes(args.b, args.transpose_b);
}
size_t PackedBytesOf(const ConvolutionArgs& args) {
  return PackedIntegerConvolutionWeightBytes(args.weight, args.groups);
}

// Bytes of int16: the higher ones are int8, the lower ones uint8.
void SplitBytes(const int16_t* from, int64_t begin, int64_t end, int8_t* high, uint8_t* low) {
  for (int64_t i = begin; i < end; ++i) {
    high[i] = static_cast<int8_t>(from[i] >> 8);
    low[i] = static_cast<uint8_t>(from[i] & 0xff);
  }
}

// An int16, and its zero point, are 256 times an int8 plus a uint8, so that a sum is that of two
// products of 8 bits, or of four if both operands are int16. Their sums must not wrap; see the
// rules.
template <typename Args>
class WideProduct {
 public:
  WideProduct(const Args& args, int threads, Scratch scratch)
      : args_(args),
        integers_(IsIntegerEpilogue(args.epilogue, args.out.dtype)),
        count_(ElementCount(args.out)) {
    numbers_ = 2 * Evaluator::kBlock + Evaluator::Registers(args.epilogue);
    registers_ = scratch.Take<int64_t>(threads * numbers_);
    parts_ = {{args, 1}};
    Divide(FirstOf, &scratch);
    if (SecondOf(&parts_[0].args).tensor->dtype == NPU_INT16) Divide(SecondOf, &scratch);
    size_t rest = 0;
    for (Part& part : parts_) {
      part.args.out.dtype = NPU_INT32;
      part.args.out.data = scratch.Take<int32_t>(count_);
      part.args.epilogue = VectorProgram();
      rest = std::max(rest, ScratchOf(part.args, threads));
    }
    rest_ = scratch.Take<char>(static_cast<int64_t>(rest));
    bytes = scratch.used();
  }

  void Run(const KernelContext& context) {
    for (const Bytes& split : splits_) {
      Parallel(context, split.count, Grain(1), [&](int64_t begin, int64_t end, int) {
        SplitBytes(split.from, begin, end, split.high, split.low);
      });
    }
    KernelContext inner = context;
    inner.scratch = rest_;
    for (const Part& part : parts_) Multiply(part.args, inner);
    IntegerEvaluator integers(args_.epilogue, args_.out);
    Evaluator reals(args_.epilogue, args_.out, count_);
    auto run = [&](int64_t begin, int64_t end, int worker) {
      int64_t* sums = registers_ + worker * numbers_;
      auto* real = reinterpret_cast<float*>(sums + Evaluator::kBlock);
      int64_t* registers = sums + 2 * Evaluator::kBlock;
      if (integers_) integers.Begin(registers);
      if (!integers_) reals.Begin(reinterpret_cast<float*>(registers));
      for (int64_t i = begin; i < end; i += Evaluator::kBlock) {
        int64_t block = std::min(Evaluator::kBlock, end - i);
        std::fill_n(sums, block, 0);
        for (const Part& part : parts_) {
          auto* of_part = static_cast<const int32_t*>(part.args.out.data) + i;
          for (int64_t k = 0; k < block; ++k) sums[k] += part.factor * of_part[k];
        }
        std::copy_n(sums, block, real);
        if (integers_) integers.StoreRun(sums, block, i, registers);
        if (!integers_) reals.StoreRun(real, block, 0, i, reinterpret_cast<float*>(registers));
      }
    };
    Parallel(context, count_, Evaluator::kBlock, run);
  }

  size_t bytes = 0;

 private:
  // A product of bytes; the sum has this many of them.
  struct Part {
    Args args;
    int64_t factor;
  };
  struct Bytes {
    const int16_t* from;
    int64_t count;
    int8_t* high;
    uint8_t* low;
  };

  // Divides one operand of all parts into its bytes.
  void Divide(Factor (*find)(Args*), Scratch* scratch) {
    const Factor whole = find(&parts_[0].args);
    const int64_t count = ElementCount(*whole.tensor);
    const bool is_packed = whole.packed != nullptr && *whole.packed != nullptr;
    Bytes split = {static_cast<const int16_t*>(whole.tensor->data), count, nullptr, nullptr};
    if (!is_packed) {
      split.high = scratch->Take<int8_t>(count);
      split.low = scratch->Take<uint8_t>(count);
      splits_.push_back(split);
    }
    std::vector<Part> halves;
    for (const Part& part : parts_) {
      for (bool high : {true, false}) {
        Part half = {part.args, part.factor * (high ? 256 : 1)};
        const Factor factor = find(&half.args);
        factor.tensor->dtype = high ? NPU_INT8 : NPU_UINT8;
        factor.tensor->data = high ? static_cast<void*>(split.high) : split.low;
        *factor.zero_point = high ? *factor.zero_point >> 8 : *factor.zero_point & 0xff;
        if (is_packed && !high) {
          *factor.packed = static_cast<const char*>(*factor.packed) + PackedBytesOf(half.args);
        }
        halves.push_back(half);
      }
    }
    parts_ = std::move(halves);
  }

  const Args& args_;
  bool integers_;
  int64_t count_;
  std::vector<Part> parts_;
  std::vector<Bytes> splits_;
  int64_t numbers_;
  int64_t* registers_;
  char* rest_;
};

template <typename Args>
size_t AnyScratch(const Args& args, npu_dtype dtype, int threads) {
  if (dtype == NPU_INT16) return WideProduct<Args>(args, threads, Scratch(nullptr)).bytes;
  return ScratchOf(args, threads);
}

template <typename Args>
void AnyProduct(const Args& args, npu_dtype dtype, const KernelContext& context) {
  if (dtype != NPU_INT16) return Multiply(args, context);
  WideProduct<Args>(args, Threads(context), Scratch(context.scratch)).Run(context);
}

}  // namespace

bool FitHalves(npu_dtype dtype, const void* data, size_t bytes) {
  auto* numbers = static_cast<const uint8_t*>(data);
  // Both ranges, from -8 and from 0, have 16 numbers.
  const unsigned first = dtype == NPU_INT8 ? 8 : 0;
  return std::all_of(numbers, numbers + bytes,
                     [&](uint8_t number) { return ((number + first) & UINT8_MAX) < 16; });
}

void Halve(const uint8_t* packed, size_t bytes, uint8_t* halves) {
  for (size_t i = 0; i < bytes; i += 2) {
    const int high = i + 1 < bytes ? packed[i + 1] << 4 : 0;
    halves[i / 2] = static_cast<uint8_t>((packed[i] & 15) | high);
  }
}

size_t PackedIntegerMatMulBBytes(const TensorView& b, bool transpose_b) {
  if (b.dtype == NPU_INT16) {
    TensorView half = b;
    half.dtype = NPU_INT8;
    return 2 * PackedIntegerMatMulBBytes(half, transpose_b);
  }
  Matrix matrix = MatrixOf(b, transpose_b, false, 0);
  return static_cast<size_t>(2 * BatchCount(b) *
                             PanelFloats(matrix.lines, PairsOf(matrix.depth), kPanelColumns));
}

void PackIntegerMatMulB(const TensorView& b, bool transpose_b, void* packed) {
  if (b.dtype == NPU_INT16) {
    const int64_t count = ElementCount(b);
    std::vector<int8_t> high(static_cast<size_t>(count));
    std::vector<uint8_t> low(high.size());
    SplitBytes(static_cast<const int16_t*>(b.data), 0, count, high.data(), low.data());
    TensorView half = b;
    half.dtype = NPU_INT8;
    half.data = high.data();
    PackIntegerMatMulB(half, transpose_b, packed);
    half.dtype = NPU_UINT8;
    half.data = low.data();
    const size_t bytes = PackedIntegerMatMulBBytes(half, transpose_b);
    return PackIntegerMatMulB(half, transpose_b, static_cast<char*>(packed) + bytes);
  }
  Matrix matrix = MatrixOf(b, transpose_b, false, 0);
  char* out = static_cast<char*>(packed);
  for (int64_t i = 0; i < BatchCount(b); ++i) {
    for (int64_t first = 0; first < matrix.lines; first += kPanelColumns) {
      for (int64_t pair = 0; pair < PairsOf(matrix.depth); ++pair) {
        for (int64_t j = 0; j < int64_t{2} * kPanelColumns; ++j) {
          int64_t line = first + j / 2;
          int64_t k = 2 * pair + j % 2;
          bool inside = line < matrix.lines && k < matrix.depth;
          int64_t at = matrix.lines_dense ? line * matrix.depth + k : k * matrix.lines + line;
          *out++ = inside ? matrix.data[at] : 0;
        }
      }
    }
    matrix.data += matrix.lines * matrix.depth;
  }
}

size_t IntegerMatMulScratch(const MatMulArgs& args, int threads) {
  return AnyScratch(args, args.a.dtype, threads);
}

void IntegerMatMul(const MatMulArgs& args, const KernelContext& context) {
  AnyProduct(args, args.a.dtype, context);
}

size_t PackedIntegerConvolutionWeightBytes(const TensorView& weight, int64_t groups) {
  if (IsDepthwise(weight, groups)) return static_cast<size_t>(ElementCount(weight));
  return static_cast<size_t>(2 * WeightPairs(weight, groups));
}

void PackIntegerConvolutionWeight(const TensorView& weight, int64_t groups, void* packed) {
  PackWeightBytes(weight, groups, static_cast<char*>(packed));
}

size_t IntegerConvolutionScratch(const ConvolutionArgs& args, int threads) {
  return AnyScratch(args, args.data.dtype, threads);
}

void IntegerConvolution(const ConvolutionArgs& args, const KernelContext& context) {
  AnyProduct(args, args.data.dtype, context);
}

}  // namespace npu::emulator
