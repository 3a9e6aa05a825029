// SPDX-License-Identifier: Apache-2.0
/*!
 * \file rows.cc
 * \brief Kernels along one axis: running sums and products, and the order of elements.
 */
#include <algorithm>
#include <cstring>
#include <limits>

#include "../operations.h"
#include "integers.h"
#include "internal.h"

namespace npu::emulator {

namespace {

constexpr int64_t kBlock = Evaluator::kBlock;

void Load(npu_dtype dtype, const void* data, int64_t count, float* out) {
  ActiveSimd().load(dtype, data, count, out);
}
void Load(npu_dtype dtype, const void* data, int64_t count, int64_t* out) {
  LoadIntegers(dtype, data, count, out);
}
void Store(npu_dtype dtype, const float* values, int64_t count, void* out) {
  ActiveSimd().store(dtype, values, count, out);
}
void Store(npu_dtype dtype, const int64_t* values, int64_t count, void* out) {
  StoreIntegers(dtype, values, count, out);
}

// Rows along an axis; those that lie side by side are columns of a matrix, which are walked in
// blocks.
struct Rows {
  Rows(const TensorView& tensor, int32_t axis, int64_t most_columns) : size(tensor.dims[axis]) {
    for (int d = 0; d < axis; ++d) outer *= tensor.dims[d];
    for (int d = axis + 1; d < tensor.rank; ++d) inner *= tensor.dims[d];
    width = std::max<int64_t>(1, std::min(inner, most_columns));
    blocks = CeilDivide(inner, width);
  }

  // Calls `body(matrix, first column, columns, worker)` for all blocks.
  template <typename Body>
  void ForEachBlock(const KernelContext& context, int64_t operations, const Body& body) const {
    auto run = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t first = i % blocks * width;
        body(i / blocks, first, std::min(width, inner - first), worker);
      }
    };
    Parallel(context, outer * blocks, Grain(operations), run);
  }

  int64_t size;
  int64_t outer = 1, inner = 1;
  // Columns of a block, and blocks of a matrix.
  int64_t width, blocks;
};

// ---- Scans ----

float Combine(npu_scan_kind kind, float a, float b) {
  return kind == NPU_SCAN_PRODUCT ? a * b : a + b;
}

// Without the overflow of signed numbers.
int64_t Combine(npu_scan_kind kind, int64_t a, int64_t b) {
  auto left = static_cast<uint64_t>(a);
  auto right = static_cast<uint64_t>(b);
  return static_cast<int64_t>(kind == NPU_SCAN_PRODUCT ? left * right : left + right);
}

// Value is the type in which numbers are collected; the scratch has 2 kBlock for each worker.
template <typename Value>
void ScanAs(const PlainArgs<npu_scan>& args, const KernelContext& context) {
  Rows rows(args.data(), args.op.axis, kBlock);
  auto data_element = static_cast<int64_t>(ElementSize(args.data().dtype));
  auto out_element = static_cast<int64_t>(ElementSize(args.out.dtype));
  const char* data = static_cast<const char*>(args.data().data);
  char* out = static_cast<char*>(args.out.data);
  auto body = [&](int64_t matrix, int64_t first, int64_t columns, int worker) {
    Value* sums = static_cast<Value*>(context.scratch) + worker * (2 * kBlock);
    Value* values = sums + kBlock;
    std::fill_n(sums, columns, static_cast<Value>(args.op.kind == NPU_SCAN_PRODUCT ? 1 : 0));
    auto step = [&](Value* sum, Value* value) {
      Value next = Combine(args.op.kind, *sum, *value);
      *value = args.op.exclusive != 0 ? *sum : next;
      *sum = next;
    };
    // A single column is walked in blocks along the axis, several row by row.
    int64_t lines = rows.inner == 1 ? kBlock : 1;
    for (int64_t i = 0; i < rows.size; i += lines) {
      int64_t count = rows.inner == 1 ? std::min(lines, rows.size - i) : columns;
      int64_t at = (matrix * rows.size + i) * rows.inner + first;
      Load(args.data().dtype, data + at * data_element, count, values);
      for (int64_t j = 0; j < count; ++j) step(rows.inner == 1 ? sums : sums + j, values + j);
      Store(args.out.dtype, values, count, out + at * out_element);
    }
  };
  rows.ForEachBlock(context, rows.size * rows.width, body);
}

// ---- Order ----

// Numbers as unsigned ones in the same order.

uint32_t KeyOf(float value) {
  uint32_t bits;
  value += 0.0f;  // -0 is equal to 0.
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return std::numeric_limits<uint32_t>::max();
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

uint64_t KeyOf(int64_t value) { return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63); }

// An element in its row: where keys are equal, indices say which one is first.

struct RealEntry {
  using Value = float;
  RealEntry(Value value, int64_t index, bool descending)
      : bits(uint64_t{descending ? ~KeyOf(value) : KeyOf(value)} << 32 |
             static_cast<uint64_t>(index)) {}
  bool operator<(const RealEntry& other) const { return bits < other.bits; }
  int64_t index() const { return static_cast<int64_t>(bits & 0xffffffffu); }

  // Key and index as one number.
  uint64_t bits;
};

struct IntegerEntry {
  using Value = int64_t;
  IntegerEntry(Value value, int64_t index, bool descending)
      : key(descending ? ~KeyOf(value) : KeyOf(value)), place(index) {}
  bool operator<(const IntegerEntry& other) const {
    return key != other.key ? key < other.key : place < other.place;
  }
  int64_t index() const { return place; }

  uint64_t key;
  int64_t place;
};

// The memory of a worker.
template <typename Entry>
struct OrderMemory {
  OrderMemory(const PlainArgs<npu_order>& args, const Rows& rows, void* base) : scratch(base) {
    values = scratch.Take<typename Entry::Value>(kBlock);
    // If only the first element is wanted, only the best one so far is kept.
    bool one = args.out.dims[args.op.axis] == 1;
    entries = scratch.Take<Entry>(rows.width * (one ? 1 : rows.size));
  }

  Scratch scratch;
  typename Entry::Value* values;
  Entry* entries;
};

// Several columns at once, as long as their entries are in the cache.
Rows RowsOf(const PlainArgs<npu_order>& args) {
  constexpr int64_t kEntries = 16384;
  bool one = args.out.dims[args.op.axis] == 1;
  int64_t size = std::max<int64_t>(1, args.data().dims[args.op.axis]);
  return Rows(args.data(), args.op.axis, std::min(kBlock, one ? kBlock : kEntries / size));
}

template <typename Entry>
size_t OrderBytes(const PlainArgs<npu_order>& args) {
  return OrderMemory<Entry>(args, RowsOf(args), nullptr).scratch.used();
}

// Moves the first `count` of the entries to the front, in order.
template <typename Entry>
void SortFirst(Entry* entries, int64_t size, int64_t count) {
  if (count < size / 16) {
    std::partial_sort(entries, entries + count, entries + size);
    return;
  }
  if (count < size) std::nth_element(entries, entries + count, entries + size);
  std::sort(entries, entries + count);
}

template <typename Entry>
void OrderAs(const PlainArgs<npu_order>& args, const KernelContext& context) {
  Rows rows = RowsOf(args);
  size_t bytes = OrderBytes<Entry>(args);
  auto element = static_cast<int64_t>(ElementSize(args.data().dtype));
  const char* data = static_cast<const char*>(args.data().data);
  int64_t count = args.out.dims[args.op.axis];
  auto body = [&](int64_t matrix, int64_t first, int64_t columns, int worker) {
    char* base = static_cast<char*>(context.scratch) + static_cast<size_t>(worker) * bytes;
    OrderMemory<Entry> memory(args, rows, base);
    Entry* entries = memory.entries;
    auto add = [&](int64_t index, int64_t column, typename Entry::Value value) {
      Entry entry(value, index, args.op.descending != 0);
      if (count > 1) {
        entries[column * rows.size + index] = entry;
      } else if (index == 0 || entry < entries[column]) {
        entries[column] = entry;
      }
    };
    int64_t lines = rows.inner == 1 ? kBlock : 1;
    for (int64_t i = 0; i < rows.size; i += lines) {
      int64_t loaded = rows.inner == 1 ? std::min(lines, rows.size - i) : columns;
      int64_t at = (matrix * rows.size + i) * rows.inner + first;
      Load(args.data().dtype, data + at * element, loaded, memory.values);
      for (int64_t j = 0; j < loaded; ++j) {
        bool one = rows.inner == 1;
        add(one ? i + j : i, one ? 0 : j, memory.values[j]);
      }
    }
    for (int64_t column = 0; column < columns; ++column) {
      Entry* sorted = entries + column * (count > 1 ? rows.size : 1);
      if (count > 1) SortFirst(sorted, rows.size, count);
      for (int64_t i = 0; i < count; ++i) {
        int64_t at = (matrix * count + i) * rows.inner + first + column;
        if (args.out.dtype == NPU_INT32) {
          static_cast<int32_t*>(args.out.data)[at] = static_cast<int32_t>(sorted[i].index());
        } else {
          static_cast<int64_t*>(args.out.data)[at] = sorted[i].index();
        }
      }
    }
  };
  rows.ForEachBlock(context, rows.size * rows.width * 8, body);
}

// Whether a real number comes before another one; NaN is the largest of them.
template <bool kDescending>
bool ComesBefore(float a, float b) {
  if (kDescending) return (a > b) | ((a != a) & (b == b));
  return (a < b) | ((b != b) & (a == a));
}

// The first place of a number that is in the row; NaN stands for any NaN.
int64_t PlaceOf(float number, const float* values, int64_t count) {
  constexpr int64_t kStep = 32;
  bool nan = number != number;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    int found = 0;
    for (int64_t j = i; j < i + kStep; ++j)
      found |= nan ? values[j] != values[j] : values[j] == number;
    if (found != 0) break;
  }
  while (nan ? values[i] == values[i] : values[i] != number) ++i;
  return i;
}

// OrderAs<RealEntry> if only the first element is wanted.
template <bool kDescending>
void FirstReal(const PlainArgs<npu_order>& args, const KernelContext& context) {
  Rows rows = RowsOf(args);
  size_t bytes = OrderBytes<RealEntry>(args);
  auto element = static_cast<int64_t>(ElementSize(args.data().dtype));
  const char* data = static_cast<const char*>(args.data().data);
  npu_vector_opcode opcode = kDescending ? NPU_VECTOR_MAXIMUM : NPU_VECTOR_MINIMUM;
  auto body = [&](int64_t matrix, int64_t first, int64_t columns, int worker) {
    char* base = static_cast<char*>(context.scratch) + static_cast<size_t>(worker) * bytes;
    OrderMemory<RealEntry> memory(args, rows, base);
    // An entry has the room of a number and its place.
    float* values = memory.values;
    auto* best = reinterpret_cast<float*>(memory.entries);
    auto* places = reinterpret_cast<uint32_t*>(best + columns);
    const char* from = data + (matrix * rows.size * rows.inner + first) * element;
    std::fill_n(places, columns, 0);
    Load(args.data().dtype, from, columns, best);
    if (rows.inner == 1) {
      for (int64_t i = 0; i < rows.size; i += kBlock) {
        int64_t count = std::min(kBlock, rows.size - i);
        Load(args.data().dtype, from + i * element, count, values);
        float found = ActiveSimd().reduce(opcode, values, count);
        // The least number of a block with NaN is NaN.
        if (!kDescending && found != found) {
          found = values[0];
          for (int64_t j = 1; j < count; ++j) {
            if (ComesBefore<kDescending>(values[j], found)) found = values[j];
          }
        }
        if (i > 0 && !ComesBefore<kDescending>(found, *best)) continue;
        *best = found;
        *places = static_cast<uint32_t>(i + PlaceOf(found, values, count));
      }
    } else {
      for (int64_t i = 1; i < rows.size; ++i) {
        Load(args.data().dtype, from + i * rows.inner * element, columns, values);
        auto place = static_cast<uint32_t>(i);
        for (int64_t j = 0; j < columns; ++j) {
          bool before = ComesBefore<kDescending>(values[j], best[j]);
          best[j] = before ? values[j] : best[j];
          places[j] = before ? place : places[j];
        }
      }
    }
    int64_t at = matrix * rows.inner + first;
    if (args.out.dtype == NPU_INT32) {
      std::copy_n(places, columns, static_cast<int32_t*>(args.out.data) + at);
    } else {
      std::copy_n(places, columns, static_cast<int64_t*>(args.out.data) + at);
    }
  };
  rows.ForEachBlock(context, rows.size * rows.width, body);
}

}  // namespace

size_t ScratchBytes(const PlainArgs<npu_scan>&, int threads) {
  return static_cast<size_t>(threads) * 2 * kBlock * sizeof(int64_t);
}

void Execute(const PlainArgs<npu_scan>& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  if (IsInteger(args.out.dtype)) {
    ScanAs<int64_t>(args, context);
  } else {
    ScanAs<float>(args, context);
  }
}

size_t ScratchBytes(const PlainArgs<npu_order>& args, int threads) {
  bool integers = IsInteger(args.data().dtype);
  return static_cast<size_t>(threads) *
         (integers ? OrderBytes<IntegerEntry>(args) : OrderBytes<RealEntry>(args));
}

void Execute(const PlainArgs<npu_order>& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  if (IsInteger(args.data().dtype)) {
    OrderAs<IntegerEntry>(args, context);
  } else if (args.out.dims[args.op.axis] == 1) {
    (args.op.descending != 0 ? FirstReal<true> : FirstReal<false>)(args, context);
  } else {
    OrderAs<RealEntry>(args, context);
  }
}

}  // namespace npu::emulator
