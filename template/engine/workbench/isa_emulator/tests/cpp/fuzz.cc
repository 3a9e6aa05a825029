// SPDX-License-Identifier: Apache-2.0
/*!
 * \file fuzz.cc
 * \brief Mutated programs are refused with a sentence, or executed within their memories: to be
 * built with sanitizers. Arguments: how many mutations, and files of programs.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "isa_emulator/execution.h"
#include "isa_emulator/listing.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

/*! \brief Where the words of a program begin: they are its last part. */
size_t FirstWord(const Bytes& bytes, uint32_t lines) {
  const size_t size = size_t{lines} * npu::isa::kWordBytes;
  return bytes.size() - (size + 63) / 64 * 64;
}

void SetBits(uint8_t* word, int32_t low, int32_t count, uint64_t value) {
  for (int32_t i = 0; i < count; ++i) {
    const int32_t at = low + i;
    const auto bit = static_cast<uint8_t>(1 << at % 8);
    if ((value >> std::min(i, 63) & 1) != 0) {
      word[at / 8] = static_cast<uint8_t>(word[at / 8] | bit);
    } else {
      word[at / 8] = static_cast<uint8_t>(word[at / 8] & ~bit);
    }
  }
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  Bytes Mutate(Bytes bytes) {
    uint32_t lines = 0;
    std::memcpy(&lines, &bytes[40], sizeof(lines));
    const size_t first = FirstWord(bytes, lines);
    for (uint64_t left = 1 + Below(3); left > 0; --left) {
      if (Below(50) == 0) {
        // Sizes, numbers and texts of the file.
        bytes[Below(first)] ^= static_cast<uint8_t>(1 << Below(8));
        continue;
      }
      const auto at = [&](uint64_t line) { return &bytes[first + line * npu::isa::kWordBytes]; };
      uint8_t* const word = at(Below(lines));
      switch (Below(8)) {
        case 0:
          word[Below(npu::isa::kWordBytes)] ^= static_cast<uint8_t>(1 << Below(8));
          break;
        case 1: {
          const uint8_t* const other = at(Below(lines));
          if (other != word) std::memcpy(word, other, npu::isa::kWordBytes);
          break;
        }
        default:
          SetField(word);
      }
    }
    const uint32_t sum = npu::isa::ChecksumOf(&bytes[32], bytes.size() - 32);
    std::memcpy(&bytes[24], &sum, sizeof(sum));
    return bytes;
  }

 private:
  uint64_t Below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void SetField(uint8_t* word) {
    const npu::isa::InstructionInfo* info = npu::isa::FindInstruction(word[0]);
    if (info == nullptr || info->field_count == 0) return;
    const npu::isa::FieldInfo& field =
        info->fields[Below(static_cast<uint64_t>(info->field_count))];
    const uint64_t values[] = {static_cast<uint64_t>(field.least),
                               static_cast<uint64_t>(field.most),
                               0,
                               1,
                               Below(64),
                               ~Below(64),
                               random_(),
                               uint64_t{1} << Below(64)};
    SetBits(word, field.low, field.bits, values[Below(8)]);
  }

  std::mt19937_64 random_;
};

/*! \brief Loads and runs; returns whether it was refused. */
bool IsRefused(const Bytes& bytes, uint64_t seed) {
  try {
    const npu::isa::Program program(bytes.data(), bytes.size());
    // Sizes of forged programs may be anything; a caller would refuse them.
    int64_t sum = program.workspace;
    for (const auto* sizes : {&program.inputs, &program.outputs}) {
      for (const int64_t size : *sizes) sum += size;
    }
    if (sum > 1 << 24) return true;
    npu::isa::Execution execution(program);
    std::vector<std::unique_ptr<uint8_t[]>> ports;
    for (const auto* sizes : {&program.inputs, &program.outputs}) {
      for (const int64_t size : *sizes) {
        ports.emplace_back(new uint8_t[static_cast<size_t>(size)]());
        execution.Bind(ports.size() - 1, ports.back().get());
      }
    }
    npu::isa::Settings settings;
    settings.most_instructions = 2000;
    settings.most_cycles = 20000;
    settings.most_delay = seed % 3 == 0 ? 100 : 0;
    settings.seed = seed;
    execution.Record(seed % 5 == 0);
    execution.Run(settings);
    if (seed % 100 == 0) npu::isa::Listing(program);
    return false;
  } catch (const npu::kit::Failure& failure) {
    if (failure.reason.empty()) std::abort();
    return true;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int64_t count = std::atoll(argv[1]);
  std::vector<Bytes> programs;
  for (int i = 2; i < argc; ++i) programs.push_back(ReadFile(argv[i]));
  int64_t refused = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    Mutator mutator(seed);
    const Bytes& program = programs[seed % programs.size()];
    if (IsRefused(program, seed) && i < argc - 2) {
      std::fprintf(stderr, "%s is refused as it is\n", argv[2 + i]);
      return 1;
    }
    refused += IsRefused(mutator.Mutate(program), seed) ? 1 : 0;
  }
  std::printf("refused %lld of %lld\n", static_cast<long long>(refused),
              static_cast<long long>(count));
  return refused == 0 || refused == count ? 1 : 0;
}
