// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.cc
 * \brief The rules that programs obey, and their form as bytes.
 */
#include "program.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "rules.h"

namespace npu::emulator {
namespace {

constexpr const char* kMemories[] = {"input", "output", "constants", "arena", "scratchpad"};

// ---- Rules ----

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

/*! \brief The shape of a tensor; symbols have their bounds. */
TensorView ShapeOf(const Desc& desc) {
  TensorView view;
  view.dtype = desc.dtype;
  view.rank = desc.rank;
  for (int32_t d = 0; d < desc.rank; ++d) view.dims[d] = desc.dims[d].Most();
  return view;
}

/*! \brief The bytes of the weight of a command if it is packed and not halved. */
size_t WholeBytes(const Program& program, const npu_matmul& op) {
  const TensorView b = ShapeOf(program.tensors[op.b].desc);
  const int32_t bits = WeightBits(program.tensors[op.a].desc.dtype, b.dtype, op.b_bits);
  return PackedMatMulBBytes(b, op.transpose_b != 0, bits);
}
size_t WholeBytes(const Program& program, const npu_convolution& op) {
  return PackedConvolutionWeightBytes(ShapeOf(program.tensors[op.weight].desc), op.groups);
}

/*! \brief Checks one program. */
class Verifier : public OperationRules {
 public:
  explicit Verifier(const Program& program) : program_(program) {}

  void Run() {
    program_.machine.Check();
    CheckSymbols();
    for (size_t i = 0; i < program_.tensors.size(); ++i) CheckTensor(static_cast<npu_tensor>(i));
    CheckMemories();
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
    static const char* const operations[] = {"matmul", "convolution", "pool",   "elementwise",
                                             "reduce", "transfer",    "gather", "scan",
                                             "order",  "lookup"};
    return Join(operations[program_.commands[command_].op.index()], " (command ", command_, ")");
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

  const Tensor& Get(npu_tensor tensor, const char* role) const {
    if (tensor < 0 || tensor >= static_cast<npu_tensor>(program_.tensors.size())) {
      Invalid("The ", role, " of ", Where(), " is tensor ", tensor, ", but there are ",
              program_.tensors.size(), " tensors.");
    }
    return program_.tensors[tensor];
  }

  void RequireScratchpad(npu_tensor tensor, const char* role) const {
    // The DMA reaches all memories.
    if (std::holds_alternative<npu_gather>(program_.commands[command_].op)) return;
    if (program_.tensors[tensor].place.memory != Memory::kScratchpad) {
      Invalid("The ", role, " of ", Where(), ", ", Describe(tensor), ", is not in the scratchpad.");
    }
  }

  void RequireWritable(npu_tensor tensor) const {
    Memory memory = program_.tensors[tensor].place.memory;
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
    if constexpr (std::is_same_v<Op, npu_gather>) {
      if (command.core != 0 || !command.instructions.empty()) {
        Invalid("Command ", command_, ", a gather, has a core or a vector program.");
      }
      RequireWritable(op.out);
    }
    constexpr bool kPlain = std::is_same_v<Op, npu_pool> || std::is_same_v<Op, npu_scan> ||
                            std::is_same_v<Op, npu_order> || std::is_same_v<Op, npu_lookup>;
    if (kPlain && !command.instructions.empty()) {
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

// ---- Bytes ----

constexpr char kMagic[8] = {'N', 'P', 'U', 'E', 'M', 'U', '\r', '\n'};
/*! \brief Raised whenever the format or the meaning of a field changes. */
constexpr uint32_t kVersion = 4;
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "programs are little-endian");

/*! \brief The header of the bytes; the tables follow, then the aligned constants. */
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t size;
  uint64_t tables_size;
  uint64_t constant_bytes;
  /*! \brief Of header and tables, with this field as 0. */
  uint64_t checksum;
};
static_assert(sizeof(Header) == 48, "the header has no padding");

/*! \brief Every change of up to 8 neighbouring bytes changes the result. */
uint64_t Checksum(uint64_t state, const uint8_t* data, size_t size) {
  auto mix = [&state](uint64_t word) {
    state = (state ^ word) * 0x9e3779b97f4a7c15u;
    state ^= state >> 29;
  };
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    mix(word);
  }
  uint64_t rest = 0;
  if (i < size) std::memcpy(&rest, data + i, size - i);
  mix(rest);
  return state;
}

uint64_t Checksum(Header header, const uint8_t* bytes) {
  header.checksum = 0;
  uint64_t state = Checksum(0, reinterpret_cast<const uint8_t*>(&header), sizeof(header));
  return Checksum(state, bytes + sizeof(header), header.tables_size);
}

/*! \brief Appends numbers. */
class Writer {
 public:
  template <typename T>
  void operator()(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>, "");
    auto* data = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), data, data + sizeof(value));
  }
  /*! \brief A length, followed by that many elements. */
  template <typename T>
  void Length(const T& things) {
    (*this)(static_cast<uint32_t>(things.size()));
  }
  void String(const std::string& text) {
    Length(text);
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

/*! \brief Reads what a Writer wrote. */
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  template <typename T>
  void operator()(T& value) {
    Need(sizeof(value));
    // Enumerators are checked later: as bytes any value may pass here.
    std::memcpy(&value, data_, sizeof(value));
    Skip(sizeof(value));
  }
  template <typename T>
  T Get() {
    T value;
    (*this)(value);
    return value;
  }
  /*! \brief A length, followed by that many elements of at least `least` bytes. */
  uint32_t Length(size_t least) {
    auto length = Get<uint32_t>();
    Need(length * least);
    return length;
  }
  std::string String() {
    uint32_t length = Length(1);
    std::string text(reinterpret_cast<const char*>(data_), length);
    Skip(length);
    return text;
  }
  bool done() const { return left_ == 0; }

 private:
  void Need(size_t bytes) const {
    if (bytes > left_) Invalid("The program is corrupt: its tables end early.");
  }
  void Skip(size_t bytes) {
    data_ += bytes;
    left_ -= bytes;
  }

  const uint8_t* data_;
  size_t left_;
};

// Each struct is written and read by the one function that lists its fields.

template <typename Archive, typename T, size_t count>
void Array(Archive& archive, T (&values)[count]) {
  for (T& value : values) archive(value);
}

template <typename Archive>
void Fields(Archive& archive, Machine& machine) {
  archive(machine.scratchpad_bytes);
  archive(machine.dram_bytes);
  archive(machine.max_tile_bytes);
  archive(machine.cores);
  archive(machine.matrix_rows);
  archive(machine.matrix_columns);
  archive(machine.vector_lanes);
  archive(machine.dram_megabytes_per_second);
  archive(machine.dma_latency_cycles);
  archive(machine.power_mode);
  archive(machine.precision);
  archive(machine.threads);
  archive(machine.pace);
}

template <typename Archive>
void Fields(Archive& archive, npu_matmul& op) {
  archive(op.a);
  archive(op.b);
  archive(op.out);
  archive(op.transpose_a);
  archive(op.transpose_b);
  archive(op.a_zero_point);
  archive(op.b_zero_point);
  archive(op.b_bits);
  archive(op.b_block);
  archive(op.b_scales);
  archive(op.b_zero_points);
}

template <typename Archive>
void Fields(Archive& archive, npu_convolution& op) {
  archive(op.data);
  archive(op.weight);
  archive(op.out);
  archive(op.spatial_rank);
  Array(archive, op.strides);
  Array(archive, op.dilations);
  Array(archive, op.pads_begin);
  Array(archive, op.pads_end);
  archive(op.groups);
  archive(op.data_zero_point);
  archive(op.weight_zero_point);
}

template <typename Archive>
void Fields(Archive& archive, npu_pool& op) {
  archive(op.data);
  archive(op.out);
  archive(op.kind);
  archive(op.spatial_rank);
  Array(archive, op.window);
  Array(archive, op.strides);
  Array(archive, op.dilations);
  Array(archive, op.pads_begin);
  Array(archive, op.pads_end);
}

template <typename Archive>
void Fields(Archive& archive, npu_elementwise& op) {
  archive(op.out);
}

template <typename Archive>
void Fields(Archive& archive, npu_reduce& op) {
  archive(op.data);
  archive(op.out);
  archive(op.kind);
  archive(op.axes);
}

template <typename Archive>
void Fields(Archive& archive, Transfer& op) {
  archive(op.data);
  archive(op.out);
  Array(archive, op.permutation);
  Array(archive, op.data_offset);
  Array(archive, op.data_step);
  Array(archive, op.out_offset);
  Array(archive, op.out_step);
  archive(op.fill);
  archive(op.fill_value);
}

template <typename Archive>
void Fields(Archive& archive, npu_gather& op) {
  archive(op.data);
  archive(op.indices);
  archive(op.out);
  archive(op.axis);
  archive(op.elementwise);
}

template <typename Archive>
void Fields(Archive& archive, npu_scan& op) {
  archive(op.data);
  archive(op.out);
  archive(op.kind);
  archive(op.axis);
  archive(op.exclusive);
}

template <typename Archive>
void Fields(Archive& archive, npu_order& op) {
  archive(op.data);
  archive(op.out);
  archive(op.axis);
  archive(op.descending);
}

template <typename Archive>
void Fields(Archive& archive, npu_lookup& op) {
  archive(op.data);
  archive(op.table);
  archive(op.out);
}

template <typename Archive>
void Fields(Archive& archive, npu_vector_instruction& instruction) {
  archive(instruction.opcode);
  archive(instruction.a);
  archive(instruction.b);
  archive(instruction.c);
  archive(instruction.immediate);
}

// The minimum size of each in bytes.
constexpr size_t kSymbolBytes = 12;
constexpr size_t kDescBytes = 2;
constexpr size_t kTensorBytes = kDescBytes + 21;
constexpr size_t kCommandBytes = 21;
constexpr size_t kInstructionBytes = 24;

void Write(Writer& writer, const Desc& desc) {
  writer(static_cast<uint8_t>(desc.dtype));
  writer(static_cast<uint8_t>(desc.rank));
  for (const Dim* dim = desc.dims; dim != desc.dims + desc.rank; ++dim) {
    writer(dim->size);
    writer(dim->symbol);
    if (dim->symbol < 0) continue;
    writer(dim->begin);
    writer(dim->limit);
  }
}

Desc ReadDesc(Reader& reader) {
  Desc desc;
  auto dtype = reader.Get<uint8_t>();
  auto rank = reader.Get<uint8_t>();
  if (dtype >= kDtypeCount || rank > NPU_MAX_RANK) {
    Invalid("The program is corrupt: a tensor has element type ", int{dtype}, " and rank ",
            int{rank}, ".");
  }
  desc.dtype = static_cast<npu_dtype>(dtype);
  desc.rank = rank;
  for (Dim* dim = desc.dims; dim != desc.dims + desc.rank; ++dim) {
    reader(dim->size);
    reader(dim->symbol);
    if (dim->symbol < 0) continue;
    reader(dim->begin);
    reader(dim->limit);
  }
  return desc;
}

void Write(Writer& writer, const Tensor& tensor) {
  Write(writer, tensor.desc);
  writer(tensor.place.memory);
  writer(tensor.place.index);
  writer(tensor.place.offset);
  writer(tensor.packed_bytes);
}

Tensor ReadTensor(Reader& reader) {
  Tensor tensor;
  tensor.desc = ReadDesc(reader);
  reader(tensor.place.memory);
  reader(tensor.place.index);
  reader(tensor.place.offset);
  reader(tensor.packed_bytes);
  return tensor;
}

void Write(Writer& writer, Command command) {
  writer(static_cast<uint8_t>(command.op.index()));
  std::visit([&writer](auto& op) { Fields(writer, op); }, command.op);
  writer(command.core);
  writer(command.label);
  writer.Length(command.instructions);
  for (npu_vector_instruction& instruction : command.instructions) Fields(writer, instruction);
  writer.Length(command.inputs);
  for (npu_tensor input : command.inputs) writer(input);
}

/*! \brief An operation of the kind with this index. */
template <size_t... indices>
decltype(Command::op) OperationOf(size_t index, std::index_sequence<indices...>) {
  decltype(Command::op) op;
  bool known = ((index == indices ? (op.emplace<indices>(), true) : false) || ...);
  if (!known) Invalid("The program is corrupt: it has an unknown operation.");
  return op;
}

Command ReadCommand(Reader& reader) {
  using Kinds = std::make_index_sequence<std::variant_size_v<decltype(Command::op)>>;
  Command command;
  command.op = OperationOf(reader.Get<uint8_t>(), Kinds());
  std::visit([&reader](auto& op) { Fields(reader, op); }, command.op);
  reader(command.core);
  reader(command.label);
  command.instructions.resize(reader.Length(kInstructionBytes));
  for (npu_vector_instruction& instruction : command.instructions) Fields(reader, instruction);
  command.inputs.resize(reader.Length(sizeof(npu_tensor)));
  for (npu_tensor& input : command.inputs) reader(input);
  return command;
}

/*! \brief Reads a length and that many elements of at least `least` bytes. */
template <typename Thing, typename Read>
std::vector<Thing> ReadAll(Reader& reader, size_t least, const Read& read) {
  std::vector<Thing> things(reader.Length(least));
  for (Thing& thing : things) thing = read(reader);
  return things;
}

}  // namespace

Engine EngineOf(const Command& command, const std::vector<Tensor>& tensors) {
  if (std::holds_alternative<Transfer>(command.op) ||
      std::holds_alternative<npu_gather>(command.op)) {
    bool in = tensors[OutputOf(command)].place.memory == Memory::kScratchpad;
    return in ? kEngineDmaIn : kEngineDmaOut;
  }
  bool matrix = std::holds_alternative<npu_matmul>(command.op) ||
                std::holds_alternative<npu_convolution>(command.op);
  return matrix ? kEngineMatrix : kEngineVector;
}

npu_tensor OutputOf(const Command& command) {
  return std::visit([](const auto& op) { return op.out; }, command.op);
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

void Verify(const Program& program) { Verifier(program).Run(); }

Buffer Serialize(const Program& program, const std::function<void(uint8_t*)>& write_constants) {
  Writer writer;
  Machine machine = program.machine;
  Fields(writer, machine);
  writer.Length(program.symbols);
  for (const Symbol& symbol : program.symbols) {
    writer(symbol.bound);
    writer.String(symbol.name);
  }
  writer.Length(program.inputs);
  for (const Desc& desc : program.inputs) Write(writer, desc);
  writer.Length(program.outputs);
  for (const Desc& desc : program.outputs) Write(writer, desc);
  writer(program.arena_bytes);
  writer(program.arena_lower_bound);
  writer.Length(program.tensors);
  for (const Tensor& tensor : program.tensors) Write(writer, tensor);
  writer.Length(program.labels);
  for (const std::string& label : program.labels) writer.String(label);
  writer.Length(program.commands);
  for (const Command& command : program.commands) Write(writer, command);

  size_t tables_size = writer.bytes().size();
  size_t tables_end = Aligned(sizeof(Header) + tables_size);
  Buffer bytes(tables_end + program.constant_bytes);
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.size = bytes.size();
  header.tables_size = tables_size;
  header.constant_bytes = program.constant_bytes;
  // Clear everything: equal programs have equal bytes, also between constants.
  std::memset(bytes.data(), 0, bytes.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(Header), writer.bytes().data(), tables_size);
  Seal(bytes.data(), bytes.size());
  if (program.constant_bytes > 0) write_constants(bytes.data() + tables_end);
  return bytes;
}

void Seal(uint8_t* bytes, size_t size) {
  Header header;
  if (size < sizeof(header)) return;
  std::memcpy(&header, bytes, sizeof(header));
  if (header.tables_size > size - sizeof(header)) return;
  header.checksum = Checksum(header, bytes);
  std::memcpy(bytes, &header, sizeof(header));
}

Program Deserialize(const uint8_t* bytes, size_t size) {
  Header header;
  if (size < sizeof(header) || std::memcmp(bytes, kMagic, sizeof(kMagic)) != 0) {
    Invalid("The bytes are not a program of this driver.");
  }
  std::memcpy(&header, bytes, sizeof(header));
  if (header.version != kVersion) {
    Invalid("The program has format version ", header.version, ", but this driver reads version ",
            kVersion, "; compile the model again.");
  }
  if (header.size != size) {
    Invalid("The program has ", size, " bytes, but its header says ", header.size, ".");
  }
  bool fits = header.tables_size <= size - sizeof(header);
  size_t tables_end = fits ? Aligned(sizeof(header) + header.tables_size) : 0;
  if (!fits || tables_end > size || header.constant_bytes != size - tables_end) {
    Invalid("The program is corrupt: its tables and constants do not fill it.");
  }
  if (header.checksum != Checksum(header, bytes)) {
    Invalid("The program is corrupt: its checksum does not match.");
  }

  Reader reader(bytes + sizeof(header), header.tables_size);
  Program program;
  Fields(reader, program.machine);
  program.symbols = ReadAll<Symbol>(reader, kSymbolBytes, [](Reader& from) {
    auto bound = from.Get<int64_t>();
    return Symbol{from.String(), bound};
  });
  program.inputs = ReadAll<Desc>(reader, kDescBytes, ReadDesc);
  program.outputs = ReadAll<Desc>(reader, kDescBytes, ReadDesc);
  reader(program.arena_bytes);
  reader(program.arena_lower_bound);
  program.tensors = ReadAll<Tensor>(reader, kTensorBytes, ReadTensor);
  program.labels =
      ReadAll<std::string>(reader, sizeof(uint32_t), [](Reader& from) { return from.String(); });
  program.commands = ReadAll<Command>(reader, kCommandBytes, ReadCommand);
  if (!reader.done()) Invalid("The program is corrupt: its tables have bytes left over.");
  program.constants = bytes + tables_end;
  program.constant_bytes = header.constant_bytes;
  Verify(program);
  return program;
}

}  // namespace npu::emulator
