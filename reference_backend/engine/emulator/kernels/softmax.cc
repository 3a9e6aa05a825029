// SPDX-License-Identifier: Apache-2.0
/*!
 * \file softmax.cc
 * \brief The steps of a softmax along rows, in one pass over them.
 */
#include <algorithm>

#include "evaluator.h"
#include "internal.h"

namespace npu::emulator {

namespace {

constexpr int64_t kBlock = Evaluator::kBlock;

bool SameShape(const TensorView& a, const TensorView& b) {
  return a.rank == b.rank && std::equal(a.dims, a.dims + a.rank, b.dims);
}

// A tensor of float32 with the shape of the data, or with one number for each of its rows.
bool IsLike(const TensorView& tensor, const TensorView& data) {
  return tensor.dtype == NPU_FLOAT32 && SameShape(tensor, data);
}
bool IsByRow(const TensorView& tensor, const TensorView& data) {
  TensorView by_row = data;
  by_row.dims[data.rank - 1] = 1;
  return IsLike(tensor, by_row);
}

bool AlongRows(const ReduceArgs& args, npu_reduce_kind kind) {
  return args.kind == kind && args.data.rank > 0 && args.data.dtype == NPU_FLOAT32 &&
         args.out.dtype == NPU_FLOAT32 && args.axes == 1u << (args.data.rank - 1) &&
         ElementCount(args.out) * args.data.dims[args.data.rank - 1] == ElementCount(args.data);
}

// The input that an instruction of a program loads; null if it is another instruction.
const TensorView* Loaded(const VectorProgram& program, int32_t instruction) {
  if (instruction < 0) return nullptr;
  const npu_vector_instruction& load = program.instructions[instruction];
  return load.opcode == NPU_VECTOR_LOAD ? program.inputs + load.a : nullptr;
}

// Whether an instruction combines an element of `a` with its row's number in `b`.
bool CombinesWithRow(const VectorProgram& program, int32_t instruction, npu_vector_opcode opcode,
                     const TensorView& a, const void* b) {
  const npu_vector_instruction& combined = program.instructions[instruction];
  if (combined.opcode != opcode) return false;
  const TensorView* left = Loaded(program, combined.a);
  const TensorView* right = Loaded(program, combined.b);
  return left != nullptr && right != nullptr && left->data == a.data && IsLike(*left, a) &&
         right->data == b && IsByRow(*right, a);
}

bool AreApart(const TensorView& a, const TensorView& b) {
  auto begin = [](const TensorView& x) { return static_cast<const float*>(x.data); };
  return begin(a) + ElementCount(a) <= begin(b) || begin(b) + ElementCount(b) <= begin(a);
}
bool AreSameOrApart(const TensorView& a, const TensorView& b) {
  return a.data == b.data || AreApart(a, b);
}

bool IsExponential(const ReduceArgs& maximum, const ElementwiseArgs& exponential,
                   const ReduceArgs& sum) {
  const TensorView& data = maximum.data;
  const TensorView& out = exponential.out;
  const VectorProgram& program = exponential.program;
  if (!AlongRows(maximum, NPU_REDUCE_MAX) || !AlongRows(sum, NPU_REDUCE_SUM) ||
      maximum.epilogue.instruction_count != 0 || program.instruction_count != 4) {
    return false;
  }
  const npu_vector_instruction& last = program.instructions[3];
  return last.opcode == NPU_VECTOR_EXP && last.a == 2 &&
         CombinesWithRow(program, 2, NPU_VECTOR_SUBTRACT, data, maximum.out.data) &&
         IsLike(out, data) && sum.data.data == out.data && SameShape(sum.data, out) &&
         AreSameOrApart(data, out) && AreSameOrApart(maximum.out, sum.out) &&
         AreApart(maximum.out, data) && AreApart(maximum.out, out) && AreApart(sum.out, data) &&
         AreApart(sum.out, out);
}

bool IsQuotient(const ReduceArgs& maximum, const ElementwiseArgs& exponential,
                const ReduceArgs& sum, const ElementwiseArgs& quotient) {
  const VectorProgram& program = quotient.program;
  return sum.epilogue.instruction_count == 0 && program.instruction_count == 3 &&
         CombinesWithRow(program, 2, NPU_VECTOR_DIVIDE, exponential.out, sum.out.data) &&
         IsLike(quotient.out, exponential.out) && AreSameOrApart(quotient.out, maximum.data) &&
         AreSameOrApart(quotient.out, exponential.out) && AreApart(quotient.out, maximum.out) &&
         AreApart(quotient.out, sum.out);
}

}  // namespace

int Softmax(const ReduceArgs& maximum, const ElementwiseArgs& exponential, const ReduceArgs& sum,
            const ElementwiseArgs* quotient, const KernelContext& context) {
  if (ElementCount(maximum.data) == 0 || !IsExponential(maximum, exponential, sum)) return 0;
  if (quotient != nullptr && !IsQuotient(maximum, exponential, sum, *quotient)) quotient = nullptr;
  const int64_t columns = maximum.data.dims[maximum.data.rank - 1];
  const int64_t rows = ElementCount(maximum.out);
  const auto* data = static_cast<const float*>(maximum.data.data);
  auto* maxima = static_cast<float*>(maximum.out.data);
  auto* exponentials = static_cast<float*>(exponential.out.data);
  auto* sums = static_cast<float*>(sum.out.data);
  auto* quotients = quotient == nullptr ? nullptr : static_cast<float*>(quotient->out.data);
  const Evaluator evaluator(sum.epilogue, sum.out, rows);
  const int64_t numbers = kBlock + Evaluator::Registers(sum.epilogue);
  const bool plain = sum.epilogue.instruction_count == 0;
  // An exponential takes as long as some twenty simpler operations.
  const int64_t grain = std::min(Grain(columns * 20), kBlock);
  Parallel(context, rows, grain, [&](int64_t begin, int64_t end, int worker) {
    float* memory = static_cast<float*>(context.scratch) + worker * numbers;
    const int64_t first = begin * columns;
    float* results = plain ? sums + begin : memory;
    ActiveSimd().softmax(data + first, end - begin, columns, maxima + begin, exponentials + first,
                         results, quotients == nullptr ? nullptr : quotients + first);
    if (plain) return;
    evaluator.Begin(memory + kBlock);
    evaluator.StoreRun(results, end - begin, 0, begin, memory + kBlock);
  });
  return quotient == nullptr ? 3 : 4;
}

}  // namespace npu::emulator
