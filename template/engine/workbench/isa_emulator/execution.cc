// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execution.cc
 * \brief Executes programs.
 */
#include "isa_emulator/execution.h"

#include <algorithm>
#include <cstring>

#include "driver_kit/program.h"

namespace npu::isa {
namespace {

constexpr int64_t kPlaceMask = (INT64_C(1) << kSegmentBits) - 1;
/*! \brief How often a run looks whether it was cancelled. */
constexpr int64_t kBetweenLooks = 1 << 16;

/*! \brief The name of a segment, for messages. */
std::string NameOf(int64_t segment, size_t inputs) {
  const int64_t port = segment - kFirstPort, outputs = port - static_cast<int64_t>(inputs);
  if (segment == kConstants) return "the constants";
  if (segment == kWorkspace) return "the workspace";
  if (outputs >= 0) return "output " + std::to_string(outputs);
  if (port >= 0) return "input " + std::to_string(port);
  return kMemories[segment - 1].name;
}

/*! \brief A number that looks random, from its place in a sequence: splitmix64. */
uint64_t Random(uint64_t seed, uint64_t place) {
  uint64_t value = seed + (place + 1) * UINT64_C(0x9E3779B97F4A7C15);
  value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
  return value ^ value >> 31;
}

}  // namespace

Execution::Execution(const Program& program)
    : program_(program), fields_(program.fields), counts_(program.lines.size()) {
  stalls_.resize(program.lines.size());
  const size_t ports = program.inputs.size() + program.outputs.size();
  segments_.resize(static_cast<size_t>(kFirstPort) + ports);
  const int32_t tensors = SegmentedMemory();
  const auto own = [this](size_t segment, int64_t bytes, int32_t memory) {
    // Exactly so many bytes: tools that watch memory see what is outside.
    owned_.emplace_back(new uint8_t[static_cast<size_t>(bytes)]());
    segments_[segment] = {owned_.back().get(), bytes, memory, false, true};
  };
  for (int32_t i = 0; i < kMemoryCount; ++i) {
    if (i != tensors) own(static_cast<size_t>(i) + 1, kMemories[i].bytes, i);
  }
  own(kWorkspace, program.workspace, tensors);
  segments_[kConstants] = {const_cast<uint8_t*>(program.constants), program.constant_bytes, tensors,
                           true, true};
  for (size_t i = 0; i < ports; ++i) {
    const bool is_input = i < program.inputs.size();
    const int64_t bytes = is_input ? program.inputs[i] : program.outputs[i - program.inputs.size()];
    segments_[static_cast<size_t>(kFirstPort) + i] = {nullptr, bytes, tensors, is_input, true};
  }
}

void Execution::Bind(size_t port, void* data) {
  segments_[static_cast<size_t>(kFirstPort) + port].data = static_cast<uint8_t*>(data);
}

void Execution::Reset() {
  for (int32_t i = 0; i < kFirstPort; ++i) {
    Segment& segment = segments_[static_cast<size_t>(i)];
    if (segment.exists && !segment.is_read_only && segment.bytes > 0) {
      std::memset(segment.data, 0, static_cast<size_t>(segment.bytes));
    }
  }
  std::fill(std::begin(state_.registers_), std::end(state_.registers_), 0);
}

void Execution::Run(const Settings& settings, const std::atomic<bool>* cancelled) {
  std::fill(counts_.begin(), counts_.end(), 0);
  std::fill(stalls_.begin(), stalls_.end(), 0);
  stretches_.clear();
  std::fill(std::begin(latest_), std::end(latest_), -1);
  spans_.assign(is_recording_ ? program_.lines.size() : 0, {-1, -1});
  deferred_.clear();
  random_ = 0;
  timing_ = Timing(settings.sync);
  state_.line_ = 0;
  state_.depth_ = 0;
  state_.is_done_ = false;
  try {
    Loop(settings, cancelled);
  } catch (kit::Failure& failure) {
    if (failure.status == NPU_INVALID) {
      const auto line = static_cast<size_t>(state_.line_);
      const std::string what =
          line < program_.lines.size() ? " (" + program_.TextOf(line) + ")" : "";
      failure.reason = "line " + std::to_string(line) + what + ": " + failure.reason;
    }
    throw;
  }
  std::stable_sort(stretches_.begin(), stretches_.end(),
                   [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
}

void Execution::Loop(const Settings& settings, const std::atomic<bool>* cancelled) {
  const Line* const lines = program_.lines.data();
  const auto count = static_cast<uint64_t>(program_.lines.size());
  int64_t left = settings.most_instructions;
  int64_t until_look = kBetweenLooks;
  if (count == 0) kit::Refuse("the program has no lines");
  while (true) {
    if (left-- == 0) {
      kit::Refuse("the program does not end within " + std::to_string(settings.most_instructions) +
                  " instructions");
    }
    if (--until_look == 0) {
      until_look = kBetweenLooks;
      if (cancelled != nullptr && *cancelled) throw kit::Failure{NPU_CANCELLED, "cancelled"};
      if (timing_.now() > settings.most_cycles) break;
    }
    const Line& line = lines[state_.line_];
    ++counts_[static_cast<size_t>(state_.line_)];
    state_.next_ = state_.line_ + 1;
    if (line.engine == 0 && line.address_count == 0 && line.waits == 0 && !is_recording_) {
      timing_.Spend(line.cycles);
      line.run(state_, &fields_[line.fields]);
    } else {
      Step(line, settings);
    }
    if (state_.is_done_) break;
    if (static_cast<uint64_t>(state_.next_) >= count) {
      kit::Refuse("line " + std::to_string(state_.next_) + " is next, but the program has " +
                  std::to_string(count) + " lines");
    }
    state_.line_ = state_.next_;
  }
  if (timing_.now() > settings.most_cycles) {
    kit::Refuse("the program takes more than " + std::to_string(settings.most_cycles) + " cycles");
  }
  timing_.Wait(-1);
  Flush(INT64_MAX);
}

void Execution::Step(const Line& line, const Settings& settings) {
  Access accesses[kMostBoxes];
  const int32_t count = Resolve(line, accesses);
  int64_t cycles = line.cycles;
  if (cycles > settings.most_cycles - timing_.now()) {
    kit::Refuse("the program takes more than " + std::to_string(settings.most_cycles) + " cycles");
  }
  void* const fields = line.info->bytes > 0 ? &fields_[line.fields] : nullptr;
  if (line.engine == 0) {
    const int64_t waited = line.waits != 0 ? timing_.Wait(line.waits) : 0;
    Span span = timing_.Touch(cycles, accesses, count);
    span.stalled += waited;
    stalls_[static_cast<size_t>(state_.line_)] += span.stalled;
    Flush(span.begin);
    Execute(line, fields);
    if (is_recording_) Note(line, span, accesses, count);
    return;
  }
  if (line.waits != 0) timing_.Wait(line.waits);
  if (settings.most_delay > 0) {
    const auto most = static_cast<uint64_t>(settings.most_delay);
    cycles += static_cast<int64_t>(Random(settings.seed, random_++) % (most + 1));
  }
  const Span span =
      timing_.Issue(line.engine, static_cast<int32_t>(state_.line_), cycles, accesses, count);
  if (span.end > settings.most_cycles) {
    kit::Refuse("the program takes more than " + std::to_string(settings.most_cycles) + " cycles");
  }
  stalls_[static_cast<size_t>(state_.line_)] += span.stalled;
  if (is_recording_) Note(line, span, accesses, count);
  if (settings.is_only_timed) return;
  if (settings.most_delay == 0) {
    Execute(line, fields);
    return;
  }
  const auto length = static_cast<uint64_t>(std::max<int64_t>(span.end - span.begin, 1));
  const auto after = static_cast<int64_t>(Random(settings.seed, random_++) % length);
  const auto words = static_cast<ptrdiff_t>((line.info->bytes + 7) / 8);
  const auto begin = fields_.begin() + line.fields;
  deferred_.push_back({span.begin + after, &line, {begin, begin + words}});
  // What comes later begins no sooner than now.
  if (deferred_.size() > 256) Flush(timing_.now());
}

int32_t Execution::Resolve(const Line& line, Access* accesses) {
  int64_t addresses[kMostAddresses];
  for (int32_t i = 0; i < line.address_count; ++i) {
    const AddressSlot& slot = line.addresses[i];
    const auto base = static_cast<uint64_t>(state_.registers_[slot.register_index]);
    addresses[i] = static_cast<int64_t>(base + static_cast<uint64_t>(int64_t{slot.offset}));
    const auto index = static_cast<uint64_t>(addresses[i]) >> kSegmentBits;
    if (index >= segments_.size() || !segments_[index].exists ||
        (slot.memories >> segments_[index].memory & 1) == 0) {
      RefuseAddress(line, i);
    }
    // It may be outside where nothing is touched.
    const auto pointer = reinterpret_cast<uintptr_t>(segments_[index].data) +
                         static_cast<uintptr_t>(addresses[i] & kPlaceMask);
    std::memcpy(reinterpret_cast<uint8_t*>(&fields_[line.fields]) + slot.place, &pointer,
                sizeof(pointer));
  }
  for (int32_t i = 0; i < line.extent_count; ++i) {
    const Measures::Extent& extent = line.extents[i];
    const int64_t address = addresses[extent.address], place = address & kPlaceMask;
    const Segment& segment = segments_[static_cast<size_t>(address >> kSegmentBits)];
    // The place is small, so that a sum with what is limited does not overflow.
    if (extent.low < -place || extent.high > segment.bytes - place ||
        (extent.is_write && segment.is_read_only)) {
      RefuseExtent(line, extent, place, segment);
    }
    accesses[i] = {address + extent.low, address + extent.high, extent.is_write};
  }
  return line.extent_count;
}

void Execution::Execute(const Line& line, void* fields) {
  state_.used_ = 0;
  line.run(state_, fields);
}

void Execution::Flush(int64_t moment) {
  if (deferred_.empty()) return;
  std::stable_sort(deferred_.begin(), deferred_.end(),
                   [](const Deferred& a, const Deferred& b) { return a.moment < b.moment; });
  size_t done = 0;
  for (; done < deferred_.size() && deferred_[done].moment < moment; ++done) {
    Execute(*deferred_[done].line, deferred_[done].fields.data());
  }
  deferred_.erase(deferred_.begin(), deferred_.begin() + static_cast<ptrdiff_t>(done));
}

void Execution::Note(const Line& line, const Span& span, const Access* accesses, int32_t count) {
  LineSpan& whole = spans_[static_cast<size_t>(&line - program_.lines.data())];
  if (whole.begin < 0) whole.begin = span.begin;
  whole.end = std::max(whole.end, span.end);
  const bool is_scalar = line.is_scalar && line.engine == 0;
  int64_t& latest = latest_[is_scalar ? kEngineCount : line.engine];
  const Line* last =
      latest < 0
          ? nullptr
          : &program_.lines[static_cast<size_t>(stretches_[static_cast<size_t>(latest)].line)];
  if (last == nullptr || last->label != line.label || last->note != line.note) {
    latest = static_cast<int64_t>(stretches_.size());
    Stretch stretch = {};
    stretch.line = static_cast<int32_t>(&line - program_.lines.data());
    stretch.engine = line.engine;
    stretch.is_scalar = is_scalar;
    stretch.waits_for = span.waits_for;
    stretch.begin = span.begin;
    stretch.bytes_read.resize(kMemoryCount);
    stretch.bytes_written.resize(kMemoryCount);
    stretches_.push_back(std::move(stretch));
  }
  Stretch& stretch = stretches_[static_cast<size_t>(latest)];
  stretch.end = std::max(stretch.end, span.end);
  stretch.busy += span.end - span.begin;
  stretch.work += line.work;
  ++stretch.count;
  for (const Access* access = accesses; access != accesses + count; ++access) {
    const auto memory =
        static_cast<size_t>(segments_[static_cast<size_t>(access->low >> kSegmentBits)].memory);
    (access->is_write ? stretch.bytes_written : stretch.bytes_read)[memory] +=
        access->high - access->low;
  }
}

Totals Execution::totals() const {
  Totals totals;
  Wide works[kEngineCount];
  totals.cycles = timing_.now();
  for (size_t i = 0; i < counts_.size(); ++i) {
    const Line& line = program_.lines[i];
    totals.instructions += counts_[i];
    totals.busy[line.engine] += counts_[i] * line.cycles;
    if (line.is_scalar && line.engine == 0) totals.scalar += counts_[i] * line.cycles;
    Wide& work = works[line.engine];
    work = work + Wide(counts_[i]) * Wide(line.work);
    totals.stalled[line.engine] += stalls_[i];
  }
  for (int32_t i = 0; i < kEngineCount; ++i) totals.work[i] = works[i].value();
  return totals;
}

void Execution::RefuseAddress(const Line& line, int32_t address) const {
  const AddressSlot& slot = line.addresses[address];
  const auto base = static_cast<uint64_t>(state_.registers_[slot.register_index]);
  const uint64_t at = base + static_cast<uint64_t>(int64_t{slot.offset});
  const auto segment = static_cast<int64_t>(at >> kSegmentBits);
  std::string allowed;
  for (int32_t i = 0; i < kMemoryCount; ++i) {
    if ((slot.memories >> i & 1) == 0) continue;
    allowed += (allowed.empty() ? "" : ", ") + std::string(kMemories[i].name);
  }
  const FieldInfo* field = line.info->fields;
  while (field->kind != FieldKind::kAddress || field->place != slot.place) ++field;
  const bool exists = segment < static_cast<int64_t>(segments_.size()) &&
                      segments_[static_cast<size_t>(segment)].exists;
  kit::Refuse(std::string(field->name) + " is in " +
              (exists ? NameOf(segment, program_.inputs.size())
                      : "segment " + std::to_string(segment) + ", which does not exist") +
              "; it may be in " + allowed);
}

void Execution::RefuseExtent(const Line& line, const Measures::Extent& extent, int64_t place,
                             const Segment& segment) const {
  const std::string name = NameOf(&segment - segments_.data(), program_.inputs.size());
  if (extent.is_write && segment.is_read_only) {
    kit::Refuse("it writes to " + name + ", but constants and inputs are only read");
  }
  const Wide low = Wide(place) + Wide(extent.low), high = Wide(place) + Wide(extent.high);
  kit::Refuse(std::string(line.info->name) + (extent.is_write ? " writes" : " reads") + " bytes " +
              std::to_string(low.value()) + " to " + std::to_string(high.value()) + " of " + name +
              ", which has " + std::to_string(segment.bytes));
}

}  // namespace npu::isa
