// SPDX-License-Identifier: Apache-2.0
/*!
 * \file registry.h
 * \brief The lowerings that are registered, and which of them a call gets.
 */
#ifndef CODEGEN_REGISTRY_H_
#define CODEGEN_REGISTRY_H_

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph.h"
#include "lowering.h"

namespace npu {

/*! \brief Finds the entries for the calls of a graph. */
class Registry {
 public:
  /*! \brief Entries by op, in order of precedence. */
  using Index = std::unordered_map<std::string, std::vector<const OpLowering*>>;
  /*! \brief Whether the predicate of an entry accepts a call. */
  using Accepts = std::function<bool(const OpLowering& entry, size_t node)>;

  Registry(const Graph& graph, Accepts accepts);

  /*! \brief Whether any entry of the call's op says this of itself. */
  bool Any(size_t node, bool OpLowering::* says) const;
  /*! \brief The entry for a call, or NULL; only element-wise ones if `elementwise`. */
  const OpLowering* Find(size_t node, bool elementwise = false) const;
  /*! \brief The element-wise entry for a call that is fused into another one, or NULL. A scale, a
   *  bias or a residual belongs to the op before it: it needs no entry of its own. */
  const OpLowering* FindFused(size_t node) const;

 private:
  const Graph& graph_;
  Accepts accepts_;
  const Index& index_;
};

}  // namespace npu

#endif  // CODEGEN_REGISTRY_H_
