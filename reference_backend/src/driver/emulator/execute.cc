// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execute.cc
 * \brief From commands to kernels.
 */
#include <algorithm>

#include "execute.h"

namespace tvm_example_npu::emulator {
namespace {

// One name for the six kernels, and one for what they need.
void Execute(const MatMulArgs& args, const KernelContext& context) { MatMul(args, context); }
void Execute(const ConvolutionArgs& args, const KernelContext& context) {
  Convolution(args, context);
}
void Execute(const PoolArgs& args, const KernelContext& context) { Pool(args, context); }
void Execute(const ElementwiseArgs& args, const KernelContext& context) {
  Elementwise(args, context);
}
void Execute(const ReduceArgs& args, const KernelContext& context) { Reduce(args, context); }
void Execute(const CopyArgs& args, const KernelContext& context) { Copy(args, context); }

size_t Scratch(const MatMulArgs& args, int threads) { return MatMulScratch(args, threads); }
size_t Scratch(const ConvolutionArgs& args, int threads) {
  return ConvolutionScratch(args, threads);
}
size_t Scratch(const PoolArgs& args, int threads) { return PoolScratch(args, threads); }
size_t Scratch(const ElementwiseArgs& args, int threads) {
  return ElementwiseScratch(args, threads);
}
size_t Scratch(const ReduceArgs& args, int threads) { return ReduceScratch(args, threads); }
size_t Scratch(const CopyArgs& args, int threads) { return CopyScratch(args, threads); }

// A multiplication and an addition for each element that is summed.
uint64_t MatrixOperations(const MatMulArgs& args) {
  return 2 * ElementCount(args.out) * args.a.dims[args.a.rank - (args.transpose_a ? 2 : 1)];
}
uint64_t MatrixOperations(const ConvolutionArgs& args) {
  return 2 * ElementCount(args.out) * (ElementCount(args.weight) / args.weight.dims[0]);
}
template <typename Args>
uint64_t MatrixOperations(const Args&) {
  return 0;
}

}  // namespace

/*! \brief Turns commands into steps. */
class Execution::Preparer {
 public:
  Preparer(const Program& program, const Plan& plan, uint8_t* arena, Execution* execution)
      : program_(program), plan_(plan), arena_(arena), execution_(*execution) {
    // Slots refer to steps and views, which must not move.
    execution_.steps_.reserve(program.commands().size() + plan.copies.size());
    size_t views = 0;
    for (const Command& command : program.commands()) views += command.inputs.size();
    execution_.views_.reserve(views);
  }

  void Prepare(const Command& command) {
    std::visit([&](const auto& op) { Prepare(op, command); }, command.op);
  }

  void Prepare(const OutputCopy& copy) {
    auto& args = Step<CopyArgs>();
    Set(copy.tensor, &args.data);
    args.out = Resolve(program_.tensors()[copy.tensor].desc, plan_.symbols.data());
    execution_.slots_.push_back({&args.out.data, program_.inputs().size() + copy.output});
    for (int32_t i = 0; i < args.out.rank; ++i) args.permutation[i] = i;
  }

 private:
  template <typename Args>
  Args& Step() {
    return std::get<Args>(execution_.steps_.emplace_back(Args()));
  }

  /*! \brief Describes a tensor to a kernel. */
  void Set(npu_tensor tensor, TensorView* view) {
    *view = Resolve(program_.tensors()[tensor].desc, plan_.symbols.data());
    const Location& location = plan_.locations[tensor];
    switch (location.place) {
      case Location::kInput:
        execution_.slots_.push_back({&view->data, location.position});
        break;
      case Location::kOutput:
        execution_.slots_.push_back({&view->data, program_.inputs().size() + location.position});
        break;
      case Location::kConstant: {
        const Constant& constant = program_.constants()[location.position];
        // Kernels write only to outputs.
        if (constant.storage == Storage::kPlain) view->data = const_cast<uint8_t*>(constant.data);
        break;
      }
      case Location::kArena:
        view->data = arena_ + location.position;
        break;
      case Location::kNowhere:
        break;
    }
  }

  /*! \brief The packed form of a tensor, or null. */
  const void* Packed(npu_tensor tensor) const {
    const Location& location = plan_.locations[tensor];
    if (location.place != Location::kConstant) return nullptr;
    const Constant& constant = program_.constants()[location.position];
    return constant.storage == Storage::kPacked ? constant.data : nullptr;
  }

  void SetVector(const Command& command, VectorProgram* vector) {
    if (command.instructions.empty()) return;
    size_t first = execution_.views_.size();
    bool epilogue = !std::holds_alternative<npu_elementwise>(command.op);
    for (size_t i = 0; i < command.inputs.size(); ++i) {
      execution_.views_.emplace_back();
      if (i > 0 || !epilogue) Set(command.inputs[i], &execution_.views_.back());
    }
    vector->instructions = command.instructions.data();
    vector->instruction_count = static_cast<int32_t>(command.instructions.size());
    vector->inputs = execution_.views_.data() + first;
    vector->input_count = static_cast<int32_t>(command.inputs.size());
  }

  void Prepare(const npu_matmul& op, const Command& command) {
    auto& args = Step<MatMulArgs>();
    Set(op.a, &args.a);
    Set(op.b, &args.b);
    Set(op.out, &args.out);
    args.transpose_a = op.transpose_a != 0;
    args.transpose_b = op.transpose_b != 0;
    args.packed_b = Packed(op.b);
    SetVector(command, &args.epilogue);
  }

  void Prepare(const npu_convolution& op, const Command& command) {
    auto& args = Step<ConvolutionArgs>();
    Set(op.data, &args.data);
    Set(op.weight, &args.weight);
    Set(op.out, &args.out);
    args.spatial_rank = op.spatial_rank;
    std::copy_n(op.strides, NPU_MAX_SPATIAL, args.strides);
    std::copy_n(op.dilations, NPU_MAX_SPATIAL, args.dilations);
    std::copy_n(op.pads_begin, NPU_MAX_SPATIAL, args.pads_begin);
    std::copy_n(op.pads_end, NPU_MAX_SPATIAL, args.pads_end);
    args.groups = op.groups;
    args.packed_weight = Packed(op.weight);
    SetVector(command, &args.epilogue);
  }

  void Prepare(const npu_pool& op, const Command&) {
    auto& args = Step<PoolArgs>();
    Set(op.data, &args.data);
    Set(op.out, &args.out);
    args.kind = op.kind;
    args.spatial_rank = op.spatial_rank;
    std::copy_n(op.window, NPU_MAX_SPATIAL, args.window);
    std::copy_n(op.strides, NPU_MAX_SPATIAL, args.strides);
    std::copy_n(op.dilations, NPU_MAX_SPATIAL, args.dilations);
    std::copy_n(op.pads_begin, NPU_MAX_SPATIAL, args.pads_begin);
    std::copy_n(op.pads_end, NPU_MAX_SPATIAL, args.pads_end);
  }

  void Prepare(const npu_elementwise& op, const Command& command) {
    auto& args = Step<ElementwiseArgs>();
    Set(op.out, &args.out);
    SetVector(command, &args.program);
  }

  void Prepare(const npu_reduce& op, const Command& command) {
    auto& args = Step<ReduceArgs>();
    Set(op.data, &args.data);
    Set(op.out, &args.out);
    args.kind = op.kind;
    args.axes = op.axes;
    SetVector(command, &args.epilogue);
  }

  void Prepare(const npu_copy& op, const Command&) {
    auto& args = Step<CopyArgs>();
    Set(op.data, &args.data);
    Set(op.out, &args.out);
    std::copy_n(op.permutation, NPU_MAX_RANK, args.permutation);
    std::copy_n(op.offset, NPU_MAX_RANK, args.offset);
    args.fill = op.fill != 0;
    args.fill_value = op.fill_value;
  }

  const Program& program_;
  const Plan& plan_;
  uint8_t* arena_;
  Execution& execution_;
};

Execution::Execution(const Program& program, const Plan& plan, uint8_t* arena, int32_t threads) {
  Preparer preparer(program, plan, arena, this);
  for (const Command& command : program.commands()) preparer.Prepare(command);
  for (const OutputCopy& copy : plan.copies) preparer.Prepare(copy);
  for (const Step& step : steps_) {
    std::visit(
        [&](const auto& args) {
          scratch_bytes_ = std::max(scratch_bytes_, Scratch(args, threads));
          matrix_operations_ += MatrixOperations(args);
        },
        step);
  }
}

void Execution::Bind(const std::vector<void*>& buffers) {
  for (const Slot& slot : slots_) *slot.address = buffers[slot.buffer];
}

void Execution::Run(const KernelContext& context) const {
  for (const Step& step : steps_) {
    std::visit([&context](const auto& args) { Execute(args, context); }, step);
  }
}

}  // namespace tvm_example_npu::emulator
