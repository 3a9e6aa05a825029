// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.cc
 * \brief What programs say about themselves.
 */
#include "program.h"

#include <algorithm>

namespace npu::emulator {
namespace {

constexpr const char* kMemories[] = {"input", "output", "constants", "arena", "scratchpad"};

/*! \brief The shape of a tensor; symbols have their bounds. */
TensorView ShapeOf(const Desc& desc) {
  TensorView view;
  view.dtype = desc.dtype;
  view.rank = desc.rank;
  for (int32_t d = 0; d < desc.rank; ++d) view.dims[d] = desc.dims[d].Most();
  return view;
}

}  // namespace

const char* Name(const Command& command) {
  if (std::holds_alternative<Transfer>(command.op)) return "transfer";
  return kOperationNames[command.op.index()];
}

bool IsMove(const Command& command) {
  return std::visit([](const auto& op) { return kIsMove<std::decay_t<decltype(op)>>; }, command.op);
}

Engine EngineOf(const Command& command, const std::vector<Tensor>& tensors) {
  if (IsMove(command)) {
    bool in = tensors[OutputOf(command)].place.memory == Memory::kScratchpad;
    return in ? kEngineDmaIn : kEngineDmaOut;
  }
  bool matrix = std::holds_alternative<npu_matmul>(command.op) ||
                std::holds_alternative<npu_convolution>(command.op);
  return matrix ? kEngineMatrix : kEngineVector;
}

size_t WholeBytes(const Program& program, const npu_matmul& op) {
  const TensorView b = ShapeOf(program.tensors[op.b].desc);
  const int32_t bits = WeightBits(program.tensors[op.a].desc.dtype, b.dtype, op.b_bits);
  return PackedMatMulBBytes(b, op.transpose_b != 0, bits);
}
size_t WholeBytes(const Program& program, const npu_convolution& op) {
  return PackedConvolutionWeightBytes(ShapeOf(program.tensors[op.weight].desc), op.groups);
}

bool HasHalvedWeight(const Program& program, const npu_matmul& op) {
  const uint64_t packed = program.tensors[op.b].packed_bytes;
  return packed != 0 && packed < WholeBytes(program, op);
}
bool HasHalvedWeight(const Program& program, const npu_convolution& op) {
  const uint64_t packed = program.tensors[op.weight].packed_bytes;
  return packed != 0 && packed < WholeBytes(program, op);
}

const char* Name(Memory memory) { return kMemories[static_cast<uint8_t>(memory)]; }

uint64_t MostBytes(const Tensor& tensor) {
  return tensor.packed_bytes != 0 ? tensor.packed_bytes
                                  : static_cast<uint64_t>(MostBytes(tensor.desc));
}

uint64_t ScratchpadBytes(const Program& program) {
  uint64_t end = 0;
  for (const Tensor& tensor : program.tensors) {
    if (tensor.place.memory != Memory::kScratchpad) continue;
    end = std::max(end, tensor.place.offset + MostBytes(tensor));
  }
  return end;
}

}  // namespace npu::emulator
