// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/region_file.h
 * \brief A program as files, for tools that take a model: region.json, constants.bin, options.json.
 *
 * docs/region-file.md of npu-scaffold describes them. Names are those of npu_driver.h. The format
 * only grows; `kRegionVersion` rises where an older reader would misunderstand.
 */
#ifndef DRIVER_KIT_REGION_FILE_H_
#define DRIVER_KIT_REGION_FILE_H_

#include <cmath>
#include <cstdio>
#include <iomanip>
#include <iterator>
#include <locale>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "driver_kit/program.h"

namespace npu::kit {

constexpr int kRegionVersion = 1;

// ---- JSON ----

inline std::string Quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    char code[8];
    std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned char>(c));
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? std::string(code) : std::string(1, c);
  }
  return result + '"';
}

/*! \brief A number that reads back as the same; JSON has none for those that are not finite. */
inline std::string NumberText(double number) {
  if (std::isnan(number)) return "\"nan\"";
  if (std::isinf(number)) return number > 0 ? "\"inf\"" : "\"-inf\"";
  // Whatever the locale writes between the digits.
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::setprecision(17) << number;
  return text.str();
}

template <typename T>
std::string ListText(const T* numbers, int32_t count) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return "[" + text + "]";
}

using Fields = std::vector<std::pair<std::string, std::string>>;

inline std::string ObjectText(const Fields& fields) {
  std::string text;
  for (const auto& [key, value] : fields) {
    text += (text.empty() ? "" : ", ") + Quoted(key) + ": " + value;
  }
  return "{" + text + "}";
}

inline std::string TextOfOptions(const std::map<std::string, std::string>& options) {
  Fields fields;
  for (const auto& [key, value] : options) fields.emplace_back(key, Quoted(value));
  return ObjectText(fields);
}

// ---- Regions ----

inline std::string NameOfValue(int32_t id) {
  return id < 0 ? "null" : Quoted("v" + std::to_string(id));
}

inline std::string DtypeText(npu_dtype dtype) {
  constexpr const char* kNames[] = {"float32", "float16", "int8", "uint8",
                                    "int32",   "int64",   "bool", "int16"};
  return Quoted(kNames[dtype]);
}

/*! \brief Scale and zero point that a node of kQuantize or kDequantize gives to its integers. */
inline Fields ScalesOf(const Node& node) {
  Fields fields;
  for (int32_t i : {1, 2}) {
    const bool by_axis = node.inputs[i] >= 0;
    fields.emplace_back(i == 1 ? "scale" : "zero_point",
                        by_axis ? NameOfValue(node.inputs[i]) : NumberText(node.numbers[i]));
  }
  const bool by_axis = node.inputs[1] >= 0 || node.inputs[2] >= 0;
  fields.emplace_back("axis", by_axis ? std::to_string(node.quantization.axis) : "null");
  return fields;
}

/*! \brief What the integers of a value stand for: numbers, or lists of them by `axis`. */
inline Fields FieldsOf(const Scales& given) {
  const bool by_axis = given.scales.size() > 1;
  std::string scales, zero_points;
  for (size_t i = 0; i < given.scales.size(); ++i) {
    scales += (i == 0 ? "" : ", ") + NumberText(given.scales[i]);
    zero_points += (i == 0 ? "" : ", ") + std::to_string(given.zero_points[i]);
  }
  const auto text = [by_axis](const std::string& list) {
    return by_axis ? "[" + list + "]" : list;
  };
  return {{"scale", text(scales)},
          {"zero_point", text(zero_points)},
          {"axis", by_axis ? std::to_string(given.axis) : "null"}};
}

/*! \brief The attributes of a node, by their names in npu_driver.h. */
inline Fields AttributesOf(const Program& program, const Node& node) {
  Fields fields;
  const auto add = [&](const char* key, auto number) {
    fields.emplace_back(key, std::to_string(number));
  };
  const auto flag = [&](const char* key, bool on) {
    fields.emplace_back(key, on ? "true" : "false");
  };
  const auto text = [&](const char* key, const char* word) {
    fields.emplace_back(key, Quoted(word));
  };
  const auto window = [&](const auto& op) {
    fields.emplace_back("strides", ListText(op.strides, op.spatial_rank));
    fields.emplace_back("dilations", ListText(op.dilations, op.spatial_rank));
    fields.emplace_back("pads_begin", ListText(op.pads_begin, op.spatial_rank));
    fields.emplace_back("pads_end", ListText(op.pads_end, op.spatial_rank));
  };
  switch (node.kind) {
    case Kind::kMatmul:
      flag("transpose_a", node.matmul.transpose_a != 0);
      flag("transpose_b", node.matmul.transpose_b != 0);
      add("a_zero_point", node.matmul.a_zero_point);
      add("b_zero_point", node.matmul.b_zero_point);
      break;
    case Kind::kConvolution:
      window(node.convolution);
      add("groups", node.convolution.groups);
      add("data_zero_point", node.convolution.data_zero_point);
      add("weight_zero_point", node.convolution.weight_zero_point);
      break;
    case Kind::kPool: {
      constexpr const char* kKinds[] = {"max", "average", "average_include_pad",
                                        "average_adaptive"};
      text("kind", kKinds[node.pool.kind]);
      window(node.pool);
      fields.emplace_back("window", ListText(node.pool.window, node.pool.spatial_rank));
      break;
    }
    case Kind::kReduce: {
      constexpr const char* kKinds[] = {"sum", "mean", "max", "min", "product"};
      text("kind", kKinds[node.reduce.kind]);
      std::vector<int32_t> axes;
      for (int32_t i = 0; i < NPU_MAX_RANK; ++i) {
        if ((node.reduce.axes >> i & 1) != 0) axes.push_back(i);
      }
      fields.emplace_back("axes", ListText(axes.data(), static_cast<int32_t>(axes.size())));
      break;
    }
    case Kind::kCopy: {
      const int32_t rank = program.At(node.inputs[0]).rank;
      fields.emplace_back("permutation", ListText(node.copy.permutation, rank));
      fields.emplace_back("data_offset", ListText(node.copy.data_offset, rank));
      fields.emplace_back("data_step", ListText(node.copy.data_step, rank));
      fields.emplace_back("out_offset", ListText(node.copy.out_offset, rank));
      fields.emplace_back("out_step", ListText(node.copy.out_step, rank));
      flag("fill", node.copy.fill != 0);
      fields.emplace_back("fill_value", NumberText(node.copy.fill_value));
      break;
    }
    case Kind::kGather:
      add("axis", node.gather.axis);
      flag("elementwise", node.gather.elementwise != 0);
      break;
    case Kind::kScan:
      text("kind", node.scan.kind == NPU_SCAN_SUM ? "sum" : "product");
      add("axis", node.scan.axis);
      flag("exclusive", node.scan.exclusive != 0);
      break;
    case Kind::kOrder:
      add("axis", node.order.axis);
      flag("descending", node.order.descending != 0);
      break;
    case Kind::kStep: {
      std::string numbers;
      for (const double number : node.numbers) {
        numbers += (numbers.empty() ? "" : ", ") + NumberText(number);
      }
      fields.emplace_back("numbers", "[" + numbers + "]");
      break;
    }
    case Kind::kQuantize:
    case Kind::kDequantize:
      return ScalesOf(node);
    case Kind::kConcat:
      add("axis", node.concat.axis);
      break;
    case Kind::kSoftmax:
      add("axis", node.softmax.axis);
      flag("logarithm", node.softmax.logarithm != 0);
      break;
    case Kind::kResize: {
      constexpr const char* kKinds[] = {"nearest", "linear", "cubic"};
      constexpr const char* kPositions[] = {"half_pixel", "pytorch_half_pixel", "align_corners",
                                            "asymmetric", "tf_half_pixel_for_nn"};
      constexpr const char* kRoundings[] = {"floor", "ceil", "prefer_floor", "prefer_ceil", "even"};
      text("kind", kKinds[node.resize.kind]);
      fields.emplace_back("axes", ListText(node.resize.axes, 2));
      text("position", kPositions[node.resize.position]);
      text("rounding", kRoundings[node.resize.rounding]);
      fields.emplace_back("cubic_alpha", NumberText(node.resize.cubic_alpha));
      flag("cubic_exclude", node.resize.cubic_exclude != 0);
      break;
    }
    case Kind::kTransposedConvolution: {
      const npu_transposed_convolution& op = node.transposed_convolution;
      window(op);
      fields.emplace_back("output_padding", ListText(op.output_padding, op.spatial_rank));
      add("groups", op.groups);
      break;
    }
    case Kind::kVendor: {
      std::vector<int32_t> bytes(std::begin(node.vendor), std::end(node.vendor));
      fields.emplace_back("bytes", ListText(bytes.data(), static_cast<int32_t>(bytes.size())));
      break;
    }
    case Kind::kUpdate:
      add("axis", node.update.axis);
      break;
    case Kind::kReshape:
    case Kind::kLookup:
      break;
  }
  return fields;
}

/*! \brief region.json without `id`, in one line: these nodes of a program, and the values that they
 *  need, or, if `is_whole`, also what goes to outputs. `labels` are theirs, or none. */
inline Fields RegionFields(const Program& program, const std::vector<Node>& nodes,
                           const std::vector<std::string>& labels, bool channels_last,
                           bool is_whole) {
  std::set<int32_t> used;
  std::map<int32_t, std::string> scales;
  std::string node_text, value_text, input_text, output_text;
  const auto append = [](std::string* list, const Fields& fields) {
    *list += (list->empty() ? "" : ", ") + ObjectText(fields);
  };
  const auto type = [](const Value& value, Fields fields) {
    fields.emplace_back("dtype", DtypeText(value.dtype));
    fields.emplace_back("shape", ListText(value.dims, value.rank));
    return fields;
  };
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    std::string inputs;
    int32_t count = NPU_MAX_OPERANDS;
    while (count > 0 && node.inputs[count - 1] < 0) --count;
    for (int32_t i = 0; i < count; ++i) {
      inputs += (i == 0 ? "" : ", ") + NameOfValue(node.inputs[i]);
    }
    const std::vector<int32_t> all = program.InputsOf(node);
    used.insert(all.begin(), all.end());
    const auto more = program.more_inputs.find(node.out);
    if (more != program.more_inputs.end()) {
      for (int32_t id : more->second) inputs += ", " + NameOfValue(id);
    }
    used.insert(node.out);
    if (node.kind == Kind::kQuantize || node.kind == Kind::kDequantize) {
      scales[node.kind == Kind::kQuantize ? node.out : node.inputs[0]] = ObjectText(ScalesOf(node));
    }
    append(&node_text, {{"op", Quoted(program.NameOf(node))},
                        {"inputs", "[" + inputs + "]"},
                        {"output", NameOfValue(node.out)},
                        {"label", Quoted(n < labels.size() ? labels[n] : "")},
                        {"least", std::isinf(node.least) ? "null" : NumberText(node.least)},
                        {"most", std::isinf(node.most) ? "null" : NumberText(node.most)},
                        {"attributes", ObjectText(AttributesOf(program, node))}});
  }
  for (const Value& input : program.inputs) append(&input_text, type(input, {}));
  for (const Value& output : program.outputs) {
    const int32_t value = static_cast<int32_t>(output.place);
    if (is_whole) used.insert(value);
    append(&output_text, type(output, {{"value", NameOfValue(value)}}));
  }
  for (const int32_t id : used) {
    constexpr const char* kSources[] = {"input", "constant", "node"};
    const Value& value = program.At(id);
    Fields fields = type(value, {{"name", NameOfValue(id)}});
    fields.emplace_back("source", Quoted(kSources[static_cast<int32_t>(value.source)]));
    if (value.source == Source::kInput) fields.emplace_back("input", std::to_string(value.place));
    if (value.source == Source::kConstant) {
      fields.emplace_back("offset", std::to_string(value.place));
    }
    const Scales* own = program.ScalesOf(id);
    if (own != nullptr) scales[id] = ObjectText(FieldsOf(*own));
    fields.emplace_back("quantization", scales.count(id) > 0 ? scales[id] : "null");
    if (value.groups != 0) fields.emplace_back("growing", std::to_string(GrowingOf(value)));
    append(&value_text, fields);
  }
  Fields fields = {{"format", "\"npu-region\""},
                   {"version", std::to_string(kRegionVersion)},
                   {"channels_last", channels_last ? "true" : "false"},
                   {"values", "[" + value_text + "]"},
                   {"nodes", "[" + node_text + "]"}};
  if (program.bound > 0) fields.emplace_back("bound", std::to_string(program.bound));
  if (!is_whole) return fields;
  fields.emplace_back("inputs", "[" + input_text + "]");
  fields.emplace_back("outputs", "[" + output_text + "]");
  return fields;
}

/*! \brief Tells contents apart, as a file name: two regions have the same only by chance. */
inline std::string DigestOf(const std::vector<std::pair<const void*, size_t>>& parts) {
  uint64_t lanes[2] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu};
  const auto mix = [&lanes](uint64_t word) {
    for (uint64_t& lane : lanes) {
      lane = (lane ^ word) * 0xff51afd7ed558ccdu;
      // A change of the highest bits also changes the lowest ones.
      lane ^= lane >> 32;
      word = ~word;
    }
  };
  for (const auto& [data, size] : parts) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    mix(size);
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, size - at < sizeof(word) ? size - at : sizeof(word));
      mix(word);
    }
  }
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(lanes[0]),
                static_cast<unsigned long long>(lanes[1]));
  return text;
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_REGION_FILE_H_
