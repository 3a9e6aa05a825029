// SPDX-License-Identifier: Apache-2.0
/*!
 * \file emit.cc
 * \brief The commands of one operation.
 */
#include "emit.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

namespace npu::emulator {
namespace {

/*! \brief The offset of a part that is a slice. */
int64_t SliceOffset(const Desc& desc, const Range* part) {
  auto stride = static_cast<int64_t>(ElementSize(desc.dtype));
  int64_t offset = 0;
  for (int32_t d = desc.rank - 1; d >= 0; --d) {
    offset += part[d].begin * stride;
    stride *= desc.dims[d].Most();
  }
  return offset;
}

/*! \brief Makes the commands of one operation. */
class Emitter {
 public:
  Emitter(const Operation& operation, int32_t index, const Placement& placement, int32_t cores,
          Assembler* assembler)
      : assembler_(*assembler),
        operation_(operation),
        index_(index),
        cores_(cores),
        placement_(placement),
        loop_(placement.loop),
        tiling_(placement.tiling),
        axes_(static_cast<int32_t>(loop_.axes.size())),
        buffers_(loop_.reads.size()),
        first_input_(std::holds_alternative<npu_elementwise>(operation.op) ? 0 : 1) {}

  void Run() {
    for (size_t i = 0; i < loop_.reads.size(); ++i) {
      if (tiling_.reads[i] == Handling::kOnce && buffers_[i].loaded.empty()) LoadAll(i);
    }
    std::array<int64_t, kMaxAxes> indices = {};
    int64_t result = -1;
    while (true) {
      bool first = true;
      bool last = true;
      for (int32_t axis = 0; axis < axes_; ++axis) {
        tile_[axis] = loop_.axes[axis].At(tiling_.sizes[axis], indices[axis]);
        if (!loop_.axes[axis].partial) continue;
        first = first && indices[axis] == 0;
        last = last && indices[axis] + 1 == Count(axis);
      }
      result += first;
      AddTile(result, first, last);
      int32_t level = axes_ - 1;
      for (; level >= 0; --level) {
        int32_t axis = tiling_.order[level];
        if (++indices[axis] < Count(axis)) break;
        indices[axis] = 0;
      }
      if (level < 0) return;
    }
  }

 private:
  /*! \brief A buffer of a streamed operand. */
  struct Loaded {
    npu_tensor tensor = -1;
    std::array<int64_t, NPU_MAX_RANK> begin, size;
  };
  /*! \brief The buffers of one operand, used in turn. */
  struct Buffers {
    std::vector<Loaded> loaded;
    size_t next = 0;
  };

  int64_t Count(int32_t axis) const { return loop_.axes[axis].Count(tiling_.sizes[axis]); }

  int64_t Groups() const {
    int64_t group = loop_.axes.size() > 1 ? loop_.axes[1].group : 0;
    return group == 0 ? 1 : std::max<int64_t>(1, tile_[1].size / group);
  }

  void PartOfTile(const Operand& operand, Range* part) const {
    for (int32_t d = 0; d < operand.desc.rank; ++d) part[d] = RangeOf(loop_, operand, d, tile_);
  }

  /*! \brief Loads a part of an operand to a place in the scratchpad. */
  npu_tensor Load(const Operand& operand, const Range* part, int64_t offset) {
    const bool is_made =
        loop_.made.operation != nullptr && &operand == &loop_.reads[loop_.made.read];
    if (is_made && IsFirst(operand, part)) return Make(operand, part, offset);
    Desc desc = PartOf(operand.desc, part);
    if (operand.packed) {
      npu_tensor stored = assembler_.Packed(index_, operand, part, Groups());
      npu_tensor loaded =
          assembler_.InScratchpad(desc, offset, assembler_.tensor(stored).packed_bytes);
      assembler_.AddTransfer(stored, loaded);
      return loaded;
    }
    npu_tensor loaded = assembler_.InScratchpad(desc, offset);
    npu_tensor whole = operand.resident() ? assembler_.InScratchpad(operand.desc, operand.offset)
                                          : assembler_.AtHome(operand.value);
    assembler_.AddTransfer(whole, loaded, part);
    return loaded;
  }

  /*! \brief Whether this part is not yet in the operand's home. */
  bool IsFirst(const Operand& operand, const Range* part) {
    if (!loop_.made.is_stored) return true;
    std::vector<int64_t> begin;
    for (int32_t d = 0; d < operand.desc.rank; ++d) begin.push_back(part[d].begin);
    return stored_.insert(std::move(begin)).second;
  }

  /*! \brief Loads the data of an element-wise operation, and computes in its place the part of
   *  an operand that is the operation's result. */
  npu_tensor Make(const Operand& operand, const Range* part, int64_t offset) {
    const Making& made = loop_.made;
    npu_tensor loaded = assembler_.InScratchpad(PartOf(operand.desc, part), offset);
    assembler_.SetLabel(made.operation->label);
    assembler_.AddTransfer(assembler_.AtHome(made.data, operand.desc), loaded, part);
    Desc desc = made.desc;
    for (int32_t d = 0; d < desc.rank; ++d) {
      if (made.dims[d] >= 0) desc.dims[d].size = part[made.dims[d]].size;
    }
    npu_elementwise op = {};
    op.out = assembler_.InScratchpad(desc, offset);
    Command command;
    command.core = core_;
    command.instructions = made.operation->instructions;
    for (int32_t read : made.inputs) command.inputs.push_back(read < 0 ? op.out : TileOf(read));
    command.op = op;
    assembler_.Add(std::move(command));
    if (made.is_stored) {
      assembler_.AddTransfer(loaded, assembler_.AtHome(operand.value), nullptr, part);
    }
    assembler_.SetLabel(operation_.label);
    return loaded;
  }

  void LoadAll(size_t i) {
    const Operand& operand = loop_.reads[i];
    for (int32_t axis = 0; axis < axes_; ++axis) tile_[axis] = {0, loop_.axes[axis].dim.Most()};
    Range part[NPU_MAX_RANK];
    for (int32_t d = 0; d < operand.desc.rank; ++d) part[d] = {0, operand.desc.dims[d].Most()};
    buffers_[i].loaded.resize(1);
    buffers_[i].loaded[0].tensor = Load(operand, part, placement_.reads[i][0]);
  }

  /*! \brief The tensor with the part of an operand that the tile needs. */
  npu_tensor TileOf(size_t i) {
    const Operand& operand = loop_.reads[i];
    Range part[NPU_MAX_RANK];
    PartOfTile(operand, part);
    Buffers& buffers = buffers_[i];
    if (tiling_.reads[i] != Handling::kStreamed) {
      bool once = tiling_.reads[i] == Handling::kOnce;
      if (once && buffers.loaded.empty()) LoadAll(i);  // Made from another that is loaded first.
      if (once && operand.packed) return buffers.loaded[0].tensor;
      int64_t offset = once ? placement_.reads[i][0] : operand.offset;
      return assembler_.InScratchpad(PartOf(operand.desc, part),
                                     offset + SliceOffset(operand.desc, part));
    }
    Loaded wanted = {};
    for (int32_t d = 0; d < operand.desc.rank; ++d) {
      wanted.begin[d] = part[d].begin;
      wanted.size[d] = part[d].size;
    }
    for (const Loaded& loaded : buffers.loaded) {
      if (loaded.begin == wanted.begin && loaded.size == wanted.size) return loaded.tensor;
    }
    size_t slot = buffers.next++ % placement_.reads[i].size();
    wanted.tensor = Load(operand, part, placement_.reads[i][slot]);
    if (slot < buffers.loaded.size()) {
      buffers.loaded[slot] = wanted;
    } else {
      buffers.loaded.push_back(wanted);
    }
    return wanted.tensor;
  }

  void AddTile(int64_t result, bool first, bool last) {
    core_ = static_cast<int32_t>(result % cores_);
    std::vector<npu_tensor> tiles;
    for (size_t i = 0; i < loop_.reads.size(); ++i) {
      // Operands that only the epilogue reads are not needed earlier.
      bool needed = last || static_cast<int32_t>(i) <= LastMainOperand();
      if (loop_.made.operation != nullptr && i >= loop_.made.first) needed = false;
      tiles.push_back(needed ? TileOf(i) : -1);
    }
    Range part[NPU_MAX_RANK];
    PartOfTile(loop_.out, part);
    Desc desc = PartOf(loop_.out.desc, part);
    bool in_place = tiling_.out == Handling::kInPlace;
    int64_t slice = SliceOffset(loop_.out.desc, part);
    auto turn = [&](const std::vector<int64_t>& offsets) {
      return offsets[static_cast<size_t>(result) % offsets.size()];
    };
    int64_t offset = in_place ? loop_.out.offset + slice : turn(placement_.outs);
    npu_tensor out = assembler_.InScratchpad(desc, offset);
    npu_tensor sum = out;
    if (tiling_.sum_bytes > 0) {
      Desc sums = desc;
      sums.dtype = loop_.sums;
      sum = assembler_.InScratchpad(sums, turn(placement_.sums));
    }
    Command command;
    command.core = core_;
    std::visit([&](const auto& op) { SetOperation(op, tiles, &command); }, operation_.op);
    // Sums of integers are exact, so an epilogue has to wait for the last part.
    bool waits = last && !first && IsProductOfIntegers() && !operation_.instructions.empty();
    SetVector(tiles, first, last && !waits, sum, &command);
    auto add = [&](npu_tensor result) {
      std::visit(
          [&](auto& op) {
            if constexpr (!std::is_same_v<decltype(op), Transfer&>) op.out = result;
          },
          command.op);
      assembler_.Add(command);
    };
    add(last && !waits ? out : sum);
    if (!last) return;
    if (waits) {
      command.op = npu_elementwise();
      command.instructions = operation_.instructions;
      command.inputs = VectorInputs(tiles);
      command.inputs.resize(std::max<size_t>(1, command.inputs.size()));
      command.inputs[0] = sum;
      add(out);
    }
    if (loop_.out.resident() && !in_place) {
      npu_tensor whole = assembler_.InScratchpad(loop_.out.desc, loop_.out.offset);
      assembler_.AddTransfer(out, whole, nullptr, part);
    }
    if (placement_.store) {
      assembler_.AddTransfer(out, assembler_.AtHome(loop_.out.value), nullptr, part);
    }
  }

  /*! \brief The operands before this one are read not only by the epilogue. */
  int32_t LastMainOperand() const {
    size_t inputs = operation_.inputs.size();
    size_t main = loop_.roles.size() - (inputs > first_input_ ? inputs - first_input_ : 0);
    int32_t last = -1;
    for (size_t k = 0; k < main; ++k) last = std::max(last, loop_.roles[k]);
    return first_input_ == 0 ? static_cast<int32_t>(loop_.reads.size()) : last;
  }

  npu_tensor Role(size_t role, const std::vector<npu_tensor>& tiles) const {
    return tiles[loop_.roles[role]];
  }

  // Operations on tiles.

  void SetOperation(npu_matmul op, const std::vector<npu_tensor>& tiles, Command* command) {
    op.a = Role(0, tiles);
    op.b = Role(1, tiles);
    if (op.b_block != 0) {
      op.b_scales = Role(2, tiles);
      if (op.b_zero_points >= 0) op.b_zero_points = Role(3, tiles);
    }
    command->op = op;
  }

  /*! \brief Sets the padding of the rows that a tile's windows cover. */
  void SetPads(int64_t* begin, int64_t* end) const {
    if (tile_[2].size == loop_.axes[2].dim.Most()) return;
    int64_t first = tile_[2].begin * loop_.stride - loop_.pad;
    int64_t last = first + (tile_[2].size - 1) * loop_.stride + loop_.span;
    *begin = std::max<int64_t>(0, -first);
    *end = std::min(*end, std::max<int64_t>(0, last - loop_.in));
  }

  void SetOperation(npu_convolution op, const std::vector<npu_tensor>& tiles, Command* command) {
    op.data = Role(0, tiles);
    op.weight = Role(1, tiles);
    op.groups = Groups();
    SetPads(&op.pads_begin[0], &op.pads_end[0]);
    command->op = op;
  }

  void SetOperation(npu_pool op, const std::vector<npu_tensor>& tiles, Command* command) {
    op.data = Role(0, tiles);
    SetPads(&op.pads_begin[0], &op.pads_end[0]);
    command->op = op;
  }

  void SetOperation(const npu_elementwise& op, const std::vector<npu_tensor>&, Command* command) {
    command->op = op;
  }

  void SetOperation(npu_reduce op, const std::vector<npu_tensor>& tiles, Command* command) {
    op.data = Role(0, tiles);
    if (tiling_.count > tiling_.results && op.kind == NPU_REDUCE_MEAN) op.kind = NPU_REDUCE_SUM;
    command->op = op;
  }

  /*! \brief A plain operation. */
  template <typename Op>
  void SetOperation(Op op, const std::vector<npu_tensor>& tiles, Command* command) {
    static_assert(kIsPlain<Op>, "an operation has no tiles");
    size_t role = 0;
    ForEachOperand(op, [&](npu_tensor& tensor) { tensor = Role(role++, tiles); });
    command->op = op;
  }

  void SetOperation(const npu_copy&, const std::vector<npu_tensor>&, Command*) {}
  void SetOperation(const npu_gather&, const std::vector<npu_tensor>&, Command*) {}
  void SetOperation(const npu_update&, const std::vector<npu_tensor>&, Command*) {}

  // Epilogues on tiles.

  bool IsProductOfIntegers() const {
    bool product = std::holds_alternative<npu_matmul>(operation_.op) ||
                   std::holds_alternative<npu_convolution>(operation_.op);
    return product && IsInteger(loop_.sums);
  }

  std::vector<npu_tensor> VectorInputs(const std::vector<npu_tensor>& tiles) const {
    std::vector<npu_tensor> inputs;
    for (size_t k = 0; k < operation_.inputs.size(); ++k) {
      size_t role = loop_.roles.size() - operation_.inputs.size() + k;
      inputs.push_back(k < first_input_ ? -1 : Role(role, tiles));
    }
    return inputs;
  }

  void SetVector(const std::vector<npu_tensor>& tiles, bool first, bool last, npu_tensor sum,
                 Command* command) {
    auto& instructions = command->instructions;
    auto& inputs = command->inputs;
    if (last) inputs = VectorInputs(tiles);
    if (first && last) {
      instructions = operation_.instructions;
      return;
    }
    // The first part of a sum is stored unchanged; the next ones are added to it.
    if (first) return;
    if (inputs.empty()) inputs.push_back(-1);
    auto loaded = static_cast<int32_t>(inputs.size());
    inputs.push_back(sum);
    npu_vector_opcode add = NPU_VECTOR_ADD;
    auto* reduce = std::get_if<npu_reduce>(&operation_.op);
    if (reduce != nullptr && reduce->kind == NPU_REDUCE_MAX) add = NPU_VECTOR_MAXIMUM;
    if (reduce != nullptr && reduce->kind == NPU_REDUCE_MIN) add = NPU_VECTOR_MINIMUM;
    if (reduce != nullptr && reduce->kind == NPU_REDUCE_PRODUCT) add = NPU_VECTOR_MULTIPLY;
    instructions.push_back({NPU_VECTOR_LOAD, 0, 0, 0, 0});
    instructions.push_back({NPU_VECTOR_LOAD, loaded, 0, 0, 0});
    instructions.push_back({add, 0, 1, 0, 0});
    if (!last) return;
    if (reduce != nullptr && reduce->kind == NPU_REDUCE_MEAN) {
      double count = 1;
      for (const Axis& axis : loop_.axes) {
        if (axis.partial) count *= static_cast<double>(axis.dim.size);
      }
      instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, count});
      instructions.push_back({NPU_VECTOR_DIVIDE, 2, 3, 0, 0});
    }
    // The epilogue's accumulator is now the value of the last instruction.
    auto accumulator = static_cast<int32_t>(instructions.size() - 1);
    std::vector<int32_t> renamed;
    for (npu_vector_instruction instruction : operation_.instructions) {
      if (instruction.opcode == NPU_VECTOR_LOAD) {
        if (instruction.a == 0) {
          renamed.push_back(accumulator);
          continue;
        }
      } else {
        auto rename = [&](int32_t* operand) {
          bool valid = *operand >= 0 && *operand < static_cast<int32_t>(renamed.size());
          *operand = valid ? renamed[*operand] : 0;
        };
        rename(&instruction.a);
        rename(&instruction.b);
        rename(&instruction.c);
      }
      renamed.push_back(static_cast<int32_t>(instructions.size()));
      instructions.push_back(instruction);
    }
    // The result is the last value: an epilogue may end with the accumulator itself.
    if (!renamed.empty()) instructions.resize(renamed.back() + 1);
  }

  Assembler& assembler_;
  const Operation& operation_;
  int32_t index_, cores_;
  const Placement& placement_;
  const Loop& loop_;
  const Tiling& tiling_;
  int32_t axes_;
  std::vector<Buffers> buffers_;
  size_t first_input_;
  Tile tile_ = {};
  /*! \brief The parts that were made and stored, by where they begin. */
  std::set<std::vector<int64_t>> stored_;
  /*! \brief Of the tile at hand. */
  int32_t core_ = 0;
};

}  // namespace

void Emit(const Operation& operation, int32_t index, const Placement& placement,
          const Machine& machine, Assembler* assembler) {
  Emitter(operation, index, placement, machine.cores, assembler).Run();
}

}  // namespace npu::emulator
