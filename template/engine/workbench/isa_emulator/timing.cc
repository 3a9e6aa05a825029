// SPDX-License-Identifier: Apache-2.0
/*!
 * \file timing.cc
 * \brief When instructions run.
 */
#include "isa_emulator/timing.h"

#include <algorithm>
#include <string>

#include "driver_kit/program.h"

namespace npu::isa {
namespace {

bool Conflict(const Access& one, const Access& other) {
  return (one.is_write || other.is_write) && one.low < other.high && other.low < one.high;
}

}  // namespace

Timing::Timing(Sync sync) : sync_(sync) {
  for (Queue& queue : queues_) queue.ring.resize(kQueue);
}

void Timing::Queue::DropUntil(int64_t time) {
  while (count > 0 && ring[first].end <= time) {
    first = first + 1 == ring.size() ? 0 : first + 1;
    --count;
  }
}

void Timing::Unordered::Add(int64_t low, int64_t high, int32_t line) {
  const auto begin = std::lower_bound(parts.begin(), parts.end(), low,
                                      [](const Part& part, int64_t at) { return part.high < at; });
  auto end = begin;
  for (; end != parts.end() && end->low <= high; ++end) {
    low = std::min(low, end->low);
    high = std::max(high, end->high);
  }
  if (begin == end) {
    parts.insert(begin, {low, high, line});
  } else {
    *begin = {low, high, line};
    parts.erase(begin + 1, end);
  }
}

int32_t Timing::Unordered::Find(int64_t low, int64_t high) const {
  const auto found = std::lower_bound(parts.begin(), parts.end(), low,
                                      [](const Part& part, int64_t at) { return part.high <= at; });
  return found != parts.end() && found->low < high ? found->line : -1;
}

void Timing::Order(int32_t engine, const Access* accesses, int32_t count, Span* span) const {
  for (int32_t other = 1; other < kEngineCount; ++other) {
    const Queue& queue = queues_[other];
    if (other == engine || queue.free <= span->begin) continue;
    // Those of an engine end in their order: the newest that conflicts is the last to wait for.
    for (size_t index = queue.count; index-- > 0;) {
      const Pending& pending = queue.At(index);
      if (pending.end <= span->begin) break;
      const bool conflicts = std::any_of(accesses, accesses + count, [&](const Access& access) {
        return std::any_of(pending.accesses, pending.accesses + pending.count,
                           [&](const Access& earlier) { return Conflict(access, earlier); });
      });
      if (!conflicts) continue;
      span->begin = pending.end;
      span->waits_for = other;
      break;
    }
  }
}

void Timing::RequireOrder(int32_t engine, const Access* accesses, int32_t count) const {
  for (int32_t other = 1; other < kEngineCount; ++other) {
    if (other == engine) continue;
    for (const Access* access = accesses; access != accesses + count; ++access) {
      int32_t line = written_[other].Find(access->low, access->high);
      const bool is_written = line >= 0;
      if (line < 0 && access->is_write) line = read_[other].Find(access->low, access->high);
      if (line < 0) continue;
      kit::Refuse(std::string(access->is_write ? "it writes" : "it reads") + " bytes that line " +
                  std::to_string(line) + (is_written ? " writes" : " reads") + " on engine '" +
                  kEngines[other].name + "', and nothing in between waits for that engine");
    }
  }
}

Span Timing::Issue(int32_t engine, int32_t line, int64_t cycles, const Access* accesses,
                   int32_t count) {
  Queue& queue = queues_[engine];
  if (sync_ == Sync::kExplicit) RequireOrder(engine, accesses, count);
  queue.DropUntil(now_);
  if (queue.count == queue.ring.size()) {
    now_ = queue.At(0).end;
    queue.DropUntil(now_);
  }
  now_ += kIssueCycles;
  const int64_t ready = std::max(now_, queue.free);
  Span span = {ready, 0, 0, -1};
  if (sync_ == Sync::kScoreboard) Order(engine, accesses, count, &span);
  span.end = span.begin + cycles;
  span.stalled = span.begin - ready;
  queue.free = span.end;
  Pending& pending = queue.ring[(queue.first + queue.count++) % queue.ring.size()];
  pending.end = span.end;
  pending.line = line;
  pending.count = count;
  std::copy_n(accesses, count, pending.accesses);
  if (sync_ == Sync::kExplicit) {
    for (const Access* access = accesses; access != accesses + count; ++access) {
      (access->is_write ? written_ : read_)[engine].Add(access->low, access->high, line);
    }
  }
  return span;
}

Span Timing::Touch(int64_t cycles, const Access* accesses, int32_t count) {
  if (sync_ == Sync::kExplicit) RequireOrder(0, accesses, count);
  Span span = {now_, 0, 0, -1};
  if (sync_ == Sync::kScoreboard) Order(0, accesses, count, &span);
  span.stalled = span.begin - now_;
  span.end = span.begin + cycles;
  now_ = span.end;
  return span;
}

int64_t Timing::Wait(int64_t engines) {
  const int64_t before = now_;
  for (int32_t engine = 1; engine < kEngineCount; ++engine) {
    if ((engines >> std::min(engine, 63) & 1) == 0) continue;
    now_ = std::max(now_, queues_[engine].free);
    read_[engine].parts.clear();
    written_[engine].parts.clear();
  }
  return now_ - before;
}

}  // namespace npu::isa
