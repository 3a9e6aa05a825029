// SPDX-License-Identifier: Apache-2.0
/*!
 * \file elements.cc
 * \brief Elements of boxes.
 */
#include "isa_emulator/elements.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "isa_emulator/program.h"

namespace npu::isa {
namespace {

// ---- Types ----

template <typename T>
constexpr bool kIsReal = std::is_floating_point_v<T> || std::is_same_v<T, Half>;

/*! \brief In what a type is computed. */
template <typename T>
using Computed = std::conditional_t<std::is_same_v<T, Half>, float, T>;

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void Store(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof(value));
}

/*! \brief Calls a function with a value of an element type. */
template <typename Function>
auto WithType(Name type, const Function& function) {
  switch (type) {
    case Name::kF32:
      return function(float{});
    case Name::kF16:
      return function(Half{});
    case Name::kF64:
      return function(double{});
    case Name::kI8:
      return function(int8_t{});
    case Name::kI16:
      return function(int16_t{});
    case Name::kI32:
      return function(int32_t{});
    case Name::kI64:
      return function(int64_t{});
    case Name::kU8:
    case Name::kBool:
      return function(uint8_t{});
    default:
      kit::Refuse(std::string("'") + TextOf(type) + "' is no type of elements");
  }
}

/*! \brief A number as another type: reals are cut and saturate, and integers wrap. */
template <typename To, typename From>
To Convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Half>) {
    return Convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Half>) {
    return Half(static_cast<float>(value));
  } else if constexpr (kIsReal<From> && !kIsReal<To>) {
    constexpr To kLeast = std::numeric_limits<To>::min(), kMost = std::numeric_limits<To>::max();
    // The largest integer may be rounded up to what it is not; then it counts as too large, too.
    if (value != value) return 0;
    if (value >= static_cast<From>(kMost)) return kMost;
    if (value <= static_cast<From>(kLeast)) return kLeast;
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <typename From>
uint8_t ToBool(From value) {
  if constexpr (std::is_same_v<From, Half>) {
    return static_cast<float>(value) != 0 ? 1 : 0;
  } else {
    return value != 0 ? 1 : 0;
  }
}

// ---- Operations ----

/*! \brief Where sums wrap. */
template <typename T>
using Unsigned = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (kIsReal<T>)
      return a + b;
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (kIsReal<T>)
      return a - b;
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct Mul {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (kIsReal<T>)
      return a * b;
    else
      return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
  }
};
struct Div {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (kIsReal<T>) {
      return a / b;
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return Sub()(T{0}, a);
      }
      const T quotient = static_cast<T>(a / b);
      return static_cast<T>(a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient);
    }
  }
};
struct Mod {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (kIsReal<T>) {
      return std::fmod(a, b);
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
      }
      const T rest = static_cast<T>(a % b);
      return static_cast<T>(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    }
  }
};
// What is not a number wins.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
/*! \brief How far a type is shifted at most. */
template <typename T>
int Distance(T b) {
  constexpr int kMost = 8 * static_cast<int>(sizeof(T)) - 1;
  return b < 0 ? 0 : b > kMost ? kMost : static_cast<int>(b);
}
struct Shl {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Unsigned<T>>(a) << Distance(b));
  }
};
struct Shr {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a >> Distance(b));
  }
};
struct Pow {
  template <typename T>
  T operator()(T a, T b) const {
    return std::pow(a, b);
  }
};
struct Atan2 {
  template <typename T>
  T operator()(T a, T b) const {
    return std::atan2(a, b);
  }
};
struct Eq {
  template <typename T>
  uint8_t operator()(T a, T b) const {
    return a == b;
  }
};
struct Ne {
  template <typename T>
  uint8_t operator()(T a, T b) const {
    return a != b;
  }
};
struct Lt {
  template <typename T>
  uint8_t operator()(T a, T b) const {
    return a < b;
  }
};
struct Le {
  template <typename T>
  uint8_t operator()(T a, T b) const {
    return a <= b;
  }
};

/*! \brief Calls a function with an operation that a type has. */
template <typename T, typename Function>
auto WithOperation(Name op, const Function& function) {
  switch (op) {
    case Name::kAdd:
      return function(Add());
    case Name::kSub:
      return function(Sub());
    case Name::kMul:
      return function(Mul());
    case Name::kDiv:
      return function(Div());
    case Name::kMod:
      return function(Mod());
    case Name::kMin:
      return function(Min());
    case Name::kMax:
      return function(Max());
    case Name::kEq:
      return function(Eq());
    case Name::kNe:
      return function(Ne());
    case Name::kLt:
      return function(Lt());
    case Name::kLe:
      return function(Le());
    default:
      break;
  }
  if constexpr (kIsReal<T>) {
    if (op == Name::kPow) return function(Pow());
    if (op == Name::kAtan2) return function(Atan2());
  } else {
    switch (op) {
      case Name::kAnd:
        return function(And());
      case Name::kOr:
        return function(Or());
      case Name::kXor:
        return function(Xor());
      case Name::kShl:
        return function(Shl());
      case Name::kShr:
        return function(Shr());
      default:
        break;
    }
  }
  kit::Refuse(std::string("elements of this type have no operation '") + TextOf(op) + "'");
}

template <typename T, typename Operation>
void OperateOnRow(const void* a, const void* b, void* to, int64_t count) {
  using C = Computed<T>;
  using Result = decltype(Operation()(C{}, C{}));
  const auto* one = static_cast<const T*>(a);
  const auto* other = static_cast<const T*>(b);
  if constexpr (std::is_same_v<T, Half> && std::is_same_v<Result, float>) {
    auto* result = static_cast<Half*>(to);
    for (int64_t i = 0; i < count; ++i) {
      result[i] = Half(Operation()(static_cast<C>(one[i]), static_cast<C>(other[i])));
    }
  } else {
    auto* result = static_cast<Result*>(to);
    for (int64_t i = 0; i < count; ++i) {
      result[i] = Operation()(static_cast<C>(one[i]), static_cast<C>(other[i]));
    }
  }
}

/*! \brief Reduces a row to the total, which begins with the first element if it is the first row.
 */
using ReduceRow = void (*)(const void* row, int64_t count, bool is_first, void* total);

template <typename T, typename Operation>
void ReduceOneRow(const void* row, int64_t count, bool is_first, void* total) {
  using C = Computed<T>;
  const auto* elements = static_cast<const T*>(row);
  C sum = static_cast<C>(is_first ? elements[0] : *static_cast<const T*>(total));
  for (int64_t i = is_first ? 1 : 0; i < count; ++i) {
    // Elements of 16 bits are rounded at each step.
    sum = static_cast<C>(static_cast<T>(Operation()(sum, static_cast<C>(elements[i]))));
  }
  *static_cast<T*>(total) = static_cast<T>(sum);
}

ReduceRow ReductionOf(Name op, Name type) {
  return WithType(type, [&](auto zero) -> ReduceRow {
    using T = decltype(zero);
    return WithOperation<T>(
        op, [](auto operation) -> ReduceRow { return ReduceOneRow<T, decltype(operation)>; });
  });
}

template <typename From, typename To>
void ConvertRow(const void* from, void* to, int64_t count) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] = Convert<To>(source[i]);
}

template <typename From>
void ConvertRowToBool(const void* from, void* to, int64_t count) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<uint8_t*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] = ToBool(source[i]);
}

// ---- Functions of float32 ----

template <typename Function>
auto WithFunction(Name name, const Function& function) {
#define NPU_ISA_FUNCTION(NAME, EXPRESSION)                   \
  case Name::NAME: {                                         \
    struct Body {                                            \
      float operator()(float x) const { return EXPRESSION; } \
    };                                                       \
    return function(Body());                                 \
  }
  switch (name) {
    NPU_ISA_FUNCTION(kExp, std::exp(x))
    NPU_ISA_FUNCTION(kLog, std::log(x))
    NPU_ISA_FUNCTION(kLog2, std::log2(x))
    NPU_ISA_FUNCTION(kLog10, std::log10(x))
    NPU_ISA_FUNCTION(kLog1p, std::log1p(x))
    NPU_ISA_FUNCTION(kSqrt, std::sqrt(x))
    NPU_ISA_FUNCTION(kRsqrt, 1 / std::sqrt(x))
    NPU_ISA_FUNCTION(kTanh, std::tanh(x))
    NPU_ISA_FUNCTION(kSigmoid, 1 / (1 + std::exp(-x)))
    NPU_ISA_FUNCTION(kErf, std::erf(x))
    NPU_ISA_FUNCTION(kSin, std::sin(x))
    NPU_ISA_FUNCTION(kCos, std::cos(x))
    NPU_ISA_FUNCTION(kTan, std::tan(x))
    NPU_ISA_FUNCTION(kAsin, std::asin(x))
    NPU_ISA_FUNCTION(kAcos, std::acos(x))
    NPU_ISA_FUNCTION(kAtan, std::atan(x))
    NPU_ISA_FUNCTION(kSinh, std::sinh(x))
    NPU_ISA_FUNCTION(kCosh, std::cosh(x))
    NPU_ISA_FUNCTION(kAsinh, std::asinh(x))
    NPU_ISA_FUNCTION(kAcosh, std::acosh(x))
    NPU_ISA_FUNCTION(kAtanh, std::atanh(x))
    NPU_ISA_FUNCTION(kFloor, std::floor(x))
    NPU_ISA_FUNCTION(kCeil, std::ceil(x))
    NPU_ISA_FUNCTION(kRound, std::nearbyint(x))
    NPU_ISA_FUNCTION(kTrunc, std::trunc(x))
    NPU_ISA_FUNCTION(kAbs, std::abs(x))
    default:
      kit::Refuse(std::string("there is no function '") + TextOf(name) + "'");
  }
#undef NPU_ISA_FUNCTION
}

template <typename Function>
void ApplyToRow(const void* from, void* to, int64_t count) {
  const auto* source = static_cast<const float*>(from);
  auto* target = static_cast<float*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] = Function()(source[i]);
}

// ---- Strides ----

template <typename T>
void CopyStrided(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride,
                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to, from, sizeof(T));
    from += from_stride;
    to += to_stride;
  }
}

void CopyRow(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride, int64_t size,
             int64_t count) {
  if (from_stride == size && to_stride == size) {
    std::memcpy(to, from, static_cast<size_t>(size * count));
    return;
  }
  switch (size) {
    case 1:
      return CopyStrided<uint8_t>(from, from_stride, to, to_stride, count);
    case 2:
      return CopyStrided<uint16_t>(from, from_stride, to, to_stride, count);
    case 4:
      return CopyStrided<uint32_t>(from, from_stride, to, to_stride, count);
    case 8:
      return CopyStrided<uint64_t>(from, from_stride, to, to_stride, count);
    default:
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(size));
      }
  }
}

/*! \brief The first byte of a view, and the one behind its last. */
std::array<const uint8_t*, 2> RangeOf(const View& view, const Counts& counts) {
  int64_t low = 0, high = view.size;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t last = view.strides[d] * (counts[d] - 1);
    (last < 0 ? low : high) += last;
  }
  return {view.data + low, view.data + high};
}

/*! \brief Joins dimensions that are one for all views, and moves those of one element outwards. */
void Collapse(View* views, size_t view_count, Counts* counts) {
  size_t at = 2;
  for (size_t d = 3; d-- > 0;) {
    if ((*counts)[d] == 1 && d != at) continue;
    if (d == at) continue;
    const bool joins = std::all_of(views, views + view_count, [&](const View& view) {
      return (*counts)[at] == 1 || view.strides[d] == view.strides[at] * (*counts)[at];
    });
    if (joins) {
      if ((*counts)[at] == 1) {
        for (View* view = views; view != views + view_count; ++view) {
          view->strides[at] = view->strides[d];
        }
      }
      (*counts)[at] *= (*counts)[d];
    } else {
      --at;
      (*counts)[at] = (*counts)[d];
      for (View* view = views; view != views + view_count; ++view) {
        view->strides[at] = view->strides[d];
      }
    }
  }
  while (at-- > 0) {
    (*counts)[at] = 1;
    for (View* view = views; view != views + view_count; ++view) view->strides[at] = 0;
  }
}

}  // namespace

// ---- Half ----

Half::Half(float value) {
  uint32_t all = 0;
  std::memcpy(&all, &value, sizeof(all));
  const uint32_t sign = all >> 16 & 0x8000, rest = all & 0x7FFFFFFF;
  if (rest > 0x7F800000) {
    // Not a number stays so.
    const uint32_t part = rest >> 13 & 0x3FF;
    bits = static_cast<uint16_t>(sign | 0x7C00 | (part == 0 ? 1 : part));
  } else if (rest >= 0x477FF000) {
    bits = static_cast<uint16_t>(sign | 0x7C00);
  } else if (rest < 0x38800000) {
    // Below the normal numbers: the sum with a power of two rounds to what remains.
    float magnitude = 0;
    std::memcpy(&magnitude, &rest, sizeof(magnitude));
    magnitude += 0.5f;
    uint32_t rounded = 0;
    std::memcpy(&rounded, &magnitude, sizeof(rounded));
    bits = static_cast<uint16_t>(sign | (rounded - 0x3F000000));
  } else {
    const uint32_t odd = rest >> 13 & 1;
    bits = static_cast<uint16_t>(sign | ((rest - 0x38000000 + 0xFFF + odd) >> 13));
  }
}

Half::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31, part = bits & 0x3FF;
  uint32_t all = 0;
  if (exponent == 31) {
    all = sign | 0x7F800000 | part << 13;
  } else if (exponent > 0) {
    all = sign | (exponent + 112) << 23 | part << 13;
  } else {
    const float small = static_cast<float>(part) * 0x1p-24f;
    std::memcpy(&all, &small, sizeof(all));
    all |= sign;
  }
  float value = 0;
  std::memcpy(&value, &all, sizeof(value));
  return value;
}

// ---- One element ----

void LoadElement(State& s, int32_t to, const uint8_t* from, Name type) {
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    const T value = Load<T>(from);
    if constexpr (kIsReal<T>) {
      s.SetReal(to, static_cast<float>(value));
    } else {
      s.Set(to, static_cast<int64_t>(value));
    }
  });
}

void StoreElement(const State& s, int32_t from, uint8_t* to, Name type) {
  if (type == Name::kBool) return Store<uint8_t>(s.Get(from) != 0 ? 1 : 0, to);
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kIsReal<T>) {
      Store(Convert<T>(s.GetReal(from)), to);
    } else {
      Store(Convert<T>(s.Get(from)), to);
    }
  });
}

void Cast(State& s, int32_t to, int32_t from, Name source, Name type) {
  const auto set = [&](auto value) {
    if (type == Name::kBool) return s.Set(to, ToBool(value));
    WithType(type, [&](auto zero) {
      using T = decltype(zero);
      const T converted = Convert<T>(value);
      if constexpr (kIsReal<T>) {
        s.SetReal(to, static_cast<float>(converted));
      } else {
        s.Set(to, static_cast<int64_t>(converted));
      }
    });
  };
  if (source == Name::kF32) {
    set(s.GetReal(from));
  } else {
    set(s.Get(from));
  }
}

void Operate(State& s, int32_t to, int32_t a, int32_t b, Name op, Name type) {
  if (type == Name::kF32) {
    const float one = s.GetReal(a), other = s.GetReal(b);
    WithOperation<float>(op, [&](auto operation) {
      const auto result = operation(one, other);
      if constexpr (std::is_same_v<decltype(result), const float>) {
        s.SetReal(to, result);
      } else {
        s.Set(to, result);
      }
    });
    return;
  }
  const int64_t one = s.Get(a), other = s.Get(b);
  WithOperation<int64_t>(op, [&](auto operation) { s.Set(to, operation(one, other)); });
}

float Apply(Name function, float value) {
  return WithFunction(function, [value](auto body) { return body(value); });
}

// ---- Rows ----

BinaryRow RowOf(Name op, Name type) {
  return WithType(type, [&](auto zero) -> BinaryRow {
    using T = decltype(zero);
    return WithOperation<T>(
        op, [](auto operation) -> BinaryRow { return OperateOnRow<T, decltype(operation)>; });
  });
}

UnaryRow ConversionOf(Name from, Name to) {
  return WithType(from, [&](auto zero) -> UnaryRow {
    using From = decltype(zero);
    if (to == Name::kBool) return ConvertRowToBool<From>;
    return WithType(to, [](auto other) -> UnaryRow { return ConvertRow<From, decltype(other)>; });
  });
}

UnaryRow FunctionOf(Name function) {
  return WithFunction(function, [](auto body) -> UnaryRow { return ApplyToRow<decltype(body)>; });
}

bool IsComparison(Name op) {
  return op == Name::kEq || op == Name::kNe || op == Name::kLt || op == Name::kLe;
}

std::array<uint8_t, 8> Converted(float value, Name type) {
  std::array<uint8_t, 8> bytes = {};
  ConversionOf(Name::kF32, type)(&value, bytes.data(), 1);
  return bytes;
}

// ---- Boxes ----

bool IsApart(const View& view, const Counts& counts) {
  std::array<std::array<int64_t, 2>, 3> dims = {};
  for (size_t d = 0; d < 3; ++d) dims[d] = {std::abs(view.strides[d]), counts[d]};
  std::sort(dims.begin(), dims.end());
  int64_t used = view.size;
  for (const auto& [stride, count] : dims) {
    if (count == 1) continue;
    if (stride < used) return false;
    used += stride * (count - 1);
  }
  return true;
}

View Readable(State& s, const View& view, const Counts& counts, const View& target,
              const Counts& target_counts) {
  const auto [low, high] = RangeOf(view, counts);
  const auto [target_low, target_high] = RangeOf(target, target_counts);
  if (low >= target_high || target_low >= high) return view;
  if (view.data == target.data && view.size == target.size && view.strides == target.strides &&
      counts == target_counts && IsApart(view, counts)) {
    return view;
  }
  View copy = {
      nullptr, view.size, {counts[1] * counts[2] * view.size, counts[2] * view.size, view.size}};
  copy.data = s.Borrow(static_cast<size_t>(counts[0] * copy.strides[0]));
  for (int64_t i = 0; i < counts[0]; ++i) {
    for (int64_t j = 0; j < counts[1]; ++j) {
      CopyRow(view.data + i * view.strides[0] + j * view.strides[1], view.strides[2],
              copy.data + i * copy.strides[0] + j * copy.strides[1], copy.size, copy.size,
              counts[2]);
    }
  }
  return copy;
}

Rows::Rows(State& s, const Counts& counts, const View& target, std::initializer_list<View> sources)
    : counts_(counts) {
  views_[view_count_++] = target;
  for (const View& source : sources) {
    views_[view_count_++] = Readable(s, source, counts, target, counts);
  }
  Collapse(views_.data(), view_count_, &counts_);
  for (size_t i = 0; i < view_count_; ++i) {
    rows_[i] = s.Borrow(static_cast<size_t>(std::min(counts_[2], kMostRow) * views_[i].size));
  }
}

void Rows::Gather(int64_t i, int64_t j, int64_t k, int64_t count) {
  for (size_t v = 1; v < view_count_; ++v) {
    const View& view = views_[v];
    const uint8_t* from =
        view.data + i * view.strides[0] + j * view.strides[1] + k * view.strides[2];
    CopyRow(from, view.strides[2], static_cast<uint8_t*>(rows_[v]), view.size, view.size, count);
  }
}

void Rows::Scatter(int64_t i, int64_t j, int64_t k, int64_t count) {
  const View& view = views_[0];
  uint8_t* to = view.data + i * view.strides[0] + j * view.strides[1] + k * view.strides[2];
  CopyRow(static_cast<uint8_t*>(rows_[0]), view.size, to, view.strides[2], view.size, count);
}

void Reduce(State& s, Name op, Name type, const Counts& counts, const View& target,
            const View& source, bool adds) {
  const ReduceRow reduce = ReductionOf(op, type);
  const BinaryRow join = RowOf(op, type);
  const Counts target_counts = {counts[0], counts[1], 1};
  const View from = Readable(s, source, counts, target, target_counts);
  const View old = adds ? Readable(s, target, target_counts, target, target_counts) : target;
  const int64_t size = target.size;
  uint8_t* const row = s.Borrow(static_cast<size_t>(std::min(counts[2], kMostRow) * size));
  uint8_t* const total = s.Borrow(8);
  uint8_t* const before = s.Borrow(8);
  const auto at = [](const View& view, int64_t i, int64_t j, int64_t k) {
    return view.data + i * view.strides[0] + j * view.strides[1] + k * view.strides[2];
  };
  for (int64_t i = 0; i < counts[0]; ++i) {
    for (int64_t j = 0; j < counts[1]; ++j) {
      for (int64_t k = 0; k < counts[2]; k += kMostRow) {
        const int64_t count = std::min(kMostRow, counts[2] - k);
        CopyRow(at(from, i, j, k), from.strides[2], row, size, size, count);
        reduce(row, count, k == 0, total);
      }
      if (adds) {
        std::memcpy(before, at(old, i, j, 0), static_cast<size_t>(size));
        join(before, total, total, 1);
      }
      std::memcpy(at(target, i, j, 0), total, static_cast<size_t>(size));
    }
  }
}

void Copy(State& s, const Counts& counts, const View& target, const View& source) {
  const View from = Readable(s, source, counts, target, counts);
  View views[] = {target, from};
  Counts joined = counts;
  Collapse(views, 2, &joined);
  for (int64_t i = 0; i < joined[0]; ++i) {
    for (int64_t j = 0; j < joined[1]; ++j) {
      const auto at = [&](const View& view) {
        return view.data + i * view.strides[0] + j * view.strides[1];
      };
      CopyRow(at(views[1]), views[1].strides[2], at(views[0]), views[0].strides[2], target.size,
              joined[2]);
    }
  }
}

}  // namespace npu::isa
