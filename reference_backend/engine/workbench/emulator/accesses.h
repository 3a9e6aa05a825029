// SPDX-License-Identifier: Apache-2.0
/*!
 * \file accesses.h
 * \brief The bytes that the commands of a program access.
 */
#ifndef EMULATOR_ACCESSES_H_
#define EMULATOR_ACCESSES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "program.h"

namespace npu::emulator {

/*! \brief A memory range that a command accesses. */
struct Access {
  npu_tensor tensor;
  /*! \brief Pieces [begin, end). A transfer touches the piece of its tensor around its box. */
  int32_t begin, end;
};

/*!
 * \brief The accesses of all commands, in pieces.
 *
 * All memories together are cut wherever an access begins or ends, and the pieces numbered. A
 * tensor of symbolic size counts with its largest memory, so this does not depend on symbols.
 */
class Accesses {
 public:
  /*! \brief Takes O(n log n). */
  explicit Accesses(const Program& program);

  /*! \brief The accesses of a command: its reads in the order of ForEachRead, then its output. */
  const Access* begin(size_t command) const { return accesses_.data() + first_[command]; }
  const Access* end(size_t command) const { return accesses_.data() + first_[command + 1]; }
  /*! \brief The output alone. */
  const Access& output(size_t command) const { return end(command)[-1]; }
  /*! \brief The number of an access among those of all commands. */
  size_t index(const Access* access) const { return access - accesses_.data(); }
  size_t size() const { return accesses_.size(); }

  int32_t pieces() const { return pieces_; }

 private:
  std::vector<Access> accesses_;
  std::vector<size_t> first_;
  int32_t pieces_ = 0;
};

/*! \brief A number for each piece that can only grow: the last time of an event. Both functions
 *  take O(log n) and do not allocate. */
class Latest {
 public:
  explicit Latest(int32_t pieces) : size_(pieces), whole_(2 * size_), inside_(2 * size_) {
    Clear();
  }

  void Clear() {
    std::fill(whole_.begin(), whole_.end(), -1);
    std::fill(inside_.begin(), inside_.end(), -1);
  }

  /*! \brief Raises the pieces of an access to at least `time`. */
  void Raise(const Access& access, int64_t time) {
    if (access.begin == access.end) return;
    ForEachNode(access, [&](size_t node) {
      whole_[node] = std::max(whole_[node], time);
      inside_[node] = std::max(inside_[node], time);
    });
    for (size_t leaf : {access.begin + size_, access.end - 1 + size_}) {
      for (size_t node = leaf / 2; node > 0; node /= 2) {
        inside_[node] = std::max(inside_[node], time);
      }
    }
  }

  /*! \brief The largest number of the pieces of an access; -1 if they were never raised. */
  int64_t Of(const Access& access) const {
    int64_t time = -1;
    if (access.begin == access.end) return time;
    ForEachNode(access, [&](size_t node) { time = std::max(time, inside_[node]); });
    for (size_t leaf : {access.begin + size_, access.end - 1 + size_}) {
      for (size_t node = leaf / 2; node > 0; node /= 2) time = std::max(time, whole_[node]);
    }
    return time;
  }

 private:
  /*! \brief The nodes of the tree that make up the range; the leaves are size_ to 2 size_. */
  template <typename Visitor>
  void ForEachNode(const Access& access, const Visitor& visit) const {
    size_t end = access.end + size_;
    for (size_t begin = access.begin + size_; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) visit(begin++);
      if (end % 2 == 1) visit(--end);
    }
  }

  size_t size_;
  /*! \brief By node: the largest value set for all of its pieces together, and for any of
   *  them. */
  std::vector<int64_t> whole_, inside_;
};

}  // namespace npu::emulator

#endif  // EMULATOR_ACCESSES_H_
