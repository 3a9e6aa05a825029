// SPDX-License-Identifier: Apache-2.0
/*!
 * \file wide.h
 * \brief The integers of a table's expressions: they stay at their limits instead of wrapping, so
 * that fields with any values lead to a refusal.
 */
#ifndef ISA_EMULATOR_WIDE_H_
#define ISA_EMULATOR_WIDE_H_

#include <cstdint>

namespace npu::isa {

/*! \brief An integer that saturates. */
class Wide {
 public:
  constexpr Wide() = default;
  constexpr Wide(int64_t value) : value_(value) {}

  constexpr int64_t value() const { return value_; }
  constexpr explicit operator bool() const { return value_ != 0; }

  Wide operator-() const { return Wide(0) - *this; }

  friend Wide operator+(Wide a, Wide b) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? Limit(b.value_ < 0) : Wide(sum);
  }
  friend Wide operator-(Wide a, Wide b) {
    int64_t difference = 0;
    return __builtin_sub_overflow(a.value_, b.value_, &difference) ? Limit(b.value_ > 0)
                                                                   : Wide(difference);
  }
  friend Wide operator*(Wide a, Wide b) {
    int64_t product = 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product)
               ? Limit((a.value_ < 0) != (b.value_ < 0))
               : Wide(product);
  }

  friend bool operator==(Wide a, Wide b) { return a.value_ == b.value_; }
  friend bool operator!=(Wide a, Wide b) { return a.value_ != b.value_; }
  friend bool operator<(Wide a, Wide b) { return a.value_ < b.value_; }
  friend bool operator<=(Wide a, Wide b) { return a.value_ <= b.value_; }
  friend bool operator>(Wide a, Wide b) { return a.value_ > b.value_; }
  friend bool operator>=(Wide a, Wide b) { return a.value_ >= b.value_; }

 private:
  static constexpr Wide Limit(bool is_least) { return is_least ? INT64_MIN : INT64_MAX; }

  int64_t value_ = 0;
};

inline Wide Least(Wide a) { return a; }
inline Wide Most(Wide a) { return a; }
template <typename... Others>
Wide Least(Wide a, Wide b, Others... others) {
  return Least(b < a ? b : a, others...);
}
template <typename... Others>
Wide Most(Wide a, Wide b, Others... others) {
  return Most(b > a ? b : a, others...);
}

/*! \brief A quotient that is rounded down; the largest number where the divisor is 0. */
inline Wide FloorDiv(Wide a, Wide b) {
  if (b == Wide(0)) return INT64_MAX;
  if (b == Wide(-1)) return -a;
  const int64_t quotient = a.value() / b.value();
  const bool is_less = a.value() % b.value() != 0 && (a.value() < 0) != (b.value() < 0);
  return is_less ? quotient - 1 : quotient;
}

inline Wide FloorMod(Wide a, Wide b) {
  return b == Wide(0) ? Wide(INT64_MAX) : a - FloorDiv(a, b) * b;
}

inline Wide CeilDiv(Wide a, Wide b) { return -FloorDiv(-a, b); }

}  // namespace npu::isa

#endif  // ISA_EMULATOR_WIDE_H_
