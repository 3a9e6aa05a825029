// SPDX-License-Identifier: Apache-2.0
/*!
 * \file assembler.h
 * \brief The program under construction: its tensors, commands and constants.
 */
#ifndef EMULATOR_COMPILER_ASSEMBLER_H_
#define EMULATOR_COMPILER_ASSEMBLER_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "compile.h"
#include "tiling.h"

namespace npu::emulator {

/*! \brief Collects a program. Values are those of a graph, in the types in which they are
 *  stored. */
class Assembler {
 public:
  /*! \brief All must outlive this; `descs` has the shape of each value. */
  Assembler(const Graph& graph, const std::vector<Desc>& descs, const Machine& machine);

  /*! \brief Which of the graph's labels the next commands belong to. */
  void SetLabel(int32_t label) { label_ = label; }
  /*! \brief A tensor in the scratchpad. */
  npu_tensor InScratchpad(const Desc& desc, int64_t offset, uint64_t packed_bytes = 0);
  /*! \brief A value, or a view, in DRAM: an input, a constant, an output, or in the arena. */
  npu_tensor AtHome(npu_tensor value) { return AtHome(value, descs_[value]); }
  /*! \brief The same with another shape. */
  npu_tensor AtHome(npu_tensor value, const Desc& desc);
  /*! \brief A whole output that is not the home of a value. */
  npu_tensor Output(int32_t index);
  /*! \brief The constant with a part of a weight, packed for (a tile of) an operation. */
  npu_tensor Packed(int32_t operation, const Operand& weight, const Range* part, int64_t groups);
  /*! \brief The output that is the home of a value, or -1. */
  int32_t OutputOf(npu_tensor value) const { return homes_[Base(value)].output; }

  void Add(Command command);
  /*! \brief Adds a transfer between parts, given by their offsets (null: all of the tensor). */
  void AddTransfer(npu_tensor data, npu_tensor out, const Range* data_part = nullptr,
                   const Range* out_part = nullptr);

  const Tensor& tensor(npu_tensor id) const { return compiled_.program.tensors[id]; }
  /*! \brief Plans the arena, and finishes the program. Throws an Error if DRAM is too small. */
  Compiled Finish();

 private:
  /*! \brief Where in DRAM a value that is not a view lives; -1 if it does not yet. */
  struct Home {
    int32_t output = -1;
    /*! \brief The input whose memory is that of this output: a state. */
    int32_t input = -1;
    int64_t constant = -1;
    int32_t lifetime = -1;
  };

  npu_tensor Base(npu_tensor value) const { return graph_.values()[value].base; }
  npu_tensor TensorAt(const Desc& desc, const Place& place, uint64_t packed_bytes = 0);
  uint64_t Store(StoredConstant constant);
  int32_t WeightBitsOf(const npu_matmul& op) const;
  /*! \brief Throws an Error if an arena of this size does not fit next to the other sections. */
  void CheckDram(int64_t arena) const;

  const Graph& graph_;
  const std::vector<Desc>& descs_;
  Compiled compiled_;
  Program& program_ = compiled_.program;
  std::vector<Home> homes_;
  std::vector<Lifetime> lifetimes_;
  /*! \brief Tensors by a hash of all their fields. */
  std::unordered_multimap<uint64_t, npu_tensor> tensors_;
  std::map<std::vector<int64_t>, npu_tensor> packed_;
  int32_t label_ = 0;
};

/*! \brief The shape of a part of a tensor. */
Desc PartOf(const Desc& desc, const Range* part);

}  // namespace npu::emulator

#endif  // EMULATOR_COMPILER_ASSEMBLER_H_
