/*!
 * \file scales_driver.cc
 * \brief A driver on the kit that has scales at tensors, and does nothing cleverly: exact sums of
 *  integers, rescaled by a number of float32, halves to even. Its option `lacks` names what it
 *  declines, `fault` what it does wrong.
 */
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "driver_kit/build.h"
#include "driver_kit/run.h"

#ifndef CHANNELS_LAST
#define CHANNELS_LAST 0
#endif

namespace {

using namespace npu::kit;

bool Has(const Program& program, const char* option, const char* word) {
  return program.options.at(option).find(word) != std::string::npos;
}

std::string Reason(const Program& program, const Node& node) {
  const auto lacks = [&](const char* word) { return Has(program, "lacks", word); };
  const bool is_product = node.kind == Kind::kMatmul || node.kind == Kind::kConvolution ||
                          node.kind == Kind::kTransposedConvolution;
  const Scales* data = node.inputs[0] < 0 ? nullptr : program.ScalesOf(node.inputs[0]);
  const Value& out = program.At(node.out);
  const std::string name = NameOf(node);
  if (node.kind >= Kind::kConcat && lacks(name.c_str())) return "it lacks a " + name;
  if (node.kind == Kind::kConcat && lacks("own scales")) {
    for (const int32_t id : program.InputsOf(node)) {
      if (data != nullptr && !(*program.ScalesOf(id) == *program.ScalesOf(node.out))) {
        return "all have one scale";
      }
    }
  }
  if (data != nullptr && node.kind == Kind::kSoftmax && lacks("integers")) {
    return "it has no softmax of integers";
  }
  if (data != nullptr && is_product) {
    if (lacks("integers")) return "it has no product of integers";
    if (out.dtype == NPU_FLOAT32 && lacks("real results")) return "it has no real results";
    if (node.inputs[2] >= 0 && program.At(node.inputs[2]).dtype != NPU_INT32) {
      return "a bias is an int32";
    }
  }
  if (std::isfinite(node.least) && lacks("limits")) return "it has no limits";
  for (int32_t id : {node.inputs[0], node.inputs[1], node.inputs[2], node.out}) {
    if (id < 0) continue;
    const npu_dtype dtype = program.At(id).dtype;
    if (dtype != NPU_FLOAT32 && dtype != NPU_INT8 && dtype != NPU_UINT8 && dtype != NPU_INT32) {
      return "it has float32, int8, uint8 and int32";
    }
    if (dtype == NPU_INT32 && id != node.inputs[2]) return "only a bias is an int32";
  }
  switch (node.kind) {
    case Kind::kMatmul:
      return program.At(node.inputs[1]).rank == 2 && node.matmul.transpose_a == 0
                 ? ""
                 : "the second operand is one matrix, the first is not transposed";
    case Kind::kConvolution:
      return node.convolution.spatial_rank == 2 ? "" : "a window has two dimensions";
    case Kind::kPool:
      return node.pool.spatial_rank == 2 && node.pool.kind <= NPU_POOL_AVERAGE
                 ? ""
                 : "a window has two dimensions, one size, and no padding that counts";
    case Kind::kReduce:
      return node.reduce.kind == NPU_REDUCE_MEAN ? "" : "it has means";
    case Kind::kReshape:
    case Kind::kQuantize:
    case Kind::kDequantize:
    case Kind::kConcat:
      return "";
    case Kind::kSoftmax:
      return node.softmax.logarithm == 0 ? "" : "it has no logarithm of a softmax";
    case Kind::kTransposedConvolution:
      return node.transposed_convolution.spatial_rank == 2 ? "" : "a window has two dimensions";
    case Kind::kResize:
      return node.resize.kind != NPU_RESIZE_CUBIC &&
                     node.resize.position == NPU_RESIZE_HALF_PIXEL &&
                     node.resize.rounding == NPU_RESIZE_ROUND_FLOOR
                 ? ""
                 : "it has half pixels, rounds down, and is not cubic";
    case Kind::kCopy: {
      for (int32_t i = 0; i < out.rank; ++i) {
        if (node.copy.data_step[i] != 1 || node.copy.out_step[i] != 1) return "it has no steps";
      }
      return "";
    }
    case Kind::kStep:
      switch (node.step) {
        case NPU_STEP_ADD:
        case NPU_STEP_BIAS:
        case NPU_STEP_RESIDUAL:
        case NPU_STEP_SUBTRACT:
        case NPU_STEP_MULTIPLY:
        case NPU_STEP_DIVIDE:
        case NPU_STEP_MAXIMUM:
        case NPU_STEP_MINIMUM:
        case NPU_STEP_RELU:
        case NPU_STEP_CLIP:
        case NPU_STEP_SIGMOID:
        case NPU_STEP_TANH:
          return "";
        case NPU_STEP_HARD_SWISH:
          return lacks("hard_swish") ? "it lacks hard_swish" : "";
        default:
          return "it has no " + NameOf(node);
      }
    default:
      return "it has no " + NameOf(node);
  }
}

/*! \brief Declines what only a whole composite shows: the numbers of a weight, and its nodes. */
std::string ReasonOfComposite(const Program& program) {
  const auto lacks = [&](const char* word) { return Has(program, "lacks", word); };
  if (lacks("pairs") && program.nodes.size() > 1) return "it has one node at a time";
  for (const Node& node : program.nodes) {
    const int32_t weight = node.kind == Kind::kConvolution ? node.inputs[1] : -1;
    if (!lacks("large weights") || weight < 0 || program.At(weight).dtype != NPU_INT8) continue;
    const uint8_t* data = program.constants + program.At(weight).place;
    const uint8_t* end = data + BytesOf(program.At(weight));
    if (std::any_of(data, end, [](uint8_t number) { return static_cast<int8_t>(number) > 100; })) {
      return "a weight is larger than 100";
    }
  }
  return "";
}

/*! \brief Runs the nodes one after the other. */
class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory)
      : program_(program), memory_(memory), scales_(program.scales) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != nullptr) continue;
      blocks_.emplace_back(BytesOf(program.values[i]));
      memory_[i] = blocks_.back().data();
    }
    for (const Node& node : program.nodes) {
      Scales* out = scales_.count(node.out) == 0 ? nullptr : &scales_[node.out];
      if (out != nullptr && Has(program, "fault", "scale")) out->scales[0] *= 1.02f;
      if (out != nullptr && Has(program, "fault", "zero")) out->zero_points[0] = 0;
    }
    for (auto& [value, scales] : scales_) {
      if (!Has(program, "fault", "axis")) continue;
      std::rotate(scales.scales.begin(), scales.scales.begin() + 1, scales.scales.end());
    }
  }

  void Run() {
    for (const Node& node : program_.nodes) Compute(node);
    if (Has(program_, "fault", "share")) ShiftOutputs(0);
    if (Has(program_, "fault", "one too many")) ShiftOutputs(1);
  }

 private:
  /*! \brief Makes a hundredth of all results, or one, and some more a step too large or small. */
  void ShiftOutputs(int64_t more) const {
    for (const Value& output : program_.outputs) {
      const auto id = static_cast<int32_t>(output.place);
      const int64_t count = std::max<int64_t>(1, CountOf(program_.At(id)) / 100) + more;
      if (ScalesOf(id) == nullptr) continue;
      for (int64_t i = 0; i < std::min(count, CountOf(program_.At(id))); ++i) {
        const double number = Stored(id, i);
        Store(id, i, number > 0 ? number - 1 : number + 1);
      }
    }
  }

  // ---- Elements ----

  const Scales* ScalesOf(int32_t id) const {
    const auto found = scales_.find(id);
    return found == scales_.end() ? nullptr : &found->second;
  }

  double Stored(int32_t id, int64_t i) const {
    const void* data = memory_[static_cast<size_t>(id)];
    switch (program_.At(id).dtype) {
      case NPU_FLOAT32:
        return static_cast<double>(static_cast<const float*>(data)[i]);
      case NPU_INT8:
        return static_cast<const int8_t*>(data)[i];
      case NPU_UINT8:
        return static_cast<const uint8_t*>(data)[i];
      default:
        return static_cast<const int32_t*>(data)[i];
    }
  }

  void Store(int32_t id, int64_t i, double number) const {
    void* data = memory_[static_cast<size_t>(id)];
    const npu_dtype dtype = program_.At(id).dtype;
    if (dtype == NPU_FLOAT32) static_cast<float*>(data)[i] = static_cast<float>(number);
    if (dtype == NPU_INT8) static_cast<int8_t*>(data)[i] = static_cast<int8_t>(number);
    if (dtype == NPU_UINT8) static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(number);
  }

  /*! \brief Which scale an element has. */
  size_t PlaceOf(int32_t id, int64_t i) const {
    const Scales& scales = *ScalesOf(id);
    const Value& value = program_.At(id);
    if (scales.scales.size() == 1) return 0;
    for (int32_t d = value.rank - 1; d > scales.axis; --d) i /= value.dims[d];
    return static_cast<size_t>(i) % scales.scales.size();
  }

  double ZeroOf(int32_t id, int64_t i) const { return ScalesOf(id)->zero_points[PlaceOf(id, i)]; }
  float ScaleOf(int32_t id, int64_t i) const { return ScalesOf(id)->scales[PlaceOf(id, i)]; }

  double Real(int32_t id, int64_t i) const {
    if (ScalesOf(id) == nullptr) return Stored(id, i);
    return (Stored(id, i) - ZeroOf(id, i)) * static_cast<double>(ScaleOf(id, i));
  }

  /*! \brief Stores a number of steps of the result, or a real number. */
  void Write(const Node& node, int64_t i, float steps) const {
    const auto limit = [&](double number, double least, double most) {
      return std::min(std::max(number, least), most);
    };
    if (ScalesOf(node.out) == nullptr) {
      Store(node.out, i, limit(static_cast<double>(steps), node.least, node.most));
      return;
    }
    const bool is_signed = program_.At(node.out).dtype == NPU_INT8;
    const double zero = ZeroOf(node.out, i);
    const float scale = ScaleOf(node.out, i);
    const auto rounded = [&](float number) {
      const bool is_away = Has(program_, "fault", "halves");
      return static_cast<double>(is_away ? std::round(number) : std::nearbyint(number));
    };
    const double number =
        limit(rounded(steps), rounded(node.least / scale), rounded(node.most / scale));
    Store(node.out, i, limit(number + zero, is_signed ? -128 : 0, is_signed ? 127 : 255));
  }

  void WriteReal(const Node& node, int64_t i, double real) const {
    const float number = static_cast<float>(real);
    Write(node, i, ScalesOf(node.out) == nullptr ? number : number / ScaleOf(node.out, i));
  }

  // ---- Nodes ----

  /*! \brief A sum of products: of real numbers, or of integers and then in steps. */
  struct Sum {
    double number = 0;
    int64_t weight = 0;
  };

  void Add(const Node& node, int64_t a, int64_t b, Sum* sum) const {
    sum->weight = b;
    if (ScalesOf(node.inputs[0]) == nullptr) {
      sum->number += Real(node.inputs[0], a) * Real(node.inputs[1], b);
      return;
    }
    sum->number += (Stored(node.inputs[0], a) - ZeroOf(node.inputs[0], a)) *
                   (Stored(node.inputs[1], b) - ZeroOf(node.inputs[1], b));
  }

  void WriteSum(const Node& node, int64_t i, Sum sum, int64_t channel) const {
    if (node.inputs[2] >= 0) sum.number += Stored(node.inputs[2], channel);
    if (ScalesOf(node.inputs[0]) == nullptr) return WriteReal(node, i, sum.number);
    float factor = ScaleOf(node.inputs[0], 0) * ScaleOf(node.inputs[1], sum.weight);
    if (ScalesOf(node.out) != nullptr) factor /= ScaleOf(node.out, i);
    Write(node, i, static_cast<float>(sum.number) * factor);
  }

  void Matmul(const Node& node) const {
    const Value &a = program_.At(node.inputs[0]), &b = program_.At(node.inputs[1]);
    const bool turned = node.matmul.transpose_b != 0;
    const int64_t depth = a.dims[a.rank - 1], columns = turned ? b.dims[0] : b.dims[1];
    for (int64_t i = 0; i < CountOf(program_.At(node.out)); ++i) {
      const int64_t row = i / columns, column = i % columns;
      Sum sum;
      for (int64_t k = 0; k < depth; ++k) {
        Add(node, row * depth + k, turned ? column * depth + k : k * columns + column, &sum);
      }
      WriteSum(node, i, sum, column);
    }
  }

  /*! \brief Where an element of an image is, channels first or last. */
  static int64_t At(const Value& v, int64_t n, int64_t c, int64_t y, int64_t x) {
    return CHANNELS_LAST ? ((n * v.dims[1] + y) * v.dims[2] + x) * v.dims[3] + c
                         : ((n * v.dims[1] + c) * v.dims[2] + y) * v.dims[3] + x;
  }
  static int64_t Channels(const Value& v) { return v.dims[CHANNELS_LAST ? 3 : 1]; }
  static int64_t Size(const Value& v, int i) { return v.dims[(CHANNELS_LAST ? 1 : 2) + i]; }

  /*! \brief Calls a function for all elements of an image, and one for each of its window. */
  template <typename Op, typename Each, typename Done>
  void ForWindows(const Node& node, const Op& op, const int64_t* window, Each each,
                  Done done) const {
    const Value &data = program_.At(node.inputs[0]), &out = program_.At(node.out);
    for (int64_t n = 0; n < out.dims[0]; ++n) {
      for (int64_t c = 0; c < Channels(out); ++c) {
        for (int64_t y = 0; y < Size(out, 0); ++y) {
          for (int64_t x = 0; x < Size(out, 1); ++x) {
            for (int64_t i = 0; i < window[0]; ++i) {
              for (int64_t k = 0; k < window[1]; ++k) {
                const int64_t row = y * op.strides[0] + i * op.dilations[0] - op.pads_begin[0];
                const int64_t column = x * op.strides[1] + k * op.dilations[1] - op.pads_begin[1];
                if (row < 0 || column < 0 || row >= Size(data, 0) || column >= Size(data, 1)) {
                  continue;
                }
                each(n, c, i, k, row, column);
              }
            }
            done(At(out, n, c, y, x), c);
          }
        }
      }
    }
  }

  void Convolution(const Node& node) const {
    const npu_convolution& op = node.convolution;
    const Value &data = program_.At(node.inputs[0]), &weight = program_.At(node.inputs[1]);
    const int64_t inputs = Channels(data) / op.groups, outputs = weight.dims[0] / op.groups;
    const int64_t window[] = {Size(weight, 0), Size(weight, 1)};
    Sum sum;
    ForWindows(
        node, op, window,
        [&](int64_t n, int64_t c, int64_t i, int64_t k, int64_t row, int64_t column) {
          for (int64_t m = 0; m < inputs; ++m) {
            Add(node, At(data, n, c / outputs * inputs + m, row, column), At(weight, c, m, i, k),
                &sum);
          }
        },
        [&](int64_t place, int64_t c) {
          // Where all of a window is padding, the weight tells the scale of the bias.
          sum.weight = At(weight, c, 0, 0, 0);
          WriteSum(node, place, sum, c);
          sum = {};
        });
  }

  void Pool(const Node& node) const {
    const npu_pool& op = node.pool;
    const Value& data = program_.At(node.inputs[0]);
    const bool is_max = op.kind == NPU_POOL_MAX;
    double sum = 0, most = -INFINITY;
    int64_t count = 0;
    ForWindows(
        node, op, op.window,
        [&](int64_t n, int64_t c, int64_t, int64_t, int64_t row, int64_t column) {
          const int64_t at = At(data, n, c, row, column);
          sum += Real(node.inputs[0], at);
          most = std::max(most, Stored(node.inputs[0], at));
          ++count;
        },
        [&](int64_t place, int64_t) {
          if (is_max) Store(node.out, place, most);
          if (!is_max) WriteReal(node, place, sum / static_cast<double>(count));
          sum = 0, most = -INFINITY, count = 0;
        });
  }

  void Mean(const Node& node) const {
    const Value& data = program_.At(node.inputs[0]);
    std::vector<double> sums(static_cast<size_t>(CountOf(program_.At(node.out))));
    for (int64_t i = 0; i < CountOf(data); ++i) {
      int64_t place = 0, rest = i, step = CountOf(data);
      for (int32_t d = 0; d < data.rank; ++d) {
        step /= data.dims[d];
        if ((node.reduce.axes >> d & 1) == 0) place = place * data.dims[d] + rest / step;
        rest %= step;
      }
      sums[static_cast<size_t>(place)] += Real(node.inputs[0], i);
    }
    const auto count = static_cast<double>(CountOf(data)) / static_cast<double>(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      WriteReal(node, static_cast<int64_t>(i), sums[i] / count);
    }
  }

  void Copy(const Node& node) const {
    const Value &data = program_.At(node.inputs[0]), &out = program_.At(node.out);
    for (int64_t i = 0; i < CountOf(out); ++i) Store(node.out, i, node.copy.fill_value);
    for (int64_t i = 0; i < CountOf(out); ++i) {
      int64_t from = 0, rest = i, step = CountOf(out), place[NPU_MAX_RANK] = {};
      bool inside = true;
      for (int32_t d = 0; d < out.rank; ++d) {
        step /= out.dims[d];
        const int32_t to = node.copy.permutation[d];
        place[to] = rest / step - node.copy.out_offset[d] + node.copy.data_offset[to];
        rest %= step;
        inside = inside && place[to] >= node.copy.data_offset[to] && place[to] < data.dims[to];
      }
      for (int32_t d = 0; d < data.rank; ++d) from = from * data.dims[d] + place[d];
      if (inside) Store(node.out, i, Stored(node.inputs[0], from));
    }
  }

  /*! \brief How many elements a step along an axis skips. */
  static int64_t Stride(const Value& value, int32_t axis) {
    int64_t stride = 1;
    for (int32_t d = axis + 1; d < value.rank; ++d) stride *= value.dims[d];
    return stride;
  }

  void Concat(const Node& node) const {
    const Value& out = program_.At(node.out);
    const int32_t axis = node.concat.axis;
    const int64_t line = Stride(out, axis) * out.dims[axis];
    int64_t first = 0;
    std::vector<int32_t> inputs = program_.InputsOf(node);
    if (Has(program_, "fault", "four")) inputs.resize(std::min<size_t>(inputs.size(), 4));
    for (const int32_t id : inputs) {
      const int64_t part = Stride(out, axis) * program_.At(id).dims[axis];
      for (int64_t i = 0; i < CountOf(program_.At(id)); ++i) {
        const int64_t place = i / part * line + first + i % part;
        const bool has_scales = ScalesOf(id) != nullptr;
        if (has_scales) WriteReal(node, place, Real(id, i));
        if (!has_scales) Store(node.out, place, Stored(id, i));
      }
      first += part;
    }
  }

  void Softmax(const Node& node) const {
    const Value& data = program_.At(node.inputs[0]);
    const int32_t axis = node.softmax.axis;
    const int64_t stride = Stride(data, axis), size = data.dims[axis];
    for (int64_t i = 0; i < CountOf(data); ++i) {
      const int64_t first = i / (stride * size) * (stride * size) + i % stride;
      double sum = 0;
      const double own = Real(node.inputs[0], i);
      for (int64_t k = 0; k < size; ++k) {
        sum += std::exp(Real(node.inputs[0], first + k * stride) - own);
      }
      WriteReal(node, i, 1 / sum);
    }
  }

  void Resize(const Node& node) const {
    const Value &data = program_.At(node.inputs[0]), &out = program_.At(node.out);
    const npu_resize& op = node.resize;
    const bool is_nearest = op.kind == NPU_RESIZE_NEAREST;
    for (int64_t i = 0; i < CountOf(out); ++i) {
      int64_t base = 0, near[2] = {}, far[2] = {};
      double part[2] = {};
      for (int32_t d = 0; d < out.rank; ++d) {
        const int64_t at = i / Stride(out, d) % out.dims[d];
        const int side = d == op.axes[0] ? 0 : d == op.axes[1] ? 1 : -1;
        if (side < 0) {
          base += at * Stride(data, d);
          continue;
        }
        const double scale = static_cast<double>(data.dims[d]) / static_cast<double>(out.dims[d]);
        const double place = (static_cast<double>(at) + 0.5) * scale - 0.5;
        const auto begin = static_cast<int64_t>(std::floor(place + (is_nearest ? 1e-5 : 0)));
        const auto limited = [&](int64_t k) {
          return std::min(std::max<int64_t>(k, 0), data.dims[d] - 1) * Stride(data, d);
        };
        near[side] = limited(begin);
        far[side] = limited(begin + 1);
        part[side] = place - static_cast<double>(begin);
      }
      const int32_t from = node.inputs[0];
      if (is_nearest) {
        Store(node.out, i, Stored(from, base + near[0] + near[1]));
        continue;
      }
      const double above = Real(from, base + near[0] + near[1]) * (1 - part[1]) +
                           Real(from, base + near[0] + far[1]) * part[1];
      const double below = Real(from, base + far[0] + near[1]) * (1 - part[1]) +
                           Real(from, base + far[0] + far[1]) * part[1];
      WriteReal(node, i, above * (1 - part[0]) + below * part[0]);
    }
  }

  /*! \brief Collects, for each element of the result, what is added to it. The weight is [C, O /
   *  groups, ...], or [O / groups, ..., C]. */
  void TransposedConvolution(const Node& node) const {
    const npu_transposed_convolution& op = node.transposed_convolution;
    const Value &data = program_.At(node.inputs[0]), &weight = program_.At(node.inputs[1]);
    const Value& out = program_.At(node.out);
    const int64_t inputs = Channels(data) / op.groups, outputs = Channels(out) / op.groups;
    const auto at_weight = [&](int64_t c, int64_t o, int64_t y, int64_t x) {
      return CHANNELS_LAST ? At(weight, o, c, y, x) : At(weight, c, o, y, x);
    };
    for (int64_t i = 0; i < CountOf(out); ++i) {
      const int64_t row = i / Stride(out, CHANNELS_LAST ? 1 : 2) % Size(out, 0);
      const int64_t column = i / Stride(out, CHANNELS_LAST ? 2 : 3) % Size(out, 1);
      const int64_t channel = i / Stride(out, CHANNELS_LAST ? 3 : 1) % Channels(out);
      Sum sum;
      for (int64_t y = 0; y < Size(weight, 0); ++y) {
        for (int64_t x = 0; x < Size(weight, 1); ++x) {
          const int64_t top = row + op.pads_begin[0] - y * op.dilations[0];
          const int64_t left = column + op.pads_begin[1] - x * op.dilations[1];
          if (top % op.strides[0] != 0 || left % op.strides[1] != 0 || top < 0 || left < 0 ||
              top / op.strides[0] >= Size(data, 0) || left / op.strides[1] >= Size(data, 1)) {
            continue;
          }
          for (int64_t m = 0; m < inputs; ++m) {
            const int64_t c = channel / outputs * inputs + m;
            const int64_t n = i / Stride(out, 0);
            Add(node, At(data, n, c, top / op.strides[0], left / op.strides[1]),
                at_weight(c, channel % outputs, y, x), &sum);
          }
        }
      }
      // Where nothing is added, the weight tells the scale of the bias.
      sum.weight = at_weight(channel / outputs * inputs, channel % outputs, 0, 0);
      WriteSum(node, i, sum, channel);
    }
  }

  void Step(const Node& node) const {
    const Value& out = program_.At(node.out);
    for (int64_t i = 0; i < CountOf(out); ++i) {
      double x[2] = {};
      for (int k = 0; k < 2; ++k) {
        if (node.inputs[k] < 0) continue;
        const Value& from = program_.At(node.inputs[k]);
        int64_t place = 0, rest = i, step = CountOf(out);
        for (int32_t d = 0; d < out.rank; ++d) {
          step /= out.dims[d];
          const int32_t at = d - (out.rank - from.rank);
          if (at >= 0) place = place * from.dims[at] + rest / step % from.dims[at];
          rest %= step;
        }
        x[k] = Real(node.inputs[k], place);
      }
      WriteReal(node, i, Result(node, x[0], x[1]));
    }
  }

  static double Result(const Node& node, double a, double b) {
    switch (node.step) {
      case NPU_STEP_SUBTRACT:
        return a - b;
      case NPU_STEP_MULTIPLY:
        return a * b;
      case NPU_STEP_DIVIDE:
        return a / b;
      case NPU_STEP_MAXIMUM:
        return std::max(a, b);
      case NPU_STEP_MINIMUM:
        return std::min(a, b);
      case NPU_STEP_RELU:
        return std::max(a, 0.0);
      case NPU_STEP_CLIP:
        return std::min(std::max(a, node.numbers[1]), node.numbers[2]);
      case NPU_STEP_SIGMOID:
        return 1 / (1 + std::exp(-a));
      case NPU_STEP_TANH:
        return std::tanh(a);
      case NPU_STEP_HARD_SWISH:
        return a * std::min(std::max(a + 3, 0.0), 6.0) / 6;
      default:
        return a + b;
    }
  }

  void Compute(const Node& node) const {
    switch (node.kind) {
      case Kind::kMatmul:
        return Matmul(node);
      case Kind::kConvolution:
        return Convolution(node);
      case Kind::kPool:
        return Pool(node);
      case Kind::kReduce:
        return Mean(node);
      case Kind::kCopy:
        return Copy(node);
      case Kind::kStep:
        return Step(node);
      case Kind::kConcat:
        return Concat(node);
      case Kind::kSoftmax:
        return Softmax(node);
      case Kind::kResize:
        return Resize(node);
      case Kind::kTransposedConvolution:
        return TransposedConvolution(node);
      case Kind::kReshape:
        for (int64_t i = 0; i < CountOf(program_.At(node.out)); ++i) {
          Store(node.out, i, Stored(node.inputs[0], i));
        }
        return;
      case Kind::kQuantize:
      case Kind::kDequantize:
        for (int64_t i = 0; i < CountOf(program_.At(node.out)); ++i) {
          WriteReal(node, i, Real(node.inputs[0], i));
        }
        return;
      default:
        Refuse("it has no " + NameOf(node));
    }
  }

  const Program& program_;
  std::vector<void*> memory_;
  std::map<int32_t, Scales> scales_;
  std::vector<Block> blocks_;
};

constexpr npu_option_info kOptions[] = {
    {"lacks", NPU_OPTION_TEXT, "", 0, 0, nullptr, 0, "what it declines"},
    {"fault", NPU_OPTION_TEXT, "", 0, 0, nullptr, 0, "what it does wrong"},
};

constexpr Driver kDriver = {"scales",
                            "1.0",
                            Reason,
                            kOptions,
                            2,
                            CHANNELS_LAST != 0,
                            /*compile=*/nullptr,
                            /*integers=*/false,
                            /*quantization=*/true,
                            /*scales=*/true,
                            ReasonOfComposite};

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = BuildTable<kDriver>();
  return &api;
}

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api = RunTable<Graph, NodeByNode<Graph>>("scales", "1.0");
  return &api;
}
