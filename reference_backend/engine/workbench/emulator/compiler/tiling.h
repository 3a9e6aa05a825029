// SPDX-License-Identifier: Apache-2.0
/*!
 * \file tiling.h
 * \brief Tiling of operations to fit into the scratchpad.
 *
 * Every operation is a loop over axes, and each dimension of its operands follows an axis. A tile
 * is a range of each axis. Tiles along partial (summed) axes add to the same results.
 */
#ifndef EMULATOR_COMPILER_TILING_H_
#define EMULATOR_COMPILER_TILING_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "../machine.h"
#include "graph.h"

namespace npu::emulator {

/*! \brief Aligned, for the signed sizes that plans count in. */
inline int64_t AlignedBytes(int64_t bytes) {
  return static_cast<int64_t>(Aligned(static_cast<size_t>(bytes)));
}

/*! \brief Batch dimensions, rows, columns and the summed dimension of a matmul. */
constexpr int32_t kMaxAxes = NPU_MAX_RANK + 1;

/*! \brief Elements [begin, begin + size). */
struct Range {
  int64_t begin = 0, size = 0;
};

/*! \brief A loop of an operation. */
struct Axis {
  Dim dim;
  /*! \brief Tiles consist of whole groups, or lie inside one; 0: there are no groups. */
  int64_t group = 0;
  /*! \brief The smallest tile. */
  int64_t least = 1;
  /*! \brief Whether results are sums over this axis. */
  bool partial = false;

  /*! \brief How many tiles of this size there are. */
  int64_t Count(int64_t size) const;
  /*! \brief The range of tile `index`. */
  Range At(int64_t size, int64_t index) const;
  /*! \brief A smaller size, about half; 0 if there is none. */
  int64_t Smaller(int64_t size) const;
  /*! \brief The size with which there are at most `count` tiles. */
  int64_t SizeFor(int64_t count) const;
};

/*! \brief A range of each axis. */
using Tile = std::array<Range, kMaxAxes>;
/*! \brief The size of tiles along each axis. */
using TileSizes = std::array<int64_t, kMaxAxes>;

/*! \brief How a dimension of an operand follows an axis. */
struct Link {
  enum How : uint8_t {
    /*! \brief All of it, for every tile. */
    kWhole,
    /*! \brief The tile's range. */
    kRange,
    /*! \brief The elements that the windows at the tile's positions cover. */
    kWindows,
    /*! \brief The channels that the tile's features are computed from. */
    kChannels,
  };
  How how = kWhole;
  int32_t axis = -1;
};

/*! \brief A tensor of an operation. */
struct Operand {
  npu_tensor value = -1;
  /*! \brief The shape of all of it. */
  Desc desc;
  Link links[NPU_MAX_RANK];
  /*! \brief Whether it comes packed, tile by tile. */
  bool packed = false;
  /*! \brief Whether it is packed with two numbers in a byte. */
  bool halved = false;
  /*! \brief Where all of it is in the scratchpad; -1 if it is not. */
  int64_t offset = -1;

  bool resident() const { return offset >= 0; }
};

/*! \brief A read that is made where it is loaded, by an element-wise operation of the graph. */
struct Making {
  /*! \brief The operation; null if nothing is made. */
  const Operation* operation = nullptr;
  /*! \brief The shape of its result. */
  Desc desc;
  /*! \brief Which of the loop's reads is made, and its dimension for each of the result's; -1 for
   *  those of one element. */
  size_t read = 0;
  int32_t dims[NPU_MAX_RANK] = {};
  /*! \brief The input of the model that is loaded in its place. */
  npu_tensor data = -1;
  /*! \brief For each input of the operation, which of the loop's reads it is; -1 for `data`. */
  std::vector<int32_t> inputs;
  /*! \brief The first of the reads that only this needs. */
  size_t first = 0;
  /*! \brief Whether the result also goes to its home in DRAM. */
  bool is_stored = false;
};

/*! \brief An operation as a loop. */
struct Loop {
  /*! \brief For a matmul batch..., m, n, k; for windows n, features, rows, channels; else the
   *  dimensions of the larger tensor. */
  std::vector<Axis> axes;
  /*! \brief The tensors that are read, each once; and for each read of the operation, which of
   *  them. */
  std::vector<Operand> reads;
  std::vector<int32_t> roles;
  Operand out;
  /*! \brief Whether the output takes over the memory of an operand: sums cannot be there. */
  bool replaces = false;
  /*! \brief The type of partial sums. */
  npu_dtype sums = NPU_FLOAT32;
  /*! \brief Rows under windows: extent of the data, of a window, stride and padding. */
  int64_t in = 0, span = 0, stride = 1, pad = 0;
  /*! \brief Input channels of a group. */
  int64_t group_channels = 0;
  Making made;
};

/*! \brief The loop of an operation that is not a copy; `descs` has the shapes of all values. */
Loop MakeLoop(const Operation& operation, const std::vector<Desc>& descs);

/*! \brief The part of a dimension of an operand that a tile needs. */
Range RangeOf(const Loop& loop, const Operand& operand, int32_t dimension, const Tile& tile);

/*! \brief How an operand reaches the engines. */
enum class Handling : uint8_t {
  /*! \brief It is there; tiles are parts of it. */
  kInPlace,
  /*! \brief All of it is loaded once; tiles are parts of it. */
  kOnce,
  /*! \brief Tile by tile, through buffers. */
  kStreamed,
};

/*! \brief A way to cut an operation. */
struct Tiling {
  TileSizes sizes = {};
  /*! \brief The axes, the outermost loop first; partial ones are the innermost. */
  std::array<int32_t, kMaxAxes> order = {};
  /*! \brief Buffers that a streamed operand uses in turn. */
  int32_t buffers = 1;
  /*! \brief For each of loop.reads, and of the output. */
  std::vector<Handling> reads;
  Handling out = Handling::kStreamed;
  /*! \brief Bytes of one buffer (kStreamed) or of all (kOnce) of each operand. */
  std::vector<int64_t> read_bytes;
  int64_t out_bytes = 0;
  /*! \brief Bytes of one buffer of partial sums, 0 if there are none besides the output. */
  int64_t sum_bytes = 0;
  /*! \brief All buffers together, and the largest tile. */
  int64_t bytes = 0, largest = 0;
  /*! \brief The estimated cost. */
  int64_t cycles = 0;
  /*! \brief The number of tiles, and of results: tiles that are not parts of the same sums. */
  int64_t count = 1, results = 1;
  /*! \brief Whether it would also fit as one tile. */
  bool fits_whole = false;
};

/*! \brief Finds tilings. */
class Tiler {
 public:
  explicit Tiler(const Machine& machine) : machine_(machine) {}

  /*! \brief The cheapest tiling found whose buffers have at most `space` bytes; count is 0 if there
   *  is none. If the output is resident, its memory does not count. */
  const Tiling& Find(const Loop& loop, const Operation& operation, int64_t space);

 private:
  const Machine& machine_;
  /*! \brief A cache, since models repeat their layers. */
  std::map<std::vector<int64_t>, Tiling> found_;
};

/*! \brief The tiling with the least memory. */
Tiling SmallestTiling(const Loop& loop, const Operation& operation, const Machine& machine);

/*! \brief Whether a part is contiguous, at a place known at compile time. */
bool IsSlice(const Desc& desc, const Range* part);

/*! \brief Cycles to move a part of a tensor. */
int64_t TransferCycles(const Machine& machine, const Desc& desc, const Range* part);

}  // namespace npu::emulator

#endif  // EMULATOR_COMPILER_TILING_H_
