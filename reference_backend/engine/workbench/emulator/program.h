// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.h
 * \brief The device's programs: commands of its engines, on tensors placed in its memories.
 */
#ifndef EMULATOR_PROGRAM_H_
#define EMULATOR_PROGRAM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "counters.h"
#include "machine.h"
#include "operations.h"
#include "tensor.h"

namespace npu::emulator {

/*! \brief The memories. All but the scratchpad are parts of DRAM. */
enum class Memory : uint8_t { kInput, kOutput, kConstants, kArena, kScratchpad };

/*! \brief Where a tensor lies. */
struct Place {
  Memory memory = Memory::kArena;
  /*! \brief Which input or output; 0 for the other memories. */
  uint32_t index = 0;
  /*! \brief Bytes from the beginning of the memory, or of the input or output. */
  uint64_t offset = 0;

  /*! \brief Whether their offsets count from the same beginning. */
  bool IsBeside(const Place& other) const { return memory == other.memory && index == other.index; }
  bool operator==(const Place& other) const { return IsBeside(other) && offset == other.offset; }
};

/*!
 * \brief A tensor in one of the memories.
 *
 * Several tensors may share memory: a view is another tensor at the same place, a part of a tensor
 * that is contiguous is a tensor at a later place, and free memory is reused. Commands run as if
 * one after the other.
 */
struct Tensor {
  Desc desc;
  Place place;
  /*! \brief If not 0, the size of the weight of one matmul or convolution, as the kernels packed it
   *  for the shape of exactly that command: it can only be moved, and be read as that weight. */
  uint64_t packed_bytes = 0;
};

/*!
 * \brief Moves a box of elements; the work of the DMA engines.
 *
 * As npu_copy of the driver: out[out_offset + i * out_step] = data[data_offset + j * data_step],
 * where j[permutation[d]] = i[d]. The box is as large as fits into both from their offsets on. A
 * step is 1 where the dimension is symbolic. With `fill`, all of `out` that is outside of the box
 * is set to `fill_value`. A packed tensor moves as a whole to another packed one. `data` may be -1:
 * then all of `out` is filled.
 */
struct Transfer {
  Transfer() {
    std::fill_n(data_step, NPU_MAX_RANK, 1);
    std::fill_n(out_step, NPU_MAX_RANK, 1);
  }

  npu_tensor data = -1, out = -1;
  int32_t permutation[NPU_MAX_RANK] = {};
  int64_t data_offset[NPU_MAX_RANK] = {};
  int64_t data_step[NPU_MAX_RANK];
  int64_t out_offset[NPU_MAX_RANK] = {};
  int64_t out_step[NPU_MAX_RANK];
  int32_t fill = 0;
  double fill_value = 0;
};

/*!
 * \brief A command of one engine.
 *
 * All tensors of operations are in the scratchpad; the DMA, which does transfers, gathers and
 * updates, reaches all memories. In `op`, pointers are null: `instructions` and `inputs` are the
 * vector program of an elementwise operation, or the epilogue of another (empty: there is none;
 * entry 0 of inputs is ignored, -1). A command whose output is empty with the current symbols does
 * nothing, in no time.
 */
struct Command {
  OperationList<Transfer>::Variant op;
  std::vector<npu_vector_instruction> instructions;
  std::vector<npu_tensor> inputs;
  /*! \brief The core whose engine this is for; transfers have none. */
  int32_t core = 0;
  /*! \brief Which of the program's labels it belongs to. */
  int32_t label = 0;
};

/*! \brief Transfers that only fill read nothing. */
template <typename Visitor>
void ForEachOperand(const Transfer& op, const Visitor& visit) {
  if (op.data >= 0) visit(op.data);
}

/*! \brief Whether the DMA runs an operation. */
template <typename Op>
constexpr bool kIsMove = std::is_same_v<Op, Transfer> || std::is_same_v<Op, npu_gather> ||
                         std::is_same_v<Op, npu_update>;
bool IsMove(const Command& command);

/*! \brief For messages, listings and profiles, e.g. `matmul`. */
const char* Name(const Command& command);

/*! \brief The engine that runs a command: transfers and gathers to the scratchpad are DMA_IN,
 *  others DMA_OUT; matmul and convolution are MATRIX; the rest is VECTOR. */
Engine EngineOf(const Command& command, const std::vector<Tensor>& tensors);

/*! \brief An input that the program updates, so that it is an output: one memory, that of the
 * input. If calls bind two, the input is copied to the output first. */
struct StateMemory {
  uint32_t input = 0;
  uint32_t output = 0;
};

/*! \brief A compiled program. */
struct Program {
  Machine machine;
  std::vector<Symbol> symbols;
  /*! \brief The dense tensors bound at the call. */
  std::vector<Desc> inputs, outputs;
  std::vector<StateMemory> states;
  std::vector<Tensor> tensors;
  std::vector<Command> commands;
  /*! \brief The operations of the model, e.g. "relax.nn.conv2d (lv3)". */
  std::vector<std::string> labels;
  uint64_t arena_bytes = 0;
  /*! \brief The lower bound of the arena in bytes: the most that are alive at once. */
  uint64_t arena_lower_bound = 0;
  /*! \brief The data of the constants; each tensor begins at a multiple of Buffer::kAlignment. Not
   *  owned. */
  const uint8_t* constants = nullptr;
  uint64_t constant_bytes = 0;
};

/*! \brief The bytes of the weight of a command if it is packed and not halved. */
size_t WholeBytes(const Program& program, const npu_matmul& op);
size_t WholeBytes(const Program& program, const npu_convolution& op);

/*! \brief Whether the weight that a command reads is packed with two numbers in a byte, in half the
 *  bytes. */
bool HasHalvedWeight(const Program& program, const npu_matmul& op);
bool HasHalvedWeight(const Program& program, const npu_convolution& op);

/*! \brief For messages and listings, e.g. `arena`. */
const char* Name(Memory memory);

/*! \brief The largest size of a tensor in bytes. */
uint64_t MostBytes(const Tensor& tensor);

/*! \brief Bytes of the scratchpad that the program uses, from its beginning on. */
uint64_t ScratchpadBytes(const Program& program);

/*! \brief Throws an Error unless every command of the program obeys the rules of its operation, and
 *  every tensor lies inside its memory: such a program cannot crash, whatever its origin. Also
 *  checks that it fits into the machine. */
void Verify(const Program& program);

/*! \brief The program as bytes: a header with format version and a checksum of all but the
 *  constants, tables, and the constants, which `write_constants` writes to a given place. */
Buffer Serialize(const Program& program, const std::function<void(uint8_t*)>& write_constants);

/*! \brief Sets the checksum of a program in bytes that was changed; for tests. */
void Seal(uint8_t* bytes, size_t size);

/*! \brief Reads and verifies what Serialize wrote. Constants refer to `bytes`, which must be
 *  aligned as Buffer does and outlive the program. Anything else throws an Error. */
Program Deserialize(const uint8_t* bytes, size_t size);

}  // namespace npu::emulator

#endif  // EMULATOR_PROGRAM_H_
