// SPDX-License-Identifier: Apache-2.0
/*!
 * \file aligned_memory.h
 * \brief Memory for an artifact.
 */
#ifndef COMMON_ALIGNED_MEMORY_H_
#define COMMON_ALIGNED_MEMORY_H_

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstddef>
#include <new>
#include <string_view>

#include "artifact.h"

namespace npu {

/*! \brief Uninitialized memory with the alignment that drivers need. */
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t size) : size_(size) {
    // Large pages cause fewer page faults now, and fewer TLB misses when weights are read.
    constexpr size_t kLargePage = size_t{2} << 20;
    alignment_ = std::align_val_t(size_ < kLargePage ? kArtifactAlignment : kLargePage);
    data_ = static_cast<char*>(::operator new(size_, alignment_));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (size_ >= kLargePage) madvise(data_, size_, MADV_HUGEPAGE);
#endif
  }
  ~AlignedMemory() { ::operator delete(data_, alignment_); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  char* data() const { return data_; }
  std::string_view view() const { return {data_, size_}; }

 private:
  char* data_;
  size_t size_;
  std::align_val_t alignment_;
};

}  // namespace npu

#endif  // COMMON_ALIGNED_MEMORY_H_
