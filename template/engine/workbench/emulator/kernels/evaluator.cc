// SPDX-License-Identifier: Apache-2.0
/*!
 * \file evaluator.cc
 * \brief The evaluation of vector programs in float32, and the element-wise kernel.
 */
#include "evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "driver_kit/vector_opcodes.h"
#include "integers.h"

namespace npu::emulator {

void ApplyEach(npu_vector_opcode opcode, const VectorOperand& a, const VectorOperand& b,
               const VectorOperand& c, int64_t count, float* out) {
  WithFunction<float>(opcode, [=](auto function, auto operands) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = function(a.data[i & a.mask], operands > 1 ? b.data[i & b.mask] : 0,
                        operands > 2 ? c.data[i & c.mask] : 0);
    }
  });
}

Broadcast::Broadcast(const TensorView& data, const TensorView& out)
    : data(static_cast<const char*>(data.data)),
      dtype(data.dtype),
      element(ElementSize(data.dtype)) {
  int64_t dense = 1;
  for (int d = 1; d <= out.rank; ++d) {
    int64_t size = out.dims[out.rank - d];
    int64_t own = d <= data.rank ? data.dims[data.rank - d] : 1;
    int64_t stride = own == 1 ? 0 : dense;
    dense *= own;
    if (size == 1) continue;
    int last = rank - 1;
    if (last >= 0 && stride == strides[last] * sizes[last] &&
        (stride != 0) == (strides[last] != 0)) {
      sizes[last] *= size;
    } else {
      sizes[rank] = size;
      strides[rank++] = stride;
    }
  }
  if (rank == 0) {
    rank = 1;
    sizes[0] = 1;
    strides[0] = 0;
  }
}

Evaluator::Evaluator(const VectorProgram& program, const TensorView& out, int64_t row_length,
                     bool integers)
    : simd_(ActiveSimd()),
      program_(program),
      out_(static_cast<char*>(out.data)),
      dtype_(out.dtype),
      element_(ElementSize(out.dtype)),
      row_length_(row_length),
      integers_(integers),
      plain_(integers ? NPU_INT32 : NPU_FLOAT32),
      load_(integers ? simd_.load_integers : simd_.load),
      store_(integers ? simd_.store_integers : simd_.store) {
  for (int i = 0; i < program.input_count; ++i) {
    Input& input = inputs_[i];
    static_cast<Broadcast&>(input) = Broadcast(program.inputs[i], out);
    bool repeats = input.strides[0] == 0;
    input.dense = input.rank == 1 && !repeats;
    input.uniform = input.rank == 1 && repeats;
    bool whole_rows = input.sizes[0] % row_length_ == 0;
    input.uniform_rows = repeats && whole_rows;
    input.plain_rows = !repeats && whole_rows && input.dtype == plain_;
  }
  finish_ = FindFinish();
}

bool Evaluator::FindFinish() {
  const float infinity = std::numeric_limits<float>::infinity();
  least_ = -infinity;
  most_ = infinity;
  if (integers_ || dtype_ != NPU_FLOAT32) return false;
  const npu_vector_instruction* all = program_.instructions;
  int32_t count = program_.instruction_count;
  int32_t result = -1;
  int added = 0;
  bool limited = false, limited_above = false;
  for (int32_t i = 0; i < count; ++i) {
    const npu_vector_instruction& next = all[i];
    if (next.opcode == NPU_VECTOR_CONSTANT) continue;
    if (next.opcode == NPU_VECTOR_LOAD) {
      if (next.a == 0 && result >= 0) return false;
      if (next.a == 0) result = i;
      continue;
    }
    if (result < 0 || next.b < 0 || next.b >= i) return false;
    bool swapped = next.b == result;
    if (!swapped && next.a != result) return false;
    const npu_vector_instruction& other = all[swapped ? next.a : next.b];
    if (next.opcode == NPU_VECTOR_ADD && other.opcode == NPU_VECTOR_LOAD && other.a != 0) {
      const Input& input = inputs_[other.a];
      bool rows = input.dense || input.sizes[0] == row_length_;
      if (limited || limited_above || added == 2 || input.dtype != NPU_FLOAT32 || !rows) {
        return false;
      }
      addends_[added++] = other.a;
    } else if (other.opcode == NPU_VECTOR_CONSTANT && !swapped && !limited_above &&
               next.opcode == NPU_VECTOR_MAXIMUM && !limited) {
      limited = true;
      least_ = static_cast<float>(other.immediate);
    } else if (other.opcode == NPU_VECTOR_CONSTANT && !swapped && !limited_above &&
               next.opcode == NPU_VECTOR_MINIMUM) {
      limited_above = true;
      most_ = static_cast<float>(other.immediate);
    } else {
      return false;
    }
    result = i;
  }
  if (std::isnan(least_) || std::isnan(most_)) return false;
  return result >= 0 && result == count - 1 && all[result].opcode != NPU_VECTOR_LOAD;
}

int64_t Evaluator::RowsOf(int32_t number, int64_t row, int64_t column, const float** first,
                          int64_t* stride, int* step) const {
  static constexpr float kNothing = -0.0f;  // a sum with it is the same number
  if (number < 0) {
    *first = &kNothing;
    return std::numeric_limits<int64_t>::max();
  }
  const Input& input = inputs_[number];
  auto* data = reinterpret_cast<const float*>(input.data) + column * input.strides[0];
  *step = input.strides[0] != 0 ? 1 : 0;
  if (input.dense) {
    *first = data + row * row_length_;
    *stride = row_length_;
    return std::numeric_limits<int64_t>::max();
  }
  int64_t count = std::numeric_limits<int64_t>::max();
  int64_t rest = row;
  for (int d = 1; d < input.rank; ++d) {
    // Usually there are only these, and no division is needed.
    const bool inside = rest < input.sizes[d];
    const int64_t position = inside ? rest : rest % input.sizes[d];
    rest = inside ? 0 : rest / input.sizes[d];
    data += position * input.strides[d];
    if (d > 1) continue;
    *stride = input.strides[d];
    count = input.sizes[d] - position;
  }
  *first = data;
  return count;
}

int64_t Evaluator::FinishOf(int64_t row, int64_t column, Finish* how) const {
  how->least = least_;
  how->most = most_;
  return std::min(
      RowsOf(addends_[0], row, column, &how->first, &how->first_row, &how->first_step),
      RowsOf(addends_[1], row, column, &how->second, &how->second_row, &how->second_step));
}

void Evaluator::StoreLines(const float* values, int64_t lines, int64_t columns, int64_t stride,
                           int64_t row, int64_t column) const {
  Finish how;
  FinishOf(row, column, &how);
  how.first_row = columns * how.first_step;
  how.second_row = columns * how.second_step;
  auto* out = reinterpret_cast<float*>(out_) + row * row_length_ + column;
  simd_.finish(how, values, lines, stride, columns, out, columns);
}

int64_t Evaluator::RowLength(const VectorProgram& program, const TensorView& out) {
  // Shorter rows cost more than what they save.
  constexpr int64_t kShortest = kBlock / 2;
  int64_t count = ElementCount(out);
  int64_t length = count;
  for (int i = 0; i < program.input_count; ++i) {
    length = std::min(length, Broadcast(program.inputs[i], out).sizes[0]);
  }
  return length < kShortest ? count : length;
}

void Evaluator::Begin(float* registers) const {
  for (int i = 0; i < program_.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program_.instructions[i];
    // Input 0 may be that of an epilogue.
    if (instruction.opcode == NPU_VECTOR_LOAD && instruction.a > 0 &&
        inputs_[instruction.a].uniform) {
      LoadOne(inputs_[instruction.a], 0, kSplat, registers + i * kBlock);
    }
    if (instruction.opcode != NPU_VECTOR_CONSTANT) continue;
    auto value = static_cast<float>(instruction.immediate);
    auto whole = static_cast<int32_t>(integers_ ? std::llround(instruction.immediate) : 0);
    if (integers_) std::memcpy(&value, &whole, sizeof(value));
    simd_.fill(value, kBlock, registers + i * kBlock);
  }
}

// Elements along the innermost dimension.
void Evaluator::LoadOne(const Input& input, int64_t offset, int64_t count, float* out) const {
  const char* data = input.data + offset * static_cast<int64_t>(input.element);
  if (input.strides[0] != 0) {
    load_(input.dtype, data, count, out);
  } else {
    float value;
    load_(input.dtype, data, 1, &value);
    simd_.fill(value, count, out);
  }
}

// Elements [index, index + count) in the order of the output.
void Evaluator::LoadRun(const Input& input, int64_t index, int64_t count, float* out) const {
  input.ForRuns(index, count, [&](int64_t offset, int64_t run) {
    LoadOne(input, offset, run, out);
    out += run;
  });
}

void Evaluator::LoadTile(const Input& input, int64_t rows, int64_t columns, int64_t row,
                         int64_t column, float* out) const {
  int64_t index = row * row_length_ + column;
  if (input.dtype == plain_ && input.dense) {
    const float* data = reinterpret_cast<const float*>(input.data) + index;
    simd_.take(rows, columns, data, row_length_, 1, out, kPanelColumns);
    return;
  }
  // Usually the innermost dimension is a row: then one division serves for the whole row.
  if (input.sizes[0] != row_length_) {
    for (int64_t r = 0; r < rows; ++r) {
      LoadRun(input, index + r * row_length_, columns, out + r * kPanelColumns);
    }
    return;
  }
  int64_t position[NPU_MAX_RANK];
  int64_t rest = row;
  for (int d = 1; d < input.rank; ++d) {
    position[d] = rest % input.sizes[d];
    rest /= input.sizes[d];
  }
  float values[kPanelRows];
  bool same = input.strides[0] == 0;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t offset = column * input.strides[0];
    for (int d = 1; d < input.rank; ++d) offset += position[d] * input.strides[d];
    for (int d = 1; d < input.rank && ++position[d] == input.sizes[d]; ++d) position[d] = 0;
    if (!same) {
      LoadOne(input, offset, columns, out + r * kPanelColumns);
    } else if (input.dtype == plain_) {
      values[r] = reinterpret_cast<const float*>(input.data)[offset];
    } else {
      load_(input.dtype, input.data + offset * static_cast<int64_t>(input.element), 1, values + r);
    }
  }
  if (same) simd_.spread(rows, values, out);
}

void Evaluator::StoreBlock(const float* values, int64_t rows, int64_t columns, int64_t row,
                           int64_t column, float* registers) const {
  bool run = rows == 1;
  int64_t index = row * row_length_ + column;
  int64_t count = run ? columns : rows * kPanelColumns;
  char* out = out_ + index * static_cast<int64_t>(element_);
  int last = program_.instruction_count - 1;
  // Instructions read an input more than once, and its address takes divisions.
  const float* rows_of[NPU_MAX_VECTOR_INPUTS];
  for (int i = 0; i < program_.input_count; ++i) {
    const Input& input = inputs_[i];
    const bool used = run && input.plain_rows && (i > 0 || values == nullptr);
    rows_of[i] =
        used ? reinterpret_cast<const float*>(input.data) + input.OffsetOf(index) : nullptr;
  }
  // Where the value of an instruction is. Loads that need no conversion are not copied.
  auto value = [&](int32_t i) -> VectorOperand {
    const npu_vector_instruction& instruction = program_.instructions[i];
    float* own = registers + i * kBlock;
    if (instruction.opcode == NPU_VECTOR_CONSTANT) return {own, i == last ? -1 : 0};
    if (instruction.opcode != NPU_VECTOR_LOAD) return {own};
    if (values != nullptr && instruction.a == 0) return {values};
    const Input& input = inputs_[instruction.a];
    if (run && input.plain_rows) return {rows_of[instruction.a]};
    bool uniform = run ? input.uniform_rows : input.uniform;
    return {own, uniform && i != last ? 0 : -1};
  };
  const float* result = values;
  for (int i = 0; i <= last; ++i) {
    const npu_vector_instruction& instruction = program_.instructions[i];
    float* to = registers + i * kBlock;
    VectorOperand own = value(i);
    result = own.data;
    if (instruction.opcode == NPU_VECTOR_CONSTANT) continue;
    if (instruction.opcode == NPU_VECTOR_LOAD) {
      const Input& input = inputs_[instruction.a];
      if (result != to) continue;
      if (own.mask == 0) {
        if (input.uniform && instruction.a > 0) continue;  // Begin has done it.
        LoadOne(input, input.OffsetOf(index), kSplat, to);
      } else if (run) {
        LoadRun(input, index, columns, to);
      } else {
        LoadTile(input, rows, columns, row, column, to);
      }
      continue;
    }
    if (i == last && run && dtype_ == plain_) to = reinterpret_cast<float*>(out);
    auto operand = [&](int32_t number) {
      return number >= 0 && number < i ? value(number) : VectorOperand();
    };
    VectorOperand a = operand(instruction.a);
    VectorOperand b = operand(instruction.b);
    VectorOperand c = operand(instruction.c);
    if (integers_) {
      simd_.apply_integers(instruction, a, b, c, count, to);
    } else {
      simd_.apply(instruction.opcode, a, b, c, count, to);
    }
    result = to;
  }
  if (result == reinterpret_cast<float*>(out)) return;
  if (dtype_ == plain_) {
    simd_.take(rows, columns, result, kPanelColumns, 1, reinterpret_cast<float*>(out), row_length_);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    store_(dtype_, result + r * kPanelColumns, columns, out);
    out += row_length_ * static_cast<int64_t>(element_);
  }
}

void Evaluator::StoreRun(const float* values, int64_t count, int64_t row, int64_t column,
                         float* registers) const {
  if (program_.instruction_count == 0) {
    int64_t index = row * row_length_ + column;
    store_(dtype_, values, count, out_ + index * static_cast<int64_t>(element_));
    return;
  }
  if (finish_ && values != nullptr) return StoreLines(values, 1, count, count, row, column);
  for (int64_t i = 0; i < count; i += kBlock) {
    StoreBlock(values == nullptr ? nullptr : values + i, 1, std::min(kBlock, count - i), row,
               column + i, registers);
  }
}

void Evaluator::StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row,
                          int64_t column, float* registers) const {
  for (int64_t done = 0, count = 0; done < rows; done += count) {
    const float* sums = tile + done * kPanelColumns;
    if (finish_) {
      Finish how;
      count = std::min(rows - done, FinishOf(row + done, column, &how));
      float* out = reinterpret_cast<float*>(out_) + (row + done) * row_length_ + column;
      simd_.finish(how, sums, count, kPanelColumns, columns, out, row_length_);
    } else {
      count = std::min<int64_t>(rows - done, kPanelRows);
      StoreBlock(sums, count, columns, row + done, column, registers);
    }
  }
}

bool Evaluator::Finishes(int64_t rows, int64_t row, int64_t column, ProductTile* tile) const {
  if (!finish_ || FinishOf(row, column, &tile->how) < rows) return false;
  tile->out = reinterpret_cast<float*>(out_) + row * row_length_ + column;
  tile->out_stride = row_length_;
  return true;
}

namespace {

// Calls `body(begin, end, registers)` for parts of the output; each thread has its own registers.
template <typename Number, typename Body>
void ForParts(const ElementwiseArgs& args, const KernelContext& context, const Body& body) {
  int64_t registers = Evaluator::Registers(args.program);
  int64_t grain = CeilDivide(Grain(args.program.instruction_count), Evaluator::kBlock);
  Parallel(context, ElementCount(args.out), grain * Evaluator::kBlock,
           [&](int64_t begin, int64_t end, int worker) {
             body(begin, end, static_cast<Number*>(context.scratch) + worker * registers);
           });
}

}  // namespace

size_t ScratchBytes(const ElementwiseArgs& args, int threads) {
  bool integers = IsIntegerProgram(args.program, args.out.dtype);
  size_t number = integers ? sizeof(int64_t) : sizeof(float);
  return static_cast<size_t>(threads * Evaluator::Registers(args.program)) * number;
}

void Execute(const ElementwiseArgs& args, const KernelContext& context) {
  int64_t count = ElementCount(args.out);
  if (count == 0) return;
  if (IsIntegerProgram(args.program, args.out.dtype) &&
      FitsInt32(args.program, {0, 0}, /*epilogue=*/false)) {
    Evaluator evaluator(args.program, args.out, count, true);
    ForParts<float>(args, context, [&](int64_t begin, int64_t end, float* registers) {
      evaluator.Begin(registers);
      evaluator.StoreRun(nullptr, end - begin, 0, begin, registers);
    });
    return;
  }
  if (IsIntegerProgram(args.program, args.out.dtype)) {
    IntegerEvaluator evaluator(args.program, args.out);
    ForParts<int64_t>(args, context, [&](int64_t begin, int64_t end, int64_t* registers) {
      evaluator.Begin(registers);
      evaluator.StoreRun(nullptr, end - begin, begin, registers);
    });
    return;
  }
  if (Normalize(args, context)) return;
  int64_t length = Evaluator::RowLength(args.program, args.out);
  Evaluator evaluator(args.program, args.out, length);
  ForParts<float>(args, context, [&](int64_t begin, int64_t end, float* registers) {
    evaluator.Begin(registers);
    for (int64_t row = begin / length; begin < end; ++row) {
      int64_t column = begin - row * length;
      int64_t run = std::min(end - begin, length - column);
      evaluator.StoreRun(nullptr, run, row, column, registers);
      begin += run;
    }
  });
}

}  // namespace npu::emulator
