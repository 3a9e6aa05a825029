// SPDX-License-Identifier: Apache-2.0
/*!
 * \file elements.h
 * \brief Elements of boxes, for the functions of vendor/isa_semantics.h: what backend/isa/oracle.py
 * has in NumPy.
 */
#ifndef ISA_EMULATOR_ELEMENTS_H_
#define ISA_EMULATOR_ELEMENTS_H_

#include <array>
#include <cstdint>

#include "isa_emulator/state.h"

namespace npu::isa {

/*! \brief A float16, which only has its bits. */
struct Half {
  uint16_t bits = 0;

  Half() = default;
  /*! \brief Rounds to the nearest, halves to even. */
  explicit Half(float value);
  explicit operator float() const;
};

// ---- One element ----

/*! \brief An element of a memory in a register: an integer of 64 bits or a float32. */
void LoadElement(State& s, int32_t to, const uint8_t* from, Name type);
/*! \brief A register as an element of a memory; integers wrap. */
void StoreElement(const State& s, int32_t from, uint8_t* to, Name type);
/*! \brief A register (an i64 or an f32) as another type: reals are cut and saturate. */
void Cast(State& s, int32_t to, int32_t from, Name source, Name type);
/*! \brief A register as the result of an operation on i64 or f32; comparisons are 0 or 1. */
void Operate(State& s, int32_t to, int32_t a, int32_t b, Name op, Name type);
/*! \brief A function of float32. */
float Apply(Name function, float value);

// ---- Rows of elements, without gaps; they may only overlap where they are the same ----

using BinaryRow = void (*)(const void* a, const void* b, void* to, int64_t count);
using UnaryRow = void (*)(const void* from, void* to, int64_t count);

/*! \brief An operation on elements of a type; comparisons are bools. Refuses what a type lacks. */
BinaryRow RowOf(Name op, Name type);
/*! \brief The rows of a conversion. */
UnaryRow ConversionOf(Name from, Name to);
/*! \brief A function of float32. */
UnaryRow FunctionOf(Name function);
/*! \brief Whether an operation has bools as results. */
bool IsComparison(Name op);
/*! \brief A float32 as an element of a type, of 8 bytes at most. */
std::array<uint8_t, 8> Converted(float value, Name type);

// ---- Boxes of elements ----

using Counts = std::array<int64_t, 3>;

/*! \brief Elements in three dimensions, the innermost last, as many bytes apart as `strides`. */
struct View {
  uint8_t* data;
  /*! \brief The bytes of an element. */
  int64_t size;
  std::array<int64_t, 3> strides;
};

/*! \brief Whether no two elements share bytes, as far as it is easily seen. */
bool IsApart(const View& view, const Counts& counts);
/*! \brief The elements of a view, or a copy of them without gaps, which can be read after those of
 *  the target were written. */
View Readable(State& s, const View& view, const Counts& counts, const View& target,
              const Counts& target_counts);

/*! \brief The most elements that a row is given at once. */
constexpr int64_t kMostRow = 512;

/*! \brief Where rows are gathered from and scattered to, and the order to do so. */
class Rows {
 public:
  /*! \brief Up to three sources with the counts of the target. What is read is what was there
   * before anything is written. */
  Rows(State& s, const Counts& counts, const View& target, std::initializer_list<View> sources);

  /*! \brief Calls row(sources, target, count) for rows of at most kMostRow elements, which are
   *  without gaps; all are in the order of their places, so that later ones win. */
  template <typename Row>
  void Each(const Row& row) {
    for (int64_t i = 0; i < counts_[0]; ++i) {
      for (int64_t j = 0; j < counts_[1]; ++j) {
        for (int64_t k = 0; k < counts_[2]; k += kMostRow) {
          const int64_t count = counts_[2] - k < kMostRow ? counts_[2] - k : kMostRow;
          Gather(i, j, k, count);
          row(rows_.data() + 1, rows_[0], count);
          Scatter(i, j, k, count);
        }
      }
    }
  }

 private:
  void Gather(int64_t i, int64_t j, int64_t k, int64_t count);
  void Scatter(int64_t i, int64_t j, int64_t k, int64_t count);

  Counts counts_;
  /*! \brief The target, and the sources behind it. */
  std::array<View, 4> views_ = {};
  std::array<void*, 4> rows_ = {};
  size_t view_count_ = 0;
};

/*! \brief Reduces the innermost dimension of the source, in its order, to elements of the target,
 *  which has the two others; if `adds`, what the target has comes first. */
void Reduce(State& s, Name op, Name type, const Counts& counts, const View& target,
            const View& source, bool adds);

/*! \brief Copies elements of the size of the target. */
void Copy(State& s, const Counts& counts, const View& target, const View& source);

}  // namespace npu::isa

#endif  // ISA_EMULATOR_ELEMENTS_H_
