// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.h
 * \brief What the build half hands to the run half: a list of nodes, and the bytes that hold it.
 *
 * XNNPACK cannot save a graph, so the bytes have our own list, and the run half makes XNNPACK's
 * graph of it. All structs are plain data: bytes are written and read on the same kind of machine.
 */
#ifndef DRIVER_PROGRAM_H_
#define DRIVER_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "npu_driver.h"

namespace driver {

constexpr int kMaxRank = 4;

/*! \brief Where the elements of a value come from. */
enum class Source : int32_t { kInput, kConstant, kNode };

/*! \brief A value of the graph, channels last where it has four dimensions; or an input or an
 * output as the caller sees it. */
struct Value {
  Source source;
  int32_t rank;
  int64_t dims[kMaxRank];
  /*! \brief Which input it is, where the elements of a constant begin, or what an output stores. */
  int64_t place;
};

// clang-format off
#define DRIVER_KINDS(X)                                                                    \
  X(Abs) X(Ceil) X(Floor) X(Negate) X(Reshape) X(Round) X(Sigmoid) X(Square) X(SquareRoot) \
  X(Add) X(Divide) X(Maximum) X(Minimum) X(Multiply) X(Subtract)                           \
  X(Clamp) X(LeakyRelu) X(Pad)                                                             \
  X(Convolution) X(FullyConnected) X(AveragePool) X(GlobalAverage) X(MaxPool)
// clang-format on

/*! \brief What a node does. */
#define DRIVER_KIND(name) k##name,
enum class Kind : int32_t { DRIVER_KINDS(DRIVER_KIND) };
#undef DRIVER_KIND
#define DRIVER_NAME(name) #name,
constexpr const char* kKindNames[] = {DRIVER_KINDS(DRIVER_NAME)};
#undef DRIVER_NAME

/*! \brief Extents of a window, first of the rows, then of the columns. */
struct Window {
  int32_t begin[2], end[2], size[2], strides[2], dilations[2];
  int32_t groups;
};

/*! \brief A node; an input that it does not have is -1. */
struct Node {
  Kind kind;
  int32_t inputs[3];
  int32_t out;
  /*! \brief The limits of a clamp; `least` is also the slope of a leaky relu, the value of a pad.
   */
  float least, most;
  Window window;
  /*! \brief The widths of a pad. */
  int32_t before[kMaxRank], after[kMaxRank];
};

/*! \brief How many elements there are. */
inline int64_t CountOf(const Value& value) {
  int64_t count = 1;
  for (int32_t i = 0; i < value.rank; ++i) count *= value.dims[i];
  return count;
}

/*! \brief Why a call is not NPU_OK. */
struct Failure {
  npu_status status;
  std::string reason;
};

/*! \brief Runs what may throw, and keeps the reason. */
template <typename F>
npu_status Try(std::string* reason, F&& function) {
  try {
    function();
    return NPU_OK;
  } catch (const Failure& failure) {
    *reason = failure.reason;
    return failure.status;
  } catch (const std::bad_alloc&) {
    *reason = "there is not enough memory";
    return NPU_OUT_OF_MEMORY;
  }
}

/*! \brief Everything but the elements of constants. */
struct Program {
  int64_t threads = 1;
  std::vector<Value> inputs, outputs, values;
  std::vector<Node> nodes;
};

struct Header {
  char magic[8];
  uint64_t hash;
  int64_t threads;
  uint64_t inputs, outputs, values, nodes, constants;
};
constexpr char kMagic[8] = "xnnpk01";

/*! \brief What the SDK may read beyond the end of a tensor, and how tensors are aligned. */
constexpr size_t kBeyond = 64;
inline size_t Aligned(size_t size) { return (size + kBeyond - 1) / kBeyond * kBeyond; }

/*! \brief Tells damage from a program: FNV-1a over words, from behind the hash on. */
inline uint64_t HashOf(const uint8_t* bytes, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  size_t at = offsetof(Header, threads);
  for (uint64_t word = 0; at < size; at += sizeof(word)) {
    word = 0;
    std::memcpy(&word, bytes + at, size - at < sizeof(word) ? size - at : sizeof(word));
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

/*! \brief The bytes of a program. */
inline std::vector<uint8_t> Serialize(const Program& program,
                                      const std::vector<uint8_t>& constants) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.threads = program.threads;
  header.inputs = program.inputs.size();
  header.outputs = program.outputs.size();
  header.values = program.values.size();
  header.nodes = program.nodes.size();
  header.constants = constants.size();
  std::vector<uint8_t> bytes(sizeof(header));
  auto append = [&](const auto& items) {
    const auto* data = reinterpret_cast<const uint8_t*>(items.data());
    bytes.insert(bytes.end(), data, data + items.size() * sizeof(items[0]));
  };
  append(program.inputs);
  append(program.outputs);
  append(program.values);
  append(program.nodes);
  bytes.resize(Aligned(bytes.size()));
  append(constants);
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.hash = HashOf(bytes.data(), bytes.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

/*! \brief Reads a program; `constants` points into the bytes. Throws where they are corrupt. */
inline Program Parse(const uint8_t* bytes, size_t size, const uint8_t** constants) {
  auto require = [](bool holds) {
    if (!holds) throw Failure{NPU_INVALID, "the program is corrupt, or of another version"};
  };
  Header header;
  require(size >= sizeof(header));
  std::memcpy(&header, bytes, sizeof(header));
  require(std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0);
  require(header.hash == HashOf(bytes, size));
  size_t at = sizeof(header);
  auto read = [&](auto* items, uint64_t count) {
    require(count <= (size - at) / sizeof((*items)[0]));
    items->resize(count);
    if (count > 0) std::memcpy(items->data(), bytes + at, count * sizeof((*items)[0]));
    at += count * sizeof((*items)[0]);
  };
  Program program;
  program.threads = header.threads;
  read(&program.inputs, header.inputs);
  read(&program.outputs, header.outputs);
  read(&program.values, header.values);
  read(&program.nodes, header.nodes);
  at = Aligned(at);
  require(at <= size && size - at == header.constants);
  *constants = bytes + at;
  auto known = [&](int64_t value) {
    return value >= 0 && static_cast<size_t>(value) < program.values.size();
  };
  for (const Value& value : program.values) {
    require(value.rank >= 1 && value.rank <= kMaxRank && value.place >= 0);
    const uint64_t place = static_cast<uint64_t>(value.place);
    if (value.source == Source::kInput) require(place < program.inputs.size());
    if (value.source == Source::kConstant) {
      require(place <= header.constants);
      require(CountOf(value) * sizeof(float) <= header.constants - place);
    }
  }
  for (const Node& node : program.nodes) {
    require(node.kind >= Kind::kAbs && node.kind <= Kind::kMaxPool && known(node.out));
    for (int32_t input : node.inputs) require(input == -1 || known(input));
  }
  for (const Value& output : program.outputs) require(known(output.place));
  return program;
}

}  // namespace driver

#endif  // DRIVER_PROGRAM_H_
