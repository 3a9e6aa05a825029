// SPDX-License-Identifier: Apache-2.0
/*!
 * \file oracle.cc
 * \brief The operations as plain loops.
 */
#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "driver_kit/vector_opcodes.h"
#include "integers.h"

namespace npu::emulator::oracle {

namespace {

using Index = std::vector<int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Index Shape(const TensorView& tensor) { return Index(tensor.dims, tensor.dims + tensor.rank); }

// Goes to the next index in row-major order; false at the end.
bool Next(const Index& shape, Index* index) {
  for (size_t d = shape.size(); d-- > 0;) {
    if (++(*index)[d] < shape[d]) return true;
    (*index)[d] = 0;
  }
  return false;
}

// Calls `body(index)` for all indices of a shape.
template <typename Body>
void ForEach(const Index& shape, const Body& body) {
  if (std::count(shape.begin(), shape.end(), 0) > 0) return;
  Index index(shape.size(), 0);
  do {
    body(index);
  } while (Next(shape, &index));
}

// Where an index of a larger shape lies in a tensor that is broadcast to it.
int64_t Flat(const TensorView& tensor, const Index& index) {
  int64_t flat = 0;
  size_t skip = index.size() - static_cast<size_t>(tensor.rank);
  for (int d = 0; d < tensor.rank; ++d) {
    int64_t at = index[skip + static_cast<size_t>(d)];
    flat = flat * tensor.dims[d] + (tensor.dims[d] == 1 ? 0 : at);
  }
  return flat;
}

int64_t Apply(const npu_vector_instruction& instruction, int64_t a, int64_t b, int64_t c) {
  if (instruction.opcode == NPU_VECTOR_CONSTANT) return std::llround(instruction.immediate);
  if (instruction.opcode == NPU_VECTOR_RESCALE) {
    return Rescale(a, b, c, static_cast<npu_rounding>(instruction.immediate));
  }
  int64_t result = 0;
  WithFunction<int64_t>(instruction.opcode,
                        [&](auto function, auto) { result = function(a, b, c); });
  return result;
}

float Apply(const npu_vector_instruction& instruction, float a, float b, float c) {
  if (instruction.opcode == NPU_VECTOR_CONSTANT) return static_cast<float>(instruction.immediate);
  return static_cast<float>(ResultOf(instruction.opcode, a, b, c));
}

// Runs a program for one element of the output and stores the result.
template <typename Number>
void Finish(const VectorProgram& program, const TensorView& out, const Index& index,
            const Number* accumulator) {
  constexpr bool kIntegers = std::is_same_v<Number, int64_t>;
  using Register = std::conditional_t<kIntegers, int64_t, float>;
  std::vector<Register> values;
  if (program.instruction_count == 0) values.push_back(static_cast<Register>(*accumulator));
  for (int i = 0; i < program.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program.instructions[i];
    auto operand = [&](int32_t number) {
      return number >= 0 && number < i ? values[static_cast<size_t>(number)] : Register{0};
    };
    if (instruction.opcode != NPU_VECTOR_LOAD) {
      values.push_back(Apply(instruction, operand(instruction.a), operand(instruction.b),
                             operand(instruction.c)));
    } else if (accumulator != nullptr && instruction.a == 0) {
      values.push_back(static_cast<Register>(*accumulator));
    } else {
      const TensorView& input = program.inputs[instruction.a];
      if constexpr (kIntegers) values.push_back(LoadInteger(input, Flat(input, index)));
      if constexpr (!kIntegers) values.push_back(Load(input, Flat(input, index)));
    }
  }
  if constexpr (kIntegers) StoreInteger(out, Flat(out, index), values.back());
  if constexpr (!kIntegers) Store(out, Flat(out, index), values.back());
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float HalfToFloat(uint16_t half) {
  int exponent = half >> 10 & 31;
  int fraction = half & 1023;
  float size = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
               : exponent == 31 ? (fraction == 0 ? HUGE_VALF : NAN)
                                : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (half >> 15) != 0 ? -size : size;
}

uint16_t FloatToHalf(float value) {
  int sign = Bits(value) >> 31 != 0 ? 0x8000 : 0;
  float size = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  if (size >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  // The exponent of the last bit; halves below 2^-14 have the same.
  int exponent = size < std::ldexp(1.0f, -14) ? -24 : std::ilogb(size) - 10;
  int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, -exponent)));
  // A fraction that rounds up to the next power of two carries into the exponent.
  return static_cast<uint16_t>(sign | ((exponent + 24) * 1024 + fraction));
}

template <typename T>
T ToInteger(double value) {
  double rounded = std::isnan(value) ? 0 : std::nearbyint(value);
  if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) {
    return std::numeric_limits<T>::max();
  }
  return static_cast<T>(rounded);
}

// Stores the sum of products of integers, through the epilogue.
void FinishSum(const VectorProgram& program, const TensorView& out, const Index& index,
               npu_dtype operand, int64_t sum) {
  // With operands of 8 bits, the low 32 bits.
  if (operand != NPU_INT16) sum = static_cast<int32_t>(static_cast<uint32_t>(sum));
  bool integers = IsInteger(out.dtype);
  for (int i = 0; i < program.instruction_count; ++i) {
    const npu_vector_instruction& instruction = program.instructions[i];
    if (instruction.opcode != NPU_VECTOR_LOAD || instruction.a == 0) continue;
    integers = integers && IsInteger(program.inputs[instruction.a].dtype);
  }
  // Loading the accumulator rounds it to float32.
  double real = static_cast<double>(static_cast<float>(sum));
  if (integers) {
    Finish(program, out, index, &sum);
  } else {
    Finish(program, out, index, &real);
  }
}

// Calls `body(tap, position)` for the taps of a window that lie inside [low, high).
template <typename Body>
void ForTaps(const Index& window, const Index& at, const int64_t* strides, const int64_t* dilations,
             const int64_t* pads, const Index& low, const Index& high, const Body& body) {
  ForEach(window, [&](const Index& tap) {
    Index position(window.size());
    for (size_t d = 0; d < window.size(); ++d) {
      position[d] = at[d] * strides[d] + tap[d] * dilations[d] - pads[d];
      if (position[d] < low[d] || position[d] >= high[d]) return;
    }
    body(tap, position);
  });
}

Index Join(int64_t first, int64_t second, const Index& rest) {
  Index index = {first, second};
  index.insert(index.end(), rest.begin(), rest.end());
  return index;
}

}  // namespace

float Load(const TensorView& tensor, int64_t index) {
  if (tensor.dtype == NPU_FLOAT32) return static_cast<const float*>(tensor.data)[index];
  if (tensor.dtype != NPU_FLOAT16) return static_cast<float>(LoadInteger(tensor, index));
  return HalfToFloat(static_cast<const uint16_t*>(tensor.data)[index]);
}

void Store(const TensorView& tensor, int64_t index, float value) {
  if (tensor.dtype == NPU_FLOAT32) {
    static_cast<float*>(tensor.data)[index] = value;
  } else if (tensor.dtype == NPU_FLOAT16) {
    static_cast<uint16_t*>(tensor.data)[index] = FloatToHalf(value);
  } else if (tensor.dtype == NPU_BOOL) {
    static_cast<uint8_t*>(tensor.data)[index] = value != 0 ? 1 : 0;
  } else {
    WithElement(tensor.dtype, [&](auto type) {
      static_cast<decltype(type)*>(tensor.data)[index] = ToInteger<decltype(type)>(value);
    });
  }
}

int64_t LoadInteger(const TensorView& tensor, int64_t index) {
  int64_t number = WithElement(tensor.dtype, [&](auto type) {
    return static_cast<int64_t>(static_cast<const decltype(type)*>(tensor.data)[index]);
  });
  return tensor.dtype == NPU_BOOL && number != 0 ? 1 : number;
}

void StoreInteger(const TensorView& tensor, int64_t index, int64_t value) {
  if (tensor.dtype == NPU_BOOL) value = value != 0 ? 1 : 0;
  // The low bytes are the first ones.
  size_t element = ElementSize(tensor.dtype);
  std::memcpy(static_cast<char*>(tensor.data) + static_cast<size_t>(index) * element, &value,
              element);
}

namespace {

/*! \brief An element of operand b as a real number, if it is one or a weight of integers. */
double Factor(const MatMulArgs& args, const Index& index, int64_t k) {
  double value = Load(args.b, Flat(args.b, index));
  if (!IsInteger(args.b.dtype)) return value;
  if (args.b_block == 0) return value - args.b_zero_point;
  const Index block = {k / args.b_block, index[index.size() - (args.transpose_b ? 2 : 1)]};
  double zero = args.b_zero_point;
  if (args.b_zero_points.data != nullptr) {
    zero = Load(args.b_zero_points, Flat(args.b_zero_points, block));
  }
  return (value - zero) * Load(args.b_scales, Flat(args.b_scales, block));
}

}  // namespace

void MatMul(const MatMulArgs& args) {
  int64_t depth = args.a.dims[args.a.rank - (args.transpose_a ? 2 : 1)];
  const bool integers = IsInteger(args.a.dtype);
  ForEach(Shape(args.out), [&](const Index& index) {
    size_t last = index.size() - 1;
    Index a = index, b = index;
    if (args.transpose_a) std::swap(a[last], a[last - 1]);
    if (args.transpose_b) std::swap(b[last], b[last - 1]);
    double sum = 0;
    int64_t whole = 0;
    for (int64_t k = 0; k < depth; ++k) {
      a[args.transpose_a ? last - 1 : last] = k;
      b[args.transpose_b ? last : last - 1] = k;
      if (integers) {
        whole += (LoadInteger(args.a, Flat(args.a, a)) - args.a_zero_point) *
                 (LoadInteger(args.b, Flat(args.b, b)) - args.b_zero_point);
      } else {
        sum += static_cast<double>(Load(args.a, Flat(args.a, a))) * Factor(args, b, k);
      }
    }
    if (integers) {
      FinishSum(args.epilogue, args.out, index, args.a.dtype, whole);
    } else {
      Finish(args.epilogue, args.out, index, &sum);
    }
  });
}

void Convolution(const ConvolutionArgs& args) {
  Index weight = Shape(args.weight);
  Index data = Shape(args.data);
  Index window(weight.begin() + 2, weight.end());
  Index high(data.begin() + 2, data.end());
  Index low(high.size(), 0);
  int64_t outputs = weight[0] / args.groups;
  const bool integers = IsInteger(args.data.dtype);
  Index from(data.size()), by(weight.size());
  ForEach(Shape(args.out), [&](const Index& index) {
    from[0] = index[0];
    by[0] = index[1];
    double sum = 0;
    int64_t whole = 0;
    for (int64_t c = 0; c < weight[1]; ++c) {
      from[1] = index[1] / outputs * weight[1] + c;
      by[1] = c;
      ForTaps(window, Index(index.begin() + 2, index.end()), args.strides, args.dilations,
              args.pads_begin, low, high, [&](const Index& tap, const Index& position) {
                std::copy(position.begin(), position.end(), from.begin() + 2);
                std::copy(tap.begin(), tap.end(), by.begin() + 2);
                int64_t data_at = Flat(args.data, from), weight_at = Flat(args.weight, by);
                if (integers) {
                  whole += (LoadInteger(args.data, data_at) - args.data_zero_point) *
                           (LoadInteger(args.weight, weight_at) - args.weight_zero_point);
                } else {
                  sum +=
                      static_cast<double>(Load(args.data, data_at)) * Load(args.weight, weight_at);
                }
              });
    }
    if (integers) {
      FinishSum(args.epilogue, args.out, index, args.data.dtype, whole);
    } else {
      Finish(args.epilogue, args.out, index, &sum);
    }
  });
}

void Pool(const PoolArgs& args) {
  Index data = Shape(args.data);
  Index out = Shape(args.out);
  size_t rank = static_cast<size_t>(args.spatial_rank);
  Index in(data.begin() + 2, data.end());
  ForEach(out, [&](const Index& index) {
    Index at(index.begin() + 2, index.end());
    Index window(args.window, args.window + rank);
    Index strides(args.strides, args.strides + rank);
    Index dilations(args.dilations, args.dilations + rank);
    Index pads(args.pads_begin, args.pads_begin + rank);
    Index low(rank, 0), high = in;
    if (args.kind == NPU_POOL_AVERAGE_INCLUDE_PAD) {
      for (size_t d = 0; d < rank; ++d) {
        low[d] = -pads[d];
        high[d] += args.pads_end[d];
      }
    }
    if (args.kind == NPU_POOL_AVERAGE_ADAPTIVE) {
      for (size_t d = 0; d < rank; ++d) {
        int64_t begin = at[d] * in[d] / out[2 + d];
        int64_t end = ((at[d] + 1) * in[d] + out[2 + d] - 1) / out[2 + d];
        window[d] = end - begin;
        pads[d] = -begin;
        strides[d] = 0;
        dilations[d] = 1;
      }
    }
    bool maximum = args.kind == NPU_POOL_MAX;
    double value = maximum ? -kInfinity : 0;
    int64_t count = 0;
    ForTaps(window, at, strides.data(), dilations.data(), pads.data(), low, high,
            [&](const Index&, const Index& position) {
              ++count;
              for (size_t d = 0; d < rank; ++d) {
                if (position[d] < 0 || position[d] >= in[d]) return;
              }
              double element = Load(args.data, Flat(args.data, Join(index[0], index[1], position)));
              if (!maximum) {
                value += element;
              } else if (std::isnan(element) || element > value) {
                value = element;
              }
            });
    if (!maximum) value /= static_cast<double>(std::max<int64_t>(count, 1));
    Finish(VectorProgram(), args.out, index, &value);
  });
}

void Elementwise(const ElementwiseArgs& args) {
  bool integers = IsInteger(args.out.dtype);
  for (int i = 0; i < args.program.instruction_count; ++i) {
    const npu_vector_instruction& instruction = args.program.instructions[i];
    if (instruction.opcode != NPU_VECTOR_LOAD) continue;
    integers = integers && IsInteger(args.program.inputs[instruction.a].dtype);
  }
  ForEach(Shape(args.out), [&](const Index& index) {
    if (integers) {
      Finish<int64_t>(args.program, args.out, index, nullptr);
    } else {
      Finish<double>(args.program, args.out, index, nullptr);
    }
  });
}

void Reduce(const ReduceArgs& args) {
  Index shape = Shape(args.data);
  Index kept, reduced;
  for (size_t d = 0; d < shape.size(); ++d) {
    bool over = (args.axes >> d & 1) != 0;
    kept.push_back(over ? 1 : shape[d]);
    reduced.push_back(over ? shape[d] : 1);
  }
  // With or without the reduced dimensions, elements of the output come in the same order.
  Index out = Shape(args.out);
  Index out_index(out.size(), 0);
  ForEach(kept, [&](const Index& base) {
    bool most = args.kind == NPU_REDUCE_MAX;
    bool least = args.kind == NPU_REDUCE_MIN;
    bool product = args.kind == NPU_REDUCE_PRODUCT;
    bool integers = IsInteger(args.data.dtype);
    npu_vector_opcode opcode = product ? NPU_VECTOR_MULTIPLY
                               : most  ? NPU_VECTOR_MAXIMUM
                               : least ? NPU_VECTOR_MINIMUM
                                       : NPU_VECTOR_ADD;
    double value = most ? -kInfinity : least ? kInfinity : product ? 1 : 0;
    int64_t integer = product ? 1 : 0;
    if (most || least) {
      const Interval limits = LimitsOf(args.data.dtype);
      integer = least ? limits.high : limits.low;
    }
    double count = 0;
    ForEach(reduced, [&](const Index& offset) {
      Index index = base;
      for (size_t d = 0; d < index.size(); ++d) index[d] += offset[d];
      if (integers) {
        int64_t element = LoadInteger(args.data, Flat(args.data, index));
        integer = Apply({opcode, 0, 0, 0, 0}, element, integer, 0);
        return;
      }
      double element = Load(args.data, Flat(args.data, index));
      ++count;
      if (product) {
        value *= element;
      } else if (!most && !least) {
        value += element;
      } else if (std::isnan(element) || (most ? element > value : element < value)) {
        value = element;
      }
    });
    if (args.kind == NPU_REDUCE_MEAN) value = count == 0 ? kNan : value / count;
    if (integers) {
      Finish(args.epilogue, args.out, out_index, &integer);
    } else {
      Finish(args.epilogue, args.out, out_index, &value);
    }
    Next(out, &out_index);
  });
}

void Copy(const CopyArgs& args) {
  size_t element = ElementSize(args.out.dtype);
  char* out = static_cast<char*>(args.out.data);
  if (args.fill) {
    for (int64_t i = 0; i < ElementCount(args.out); ++i) {
      Store(args.out, i, static_cast<float>(args.fill_value));
      // Beyond what float32 holds.
      if (args.out.dtype == NPU_INT32) {
        static_cast<int32_t*>(args.out.data)[i] = ToInteger<int32_t>(args.fill_value);
      } else if (args.out.dtype == NPU_INT64) {
        static_cast<int64_t*>(args.out.data)[i] = ToInteger<int64_t>(args.fill_value);
      }
    }
  }
  if (args.data.data == nullptr) return;
  Index box;
  for (int d = 0; d < args.out.rank; ++d) box.push_back(args.Extent(d));
  ForEach(box, [&](const Index& index) {
    Index from(index.size()), to(index.size());
    for (size_t d = 0; d < to.size(); ++d) {
      auto axis = static_cast<size_t>(args.permutation[d]);
      from[axis] = args.data_offset[axis] + index[d] * args.data_step[axis];
      to[d] = args.out_offset[d] + index[d] * args.out_step[d];
    }
    std::memcpy(out + static_cast<size_t>(Flat(args.out, to)) * element,
                static_cast<const char*>(args.data.data) +
                    static_cast<size_t>(Flat(args.data, from)) * element,
                element);
  });
}

void Gather(const GatherArgs& args) {
  size_t element = ElementSize(args.out.dtype);
  auto axis = static_cast<size_t>(args.axis);
  ForEach(Shape(args.out), [&](const Index& index) {
    Index place = index;
    Index from = index;
    if (!args.elementwise) {
      place = Index(index.begin() + args.axis, index.begin() + args.axis + args.indices.rank);
      from.erase(from.begin() + args.axis, from.begin() + args.axis + args.indices.rank);
      from.insert(from.begin() + args.axis, 0);
    }
    int64_t flat = Flat(args.indices, place);
    int64_t wanted = LoadInteger(args.indices, flat);
    from[axis] = std::max<int64_t>(0, std::min(wanted, args.data.dims[args.axis] - 1));
    auto to = static_cast<size_t>(Flat(args.out, index)) * element;
    auto at = static_cast<size_t>(Flat(args.data, from)) * element;
    std::memcpy(static_cast<char*>(args.out.data) + to,
                static_cast<const char*>(args.data.data) + at, element);
  });
}

void Update(const UpdateArgs& args) {
  const size_t element = ElementSize(args.out.dtype);
  const auto axis = static_cast<size_t>(args.axis);
  // The last dimension runs fastest, so positions are in order for each element.
  ForEach(Shape(args.value), [&](const Index& index) {
    Index to = index;
    to[axis] = LoadInteger(args.positions, index[axis]);
    if (to[axis] < 0 || to[axis] >= args.out.dims[axis]) return;
    std::memcpy(
        static_cast<char*>(args.out.data) + static_cast<size_t>(Flat(args.out, to)) * element,
        static_cast<const char*>(args.value.data) +
            static_cast<size_t>(Flat(args.value, index)) * element,
        element);
  });
}

void Scan(const PlainArgs<npu_scan>& args) {
  auto axis = static_cast<size_t>(args.op.axis);
  bool product = args.op.kind == NPU_SCAN_PRODUCT;
  ForEach(Shape(args.out), [&](const Index& index) {
    double real = product ? 1 : 0;
    uint64_t integer = product ? 1 : 0;
    int64_t end = index[axis] + (args.op.exclusive != 0 ? 0 : 1);
    Index at = index;
    for (at[axis] = 0; at[axis] < end; ++at[axis]) {
      int64_t flat = Flat(args.data(), at);
      double value = Load(args.data(), flat);
      auto whole = static_cast<uint64_t>(LoadInteger(args.data(), flat));
      real = product ? real * value : real + value;
      integer = product ? integer * whole : integer + whole;
    }
    int64_t flat = Flat(args.out, index);
    if (IsInteger(args.out.dtype)) {
      StoreInteger(args.out, flat, static_cast<int64_t>(integer));
    } else {
      Store(args.out, flat, static_cast<float>(real));
    }
  });
}

void Order(const PlainArgs<npu_order>& args) {
  auto axis = static_cast<size_t>(args.op.axis);
  Index rows = Shape(args.out);
  rows[axis] = std::min<int64_t>(rows[axis], 1);
  ForEach(rows, [&](const Index& row) {
    auto flat = [&](int64_t i) {
      Index at = row;
      at[axis] = i;
      return Flat(args.data(), at);
    };
    auto less = [&](int64_t i, int64_t j) {
      if (IsInteger(args.data().dtype)) {
        return LoadInteger(args.data(), flat(i)) < LoadInteger(args.data(), flat(j));
      }
      float a = Load(args.data(), flat(i)), b = Load(args.data(), flat(j));
      return std::isnan(b) ? !std::isnan(a) : a < b;
    };
    Index order(static_cast<size_t>(args.data().dims[args.op.axis]));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
      return args.op.descending != 0 ? less(j, i) : less(i, j);
    });
    for (int64_t i = 0; i < args.out.dims[args.op.axis]; ++i) {
      Index at = row;
      at[axis] = i;
      StoreInteger(args.out, Flat(args.out, at), order[static_cast<size_t>(i)]);
    }
  });
}

void Lookup(const PlainArgs<npu_lookup>& args) {
  size_t element = ElementSize(args.out.dtype);
  for (int64_t i = 0; i < ElementCount(args.out); ++i) {
    auto from = static_cast<size_t>(LoadInteger(args.data(), i) - LimitsOf(args.data().dtype).low);
    std::memcpy(static_cast<char*>(args.out.data) + static_cast<size_t>(i) * element,
                static_cast<const char*>(args.reads[1].data) + from * element, element);
  }
}

}  // namespace npu::emulator::oracle
