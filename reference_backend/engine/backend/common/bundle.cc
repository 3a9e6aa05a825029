// SPDX-License-Identifier: Apache-2.0
/*!
 * \file bundle.cc
 * \brief Finds equal parts of programs, whatever their format: weights that several of them have.
 *
 * As rsync does: a table has the hashes of blocks that are stored, and a rolling hash looks them up
 * at each place of the next program. Places are multiples of 64 in both, since drivers align their
 * constants, and use them in place.
 */
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "artifact.h"

namespace npu {
namespace {

/*! \brief The shortest part that is worth a piece of its own. */
constexpr size_t kBlock = 4096;
constexpr size_t kStep = kArtifactAlignment;
constexpr size_t kStepsOfBlock = kBlock / kStep;

/*! \brief A part of a program that is stored, and its place in the data. */
struct Stored {
  std::string_view bytes;
  size_t place = 0;
};

/*! \brief A hash of the block that begins at a place, which moves by steps. */
class RollingHash {
 public:
  explicit RollingHash(std::string_view bytes) : bytes_(bytes) {
    for (size_t i = 0; i + 1 < kStepsOfBlock; ++i) leaving_ *= kFactor;
  }

  void Begin(size_t place) {
    value_ = 0;
    for (size_t at = place; at < place + kBlock; at += kStep) value_ = value_ * kFactor + At(at);
  }
  /*! \brief Moves from `place` to the next one. */
  void Move(size_t place) {
    value_ = (value_ - At(place) * leaving_) * kFactor + At(place + kBlock);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t At(size_t place) const {
    uint64_t words[kStep / sizeof(uint64_t)];
    std::memcpy(words, bytes_.data() + place, kStep);
    uint64_t hash = 0;
    for (uint64_t word : words) {
      hash = (hash ^ word) * kFactor;
      hash ^= hash >> 32;
    }
    return hash;
  }

  static constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  std::string_view bytes_;
  uint64_t value_ = 0;
  uint64_t leaving_ = 1;
};

/*! \brief The number of equal bytes at the begin of both, in whole steps unless `one` ends. */
size_t EqualBytes(std::string_view one, std::string_view other) {
  size_t most = std::min(one.size(), other.size());
  if (most < one.size()) most = most / kStep * kStep;
  size_t size = 0;
  for (size_t stride : {size_t{1} << 20, kBlock, kStep}) {
    while (stride <= most - size && std::memcmp(&one[size], &other[size], stride) == 0) {
      size += stride;
    }
  }
  const size_t rest = most - size;
  return rest < kStep && std::memcmp(one.data() + size, other.data() + size, rest) == 0 ? most
                                                                                        : size;
}

/*! \brief The parts that are stored so far. */
class Index {
 public:
  void Add(const Stored& stored) {
    for (size_t at = 0; at + kBlock <= stored.bytes.size(); at += kBlock) {
      RollingHash hash(stored.bytes);
      hash.Begin(at);
      places_.try_emplace(hash.value(), Place{all_.size(), at});
    }
    all_.push_back(stored);
  }

  /*! \brief A part that has the block at `begin` of a program, enlarged on both sides, but not to
   *  before `least`; `begin` moves along. Empty: none. */
  Stored Find(uint64_t hash, std::string_view program, size_t least, size_t* begin) const {
    const auto found = places_.find(hash);
    if (found == places_.end()) return {};
    const std::string_view bytes = all_[found->second.part].bytes;
    size_t at = found->second.at;
    if (std::memcmp(&program[*begin], &bytes[at], kBlock) != 0) return {};
    while (*begin > least && at > 0 &&
           std::memcmp(&program[*begin - kStep], &bytes[at - kStep], kStep) == 0) {
      *begin -= kStep;
      at -= kStep;
    }
    const size_t size = EqualBytes(program.substr(*begin), bytes.substr(at));
    return {bytes.substr(at, size), all_[found->second.part].place + at};
  }

 private:
  struct Place {
    size_t part, at;
  };
  std::vector<Stored> all_;
  std::unordered_map<uint64_t, Place> places_;
};

bool Overlaps(const Stored& part, const std::vector<Stored>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const Stored& other) {
    return part.place < other.place + other.bytes.size() &&
           other.place < part.place + part.bytes.size();
  });
}

}  // namespace

Bundle::Bundle(const std::vector<Artifact>& artifacts) : artifacts_(artifacts) {
  static constexpr char kZeros[kStep] = {};
  Index index;
  for (const Artifact& artifact : artifacts) {
    const std::string_view program = artifact.program.at(0);
    std::vector<Stored> pieces, added;
    size_t done = 0;
    const auto store_until = [&](size_t end) {
      if (end == done) return;
      const Stored stored = {program.substr(done, end - done), SizeOf(data_)};
      data_.push_back(stored.bytes);
      stored_size_ += stored.bytes.size();
      const size_t rest = stored.bytes.size() % kStep;
      if (rest != 0) data_.emplace_back(kZeros, kStep - rest);
      pieces.push_back(stored);
      added.push_back(stored);
    };
    RollingHash hash(program);
    bool has_begun = false;
    for (size_t at = 0; at + kBlock <= program.size();) {
      if (!has_begun) hash.Begin(at);
      has_begun = true;
      size_t begin = at;
      const Stored found = index.Find(hash.value(), program, done, &begin);
      // A part twice in one program is stored twice.
      if (!found.bytes.empty() && !Overlaps(found, pieces)) {
        store_until(begin);
        pieces.push_back(found);
        at = done = begin + found.bytes.size();
        has_begun = false;
        continue;
      }
      if (at + kStep + kBlock <= program.size()) hash.Move(at);
      at += kStep;
    }
    store_until(program.size());
    std::string table;
    for (const Stored& piece : pieces) {
      const uint64_t entry[] = {piece.place, piece.bytes.size()};
      table.append(reinterpret_cast<const char*>(entry), sizeof(entry));
    }
    tables_.push_back(std::move(table));
    for (const Stored& stored : added) index.Add(stored);
    program_size_ += program.size();
  }
}

}  // namespace npu
