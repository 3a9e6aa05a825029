// SPDX-License-Identifier: Apache-2.0
/*!
 * \file updates.h
 * \brief Finds slices that are replaced at positions that only the call knows.
 *
 * Importers spell this with comparisons: each place of an axis is compared with the positions, and
 * all of the tensor is written. A driver with `add_update` writes the slices, and needs none of
 * those ops. They are an update only where all of them are one composite, which the partitioner
 * makes if the table has such an entry.
 */
#ifndef CODEGEN_UPDATES_H_
#define CODEGEN_UPDATES_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "graph.h"

namespace npu {

/*! \brief The attribute of a `relax.where` whose arguments are those of an npu_update. */
constexpr char kUpdateAxis[] = "update_axis";

/*! \brief Whether a call has become an update. */
bool IsUpdate(const Node& node);

/*! \brief The axis of an update that is all that a graph computes; -1 if it computes anything else.
 */
int64_t AxisOfUpdate(const Graph& graph);

/*! \brief The graph with each such selection, if `may_be` accepts its call, as an update of data by
 *  a value at positions, and without the calls that nothing reads any more; none if there is no
 *  such selection. */
std::optional<Graph> WithUpdates(const Graph& graph,
                                 const std::function<bool(const Node&)>& may_be);

}  // namespace npu

#endif  // CODEGEN_UPDATES_H_
