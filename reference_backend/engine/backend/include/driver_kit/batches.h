// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/batches.h
 * \brief An open batch for SDKs whose programs have fixed sizes: programs are made for its bound,
 * behind the rows of a call there are copies of them, and nodes that would mix rows are declined.
 */
#ifndef DRIVER_KIT_BATCHES_H_
#define DRIVER_KIT_BATCHES_H_

#include <cstring>
#include <string>
#include <vector>

#include "driver_kit/program.h"

namespace npu::kit {

/*! \brief How many groups of rows are in the dimension that has them. */
inline int64_t GroupsIn(const Value& value) {
  const int32_t dim = GrowingOf(value);
  return dim < 0 ? 0 : value.groups / CountBefore(value.dims, dim);
}

// ---- Build half ----

/*! \brief Whether each group of rows is a part of the dimension that a value has for them. */
inline bool HasRows(const Value& value, int64_t bound) {
  const int32_t dim = GrowingOf(value);
  return dim < 0 || (value.groups % CountBefore(value.dims, dim) == 0 &&
                     value.dims[dim] % (GroupsIn(value) * bound) == 0);
}

/*! \brief The end of reasons. */
inline constexpr const char* kApart =
    "; the program is made for its bound, so rows must stay apart";

/*! \brief How many groups of rows a node's result has, or why rows do not stay apart. */
struct Growth {
  int64_t groups = 0;
  std::string reason = {};
};

/*! \brief The growth of a node of a program with a bound. `out` need not have its own yet.
 *
 * What a node computes of a row must not depend on others, nor on where it is: then the rows behind
 * those of a call, which are copies, do no harm. */
inline Growth GrowthOf(const Program& program, const Node& node) {
  const Value& out = program.At(node.out);
  Growth growth;
  const auto mixes = [&](const char* how) {
    growth.reason = program.NameOf(node) + " " + how + " the dimension of an open size" + kApart;
  };
  const std::vector<int32_t> inputs = program.InputsOf(node);
  const auto at = [&](size_t i) {
    return i < inputs.size() ? GrowingOf(program.At(inputs[i])) : -1;
  };
  // The rows of an operand are in this dimension of the result, and those of all in the same.
  const auto grow = [&](size_t i, int32_t dim) {
    const int64_t groups = CountBefore(out.dims, dim) * GroupsIn(program.At(inputs[i]));
    if (growth.groups > 0 && growth.groups != groups) return mixes("has operands that differ in");
    growth.groups = groups;
  };
  bool any = false, others = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    any = any || at(i) >= 0;
    others = others || (i > 0 && at(i) >= 0);
  }
  if (!any) return growth;
  const Value& data = program.At(inputs[0]);
  const int32_t dim = at(0);
  // Of a node with one operand that grows, which keeps its dimensions.
  const auto keep = [&](bool is_apart, const char* how) {
    if (!is_apart || others) return mixes(how);
    grow(0, dim);
  };
  switch (node.kind) {
    case Kind::kStep:
    case Kind::kLookup:
    case Kind::kQuantize:
    case Kind::kDequantize: {
      if (node.kind == Kind::kLookup && others) mixes("looks up along");
      const bool by_channel = node.kind != Kind::kStep && node.kind != Kind::kLookup &&
                              inputs.size() > 1 && node.quantization.axis == dim;
      if (by_channel) mixes("has scales along");
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (at(i) >= 0) grow(i, at(i) + out.rank - program.At(inputs[i]).rank);
      }
      break;
    }
    case Kind::kMatmul:
      for (size_t i = 0; i < 2; ++i) {
        const int32_t rank = program.At(inputs[i]).rank;
        const bool transposes =
            i == 0 ? node.matmul.transpose_a != 0 : node.matmul.transpose_b != 0;
        if (at(i) < 0) continue;
        if (at(i) < rank - 2) {
          grow(i, at(i) + out.rank - rank);
        } else if ((at(i) == rank - 2) == (transposes == (i == 0))) {
          mixes("sums over");
        } else {
          grow(i, out.rank - (i == 0 ? 2 : 1));
        }
      }
      if (at(2) >= 0) mixes("has a bias along");
      break;
    case Kind::kConvolution:
    case Kind::kTransposedConvolution:
    case Kind::kPool:
      keep(dim == 0, "has weights or windows along");
      break;
    case Kind::kReduce: {
      const auto is_reduced = [&](int32_t i) { return (node.reduce.axes >> i & 1) != 0; };
      if (is_reduced(dim)) mixes("reduces");
      int32_t kept = dim;
      for (int32_t i = 0; i < dim && out.rank < data.rank; ++i) kept -= is_reduced(i) ? 1 : 0;
      grow(0, kept);
      break;
    }
    case Kind::kCopy:
      for (int32_t i = 0; i < out.rank; ++i) {
        const int32_t from = node.copy.permutation[i];
        if (from != dim) continue;
        const bool is_whole = node.copy.data_offset[from] == 0 && node.copy.data_step[from] == 1 &&
                              node.copy.out_offset[i] == 0 && node.copy.out_step[i] == 1 &&
                              data.dims[from] == out.dims[i];
        if (!is_whole) mixes("takes or fills a part of");
        grow(0, i);
      }
      // What earlier copies wrote of the same result.
      if (at(1) >= 0) grow(1, at(1));
      break;
    case Kind::kGather: {
      const int32_t axis = node.gather.axis, rank = program.At(inputs[1]).rank;
      if (dim == axis) mixes("takes elements along");
      if (node.gather.elementwise != 0) {
        if (at(1) != (dim < 0 ? axis : dim)) mixes("takes elements by place in");
        if (at(1) >= 0) grow(1, at(1));
        if (dim >= 0) grow(0, dim);
        break;
      }
      if (dim >= 0) grow(0, dim < axis ? dim : dim + rank - 1);
      if (at(1) >= 0) grow(1, axis + at(1));
      break;
    }
    case Kind::kScan:
      keep(dim != node.scan.axis, "runs along");
      break;
    case Kind::kOrder:
      keep(dim != node.order.axis, "orders");
      break;
    case Kind::kSoftmax:
      keep(dim != node.softmax.axis, "runs along");
      break;
    case Kind::kResize:
      keep(dim != node.resize.axes[0] && dim != node.resize.axes[1], "resizes");
      break;
    case Kind::kConcat:
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (at(i) == node.concat.axis || at(i) < 0) {
          mixes("joins tensors along");
        } else {
          grow(i, at(i));
        }
      }
      break;
    case Kind::kReshape: {
      Value other = out;
      other.groups = data.groups;
      if (!HasRows(other, program.bound)) mixes("splits");
      growth.groups = data.groups;
      break;
    }
    case Kind::kVendor:
      mixes("is an operation of the vendor's own along");
      break;
    default:
      mixes("may mix rows of");
      break;
  }
  return growth;
}

// ---- Run half ----

/*! \brief The bytes of an input or output that has this size where it grows. */
inline size_t BytesOf(const Value& port, int64_t size) {
  const int32_t dim = GrowingOf(port);
  return dim < 0 ? BytesOf(port)
                 : BytesOf(port) / static_cast<size_t>(port.dims[dim]) * static_cast<size_t>(size);
}

/*! \brief Copies an input of this size to memory for its bound; rows behind it are the same
 *  again. */
inline void CopyPadded(const Value& port, int64_t size, const void* from, void* to) {
  const auto count = static_cast<size_t>(port.groups > 0 ? port.groups : 1);
  const size_t given = BytesOf(port, size) / count, whole = BytesOf(port) / count;
  for (size_t i = 0; i < count; ++i) {
    uint8_t* rows = static_cast<uint8_t*>(to) + i * whole;
    std::memcpy(rows, static_cast<const uint8_t*>(from) + i * given, given);
    for (size_t done = given; done < whole;) {
      const size_t more = done < whole - done ? done : whole - done;
      std::memcpy(rows + done, rows, more);
      done += more;
    }
  }
}

/*! \brief Copies an output of this size out of memory for its bound. */
inline void CopyCropped(const Value& port, int64_t size, const void* from, void* to) {
  const auto count = static_cast<size_t>(port.groups > 0 ? port.groups : 1);
  const size_t taken = BytesOf(port, size) / count, whole = BytesOf(port) / count;
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<uint8_t*>(to) + i * taken,
                static_cast<const uint8_t*>(from) + i * whole, taken);
  }
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_BATCHES_H_
