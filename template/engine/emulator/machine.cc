// SPDX-License-Identifier: Apache-2.0
/*!
 * \file machine.cc
 * \brief The options of the emulated machine, and its cost model.
 */
#include "machine.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "support.h"

namespace npu::emulator {
namespace {

/*! \brief An option that is a number; one of the two members holds it. */
struct NumberOption {
  const char* key;
  int64_t least, most;
  int64_t Machine::* wide;
  int32_t Machine::* narrow;

  int64_t Get(const Machine& machine) const {
    return wide != nullptr ? machine.*wide : machine.*narrow;
  }
};

constexpr int64_t kMaxMemory = int64_t{1} << 40;

constexpr NumberOption kNumbers[] = {
    {"scratchpad_bytes", 1024, kMaxMemory, &Machine::scratchpad_bytes, nullptr},
    {"dram_bytes", 1024, kMaxMemory, &Machine::dram_bytes, nullptr},
    {"max_tile_bytes", 0, kMaxMemory, &Machine::max_tile_bytes, nullptr},
    {"cores", 1, 16, nullptr, &Machine::cores},
    {"matrix_rows", 1, 1024, nullptr, &Machine::matrix_rows},
    {"matrix_columns", 1, 1024, nullptr, &Machine::matrix_columns},
    {"vector_lanes", 1, 4096, nullptr, &Machine::vector_lanes},
    {"dram_megabytes_per_second", 1, 10000000, nullptr, &Machine::dram_megabytes_per_second},
    {"dma_latency_cycles", 0, 1000000, nullptr, &Machine::dma_latency_cycles},
    {"threads", 1, 64, nullptr, &Machine::threads},
    {"pace", 0, 1000000, nullptr, &Machine::pace},
};

constexpr const char* kPowerModes[] = {"low", "balanced", "performance"};
constexpr int64_t kFrequencies[] = {500, 1000, 1500};
constexpr const char* kPrecisions[] = {"float32", "float16"};

template <typename Names>
std::string List(const Names& names) {
  std::string list;
  for (const char* name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

/*! \brief The value that has this name. */
template <typename Enum, typename Names>
void SetNamed(const std::string& key, const std::string& value, const Names& names, Enum* set) {
  auto found = std::find(std::begin(names), std::end(names), value);
  if (found == std::end(names)) {
    Invalid("Option ", key, " is \"", value, "\"; it must be one of ", List(names), ".");
  }
  *set = static_cast<Enum>(found - std::begin(names));
}

template <typename Enum, typename Names>
bool IsNamed(Enum value, const Names& names) {
  auto number = static_cast<int32_t>(value);
  return number >= 0 && number < static_cast<int32_t>(std::size(names));
}

int64_t CeilDivide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

void Machine::Set(const std::string& key, const std::string& value) {
  if (key == "power_mode") return SetNamed(key, value, kPowerModes, &power_mode);
  if (key == "precision") return SetNamed(key, value, kPrecisions, &precision);
  std::string keys;
  for (const NumberOption& option : kNumbers) {
    keys += std::string(option.key) + ", ";
    if (option.key != key) continue;
    int64_t number = 0;
    auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (problem != std::errc() || end != value.data() + value.size() || number < option.least ||
        number > option.most) {
      Invalid("Option ", key, " is \"", value, "\"; it must be a whole number from ", option.least,
              " to ", option.most, ".");
    }
    if (option.wide != nullptr) {
      this->*option.wide = number;
    } else {
      this->*option.narrow = static_cast<int32_t>(number);
    }
    return;
  }
  Invalid("Option ", key, " is unknown; the driver has the options ", keys,
          "power_mode and precision.");
}

void Machine::Check() const {
  for (const NumberOption& option : kNumbers) {
    int64_t number = option.Get(*this);
    if (number < option.least || number > option.most) {
      Invalid("Option ", option.key, " is ", number, "; it must be from ", option.least, " to ",
              option.most, ".");
    }
  }
  if (!IsNamed(power_mode, kPowerModes)) {
    Invalid("Option power_mode must be one of ", List(kPowerModes), ".");
  }
  if (!IsNamed(precision, kPrecisions)) {
    Invalid("Option precision must be one of ", List(kPrecisions), ".");
  }
}

int64_t Machine::FrequencyMHz() const { return kFrequencies[static_cast<int32_t>(power_mode)]; }

const char* Name(PowerMode mode) { return kPowerModes[static_cast<int32_t>(mode)]; }

const char* Name(Precision precision) { return kPrecisions[static_cast<int32_t>(precision)]; }

int64_t Plus(int64_t a, int64_t b) { return std::min(a + b, kMaxCount); }

int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMaxCount : std::min(product, kMaxCount);
}

int64_t MatrixCycles(const Machine& machine, int64_t m, int64_t k, int64_t n) {
  if (m == 0 || k == 0 || n == 0) return 0;
  int64_t rows = machine.matrix_rows;
  int64_t columns = machine.matrix_columns;
  return Times(Times(2 * rows + columns + m - 2, CeilDivide(k, rows)), CeilDivide(n, columns));
}

int64_t VectorCycles(const Machine& machine, int64_t elements, int64_t instructions) {
  return Times(CeilDivide(elements, machine.vector_lanes), instructions);
}

int64_t OrderInstructions(int64_t count) {
  int64_t instructions = 1;
  for (int64_t reach = 1; reach < count; reach *= 2) ++instructions;
  return instructions;
}

int64_t DmaCycles(const Machine& machine, int64_t runs, int64_t run_bytes) {
  int64_t bytes = Times(runs, Times(CeilDivide(run_bytes, kBurstBytes), kBurstBytes));
  if (bytes == 0) return 0;
  // Megabytes per second are bytes per microsecond.
  int64_t cycles = CeilDivide(Times(bytes, machine.FrequencyMHz()),  //
                              machine.dram_megabytes_per_second);
  return Plus(machine.dma_latency_cycles, cycles);
}

}  // namespace npu::emulator
