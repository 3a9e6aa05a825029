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

constexpr int64_t kMaxMemory = int64_t{1} << 40;

constexpr const char* kPowerModes[] = {"low", "balanced", "performance"};
constexpr int64_t kFrequencies[] = {500, 1000, 1500};
constexpr const char* kPrecisions[] = {"float32", "float16"};

constexpr npu_option_info Number(const char* key, const char* default_value, int64_t least,
                                 int64_t most, const char* about) {
  return {key, NPU_OPTION_INT, default_value, least, most, nullptr, 0, about};
}

template <size_t count>
constexpr npu_option_info Choice(const char* key, const char* default_value,
                                 const char* const (&choices)[count], const char* about) {
  return {key, NPU_OPTION_CHOICE, default_value, 0, 0, choices, count, about};
}

/*! \brief The member that holds a number: one of the two. */
struct NumberMember {
  const char* key;
  int64_t Machine::* wide;
  int32_t Machine::* narrow;

  int64_t Get(const Machine& machine) const {
    return wide != nullptr ? machine.*wide : machine.*narrow;
  }
};

constexpr NumberMember kNumbers[] = {
    {"scratchpad_bytes", &Machine::scratchpad_bytes, nullptr},
    {"dram_bytes", &Machine::dram_bytes, nullptr},
    {"max_tile_bytes", &Machine::max_tile_bytes, nullptr},
    {"cores", nullptr, &Machine::cores},
    {"matrix_rows", nullptr, &Machine::matrix_rows},
    {"matrix_columns", nullptr, &Machine::matrix_columns},
    {"weight_buffers", nullptr, &Machine::weight_buffers},
    {"vector_lanes", nullptr, &Machine::vector_lanes},
    {"dram_megabytes_per_second", nullptr, &Machine::dram_megabytes_per_second},
    {"dma_latency_cycles", nullptr, &Machine::dma_latency_cycles},
    {"threads", nullptr, &Machine::threads},
    {"pace", nullptr, &Machine::pace},
};

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

const npu_option_info* FindOption(const std::string& key) {
  auto found = std::find_if(std::begin(kOptions), std::end(kOptions),
                            [&](const npu_option_info& option) { return key == option.key; });
  return found == std::end(kOptions) ? nullptr : found;
}

}  // namespace

const npu_option_info kOptions[kOptionCount] = {
    Number("scratchpad_bytes", "4194304", 1024, kMaxMemory,
           "the on-chip memory that all engines compute in"),
    Number("dram_bytes", "4294967296", 1024, kMaxMemory,
           "the memory for inputs, outputs, constants and what leaves the scratchpad"),
    Number("max_tile_bytes", "0", 0, kMaxMemory,
           "the largest tensor that one command may touch; 0: no limit but the scratchpad"),
    Number("cores", "1", 1, 16, "cores, each with a matrix and a vector engine"),
    Number("matrix_rows", "32", 1, 1024, "rows of the systolic array, along the summed dimension"),
    Number("matrix_columns", "32", 1, 1024, "columns of the systolic array, along the outputs"),
    Number("weight_buffers", "1", 1, 2,
           "weights that a cell of the array holds; 2: the next ones load while it multiplies"),
    Number("vector_lanes", "64", 1, 4096, "elements that a vector engine handles in a cycle"),
    Number("dram_megabytes_per_second", "16000", 1, 10000000,
           "the bandwidth of DRAM, in units of 10^6 bytes"),
    Number("dma_latency_cycles", "100", 0, 1000000, "cycles until the first byte of a transfer"),
    Choice("power_mode", "balanced", kPowerModes, "how fast the clock runs"),
    Choice("precision", "float32", kPrecisions,
           "how intermediate results of type float32 are kept"),
    Number("threads", "1", 1, 64, "host threads that emulate one call"),
    Number("pace", "0", 0, 1000000,
           "how many times slower than the device the emulation must be; 0: as fast as possible"),
};

void Machine::Set(const std::string& key, const std::string& value) {
  if (key == "power_mode") return SetNamed(key, value, kPowerModes, &power_mode);
  if (key == "precision") return SetNamed(key, value, kPrecisions, &precision);
  const npu_option_info* option = FindOption(key);
  if (option == nullptr) {
    std::string keys;
    for (const npu_option_info& known : kOptions) {
      keys += (keys.empty() ? "" : ", ") + std::string(known.key);
    }
    Invalid("Option ", key, " is unknown; the driver has the options ", keys, ".");
  }
  int64_t number = 0;
  auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (problem != std::errc() || end != value.data() + value.size() || number < option->least ||
      number > option->most) {
    Invalid("Option ", key, " is \"", value, "\"; it must be a whole number from ", option->least,
            " to ", option->most, ".");
  }
  for (const NumberMember& member : kNumbers) {
    if (member.key != key) continue;
    if (member.wide != nullptr) {
      this->*member.wide = number;
    } else {
      this->*member.narrow = static_cast<int32_t>(number);
    }
  }
}

void Machine::Check() const {
  for (const NumberMember& member : kNumbers) {
    const npu_option_info& option = *FindOption(member.key);
    int64_t number = member.Get(*this);
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

int64_t StepsOfCell(npu_dtype a, npu_dtype b) {
  if (a == NPU_FLOAT32 || a == NPU_FLOAT16) return 1;
  return (a == NPU_INT16 ? 2 : 4) / (b == NPU_INT16 ? 2 : 1);
}

int64_t MatrixCycles(const Machine& machine, int64_t m, int64_t k, int64_t n, int64_t steps,
                     int64_t products) {
  if (m == 0 || k == 0 || n == 0 || products == 0) return 0;
  const int64_t rows = machine.matrix_rows;
  const int64_t columns = machine.matrix_columns;
  const int64_t tiles =
      Times(Times(CeilDivide(CeilDivide(k, steps), rows), CeilDivide(n, columns)), products);
  const int64_t alone = 2 * rows + columns + m - 2;
  if (machine.weight_buffers == 1) return Times(alone, tiles);
  return Plus(alone, Times(std::max(rows, m), tiles - 1));
}

int64_t GroupedMatrixCycles(const Machine& machine, int64_t groups, int64_t m, int64_t k, int64_t n,
                            int64_t steps) {
  if (m == 0 || k == 0 || n == 0) return 0;
  const int64_t at_once = std::min(machine.matrix_rows / CeilDivide(k, steps),  //
                                   machine.matrix_columns / n);
  return MatrixCycles(machine, m, k, n, steps, CeilDivide(groups, std::max<int64_t>(1, at_once)));
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
