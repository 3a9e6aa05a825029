// SPDX-License-Identifier: Apache-2.0
/*!
 * \file fuzz_test.cc
 * \brief Corrupt artifacts with valid checksums: the runtime refuses each with a message, or runs
 * it within its memory.
 *
 *   npu_fuzz_test [mutations [seed]]
 */
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "npu_driver.h"

#include "backend.h"
#include "common/artifact.h"
#include "emulator/accesses.h"
#include "emulator/program.h"
#include "emulator/timeline.h"
#include "runtime/signature.h"

namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;
namespace emulator = npu::emulator;

std::mt19937_64 generator;

/*! \brief A number below `count`, or 0. */
size_t Random(size_t count) { return count == 0 ? 0 : generator() % count; }
bool OneIn(size_t count) { return Random(count) == 0; }

template <typename Container>
auto& AnyOf(Container&& items) {
  return items[Random(std::size(items))];
}

int failures = 0;

void Fail(const std::string& what) {
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

// ---- Artifacts ----

/*! \brief The sections of an artifact. */
struct Parts {
  std::string manifest, graph, program, ports;

  npu::Artifact View() const { return {manifest, graph, {program}, ports}; }
  std::string Bytes() const { return npu::WriteArtifact(View()); }
};

/*! \brief A bundle of the same sections twice: the programs are the same pieces. */
std::string BundleOf(const Parts& parts) {
  const npu::Bundle bundle({parts.View(), parts.View()});
  std::string bytes(bundle.size(), '\0');
  bundle.Write(bytes.data());
  return bytes;
}

/*! \brief Recomputes the checksum of a changed artifact. */
void SealArtifact(std::string* bytes) {
  constexpr size_t kHeader = 32;
  constexpr size_t kAt = 24;
  if (bytes->size() < kHeader) return;
  auto* data = reinterpret_cast<uint8_t*>(bytes->data());
  std::memset(data + kAt, 0, sizeof(uint64_t));
  uint64_t checksum =
      npu::Checksum(data + kHeader, bytes->size() - kHeader, npu::Checksum(data, kHeader));
  std::memcpy(data + kAt, &checksum, sizeof(checksum));
}

/*! \brief A builder of the emulator, whose calls must succeed. */
class Builder {
 public:
  explicit Builder(const char* scratchpad_bytes) {
    npu_option option = {"scratchpad_bytes", scratchpad_bytes};
    Check(build_.create(&option, 1, &builder_));
  }
  ~Builder() { build_.destroy(builder_); }

  void Symbol(int64_t bound) {
    int32_t symbol = 0;
    Check(build_.add_symbol(builder_, "n", bound, &symbol));
  }
  /*! \brief A size of -1 is the symbol. */
  npu_tensor Input(const std::vector<int64_t>& sizes, npu_dtype dtype = NPU_FLOAT32) {
    npu_tensor_desc desc = Desc(sizes, dtype);
    npu_tensor tensor = -1;
    Check(build_.add_input(builder_, &desc, &tensor));
    return tensor;
  }
  npu_tensor Make(const std::vector<int64_t>& sizes, npu_dtype dtype = NPU_FLOAT32) {
    npu_tensor_desc desc = Desc(sizes, dtype);
    npu_tensor tensor = -1;
    Check(build_.add_tensor(builder_, &desc, &tensor));
    return tensor;
  }
  npu_tensor Constant(const std::vector<int64_t>& sizes, npu_dtype dtype = NPU_FLOAT32,
                      bool zeros = false) {
    npu_tensor_desc desc = Desc(sizes, dtype);
    size_t count = 1;
    for (int64_t size : sizes) count *= static_cast<size_t>(size);
    npu_tensor tensor = -1;
    Check(build_.add_constant(builder_, &desc, zeros ? zeros_.data() : numbers_.data(),
                              count * emulator::ElementSize(dtype), &tensor));
    return tensor;
  }
  template <typename Op>
  npu_tensor Add(Op op, npu_status (*npu_build_api::*function)(npu_builder*, const Op*)) {
    op.size = sizeof(op);
    Check((build_.*function)(builder_, &op));
    return op.out;
  }
  void Output(npu_tensor tensor) { Check(build_.mark_output(builder_, tensor)); }
  void State(npu_tensor input, npu_tensor output) {
    int32_t shared = 0;
    Check(build_.add_state(builder_, input, output, &shared));
  }
  std::string Finish() {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Check(build_.finish(builder_, &bytes, &size));
    return {reinterpret_cast<const char*>(bytes), size};
  }

 private:
  static npu_tensor_desc Desc(const std::vector<int64_t>& sizes, npu_dtype dtype) {
    npu_tensor_desc desc = {};
    desc.dtype = dtype;
    desc.rank = static_cast<int32_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      desc.dims[i] = sizes[i] < 0 ? npu_dim{1, 0} : npu_dim{sizes[i], -1};
    }
    return desc;
  }
  void Check(npu_status status) const {
    if (status == NPU_OK) return;
    std::fprintf(stderr, "cannot build: %s\n", build_.error(builder_));
    std::exit(1);
  }

  const npu_build_api& build_ = *npu_driver_build(NPU_DRIVER_API_VERSION);
  npu_builder* builder_ = nullptr;
  std::vector<float> numbers_ = std::vector<float>(4096, 0.5f);
  std::vector<float> zeros_ = std::vector<float>(4096);
};

/*! \brief Images: convolutions with epilogues, in several tiles if the scratchpad is small. */
std::string Images(const char* scratchpad_bytes) {
  Builder builder(scratchpad_bytes);
  builder.Symbol(3);
  npu_convolution convolution = {};
  convolution.data = builder.Input({-1, 3, 8, 8});
  convolution.weight = builder.Constant({4, 3, 3, 3});
  convolution.out = builder.Make({-1, 4, 8, 8});
  convolution.spatial_rank = 2;
  convolution.groups = 1;
  for (int i = 0; i < 2; ++i) {
    convolution.strides[i] = convolution.dilations[i] = 1;
    convolution.pads_begin[i] = convolution.pads_end[i] = 1;
  }
  const npu_vector_instruction add[] = {
      {NPU_VECTOR_LOAD, 0, 0, 0, 0}, {NPU_VECTOR_LOAD, 1, 0, 0, 0}, {NPU_VECTOR_ADD, 0, 1, 0, 0}};
  const npu_tensor inputs[] = {-1, builder.Constant({4, 1, 1})};
  npu_vector_program bias = {sizeof(bias), 3, add, inputs, 2, 0, nullptr};
  convolution.epilogue = &bias;
  npu_pool pool = {};
  pool.data = builder.Add(convolution, &npu_build_api::add_convolution);
  pool.out = builder.Make({-1, 4, 4, 4});
  pool.spatial_rank = 2;
  for (int i = 0; i < 2; ++i) pool.window[i] = pool.strides[i] = 2;
  for (int i = 0; i < 2; ++i) pool.dilations[i] = 1;
  builder.Output(builder.Add(pool, &npu_build_api::add_pool));
  npu_reduce reduce = {};
  reduce.data = pool.out;
  reduce.out = builder.Make({-1, 4});
  reduce.kind = NPU_REDUCE_MEAN;
  reduce.axes = 0b1100;
  builder.Output(builder.Add(reduce, &npu_build_api::add_reduce));
  return builder.Finish();
}

/*! \brief Rows: the other operations, with inputs of different dtypes, and a state. */
std::string Rows() {
  Builder builder("20000");
  builder.Symbol(4);
  npu_tensor data = builder.Input({-1, 6});
  npu_tensor indices = builder.Input({5}, NPU_INT32);
  npu_matmul matmul = {};
  matmul.a = data;
  matmul.b = builder.Constant({6, 10});
  matmul.out = builder.Make({-1, 10});
  builder.Add(matmul, &npu_build_api::add_matmul);
  npu_gather gather = {};
  gather.data = matmul.out;
  gather.indices = indices;
  gather.out = builder.Make({-1, 5});
  gather.axis = 1;
  builder.Add(gather, &npu_build_api::add_gather);
  npu_scan scan = {};
  scan.data = gather.out;
  scan.out = builder.Make({-1, 5});
  scan.axis = 1;
  builder.Add(scan, &npu_build_api::add_scan);
  npu_copy copy = {};
  copy.data = scan.out;
  copy.out = builder.Make({5, -1});
  for (int i = 0; i < NPU_MAX_RANK; ++i) {
    copy.permutation[i] = i;
    copy.data_step[i] = copy.out_step[i] = 1;
  }
  std::swap(copy.permutation[0], copy.permutation[1]);
  builder.Output(builder.Add(copy, &npu_build_api::add_copy));
  const npu_vector_instruction double_it[] = {{NPU_VECTOR_LOAD, 0, 0, 0, 0},
                                              {NPU_VECTOR_ADD, 0, 0, 0, 0}};
  npu_vector_program program = {sizeof(program), 2, double_it, &scan.out, 1, 0, nullptr};
  npu_elementwise elementwise = {};
  elementwise.out = builder.Make({-1, 5});
  elementwise.program = &program;
  builder.Output(builder.Add(elementwise, &npu_build_api::add_elementwise));
  npu_order order = {};
  order.data = elementwise.out;
  order.out = builder.Make({-1, 5}, NPU_INT64);
  order.axis = 1;
  builder.Output(builder.Add(order, &npu_build_api::add_order));
  npu_update update = {};
  update.data = builder.Input({5, 3});
  update.value = builder.Constant({2, 3});
  update.positions = builder.Input({2}, NPU_INT64);
  update.out = builder.Make({5, 3});
  builder.Output(builder.Add(update, &npu_build_api::add_update));
  builder.State(update.data, update.out);
  return builder.Finish();
}

/*! \brief Integers: products with a bias, requantized, and a table. */
std::string Integers(const char* scratchpad_bytes) {
  Builder builder(scratchpad_bytes);
  builder.Symbol(3);
  const npu_vector_instruction requantize[] = {
      {NPU_VECTOR_LOAD, 0, 0, 0, 0},     {NPU_VECTOR_LOAD, 1, 0, 0, 0},
      {NPU_VECTOR_ADD, 0, 1, 0, 0},      {NPU_VECTOR_LOAD, 2, 0, 0, 0},
      {NPU_VECTOR_CONSTANT, 0, 0, 0, 8}, {NPU_VECTOR_RESCALE, 2, 3, 4, NPU_ROUND_HALF_EVEN}};
  auto parameters = [&](const std::vector<int64_t>& sizes) {
    return std::vector<npu_tensor>{-1, builder.Constant(sizes, NPU_INT32),
                                   builder.Constant(sizes, NPU_INT16)};
  };
  npu_convolution convolution = {};
  convolution.data = builder.Input({-1, 3, 8, 8}, NPU_UINT8);
  convolution.weight = builder.Constant({4, 3, 3, 3}, NPU_INT8);
  convolution.out = builder.Make({-1, 4, 8, 8}, NPU_INT8);
  convolution.spatial_rank = 2;
  convolution.groups = 1;
  convolution.data_zero_point = 128;
  for (int i = 0; i < 2; ++i) {
    convolution.strides[i] = convolution.dilations[i] = 1;
    convolution.pads_begin[i] = convolution.pads_end[i] = 1;
  }
  std::vector<npu_tensor> inputs = parameters({4, 1, 1});
  npu_vector_program program = {sizeof(program), 6, requantize, inputs.data(), 3, 0, nullptr};
  convolution.epilogue = &program;
  npu_matmul matmul = {};
  matmul.a = builder.Add(convolution, &npu_build_api::add_convolution);
  // Stored in 4 bits, unlike the weight above.
  matmul.b = builder.Constant({8, 5}, NPU_UINT8, true);
  matmul.out = builder.Make({-1, 4, 8, 5}, NPU_INT16);
  matmul.a_zero_point = -3;
  inputs = parameters({5});
  program.inputs = inputs.data();
  matmul.epilogue = &program;
  builder.Output(builder.Add(matmul, &npu_build_api::add_matmul));
  npu_lookup lookup = {};
  lookup.data = matmul.a;
  lookup.table = builder.Constant({256}, NPU_FLOAT16);
  lookup.out = builder.Make({-1, 4, 8, 8}, NPU_FLOAT16);
  npu_matmul weights = {};
  weights.a = builder.Add(lookup, &npu_build_api::add_lookup);
  builder.Output(weights.a);
  weights.b = builder.Constant({8, 6}, NPU_UINT8);
  weights.out = builder.Make({-1, 4, 8, 6}, NPU_FLOAT16);
  weights.b_bits = 4;
  weights.b_block = 2;
  weights.b_scales = builder.Constant({4, 6}, NPU_FLOAT32);
  weights.b_zero_points = builder.Constant({4, 6}, NPU_UINT8);
  builder.Output(builder.Add(weights, &npu_build_api::add_matmul));
  return builder.Finish();
}

emulator::Program Read(const std::string& bytes, emulator::Buffer* memory) {
  *memory = emulator::Buffer(bytes.size());
  if (!bytes.empty()) std::memcpy(memory->data(), bytes.data(), bytes.size());
  return emulator::Deserialize(memory->data(), memory->size());
}

/*! \brief The section `ports` for inputs or outputs that equal those of the region. */
std::string PortsOf(const std::vector<emulator::Desc>& descs) {
  std::string ports;
  for (size_t i = 0; i < descs.size(); ++i) {
    std::string order;
    for (int32_t d = 0; d < descs[i].rank; ++d) order += (d == 0 ? "" : ", ") + std::to_string(d);
    ports += (i == 0 ? "" : ", ") + std::string(R"({"argument": )") + std::to_string(i) +
             R"(, "order": [)" + order + "]}";
  }
  return "[" + ports + "]";
}

/*! \brief A program with manifest, graph and ports, in codegen's format. */
Parts Whole(const std::string& bytes) {
  emulator::Buffer memory;
  emulator::Program program = Read(bytes, &memory);
  Parts parts;
  parts.program = bytes;
  parts.manifest = R"({"symbol": "f", "options": {"timeout_ms": 60000}, "overrides": {}, )";
  parts.manifest += R"("driver": "emulator", "backend": ")" BACKEND_NAME "\"}";
  std::string nodes, arguments, heads;
  auto add = [&](const emulator::Desc& desc, bool is_input, size_t number) {
    std::string dims;
    for (int32_t i = 0; i < desc.rank; ++i) {
      dims += (i == 0 ? "[" : ", [") + std::to_string(desc.dims[i].size) + ", " +
              std::to_string(desc.dims[i].symbol) + "]";
    }
    nodes += (number == 0 ? "" : ", ") + std::string(R"({"op": ")") +
             (is_input ? "input" : "kernel") + R"(", "name": "v)" + std::to_string(number) +
             R"(", "attrs": {"dtype": [[")" + emulator::Name(desc.dtype) +
             R"("]], "symbolic_shape": [[[)" + dims + "]]]}}";
    std::string index = std::to_string(number);
    std::string& list = is_input ? arguments : heads;
    list += (list.empty() ? "" : ", ") + (is_input ? index : "[" + index + ", 0, 0]");
  };
  size_t number = 0;
  for (const emulator::Desc& desc : program.inputs) add(desc, true, number++);
  for (const emulator::Desc& desc : program.outputs) add(desc, false, number++);
  std::string symbols = program.symbols.empty() ? "" : "\"n\"";
  parts.graph = R"({"symbol": "f", "symbols": [)" + symbols + R"(], "arg_nodes": [)" + arguments +
                R"(], "heads": [)" + heads + R"(], "nodes": [)" + nodes + "]}";
  parts.ports = R"({"inputs": )" + PortsOf(program.inputs) + R"(, "outputs": )" +
                PortsOf(program.outputs) + "}";
  return parts;
}

// ---- Mutations ----

int64_t AnyNumber() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kEdges[] = {0,
                                1,
                                -1,
                                2,
                                3,
                                7,
                                64,
                                127,
                                255,
                                65536,
                                0x7FFFFFFF,
                                -0x80000000LL,
                                0x100000000LL,
                                kMost,
                                -kMost - 1,
                                kMost / 4 + 1};
  return OneIn(2) ? AnyOf(kEdges) : static_cast<int64_t>(Random(20)) - 4;
}

void MutateBytes(std::string* bytes, size_t begin, size_t end) {
  if (begin >= end) return;
  char& at = (*bytes)[begin + Random(end - begin)];
  switch (Random(4)) {
    case 0:
      at = static_cast<char>(at ^ (1 << Random(8)));
      break;
    case 1:
      at = static_cast<char>(at + static_cast<int>(Random(9)) - 4);
      break;
    case 2:
      at = static_cast<char>(Random(256));
      break;
    default:
      std::memset(&at, OneIn(2) ? 0 : 255,
                  std::min<size_t>(1 + Random(8), &(*bytes)[end - 1] - &at + 1));
  }
}

void MutateText(std::string* text) {
  if (text->empty()) return;
  size_t at = Random(text->size());
  switch (Random(5)) {
    case 0:
      text->resize(at);
      break;
    case 1:
      text->erase(at, 1 + Random(8));
      break;
    case 2:
      text->insert(at, text->substr(Random(text->size()), 1 + Random(20)));
      break;
    case 3:
      text->insert(at, std::string(1 + Random(300), AnyOf("[{\",-1e\xff")));
      break;
    default:
      MutateBytes(text, 0, text->size());
  }
}

json::Value AnyValue() {
  switch (Random(9)) {
    case 0:
      return nullptr;
    case 1:
      return OneIn(2);
    case 2:
      return AnyOf(std::vector<double>{0.5, -0.0, 1e308, 1e-320});
    case 3: {
      const char* const strings[] = {"",       "float32",  "float32x4",  "int4",
                                     "bool",   "handle",   "void",       "kernel",
                                     "input",  "f",        "\x1b[2J",    "\n",
                                     "vendor", "emulator", BACKEND_NAME, "custom[x]8"};
      return ffi::String(AnyOf(strings));
    }
    case 4:
      return ffi::String(std::string(Random(3000), 'x'));
    case 5:
      return json::Array();
    case 6:
      return json::Object();
    default:
      return AnyNumber();
  }
}

/*! \brief A copy in which one value, anywhere, is replaced, added or removed. */
json::Value Mutated(const json::Value& value) {
  if (auto array = value.try_cast<json::Array>(); array.has_value() && !OneIn(6)) {
    std::vector<json::Value> items(array->begin(), array->end());
    size_t at = Random(items.size());
    auto here = items.begin() + static_cast<ptrdiff_t>(at);
    if (items.empty() || OneIn(6)) {
      items.insert(here, items.empty() ? AnyValue() : items[at]);
    } else if (OneIn(6)) {
      items.erase(here);
    } else {
      items[at] = Mutated(items[at]);
    }
    return json::Array(items.begin(), items.end());
  }
  if (auto object = value.try_cast<json::Object>(); object.has_value() && !OneIn(8)) {
    std::vector<std::pair<json::Value, json::Value>> items(object->begin(), object->end());
    size_t at = Random(items.size());
    if (items.empty() || OneIn(8)) {
      items.emplace_back(ffi::String("more"), AnyValue());
    } else if (OneIn(8)) {
      items.erase(items.begin() + static_cast<ptrdiff_t>(at));
    } else {
      items[at].second = Mutated(items[at].second);
    }
    json::Object changed;
    for (const auto& [key, item] : items) changed.Set(key, item);
    return changed;
  }
  return AnyValue();
}

void MutateJson(std::string* text) {
  ffi::String message;
  json::Value value = json::Parse(ffi::String(*text), &message);
  if (message.empty()) *text = std::string(json::Stringify(Mutated(value)));
}

void MutateTables(std::string* bytes) {
  // The offsets of the header's number of constant bytes, and of the tables.
  constexpr size_t kConstantBytes = 32;
  constexpr size_t kTables = 48;
  uint64_t constant_bytes = 0;
  if (bytes->size() < kTables) return;
  std::memcpy(&constant_bytes, bytes->data() + kConstantBytes, sizeof(constant_bytes));
  if (constant_bytes > bytes->size() - kTables) return;
  MutateBytes(bytes, OneIn(10) ? 0 : kTables, bytes->size() - constant_bytes);
  emulator::Seal(reinterpret_cast<uint8_t*>(bytes->data()), bytes->size());
}

template <typename Number>
void Poke(Number* number) {
  *number = static_cast<Number>(AnyNumber());
}

void Poke(emulator::Desc* desc) {
  emulator::Dim& dim = AnyOf(desc->dims);
  switch (Random(6)) {
    case 0:
      desc->dtype = static_cast<npu_dtype>(Random(8));
      break;
    case 1:
      desc->rank = static_cast<int32_t>(Random(NPU_MAX_RANK + 1));
      break;
    case 2:
      dim.symbol = static_cast<int32_t>(Random(3)) - 1;
      break;
    case 3:
      Poke(&dim.begin);
      break;
    case 4:
      Poke(&dim.limit);
      break;
    default:
      Poke(&dim.size);
  }
}

/*! \brief Changes a number of an operation that is not an enumerator. */
struct PokeOperation {
  npu_tensor AnyTensor() const { return static_cast<npu_tensor>(Random(tensors + 1)) - 1; }

  void operator()(npu_matmul& op) const {
    int32_t* const numbers[] = {&op.transpose_a, &op.transpose_b, &op.a_zero_point,
                                &op.b_zero_point};
    if (OneIn(2)) return Poke(AnyOf(numbers));
    npu_tensor* const all[] = {&op.a, &op.b, &op.out};
    *AnyOf(all) = AnyTensor();
  }
  void operator()(npu_convolution& op) const {
    int64_t* const numbers[] = {&AnyOf(op.strides), &AnyOf(op.dilations), &AnyOf(op.pads_begin),
                                &AnyOf(op.pads_end), &op.groups};
    if (OneIn(6)) return Poke(&op.spatial_rank);
    if (OneIn(6)) return Poke(OneIn(2) ? &op.data_zero_point : &op.weight_zero_point);
    if (OneIn(2)) return Poke(AnyOf(numbers));
    npu_tensor* const all[] = {&op.data, &op.weight, &op.out};
    *AnyOf(all) = AnyTensor();
  }
  void operator()(npu_pool& op) const {
    int64_t* const numbers[] = {&AnyOf(op.strides), &AnyOf(op.dilations), &AnyOf(op.pads_begin),
                                &AnyOf(op.pads_end), &AnyOf(op.window)};
    if (OneIn(6)) return Poke(&op.spatial_rank);
    if (OneIn(6)) op.kind = static_cast<npu_pool_kind>(Random(4));
    if (OneIn(2)) return Poke(AnyOf(numbers));
    *(OneIn(2) ? &op.data : &op.out) = AnyTensor();
  }
  void operator()(npu_elementwise& op) const { op.out = AnyTensor(); }
  void operator()(npu_reduce& op) const {
    if (OneIn(4)) op.kind = static_cast<npu_reduce_kind>(Random(5));
    if (OneIn(2)) return Poke(&op.axes);
    *(OneIn(2) ? &op.data : &op.out) = AnyTensor();
  }
  void operator()(emulator::Transfer& op) const {
    int64_t* const numbers[] = {&AnyOf(op.data_offset), &AnyOf(op.data_step), &AnyOf(op.out_offset),
                                &AnyOf(op.out_step)};
    if (OneIn(6)) return Poke(&AnyOf(op.permutation));
    if (OneIn(6)) return Poke(&op.fill);
    if (OneIn(2)) return Poke(AnyOf(numbers));
    *(OneIn(2) ? &op.data : &op.out) = AnyTensor();
  }
  void operator()(npu_gather& op) const {
    if (OneIn(3)) return Poke(OneIn(2) ? &op.axis : &op.elementwise);
    npu_tensor* const all[] = {&op.data, &op.indices, &op.out};
    *AnyOf(all) = AnyTensor();
  }
  void operator()(npu_scan& op) const {
    if (OneIn(2)) return Poke(OneIn(2) ? &op.axis : &op.exclusive);
    *(OneIn(2) ? &op.data : &op.out) = AnyTensor();
  }
  void operator()(npu_order& op) const {
    if (OneIn(2)) return Poke(OneIn(2) ? &op.axis : &op.descending);
    *(OneIn(2) ? &op.data : &op.out) = AnyTensor();
  }
  template <typename Op>
  void operator()(Op& op) const {
    std::vector<npu_tensor*> all = {&op.out};
    emulator::ForEachOperand(op, [&all](npu_tensor& tensor) { all.push_back(&tensor); });
    *AnyOf(all) = AnyTensor();
  }

  size_t tensors;
};

void Mutate(emulator::Command* command, size_t tensors) {
  switch (Random(6)) {
    case 0:
      Poke(OneIn(2) ? &command->core : &command->label);
      break;
    case 1:
      if (command->instructions.empty()) break;
      if (OneIn(3)) {
        AnyOf(command->instructions).opcode =
            static_cast<npu_vector_opcode>(Random(NPU_VECTOR_OPCODE_COUNT));
      } else {
        npu_vector_instruction& at = AnyOf(command->instructions);
        int32_t* const numbers[] = {&at.a, &at.b, &at.c};
        if (OneIn(4)) at.immediate = static_cast<double>(AnyNumber());
        Poke(AnyOf(numbers));
      }
      break;
    case 2:
      command->inputs.push_back(static_cast<npu_tensor>(Random(tensors)));
      break;
    case 3:
      if (!command->inputs.empty()) {
        AnyOf(command->inputs) = static_cast<npu_tensor>(Random(tensors + 1)) - 1;
      }
      break;
    default:
      std::visit(PokeOperation{tensors}, command->op);
  }
}

/*! \brief Changes something in a program that its tables can represent. */
void Mutate(emulator::Program* program) {
  std::vector<emulator::Command>& commands = program->commands;
  auto place = [&] { return commands.begin() + static_cast<ptrdiff_t>(Random(commands.size())); };
  switch (Random(12)) {
    case 0:
      if (!commands.empty()) std::iter_swap(place(), place());
      break;
    case 1:
      if (!commands.empty()) commands.erase(place());
      break;
    case 2:
      if (!commands.empty()) commands.insert(place(), emulator::Command(AnyOf(commands)));
      break;
    case 3:
      Poke(&AnyOf(program->tensors).desc);
      break;
    case 4: {
      emulator::Tensor& tensor = AnyOf(program->tensors);
      if (OneIn(3))
        tensor.place.memory = static_cast<emulator::Memory>(Random(5));
      else if (OneIn(2))
        Poke(OneIn(4) ? &tensor.packed_bytes : &tensor.place.offset);
      else
        tensor.place.index = static_cast<uint32_t>(Random(4));
      break;
    }
    case 5:
      AnyOf(program->tensors) = emulator::Tensor(AnyOf(program->tensors));
      break;
    case 6:
      if (!program->states.empty() && OneIn(4)) {
        emulator::StateMemory& state = AnyOf(program->states);
        (OneIn(2) ? state.input : state.output) = static_cast<uint32_t>(Random(5));
        break;
      }
      Poke(&AnyOf(OneIn(2) ? program->inputs : program->outputs));
      break;
    case 7: {
      std::vector<emulator::Desc>& descs = OneIn(2) ? program->inputs : program->outputs;
      if (descs.size() > 1 && OneIn(2))
        descs.pop_back();
      else
        descs.emplace_back(AnyOf(descs));
      break;
    }
    case 8:
      if (!program->symbols.empty()) Poke(&AnyOf(program->symbols).bound);
      break;
    case 9:
      Poke(OneIn(3) ? &program->arena_lower_bound : &program->arena_bytes);
      break;
    default:
      if (!commands.empty()) Mutate(&AnyOf(commands), program->tensors.size());
  }
}

/*! \brief Rewrites a program with some changes; leaves bytes that are not a program unchanged. */
void MutateProgram(std::string* bytes) {
  emulator::Buffer memory;
  emulator::Program program;
  try {
    program = Read(*bytes, &memory);
  } catch (const emulator::Error&) {
    return;
  }
  for (size_t changes = 1 + Random(3); changes > 0; --changes) {
    if (!program.tensors.empty() && !program.inputs.empty() && !program.outputs.empty()) {
      Mutate(&program);
    }
  }
  emulator::Buffer changed = emulator::Serialize(program, [&](uint8_t* data) {
    std::memcpy(data, program.constants, program.constant_bytes);
  });
  bytes->assign(reinterpret_cast<const char*>(changed.data()), changed.size());
}

std::string MutatedArtifact(const std::vector<Parts>& originals) {
  Parts parts = AnyOf(originals);
  if (OneIn(2)) parts.ports.clear();
  for (size_t changes = 1 + Random(2); changes > 0; --changes) {
    switch (Random(11)) {
      case 0:
        MutateText(OneIn(2) ? &parts.manifest : OneIn(2) ? &parts.graph : &parts.ports);
        break;
      case 1:
        MutateJson(&parts.manifest);
        break;
      case 2:
      case 3:
        MutateJson(&parts.graph);
        break;
      case 4:
      case 5:
        MutateTables(&parts.program);
        break;
      case 6:
        // Parts that do not belong together.
        (OneIn(2) ? parts.graph : parts.manifest) = AnyOf(originals).graph;
        break;
      case 7:
        MutateJson(&parts.ports);
        break;
      default:
        MutateProgram(&parts.program);
    }
  }
  const bool is_bundle = OneIn(4);
  std::string bytes = is_bundle ? BundleOf(parts) : parts.Bytes();
  if (OneIn(10)) {
    MutateBytes(&bytes, 8, 32 + (is_bundle ? 9 : 3) * 24);
    if (OneIn(8)) bytes.resize(Random(bytes.size()));
    SealArtifact(&bytes);
  }
  return bytes;
}

// ---- Runs ----

/*! \brief Tensors between guard bytes that must not change. */
struct Guarded {
  static constexpr size_t kGuard = 512;
  static constexpr char kUntouched = 0x5A;

  void AllocData(DLTensor* tensor) {
    size_t size = ffi::GetDataSize(*tensor);
    auto* memory = static_cast<char*>(::operator new(size + 2 * kGuard, std::align_val_t(64)));
    std::memset(memory, kUntouched, size + 2 * kGuard);
    std::memset(memory + kGuard, 1, size);
    tensor->data = memory + kGuard;
  }
  void FreeData(DLTensor* tensor) {
    auto* memory = static_cast<char*>(tensor->data) - kGuard;
    size_t size = ffi::GetDataSize(*tensor);
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory[i] == kUntouched && memory[kGuard + size + i] == kUntouched) continue;
      Fail("memory beside an argument was written");
      break;
    }
    ::operator delete(memory, std::align_val_t(64));
  }
};

/*! \brief Whether `body` succeeds. If it fails, the error must be one for users. */
template <typename Body>
bool Attempt(const Body& body) {
  try {
    body();
    return true;
  } catch (const ffi::Error& error) {
    const std::string kind(error.kind());
    const std::string message(error.message());
    if (kind == "InternalError" || message.empty() || message != npu::Readable(message, true)) {
      Fail(kind + ": " + npu::Readable(message));
    }
    return false;
  }
}

/*! \brief Whether a program takes little time and memory; others are not run. */
bool IsSmall(const std::string& bytes) {
  constexpr uint64_t kMost = 1 << 20;
  emulator::Buffer memory;
  try {
    const emulator::Program program = Read(bytes, &memory);
    if (program.machine.pace > 0 || program.machine.threads > 2) return false;
    emulator::Accesses accesses(program);
    emulator::Timeline timeline(program, accesses);
    const auto& counters = timeline.counters();
    uint64_t work = counters.scratchpad_bytes + program.arena_bytes + counters.dram_bytes_read +
                    counters.dram_bytes_written + counters.scratchpad_bytes_read +
                    counters.scratchpad_bytes_written + counters.matrix_operations +
                    counters.busy_cycles[emulator::kEngineVector] *
                        static_cast<uint64_t>(program.machine.vector_lanes);
    return work < kMost;
  } catch (const emulator::Error&) {
    return true;  // The runtime must report it.
  }
}

/*! \brief The arguments that a graph requires; none if they would be large. */
std::vector<ffi::Any> ArgumentsFor(const npu::Signature& signature, int64_t n) {
  constexpr int64_t kMost = 1 << 16;
  std::vector<ffi::Any> tensors;
  for (const npu::Argument& argument : signature.arguments()) {
    if (!argument.is_tensor) {
      tensors.emplace_back(nullptr);
      continue;
    }
    std::vector<int64_t> shape;
    int64_t count = 1;
    for (const npu::ExpectedDim& dim : argument.dims) {
      if (dim.factor > kMost) return {};
      shape.push_back(dim.symbol < 0 ? dim.factor : dim.factor * n);
      count *= shape.back();
      if (count > kMost) return {};
    }
    tensors.emplace_back(
        ffi::Tensor::FromNDAlloc(Guarded(), ffi::Shape(shape), argument.dtype, {kDLCPU, 0}));
  }
  return tensors;
}

struct Counts {
  size_t refused = 0, loaded = 0, ran = 0;
};

void Try(const ffi::Module& module, const npu::Signature& original, Counts* counts) {
  std::string program, graph, symbol;
  bool is_read = Attempt([&] {
    symbol = std::string(module->GetFunction("get_symbol").value()().cast<ffi::String>());
    graph = std::string(module->InspectSource(""));
    module->GetFunction("sizes").value()();
    module->GetFunction("manifest").value()();
    const auto whole = module->GetFunction("save_to_bytes").value()().cast<ffi::Bytes>();
    auto* data = reinterpret_cast<const uint8_t*>(whole.data());
    program = std::string(npu::ReadArtifacts(data, whole.size()).at(0).program.at(0));
  });
  if (!is_read) {
    ++counts->refused;
    return;
  }
  if (!IsSmall(program)) return;
  bool is_program = Attempt([&] {
    module->GetFunction("describe").value()();
    module->GetFunction("counters").value()();
  });
  ++(is_program ? counts->loaded : counts->refused);
  const npu::Signature changed(symbol, graph);
  for (const npu::Signature* signature : {&original, &changed}) {
    std::vector<ffi::Any> arguments = ArgumentsFor(*signature, 1 + static_cast<int64_t>(Random(3)));
    if (arguments.empty()) continue;
    std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
    ffi::Any result;
    bool has_run = Attempt([&] {
      ffi::Function function = module->GetFunction(symbol).value();
      function.CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
    });
    if (has_run) ++counts->ran;
  }
}

/*! \brief Loads, describes and calls each region. */
void Try(const std::string& bytes, const ffi::Function& load, const npu::Signature& original,
         Counts* counts) {
  ffi::Array<ffi::Module> modules;
  if (!Attempt([&] { modules = load(ffi::Bytes(bytes)).cast<ffi::Array<ffi::Module>>(); })) {
    ++counts->refused;
  }
  for (const ffi::Module& module : modules) Try(module, original, counts);
}

}  // namespace

int main(int count, char** arguments) {
  const long long mutations = count > 1 ? std::stoll(arguments[1]) : 3000;
  const long long seed = count > 2 ? std::stoll(arguments[2]) : 1;
  const ffi::Function load = ffi::Function::GetGlobalRequired(BACKEND_NAME ".runtime.load_regions");
  const std::vector<Parts> originals = {Whole(Images("1000000")), Whole(Images("3000")),
                                        Whole(Rows()), Whole(Integers("1000000")),
                                        Whole(Integers("1500"))};
  std::vector<npu::Signature> signatures;
  for (const Parts& parts : originals) {
    signatures.emplace_back("f", parts.graph);
    Counts counts;
    Try(parts.Bytes(), load, signatures.back(), &counts);
    Try(BundleOf(parts), load, signatures.back(), &counts);
    if (counts.ran != 6) Fail("an artifact or a bundle that is right does not run");
  }
  Counts counts;
  for (long long i = 0; i < mutations && failures < 10; ++i) {
    generator.seed(static_cast<uint64_t>(seed * 1000003 + i));
    const int before = failures;
    Try(MutatedArtifact(originals), load, AnyOf(signatures), &counts);
    if (failures != before) {
      std::fprintf(stderr, "at mutation %lld of the seed %lld\n", i, seed);
    }
  }
  std::printf("%lld mutations: %zu refused, %zu loaded, %zu calls; %d failures\n", mutations,
              counts.refused, counts.loaded, counts.ran, failures);
  const auto some = static_cast<size_t>(mutations / 20);
  if (counts.refused < some || counts.loaded < some || counts.ran < some) {
    Fail("hardly anything was refused, or hardly anything ran");
  }
  return failures == 0 ? 0 : 1;
}
