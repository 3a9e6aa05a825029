// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.cc
 * \brief Programs as bytes.
 */
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "program.h"

namespace tvm_example_npu::emulator {
namespace {

constexpr char kMagic[8] = {'N', 'P', 'U', 'E', 'M', 'U', '\r', '\n'};
/*! \brief Raised whenever the format or the meaning of a field changes. */
constexpr uint32_t kVersion = 1;

/*! \brief What the bytes begin with; the tables follow, then the constants. */
struct Header {
  char magic[8];
  uint32_t version;
  int32_t threads;
  uint64_t size;
  uint64_t tables_size;
  /*! \brief Of all bytes, with this field as 0. */
  uint64_t checksum;
};
static_assert(sizeof(Header) == 40, "the header has no padding");

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
  return Checksum(state, bytes + sizeof(header), header.size - sizeof(header));
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
  /*! \brief A length, which is followed by that many things. */
  template <typename T>
  void Length(const T& things) {
    (*this)(static_cast<uint32_t>(things.size()));
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
    data_ += sizeof(value);
    left_ -= sizeof(value);
  }
  template <typename T>
  T Get() {
    T value;
    (*this)(value);
    return value;
  }
  /*! \brief A length; what follows has at least `least` bytes for each. */
  uint32_t Length(size_t least) {
    auto length = Get<uint32_t>();
    Need(length * least);
    return length;
  }
  bool done() const { return left_ == 0; }

 private:
  void Need(size_t bytes) const {
    if (bytes > left_) Invalid("The program is corrupt: its tables end early.");
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
void Fields(Archive& archive, npu_matmul& op) {
  archive(op.a);
  archive(op.b);
  archive(op.out);
  archive(op.transpose_a);
  archive(op.transpose_b);
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
void Fields(Archive& archive, npu_copy& op) {
  archive(op.data);
  archive(op.out);
  Array(archive, op.permutation);
  Array(archive, op.offset);
  archive(op.fill);
  archive(op.fill_value);
}

template <typename Archive>
void Fields(Archive& archive, npu_vector_instruction& instruction) {
  archive(instruction.opcode);
  archive(instruction.a);
  archive(instruction.b);
  archive(instruction.c);
  archive(instruction.immediate);
}
constexpr size_t kInstructionBytes = 20;

void Write(Writer& writer, const npu_tensor_desc& desc) {
  writer(desc.dtype);
  writer(desc.rank);
  for (int32_t i = 0; i < desc.rank; ++i) {
    writer(desc.dims[i].size);
    writer(desc.dims[i].symbol);
  }
}

npu_tensor_desc ReadDesc(Reader& reader) {
  npu_tensor_desc desc = {};
  reader(desc.dtype);
  reader(desc.rank);
  if (desc.rank < 0 || desc.rank > NPU_MAX_RANK) {
    Invalid("The program is corrupt: a tensor has rank ", desc.rank, ".");
  }
  for (int32_t i = 0; i < desc.rank; ++i) {
    reader(desc.dims[i].size);
    reader(desc.dims[i].symbol);
  }
  return desc;
}

void Write(Writer& writer, Command command) {
  writer(static_cast<uint8_t>(command.op.index()));
  std::visit([&writer](auto& op) { Fields(writer, op); }, command.op);
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
  Command command = {OperationOf(reader.Get<uint8_t>(), Kinds()), {}, {}};
  std::visit([&reader](auto& op) { Fields(reader, op); }, command.op);
  command.instructions.resize(reader.Length(kInstructionBytes));
  for (npu_vector_instruction& instruction : command.instructions) Fields(reader, instruction);
  command.inputs.resize(reader.Length(sizeof(npu_tensor)));
  for (npu_tensor& input : command.inputs) reader(input);
  return command;
}

/*! \brief For each constant, the command that alone reads it and can have it packed, or null. */
std::vector<const Command*> Packers(const Program& program) {
  std::vector<const Command*> packers(program.constants().size());
  for (const Command& command : program.commands()) {
    npu_tensor weight = MatrixWeight(command);
    if (weight < 0) continue;
    npu_tensor base = program.tensors()[weight].base;
    const Tensor& tensor = program.tensors()[base];
    if (tensor.kind == TensorKind::kConstant && program.Uses(base) == 1) {
      packers[tensor.index] = &command;
    }
  }
  return packers;
}

void Pack(const Program& program, const Command& command, const Constant& constant, uint8_t* to) {
  TensorView weight = Resolve(program.tensors()[MatrixWeight(command)].desc, nullptr);
  weight.data = const_cast<uint8_t*>(constant.data);
  if (auto* matmul = std::get_if<npu_matmul>(&command.op)) {
    PackMatMulB(weight, matmul->transpose_b != 0, to);
  } else {
    PackConvolutionWeight(weight, std::get<npu_convolution>(command.op).groups, to);
  }
}

}  // namespace

size_t PackedBytes(const Program& program, const Command& command) {
  TensorView weight = Resolve(program.tensors()[MatrixWeight(command)].desc, nullptr);
  if (auto* matmul = std::get_if<npu_matmul>(&command.op)) {
    return PackedMatMulBBytes(weight, matmul->transpose_b != 0);
  }
  return PackedConvolutionWeightBytes(weight, std::get<npu_convolution>(command.op).groups);
}

Buffer Serialize(const Program& program) {
  std::vector<const Command*> packers = Packers(program);
  // What is stored of each constant; offsets count from the end of the tables.
  struct Stored {
    Storage storage;
    uint64_t offset, bytes;
  };
  std::vector<Stored> stored;
  uint64_t constants_size = 0;

  Writer writer;
  writer.Length(program.symbols());
  for (const std::string& symbol : program.symbols()) {
    writer.Length(symbol);
    for (char letter : symbol) writer(letter);
  }
  writer.Length(program.tensors());
  for (size_t i = 0; i < program.tensors().size(); ++i) {
    const Tensor& tensor = program.tensors()[i];
    writer(tensor.kind);
    Write(writer, tensor.desc);
    if (tensor.kind == TensorKind::kView) writer(tensor.base);
    if (tensor.kind == TensorKind::kConstant) {
      const Command* packer = packers[tensor.index];
      Stored constant = {Storage::kPlain, constants_size, program.constants()[tensor.index].bytes};
      if (packer != nullptr) {
        constant = {Storage::kPacked, constants_size, PackedBytes(program, *packer)};
      } else if (program.Uses(static_cast<npu_tensor>(i)) == 0) {
        constant = {Storage::kAbsent, constants_size, 0};
      }
      writer(constant.storage);
      writer(constant.offset);
      writer(constant.bytes);
      stored.push_back(constant);
      constants_size += Aligned(constant.bytes);
    }
  }
  writer.Length(program.commands());
  for (const Command& command : program.commands()) Write(writer, command);
  writer.Length(program.outputs());
  for (npu_tensor output : program.outputs()) writer(output);

  size_t tables_size = writer.bytes().size();
  size_t tables_end = Aligned(sizeof(Header) + tables_size);
  Buffer bytes(tables_end + constants_size);
  std::memset(bytes.data(), 0, bytes.size());
  std::memcpy(bytes.data() + sizeof(Header), writer.bytes().data(), tables_size);
  for (size_t i = 0; i < stored.size(); ++i) {
    const Constant& constant = program.constants()[i];
    uint8_t* to = bytes.data() + tables_end + stored[i].offset;
    if (stored[i].storage == Storage::kPacked) {
      Pack(program, *packers[i], constant, to);
    } else {
      std::memcpy(to, constant.data, stored[i].bytes);
    }
  }
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.threads = program.threads();
  header.size = bytes.size();
  header.tables_size = tables_size;
  header.checksum = Checksum(header, bytes.data());
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
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
  if (header.checksum != Checksum(header, bytes)) {
    Invalid("The program is corrupt: its checksum does not match.");
  }
  if (header.tables_size > size - sizeof(header)) {
    Invalid("The program is corrupt: its tables do not fit into it.");
  }
  size_t tables_end = std::min(size, Aligned(sizeof(header) + header.tables_size));
  Reader reader(bytes + sizeof(header), header.tables_size);

  Program program;
  program.SetThreads(header.threads);
  for (uint32_t i = reader.Length(sizeof(uint32_t)); i > 0; --i) {
    std::string symbol(reader.Length(1), ' ');
    for (char& letter : symbol) reader(letter);
    program.AddSymbol(symbol);
  }
  for (uint32_t i = reader.Length(1); i > 0; --i) {
    auto kind = reader.Get<TensorKind>();
    npu_tensor_desc desc = ReadDesc(reader);
    switch (kind) {
      case TensorKind::kInput:
        program.AddInput(desc);
        break;
      case TensorKind::kResult:
        program.AddResult(desc);
        break;
      case TensorKind::kView:
        program.AddView(reader.Get<npu_tensor>(), desc);
        break;
      case TensorKind::kConstant: {
        auto storage = reader.Get<Storage>();
        auto offset = reader.Get<uint64_t>();
        auto length = reader.Get<uint64_t>();
        if (storage > Storage::kAbsent || offset % Buffer::kAlignment != 0 ||
            offset > size - tables_end || length > size - tables_end - offset) {
          Invalid("The program is corrupt: constant tensor ", program.tensors().size(),
                  " has no data.");
        }
        program.AddConstant(desc, {storage, bytes + tables_end + offset, length});
        break;
      }
      default:
        Invalid("The program is corrupt: tensor ", program.tensors().size(), " is of no kind.");
    }
  }
  for (uint32_t i = reader.Length(1); i > 0; --i) program.Add(ReadCommand(reader));
  for (uint32_t i = reader.Length(sizeof(npu_tensor)); i > 0; --i) {
    program.MarkOutput(reader.Get<npu_tensor>());
  }
  program.Finish();
  if (!reader.done()) Invalid("The program is corrupt: its tables have bytes left over.");
  return program;
}

}  // namespace tvm_example_npu::emulator
