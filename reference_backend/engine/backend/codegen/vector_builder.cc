// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {

namespace {

bool IsCommutative(npu_step_kind kind) {
  return kind == NPU_STEP_ADD || kind == NPU_STEP_MULTIPLY || kind == NPU_STEP_MAXIMUM ||
         kind == NPU_STEP_MINIMUM || kind == NPU_STEP_EQUAL;
}

npu_operand OperandOfStep(size_t step) { return {NPU_OPERAND_STEP, static_cast<int32_t>(step), 0}; }

}  // namespace

bool VectorBuilder::IsComputed(const npu_operand& operand) {
  return operand.kind == NPU_OPERAND_STEP || operand.kind == NPU_OPERAND_ACCUMULATOR;
}

Value VectorBuilder::Emit(npu_vector_opcode opcode, Value a, Value b, Value c) {
  instructions_.push_back(npu_vector_instruction{opcode, a.index, b.index, c.index, 0.0});
  if (opcode != NPU_VECTOR_LOAD && opcode != NPU_VECTOR_CONSTANT) {
    std::vector<npu_operand> operands;
    for (Value value : {a, b, c}) {
      if (value.index >= 0) operands.push_back(OperandOf(value));
    }
    AddStep(StepOf(opcode), operands);
    operands_.push_back(OperandOfStep(steps_.size() - 1));
  }
  return Value{static_cast<int32_t>(instructions_.size()) - 1};
}

void VectorBuilder::AddStep(npu_step_kind kind, const std::vector<npu_operand>& operands) {
  npu_step step = {};
  step.kind = kind;
  step.op = "";
  step.operand_count = static_cast<int32_t>(operands.size());
  std::copy(operands.begin(), operands.end(), step.operands);
  if (IsCommutative(kind) && !IsComputed(step.operands[0]) && IsComputed(step.operands[1])) {
    std::swap(step.operands[0], step.operands[1]);
  }
  steps_.push_back(step);
}

void VectorBuilder::NameSteps(size_t first, Value result, const char* op, npu_step_kind kind,
                              const std::vector<npu_operand>& operands) {
  // An op that returns its operand unchanged adds no step.
  if (kind != NPU_STEP_OTHER && steps_.size() > first && operands.size() <= NPU_MAX_OPERANDS) {
    steps_.resize(first);
    AddStep(kind, operands);
    operands_[static_cast<size_t>(result.index)] = OperandOfStep(first);
  }
  for (size_t i = first; i < steps_.size(); ++i) steps_[i].op = op;
}

Value VectorBuilder::AsStep(npu_step_kind kind, const char* op, const Values& operands,
                            Value result) {
  std::vector<npu_operand> read;
  for (Value value : operands) read.push_back(OperandOf(value));
  NameSteps(0, result, op, kind, read);
  return result;
}

Value VectorBuilder::Load(const Tensor& tensor) {
  auto input = std::find(inputs_.begin(), inputs_.end(), tensor.id);
  auto index = static_cast<int32_t>(input - inputs_.begin());
  if (input == inputs_.end()) inputs_.push_back(tensor.id);
  operands_.push_back({NPU_OPERAND_TENSOR, tensor.id, 0});
  return Emit(NPU_VECTOR_LOAD, Value{index});
}

Value VectorBuilder::LoadAccumulator() {
  inputs_.push_back(-1);  // Input 0 of an epilogue is the accumulator, which the driver knows.
  operands_.push_back({NPU_OPERAND_ACCUMULATOR, 0, 0});
  return Emit(NPU_VECTOR_LOAD, Value{0});
}

Value VectorBuilder::Rescale(Value a, Value multiplier, Value shift, npu_rounding rounding) {
  Value result = Emit(NPU_VECTOR_RESCALE, a, multiplier, shift);
  instructions_.back().immediate = rounding;
  npu_step& step = steps_.back();
  step.operands[step.operand_count++] = {NPU_OPERAND_NUMBER, 0, static_cast<double>(rounding)};
  return result;
}

Value VectorBuilder::Constant(double value) {
  operands_.push_back({NPU_OPERAND_NUMBER, 0, value});
  Value result = Emit(NPU_VECTOR_CONSTANT, Value{0});
  instructions_.back().immediate = value;
  return result;
}

npu_vector_program VectorBuilder::Finish(Value result, const char* op) {
  // The last value is the one that is stored, both for instructions and for steps.
  npu_operand last = OperandOf(result);
  if (last.kind != NPU_OPERAND_STEP || last.index + 1 != static_cast<int32_t>(steps_.size())) {
    AddStep(NPU_STEP_CAST, {last});
  }
  for (npu_step& step : steps_) {
    if (*step.op == '\0') step.op = op;
  }
  if (result.index + 1 != static_cast<int32_t>(instructions_.size())) {
    instructions_.push_back({NPU_VECTOR_MAXIMUM, result.index, result.index, -1, 0.0});
  }
  npu_vector_program program = {};
  program.size = sizeof(program);
  program.instructions = instructions_.data();
  program.instruction_count = static_cast<int32_t>(instructions_.size());
  program.inputs = inputs_.data();
  program.input_count = static_cast<int32_t>(inputs_.size());
  program.steps = steps_.data();
  program.step_count = static_cast<int32_t>(steps_.size());
  return program;
}

}  // namespace npu
