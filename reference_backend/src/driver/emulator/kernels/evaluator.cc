// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file evaluator.cc
 * \brief The evaluation of vector programs, and the kernel that is nothing else.
 */
#include "evaluator.h"

#include <algorithm>

namespace tvm_example_npu::emulator {

Evaluator::Evaluator(const VectorProgram& program, const TensorView& out, int64_t row_length)
    : simd_(ActiveSimd()),
      program_(program),
      out_(static_cast<char*>(out.data)),
      dtype_(out.dtype),
      element_(ElementSize(out.dtype)),
      row_length_(row_length) {
  for (int i = 0; i < program.input_count; ++i) Describe(program.inputs[i], out, &inputs_[i]);
}

void Evaluator::Describe(const TensorView& data, const TensorView& out, Input* input) const {
  input->data = static_cast<const char*>(data.data);
  input->dtype = data.dtype;
  input->element = ElementSize(data.dtype);
  input->rank = 0;
  int64_t dense = 1;
  for (int d = 1; d <= out.rank; ++d) {
    int64_t size = out.dims[out.rank - d];
    int64_t own = d <= data.rank ? data.dims[data.rank - d] : 1;
    int64_t stride = own == 1 ? 0 : dense;
    dense *= own;
    if (size == 1) continue;
    int last = input->rank - 1;
    if (last >= 0 && stride == input->strides[last] * input->sizes[last] &&
        (stride != 0) == (input->strides[last] != 0)) {
      input->sizes[last] *= size;
    } else {
      input->sizes[input->rank] = size;
      input->strides[input->rank++] = stride;
    }
  }
  if (input->rank == 0) {
    input->rank = 1;
    input->sizes[0] = 1;
    input->strides[0] = 0;
  }
  bool repeats = input->strides[0] == 0;
  input->dense = input->rank == 1 && !repeats;
  input->uniform = input->rank == 1 && repeats;
  input->uniform_rows = repeats && input->sizes[0] % row_length_ == 0;
}

void Evaluator::Begin(float* registers) const {
  for (int i = 0; i < program_.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program_.instructions[i];
    if (instruction.opcode != NPU_VECTOR_CONSTANT) continue;
    simd_.fill(instruction.immediate, kBlock, registers + i * kBlock);
  }
}

// Elements along the innermost dimension.
void Evaluator::LoadOne(const Input& input, int64_t offset, int64_t count, float* out) const {
  const char* data = input.data + offset * static_cast<int64_t>(input.element);
  if (input.strides[0] != 0) {
    simd_.load(input.dtype, data, count, out);
  } else {
    float value;
    simd_.load(input.dtype, data, 1, &value);
    simd_.fill(value, count, out);
  }
}

// Elements [index, index + count) in the order of the output.
void Evaluator::LoadRun(const Input& input, int64_t index, int64_t count, float* out) const {
  while (count > 0) {
    int64_t rest = index;
    int64_t offset = 0;
    for (int d = 0; d < input.rank; ++d) {
      offset += rest % input.sizes[d] * input.strides[d];
      rest /= input.sizes[d];
    }
    int64_t run = std::min(count, input.sizes[0] - index % input.sizes[0]);
    LoadOne(input, offset, run, out);
    index += run;
    out += run;
    count -= run;
  }
}

void Evaluator::LoadTile(const Input& input, int64_t rows, int64_t columns, int64_t row,
                         int64_t column, float* out) const {
  int64_t index = row * row_length_ + column;
  if (input.dtype == NPU_FLOAT32 && input.dense) {
    const float* data = reinterpret_cast<const float*>(input.data) + index;
    simd_.take(rows, columns, data, row_length_, 1, out, kPanelColumns);
    return;
  }
  // Mostly the innermost dimension is a row: then one division serves for all of them.
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
    } else if (input.dtype == NPU_FLOAT32) {
      values[r] = reinterpret_cast<const float*>(input.data)[offset];
    } else {
      simd_.load(input.dtype, input.data + offset * static_cast<int64_t>(input.element), 1,
                 values + r);
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
  // Where the value of an instruction is: what lies in memory as needed is not copied.
  auto value = [&](int32_t i) -> Operand {
    const npu_vector_instruction& instruction = program_.instructions[i];
    float* own = registers + i * kBlock;
    if (instruction.opcode == NPU_VECTOR_CONSTANT) return {own, i == last ? -1 : 0};
    if (instruction.opcode != NPU_VECTOR_LOAD) return {own};
    if (values != nullptr && instruction.a == 0) return {values};
    const Input& input = inputs_[instruction.a];
    if (run && input.dtype == NPU_FLOAT32 && input.dense) {
      return {reinterpret_cast<const float*>(input.data) + index};
    }
    bool uniform = run ? input.uniform_rows : input.uniform;
    return {own, uniform && i != last ? 0 : -1};
  };
  const float* result = values;
  for (int i = 0; i <= last; ++i) {
    const npu_vector_instruction& instruction = program_.instructions[i];
    float* to = registers + i * kBlock;
    Operand own = value(i);
    result = own.data;
    if (instruction.opcode == NPU_VECTOR_CONSTANT) continue;
    if (instruction.opcode == NPU_VECTOR_LOAD) {
      const Input& input = inputs_[instruction.a];
      if (result != to) continue;
      if (own.mask == 0) {
        LoadRun(input, index, 1, to);
        simd_.fill(*to, kSplat, to);
      } else if (run) {
        LoadRun(input, index, columns, to);
      } else {
        LoadTile(input, rows, columns, row, column, to);
      }
      continue;
    }
    if (i == last && run && dtype_ == NPU_FLOAT32) to = reinterpret_cast<float*>(out);
    auto operand = [&](int32_t number) {
      return number >= 0 && number < i ? value(number) : Operand();
    };
    simd_.apply(instruction.opcode, operand(instruction.a), operand(instruction.b),
                operand(instruction.c), count, to);
    result = to;
  }
  if (result == reinterpret_cast<float*>(out)) return;
  if (dtype_ == NPU_FLOAT32) {
    simd_.take(rows, columns, result, kPanelColumns, 1, reinterpret_cast<float*>(out), row_length_);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    simd_.store(dtype_, result + r * kPanelColumns, columns, out);
    out += row_length_ * static_cast<int64_t>(element_);
  }
}

void Evaluator::StoreRun(const float* values, int64_t count, int64_t row, int64_t column,
                         float* registers) const {
  if (program_.instruction_count == 0) {
    int64_t index = row * row_length_ + column;
    simd_.store(dtype_, values, count, out_ + index * static_cast<int64_t>(element_));
    return;
  }
  for (int64_t i = 0; i < count; i += kBlock) {
    StoreBlock(values == nullptr ? nullptr : values + i, 1, std::min(kBlock, count - i), row,
               column + i, registers);
  }
}

void Evaluator::StoreTile(const float* tile, int64_t rows, int64_t columns, int64_t row,
                          int64_t column, float* registers) const {
  StoreBlock(tile, rows, columns, row, column, registers);
}

size_t ElementwiseScratch(const ElementwiseArgs& args, int threads) {
  return static_cast<size_t>(threads * Evaluator::Registers(args.program)) * sizeof(float);
}

void Elementwise(const ElementwiseArgs& args, const KernelContext& context) {
  int64_t count = ElementCount(args.out);
  if (count == 0) return;
  Evaluator evaluator(args.program, args.out, count);
  int64_t registers = Evaluator::Registers(args.program);
  float* scratch = static_cast<float*>(context.scratch);
  int64_t grain = CeilDivide(Grain(args.program.instruction_count), Evaluator::kBlock);
  Parallel(context, count, grain * Evaluator::kBlock, [&](int64_t begin, int64_t end, int worker) {
    float* own = scratch + worker * registers;
    evaluator.Begin(own);
    evaluator.StoreRun(nullptr, end - begin, 0, begin, own);
  });
}

}  // namespace tvm_example_npu::emulator
