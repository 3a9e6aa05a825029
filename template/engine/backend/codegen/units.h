// SPDX-License-Identifier: Apache-2.0
/*!
 * \file units.h
 * \brief Decides which calls of a graph are lowered together; knows nothing of the driver.
 */
#ifndef CODEGEN_UNITS_H_
#define CODEGEN_UNITS_H_

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph.h"
#include "registry.h"

namespace npu {

/*! \brief One op and the ops that join it: absorbed transposes before it, fused ops after it. */
struct Unit {
  /*! \brief A call on its own, with nothing fused or absorbed. */
  Unit(const Graph& graph, size_t node, const OpLowering* lowering)
      : anchor(node),
        lowering(lowering),
        inputs(graph.nodes[node].inputs),
        transposed(inputs.size(), false) {}

  size_t anchor;
  const OpLowering* lowering;
  /*! \brief The arguments of the anchor, absorbed transposes skipped. */
  std::vector<EntryRef> inputs;
  std::vector<bool> transposed;
  /*! \brief The dequantizations of the arguments, if the op computes in integers. */
  std::vector<size_t> dequantized;
  /*! \brief The dequantization of a constant second argument, if the op reads its integers. */
  std::optional<size_t> weights;
  /*! \brief The element-wise calls after the anchor, in order. */
  std::vector<std::pair<size_t, const OpLowering*>> epilogue;

  size_t Last() const { return epilogue.empty() ? anchor : epilogue.back().first; }
};

struct Units {
  /*! \brief In the order in which they are lowered: fused calls at the place of the last one, where
   *  all operands are known. */
  std::vector<Unit> list;
  /*! \brief The dequantizations that are never computed, since their readers read the integers, and
   *  their element-wise entries, or NULL. */
  std::unordered_map<size_t, const OpLowering*> inlined;
};

/*! \brief Throws a Refusal that names a call without a lowering. */
Units FormUnits(const Graph& graph, const Registry& registry);

}  // namespace npu

#endif  // CODEGEN_UNITS_H_
