// SPDX-License-Identifier: Apache-2.0
/*!
 * \file row_steps.cc
 * \brief The steps of a softmax and of a normalization along rows, in fewer passes over them.
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
bool IsLike(const TensorView& tensor, const TensorView& shape) {
  return tensor.dtype == NPU_FLOAT32 && SameShape(tensor, shape);
}

bool AreApart(const TensorView& a, const TensorView& b) {
  auto begin = [](const TensorView& x) { return static_cast<const float*>(x.data); };
  return begin(a) + ElementCount(a) <= begin(b) || begin(b) + ElementCount(b) <= begin(a);
}
bool AreSameOrApart(const TensorView& a, const TensorView& b) {
  return a.data == b.data || AreApart(a, b);
}

// An instruction of a program if it has this opcode, else null.
const npu_vector_instruction* Find(const VectorProgram& program, int32_t instruction,
                                   npu_vector_opcode opcode) {
  if (instruction < 0 || program.instructions[instruction].opcode != opcode) return nullptr;
  return program.instructions + instruction;
}
// The input that an instruction loads, or null.
const TensorView* FindInput(const VectorProgram& program, int32_t instruction) {
  const npu_vector_instruction* load = Find(program, instruction, NPU_VECTOR_LOAD);
  return load == nullptr ? nullptr : program.inputs + load->a;
}

// A number of each row of the data; for each element, a function of it and that number; of these
// elements, another number of each row.
struct Steps {
  Steps(const ReduceArgs& first_args, const ElementwiseArgs& second_args,
        const ReduceArgs& third_args)
      : first(first_args),
        second(second_args),
        third(third_args),
        data(first_args.data),
        by_row(first_args.data) {
    for (int d = data.rank - 1; d >= 0 && ((first.axes >> d) & 1) != 0; --d) {
      axes |= 1u << d;
      columns *= data.dims[d];
      by_row.dims[d] = 1;
    }
  }

  // A reduction along the last dimensions, which are the rows.
  bool Reduces(const ReduceArgs& args, npu_reduce_kind kind) const {
    return args.kind == kind && axes != 0 && args.axes == axes && IsLike(args.data, data) &&
           args.out.dtype == NPU_FLOAT32 &&
           ElementCount(args.out) * columns == ElementCount(args.data);
  }

  // Whether an instruction combines an element of `a` with its row's number in `b`.
  bool Combines(const VectorProgram& program, int32_t instruction, npu_vector_opcode opcode,
                const TensorView& a, const TensorView& b) const {
    const npu_vector_instruction* combined = Find(program, instruction, opcode);
    if (combined == nullptr) return false;
    const TensorView* left = FindInput(program, combined->a);
    return left != nullptr && left->data == a.data && IsLike(*left, data) &&
           IsByRow(FindInput(program, combined->b), b);
  }
  bool IsByRow(const TensorView* input, const TensorView& numbers) const {
    return input != nullptr && input->data == numbers.data && IsLike(*input, by_row);
  }

  // Whether the second step begins with differences between data and numbers of the first one.
  bool Match(npu_reduce_kind first_kind, npu_reduce_kind third_kind) const {
    const VectorProgram& program = second.program;
    return Reduces(first, first_kind) && Reduces(third, third_kind) &&
           first.epilogue.instruction_count == 0 && program.instruction_count == 4 &&
           Combines(program, 2, NPU_VECTOR_SUBTRACT, data, first.out) && IsLike(second.out, data) &&
           third.data.data == second.out.data && AreApart(first.out, data) &&
           AreApart(first.out, second.out) && AreApart(third.out, data) &&
           AreApart(third.out, second.out);
  }

  // Whether a last step stores elements that no row reads again.
  bool CanStore(const TensorView& out) const {
    return IsLike(out, data) && AreSameOrApart(out, data) && AreSameOrApart(out, second.out) &&
           AreApart(out, first.out) && AreApart(out, third.out);
  }

  int64_t rows() const { return ElementCount(data) / columns; }

  const ReduceArgs& first;
  const ElementwiseArgs& second;
  const ReduceArgs& third;
  const TensorView& data;
  uint32_t axes = 0;
  int64_t columns = 1;
  TensorView by_row;
};

float* Floats(const TensorView& tensor) { return static_cast<float*>(tensor.data); }

// Runs the steps for all rows: `body(begin, end, results)` does all but the end of the third one.
template <typename Body>
void ForRows(const Steps& steps, int64_t operations, const KernelContext& context,
             const Body& body) {
  const VectorProgram& program = steps.third.epilogue;
  const Evaluator evaluator(program, steps.third.out, steps.rows());
  const int64_t numbers = kBlock + Evaluator::Registers(program);
  const int64_t grain = std::min(Grain(steps.columns * operations), kBlock);
  Parallel(context, steps.rows(), grain, [&](int64_t begin, int64_t end, int worker) {
    float* results = static_cast<float*>(context.scratch) + worker * numbers;
    float* registers = results + kBlock;
    body(begin, end, results);
    evaluator.Begin(registers);
    evaluator.StoreRun(results, end - begin, 0, begin, registers);
  });
}

// ---- Softmax: the maximum, exponentials, their sum, and quotients ----

bool IsSoftmax(const Steps& steps) {
  if (!steps.Match(NPU_REDUCE_MAX, NPU_REDUCE_SUM)) return false;
  const npu_vector_instruction* exponential = Find(steps.second.program, 3, NPU_VECTOR_EXP);
  return exponential != nullptr && exponential->a == 2 &&
         AreSameOrApart(steps.data, steps.second.out) &&
         AreSameOrApart(steps.first.out, steps.third.out);
}

bool IsQuotient(const Steps& steps, const ElementwiseArgs& quotient) {
  const VectorProgram& program = quotient.program;
  return steps.third.epilogue.instruction_count == 0 && program.instruction_count == 3 &&
         steps.Combines(program, 2, NPU_VECTOR_DIVIDE, steps.second.out, steps.third.out) &&
         steps.CanStore(quotient.out);
}

int Softmax(const Steps& steps, const ElementwiseArgs* quotient, const KernelContext& context) {
  if (quotient != nullptr && !IsQuotient(steps, *quotient)) quotient = nullptr;
  float* quotients = quotient == nullptr ? nullptr : Floats(quotient->out);
  // An exponential takes as long as some twenty simpler operations.
  ForRows(steps, 20, context, [&](int64_t begin, int64_t end, float* results) {
    const int64_t first = begin * steps.columns;
    ActiveSimd().softmax(Floats(steps.data) + first, end - begin, steps.columns,
                         Floats(steps.first.out) + begin, Floats(steps.second.out) + first, results,
                         quotients == nullptr ? nullptr : quotients + first);
  });
  return quotient == nullptr ? 3 : 4;
}

// ---- Normalization: the mean, squares of differences, and a function of their mean ----

bool IsVariance(const Steps& steps) {
  if (!steps.Match(NPU_REDUCE_MEAN, NPU_REDUCE_MEAN)) return false;
  const npu_vector_instruction* square = Find(steps.second.program, 3, NPU_VECTOR_MULTIPLY);
  return square != nullptr && square->a == 2 && square->b == 2 &&
         AreApart(steps.data, steps.second.out) && AreApart(steps.first.out, steps.third.out);
}

void Variance(const Steps& steps, const KernelContext& context) {
  ForRows(steps, 8, context, [&](int64_t begin, int64_t end, float* results) {
    const int64_t first = begin * steps.columns;
    ActiveSimd().variances(Floats(steps.data) + first, end - begin, steps.columns,
                           Floats(steps.first.out) + begin, Floats(steps.second.out) + first,
                           results);
  });
}

// What follows: (data - mean) * factor * gamma + beta, with a mean and a factor for each row.
struct Normal {
  explicit Normal(const ElementwiseArgs& args) : out(args.out) {
    const VectorProgram& program = args.program;
    auto find = [&](const npu_vector_instruction* of, npu_vector_opcode opcode) {
      return of == nullptr ? nullptr : Find(program, of->a, opcode);
    };
    auto operand = [&](const npu_vector_instruction* of) {
      return of == nullptr ? nullptr : FindInput(program, of->b);
    };
    if (program.instruction_count != 9) return;
    const npu_vector_instruction* sum = Find(program, 8, NPU_VECTOR_ADD);
    const npu_vector_instruction* product = find(sum, NPU_VECTOR_MULTIPLY);
    const npu_vector_instruction* normalized = find(product, NPU_VECTOR_MULTIPLY);
    const npu_vector_instruction* difference = find(normalized, NPU_VECTOR_SUBTRACT);
    const npu_vector_instruction* load = find(difference, NPU_VECTOR_LOAD);
    data = load == nullptr ? nullptr : program.inputs + load->a;
    mean = operand(difference);
    factor = operand(normalized);
    gamma = operand(product);
    beta = operand(sum);
    for (int d = out.rank - 1; d >= 0 && factor != nullptr && factor->rank == out.rank; --d) {
      if (factor->dims[d] != 1) break;
      columns *= out.dims[d];
    }
  }

  bool IsValid() const {
    if (data == nullptr || mean == nullptr || factor == nullptr || gamma == nullptr ||
        beta == nullptr) {
      return false;
    }
    return out.dtype == NPU_FLOAT32 && IsLike(*data, out) && mean->dtype == NPU_FLOAT32 &&
           IsLike(*factor, *mean) && ElementCount(*mean) * columns == ElementCount(out) &&
           gamma->dtype == NPU_FLOAT32 && IsLike(*beta, *gamma);
  }

  const TensorView& out;
  const TensorView* data = nullptr;
  const TensorView* mean = nullptr;
  const TensorView* factor = nullptr;
  const TensorView* gamma = nullptr;
  const TensorView* beta = nullptr;
  int64_t columns = 1;
};

}  // namespace

bool Normalize(const ElementwiseArgs& args, const KernelContext& context) {
  const Normal normal(args);
  if (!normal.IsValid()) return false;
  const int64_t columns = normal.columns;
  const Broadcast parameters(*normal.gamma, args.out);
  auto store = [&](int64_t row) {
    const float* from = Floats(*normal.data) + row * columns;
    float* to = Floats(args.out) + row * columns;
    parameters.ForRuns(row * columns, columns, [&](int64_t offset, int64_t count) {
      ActiveSimd().normalize(from, count, Floats(*normal.mean)[row], Floats(*normal.factor)[row],
                             Floats(*normal.gamma) + offset, Floats(*normal.beta) + offset,
                             static_cast<int>(parameters.strides[0]), to);
      from += count;
      to += count;
    });
  };
  Parallel(context, ElementCount(args.out) / columns, Grain(4 * columns),
           [&](int64_t begin, int64_t end, int) {
             for (int64_t row = begin; row < end; ++row) store(row);
           });
  return true;
}

int RunRowSteps(const ReduceArgs& first, const ElementwiseArgs& second, const ReduceArgs& third,
                const ElementwiseArgs* fourth, const KernelContext& context) {
  const Steps steps(first, second, third);
  if (ElementCount(first.data) == 0) return 0;
  if (IsSoftmax(steps)) return Softmax(steps, fourth, context);
  if (!IsVariance(steps)) return 0;
  Variance(steps, context);
  return 3;
}

}  // namespace npu::emulator
