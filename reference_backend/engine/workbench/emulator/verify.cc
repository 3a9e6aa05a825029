// SPDX-License-Identifier: Apache-2.0
/*!
 * \file verify.cc
 * \brief The rules that programs obey.
 */
#include <algorithm>
#include <type_traits>

#include "program.h"
#include "rules.h"

namespace npu::emulator {
namespace {

/*! \brief The space that a tensor takes in an input or an output, in elements.
 *
 * Such memory is only as large as the symbols at hand make it. The elements of a dense shape are a
 * factor times some symbols; of a tile, also times the rest of one symbol.
 */
struct Elements {
  int64_t factor = 1;
  std::vector<int32_t> symbols;
  const Dim* tile = nullptr;

  Elements(const Desc& desc, const std::vector<Symbol>& all) {
    for (const Dim* dim = desc.dims; dim != desc.dims + desc.rank; ++dim) {
      bool whole =
          dim->symbol >= 0 && dim->begin == 0 && dim->limit == dim->size * all[dim->symbol].bound;
      if (whole) symbols.push_back(dim->symbol);
      if (dim->symbol >= 0 && !whole && tile == nullptr) {
        tile = dim;
      } else {
        factor *= whole ? dim->size : dim->Most();
      }
    }
  }
};

/*! \brief Checks one program. */
class Verifier : public OperationRules {
 public:
  explicit Verifier(const Program& program) : program_(program) {}

  void Run() {
    program_.machine.Check();
    CheckSymbols();
    for (size_t i = 0; i < program_.tensors.size(); ++i) CheckTensor(static_cast<npu_tensor>(i));
    CheckMemories();
    CheckStates();
    for (; command_ < program_.commands.size(); ++command_) {
      const Command& command = program_.commands[command_];
      if (command.label < 0 || command.label >= static_cast<int32_t>(program_.labels.size())) {
        Invalid("Command ", command_, " has no label.");
      }
      std::visit([&](const auto& op) { CheckCommand(op, command); }, command.op);
      CheckOverlaps(command);
    }
  }

 protected:
  const Desc& Read(npu_tensor tensor, const char* role, bool may_be_packed) override {
    const Tensor& read = Get(tensor, role);
    RequireScratchpad(tensor, role);
    if (read.packed_bytes != 0 && !may_be_packed) {
      Invalid("The ", role, " of ", Where(), ", ", Describe(tensor), ", is packed.");
    }
    return read.desc;
  }

  const Desc& Write(npu_tensor tensor) override {
    const Tensor& written = Get(tensor, "output");
    RequireScratchpad(tensor, "output");
    if (written.packed_bytes != 0) {
      Invalid("The output of ", Where(), ", ", Describe(tensor), ", is packed.");
    }
    return written.desc;
  }

  std::string Where() const override {
    return Join(Name(program_.commands[command_]), " (command ", command_, ")");
  }

  std::string Describe(npu_tensor tensor) const override {
    return Join("tensor ", tensor, " (", ToString(program_.tensors[tensor].desc, program_.symbols),
                ")");
  }

 private:
  void CheckSymbols() {
    for (const Symbol& symbol : program_.symbols) {
      if (symbol.bound < 1 || symbol.bound > kMaxElements) {
        Invalid("The bound of symbol ", symbol.name, " is ", symbol.bound, "; it must be 1 to ",
                kMaxElements, ".");
      }
    }
    std::vector<bool> known(program_.symbols.size());
    for (const Desc& desc : program_.inputs) {
      CheckBound(desc);
      for (int32_t d = 0; d < desc.rank; ++d) {
        if (desc.dims[d].symbol >= 0) known[desc.dims[d].symbol] = true;
      }
    }
    for (const Desc& desc : program_.outputs) CheckBound(desc);
    for (size_t i = 0; i < known.size(); ++i) {
      if (!known[i]) {
        Invalid("Symbol ", program_.symbols[i].name,
                " is in no input's shape, so its value is unknown.");
      }
    }
    if (program_.outputs.empty()) Invalid("The program has no outputs.");
  }

  /*! \brief Checks the shape of an input or output. */
  void CheckBound(const Desc& desc) const {
    CheckDesc(desc, program_.symbols);
    if (Elements(desc, program_.symbols).tile != nullptr) {
      Invalid("An input or output has the shape of a tile, ", ToString(desc, program_.symbols),
              ".");
    }
  }

  void CheckTensor(npu_tensor index) const {
    const Tensor& tensor = program_.tensors[index];
    const Place& place = tensor.place;
    CheckDesc(tensor.desc, program_.symbols);
    if (place.memory > Memory::kScratchpad) Invalid("Tensor ", index, " is in no memory.");
    if (place.offset % ElementSize(tensor.desc.dtype) != 0 ||
        (tensor.packed_bytes != 0 && place.offset % sizeof(float) != 0)) {
      Invalid("Tensor ", index, " lies at byte ", place.offset, ", which splits an element.");
    }
    bool bound = place.memory == Memory::kInput || place.memory == Memory::kOutput;
    if (tensor.packed_bytes != 0) {
      for (int32_t d = 0; d < tensor.desc.rank; ++d) {
        if (tensor.desc.dims[d].symbol >= 0) Invalid("Tensor ", index, " is packed and symbolic.");
      }
      if (bound) Invalid("Tensor ", index, " is packed, in an input or output.");
    }
    bool fits;
    if (bound) {
      const auto& descs = place.memory == Memory::kInput ? program_.inputs : program_.outputs;
      fits = place.index < descs.size() && FitsAtAnyCall(tensor, descs[place.index]);
    } else {
      uint64_t size = place.memory == Memory::kArena       ? program_.arena_bytes
                      : place.memory == Memory::kConstants ? program_.constant_bytes
                                                           : program_.machine.scratchpad_bytes;
      fits = place.index == 0 && place.offset <= size && MostBytes(tensor) <= size - place.offset;
    }
    if (!fits) {
      Invalid("Tensor ", index, ", ", MostBytes(tensor), " bytes at byte ", place.offset,
              ", does not fit into its memory, ", Name(place.memory), " ", place.index, ".");
    }
    if (place.memory == Memory::kScratchpad && program_.machine.max_tile_bytes > 0 &&
        MostBytes(tensor) > static_cast<uint64_t>(program_.machine.max_tile_bytes)) {
      Invalid("Tensor ", index, " has ", MostBytes(tensor), " bytes in the scratchpad; the machine",
              " allows ", program_.machine.max_tile_bytes, " (max_tile_bytes).");
    }
  }

  /*! \brief Whether the tensor is inside of the input or output for all values of the symbols. */
  bool FitsAtAnyCall(const Tensor& tensor, const Desc& desc) const {
    if (tensor.desc.dtype != desc.dtype) return false;
    Elements part(tensor.desc, program_.symbols);
    Elements all(desc, program_.symbols);
    auto offset = static_cast<int64_t>(
        std::min<uint64_t>(tensor.place.offset / ElementSize(desc.dtype), kMaxCount));
    // Whatever the other symbols are, they are at least 1, and enlarge both alike.
    for (int32_t symbol : part.symbols) {
      auto found = std::find(all.symbols.begin(), all.symbols.end(), symbol);
      if (found == all.symbols.end()) return false;
      all.symbols.erase(found);
    }
    if (part.tile == nullptr) return Plus(offset, part.factor) <= all.factor;
    const Dim& tile = *part.tile;
    auto found = std::find(all.symbols.begin(), all.symbols.end(), tile.symbol);
    if (found == all.symbols.end()) return false;
    // The least value for which the tile has elements. As the symbol grows further, the available
    // space grows at least as much as the tile's end.
    int64_t value = tile.begin / tile.size + 1;
    if (value > program_.symbols[tile.symbol].bound) return true;
    int64_t extent = std::min(tile.size * value - tile.begin, tile.limit);
    return Times(part.factor, tile.size) <= all.factor &&
           Plus(offset, Times(part.factor, extent)) <= Times(all.factor, value);
  }

  void CheckMemories() const {
    uint64_t bytes = 0;
    // No sum overflows: neither has more than kMaxCount.
    auto add = [&](uint64_t more) {
      bytes = Plus(static_cast<int64_t>(bytes),
                   static_cast<int64_t>(std::min<uint64_t>(more, kMaxCount)));
    };
    for (const Desc& desc : program_.inputs) add(MostBytes(desc));
    for (const Desc& desc : program_.outputs) add(MostBytes(desc));
    add(program_.arena_bytes);
    add(program_.constant_bytes);
    auto size = static_cast<uint64_t>(program_.machine.dram_bytes);
    if (bytes > size) {
      Invalid("Inputs, outputs, constants and intermediates take ", bytes,
              " bytes of DRAM; the machine has ", size, " (dram_bytes): ", bytes - size,
              " too few.");
    }
  }

  void CheckStates() const {
    std::vector<bool> inputs(program_.inputs.size()), outputs(program_.outputs.size());
    for (const StateMemory& state : program_.states) {
      if (state.input >= inputs.size() || state.output >= outputs.size() || inputs[state.input] ||
          outputs[state.output]) {
        Invalid("A state is no input and output of its own.");
      }
      inputs[state.input] = outputs[state.output] = true;
      const Desc& input = program_.inputs[state.input];
      const Desc& output = program_.outputs[state.output];
      if (input.dtype != output.dtype || !HasFixedDims(input) ||
          !HasDims(input, {output.dims, output.dims + output.rank})) {
        Invalid("The input ", state.input, " and the output ", state.output,
                " of a state do not have the same type and fixed sizes.");
      }
    }
  }

  const Tensor& Get(npu_tensor tensor, const char* role) const {
    if (tensor < 0 || tensor >= static_cast<npu_tensor>(program_.tensors.size())) {
      Invalid("The ", role, " of ", Where(), " is tensor ", tensor, ", but there are ",
              program_.tensors.size(), " tensors.");
    }
    return program_.tensors[tensor];
  }

  void RequireScratchpad(npu_tensor tensor, const char* role) const {
    // The DMA reaches all memories.
    if (IsMove(program_.commands[command_])) return;
    if (program_.tensors[tensor].place.memory != Memory::kScratchpad) {
      Invalid("The ", role, " of ", Where(), ", ", Describe(tensor), ", is not in the scratchpad.");
    }
  }

  bool IsState(const Place& place) const {
    return place.memory == Memory::kInput &&
           std::any_of(program_.states.begin(), program_.states.end(),
                       [&](const StateMemory& state) { return state.input == place.index; });
  }

  void RequireWritable(npu_tensor tensor) const {
    const Place& place = program_.tensors[tensor].place;
    const Memory memory = place.memory;
    if (IsState(place)) return;
    if (memory == Memory::kInput || memory == Memory::kConstants) {
      Invalid("The output of ", Where(), ", ", Describe(tensor), ", is in ", Name(memory),
              ", which cannot be written.");
    }
  }

  template <typename Op>
  void CheckCommand(const Op& op, const Command& command) {
    if (command.core < 0 || command.core >= program_.machine.cores) {
      Invalid("Command ", command_, " is for core ", command.core, "; the machine has ",
              program_.machine.cores, ".");
    }
    Check(op);
    CheckVector(op, command.instructions, command.inputs, program_.tensors[op.out].desc);
    if constexpr (kIsMove<Op>) {
      if (command.core != 0 || !command.instructions.empty()) {
        Invalid("Command ", command_, ", which moves data, has a core or a vector program.");
      }
      RequireWritable(op.out);
    }
    if constexpr (std::is_same_v<Op, npu_update>) {
      if (op.data != op.out || program_.tensors[op.out].place.memory == Memory::kScratchpad) {
        Invalid("The output of ", Where(), ", ", Describe(op.out), ", is not its data, in DRAM.");
      }
    }
    if ((kIsPlain<Op> || std::is_same_v<Op, npu_pool>) && !command.instructions.empty()) {
      Invalid("An epilogue is given for ", Where(), ".");
    }
    if constexpr (std::is_same_v<Op, npu_pool>) {
      const Desc& data = program_.tensors[op.data].desc;
      if (op.kind != NPU_POOL_AVERAGE_ADAPTIVE) {
        CheckWindows(op, data, program_.tensors[op.out].desc, op.window);
      }
    }
    if constexpr (std::is_same_v<Op, npu_convolution>) {
      const Desc& weight = program_.tensors[op.weight].desc;
      int64_t window[NPU_MAX_SPATIAL] = {};
      for (int32_t i = 0; i < op.spatial_rank; ++i) window[i] = weight.dims[i + 2].size;
      CheckWindows(op, program_.tensors[op.data].desc, program_.tensors[op.out].desc, window);
      CheckPacked(op.data, op.weight, WholeBytes(program_, op));
    }
    if constexpr (std::is_same_v<Op, npu_matmul>) {
      CheckPacked(op.a, op.b, WholeBytes(program_, op));
    }
  }

  void CheckPacked(npu_tensor left, npu_tensor weight, size_t bytes) const {
    uint64_t packed = program_.tensors[weight].packed_bytes;
    bool may_be_halved =
        MayBeHalved(program_.tensors[left].desc.dtype, program_.tensors[weight].desc.dtype);
    bool halved = may_be_halved && packed == HalvedBytes(bytes);
    if (packed != 0 && packed != bytes && !halved) {
      Invalid("The packed weight of ", Where(), ", ", Describe(weight), ", has ", packed,
              " bytes instead of ", bytes, ".");
    }
  }

  /*! \brief Kernels make padded copies of the data, whose size must not overflow. */
  template <typename Op>
  void CheckWindows(const Op& op, const Desc& data, const Desc& out, const int64_t* window) const {
    int64_t elements = data.dims[1].size;
    for (int32_t i = 0; i < op.spatial_rank; ++i) {
      int64_t part = out.dims[i + 2].size + (window[i] - 1) * op.dilations[i] / op.strides[i];
      elements = Times(elements, Times(part, std::min(window[i], op.strides[i])));
    }
    if (elements > kMaxElements) {
      Declined("The padded data of ", Where(), " has more than ", kMaxElements,
               " elements, which is more than is supported.");
    }
  }

  void CheckCommand(const Transfer& op, const Command& command) {
    if (command.core != 0 || !command.instructions.empty() || !command.inputs.empty()) {
      Invalid("Command ", command_, ", a transfer, has a core or a vector program.");
    }
    const Tensor& out = Get(op.out, "output");
    RequireWritable(op.out);
    if (op.data == -1) {
      if (op.fill == 0 || out.packed_bytes != 0) Invalid("There is no data for ", Where(), ".");
      return;
    }
    const Tensor& data = Get(op.data, "data");
    if (data.desc.rank != out.desc.rank || data.desc.dtype != out.desc.dtype ||
        data.packed_bytes != out.packed_bytes) {
      Invalid("The data of ", Where(), ", ", Describe(op.data), ", and its output, ",
              Describe(op.out), ", must have the same rank, element type and packing.");
    }
    uint32_t seen = 0;
    for (int32_t d = 0; d < out.desc.rank; ++d) {
      int32_t from = op.permutation[d];
      if (from < 0 || from >= out.desc.rank || (seen >> from & 1) != 0) {
        Invalid("The permutation of ", Where(), " does not name every dimension once.");
      }
      seen |= 1u << from;
      if (op.data_offset[d] < 0 || op.data_offset[d] > data.desc.dims[d].Most() ||
          op.out_offset[d] < 0 || op.out_offset[d] > out.desc.dims[d].Most()) {
        Invalid("The box of ", Where(), " begins outside of its tensors in dimension ", d, ".");
      }
      CheckStep(op.data_step[d], -kMaxElements, data.desc.dims[d], "data");
      CheckStep(op.out_step[d], 1, out.desc.dims[d], "output");
      bool whole = from == d && op.data_offset[d] == 0 && op.out_offset[d] == 0 &&
                   op.data_step[d] == 1 && op.out_step[d] == 1 &&
                   data.desc.dims[d] == out.desc.dims[d];
      if (out.packed_bytes != 0 && !whole) Invalid("A part of packed data is moved by ", Where());
    }
  }

  /*! \brief With steps, a dimension that can end earlier could be left at its beginning. */
  void CheckStep(int64_t step, int64_t least, const Dim& dim, const char* role) const {
    if (step < least || step > kMaxElements || step == 0 || (step != 1 && dim.symbol >= 0)) {
      Invalid("A step in the ", role, " of ", Where(), " is ", step, ", which is impossible.");
    }
  }

  /*! \brief A command may not overwrite its operands, except element by element; see kernels.h. */
  void CheckOverlaps(const Command& command) const {
    npu_tensor output = OutputOf(command);
    const Tensor& out = program_.tensors[output];
    // The first reads are operands, the last ones inputs of the vector program.
    bool elementwise = std::holds_alternative<npu_elementwise>(command.op);
    size_t vector_inputs = command.inputs.size();
    if (!elementwise && vector_inputs > 0) --vector_inputs;
    size_t reads = 0;
    ForEachRead(command, [&](npu_tensor) { ++reads; });
    size_t operands = reads - vector_inputs;
    ForEachRead(command, [&](npu_tensor input) {
      bool operand = operands > 0;
      if (operand) --operands;
      const Tensor& in = program_.tensors[input];
      if (in.place.memory != out.place.memory || in.place.index != out.place.index) return;
      if (in.place.offset >= out.place.offset + MostBytes(out) ||
          out.place.offset >= in.place.offset + MostBytes(in)) {
        return;
      }
      bool same = in.place.offset == out.place.offset && in.desc.dtype == out.desc.dtype &&
                  in.desc.rank == out.desc.rank &&
                  std::equal(in.desc.dims, in.desc.dims + in.desc.rank, out.desc.dims);
      if (operand || !same) {
        Invalid("The output of ", Where(), ", ", Describe(output), ", overlaps with its input ",
                Describe(input), ".");
      }
    });
  }

  const Program& program_;
  size_t command_ = 0;
};

}  // namespace

void Verify(const Program& program) { Verifier(program).Run(); }

}  // namespace npu::emulator
