// SPDX-License-Identifier: Apache-2.0
/*!
 * \file compile.h
 * \brief From the operations of a model to the commands of the machine.
 */
#ifndef EMULATOR_COMPILER_COMPILE_H_
#define EMULATOR_COMPILER_COMPILE_H_

#include <cstdint>
#include <vector>

#include "../program.h"
#include "graph.h"

namespace npu::emulator {

/*! \brief One tensor of the program's constants: (a tile of) a constant of the graph. */
struct StoredConstant {
  /*! \brief The value whose data it is: a constant, or a view of one. */
  npu_tensor value = -1;
  /*! \brief The box that is packed; an unpacked constant is stored whole. */
  int64_t begin[NPU_MAX_RANK] = {};
  int64_t extent[NPU_MAX_RANK] = {};
  /*! \brief If not -1, packed for this operation, a matmul or a convolution. */
  int32_t packed_for = -1;
  /*! \brief Whether the packed numbers are stored two in a byte. */
  bool halved = false;
  /*! \brief Groups of the convolution's tile. */
  int64_t groups = 1;
  uint64_t offset = 0, bytes = 0;
};

/*! \brief A program, and where its constants come from. */
struct Compiled {
  Program program;
  std::vector<StoredConstant> constants;
};

/*! \brief Compiles a finished graph. Throws an Error with NPU_OUT_OF_MEMORY, which names what does
 *  not fit, where and by how much. */
Compiled Compile(const Graph& graph, const Machine& machine);

/*! \brief Writes the data of the program's constants, `program.constant_bytes` in all. */
void WriteConstants(const Graph& graph, const Compiled& compiled, uint8_t* to);

}  // namespace npu::emulator

#endif  // EMULATOR_COMPILER_COMPILE_H_
