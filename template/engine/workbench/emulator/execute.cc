// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execute.cc
 * \brief From commands to kernels.
 */
#include "execute.h"

#include <algorithm>
#include <utility>

#include "kernels/simd.h"

namespace npu::emulator {

/*! \brief Turns commands into steps. */
class Execution::Preparer {
 public:
  Preparer(const Program& program, const Accesses& accesses, const Elision& elision,
           uint8_t* scratchpad, uint8_t* arena, Execution* execution)
      : program_(program),
        accesses_(accesses),
        elision_(elision),
        scratchpad_(scratchpad),
        arena_(arena),
        execution_(*execution) {
    // Slots and shapes refer to steps and views, which must not move.
    execution_.steps_.reserve(program.commands.size());
    size_t views = 0;
    for (const Command& command : program.commands) views += command.inputs.size();
    execution_.views_.reserve(views);
  }

  void Run() {
    for (size_t i = 0; i < program_.commands.size(); ++i) {
      if (elision_.skipped[i]) continue;
      const Command& command = program_.commands[i];
      next_ = accesses_.begin(i);
      std::visit([&](const auto& op) { Prepare(op, command); }, command.op);
    }
  }

 private:
  template <typename Args>
  Args& Step() {
    return std::get<Args>(execution_.steps_.emplace_back(Args()));
  }

  // Tensors are set in the order of their accesses.

  /*! \brief The address of the next tensor; those of inputs and outputs are set later. */
  void SetAddress(void** address) {
    const Place& place = elision_.places[accesses_.index(next_++)];
    switch (place.memory) {
      case Memory::kInput:
        execution_.slots_.push_back({address, place.index, place.offset});
        break;
      case Memory::kOutput:
        execution_.slots_.push_back({address, program_.inputs.size() + place.index, place.offset});
        break;
      case Memory::kConstants:
        // Kernels write only to outputs.
        *address = const_cast<uint8_t*>(program_.constants) + place.offset;
        break;
      case Memory::kArena:
        *address = arena_ + place.offset;
        break;
      case Memory::kScratchpad:
        *address = scratchpad_ + place.offset;
        break;
    }
  }

  void SetShape(npu_tensor tensor, TensorView* view) {
    const Desc& desc = program_.tensors[tensor].desc;
    view->dtype = desc.dtype;
    view->rank = desc.rank;
    bool symbolic = false;
    for (int32_t d = 0; d < desc.rank; ++d) {
      view->dims[d] = desc.dims[d].Most();
      symbolic = symbolic || desc.dims[d].symbol >= 0;
    }
    if (symbolic) execution_.shapes_.push_back({view, &desc});
  }

  void Set(npu_tensor tensor, TensorView* view) {
    SetShape(tensor, view);
    SetAddress(&view->data);
  }

  /*! \brief Sets an operand that may be packed. */
  void SetWeight(npu_tensor tensor, TensorView* view, const void** packed) {
    Set(tensor, view);
    // Packed data is in no input or output, so its address is known.
    if (program_.tensors[tensor].packed_bytes != 0) *packed = view->data;
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
    SetWeight(op.b, &args.b, &args.packed_b);
    args.b_halved = HasHalvedWeight(program_, op);
    args.transpose_a = op.transpose_a != 0;
    args.transpose_b = op.transpose_b != 0;
    args.a_zero_point = op.a_zero_point;
    args.b_zero_point = op.b_zero_point;
    args.b_bits = op.b_bits;
    args.b_block = op.b_block;
    if (op.b_block != 0) {
      Set(op.b_scales, &args.b_scales);
      if (op.b_zero_points >= 0) Set(op.b_zero_points, &args.b_zero_points);
    }
    SetVector(command, &args.epilogue);
    Set(op.out, &args.out);
  }

  void Prepare(const npu_convolution& op, const Command& command) {
    auto& args = Step<ConvolutionArgs>();
    SetData(op, static_cast<size_t>(&command - program_.commands.data()), &args);
    SetWeight(op.weight, &args.weight, &args.packed_weight);
    args.weight_halved = HasHalvedWeight(program_, op);
    args.spatial_rank = op.spatial_rank;
    std::copy_n(op.strides, NPU_MAX_SPATIAL, args.strides);
    std::copy_n(op.dilations, NPU_MAX_SPATIAL, args.dilations);
    std::copy_n(op.pads_begin, NPU_MAX_SPATIAL, args.pads_begin);
    std::copy_n(op.pads_end, NPU_MAX_SPATIAL, args.pads_end);
    args.groups = op.groups;
    args.data_zero_point = op.data_zero_point;
    args.weight_zero_point = op.weight_zero_point;
    SetVector(command, &args.epilogue);
    Set(op.out, &args.out);
    MergeTiles(op, command);
  }

  /*! \brief Sets the data of a convolution, which reads it without zeros if it can. */
  void SetData(const npu_convolution& op, size_t command, ConvolutionArgs* args) {
    Set(op.data, &args->data);
    const int32_t number = elision_.spreads[command];
    if (number < 0) return;
    args->is_spread = true;
    const auto& transfer = std::get<Transfer>(program_.commands[number].op);
    for (int32_t d = 0; d < op.spatial_rank; ++d) {
      args->spread[d] = transfer.out_step[2 + d];
      args->spread_first[d] = transfer.out_offset[2 + d];
    }
  }

  /*! \brief The memory of a tensor of a convolution, and whether it has a part for each output
   *        channel. */
  struct Range {
    Place place;
    uint64_t bytes;
    bool by_channel;

    bool Continues(const Range& other) const {
      return place.IsBeside(other.place) && place.offset == other.place.offset + other.bytes;
    }
    bool Overlaps(const Range& other) const {
      return place.IsBeside(other.place) && place.offset < other.place.offset + other.bytes &&
             other.place.offset < place.offset + bytes;
    }
  };

  /*! \brief The last step, if it is a convolution that can be merged with the next one. */
  struct Tiles {
    size_t steps = 0;
    const npu_convolution* op = nullptr;
    const Command* command = nullptr;
    // Data, weight, what the epilogue loads, and the output.
    std::vector<Range> ranges;
  };

  /*! \brief Merges this convolution with the step before if both are tiles of one convolution,
   *  along the output channels: otherwise each would rearrange the same data. */
  void MergeTiles(const npu_convolution& op, const Command& command) {
    Tiles last = std::move(tiles_);
    tiles_ = {execution_.steps_.size(), &op, &command, RangesOf(op, command)};
    if (tiles_.ranges.empty() || last.ranges.size() != tiles_.ranges.size() ||
        last.steps + 1 != tiles_.steps || !SameWork(*last.op, *last.command, op, command)) {
      return;
    }
    auto& tile = std::get<ConvolutionArgs>(execution_.steps_.back());
    auto& whole = std::get<ConvolutionArgs>(execution_.steps_[execution_.steps_.size() - 2]);
    if ((tile.packed_weight == nullptr) != (whole.packed_weight == nullptr) ||
        tile.weight_halved != whole.weight_halved || tile.is_spread != whole.is_spread) {
      return;
    }
    std::vector<Range> merged = last.ranges;
    int64_t pitch = 0;
    for (size_t i = 0; i < merged.size(); ++i) {
      const Range& next = tiles_.ranges[i];
      if (next.by_channel != merged[i].by_channel) return;
      bool apart = next.by_channel && (whole.weight_pitch != 0 || !next.Continues(merged[i]));
      if (i == 1 && apart) {
        pitch = PitchOf(whole, tile, merged[i], next);
        if (pitch == 0) return;
        merged[i].bytes = next.place.offset + next.bytes - merged[i].place.offset;
        continue;
      }
      if (!(next.by_channel ? next.Continues(merged[i]) : next.place == merged[i].place)) return;
      if (next.by_channel) merged[i].bytes += next.bytes;
    }
    // The output may be a tensor that the epilogue loads, element by element.
    for (size_t i = 0; i + 1 < merged.size(); ++i) {
      const Range& out = merged.back();
      bool same = i >= 2 && merged[i].place == out.place && merged[i].bytes == out.bytes;
      if (merged[i].Overlaps(out) && !same) return;
    }
    int64_t channels = tile.out.dims[1];
    if (pitch != 0 && whole.weight_part == 0) {
      whole.weight_part = whole.weight.dims[0];
      whole.weight_pitch = pitch;
    }
    whole.out.dims[1] += channels;
    whole.weight.dims[0] += channels;
    for (int32_t i = 1; i < whole.epilogue.input_count; ++i) {
      auto& view = const_cast<TensorView&>(whole.epilogue.inputs[i]);
      if (merged[i + 1].by_channel) view.dims[view.rank - 1 - op.spatial_rank] += channels;
    }
    execution_.slots_.erase(
        std::remove_if(execution_.slots_.begin(), execution_.slots_.end(),
                       [&](const Slot& slot) { return IsOf(slot.address, tile); }),
        execution_.slots_.end());
    execution_.steps_.pop_back();
    tiles_ = {execution_.steps_.size(), &op, &command, std::move(merged)};
  }

  /*! \brief The bytes from one part of packed weights to the next, if the weight of a tile
   * continues that of those before, with the same gap; otherwise 0. Memory is handed out in aligned
   * pieces, so weights of few channels leave gaps. */
  static int64_t PitchOf(const ConvolutionArgs& whole, const ConvolutionArgs& tile,
                         const Range& before, const Range& next) {
    if (tile.packed_weight == nullptr || tile.data.dtype != NPU_FLOAT32) return 0;
    if (whole.is_spread) return 0;
    if (!next.place.IsBeside(before.place) ||
        next.place.offset < before.place.offset + before.bytes) {
      return 0;
    }
    const int64_t channels = whole.weight.dims[0];
    const int64_t part = whole.weight_part != 0 ? whole.weight_part : channels;
    if (channels % part != 0 || tile.weight.dims[0] > part) return 0;
    const auto distance = static_cast<int64_t>(next.place.offset - before.place.offset);
    const int64_t pitch = distance / (channels / part);
    const bool even = distance % (channels / part) == 0 && pitch % sizeof(float) == 0;
    return even && (whole.weight_pitch == 0 || whole.weight_pitch == pitch) ? pitch : 0;
  }

  static bool IsOf(void** address, const ConvolutionArgs& args) {
    if (address == &args.data.data || address == &args.weight.data || address == &args.out.data) {
      return true;
    }
    for (int32_t i = 0; i < args.epilogue.input_count; ++i) {
      if (address == &args.epilogue.inputs[i].data) return true;
    }
    return false;
  }

  /*! \brief None if it cannot be merged. */
  std::vector<Range> RangesOf(const npu_convolution& op, const Command& command) const {
    const auto& tile = std::get<ConvolutionArgs>(execution_.steps_.back());
    if (op.groups != 1 || tile.out.dims[0] != 1 || tile.out.dims[1] < 2) return {};
    // Packed weights are panels of kPanelRows rows.
    if (tile.packed_weight != nullptr && tile.weight.dims[0] % kPanelRows != 0) return {};
    std::vector<Range> ranges;
    bool possible = true;
    auto add = [&](npu_tensor number, int channel) {
      const Tensor& tensor = program_.tensors[number];
      const Desc& desc = tensor.desc;
      for (int32_t d = 0; d < desc.rank; ++d) possible = possible && desc.dims[d].symbol < 0;
      bool by_channel = channel >= 0 && desc.dims[channel].size == tile.out.dims[1];
      for (int d = 0; by_channel && d < channel; ++d) {
        possible = possible && desc.dims[d].size == 1;
      }
      const Access* access = accesses_.begin(&command - program_.commands.data());
      Place place = elision_.places[accesses_.index(access) + ranges.size()];
      ranges.push_back({place, MostBytes(tensor), by_channel});
    };
    add(op.data, -1);
    add(op.weight, 0);
    for (size_t i = 1; i < command.inputs.size(); ++i) {
      int rank = program_.tensors[command.inputs[i]].desc.rank;
      add(command.inputs[i], rank - 1 - op.spatial_rank);
    }
    add(op.out, 1);
    return possible ? ranges : std::vector<Range>();
  }

  static bool SameWork(const npu_convolution& a, const Command& a_command, const npu_convolution& b,
                       const Command& b_command) {
    auto same = [](const int64_t* x, const int64_t* y) {
      return std::equal(x, x + NPU_MAX_SPATIAL, y);
    };
    return a.spatial_rank == b.spatial_rank && same(a.strides, b.strides) &&
           same(a.dilations, b.dilations) && same(a.pads_begin, b.pads_begin) &&
           same(a.pads_end, b.pads_end) && a.data_zero_point == b.data_zero_point &&
           a.weight_zero_point == b.weight_zero_point &&
           std::equal(a_command.instructions.begin(), a_command.instructions.end(),
                      b_command.instructions.begin(), b_command.instructions.end(),
                      [](const npu_vector_instruction& x, const npu_vector_instruction& y) {
                        return x.opcode == y.opcode && x.a == y.a && x.b == y.b && x.c == y.c &&
                               x.immediate == y.immediate;
                      });
  }

  void Prepare(const npu_pool& op, const Command&) {
    auto& args = Step<PoolArgs>();
    Set(op.data, &args.data);
    args.kind = op.kind;
    args.spatial_rank = op.spatial_rank;
    std::copy_n(op.window, NPU_MAX_SPATIAL, args.window);
    std::copy_n(op.strides, NPU_MAX_SPATIAL, args.strides);
    std::copy_n(op.dilations, NPU_MAX_SPATIAL, args.dilations);
    std::copy_n(op.pads_begin, NPU_MAX_SPATIAL, args.pads_begin);
    std::copy_n(op.pads_end, NPU_MAX_SPATIAL, args.pads_end);
    Set(op.out, &args.out);
  }

  void Prepare(const npu_elementwise& op, const Command& command) {
    auto& args = Step<ElementwiseArgs>();
    SetVector(command, &args.program);
    Set(op.out, &args.out);
  }

  void Prepare(const npu_reduce& op, const Command& command) {
    auto& args = Step<ReduceArgs>();
    Set(op.data, &args.data);
    args.kind = op.kind;
    args.axes = op.axes;
    SetVector(command, &args.epilogue);
    Set(op.out, &args.out);
  }

  void Prepare(const Transfer& op, const Command&) {
    auto& args = Step<CopyArgs>();
    uint64_t packed = program_.tensors[op.out].packed_bytes;
    if (packed != 0) {
      args.data.dtype = args.out.dtype = NPU_UINT8;
      args.data.rank = args.out.rank = 1;
      args.data.dims[0] = args.out.dims[0] = static_cast<int64_t>(packed);
      SetAddress(&args.data.data);
      SetAddress(&args.out.data);
      return;
    }
    args.fill = op.fill != 0;
    args.fill_value = op.fill_value;
    if (op.data >= 0) {
      Set(op.data, &args.data);
      std::copy_n(op.permutation, NPU_MAX_RANK, args.permutation);
      std::copy_n(op.data_offset, NPU_MAX_RANK, args.data_offset);
      std::copy_n(op.data_step, NPU_MAX_RANK, args.data_step);
      std::copy_n(op.out_offset, NPU_MAX_RANK, args.out_offset);
      std::copy_n(op.out_step, NPU_MAX_RANK, args.out_step);
    }
    Set(op.out, &args.out);
    args.data.rank = args.out.rank;
  }

  void Prepare(const npu_gather& op, const Command&) {
    auto& args = Step<GatherArgs>();
    Set(op.data, &args.data);
    Set(op.indices, &args.indices);
    args.axis = op.axis;
    args.elementwise = op.elementwise != 0;
    Set(op.out, &args.out);
  }

  void Prepare(const npu_update& op, const Command&) {
    auto& args = Step<UpdateArgs>();
    Set(op.value, &args.value);
    Set(op.positions, &args.positions);
    args.axis = op.axis;
    Set(op.out, &args.out);
  }

  /*! \brief A plain operation. */
  template <typename Op>
  void Prepare(const Op& op, const Command&) {
    auto& args = Step<PlainArgs<Op>>();
    args.op = op;
    TensorView* view = args.reads;
    ForEachOperand(op, [&](npu_tensor tensor) { Set(tensor, view++); });
    Set(op.out, &args.out);
  }

  const Program& program_;
  const Accesses& accesses_;
  const Elision& elision_;
  uint8_t* scratchpad_;
  uint8_t* arena_;
  Execution& execution_;
  const Access* next_ = nullptr;
  Tiles tiles_;
};

Execution::Execution(const Program& program, const Accesses& accesses, const Elision& elision,
                     uint8_t* scratchpad, uint8_t* arena)
    : threads_(program.machine.threads) {
  Preparer(program, accesses, elision, scratchpad, arena, this).Run();
  // Scratch sizes grow with the sizes, but not monotonically: kernels use power-of-two blocks.
  std::vector<int64_t> symbols(program.symbols.size());
  int64_t most = 1;
  for (const Symbol& symbol : program.symbols) most = std::max(most, symbol.bound);
  for (int64_t value = 1;; value *= 2) {
    for (size_t i = 0; i < symbols.size(); ++i) {
      symbols[i] = std::min(value, program.symbols[i].bound);
    }
    SetSymbols(symbols.data());
    most_scratch_bytes_ = std::max(most_scratch_bytes_, scratch_bytes_);
    if (value >= most) break;
  }
}

void Execution::SetSymbols(const int64_t* symbols) {
  for (const Shape& shape : shapes_) {
    for (int32_t d = 0; d < shape.desc->rank; ++d) {
      shape.view->dims[d] = shape.desc->dims[d].Extent(symbols);
    }
  }
  scratch_bytes_ = 0;
  for (const Step& step : steps_) {
    std::visit(
        [&](const auto& args) {
          scratch_bytes_ = std::max(scratch_bytes_, ScratchBytes(args, threads_));
        },
        step);
  }
}

void Execution::Bind(const std::vector<void*>& buffers) {
  for (const Slot& slot : slots_) {
    *slot.address = static_cast<uint8_t*>(buffers[slot.buffer]) + slot.offset;
  }
}

bool Execution::Run(const KernelContext& context, const std::atomic<bool>& cancel) const {
  for (size_t i = 0; i < steps_.size();) {
    if (cancel.load(std::memory_order_relaxed)) return false;
    if (const size_t done = RunRows(i, context)) {
      i += done;
      continue;
    }
    std::visit([&context](const auto& args) { Execute(args, context); }, steps_[i++]);
  }
  return true;
}

size_t Execution::RunRows(size_t first, const KernelContext& context) const {
  if (first + 2 >= steps_.size()) return 0;
  auto* number = std::get_if<ReduceArgs>(&steps_[first]);
  auto* elements = std::get_if<ElementwiseArgs>(&steps_[first + 1]);
  auto* other = std::get_if<ReduceArgs>(&steps_[first + 2]);
  if (number == nullptr || elements == nullptr || other == nullptr) return 0;
  const bool more = first + 3 < steps_.size();
  auto* last = more ? std::get_if<ElementwiseArgs>(&steps_[first + 3]) : nullptr;
  return static_cast<size_t>(RunRowSteps(*number, *elements, *other, last, context));
}

}  // namespace npu::emulator
