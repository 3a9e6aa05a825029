// SPDX-License-Identifier: Apache-2.0
/*!
 * \file arena.cc
 * \brief The allocation of a memory.
 */
#include "arena.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

namespace npu::emulator {

int64_t Space::Allocate(int64_t size, int64_t from) {
  auto take = [&](std::map<int64_t, int64_t>::iterator piece, int64_t offset) {
    int64_t begin = piece->first;
    int64_t end = begin + piece->second;
    pieces_.erase(piece);
    if (offset > begin) pieces_.emplace(begin, offset - begin);
    if (offset + size < end) pieces_.emplace(offset + size, end - offset - size);
    free_ -= size;
    return offset;
  };
  auto piece = pieces_.upper_bound(from);
  if (piece != pieces_.begin()) {
    auto around = std::prev(piece);
    if (from + size <= around->first + around->second) return take(around, from);
  }
  for (; piece != pieces_.end(); ++piece) {
    if (piece->second >= size) return take(piece, piece->first);
  }
  for (piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
    if (piece->second >= size) return take(piece, piece->first);
  }
  return -1;
}

void Space::Release(int64_t offset, int64_t size) {
  if (size == 0) return;
  free_ += size;
  auto next = pieces_.lower_bound(offset);
  if (next != pieces_.end() && offset + size == next->first) {
    size += next->second;
    next = pieces_.erase(next);
  }
  if (next != pieces_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  pieces_.emplace(offset, size);
}

namespace {

/*! \brief A lifetime begins or ends at a command; beginnings come first. */
struct Event {
  int32_t command;
  bool ends;
  size_t lifetime;
};

std::vector<Event> Events(const std::vector<Lifetime>& lifetimes) {
  std::vector<Event> events;
  events.reserve(2 * lifetimes.size());
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    events.push_back({lifetimes[i].first, false, i});
    events.push_back({lifetimes[i].last, true, i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    if (a.command != b.command) return a.command < b.command;
    return a.ends != b.ends ? b.ends : a.lifetime < b.lifetime;
  });
  return events;
}

/*! \brief One after the other in time, each into the smallest piece that is large enough. Takes O(n
 *  log n). */
int64_t BestFit(const std::vector<Event>& events, std::vector<Lifetime>* lifetimes) {
  std::map<int64_t, int64_t> pieces;            // Offset to size.
  std::set<std::pair<int64_t, int64_t>> sizes;  // Size and offset.
  int64_t top = 0;
  auto remove = [&](std::map<int64_t, int64_t>::iterator piece) {
    sizes.erase({piece->second, piece->first});
    return pieces.erase(piece);
  };
  auto insert = [&](int64_t offset, int64_t size) {
    pieces.emplace(offset, size);
    sizes.insert({size, offset});
  };
  for (const Event& event : events) {
    Lifetime& lifetime = (*lifetimes)[event.lifetime];
    int64_t size = lifetime.bytes;
    if (!event.ends) {
      auto fit = sizes.lower_bound({size, 0});
      if (fit != sizes.end()) {
        auto [piece_size, offset] = *fit;
        remove(pieces.find(offset));
        if (piece_size > size) insert(offset + size, piece_size - size);
        lifetime.offset = offset;
        continue;
      }
      lifetime.offset = top;
      if (!pieces.empty()) {
        auto last = std::prev(pieces.end());
        if (last->first + last->second == top) {
          lifetime.offset = last->first;
          remove(last);
        }
      }
      top = lifetime.offset + size;
      continue;
    }
    int64_t offset = lifetime.offset;
    auto next = pieces.lower_bound(offset);
    if (next != pieces.end() && offset + size == next->first) {
      size += next->second;
      next = remove(next);
    }
    if (next != pieces.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        size += previous->second;
        remove(previous);
      }
    }
    insert(offset, size);
  }
  return top;
}

/*! \brief The largest first, each as low as those already placed allow. Takes O(n^2). */
int64_t LargestFirst(bool by_area, std::vector<Lifetime>* lifetimes) {
  std::vector<Lifetime>& all = *lifetimes;
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  auto weight = [&](size_t i) {
    return by_area ? all[i].bytes * (all[i].last - all[i].first + 1) : all[i].bytes;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight(a) > weight(b); });
  std::vector<size_t> placed;  // By offset.
  int64_t top = 0;
  for (size_t i : order) {
    int64_t offset = 0;
    int64_t best = -1;
    int64_t best_gap = 0;
    for (size_t other : placed) {
      if (all[other].last < all[i].first || all[other].first > all[i].last) continue;
      int64_t gap = all[other].offset - offset;
      if (gap >= all[i].bytes && (best < 0 || gap < best_gap)) {
        best = offset;
        best_gap = gap;
      }
      offset = std::max(offset, all[other].offset + all[other].bytes);
    }
    all[i].offset = best < 0 ? offset : best;
    top = std::max(top, all[i].offset + all[i].bytes);
    auto position = std::upper_bound(placed.begin(), placed.end(), i, [&](size_t a, size_t b) {
      return all[a].offset < all[b].offset;
    });
    placed.insert(position, i);
  }
  return top;
}

}  // namespace

ArenaPlan PlanArena(std::vector<Lifetime>* lifetimes) {
  // Beyond this number, quadratic plans take too long.
  constexpr size_t kMany = 3000;
  ArenaPlan plan;
  std::vector<Event> events = Events(*lifetimes);
  int64_t alive = 0;
  for (const Event& event : events) {
    alive += (event.ends ? -1 : 1) * (*lifetimes)[event.lifetime].bytes;
    plan.lower_bound = std::max(plan.lower_bound, alive);
  }
  plan.bytes = BestFit(events, lifetimes);
  for (bool by_area : {false, true}) {
    if (plan.bytes == plan.lower_bound || lifetimes->size() > kMany) break;
    std::vector<Lifetime> other = *lifetimes;
    int64_t bytes = LargestFirst(by_area, &other);
    if (bytes < plan.bytes) {
      plan.bytes = bytes;
      lifetimes->swap(other);
    }
  }
  return plan;
}

}  // namespace npu::emulator
