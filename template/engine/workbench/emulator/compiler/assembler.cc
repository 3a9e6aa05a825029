// SPDX-License-Identifier: Apache-2.0
/*!
 * \file assembler.cc
 * \brief The program under construction.
 */
#include "assembler.h"

#include <algorithm>
#include <utility>

namespace npu::emulator {

Assembler::Assembler(const Graph& graph, const std::vector<Desc>& descs, const Machine& machine)
    : graph_(graph), descs_(descs), homes_(graph.values().size()) {
  program_.machine = machine;
  program_.symbols = graph.symbols();
  program_.labels = graph.labels();
  for (npu_tensor input : graph.inputs()) program_.inputs.push_back(graph.values()[input].desc);
  for (npu_tensor output : graph.outputs()) {
    Home& home = homes_[Base(output)];
    bool result = graph.values()[Base(output)].source == Source::kResult;
    if (result && home.output < 0) home.output = static_cast<int32_t>(program_.outputs.size());
    program_.outputs.push_back(graph.values()[output].desc);
  }
  program_.states = graph.states();
  for (const StateMemory& state : graph.states()) {
    homes_[graph.outputs()[state.output]].input = static_cast<int32_t>(state.input);
  }
  // Fail early, not after millions of tiles.
  CheckDram(0);
}

npu_tensor Assembler::TensorAt(const Desc& desc, const Place& place, uint64_t packed_bytes) {
  uint64_t hash = 0;
  auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(static_cast<uint64_t>(place.memory) << 32 | place.index);
  mix(place.offset);
  mix(packed_bytes);
  mix(static_cast<uint64_t>(desc.dtype) << 32 | static_cast<uint64_t>(desc.rank));
  for (int32_t d = 0; d < desc.rank; ++d) {
    mix(static_cast<uint64_t>(desc.dims[d].size));
    mix(static_cast<uint64_t>(desc.dims[d].begin));
  }
  auto [begin, end] = tensors_.equal_range(hash);
  for (auto i = begin; i != end; ++i) {
    const Tensor& tensor = program_.tensors[i->second];
    bool same = tensor.place.memory == place.memory && tensor.place.index == place.index &&
                tensor.place.offset == place.offset && tensor.packed_bytes == packed_bytes &&
                tensor.desc.dtype == desc.dtype && tensor.desc.rank == desc.rank &&
                std::equal(desc.dims, desc.dims + desc.rank, tensor.desc.dims);
    if (same) return i->second;
  }
  auto id = static_cast<npu_tensor>(program_.tensors.size());
  program_.tensors.push_back({desc, place, packed_bytes});
  tensors_.emplace(hash, id);
  return id;
}

npu_tensor Assembler::InScratchpad(const Desc& desc, int64_t offset, uint64_t packed_bytes) {
  return TensorAt(desc, {Memory::kScratchpad, 0, static_cast<uint64_t>(offset)}, packed_bytes);
}

npu_tensor Assembler::AtHome(npu_tensor value, const Desc& desc) {
  npu_tensor base = Base(value);
  const Value& source = graph_.values()[base];
  Home& home = homes_[base];
  if (source.source == Source::kInput) {
    return TensorAt(desc, {Memory::kInput, static_cast<uint32_t>(source.index), 0});
  }
  if (source.source == Source::kConstant) {
    if (home.constant < 0) {
      StoredConstant stored;
      stored.value = base;
      stored.bytes = static_cast<uint64_t>(MostBytes(source.desc));
      home.constant = static_cast<int64_t>(Store(stored));
    }
    return TensorAt(desc, {Memory::kConstants, 0, static_cast<uint64_t>(home.constant)});
  }
  if (home.input >= 0) {
    return TensorAt(descs_[value], {Memory::kInput, static_cast<uint32_t>(home.input), 0});
  }
  if (home.output >= 0) {
    return TensorAt(desc, {Memory::kOutput, static_cast<uint32_t>(home.output), 0});
  }
  if (home.lifetime < 0) {
    home.lifetime = static_cast<int32_t>(lifetimes_.size());
    Lifetime lifetime;
    lifetime.bytes = static_cast<int64_t>(Aligned(static_cast<size_t>(MostBytes(descs_[base]))));
    CheckDram(lifetime.bytes);
    lifetimes_.push_back(lifetime);
  }
  // Until the arena is planned, the offset is the index of the lifetime.
  return TensorAt(desc, {Memory::kArena, 0, static_cast<uint64_t>(home.lifetime)});
}

npu_tensor Assembler::Output(int32_t index) {
  return TensorAt(program_.outputs[index], {Memory::kOutput, static_cast<uint32_t>(index), 0});
}

int32_t Assembler::WeightBitsOf(const npu_matmul& op) const {
  const auto& values = graph_.values();
  return WeightBits(values[op.a].desc.dtype, values[op.b].desc.dtype, op.b_bits);
}

npu_tensor Assembler::Packed(int32_t operation, const Operand& weight, const Range* part,
                             int64_t groups) {
  const auto& op = graph_.operations()[operation].op;
  auto* matmul = std::get_if<npu_matmul>(&op);
  bool transpose = matmul != nullptr && matmul->transpose_b != 0;
  const int32_t bits = matmul != nullptr ? WeightBitsOf(*matmul) : 0;
  std::vector<int64_t> key = {Base(weight.value), groups, static_cast<int64_t>(op.index()),
                              transpose,          bits,   weight.halved};
  for (int32_t d = 0; d < weight.desc.rank; ++d) {
    for (int64_t number : {weight.desc.dims[d].size, part[d].begin, part[d].size}) {
      key.push_back(number);
    }
  }
  auto [entry, added] = packed_.try_emplace(std::move(key), -1);
  if (!added) return entry->second;
  Desc desc = PartOf(weight.desc, part);
  TensorView view = Resolve(desc, nullptr);
  StoredConstant stored;
  stored.value = weight.value;
  stored.packed_for = operation;
  stored.halved = weight.halved;
  stored.groups = groups;
  for (int32_t d = 0; d < desc.rank; ++d) {
    stored.begin[d] = part[d].begin;
    stored.extent[d] = part[d].size;
  }
  stored.bytes = matmul != nullptr ? PackedMatMulBBytes(view, transpose, bits)
                                   : PackedConvolutionWeightBytes(view, groups);
  if (stored.halved) stored.bytes = HalvedBytes(stored.bytes);
  entry->second = TensorAt(desc, {Memory::kConstants, 0, Store(stored)}, stored.bytes);
  return entry->second;
}

uint64_t Assembler::Store(StoredConstant constant) {
  constant.offset = program_.constant_bytes;
  program_.constant_bytes += Aligned(constant.bytes);
  compiled_.constants.push_back(constant);
  return constant.offset;
}

void Assembler::Add(Command command) {
  command.label = label_;
  auto now = static_cast<int32_t>(program_.commands.size());
  auto touch = [&](npu_tensor tensor) {
    const Place& place = program_.tensors[tensor].place;
    if (place.memory != Memory::kArena) return;
    Lifetime& lifetime = lifetimes_[place.offset];
    if (lifetime.first < 0) lifetime.first = now;
    lifetime.last = now;
  };
  ForEachRead(command, touch);
  touch(emulator::OutputOf(command));
  program_.commands.push_back(std::move(command));
}

void Assembler::AddTransfer(npu_tensor data, npu_tensor out, const Range* data_part,
                            const Range* out_part) {
  Transfer transfer;
  transfer.data = data;
  transfer.out = out;
  for (int32_t d = 0; d < NPU_MAX_RANK; ++d) transfer.permutation[d] = d;
  for (int32_t d = 0; d < program_.tensors[data].desc.rank; ++d) {
    if (data_part != nullptr) transfer.data_offset[d] = data_part[d].begin;
    if (out_part != nullptr) transfer.out_offset[d] = out_part[d].begin;
  }
  Command command;
  command.op = transfer;
  Add(std::move(command));
}

void Assembler::CheckDram(int64_t arena) const {
  int64_t inputs = 0;
  int64_t outputs = 0;
  for (const Desc& desc : program_.inputs) inputs = Plus(inputs, MostBytes(desc));
  for (const Desc& desc : program_.outputs) outputs = Plus(outputs, MostBytes(desc));
  auto constants = static_cast<int64_t>(program_.constant_bytes);
  int64_t all = Plus(Plus(inputs, outputs), Plus(arena, constants));
  int64_t given = program_.machine.dram_bytes;
  if (all > given) {
    throw Error(NPU_OUT_OF_MEMORY,
                Join("The program needs at least ", all, " bytes of DRAM (", constants,
                     " for constants, ", inputs, " for inputs, ", outputs, " for outputs, ", arena,
                     " for intermediates), but there are ", given, ": ", all - given,
                     " bytes are missing. Raise the option dram_bytes."));
  }
}

Compiled Assembler::Finish() {
  ArenaPlan plan = PlanArena(&lifetimes_);
  program_.arena_bytes = static_cast<uint64_t>(plan.bytes);
  program_.arena_lower_bound = static_cast<uint64_t>(plan.lower_bound);
  for (Tensor& tensor : program_.tensors) {
    if (tensor.place.memory != Memory::kArena) continue;
    tensor.place.offset = static_cast<uint64_t>(lifetimes_[tensor.place.offset].offset);
  }
  CheckDram(plan.bytes);
  return std::move(compiled_);
}

Desc PartOf(const Desc& desc, const Range* part) {
  Desc result = desc;
  for (int32_t d = 0; d < desc.rank; ++d) {
    if (desc.dims[d].symbol < 0) {
      result.dims[d].size = part[d].size;
    } else {
      result.dims[d].begin = desc.dims[d].begin + part[d].begin;
      result.dims[d].limit = part[d].size;
    }
  }
  return result;
}

void WriteConstants(const Graph& graph, const Compiled& compiled, uint8_t* to) {
  for (const StoredConstant& stored : compiled.constants) {
    const Value& value = graph.values()[stored.value];
    const uint8_t* data = graph.constant(graph.values()[value.base].index);
    uint8_t* out = to + stored.offset;
    if (stored.packed_for < 0) {
      std::copy_n(data, stored.bytes, out);
      continue;
    }
    // A tile of the weight side by side, then packed.
    CopyArgs copy;
    copy.data = Resolve(value.desc, nullptr);
    copy.data.data = const_cast<uint8_t*>(data);
    copy.out = copy.data;
    bool whole = true;
    for (int32_t d = 0; d < value.desc.rank; ++d) {
      copy.permutation[d] = d;
      copy.data_offset[d] = stored.begin[d];
      copy.out.dims[d] = stored.extent[d];
      whole = whole && stored.extent[d] == copy.data.dims[d];
    }
    Buffer tile;
    if (!whole) {
      tile = Buffer(static_cast<size_t>(ElementCount(copy.out)) * ElementSize(copy.out.dtype));
      copy.out.data = tile.data();
      Execute(copy, KernelContext());
    }
    const Operation& operation = graph.operations()[stored.packed_for];
    auto* matmul = std::get_if<npu_matmul>(&operation.op);
    const bool transpose = matmul != nullptr && matmul->transpose_b != 0;
    int32_t bits = 0;
    if (matmul != nullptr) {
      bits = WeightBits(graph.values()[matmul->a].desc.dtype, copy.out.dtype, matmul->b_bits);
    }
    Buffer packed;
    if (stored.halved) {
      packed = Buffer(matmul != nullptr ? PackedMatMulBBytes(copy.out, transpose, bits)
                                        : PackedConvolutionWeightBytes(copy.out, stored.groups));
    }
    uint8_t* to = stored.halved ? packed.data() : out;
    if (matmul != nullptr) {
      PackMatMulB(copy.out, transpose, bits, to);
    } else {
      PackConvolutionWeight(copy.out, stored.groups, to);
    }
    if (stored.halved) Halve(packed.data(), packed.size(), out);
  }
}

}  // namespace npu::emulator
