// SPDX-License-Identifier: Apache-2.0
/*!
 * \file bytes.cc
 * \brief Programs as bytes.
 */
#include <cstring>
#include <type_traits>
#include <utility>

#include "program.h"

namespace npu::emulator {
namespace {

constexpr char kMagic[8] = {'N', 'P', 'U', 'E', 'M', 'U', '\r', '\n'};
/*! \brief Raised whenever the format or the meaning of a field changes; not for a new operation
 *  at the end of the list. */
constexpr uint32_t kVersion = 4;
/*! \brief With the number of weight buffers and the states. Programs without states, of machines
 * with one, keep the version before, which older drivers read. */
constexpr uint32_t kVersionWithStates = 5;
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
    Bytes(reinterpret_cast<const uint8_t*>(&value), sizeof(value));
  }
  void Bytes(const uint8_t* data, size_t size) { bytes_.insert(bytes_.end(), data, data + size); }
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
    // Enumerators are checked later: as bytes any value may pass here.
    Bytes(&value, sizeof(value));
  }
  void Bytes(void* data, size_t size) {
    Need(size);
    std::memcpy(data, data_, size);
    Skip(size);
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
void Fields(Archive& archive, npu_update& op) {
  archive(op.data);
  archive(op.value);
  archive(op.positions);
  archive(op.out);
  archive(op.axis);
}

/*! \brief A plain operation, field by field as it lies in memory after its size. */
template <typename Archive, typename Op>
std::enable_if_t<kIsPlain<Op>> Fields(Archive& archive, Op& op) {
  static_assert(std::has_unique_object_representations_v<Op>,
                "between fields are bytes of no meaning: order them by size");
  constexpr size_t kBegin = sizeof(op.size);
  archive.Bytes(reinterpret_cast<uint8_t*>(&op) + kBegin, sizeof(op) - kBegin);
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
constexpr size_t kStateBytes = 8;
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

/*! \brief The index of an update, the last operation, and its number in programs: the list grows
 *  before it. */
constexpr size_t kUpdate = std::variant_size_v<decltype(Command::op)> - 1;
constexpr uint8_t kUpdateKind = 255;

void Write(Writer& writer, Command command) {
  const size_t index = command.op.index();
  writer(index == kUpdate ? kUpdateKind : static_cast<uint8_t>(index));
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
  const auto kind = reader.Get<uint8_t>();
  if (kind == kUpdate) Invalid("The program is corrupt: it has an unknown operation.");
  command.op = OperationOf(kind == kUpdateKind ? kUpdate : kind, Kinds());
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

Buffer Serialize(const Program& program, const std::function<void(uint8_t*)>& write_constants) {
  Writer writer;
  Machine machine = program.machine;
  Fields(writer, machine);
  const bool has_states =
      machine.weight_buffers != Machine().weight_buffers || !program.states.empty();
  if (has_states) {
    writer(machine.weight_buffers);
    writer.Length(program.states);
    for (const StateMemory& state : program.states) {
      writer(state.input);
      writer(state.output);
    }
  }
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
  header.version = has_states ? kVersionWithStates : kVersion;
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
  if (header.version != kVersion && header.version != kVersionWithStates) {
    Invalid("The program has format version ", header.version, ", but this driver reads versions ",
            kVersion, " and ", kVersionWithStates, "; compile the model again.");
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
  if (header.version == kVersionWithStates) {
    reader(program.machine.weight_buffers);
    program.states = ReadAll<StateMemory>(reader, kStateBytes, [](Reader& from) {
      const auto input = from.Get<uint32_t>();
      return StateMemory{input, from.Get<uint32_t>()};
    });
  }
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
