// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <algorithm>
#include <deque>

namespace npu {

namespace {

std::deque<OpLowering>& Entries() {
  static std::deque<OpLowering> registry;
  return registry;
}

OpLowering& AddEntry(const std::string& op, Owner owner) {
  OpLowering& entry = Entries().emplace_back();
  entry.op = op;
  entry.owner = owner;
  return entry;
}

template <npu_vector_opcode opcode>
Value Combine(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Emit(opcode, x[0], x[1]);
}

/*! \brief The ops that a scale, a bias and a residual consist of. */
const std::vector<OpLowering>& FusedArithmetic() {
  auto entry = [](const char* op, npu_step_kind step, OpLowering::ElementwiseFunction function) {
    OpLowering made;
    made.op = op;
    made.step = step;
    made.elementwise = function;
    return made;
  };
  static const std::vector<OpLowering> entries = {
      entry("relax.add", NPU_STEP_ADD, Combine<NPU_VECTOR_ADD>),
      entry("relax.multiply", NPU_STEP_MULTIPLY, Combine<NPU_VECTOR_MULTIPLY>),
      entry("relax.divide", NPU_STEP_DIVIDE, Combine<NPU_VECTOR_DIVIDE>),
  };
  return entries;
}

/*! \brief Whether an entry is only for some calls, or some drivers. */
bool IsRestricted(const OpLowering& entry) {
  return entry.when != nullptr || !entry.extension.empty();
}

/*! \brief An entry's rank; of two entries for a call, the lower rank wins. */
int RankOf(const OpLowering& entry) {
  return (entry.owner == Owner::kVendor ? 0 : 4) + (IsRestricted(entry) ? 0 : 2) +
         (entry.lower != nullptr ? 0 : 1);
}

[[noreturn]] void RefuseBoth(const OpLowering& entry, const std::string& who) {
  throw Refusal(who + ": two lowerings of the " +
                (entry.owner == Owner::kVendor ? "vendor" : "engine") +
                " are registered for it; leave one out, or tell them apart by .When");
}

Registry::Index IndexEntries() {
  Registry::Index index;
  for (const OpLowering& entry : Entries()) index[entry.op].push_back(&entry);
  for (auto& [op, entries] : index) {
    std::stable_sort(entries.begin(), entries.end(), [](const OpLowering* a, const OpLowering* b) {
      return RankOf(*a) < RankOf(*b);
    });
    for (size_t i = 1; i < entries.size(); ++i) {
      bool same = RankOf(*entries[i - 1]) == RankOf(*entries[i]);
      if (same && !IsRestricted(*entries[i])) RefuseBoth(*entries[i], op);
    }
  }
  return index;
}

/*! \brief The entries, which are complete once the library is loaded. */
const Registry::Index& Indexed() {
  static const Registry::Index index = IndexEntries();
  return index;
}

}  // namespace

Registry::Registry(const Graph& graph, Accepts accepts)
    : graph_(graph), accepts_(std::move(accepts)), index_(Indexed()) {}

bool Registry::Any(size_t node, bool OpLowering::* says) const {
  auto it = index_.find(graph_.nodes[node].op);
  return it != index_.end() && std::any_of(it->second.begin(), it->second.end(),
                                           [&](const OpLowering* entry) { return entry->*says; });
}

const OpLowering* Registry::Find(size_t node, bool elementwise) const {
  auto it = index_.find(graph_.nodes[node].op);
  if (it == index_.end()) return nullptr;
  const OpLowering* found = nullptr;
  for (const OpLowering* entry : it->second) {
    if (elementwise && entry->elementwise == nullptr) continue;
    if (found != nullptr && RankOf(*found) != RankOf(*entry)) break;
    if (IsRestricted(*entry) && !accepts_(*entry, node)) continue;
    if (found != nullptr) RefuseBoth(*entry, DescribeNode(graph_.nodes[node]));
    found = entry;
  }
  return found;
}

const OpLowering* Registry::FindFused(size_t node) const {
  if (Find(node) != nullptr) return Find(node, true);
  const auto& arithmetic = FusedArithmetic();
  auto it = std::find_if(arithmetic.begin(), arithmetic.end(), [&](const OpLowering& entry) {
    return entry.op == graph_.nodes[node].op;
  });
  return it == arithmetic.end() ? nullptr : &*it;
}

OpLowering& RegisterOp(const std::string& op, OpLowering::LowerFunction lower, Owner owner) {
  OpLowering& entry = AddEntry(op, owner);
  entry.lower = lower;
  return entry;
}

OpLowering& RegisterOp(const std::string& op, OpLowering::ElementwiseFunction elementwise,
                       Owner owner) {
  OpLowering& entry = AddEntry(op, owner);
  entry.elementwise = elementwise;
  return entry;
}

std::vector<std::string> LoweredOps() {
  std::vector<std::string> ops;
  for (const OpLowering& entry : Entries()) ops.push_back(entry.op);
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  return ops;
}

}  // namespace npu
