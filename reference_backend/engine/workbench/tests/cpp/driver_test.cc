// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_test.cc
 * \brief Tests the driver's contract through its C API alone. It applies to any implementation,
 * except for messages, the number of devices and the sizes of arenas.
 */
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "check.h"
#include "emulator/counters.h"
#include "npu_driver.h"

// Counts all allocations of the process. Not inlined, because compilers check that pairs match.
static std::atomic<uint64_t> allocations{0};

[[gnu::noinline]] static void* Allocate(size_t size, size_t alignment) {
  ++allocations;
  return std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
}

[[gnu::noinline]] static void* Check(void* data) {
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

[[gnu::noinline]] static void Free(void* data) { std::free(data); }

void* operator new(size_t size) { return Check(Allocate(size, alignof(std::max_align_t))); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Allocate(size, alignof(std::max_align_t));
}
void* operator new(size_t size, std::align_val_t alignment) {
  return Check(Allocate(size, static_cast<size_t>(alignment)));
}
void operator delete(void* data) noexcept { Free(data); }
void operator delete(void* data, size_t) noexcept { Free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { Free(data); }
void operator delete(void* data, std::align_val_t) noexcept { Free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { Free(data); }

namespace {

using npu::emulator::kEngineCount;
using npu::emulator::RunCounters;

const npu_build_api& build = *npu_driver_build(NPU_DRIVER_API_VERSION);
const npu_run_api& run = *npu_driver_run(NPU_DRIVER_API_VERSION);
using Floats = std::vector<float>;

/*! \brief Memory with the alignment that the driver requires of programs. */
template <typename T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <typename Other>
  Aligned(const Aligned<Other>&) {}
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* data, size_t) { ::operator delete(data, std::align_val_t(64)); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};

using Bytes = std::vector<uint8_t, Aligned<uint8_t>>;
using Shape = std::vector<int64_t>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/*! \brief A dimension, fixed or symbolic. */
struct Dim : npu_dim {
  Dim(int64_t size) : npu_dim{size, -1} {}
  Dim(int64_t factor, int32_t symbol) : npu_dim{factor, symbol} {}
};

using Dims = std::vector<Dim>;

npu_tensor_desc Desc(const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
  npu_tensor_desc desc = {};
  desc.dtype = dtype;
  desc.rank = static_cast<int32_t>(dims.size());
  for (size_t i = 0; i < dims.size() && i < NPU_MAX_RANK; ++i) desc.dims[i] = dims[i];
  return desc;
}

/*! \brief A vector program under construction. */
struct Vector {
  std::vector<npu_vector_instruction> instructions;
  std::vector<npu_tensor> inputs;
  npu_vector_program program = {};

  explicit Vector(const std::vector<npu_tensor>& inputs = {}) : inputs(inputs) {}
  int32_t Load(int32_t input) { return Op(NPU_VECTOR_LOAD, input); }
  int32_t Constant(float value) {
    instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, value});
    return static_cast<int32_t>(instructions.size()) - 1;
  }
  int32_t Op(npu_vector_opcode opcode, int32_t a = 0, int32_t b = 0, int32_t c = 0) {
    instructions.push_back({opcode, a, b, c, 0});
    return static_cast<int32_t>(instructions.size()) - 1;
  }
  const npu_vector_program* get() {
    program.size = sizeof(program);
    program.instructions = instructions.data();
    program.instruction_count = static_cast<int32_t>(instructions.size());
    program.inputs = inputs.data();
    program.input_count = static_cast<int32_t>(inputs.size());
    return &program;
  }
};

/*! \brief input 0 `opcode` input 1, for these tensors. */
Vector Binary(npu_vector_opcode opcode, npu_tensor a, npu_tensor b) {
  Vector vector({a, b});
  int32_t left = vector.Load(0);
  int32_t right = vector.Load(1);
  vector.Op(opcode, left, right);
  return vector;
}

/*! \brief opcode(input 0). */
Vector Unary(npu_vector_opcode opcode, npu_tensor a) {
  Vector vector({a});
  vector.Op(opcode, vector.Load(0));
  return vector;
}

/*! \brief max(accumulator + bias, 0). */
Vector BiasRelu(npu_tensor bias) {
  Vector vector({-1, bias});
  int32_t accumulator = vector.Load(0);
  int32_t sum = vector.Op(NPU_VECTOR_ADD, accumulator, vector.Load(1));
  vector.Op(NPU_VECTOR_MAXIMUM, sum, vector.Constant(0));
  return vector;
}

npu_convolution Convolution(npu_tensor data, npu_tensor weight, npu_tensor out, int32_t spatial) {
  npu_convolution op = {};
  op.data = data;
  op.weight = weight;
  op.out = out;
  op.spatial_rank = spatial;
  op.groups = 1;
  for (int i = 0; i < NPU_MAX_SPATIAL; ++i) op.strides[i] = op.dilations[i] = 1;
  return op;
}

npu_pool Pool(npu_tensor data, npu_tensor out, npu_pool_kind kind, int32_t spatial,
              int64_t window) {
  npu_pool op = {};
  op.data = data;
  op.out = out;
  op.kind = kind;
  op.spatial_rank = spatial;
  for (int i = 0; i < NPU_MAX_SPATIAL; ++i) {
    op.window[i] = window;
    op.strides[i] = op.dilations[i] = 1;
  }
  return op;
}

npu_copy Copy(npu_tensor data, npu_tensor out) {
  npu_copy op = {};
  op.data = data;
  op.out = out;
  for (int i = 0; i < NPU_MAX_RANK; ++i) {
    op.permutation[i] = i;
    op.data_step[i] = op.out_step[i] = 1;
  }
  return op;
}

/*! \brief A builder whose calls must succeed, until `Failing` says otherwise. */
class Net {
 public:
  explicit Net(const std::vector<npu_option>& options = {}) {
    Ok(build.create(options.data(), options.size(), &builder_));
  }
  ~Net() { build.destroy(builder_); }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  int32_t Symbol(const char* name, int64_t bound = 256) {
    int32_t symbol = -1;
    Ok(build.add_symbol(builder_, name, bound, &symbol));
    return symbol;
  }
  npu_tensor Input(const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    npu_tensor_desc desc = Desc(dims, dtype);
    npu_tensor tensor = -1;
    Ok(build.add_input(builder_, &desc, &tensor));
    return tensor;
  }
  npu_tensor Constant(const Dims& dims, const Floats& data) {
    npu_tensor_desc desc = Desc(dims);
    npu_tensor tensor = -1;
    // The builder does not copy it.
    const Floats& kept = constants_.emplace_back(data);
    Ok(build.add_constant(builder_, &desc, kept.data(), kept.size() * sizeof(float), &tensor));
    return tensor;
  }
  npu_tensor Tensor(const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    npu_tensor_desc desc = Desc(dims, dtype);
    npu_tensor tensor = -1;
    Ok(build.add_tensor(builder_, &desc, &tensor));
    return tensor;
  }
  npu_tensor View(npu_tensor data, const Dims& dims) {
    npu_tensor_desc desc = Desc(dims);
    npu_tensor tensor = -1;
    Ok(build.add_view(builder_, data, &desc, &tensor));
    return tensor;
  }
  npu_tensor MatMul(npu_tensor a, npu_tensor b, const Dims& dims, bool transpose_a = false,
                    bool transpose_b = false, const npu_vector_program* epilogue = nullptr) {
    npu_tensor out = Tensor(dims);
    Add(npu_matmul{0, a, b, out, transpose_a, transpose_b, epilogue, 0, 0, 0, 0, -1, -1});
    return out;
  }
  npu_tensor Elementwise(Vector vector, const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    npu_tensor out = Tensor(dims, dtype);
    Add(npu_elementwise{0, out, vector.get()});
    return out;
  }
  npu_tensor Reduce(npu_tensor data, npu_reduce_kind kind, uint32_t axes, const Dims& dims,
                    const npu_vector_program* epilogue = nullptr, npu_dtype dtype = NPU_FLOAT32) {
    npu_tensor out = Tensor(dims, dtype);
    Add(npu_reduce{0, data, out, kind, axes, epilogue});
    return out;
  }
  template <typename Op>
  static const Op* Sized(Op* op) {
    op->size = sizeof(Op);
    return op;
  }
#define NPU_ADD(name, reads) \
  void Add(npu_##name op) { Ok(build.add_##name(builder_, Sized(&op))); }
  NPU_OPERATIONS(NPU_ADD, )
  NPU_ADD(update, )
#undef NPU_ADD
  void Output(npu_tensor tensor) { Ok(build.mark_output(builder_, tensor)); }
  Bytes Finish() {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Ok(build.finish(builder_, &bytes, &size));
    return bytes == nullptr ? Bytes() : Bytes(bytes, bytes + size);
  }

  /*! \brief Lets calls fail from here on; see status and error. */
  void Failing() { failing_ = true; }
  npu_status status() const { return status_; }
  std::string error() const { return build.error(builder_); }
  npu_builder* get() const { return builder_; }

 private:
  void Ok(npu_status status) {
    status_ = status;
    if (status != NPU_OK && !failing_) check::Fail(__FILE__, __LINE__, build.error(builder_));
  }

  npu_builder* builder_ = nullptr;
  std::deque<Floats> constants_;
  npu_status status_ = NPU_OK;
  bool failing_ = false;
};

template <typename T>
npu_dtype DtypeOf() {
  if (std::is_same_v<T, float>) return NPU_FLOAT32;
  if (std::is_same_v<T, int8_t>) return NPU_INT8;
  if (std::is_same_v<T, uint8_t>) return NPU_UINT8;
  if (std::is_same_v<T, int16_t>) return NPU_INT16;
  if (std::is_same_v<T, int32_t>) return NPU_INT32;
  if (std::is_same_v<T, int64_t>) return NPU_INT64;
  return NPU_FLOAT16;
}

npu_buffer BufferOf(const void* data, const Shape& shape, npu_dtype dtype) {
  npu_buffer buffer = {};
  buffer.size = sizeof(buffer);
  buffer.dtype = dtype;
  buffer.rank = static_cast<int32_t>(shape.size());
  buffer.dims = shape.data();
  buffer.data = const_cast<void*>(data);
  return buffer;
}

npu_status BindInput(npu_request* request, size_t index, const void* data, const Shape& shape,
                     npu_dtype dtype = NPU_FLOAT32) {
  npu_buffer buffer = BufferOf(data, shape, dtype);
  return run.bind_input(request, index, &buffer);
}

npu_status BindOutput(npu_request* request, size_t index, void* data, const Shape& shape,
                      npu_dtype dtype = NPU_FLOAT32) {
  npu_buffer buffer = BufferOf(data, shape, dtype);
  return run.bind_output(request, index, &buffer);
}

RunCounters CountersOf(const npu_request* request) {
  RunCounters counters = {};
  static_assert(sizeof(counters) == npu::emulator::kCounterCount * sizeof(uint64_t), "");
  CHECK_EQ(run.read_counters(request, &counters.submissions), NPU_OK);
  return counters;
}

/*! \brief A loaded program with a request. */
class Machine {
 public:
  explicit Machine(const Bytes& bytes, int32_t device = 0) : bytes_(bytes) {
    Ok(run.open(device, &device_));
    Ok(run.load(device_, bytes_.data(), bytes_.size(), &program_));
    Ok(run.create_request(program_, &request_));
  }
  ~Machine() {
    run.destroy_request(request_);
    run.unload(program_);
    run.close(device_);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  template <typename T>
  void Input(size_t index, const Shape& shape, const std::vector<T>& data,
             npu_dtype dtype = DtypeOf<T>()) {
    if (index >= inputs_.size()) inputs_.resize(index + 1);
    auto* bytes = reinterpret_cast<const uint8_t*>(data.data());
    inputs_[index].assign(bytes, bytes + data.size() * sizeof(T));
    Ok(BindInput(request_, index, inputs_[index].data(), shape, dtype));
  }
  template <typename T>
  void Output(size_t index, const Shape& shape, std::vector<T>* data,
              npu_dtype dtype = DtypeOf<T>()) {
    size_t count = 1;
    for (int64_t size : shape) count *= static_cast<size_t>(size);
    data->assign(count, T(77));
    Ok(BindOutput(request_, index, data->data(), shape, dtype));
  }
  void Run() { Ok(run.execute(request_)); }
  RunCounters Counters() const { return CountersOf(request_); }
  npu_program* program() const { return program_; }
  npu_request* request() const { return request_; }
  npu_device* device() const { return device_; }

 private:
  void Ok(npu_status status) {
    if (status != NPU_OK) check::Fail(__FILE__, __LINE__, run.error());
  }

  Bytes bytes_;
  npu_device* device_ = nullptr;
  npu_program* program_ = nullptr;
  npu_request* request_ = nullptr;
  std::vector<Bytes> inputs_;
};

/*! \brief An input of `Execute`. */
struct Argument {
  Shape shape;
  Floats data;
};

/*! \brief Runs a program with one output once. */
Floats Execute(const Bytes& bytes, const std::vector<Argument>& inputs, const Shape& shape) {
  Machine machine(bytes);
  Floats out;
  for (size_t i = 0; i < inputs.size(); ++i) machine.Input(i, inputs[i].shape, inputs[i].data);
  machine.Output(0, shape, &out);
  machine.Run();
  return out;
}

std::string ToString(const Floats& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size() && i < 16; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  }
  return text + (values.size() > 16 ? ", ...]" : "]");
}

void CheckValues(int line, const Floats& got, const Floats& want) {
  bool same = got.size() == want.size();
  for (size_t i = 0; same && i < got.size(); ++i) same = check::Near(got[i], want[i]);
  if (!same) check::Fail(__FILE__, line, ToString(got) + " instead of " + ToString(want));
}

#define CHECK_VALUES(got, ...) CheckValues(__LINE__, got, __VA_ARGS__)

void CheckContains(int line, const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) {
    check::Fail(__FILE__, line, "\"" + text + "\" does not say \"" + part + "\"");
  }
}

#define CHECK_CONTAINS(text, part) CheckContains(__LINE__, text, part)

/*! \brief 0, 1, 2, ... */
Floats Range(size_t count, float first = 0) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

/*! \brief Small pseudo-random numbers, the same in every run. */
Floats Noise(size_t count, uint32_t seed) {
  Floats values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(seed >> 20) - 2048) / 1024.0f;
  }
  return values;
}

}  // namespace

// ---- Operations ----

TEST(MatmulMultipliesMatrices) {
  for (bool constant : {false, true}) {
    for (bool transpose_a : {false, true}) {
      for (bool transpose_b : {false, true}) {
        Net net;
        npu_tensor a = net.Input(transpose_a ? Dims{3, 2} : Dims{2, 3});
        Dims dims = transpose_b ? Dims{2, 3} : Dims{3, 2};
        Floats values = transpose_b ? Floats{1, 3, 5, 2, 4, 6} : Floats{1, 2, 3, 4, 5, 6};
        npu_tensor b = constant ? net.Constant(dims, values) : net.Input(dims);
        net.Output(net.MatMul(a, b, {2, 2}, transpose_a, transpose_b));
        Argument left = {{2, 3}, {1, 2, 3, 4, 5, 6}};
        if (transpose_a) left = {{3, 2}, {1, 4, 2, 5, 3, 6}};
        std::vector<Argument> arguments = {left};
        if (!constant) arguments.push_back({transpose_b ? Shape{2, 3} : Shape{3, 2}, values});
        CHECK_VALUES(Execute(net.Finish(), arguments, {2, 2}), {22, 28, 49, 64});
      }
    }
  }
}

TEST(MatmulBroadcastsLeadingDimensionsAndAppliesItsEpilogue) {
  Net net;
  npu_tensor a = net.Input({2, 1, 1, 2});
  npu_tensor b = net.Input({3, 2, 2});
  Vector epilogue = BiasRelu(net.Constant({2}, {-10, 0.5}));
  net.Output(net.MatMul(a, b, {2, 3, 1, 2}, false, false, epilogue.get()));
  Floats out =
      Execute(net.Finish(), {{{2, 1, 1, 2}, {1, 2, -1, 1}}, {{3, 2, 2}, Range(12)}}, {2, 3, 1, 2});
  CHECK_VALUES(out, {0, 7.5, 6, 19.5, 18, 31.5, 0, 2.5, 0, 2.5, 0, 2.5});
}

TEST(EpiloguesNeedNoInputs) {
  Net net;
  npu_tensor a = net.Input({1, 2});
  Vector twice;
  int32_t accumulator = twice.Load(0);
  twice.Op(NPU_VECTOR_ADD, accumulator, accumulator);
  net.Output(net.MatMul(a, net.Constant({2, 1}, {3, 4}), {1, 1}, false, false, twice.get()));
  net.Output(net.Reduce(a, NPU_REDUCE_SUM, 0b11, {}, twice.get()));
  Machine machine(net.Finish());
  machine.Input(0, {1, 2}, Floats{1, 2});
  Floats out[2];
  machine.Output(0, {1, 1}, &out[0]);
  machine.Output(1, {}, &out[1]);
  machine.Run();
  CHECK_VALUES(out[0], {22});
  CHECK_VALUES(out[1], {6});
}

TEST(MatmulOfAConstantEqualsMatmulOfAnInput) {
  const int64_t m = 5, k = 37, n = 70;
  Floats a = Noise(m * k, 1), b = Noise(k * n, 2);
  Net inputs, constant;
  npu_tensor left = inputs.Input({m, k});
  inputs.Output(inputs.MatMul(left, inputs.Input({k, n}), {m, n}));
  left = constant.Input({m, k});
  constant.Output(constant.MatMul(left, constant.Constant({k, n}, b), {m, n}));
  Floats want(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) want[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  CHECK_VALUES(Execute(inputs.Finish(), {{{m, k}, a}, {{k, n}, b}}, {m, n}), want);
  CHECK_VALUES(Execute(constant.Finish(), {{{m, k}, a}}, {m, n}), want);
}

TEST(ConvolutionSlidesAWindow) {
  for (bool constant : {false, true}) {
    Net net;
    npu_tensor data = net.Input({1, 1, 3, 4});
    Floats values = {1, 10, 100, 1000};
    npu_tensor weight = constant ? net.Constant({1, 1, 2, 2}, values) : net.Input({1, 1, 2, 2});
    Vector epilogue = BiasRelu(net.Constant({1, 1, 1}, {-100}));
    npu_convolution op = Convolution(data, weight, net.Tensor({1, 1, 2, 3}), 2);
    op.strides[0] = 2;
    op.dilations[1] = 2;
    op.pads_begin[0] = 1;
    op.pads_end[1] = 1;
    op.epilogue = epilogue.get();
    net.Add(op);
    net.Output(op.out);
    std::vector<Argument> arguments = {{{1, 1, 3, 4}, Range(12, 1)}};
    if (!constant) arguments.push_back({{1, 1, 2, 2}, values});
    CHECK_VALUES(Execute(net.Finish(), arguments, {1, 1, 2, 3}),
                 {3000, 4100, 200, 11875, 12986, 1007});
  }
}

TEST(TilesOfAConvolutionEachHaveTheirChannels) {
  // With a bias for each channel, and something added to each element.
  constexpr int64_t kChannels = 64, kInputs = 192, kSide = 14, kSize = kSide * kSide;
  const Shape shape = {1, kChannels, kSide, kSide};
  Floats weights, biases, want;
  for (int64_t i = 0; i < kChannels * kInputs; ++i) weights.push_back(static_cast<float>(i % 7));
  for (int64_t i = 0; i < kChannels; ++i) biases.push_back(static_cast<float>(i * i % 50 - 99));
  Floats data, added;
  for (int64_t i = 0; i < kInputs * kSize; ++i) data.push_back(static_cast<float>(i % 11 - 5));
  for (int64_t i = 0; i < kChannels * kSize; ++i) added.push_back(static_cast<float>(i % 13));
  for (int64_t c = 0; c < kChannels; ++c) {
    for (int64_t i = 0; i < kSize; ++i) {
      float sum = biases[c] + added[c * kSize + i];
      for (int64_t k = 0; k < kInputs; ++k) sum += weights[c * kInputs + k] * data[k * kSize + i];
      want.push_back(std::max(sum, 0.0f));
    }
  }
  for (const char* bytes : {"250000", "1000000", "4194304"}) {
    const std::vector<npu_option> options = {{"scratchpad_bytes", bytes}};
    Net net(options);
    npu_tensor x = net.Input({1, kInputs, kSide, kSide});
    npu_tensor residual = net.Input({1, kChannels, kSide, kSide});
    npu_convolution op = Convolution(x, net.Constant({kChannels, kInputs, 1, 1}, weights),
                                     net.Tensor({1, kChannels, kSide, kSide}), 2);
    Vector epilogue({-1, net.Constant({kChannels, 1, 1}, biases), residual});
    int32_t accumulator = epilogue.Load(0);
    int32_t sum = epilogue.Op(NPU_VECTOR_ADD, accumulator, epilogue.Load(1));
    sum = epilogue.Op(NPU_VECTOR_ADD, sum, epilogue.Load(2));
    epilogue.Op(NPU_VECTOR_MAXIMUM, sum, epilogue.Constant(0));
    op.epilogue = epilogue.get();
    net.Add(op);
    net.Output(op.out);
    CHECK_VALUES(Execute(net.Finish(), {{{1, kInputs, kSide, kSide}, data}, {shape, added}}, shape),
                 want);
  }
}

TEST(ConvolutionHasGroupsAndOneToThreeSpatialDimensions) {
  Net net;
  npu_tensor data = net.Input({2, 2, 3});
  npu_convolution op =
      Convolution(data, net.Constant({4, 1, 3}, {1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 2, 0}),
                  net.Tensor({2, 4, 1}), 1);
  op.groups = 2;
  net.Add(op);
  npu_convolution cube =
      Convolution(net.View(op.out, {1, 1, 2, 2, 2}), net.Constant({1, 1, 2, 1, 2}, {1, 2, 3, 4}),
                  net.Tensor({1, 1, 1, 2, 1}), 3);
  net.Add(cube);
  net.Output(op.out);
  net.Output(cube.out);
  Machine machine(net.Finish());
  machine.Input(0, {2, 2, 3}, Range(12));
  Floats out, second;
  machine.Output(0, {2, 4, 1}, &out);
  machine.Output(1, {1, 1, 1, 2, 1}, &second);
  machine.Run();
  CHECK_VALUES(out, {3, 0, 5, 8, 21, 6, 11, 20});
  CHECK_VALUES(second, {3 + 0 + 63 + 24, 5 + 16 + 33 + 80});
}

TEST(PoolsKeepMaximaAndMeans) {
  Net net;
  npu_tensor data = net.Input({1, 1, 3, 3});
  for (npu_pool_kind kind : {NPU_POOL_MAX, NPU_POOL_AVERAGE, NPU_POOL_AVERAGE_INCLUDE_PAD}) {
    npu_pool op = Pool(data, net.Tensor({1, 1, 2, 2}), kind, 2, 2);
    for (int i = 0; i < 2; ++i) {
      op.strides[i] = 2;
      op.pads_begin[i] = 1;
    }
    net.Add(op);
    net.Output(op.out);
  }
  npu_pool adaptive = Pool(data, net.Tensor({1, 1, 2, 1}), NPU_POOL_AVERAGE_ADAPTIVE, 2, 0);
  net.Add(adaptive);
  net.Output(adaptive.out);
  // Ceil mode: the second window has only one column.
  npu_pool ceil = Pool(data, net.Tensor({1, 1, 2, 2}), NPU_POOL_MAX, 2, 2);
  ceil.strides[0] = ceil.strides[1] = 2;
  net.Add(ceil);
  net.Output(ceil.out);
  Machine machine(net.Finish());
  machine.Input(0, {1, 1, 3, 3}, Floats{1, 2, 3, 4, 5, 6, 7, 8, 9});
  Floats out[5];
  for (size_t i = 0; i < 5; ++i) machine.Output(i, {1, 1, 2, i == 3 ? 1 : 2}, &out[i]);
  machine.Run();
  CHECK_VALUES(out[0], {1, 3, 7, 9});
  CHECK_VALUES(out[1], {1, 2.5, 5.5, 7});
  CHECK_VALUES(out[2], {0.25, 1.25, 2.75, 7});
  CHECK_VALUES(out[3], {3.5, 6.5});
  CHECK_VALUES(out[4], {5, 6, 8, 9});
}

TEST(VectorProgramsKnowEveryOpcode) {
  struct Case {
    npu_vector_opcode opcode;
    std::function<float(float, float)> function;
  };
  const std::vector<Case> unary = {
      {NPU_VECTOR_EXP, [](float a, float) { return std::exp(a); }},
      {NPU_VECTOR_LOG, [](float a, float) { return std::log(a); }},
      {NPU_VECTOR_SQRT, [](float a, float) { return std::sqrt(a); }},
      {NPU_VECTOR_TANH, [](float a, float) { return std::tanh(a); }},
      {NPU_VECTOR_ERF, [](float a, float) { return std::erf(a); }},
      {NPU_VECTOR_SIGMOID, [](float a, float) { return 1 / (1 + std::exp(-a)); }},
      {NPU_VECTOR_ABSOLUTE, [](float a, float) { return std::fabs(a); }},
      {NPU_VECTOR_SIN, [](float a, float) { return std::sin(a); }},
      {NPU_VECTOR_COS, [](float a, float) { return std::cos(a); }},
      {NPU_VECTOR_TAN, [](float a, float) { return std::tan(a); }},
      {NPU_VECTOR_ATAN, [](float a, float) { return std::atan(a); }},
      {NPU_VECTOR_FLOOR, [](float a, float) { return std::floor(a); }},
      {NPU_VECTOR_TRUNCATE, [](float a, float) { return std::trunc(a); }},
      {NPU_VECTOR_ROUND_EVEN, [](float a, float) { return std::nearbyint(a); }},
      {NPU_VECTOR_ROUND_AWAY, [](float a, float) { return std::round(a); }},
  };
  const std::vector<Case> binary = {
      {NPU_VECTOR_ADD, [](float a, float b) { return a + b; }},
      {NPU_VECTOR_SUBTRACT, [](float a, float b) { return a - b; }},
      {NPU_VECTOR_MULTIPLY, [](float a, float b) { return a * b; }},
      {NPU_VECTOR_DIVIDE, [](float a, float b) { return a / b; }},
      {NPU_VECTOR_MAXIMUM,
       [](float a, float b) { return a != a || b != b ? kNaN
                                     : a > b          ? a
                                                      : b; }},
      {NPU_VECTOR_MINIMUM,
       [](float a, float b) { return a != a || b != b ? kNaN
                                     : a < b          ? a
                                                      : b; }},
      {NPU_VECTOR_FLOOR_DIVIDE, [](float a, float b) { return std::floor(a / b); }},
      {NPU_VECTOR_REMAINDER, [](float a, float b) { return std::fmod(a, b); }},
      {NPU_VECTOR_LESS, [](float a, float b) { return a < b ? 1.0f : 0.0f; }},
      {NPU_VECTOR_EQUAL, [](float a, float b) { return a == b ? 1.0f : 0.0f; }},
      {NPU_VECTOR_POWER, [](float a, float b) { return std::pow(a, b); }},
  };
  // Plus LOAD, CONSTANT, SELECT, and RESCALE, which is for integers.
  CHECK_EQ(unary.size() + binary.size() + 4, static_cast<size_t>(NPU_VECTOR_OPCODE_COUNT));
  const Floats left = {-2.5, -1, -0.5, 0, 0.5, 1.5, 2.5, 3, 7, kNaN};
  const Floats right = {1, -1, 2, 3, -4, 0.25, 2.5, 8, kNaN, 1};
  Net net;
  npu_tensor a = net.Input({10});
  npu_tensor b = net.Input({10});
  for (const Case& c : unary) net.Output(net.Elementwise(Unary(c.opcode, a), {10}));
  for (const Case& c : binary) net.Output(net.Elementwise(Binary(c.opcode, a, b), {10}));
  Vector select({a, b});
  int32_t load = select.Load(0);
  int32_t other = select.Load(1);
  int32_t condition = select.Op(NPU_VECTOR_LESS, load, select.Constant(0));
  select.Op(NPU_VECTOR_SELECT, condition, other, load);
  net.Output(net.Elementwise(select, {10}));
  Machine machine(net.Finish());
  machine.Input(0, {10}, left);
  machine.Input(1, {10}, right);
  std::vector<Floats> out(unary.size() + binary.size() + 1);
  for (size_t i = 0; i < out.size(); ++i) machine.Output(i, {10}, &out[i]);
  machine.Run();
  for (size_t i = 0; i < out.size(); ++i) {
    Floats want(10);
    for (size_t k = 0; k < 10; ++k) {
      want[k] = left[k] < 0 ? right[k] : left[k];
      if (i < unary.size()) want[k] = unary[i].function(left[k], 0);
      size_t j = i - unary.size();
      if (j < binary.size()) want[k] = binary[j].function(left[k], right[k]);
    }
    CHECK_VALUES(out[i], want);
  }
}

// A single float operand, also a loaded one, makes the arithmetic float.
TEST(VectorProgramsOfIntegersAreExact) {
  constexpr int64_t kOdd = (int64_t{1} << 53) + 1;
  Net net;
  npu_tensor a = net.Input({3}, NPU_INT64);
  npu_tensor b = net.Input({3}, NPU_INT32);
  npu_tensor one = net.Input({});
  net.Output(net.Elementwise(Binary(NPU_VECTOR_ADD, a, b), {3}, NPU_INT64));
  net.Output(net.Elementwise(Binary(NPU_VECTOR_MULTIPLY, a, b), {3}, NPU_INT32));
  net.Output(net.Elementwise(Binary(NPU_VECTOR_MULTIPLY, a, one), {3}, NPU_INT64));
  Vector plus({a});
  plus.Op(NPU_VECTOR_ADD, plus.Load(0), plus.Constant(3));
  Vector epilogue({-1, b});
  epilogue.Op(NPU_VECTOR_DIVIDE, epilogue.Load(0), epilogue.Load(1));
  net.Output(net.Reduce(net.Elementwise(plus, {3}, NPU_INT64), NPU_REDUCE_SUM, 1, {1}, nullptr,
                        NPU_INT64));
  net.Output(net.Reduce(a, NPU_REDUCE_PRODUCT, 0, {3}, epilogue.get(), NPU_INT64));
  Machine machine(net.Finish());
  machine.Input(0, {3}, std::vector<int64_t>{kOdd, -7, INT64_MAX});
  machine.Input(1, {3}, std::vector<int32_t>{2, 0, -2});
  machine.Input(2, {}, Floats{1});
  std::vector<int64_t> sum, real, total, quotients;
  std::vector<int32_t> low;
  machine.Output(0, {3}, &sum);
  machine.Output(1, {3}, &low);
  machine.Output(2, {3}, &real);
  machine.Output(3, {1}, &total);
  machine.Output(4, {3}, &quotients);
  machine.Run();
  CHECK((sum == std::vector<int64_t>{kOdd + 2, -7, INT64_MAX - 2}));
  CHECK((low == std::vector<int32_t>{2, 0, 2}));
  CHECK((real == std::vector<int64_t>{kOdd - 1, -7, INT64_MAX}));
  CHECK_EQ(total[0], INT64_MIN + kOdd - 7 + 8);
  CHECK((quotients == std::vector<int64_t>{kOdd / 2, 0, INT64_MAX / -2}));
}

// (a - 1) * (b - 2) + bias, times 3 / 2^2 with halves up, plus 10, in int8.
TEST(MatmulOfIntegersIsRequantized) {
  Net net;
  npu_tensor a = net.Input({2, 3}, NPU_UINT8);
  npu_tensor b = net.Input({3, 2}, NPU_INT8);
  Vector vector({-1, net.Input({2}, NPU_INT32)});
  int32_t sum = vector.Op(NPU_VECTOR_ADD, vector.Load(0), vector.Load(1));
  int32_t scaled = vector.Op(NPU_VECTOR_RESCALE, sum, vector.Constant(3), vector.Constant(2));
  int32_t moved = vector.Op(NPU_VECTOR_ADD, scaled, vector.Constant(10));
  int32_t least = vector.Op(NPU_VECTOR_MAXIMUM, moved, vector.Constant(-128));
  vector.Op(NPU_VECTOR_MINIMUM, least, vector.Constant(127));
  npu_tensor out = net.Tensor({2, 2}, NPU_INT8);
  net.Add(npu_matmul{0, a, b, out, 0, 0, vector.get(), 1, 2, 0, 0, -1, -1});
  net.Output(out);
  npu_tensor plain = net.Tensor({2, 2}, NPU_INT32);
  net.Add(npu_matmul{0, a, b, plain, 0, 0, nullptr, 1, 2, 0, 0, -1, -1});
  net.Output(plain);
  Machine machine(net.Finish());
  machine.Input(0, {2, 3}, std::vector<uint8_t>{1, 2, 3, 255, 0, 1});
  machine.Input(1, {3, 2}, std::vector<int8_t>{3, -2, 2, 127, -128, 1});
  machine.Input(2, {2}, std::vector<int32_t>{100, -1});
  std::vector<int8_t> got;
  std::vector<int32_t> sums;
  machine.Output(0, {2, 2}, &got);
  machine.Output(1, {2, 2}, &sums);
  machine.Run();
  CHECK((sums == std::vector<int32_t>{-260, 123, 254, -1141}));
  // -160 * 3 / 4 + 10; 122 * 3 / 4 = 91.5; 354 and -1142 are too large for int8.
  CHECK((got == std::vector<int8_t>{-110, 102, 127, -128}));
}

// Padding is the zero point, which contributes nothing.
TEST(ConvolutionOfIntegersPadsWithTheZeroPoint) {
  Net net;
  npu_tensor data = net.Input({1, 1, 3}, NPU_INT8);
  npu_tensor weight = net.Input({1, 1, 3}, NPU_INT8);
  npu_tensor out = net.Tensor({1, 1, 3}, NPU_INT32);
  npu_convolution op = Convolution(data, weight, out, 1);
  op.pads_begin[0] = op.pads_end[0] = 1;
  op.data_zero_point = -10;
  op.weight_zero_point = 1;
  net.Add(op);
  net.Output(out);
  // The struct of version 1, without zero points.
  npu_tensor older = net.Tensor({1, 1, 3}, NPU_INT32);
  op.out = older;
  op.size = offsetof(npu_convolution, data_zero_point);
  CHECK_EQ(build.add_convolution(net.get(), &op), NPU_OK);
  net.Output(older);
  Machine machine(net.Finish());
  machine.Input(0, {1, 1, 3}, std::vector<int8_t>{-10, 0, 10});
  machine.Input(1, {1, 1, 3}, std::vector<int8_t>{1, 2, 4});
  std::vector<int32_t> got[2];
  machine.Output(0, {1, 1, 3}, &got[0]);
  machine.Output(1, {1, 1, 3}, &got[1]);
  machine.Run();
  // Of 0, 10, 20 by 0, 1, 3.
  CHECK((got[0] == std::vector<int32_t>{30, 70, 20}));
  CHECK((got[1] == std::vector<int32_t>{-20, 30, 20}));
}

TEST(ProductsOfInt16HaveWideSums) {
  Net net;
  npu_tensor a = net.Input({1, 3}, NPU_INT16);
  npu_tensor b = net.Input({3, 1}, NPU_INT8);
  npu_tensor out = net.Tensor({1, 1}, NPU_INT64);
  net.Add(npu_matmul{0, a, b, out, 0, 0, nullptr, -32768, 0, 0, 0, -1, -1});
  net.Output(out);
  Machine machine(net.Finish());
  machine.Input(0, {1, 3}, std::vector<int16_t>{32767, 32767, -32768});
  machine.Input(1, {3, 1}, std::vector<int8_t>{127, 127, 127});
  std::vector<int64_t> got;
  machine.Output(0, {1, 1}, &got);
  machine.Run();
  CHECK((got == std::vector<int64_t>{2 * 65535 * 127}));
}

TEST(BothOperandsMayBeInt16) {
  for (bool constant : {false, true}) {
    Net net;
    const std::vector<int16_t> right = {32767, -32768, -32768};
    npu_tensor a = net.Input({1, 3}, NPU_INT16);
    npu_tensor b = -1;
    npu_tensor_desc desc = Desc({3, 1}, NPU_INT16);
    if (constant) CHECK_EQ(build.add_constant(net.get(), &desc, right.data(), 6, &b), NPU_OK);
    if (!constant) b = net.Input({3, 1}, NPU_INT16);
    npu_tensor out = net.Tensor({1, 1}, NPU_INT64);
    net.Add(npu_matmul{0, a, b, out, 0, 0, nullptr, -32768, 32767, 0, 0, -1, -1});
    net.Output(out);
    Machine machine(net.Finish());
    machine.Input(0, {1, 3}, std::vector<int16_t>{32767, 32767, -32768});
    if (!constant) machine.Input(1, {3, 1}, right);
    std::vector<int64_t> got;
    machine.Output(0, {1, 1}, &got);
    machine.Run();
    CHECK((got == std::vector<int64_t>{int64_t{-65535} * 65535}));
  }
}

TEST(LookupsReadATable) {
  for (npu_dtype dtype : {NPU_INT8, NPU_UINT8}) {
    Net net;
    npu_tensor out = net.Tensor({4});
    npu_tensor data = net.Input({4}, dtype);
    net.Add(npu_lookup{0, data, net.Constant({256}, Range(256)), out});
    net.Output(out);
    Machine machine(net.Finish());
    machine.Input(0, {4}, std::vector<uint8_t>{0, 1, 127, 128}, dtype);
    Floats got;
    machine.Output(0, {4}, &got);
    machine.Run();
    if (dtype == NPU_UINT8) CHECK_VALUES(got, {0, 1, 127, 128});
    if (dtype == NPU_INT8) CHECK_VALUES(got, {128, 129, 255, 0});
  }
}

TEST(ElementwiseBroadcastsAsNumPyDoes) {
  Net net;
  npu_tensor a = net.Input({2, 1, 3});
  npu_tensor b = net.Input({2, 1});
  npu_tensor scalar = net.Constant({}, {100});
  npu_tensor sum = net.Elementwise(Binary(NPU_VECTOR_ADD, a, b), {2, 2, 3});
  net.Output(net.Elementwise(Binary(NPU_VECTOR_ADD, sum, scalar), {2, 2, 3}));
  CHECK_VALUES(Execute(net.Finish(), {{{2, 1, 3}, Range(6)}, {{2, 1}, {10, 20}}}, {2, 2, 3}),
               {110, 111, 112, 120, 121, 122, 113, 114, 115, 123, 124, 125});
}

TEST(LoadsAndStoresConvertBetweenTypes) {
  Net net;
  npu_tensor a = net.Input({6});
  const npu_dtype types[] = {NPU_FLOAT16, NPU_INT8, NPU_UINT8, NPU_INT32, NPU_INT64, NPU_BOOL};
  for (npu_dtype type : types) {
    npu_tensor cast = net.Elementwise(Unary(NPU_VECTOR_FLOOR, a), {6}, type);
    net.Output(cast);
    Vector back({cast});
    back.Load(0);
    net.Output(net.Elementwise(back, {6}));
  }
  Machine machine(net.Finish());
  machine.Input(0, {6}, Floats{-300, -1, 0, 1, 2, 300});
  std::vector<uint16_t> f16;
  std::vector<int8_t> i8;
  std::vector<uint8_t> u8;
  std::vector<int32_t> i32;
  std::vector<int64_t> i64;
  std::vector<uint8_t> b;
  machine.Output(0, {6}, &f16);
  machine.Output(2, {6}, &i8);
  machine.Output(4, {6}, &u8);
  machine.Output(6, {6}, &i32);
  machine.Output(8, {6}, &i64);
  machine.Output(10, {6}, &b, NPU_BOOL);
  Floats back[6];
  for (size_t i = 0; i < 6; ++i) machine.Output(2 * i + 1, {6}, &back[i]);
  machine.Run();
  CHECK((f16 == std::vector<uint16_t>{0xdcb0, 0xbc00, 0, 0x3c00, 0x4000, 0x5cb0}));
  CHECK((i8 == std::vector<int8_t>{-128, -1, 0, 1, 2, 127}));
  CHECK((u8 == std::vector<uint8_t>{0, 0, 0, 1, 2, 255}));
  CHECK((i32 == std::vector<int32_t>{-300, -1, 0, 1, 2, 300}));
  CHECK((i64 == std::vector<int64_t>{-300, -1, 0, 1, 2, 300}));
  CHECK((b == std::vector<uint8_t>{1, 1, 0, 1, 1, 1}));
  CHECK_VALUES(back[0], {-300, -1, 0, 1, 2, 300});
  CHECK_VALUES(back[1], {-128, -1, 0, 1, 2, 127});
  CHECK_VALUES(back[2], {0, 0, 0, 1, 2, 255});
  CHECK_VALUES(back[3], {-300, -1, 0, 1, 2, 300});
  CHECK_VALUES(back[4], {-300, -1, 0, 1, 2, 300});
  CHECK_VALUES(back[5], {1, 1, 0, 1, 1, 1});
}

TEST(ReduceCombinesAlongAxes) {
  Net net;
  npu_tensor data = net.Input({2, 3, 2});
  Vector epilogue = BiasRelu(net.Constant({3}, {0, -4, -8}));
  net.Output(net.Reduce(data, NPU_REDUCE_SUM, 0b101, {3}, epilogue.get()));
  net.Output(net.Reduce(data, NPU_REDUCE_MEAN, 0b010, {2, 1, 2}));
  net.Output(net.Reduce(data, NPU_REDUCE_MAX, 0b110, {2}));
  net.Output(net.Reduce(data, NPU_REDUCE_MIN, 0b111, {}));
  net.Output(net.Reduce(data, NPU_REDUCE_PRODUCT, 0b100, {2, 3}));
  Machine machine(net.Finish());
  machine.Input(0, {2, 3, 2}, Floats{1, -2, 3, 4, 5, 0, -7, 2, 1, 1, 3, 3});
  Floats out[5];
  machine.Output(0, {3}, &out[0]);
  machine.Output(1, {2, 1, 2}, &out[1]);
  machine.Output(2, {2}, &out[2]);
  machine.Output(3, {}, &out[3]);
  machine.Output(4, {2, 3}, &out[4]);
  machine.Run();
  CHECK_VALUES(out[0], {0, 5, 3});
  CHECK_VALUES(out[1], {3, 2.0f / 3, -1, 2});
  CHECK_VALUES(out[2], {5, 3});
  CHECK_VALUES(out[3], {-7});
  CHECK_VALUES(out[4], {-2, 12, 0, -14, 1, 9});
}

TEST(CopiesPermuteConcatenateAndPad) {
  Net net;
  npu_tensor a = net.Input({2, 3});
  npu_tensor b = net.Input({1, 2});
  npu_tensor permuted = net.Tensor({3, 2});
  npu_copy op = Copy(a, permuted);
  op.permutation[0] = 1;
  op.permutation[1] = 0;
  net.Add(op);
  npu_tensor joined = net.Tensor({4, 2});
  op = Copy(b, joined);
  op.out_offset[0] = 3;
  net.Add(op);
  net.Add(Copy(permuted, joined));
  npu_tensor padded = net.Tensor({2, 5});
  op = Copy(b, padded);
  op.out_offset[0] = 1;
  op.out_offset[1] = 1;
  op.fill = 1;
  op.fill_value = -0.5;
  net.Add(op);
  op.fill = 0;
  op.out_offset[1] = 3;
  net.Add(op);
  net.Output(joined);
  net.Output(padded);
  Machine machine(net.Finish());
  machine.Input(0, {2, 3}, Range(6));
  machine.Input(1, {1, 2}, Floats{8, 9});
  Floats out[2];
  machine.Output(0, {4, 2}, &out[0]);
  machine.Output(1, {2, 5}, &out[1]);
  machine.Run();
  CHECK_VALUES(out[0], {0, 3, 1, 4, 2, 5, 8, 9});
  CHECK_VALUES(out[1], {-0.5, -0.5, -0.5, -0.5, -0.5, -0.5, 8, 9, 8, 9});
}

TEST(CopiesSliceFlipAndSpread) {
  Net net;
  npu_tensor a = net.Input({3, 5});
  npu_tensor ints = net.Input({2}, NPU_INT64);
  // a[::-2, 1:4:2]
  npu_tensor slice = net.Tensor({2, 2});
  npu_copy op = Copy(a, slice);
  op.data_offset[0] = 2;
  op.data_step[0] = -2;
  op.data_offset[1] = 1;
  op.data_step[1] = 2;
  net.Add(op);
  // a[:, ::-1], transposed.
  npu_tensor flipped = net.Tensor({5, 3});
  op = Copy(a, flipped);
  op.permutation[0] = 1;
  op.permutation[1] = 0;
  op.data_offset[1] = 4;
  op.data_step[1] = -1;
  net.Add(op);
  // Two halves whose sizes follow from the rest of the output.
  npu_tensor halves = net.Tensor({4});
  op = Copy(net.View(a, {15}), halves);
  op.out_offset[0] = 2;
  op.data_offset[0] = 9;
  net.Add(op);
  op.data_offset[0] = 1;
  op.data_step[0] = -1;
  op.out_offset[0] = 0;
  net.Add(op);
  npu_tensor spread = net.Tensor({6}, NPU_INT64);
  op = Copy(ints, spread);
  op.out_offset[0] = 1;
  op.out_step[0] = 3;
  op.fill = 1;
  op.fill_value = 9007199254740991;
  net.Add(op);
  for (npu_tensor out : {slice, flipped, halves, spread}) net.Output(out);
  Machine machine(net.Finish());
  machine.Input(0, {3, 5}, Range(15));
  machine.Input(1, {2}, std::vector<int64_t>{-5, INT64_MAX});
  Floats out[3];
  machine.Output(0, {2, 2}, &out[0]);
  machine.Output(1, {5, 3}, &out[1]);
  machine.Output(2, {4}, &out[2]);
  std::vector<int64_t> numbers;
  machine.Output(3, {6}, &numbers);
  machine.Run();
  CHECK_VALUES(out[0], {11, 13, 1, 3});
  CHECK_VALUES(out[1], {4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11, 0, 5, 10});
  CHECK_VALUES(out[2], {1, 0, 9, 10});
  int64_t rest = 9007199254740991;
  CHECK((numbers == std::vector<int64_t>{rest, -5, rest, rest, INT64_MAX, rest}));
}

TEST(UpdatesReplaceSlicesInOneBufferOrTwo) {
  Net net;
  npu_tensor data = net.Input({2, 4, 2});
  npu_tensor value = net.Input({2, 3, 2});
  npu_tensor rows = net.Input({3}, NPU_INT64);
  npu_tensor out = net.Tensor({2, 4, 2});
  net.Add(npu_update{0, data, value, rows, out, 1});
  Vector halved({out});
  const int32_t loaded = halved.Load(0);
  halved.Op(NPU_VECTOR_MULTIPLY, loaded, halved.Constant(.5f));
  npu_tensor half = net.Elementwise(halved, {2, 4, 2});
  for (npu_tensor result : {half, out}) net.Output(result);
  int32_t shared = 0;
  CHECK_EQ(build.add_state(net.get(), value, out, &shared), NPU_OK);
  CHECK_EQ(shared, 0);
  CHECK_EQ(build.add_state(net.get(), data, out, &shared), NPU_OK);
  CHECK_EQ(shared, 1);
  Machine machine(net.Finish());
  Floats halves, after, state = Range(16);
  machine.Input(1, {2, 3, 2}, Floats{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31});
  // The last of equal positions counts, and one outside of the axis does not.
  machine.Input(2, {3}, std::vector<int64_t>{3, INT64_MAX, 3});
  machine.Output(0, {2, 4, 2}, &halves);
  const Floats wanted = {0, 1, 2, 3, 4, 5, 24, 25, 8, 9, 10, 11, 12, 13, 30, 31};
  // Two buffers, again and again: the input is as it was.
  machine.Input(0, {2, 4, 2}, state);
  machine.Output(1, {2, 4, 2}, &after);
  uint64_t written[3] = {};
  for (uint64_t& bytes : written) {
    machine.Run();
    CHECK_VALUES(after, wanted);
    bytes = machine.Counters().dram_bytes_written;
  }
  CHECK_EQ(written[2] - written[1], written[1] - written[0]);
  CHECK_EQ(BindInput(machine.request(), 0, state.data(), {2, 4, 2}), NPU_OK);
  machine.Run();
  CHECK_VALUES(state, Range(16));
  // One buffer: nothing but the slices is written of it.
  uint64_t before = machine.Counters().dram_bytes_written;
  CHECK_EQ(BindOutput(machine.request(), 1, state.data(), {2, 4, 2}), NPU_OK);
  machine.Run();
  CHECK_VALUES(state, wanted);
  CHECK_VALUES(halves, {0, .5, 1, 1.5, 2, 2.5, 12, 12.5, 4, 4.5, 5, 5.5, 6, 6.5, 15, 15.5});
  CHECK_EQ(machine.Counters().dram_bytes_written - before,
           written[0] - sizeof(float) * state.size());
  // What the program does not update has memory of its own.
  CHECK_EQ(BindOutput(machine.request(), 0, state.data(), {2, 4, 2}), NPU_OK);
  CHECK_EQ(run.execute(machine.request()), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Output 0 has the buffer of input 0, but");
}

TEST(StatesMayBeInTheMemoryOfTheirDevice) {
  Net net;
  npu_tensor data = net.Input({4}), value = net.Input({1}), rows = net.Input({1}, NPU_INT64);
  npu_tensor out = net.Tensor({4});
  net.Add(npu_update{0, data, value, rows, out, 0});
  net.Output(out);
  int32_t shared = 0;
  CHECK_EQ(build.add_state(net.get(), data, out, &shared), NPU_OK);
  const Bytes bytes = net.Finish();
  Machine machine(bytes), other(bytes, 1);
  machine.Input(1, {1}, Floats{7});
  machine.Input(2, {1}, std::vector<int64_t>{2});
  constexpr size_t kBytes = 4 * sizeof(float);
  npu_state* states[2] = {};
  const Floats before = Range(4);
  for (npu_state*& state : states) {
    CHECK_EQ(run.allocate_state(machine.device(), kBytes, &state), NPU_OK);
    CHECK_EQ(run.write_state(state, before.data(), kBytes), NPU_OK);
  }
  const auto read = [](npu_state* state) {
    Floats numbers(4);
    CHECK_EQ(run.read_state(state, numbers.data(), kBytes), NPU_OK);
    return numbers;
  };
  const Shape shape = {4};
  npu_buffer buffer = BufferOf(nullptr, shape, NPU_FLOAT32);
  // Two memories, then one.
  buffer.state = states[0];
  CHECK_EQ(run.bind_input(machine.request(), 0, &buffer), NPU_OK);
  CHECK_EQ(run.bind_input(other.request(), 0, &buffer), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "on another device");
  for (int i : {1, 0}) {
    buffer.state = states[i];
    CHECK_EQ(run.bind_output(machine.request(), 0, &buffer), NPU_OK);
    CHECK_VALUES(read(states[0]), before);
    machine.Run();
    CHECK_VALUES(read(states[i]), {0, 1, 7, 3});
  }
  CHECK_EQ(run.write_state(states[0], before.data(), kBytes - 1), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "A state has 16 bytes, not 15.");
  for (npu_state* state : states) run.free_state(state);
  CHECK_EQ(run.allocate_state(machine.device(), kBytes - 1, &buffer.state), NPU_OK);
  CHECK_EQ(run.bind_output(machine.request(), 0, &buffer), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "A state has 15 bytes, but the program needs 16.");
  run.free_state(buffer.state);
}

TEST(GathersTakeSlicesOrElements) {
  Net net;
  npu_tensor data = net.Input({2, 3, 2});
  npu_tensor rows = net.Input({2, 2}, NPU_INT64);
  npu_tensor one = net.Input({}, NPU_INT32);
  npu_tensor places = net.Input({2, 1, 2}, NPU_INT32);
  npu_tensor slices = net.Tensor({2, 2, 2, 2});
  net.Add(npu_gather{0, data, rows, slices, 1, 0});
  npu_tensor slice = net.Tensor({2, 3});
  net.Add(npu_gather{0, data, one, slice, 2, 0});
  npu_tensor elements = net.Tensor({2, 1, 2});
  net.Add(npu_gather{0, data, places, elements, 1, 1});
  npu_tensor along_last = net.Tensor({2, 1, 2});
  net.Add(npu_gather{0, data, places, along_last, 2, 1});
  for (npu_tensor out : {slices, slice, elements, along_last}) net.Output(out);
  Machine machine(net.Finish());
  machine.Input(0, {2, 3, 2}, Range(12));
  // Indices outside of the data mean its ends.
  machine.Input(1, {2, 2}, std::vector<int64_t>{2, INT64_MIN, 1, INT64_MAX});
  machine.Input(2, {}, std::vector<int32_t>{1});
  machine.Input(3, {2, 1, 2}, std::vector<int32_t>{2, 0, -1, 1});
  Floats out[4];
  machine.Output(0, {2, 2, 2, 2}, &out[0]);
  machine.Output(1, {2, 3}, &out[1]);
  machine.Output(2, {2, 1, 2}, &out[2]);
  machine.Output(3, {2, 1, 2}, &out[3]);
  machine.Run();
  CHECK_VALUES(out[0], {4, 5, 0, 1, 2, 3, 4, 5, 10, 11, 6, 7, 8, 9, 10, 11});
  CHECK_VALUES(out[1], {1, 3, 5, 7, 9, 11});
  CHECK_VALUES(out[2], {4, 1, 6, 9});
  CHECK_VALUES(out[3], {1, 0, 6, 7});
}

TEST(ScansCollectAlongAnAxis) {
  Net net;
  npu_tensor data = net.Input({2, 3});
  npu_tensor ints = net.Input({3}, NPU_INT32);
  npu_tensor flags = net.Input({4}, NPU_BOOL);
  npu_tensor sums = net.Tensor({2, 3});
  net.Add(npu_scan{0, data, sums, NPU_SCAN_SUM, 1, 0});
  npu_tensor products = net.Tensor({2, 3});
  net.Add(npu_scan{0, data, products, NPU_SCAN_PRODUCT, 0, 1});
  npu_tensor wrapped = net.Tensor({3}, NPU_INT32);
  net.Add(npu_scan{0, ints, wrapped, NPU_SCAN_SUM, 0, 0});
  npu_tensor wide = net.Tensor({3}, NPU_INT64);
  net.Add(npu_scan{0, ints, wide, NPU_SCAN_SUM, 0, 0});
  npu_tensor counted = net.Tensor({4}, NPU_INT32);
  net.Add(npu_scan{0, flags, counted, NPU_SCAN_SUM, 0, 1});
  for (npu_tensor out : {sums, products, wrapped, wide, counted}) net.Output(out);
  Machine machine(net.Finish());
  machine.Input(0, {2, 3}, Floats{1, 2, 3, 4, 5, 6});
  machine.Input(1, {3}, std::vector<int32_t>{INT32_MAX, 1, 1});
  machine.Input(2, {4}, std::vector<uint8_t>{1, 0, 2, 1}, NPU_BOOL);
  Floats out[2];
  std::vector<int32_t> narrow[2];
  std::vector<int64_t> numbers;
  machine.Output(0, {2, 3}, &out[0]);
  machine.Output(1, {2, 3}, &out[1]);
  machine.Output(2, {3}, &narrow[0]);
  machine.Output(3, {3}, &numbers);
  machine.Output(4, {4}, &narrow[1]);
  machine.Run();
  CHECK_VALUES(out[0], {1, 3, 6, 4, 9, 15});
  CHECK_VALUES(out[1], {1, 1, 1, 1, 2, 3});
  CHECK((narrow[0] == std::vector<int32_t>{INT32_MAX, INT32_MIN, INT32_MIN + 1}));
  int64_t most = INT32_MAX;
  CHECK((numbers == std::vector<int64_t>{most, most + 1, most + 2}));
  CHECK((narrow[1] == std::vector<int32_t>{0, 1, 1, 2}));
}

TEST(OrderIsStableAndNanIsTheLargest) {
  Net net;
  npu_tensor data = net.Input({2, 6});
  npu_tensor ints = net.Input({4}, NPU_INT64);
  auto add = [&](npu_tensor from, const Dims& dims, int32_t axis, int32_t descending) {
    npu_tensor out = net.Tensor(dims, NPU_INT32);
    net.Add(npu_order{0, from, out, axis, descending});
    net.Output(out);
  };
  add(data, {2, 6}, 1, 0);
  add(data, {2, 6}, 1, 1);
  add(data, {2, 1}, 1, 1);
  add(data, {1, 6}, 0, 0);
  add(ints, {3}, 0, 0);
  add(ints, {1}, 0, 1);
  Machine machine(net.Finish());
  machine.Input(0, {2, 6}, Floats{2, -0.0f, NAN, 0, -HUGE_VALF, 2, 1, NAN, -NAN, HUGE_VALF, 1, -1});
  int64_t large = int64_t{1} << 60;
  machine.Input(1, {4}, std::vector<int64_t>{large + 1, large, INT64_MIN, large + 2});
  const std::vector<int32_t> want[] = {{4, 1, 3, 0, 5, 2, 5, 0, 4, 3, 1, 2},
                                       {2, 0, 5, 1, 3, 4, 1, 2, 3, 0, 4, 5},
                                       {2, 1},
                                       {1, 0, 0, 0, 0, 1},
                                       {2, 1, 0},
                                       {3}};
  const Shape shapes[] = {{2, 6}, {2, 6}, {2, 1}, {1, 6}, {3}, {1}};
  std::vector<int32_t> out[6];
  for (size_t i = 0; i < 6; ++i) machine.Output(i, shapes[i], &out[i]);
  machine.Run();
  for (size_t i = 0; i < 6; ++i) CHECK(out[i] == want[i]);
}

// ---- Programs ----

TEST(OutputsMayBeInputsConstantsViewsAndRepeated) {
  Net net;
  npu_tensor a = net.Input({2, 3});
  npu_tensor constant = net.Constant({2}, {5, 6});
  npu_tensor result = net.Elementwise(Unary(NPU_VECTOR_FLOOR, a), {2, 3});
  npu_tensor view = net.View(result, {6});
  // The view comes first: the result is written through its memory.
  for (npu_tensor output : {view, result, a, constant, net.View(a, {3, 2}), view, a,
                            net.View(net.View(constant, {2, 1}), {1, 2})}) {
    net.Output(output);
  }
  net.Elementwise(Binary(NPU_VECTOR_ADD, result, view = net.View(view, {2, 3})), {2, 3});
  Machine machine(net.Finish());
  machine.Input(0, {2, 3}, Floats{0.5, 1.5, 2.5, 3.5, 4.5, 5.5});
  Floats out[8];
  const Shape shapes[] = {{6}, {2, 3}, {2, 3}, {2}, {3, 2}, {6}, {2, 3}, {1, 2}};
  for (size_t i = 0; i < 8; ++i) machine.Output(i, shapes[i], &out[i]);
  machine.Run();
  for (size_t i : {0, 1, 5}) CHECK_VALUES(out[i], {0, 1, 2, 3, 4, 5});
  for (size_t i : {2, 4, 6}) CHECK_VALUES(out[i], {0.5, 1.5, 2.5, 3.5, 4.5, 5.5});
  for (size_t i : {3, 7}) CHECK_VALUES(out[i], {5, 6});
}

TEST(ConstantsThatAreWeightsAndMoreKeepTheirValues) {
  Net net;
  npu_tensor a = net.Input({1, 2});
  npu_tensor weight = net.Constant({2, 2}, {1, 2, 3, 4});
  net.Constant({2}, {0, 0});  // unused
  npu_tensor view = net.Constant({4}, {1, 0, 0, 1});
  net.Output(net.MatMul(a, weight, {1, 2}));
  net.Output(net.MatMul(a, weight, {1, 2}, false, true));
  net.Output(weight);
  net.Output(net.MatMul(a, net.View(view, {2, 2}), {1, 2}));
  Machine machine(net.Finish());
  machine.Input(0, {1, 2}, Floats{1, 10});
  Floats out[4];
  for (size_t i = 0; i < 4; ++i) machine.Output(i, {i == 2 ? 2 : 1, 2}, &out[i]);
  machine.Run();
  CHECK_VALUES(out[0], {31, 42});
  CHECK_VALUES(out[1], {21, 43});
  CHECK_VALUES(out[2], {1, 2, 3, 4});
  CHECK_VALUES(out[3], {1, 10});
}

TEST(SymbolsTakeTheirValuesFromInputs) {
  Net net;
  int32_t n = net.Symbol("n");
  int32_t m = net.Symbol("m");
  npu_tensor a = net.Input({Dim(1, n), Dim(2, m)});
  npu_tensor b = net.Input({Dim(2, m), 2});
  npu_tensor product = net.MatMul(a, b, {Dim(1, n), 2});
  npu_tensor sum = net.Elementwise(Binary(NPU_VECTOR_ADD, product, product), {Dim(1, n), 2});
  net.Output(net.View(sum, {2, Dim(1, n)}));
  net.Output(net.Reduce(a, NPU_REDUCE_MEAN, 0b01, {Dim(2, m)}));
  Machine machine(net.Finish());
  struct {
    int64_t n, m;
  } sizes[] = {{1, 1}, {3, 2}, {3, 2}, {200, 7}, {1, 1}, {2, 5}};
  for (auto size : sizes) {
    Floats left = Noise(size.n * size.m * 2, 3), right = Noise(size.m * 4, 4), out, mean;
    machine.Input(0, {size.n, 2 * size.m}, left);
    machine.Input(1, {2 * size.m, 2}, right);
    machine.Output(0, {2, size.n}, &out);
    machine.Output(1, {2 * size.m}, &mean);
    machine.Run();
    Floats want(size.n * 2), want_mean(2 * size.m);
    for (int64_t i = 0; i < size.n; ++i) {
      for (int64_t k = 0; k < 2 * size.m; ++k) {
        float value = left[i * 2 * size.m + k];
        want_mean[k] += value / static_cast<float>(size.n);
        for (int64_t j = 0; j < 2; ++j) want[i * 2 + j] += 2 * value * right[k * 2 + j];
      }
    }
    CHECK_VALUES(out, want);
    CHECK_VALUES(mean, want_mean);
  }
}

TEST(ShapesThatDoNotFitAreRefused) {
  Net net;
  int32_t n = net.Symbol("n");
  npu_tensor a = net.Input({Dim(2, n), 3});
  npu_tensor b = net.Input({Dim(1, n), 3});
  net.Output(net.Elementwise(Unary(NPU_VECTOR_EXP, a), {Dim(2, n), 3}));
  net.Output(b);
  Machine machine(net.Finish());
  npu_request* request = machine.request();
  alignas(8) float data[64] = {};
  auto input = [&](size_t index, const Shape& shape, const void* buffer) {
    return BindInput(request, index, buffer, shape);
  };
  auto output = [&](size_t index, const Shape& shape, void* buffer) {
    return BindOutput(request, index, buffer, shape);
  };
  CHECK_EQ(run.wait(request, -1), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "nothing to wait for");
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Input 0 is not bound");
  CHECK_EQ(input(2, {2, 3}, data), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Input 2 does not exist; the program has 2 inputs");
  CHECK_EQ(output(2, {2, 3}, data), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Output 2 does not exist; the program has 2 outputs");
  CHECK_EQ(input(0, {2, 3}, nullptr), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "data of input 0 is null");
  npu_buffer forged = BufferOf(data, {}, NPU_FLOAT32);
  forged.dims = nullptr;
  forged.rank = 2;
  CHECK_EQ(run.bind_input(request, 0, &forged), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "argument dims is null");
  CHECK_EQ(run.bind_input(request, 0, nullptr), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "argument buffer is null");
  for (npu_dtype dtype : {NPU_FLOAT16, NPU_INT64, NPU_BOOL, static_cast<npu_dtype>(99)}) {
    CHECK_EQ(BindInput(request, 0, data, {2, 3}, dtype), NPU_INVALID);
    CHECK_CONTAINS(run.error(), "compiled for float32 [2*n, 3]");
    CHECK_EQ(BindOutput(request, 0, data, {2, 3}, dtype), NPU_INVALID);
    CHECK_CONTAINS(run.error(), "compiled for float32 [2*n, 3]");
  }
  for (int32_t rank : {-1, 9}) {
    forged.rank = rank;
    CHECK_EQ(run.bind_input(request, 0, &forged), NPU_INVALID);
    CHECK_CONTAINS(run.error(), "Input 0 has rank " + std::to_string(rank));
  }
  CHECK_EQ(input(0, {2, 3}, reinterpret_cast<char*>(data) + 2), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "not aligned to its elements");
  for (const Shape& shape : {Shape{2, 4}, {3, 3}, {0, 3}, {-2, 3}, {2}, {2, 3, 1}, {}}) {
    CHECK_EQ(input(0, shape, data), NPU_INVALID);
    CHECK_CONTAINS(run.error(), "compiled for float32 [2*n, 3]");
  }
  CHECK_EQ(input(0, {4, 3}, data), NPU_OK);
  CHECK_EQ(input(1, {1, 3}, data), NPU_OK);
  CHECK_EQ(output(0, {4}, data + 16), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Output 0 has shape [4]");
  CHECK_EQ(output(0, {2, 3}, data + 16), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Output 1 is not bound");
  CHECK_EQ(output(1, {2, 3}, data + 32), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "n is 2 by dimension 0 of input 0, but 1 by dimension 0 of input 1");
  CHECK_EQ(input(1, {2, 3}, data), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "Output 0 has shape [2, 3] instead of [4, 3]");
  CHECK_EQ(output(0, {4, 3}, data + 16), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "call wait before");
  CHECK_EQ(input(0, {4, 3}, data), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "call wait before the next bind");
  CHECK_EQ(run.wait(request, -1), NPU_OK);
  CHECK_EQ(data[16], 1.0f);
  const int64_t huge = int64_t{1} << 50;
  CHECK_EQ(input(0, {2 * huge, 3}, data), NPU_OK);
  CHECK_EQ(input(1, {huge, 3}, data), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(),
                 "Symbol n is 1125899906842624 by dimension 0 of input 0, but the "
                 "program was compiled for at most 256; compile the model with a "
                 "larger symbol_bound.");
  CHECK_EQ(run.wait(request, -1), NPU_INVALID);
}

TEST(NullArgumentsAreRefused) {
  CHECK_EQ(build.create(nullptr, 0, nullptr), NPU_INVALID);
  CHECK_EQ(build.create(nullptr, 1, nullptr), NPU_INVALID);
  CHECK_EQ(build.mark_output(nullptr, 0), NPU_INVALID);
  CHECK_CONTAINS(build.error(nullptr), "builder is null");
  build.destroy(nullptr);
  npu_device* device = nullptr;
  npu_program* program = nullptr;
  npu_request* request = nullptr;
  uint64_t counter = 0;
  CHECK_EQ(run.open(0, nullptr), NPU_INVALID);
  CHECK_EQ(run.load(nullptr, nullptr, 0, &program), NPU_INVALID);
  CHECK_EQ(run.open(0, &device), NPU_OK);
  CHECK_EQ(run.load(device, nullptr, 0, &program), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "argument bytes is null");
  CHECK_EQ(run.create_request(nullptr, &request), NPU_INVALID);
  const char* text = nullptr;
  CHECK_EQ(run.describe(nullptr, &text), NPU_INVALID);
  CHECK_EQ(run.execute(nullptr), NPU_INVALID);
  CHECK_EQ(run.cancel(nullptr), NPU_INVALID);
  CHECK_EQ(run.submit(nullptr), NPU_INVALID);
  CHECK_EQ(run.wait(nullptr, -1), NPU_INVALID);
  CHECK_EQ(run.read_counters(nullptr, &counter), NPU_INVALID);
  run.destroy_request(nullptr);
  run.unload(nullptr);
  run.close(nullptr);
  run.close(device);
}

TEST(BrokenBuildsAreRefusedWithASentence) {
  struct Case {
    npu_status status;
    const char* sentence;
    std::function<void(Net&)> body;
  };
  const std::vector<Case> cases = {
      // Tensors.
      {NPU_DECLINED, "9 dimensions; at most 8",
       [](Net& net) { net.Input({1, 1, 1, 1, 1, 1, 1, 1, 1}); }},
      {NPU_INVALID, "the size -2", [](Net& net) { net.Input({-2}); }},
      {NPU_DECLINED, "tensors without elements", [](Net& net) { net.Tensor({2, 0}); }},
      {NPU_DECLINED, "more than 1099511627776 elements",
       [](Net& net) { net.Tensor({int64_t{1} << 62, int64_t{1} << 62}); }},
      {NPU_INVALID, "names symbol 3, but there are 0", [](Net& net) { net.Input({Dim(1, 3)}); }},
      {NPU_INVALID, "has a symbolic shape",
       [](Net& net) { net.Constant({Dim(1, net.Symbol("n"))}, {1}); }},
      {NPU_INVALID, "needs 16 bytes of data, but 12",
       [](Net& net) { net.Constant({4}, Floats(3)); }},
      {NPU_INVALID, "does not have the same elements",
       [](Net& net) { net.View(net.Input({2, 3}), {5}); }},
      {NPU_DECLINED, "does not have the same elements for all sizes",
       [](Net& net) { net.View(net.Input({Dim(2, net.Symbol("n"))}), {2}); }},
      {NPU_INVALID, "refers to tensor 4, but there are 0", [](Net& net) { net.View(4, {5}); }},
      {NPU_INVALID, "Tensor 3 cannot be an output", [](Net& net) { net.Output(3); }},
      // Order.
      {NPU_INVALID, "is read before it is written",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2});
         net.MatMul(a, net.Tensor({2, 2}), {2, 2});
       }},
      {NPU_INVALID, "is read before it is written",
       [](Net& net) {
         npu_tensor out = net.Tensor({2});
         net.Add(npu_elementwise{0, out, Unary(NPU_VECTOR_EXP, out).get()});
       }},
      {NPU_INVALID, "is written twice",
       [](Net& net) {
         npu_tensor a = net.Input({2});
         npu_tensor out = net.Tensor({2});
         for (int i = 0; i < 2; ++i)
           net.Add(npu_elementwise{0, out, Unary(NPU_VECTOR_EXP, a).get()});
       }},
      {NPU_INVALID, "is an input; only tensors of add_tensor",
       [](Net& net) {
         npu_tensor a = net.Input({2});
         net.Add(npu_elementwise{0, a, Unary(NPU_VECTOR_EXP, a).get()});
       }},
      {NPU_INVALID, "is a view; only tensors of add_tensor",
       [](Net& net) {
         npu_tensor a = net.Input({2});
         net.Add(Copy(a, net.View(net.Tensor({2}), {2})));
       }},
      {NPU_INVALID, "is never written in full",
       [](Net& net) {
         net.Output(net.Tensor({2}));
         net.Finish();
       }},
      {NPU_INVALID, "has no outputs", [](Net& net) { net.Finish(); }},
      {NPU_INVALID, "symbol n, which is in no input's shape",
       [](Net& net) {
         net.Output(
             net.Elementwise(Unary(NPU_VECTOR_EXP, net.Input({1})), {Dim(1, net.Symbol("n"))}));
         net.Finish();
       }},
      {NPU_INVALID, "is finished",
       [](Net& net) {
         net.Output(net.Input({2}));
         net.Finish();
         net.Input({2});
       }},
      // Vector programs.
      {NPU_INVALID, "has no instructions", [](Net& net) { net.Elementwise(Vector(), {2}); }},
      {NPU_INVALID, "opcode 30, which does not exist",
       [](Net& net) {
         net.Elementwise(
             Unary(static_cast<npu_vector_opcode>(NPU_VECTOR_OPCODE_COUNT), net.Input({2})), {2});
       }},
      {NPU_INVALID, "loads input 1, but there are 1",
       [](Net& net) {
         Vector vector({net.Input({2})});
         vector.Load(1);
         net.Elementwise(vector, {2});
       }},
      {NPU_INVALID, "uses value 1, which no earlier instruction defines",
       [](Net& net) {
         Vector vector({net.Input({2})});
         vector.Op(NPU_VECTOR_ADD, vector.Load(0), 1);
         net.Elementwise(vector, {2});
       }},
      {NPU_INVALID, "(float32 [2, 2]), does not broadcast to the output's shape",
       [](Net& net) { net.Elementwise(Unary(NPU_VECTOR_EXP, net.Input({2, 2})), {2, 3}); }},
      {NPU_INVALID, "(float32 [1, 2]), does not broadcast to the output's shape",
       [](Net& net) { net.Elementwise(Unary(NPU_VECTOR_EXP, net.Input({1, 2})), {2}); }},
      {NPU_DECLINED, "reads 17 tensors; at most 16",
       [](Net& net) {
         Vector vector(std::vector<npu_tensor>(17, net.Input({2})));
         vector.Load(0);
         net.Elementwise(vector, {2});
       }},
      {NPU_DECLINED, "instructions; at most 256",
       [](Net& net) {
         Vector vector;
         for (int i = 0; i < 257; ++i) vector.Constant(1);
         net.Elementwise(vector, {2});
       }},
      // Programs of integers.
      {NPU_INVALID,
       "Instruction 1 of elementwise (command 0) is exp, which exists for real numbers",
       [](Net& net) {
         net.Elementwise(Unary(NPU_VECTOR_EXP, net.Input({2}, NPU_INT32)), {2}, NPU_INT8);
       }},
      {NPU_INVALID, "is the constant nan, which is not an integer of 64 bits",
       [](Net& net) {
         Vector vector;
         vector.Constant(kNaN);
         net.Elementwise(vector, {2}, NPU_INT64);
       }},
      {NPU_INVALID, "is the constant 9.22337e+18, which is not an integer of 64 bits",
       [](Net& net) {
         Vector vector;
         vector.Constant(0x1p63f);
         net.Elementwise(vector, {2}, NPU_INT64);
       }},
      {NPU_DECLINED, "a mean is supported of float32 or float16 only",
       [](Net& net) { net.Reduce(net.Input({2, 3}, NPU_INT8), NPU_REDUCE_MEAN, 0b01, {3}); }},
      {NPU_DECLINED, "this mixture is not supported",
       [](Net& net) { net.Reduce(net.Input({2, 3}, NPU_INT8), NPU_REDUCE_SUM, 0b01, {3}); }},
      {NPU_DECLINED, "this mixture is not supported",
       [](Net& net) {
         npu_tensor a = net.Input({2, 3}, NPU_INT8);
         net.Reduce(a, NPU_REDUCE_SUM, 0b01, {3}, BiasRelu(net.Input({3})).get(), NPU_INT8);
       }},
      {NPU_INVALID, "epilogue input",
       [](Net& net) {
         Vector vector({-1, net.Tensor({2})});
         vector.Load(1);
         npu_tensor a = net.Input({2, 2});
         net.MatMul(a, a, {2, 2}, false, false, vector.get());
       }},
      {NPU_INVALID, "An epilogue has no instructions",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2});
         net.MatMul(a, a, {2, 2}, false, false, Vector().get());
       }},
      // Matmul.
      {NPU_INVALID, "at least 2 dimensions",
       [](Net& net) { net.MatMul(net.Input({3}), net.Input({3, 2}), {2}); }},
      {NPU_DECLINED, "(int32 [2, 2]); both must be float32 or float16, or both int8 or uint8",
       [](Net& net) {
         net.MatMul(net.Input({2, 2}, NPU_INT8), net.Input({2, 2}, NPU_INT32), {2, 2});
       }},
      {NPU_DECLINED, "both must be float32 or float16, or",
       [](Net& net) { net.MatMul(net.Input({2, 2}, NPU_INT8), net.Input({2, 2}), {2, 2}); }},
      {NPU_INVALID, "must be int32: it has no epilogue",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2}, NPU_INT8);
         net.MatMul(a, a, {2, 2});
       }},
      {NPU_INVALID, "is 128; it must be -128 to 127",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2}, NPU_INT8);
         net.Add(npu_matmul{0, a, a, net.Tensor({2, 2}, NPU_INT32), 0, 0, nullptr, 0, 128, 0, 0, -1,
                            -1});
       }},
      {NPU_INVALID, "is -1; it must be 0 to 255",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2}, NPU_UINT8);
         net.Add(npu_matmul{0, a, a, net.Tensor({2, 2}, NPU_INT32), 0, 0, nullptr, -1, 0, 0, 0, -1,
                            -1});
       }},
      {NPU_INVALID, "is 1; it must be 0.",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2});
         net.Add(npu_matmul{0, a, a, net.Tensor({2, 2}), 0, 0, nullptr, 1, 0, 0, 0, -1, -1});
       }},
      // Weights of integers.
      {NPU_INVALID, "are 0; they must be 4 or 8.",
       [](Net& net) { net.MatMul(net.Input({2, 4}), net.Input({4, 2}, NPU_INT8), {2, 2}); }},
      {NPU_INVALID, "has no b_bits and no b_block",
       [](Net& net) {
         npu_tensor a = net.Input({2, 2});
         net.Add(npu_matmul{0, a, a, net.Tensor({2, 2}), 0, 0, nullptr, 0, 0, 8, 0, -1, -1});
       }},
      {NPU_DECLINED, "integers that real numbers are multiplied by must be int8 or uint8",
       [](Net& net) {
         npu_tensor b = net.Input({2, 2}, NPU_INT32);
         npu_tensor out = net.Tensor({2, 2});
         net.Add(npu_matmul{0, net.Input({2, 2}), b, out, 0, 0, nullptr, 0, 0, 8, 0, -1, -1});
       }},
      {NPU_INVALID, "is 200; it must be -128 to 127",
       [](Net& net) {
         npu_tensor b = net.Input({2, 2}, NPU_INT8);
         npu_tensor out = net.Tensor({2, 2});
         net.Add(npu_matmul{0, net.Input({2, 2}), b, out, 0, 0, nullptr, 0, 200, 8, 0, -1, -1});
       }},
      {NPU_INVALID, "is 3, and operand b",
       [](Net& net) {
         npu_tensor b = net.Input({4, 2}, NPU_INT8);
         npu_tensor scales = net.Input({1, 2});
         npu_tensor out = net.Tensor({2, 2});
         net.Add(npu_matmul{0, net.Input({2, 4}), b, out, 0, 0, nullptr, 0, 0, 8, 3, scales, -1});
       }},
      {NPU_INVALID, "with one for each of 2 blocks and each column of b",
       [](Net& net) {
         npu_tensor b = net.Input({4, 2}, NPU_INT8);
         npu_tensor scales = net.Input({2, 1});
         npu_tensor out = net.Tensor({2, 2});
         net.Add(npu_matmul{0, net.Input({2, 4}), b, out, 0, 0, nullptr, 0, 0, 8, 2, scales, -1});
       }},
      {NPU_INVALID, "they must be int8, with one for each of 2 blocks",
       [](Net& net) {
         npu_tensor b = net.Input({4, 2}, NPU_INT8);
         npu_tensor scales = net.Input({2, 2});
         npu_tensor zeros = net.Input({2, 2}, NPU_UINT8);
         npu_tensor out = net.Tensor({2, 2});
         net.Add(
             npu_matmul{0, net.Input({2, 4}), b, out, 0, 0, nullptr, 0, 0, 8, 2, scales, zeros});
       }},
      {NPU_INVALID, "is rescale, which exists for integers only",
       [](Net& net) {
         Vector vector({net.Input({2})});
         int32_t value = vector.Load(0);
         vector.Op(NPU_VECTOR_RESCALE, value, value, value);
         net.Elementwise(vector, {2});
       }},
      {NPU_INVALID, "rounds as 6 says, which is not an npu_rounding",
       [](Net& net) {
         Vector vector({net.Input({2}, NPU_INT32)});
         int32_t value = vector.Load(0);
         vector.Op(NPU_VECTOR_RESCALE, value, value, value);
         vector.instructions.back().immediate = 6;
         net.Elementwise(vector, {2}, NPU_INT8);
       }},
      {NPU_DECLINED, "sums up 33026 products of int16; at most 33025 are supported",
       [](Net& net) {
         npu_tensor a = net.Input({1, 33026}, NPU_INT16);
         npu_tensor b = net.Input({33026, 1}, NPU_INT8);
         net.Add(
             npu_matmul{0, a, b, net.Tensor({1, 1}, NPU_INT64), 0, 0, nullptr, 0, 0, 0, 0, -1, -1});
       }},
      // Lookup.
      {NPU_DECLINED, "must be int8 or uint8",
       [](Net& net) {
         net.Add(npu_lookup{0, net.Input({2}, NPU_INT16), net.Input({256}), net.Tensor({2})});
       }},
      {NPU_INVALID, "must have 256 elements of the type of its output",
       [](Net& net) {
         net.Add(npu_lookup{0, net.Input({2}, NPU_INT8), net.Input({255}), net.Tensor({2})});
       }},
      {NPU_INVALID, "must have 256 elements of the type of its output",
       [](Net& net) {
         net.Add(
             npu_lookup{0, net.Input({2}, NPU_INT8), net.Input({256}), net.Tensor({2}, NPU_INT8)});
       }},
      {NPU_INVALID, "does not have the shape of",
       [](Net& net) {
         net.Add(npu_lookup{0, net.Input({2}, NPU_INT8), net.Input({256}), net.Tensor({3})});
       }},
      {NPU_DECLINED, "must be float32, or both float16",
       [](Net& net) { net.MatMul(net.Input({2, 2}), net.Input({2, 2}, NPU_FLOAT16), {2, 2}); }},
      {NPU_INVALID, "do not agree in the summed dimension",
       [](Net& net) { net.MatMul(net.Input({2, 3}), net.Input({2, 3}), {2, 3}); }},
      {NPU_INVALID, "do not broadcast",
       [](Net& net) { net.MatMul(net.Input({2, 2, 2}), net.Input({3, 2, 2}), {3, 2, 2}); }},
      {NPU_INVALID, "does not have the shape of the product",
       [](Net& net) { net.MatMul(net.Input({2, 3}), net.Input({3, 4}), {4, 2}); }},
      // Convolution.
      {NPU_INVALID, "spatial_rank of convolution (command 0) is 4",
       [](Net& net) {
         npu_tensor a = net.Input({1, 1, 4});
         net.Add(Convolution(a, a, net.Tensor({1, 1, 4}), 4));
       }},
      {NPU_INVALID, "with a spatial_rank of 2 both must have 4",
       [](Net& net) {
         npu_tensor a = net.Input({1, 1, 4});
         net.Add(Convolution(a, a, net.Tensor({1, 1, 4}), 2));
       }},
      {NPU_DECLINED, "Dimension 2 of convolution (command 0) is symbolic",
       [](Net& net) {
         Dim n(1, net.Symbol("n"));
         npu_tensor a = net.Input({1, 1, n});
         net.Add(Convolution(a, net.Input({1, 1, 1}), net.Tensor({1, 1, n}), 1));
       }},
      {NPU_INVALID, "different batch",
       [](Net& net) {
         npu_tensor a = net.Input({2, 1, 4});
         net.Add(Convolution(a, net.Input({1, 1, 1}), net.Tensor({1, 1, 4}), 1));
       }},
      {NPU_DECLINED, "symbolic shape",
       [](Net& net) {
         npu_tensor w = net.Input({Dim(1, net.Symbol("n")), 1, 1});
         net.Add(Convolution(net.Input({2, 1, 4}), w, net.Tensor({2, 1, 4}), 1));
       }},
      {NPU_INVALID, "The groups of convolution (command 0), 2, must divide its 3",
       [](Net& net) {
         npu_convolution op =
             Convolution(net.Input({1, 3, 4}), net.Input({2, 1, 1}), net.Tensor({1, 2, 4}), 1);
         op.groups = 2;
         net.Add(op);
       }},
      {NPU_INVALID, "reads 2 channels per group",
       [](Net& net) {
         net.Add(Convolution(net.Input({1, 3, 4}), net.Input({2, 2, 1}), net.Tensor({1, 2, 4}), 1));
       }},
      {NPU_INVALID, "strides[0] of convolution (command 0) is 0",
       [](Net& net) {
         npu_convolution op =
             Convolution(net.Input({1, 1, 4}), net.Input({1, 1, 1}), net.Tensor({1, 1, 4}), 1);
         op.strides[0] = 0;
         net.Add(op);
       }},
      {NPU_INVALID, "pads_end[0] of convolution (command 0) is -1",
       [](Net& net) {
         npu_convolution op =
             Convolution(net.Input({1, 1, 4}), net.Input({1, 1, 1}), net.Tensor({1, 1, 3}), 1);
         op.pads_end[0] = -1;
         net.Add(op);
       }},
      {NPU_INVALID, "is larger than its padded data in spatial dimension 0",
       [](Net& net) {
         net.Add(Convolution(net.Input({1, 1, 4}), net.Input({1, 1, 5}), net.Tensor({1, 1, 1}), 1));
       }},
      {NPU_INVALID, "has 4 positions in spatial dimension 0; the window has 3.",
       [](Net& net) {
         net.Add(Convolution(net.Input({1, 1, 4}), net.Input({1, 1, 2}), net.Tensor({1, 1, 4}), 1));
       }},
      // Pools.
      {NPU_INVALID, "kind of pool (command 0) is 7",
       [](Net& net) {
         net.Add(Pool(net.Input({1, 1, 4}), net.Tensor({1, 1, 3}), static_cast<npu_pool_kind>(7), 1,
                      2));
       }},
      {NPU_INVALID, "different channels",
       [](Net& net) {
         net.Add(Pool(net.Input({1, 1, 4}), net.Tensor({1, 2, 3}), NPU_POOL_MAX, 1, 2));
       }},
      {NPU_INVALID, "has 4 positions in spatial dimension 0; the window has 3.",
       [](Net& net) {
         net.Add(Pool(net.Input({1, 1, 4}), net.Tensor({1, 1, 4}), NPU_POOL_MAX, 1, 2));
       }},
      {NPU_DECLINED, "lies wholly in the padding",
       [](Net& net) {
         npu_pool op = Pool(net.Input({1, 1, 4}), net.Tensor({1, 1, 6}), NPU_POOL_MAX, 1, 1);
         op.pads_begin[0] = op.pads_end[0] = 1;
         net.Add(op);
       }},
      {NPU_DECLINED, "and its output tensor 0 (int32 [1, 1, 3])",
       [](Net& net) {
         net.Add(Pool(net.Input({1, 1, 4}), net.Tensor({1, 1, 3}, NPU_INT32), NPU_POOL_MAX, 1, 2));
       }},
      // Reduce.
      {NPU_INVALID, "name a dimension",
       [](Net& net) { net.Reduce(net.Input({2, 3}), NPU_REDUCE_SUM, 0b100, {2, 3}); }},
      {NPU_INVALID, "does not have the dimensions that are kept",
       [](Net& net) { net.Reduce(net.Input({2, 3}), NPU_REDUCE_SUM, 0b01, {2}); }},
      {NPU_INVALID, "kind of reduce (command 0) is 7",
       [](Net& net) { net.Reduce(net.Input({2, 3}), static_cast<npu_reduce_kind>(7), 0b01, {3}); }},
      // Scan.
      {NPU_INVALID, "The kind of scan (command 0) is 2",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_scan{0, data, net.Tensor({2}), static_cast<npu_scan_kind>(2), 0, 0});
       }},
      {NPU_INVALID, "The axis of scan (command 0) is -1",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_scan{0, data, net.Tensor({2}), NPU_SCAN_SUM, -1, 0});
       }},
      {NPU_DECLINED, "both must be integers, or both float32 or float16",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_scan{0, data, net.Tensor({2}, NPU_INT32), NPU_SCAN_SUM, 0, 0});
       }},
      {NPU_DECLINED, "both must be integers",
       [](Net& net) {
         npu_tensor data = net.Input({2}, NPU_BOOL);
         net.Add(npu_scan{0, data, net.Tensor({2}, NPU_BOOL), NPU_SCAN_SUM, 0, 0});
       }},
      {NPU_INVALID, "does not have the shape of",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_scan{0, data, net.Tensor({3}), NPU_SCAN_SUM, 0, 0});
       }},
      // Order.
      {NPU_INVALID, "The axis of order (command 0) is 1",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_order{0, data, net.Tensor({2}, NPU_INT32), 1, 0});
       }},
      {NPU_DECLINED, "must be int32 or int64",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_order{0, data, net.Tensor({2}), 0, 0});
       }},
      {NPU_INVALID, "or of its first elements along the axis",
       [](Net& net) {
         npu_tensor data = net.Input({2});
         net.Add(npu_order{0, data, net.Tensor({3}, NPU_INT32), 0, 0});
       }},
      {NPU_INVALID, "or of its first elements along the axis",
       [](Net& net) {
         // There may be only one.
         npu_tensor data = net.Input({Dim(1, net.Symbol("n"))});
         net.Add(npu_order{0, data, net.Tensor({2}, NPU_INT32), 0, 0});
       }},
      // Gather.
      {NPU_INVALID, "The axis of gather (command 0) is 2, which tensor 0",
       [](Net& net) {
         npu_tensor data = net.Input({2, 3});
         net.Add(npu_gather{0, data, net.Input({4}, NPU_INT32), net.Tensor({2, 4}), 2, 0});
       }},
      {NPU_INVALID, "must have the same element type",
       [](Net& net) {
         npu_tensor indices = net.Input({4}, NPU_INT32);
         net.Add(npu_gather{0, net.Input({2}), indices, net.Tensor({4}, NPU_INT8), 0, 0});
       }},
      {NPU_DECLINED, "must be int32 or int64",
       [](Net& net) {
         net.Add(npu_gather{0, net.Input({2}), net.Input({4}), net.Tensor({4}), 0, 0});
       }},
      {NPU_INVALID, "does not have the shape of what is gathered",
       [](Net& net) {
         npu_tensor indices = net.Input({4}, NPU_INT32);
         net.Add(npu_gather{0, net.Input({2, 3}), indices, net.Tensor({2, 4}), 0, 0});
       }},
      {NPU_INVALID, "does not have the shape of what is gathered",
       [](Net& net) {
         npu_tensor indices = net.Input({4, 4}, NPU_INT32);
         net.Add(npu_gather{0, net.Input({2, 3}), indices, net.Tensor({4, 4}), 0, 1});
       }},
      // Update.
      {NPU_INVALID, "does not have a slice of tensor 3 (float32 [4, 2]) for each",
       [](Net& net) {
         npu_tensor data = net.Input({4, 2}), rows = net.Input({3}, NPU_INT32);
         net.Add(npu_update{0, data, net.Input({2, 2}), rows, net.Tensor({4, 2}), 0});
       }},
      {NPU_DECLINED, "must be int32 or int64",
       [](Net& net) {
         npu_tensor data = net.Input({4, 2}), rows = net.Input({2});
         net.Add(npu_update{0, data, net.Input({2, 2}), rows, net.Tensor({4, 2}), 0});
       }},
      {NPU_INVALID, "but these are not marked as such",
       [](Net& net) {
         int32_t shared = 0;
         CHECK_EQ(build.add_state(net.get(), net.Input({2}), net.Tensor({2}), &shared),
                  NPU_INVALID);
         net.Output(0);
       }},
      // Copy.
      {NPU_INVALID, "does not name every dimension once",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2, 2}), net.Tensor({2, 2}));
         op.permutation[1] = 0;
         net.Add(op);
       }},
      {NPU_INVALID, "same rank and element type",
       [](Net& net) { net.Add(Copy(net.Input({2, 2}), net.Tensor({4}))); }},
      {NPU_INVALID, "same rank and element type",
       [](Net& net) { net.Add(Copy(net.Input({2, 2}), net.Tensor({2, 2}, NPU_INT32))); }},
      {NPU_INVALID, "(float32 [3]), which is outside of it",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({3}));
         op.out_offset[0] = 3;
         net.Add(op);
       }},
      {NPU_INVALID, "(float32 [2, 3]), which is outside of it",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2, 3}), net.Tensor({2, 2}));
         op.data_offset[1] = -1;
         net.Add(op);
       }},
      {NPU_INVALID, "(float32 [2]) is 0; it must not be 0",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({2}));
         op.data_step[0] = 0;
         net.Add(op);
       }},
      {NPU_INVALID, "nor so large",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({1}));
         op.data_step[0] = INT64_MIN;
         net.Add(op);
       }},
      {NPU_INVALID, "(float32 [3]) is -1; it must be 1 or more",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({3}));
         op.out_step[0] = -1;
         op.fill = 1;
         net.Add(op);
       }},
      {NPU_INVALID, "With an out_step other than 1, copy (command 0) must fill",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({3}));
         op.out_step[0] = 2;
         net.Add(op);
       }},
      {NPU_INVALID, "is written twice",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({3}));
         op.out_step[0] = 2;
         op.fill = 1;
         net.Add(op);
         op.out_step[0] = 1;
         op.out_offset[0] = 1;
         op.fill = 0;
         net.Add(op);
       }},
      {NPU_INVALID, "is not all of dimension 0",
       [](Net& net) {
         Dim n(1, net.Symbol("n"));
         npu_copy op = Copy(net.Input({n}), net.Tensor({n}));
         op.data_step[0] = -1;
         net.Add(op);
       }},
      {NPU_INVALID, "symbolic dimensions must be equal",
       [](Net& net) { net.Add(Copy(net.Input({Dim(1, net.Symbol("n"))}), net.Tensor({3}))); }},
      {NPU_INVALID, "overlaps",
       [](Net& net) {
         npu_tensor a = net.Input({2});
         npu_copy op = Copy(a, net.Tensor({3}));
         net.Add(op);
         op.out_offset[0] = 1;
         net.Add(op);
       }},
      {NPU_INVALID, "is read before all of it is written",
       [](Net& net) {
         npu_tensor out = net.Tensor({3});
         net.Add(Copy(net.Input({2}), out));
         net.Elementwise(Unary(NPU_VECTOR_EXP, out), {3});
       }},
      {NPU_INVALID, "is written twice",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({4}));
         net.Add(op);
         op.out_offset[0] = 2;
         op.fill = 1;
         net.Add(op);
       }},
      {NPU_INVALID, "is written twice",
       [](Net& net) {
         npu_copy op = Copy(net.Input({2}), net.Tensor({4}));
         op.fill = 1;
         net.Add(op);
         net.Elementwise(Unary(NPU_VECTOR_EXP, op.out), {4});
         op.out_offset[0] = 2;
         op.fill = 0;
         net.Add(op);
       }},
  };
  for (const Case& c : cases) {
    Net net;
    net.Failing();
    c.body(net);
    CHECK_EQ(net.status(), c.status);
    CHECK_CONTAINS(net.error(), c.sentence);
    // The failure stays.
    std::string error = net.error();
    CHECK_EQ(build.mark_output(net.get(), 0), c.status);
    CHECK_EQ(net.error(), error);
  }
}

TEST(OptionsAreChecked) {
  auto create = [](const char* key, const char* value) {
    npu_option option = {key, value};
    npu_builder* builder = nullptr;
    npu_status status = build.create(&option, 1, &builder);
    CHECK(status == NPU_OK || builder == nullptr);
    build.destroy(builder);
    return status;
  };
  CHECK_EQ(create("threads", "1"), NPU_OK);
  CHECK_EQ(create("threads", "64"), NPU_OK);
  for (const char* value : {"0", "65", "-1", "99999999999999999999", "", "two", "2 "}) {
    CHECK_EQ(create("threads", value), NPU_INVALID);
    CHECK_CONTAINS(build.error(nullptr), "Option threads is");
  }
  CHECK_EQ(create("thread", "1"), NPU_INVALID);
  CHECK_CONTAINS(build.error(nullptr), "Option thread is unknown");
  CHECK_EQ(create(nullptr, "1"), NPU_INVALID);
  CHECK_EQ(create("threads", nullptr), NPU_INVALID);
}

// ---- Bytes ----

namespace {

/*! \brief A program with every kind of tensor and command. */
Bytes EverythingProgram(const std::vector<npu_option>& options = {}) {
  Net net(options);
  Dim n(1, net.Symbol("batch"));
  npu_tensor data = net.Input({n, 2, 4, 4});
  Vector bias = BiasRelu(net.Constant({3, 1, 1}, {1, 2, 3}));
  npu_convolution convolution =
      Convolution(data, net.Constant({3, 2, 3, 3}, Noise(54, 5)), net.Tensor({n, 3, 2, 2}), 2);
  convolution.epilogue = bias.get();
  net.Add(convolution);
  npu_pool pool = Pool(convolution.out, net.Tensor({n, 3, 1, 1}), NPU_POOL_MAX, 2, 2);
  net.Add(pool);
  npu_tensor flat = net.View(pool.out, {n, 3});
  npu_tensor dense = net.MatMul(flat, net.Constant({3, 4}, Noise(12, 6)), {n, 4});
  npu_tensor padded = net.Tensor({n, 6});
  npu_copy copy = Copy(dense, padded);
  copy.out_offset[1] = 1;
  copy.fill = 1;
  net.Add(copy);
  npu_tensor mean = net.Reduce(padded, NPU_REDUCE_MEAN, 0b10, {n, 1});
  net.Output(net.Elementwise(Binary(NPU_VECTOR_SUBTRACT, padded, mean), {n, 6}));
  return net.Finish();
}

}  // namespace

TEST(DamagedBytesAreRefused) {
  const Bytes bytes = EverythingProgram();
  npu_device* device = nullptr;
  CHECK_EQ(run.open(0, &device), NPU_OK);
  npu_program* program = nullptr;
  auto refused = [&](const Bytes& damaged) {
    npu_status status = run.load(device, damaged.data(), damaged.size(), &program);
    if (status == NPU_OK) run.unload(program);
    std::string sentence = run.error();
    return status == NPU_INVALID && !sentence.empty() && sentence.back() == '.';
  };
  uint8_t nothing = 0;
  CHECK_EQ(run.load(device, &nothing, 0, &program), NPU_INVALID);
  for (size_t size = 1; size < bytes.size(); ++size) {
    CHECK(refused(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size))));
  }
  // The artifact's checksum covers the constants, which are at the end.
  for (size_t i = 0; i < 1500; ++i) {
    for (uint8_t flip : {0x01, 0x80, 0xff}) {
      Bytes damaged = bytes;
      damaged[i] ^= flip;
      CHECK(refused(damaged));
    }
  }
  Bytes longer = bytes;
  longer.push_back(0);
  CHECK(refused(longer));
  longer.insert(longer.begin(), 0);
  CHECK_EQ(run.load(device, longer.data() + 1, bytes.size(), &program), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "not aligned to 64 bytes");
  CHECK_EQ(run.load(device, bytes.data(), bytes.size(), &program), NPU_OK);
  run.unload(program);
  run.close(device);
}

TEST(BytesHoldEachConstantOnceAndNoneThatIsUnused) {
  const size_t size = 256 * 256 * sizeof(float);
  Net net;
  npu_tensor a = net.Input({1, 256});
  npu_tensor used = net.Constant({256, 256}, Noise(256 * 256, 14));
  net.Constant({256, 256}, Noise(256 * 256, 15));
  net.Output(net.MatMul(a, used, {1, 256}));
  Bytes bytes = net.Finish();
  CHECK(bytes.size() > size);
  CHECK(bytes.size() < size + size / 4);
}

TEST(EqualBuildsGiveEqualBytes) { CHECK(EverythingProgram() == EverythingProgram()); }

// ---- Running ----

TEST(ThereAreEightDevices) {
  Bytes bytes = EverythingProgram();
  npu_device* device = nullptr;
  for (int32_t index : {-1, 8}) {
    CHECK_EQ(run.open(index, &device), NPU_INVALID);
    CHECK_CONTAINS(run.error(), "devices 0 to 7");
  }
  Machine first(bytes, 0), last(bytes, 7);
  Floats data = Noise(64, 7), out[2];
  for (Machine* machine : {&first, &last}) {
    machine->Input(0, {2, 2, 4, 4}, data);
    machine->Output(0, {2, 6}, &out[machine == &last]);
  }
  last.Run();
  first.Run();
  CHECK_VALUES(out[0], out[1]);
}

TEST(ThreadsMayShareAProgram) {
  for (const char* threads : {"1", "3"}) {
    const std::vector<npu_option> options = {{"threads", threads}};
    Net net(options);
    Dim n(1, net.Symbol("n"));
    npu_tensor a = net.Input({n, 64});
    npu_tensor product = net.MatMul(a, net.Constant({64, 96}, Noise(64 * 96, 8)), {n, 96});
    net.Output(net.Elementwise(Unary(NPU_VECTOR_TANH, product), {n, 96}));
    Machine machine(net.Finish());
    Floats data = Noise(48 * 64, 9), want;
    machine.Input(0, {48, 64}, data);
    machine.Output(0, {48, 96}, &want);
    machine.Run();
    std::vector<std::thread> workers;
    for (int t = 0; t < 4; ++t) {
      workers.emplace_back([&, t] {
        npu_request* request = nullptr;
        CHECK_EQ(run.create_request(machine.program(), &request), NPU_OK);
        Floats out(48 * 96);
        for (int64_t i = 0; i < 20; ++i) {
          int64_t rows = (i + t) % 3 == 0 ? 48 : 5;
          const Shape shape = {rows, 64}, out_shape = {rows, 96};
          std::fill(out.begin(), out.end(), 0.0f);
          CHECK_EQ(BindInput(request, 0, data.data(), shape), NPU_OK);
          CHECK_EQ(BindOutput(request, 0, out.data(), out_shape), NPU_OK);
          CHECK_EQ(run.submit(request), NPU_OK);
          CHECK_EQ(run.wait(request, -1), NPU_OK);
          for (int64_t k = 0; k < rows * 96; ++k) CHECK(check::Near(out[k], want[k]));
          // Errors are per thread.
          CHECK_EQ(BindInput(request, 100 + t, data.data(), shape), NPU_INVALID);
          CHECK_CONTAINS(run.error(), "Input " + std::to_string(100 + t));
        }
        run.destroy_request(request);
      });
    }
    for (std::thread& worker : workers) worker.join();
  }
}

TEST(WarmCallsAllocateNothing) {
  Machine machine(EverythingProgram());
  Floats data = Noise(3 * 32, 10), other = Noise(3 * 32, 11), out, more;
  machine.Input(0, {3, 2, 4, 4}, data);
  machine.Output(0, {3, 6}, &more);
  machine.Output(0, {3, 6}, &out);
  npu_request* request = machine.request();
  const Shape shapes[] = {{3, 2, 4, 4}, {2, 2, 4, 4}}, out_shapes[] = {{3, 6}, {2, 6}};
  auto call = [&](int i) {
    // The symbol also changes.
    const Shape& shape = shapes[i / 3 % 2];
    const Shape& out_shape = out_shapes[i / 3 % 2];
    const Floats& in = i % 2 == 0 ? data : other;
    Floats& to = i % 2 == 0 ? out : more;
    bool ok = BindInput(request, 0, in.data(), shape) == NPU_OK;
    ok = ok && BindOutput(request, 0, to.data(), out_shape) == NPU_OK;
    if (i % 3 == 0) return ok && run.execute(request) == NPU_OK;
    return ok && run.submit(request) == NPU_OK && run.wait(request, 10000000) == NPU_OK;
  };
  bool ok = true;
  for (int i = 0; i < 10; ++i) ok = call(i) && ok;
  uint64_t before = allocations;
  for (int i = 0; i < 12; ++i) ok = call(i) && ok;
  CHECK_EQ(allocations - before, 0u);
  CHECK(ok);
  CHECK(out != more);
  CHECK(allocations > 0);
}

TEST(CountersAddUp) {
  Machine machine(EverythingProgram());
  Floats data = Noise(3 * 32, 12), out;
  auto counters_after = [&](int64_t images) {
    machine.Input(0, {images, 2, 4, 4}, data);
    machine.Output(0, {images, 6}, &out);
    machine.Run();
    return machine.Counters();
  };
  RunCounters one = counters_after(1);
  RunCounters two = counters_after(3);
  RunCounters three = counters_after(1);
  CHECK_EQ(one.submissions, 1u);
  CHECK_EQ(three.submissions, 3u);
  CHECK_EQ(three.failures, 0u);
  CHECK_EQ(one.matrix_operations, 1u * (2 * 3 * 4 * 18 + 2 * 3 * 4));
  CHECK_EQ(two.matrix_operations, 4u * (2 * 3 * 4 * 18 + 2 * 3 * 4));
  CHECK(one.commands > 0 && one.cycles > 0 && one.scratchpad_bytes > 0 && one.constant_bytes > 0);
  CHECK_EQ(one.frequency_mhz, 1000u);
  // The third call repeats the first.
  auto adds_up = [&](uint64_t RunCounters::* counter) {
    CHECK_EQ(three.*counter - two.*counter, one.*counter);
    CHECK(two.*counter - one.*counter >= one.*counter);
  };
  adds_up(&RunCounters::commands);
  adds_up(&RunCounters::cycles);
  adds_up(&RunCounters::matrix_operations);
  adds_up(&RunCounters::dram_bytes_read);
  adds_up(&RunCounters::dram_bytes_written);
  adds_up(&RunCounters::scratchpad_bytes_read);
  adds_up(&RunCounters::scratchpad_bytes_written);
  uint64_t waiting = 0;
  for (int engine = 0; engine < kEngineCount; ++engine) {
    CHECK(one.busy_cycles[engine] > 0);
    CHECK(one.busy_cycles[engine] + one.stalled_cycles[engine] <= one.cycles);
    CHECK_EQ(three.busy_cycles[engine] - two.busy_cycles[engine], one.busy_cycles[engine]);
    CHECK_EQ(three.stalled_cycles[engine] - two.stalled_cycles[engine], one.stalled_cycles[engine]);
    waiting += one.stalled_cycles[engine];
  }
  CHECK(waiting > 0);
}

TEST(EventsAddUpToTheCounters) {
  Machine machine(EverythingProgram({{"cores", "2"}, {"max_tile_bytes", "4096"}}));
  Floats out;
  RunCounters before = {};
  for (int64_t images : {7, 1}) {
    machine.Input(0, {images, 2, 4, 4}, Noise(static_cast<size_t>(images) * 32, 13));
    machine.Output(0, {images, 6}, &out);
    machine.Run();
    const RunCounters after = machine.Counters();
    const npu_event* events = nullptr;
    size_t count = 0;
    double frequency = 0;
    CHECK_EQ(run.read_events(machine.request(), &events, &count, &frequency), NPU_OK);
    CHECK_EQ(frequency, 1000.0);
    RunCounters sum = {};
    int64_t latest = 0;
    bool waits = false;
    const std::string engines[] = {"matrix", "vector", "dma_in", "dma_out"};
    for (size_t i = 0; i < count; ++i) {
      const npu_event& event = events[i];
      CHECK(event.begin >= latest && event.busy >= 0 && event.begin + event.busy <= event.end);
      latest = event.begin;
      waits = waits || event.waits_for != nullptr;
      CHECK(event.label != nullptr && *event.name != '\0');
      const std::string engine =
          std::string(event.engine).substr(0, std::string(event.engine).find('.'));
      for (int k = 0; k < kEngineCount; ++k) {
        if (engine == engines[k]) sum.busy_cycles[k] += static_cast<uint64_t>(event.busy);
      }
      sum.cycles = std::max(sum.cycles, static_cast<uint64_t>(event.end));
      sum.matrix_operations += event.operations;
      for (size_t k = 0; k < event.traffic_count; ++k) {
        const npu_traffic& traffic = event.traffic[k];
        const bool is_dram = std::string(traffic.memory) == "dram";
        (is_dram ? sum.dram_bytes_read : sum.scratchpad_bytes_read) += traffic.bytes_read;
        (is_dram ? sum.dram_bytes_written : sum.scratchpad_bytes_written) += traffic.bytes_written;
      }
    }
    CHECK(waits);
    CHECK_EQ(sum.cycles, after.cycles - before.cycles);
    CHECK_EQ(sum.matrix_operations, after.matrix_operations - before.matrix_operations);
    CHECK_EQ(sum.dram_bytes_read, after.dram_bytes_read - before.dram_bytes_read);
    CHECK_EQ(sum.dram_bytes_written, after.dram_bytes_written - before.dram_bytes_written);
    CHECK_EQ(sum.scratchpad_bytes_read, after.scratchpad_bytes_read - before.scratchpad_bytes_read);
    CHECK_EQ(sum.scratchpad_bytes_written,
             after.scratchpad_bytes_written - before.scratchpad_bytes_written);
    for (int engine = 0; engine < kEngineCount; ++engine) {
      CHECK_EQ(sum.busy_cycles[engine], after.busy_cycles[engine] - before.busy_cycles[engine]);
    }
    before = after;
  }
  const npu_event* events = nullptr;
  size_t count = 0;
  CHECK_EQ(run.read_events(machine.request(), &events, &count, nullptr), NPU_INVALID);
}

TEST(AllocationsReachWhatTheCountersSay) {
  Machine machine(EverythingProgram({{"cores", "2"}, {"max_tile_bytes", "4096"}}));
  Floats out;
  // The bound of the symbol: with fewer images, some tiles are empty.
  machine.Input(0, {256, 2, 4, 4}, Noise(256 * 32, 13));
  machine.Output(0, {256, 6}, &out);
  machine.Run();
  const RunCounters counters = machine.Counters();
  const npu_allocation* allocations = nullptr;
  size_t count = 0;
  CHECK_EQ(run.read_allocations(machine.request(), &allocations, &count), NPU_OK);
  uint64_t scratchpad = 0, arena = 0;
  for (size_t i = 0; i < count; ++i) {
    const npu_allocation& one = allocations[i];
    const std::string memory = one.memory;
    CHECK(memory == "scratchpad" || memory == "arena");
    CHECK(one.label != nullptr && one.bytes > 0);
    CHECK(one.begin >= 0 && one.begin < one.end &&
          static_cast<uint64_t>(one.end) <= counters.cycles);
    uint64_t& most = memory == "arena" ? arena : scratchpad;
    most = std::max(most, one.offset + one.bytes);
  }
  CHECK_EQ(scratchpad, counters.scratchpad_bytes);
  CHECK_EQ(arena, counters.arena_bytes);
  double operations = 0;
  const npu_memory* memories = nullptr;
  CHECK_EQ(run.read_peaks(machine.request(), &operations, &memories, &count), NPU_OK);
  CHECK_EQ(operations, 2.0 * 2 * 32 * 32);  // Two cores.
  CHECK_EQ(count, 2u);
  CHECK_EQ(std::string(memories[0].name), "dram");
  CHECK_EQ(memories[0].bytes_per_unit, 32.0);  // Two engines of 16 GB/s, at 1 GHz.
  CHECK_EQ(std::string(memories[1].name), "scratchpad");
  CHECK_EQ(memories[1].bytes, uint64_t{4194304});
  CHECK_EQ(run.read_peaks(machine.request(), nullptr, &memories, &count), NPU_INVALID);
  CHECK_EQ(run.read_allocations(machine.request(), &allocations, nullptr), NPU_INVALID);
}

TEST(CyclesDoNotDependOnThreads) {
  RunCounters counters[2];
  Floats out[2];
  for (int i = 0; i < 2; ++i) {
    Machine machine(EverythingProgram({{"threads", i == 0 ? "1" : "5"}}));
    machine.Input(0, {7, 2, 4, 4}, Noise(7 * 32, 13));
    machine.Output(0, {7, 6}, &out[i]);
    machine.Run();
    counters[i] = machine.Counters();
  }
  CHECK_EQ(std::memcmp(&counters[0], &counters[1], sizeof(RunCounters)), 0);
  CHECK(out[0] == out[1]);
}

TEST(ProgramsDescribeThemselves) {
  Machine machine(EverythingProgram());
  const char* text = nullptr;
  CHECK_EQ(run.describe(machine.program(), &text), NPU_OK);
  for (const char* part : {"scratchpad_bytes", "batch: 1 to 256", "convolution", "totals"}) {
    CHECK_CONTAINS(text, part);
  }
  const char* again = nullptr;
  CHECK_EQ(run.describe(machine.program(), &again), NPU_OK);
  CHECK_EQ(again, text);
}

// ---- Work in flight ----

namespace {

/*! \brief exp of 8 numbers, on a device so slow that it takes at least this many seconds (0: at
 * full speed). */
Bytes SlowProgram(double seconds) {
  double pace = 0;
  std::string text;
  for (int pass = 0; pass < 2; ++pass) {
    text = std::to_string(static_cast<int64_t>(pace));
    Net net({{"pace", text.c_str()}, {"dma_latency_cycles", "1000000"}});
    net.Output(net.Elementwise(Unary(NPU_VECTOR_EXP, net.Input({8})), {8}));
    Bytes bytes = net.Finish();
    if (pass == 1 || seconds == 0) return bytes;
    Machine machine(bytes);
    Floats out;
    machine.Input(0, {8}, Range(8));
    machine.Output(0, {8}, &out);
    machine.Run();
    RunCounters counters = machine.Counters();
    pace = seconds * 1e6 * static_cast<double>(counters.frequency_mhz) /
           static_cast<double>(counters.cycles);
  }
  return {};
}

/*! \brief Gives the others time to begin. */
constexpr int64_t kShort = 20000;

/*! \brief A request of a slow program, with its buffers. */
struct Flight {
  explicit Flight(npu_program* program, float first = 0) : in(Range(8, first)), out(8, 77) {
    CHECK_EQ(run.create_request(program, &request), NPU_OK);
    CHECK_EQ(BindInput(request, 0, in.data(), {8}), NPU_OK);
    CHECK_EQ(BindOutput(request, 0, out.data(), {8}), NPU_OK);
  }
  ~Flight() { run.destroy_request(request); }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  bool HasRun() const { return check::Near(out[1], std::exp(in[1])); }
  RunCounters Counters() const { return CountersOf(request); }

  npu_request* request = nullptr;
  Floats in, out;
};

}  // namespace

TEST(SeveralRequestsAreInFlight) {
  Machine machine(SlowProgram(0));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Flight>> flights;
    for (int i = 0; i < 7; ++i) {
      flights.push_back(std::make_unique<Flight>(machine.program(), static_cast<float>(-i)));
      CHECK_EQ(run.submit(flights.back()->request), NPU_OK);
    }
    // In another order than that of the submissions.
    for (size_t i = 0; i < flights.size(); ++i) {
      Flight& flight = *flights[i * 3 % flights.size()];
      CHECK_EQ(run.wait(flight.request, -1), NPU_OK);
      CHECK(flight.HasRun());
      CHECK_EQ(flight.Counters().submissions, 1u);
    }
  }
}

TEST(WaitingHasATimeout) {
  Machine machine(SlowProgram(0.5));
  Flight flight(machine.program());
  CHECK_EQ(run.submit(flight.request), NPU_OK);
  CHECK_EQ(run.wait(flight.request, 0), NPU_TIMEOUT);
  CHECK_CONTAINS(run.error(), "time was up");
  CHECK_EQ(run.wait(flight.request, 1000), NPU_TIMEOUT);
  CHECK_EQ(run.wait(flight.request, std::numeric_limits<int64_t>::max()), NPU_OK);
  CHECK(flight.HasRun());
  CHECK_EQ(flight.Counters().submissions, 1u);
  CHECK_EQ(flight.Counters().failures, 0u);
}

TEST(RequestsAreSubmittedOnceAndWaitedForOnce) {
  Machine machine(SlowProgram(0));
  Flight flight(machine.program());
  npu_request* request = flight.request;
  CHECK_EQ(run.wait(request, 0), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "nothing to wait for");
  CHECK_EQ(run.submit(request), NPU_OK);
  CHECK_EQ(run.submit(request), NPU_INVALID);
  CHECK_CONTAINS(run.error(), "call wait before the next submit");
  CHECK_EQ(run.execute(request), NPU_INVALID);
  const Shape shape = {8};
  CHECK_EQ(BindInput(request, 0, flight.in.data(), shape), NPU_INVALID);
  CHECK_EQ(BindOutput(request, 0, flight.out.data(), shape), NPU_INVALID);
  CHECK_EQ(run.wait(request, -1), NPU_OK);
  CHECK_EQ(run.wait(request, -1), NPU_INVALID);
  CHECK_EQ(run.submit(request), NPU_OK);
  CHECK_EQ(run.wait(request, -1), NPU_OK);
  CHECK_EQ(flight.Counters().submissions, 2u);
}

TEST(WorkCanBeCancelled) {
  Machine machine(SlowProgram(100));
  // More than a device does at once: the last one waits.
  Flight first(machine.program()), second(machine.program()), third(machine.program());
  for (Flight* flight : {&first, &second, &third}) {
    CHECK_EQ(run.submit(flight->request), NPU_OK);
  }
  CHECK_EQ(run.wait(third.request, kShort), NPU_TIMEOUT);
  CHECK_EQ(run.cancel(third.request), NPU_OK);
  CHECK_EQ(run.wait(third.request, -1), NPU_CANCELLED);
  CHECK_CONTAINS(run.error(), "was cancelled");
  CHECK_EQ(third.out[1], 77.0f);
  std::thread other([&] { CHECK_EQ(run.cancel(first.request), NPU_OK); });
  CHECK_EQ(run.wait(first.request, -1), NPU_CANCELLED);
  other.join();
  CHECK_EQ(first.Counters().submissions, 1u);
  CHECK_EQ(first.Counters().failures, 1u);
  CHECK_EQ(first.Counters().cycles, 0u);
  // Cancelling nothing does nothing.
  CHECK_EQ(run.cancel(first.request), NPU_OK);
  CHECK_EQ(run.wait(first.request, -1), NPU_INVALID);
  // Once more; destroy the requests while one runs and one waits.
  for (Flight* flight : {&first, &third}) CHECK_EQ(run.submit(flight->request), NPU_OK);
}

TEST(CancelledRequestsRunAgain) {
  Machine machine(SlowProgram(0));
  Flight flight(machine.program());
  for (int i = 0; i < 200; ++i) {
    CHECK_EQ(run.submit(flight.request), NPU_OK);
    CHECK_EQ(run.cancel(flight.request), NPU_OK);
    npu_status status = run.wait(flight.request, -1);
    CHECK(status == NPU_CANCELLED || status == NPU_OK);
    CHECK_EQ(run.execute(flight.request), NPU_OK);
  }
  RunCounters counters = flight.Counters();
  CHECK_EQ(counters.submissions, 400u);
  CHECK_EQ(counters.commands % (counters.submissions - counters.failures), 0u);
  CHECK(flight.HasRun());
}

TEST(ExecuteCanBeCancelledByAnotherThread) {
  Machine machine(SlowProgram(100));
  Flight flight(machine.program());
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      CHECK_EQ(run.cancel(flight.request), NPU_OK);
      std::this_thread::yield();
    }
  });
  CHECK_EQ(run.execute(flight.request), NPU_CANCELLED);
  done = true;
  other.join();
  CHECK_EQ(flight.Counters().failures, 1u);
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not support threads in forked processes.
TEST(ForkedProcessesHaveTheirOwnDevice) {
  Machine machine(SlowProgram(0));
  Machine slow(SlowProgram(100));
  Flight flight(machine.program()), pending(slow.program());
  CHECK_EQ(run.submit(flight.request), NPU_OK);
  CHECK_EQ(run.wait(flight.request, -1), NPU_OK);
  CHECK_EQ(run.submit(pending.request), NPU_OK);
  pid_t child = fork();
  if (child == 0) {
    bool ok = run.execute(flight.request) == NPU_OK;
    ok = ok && run.submit(flight.request) == NPU_OK;
    ok = ok && run.wait(flight.request, -1) == NPU_OK && flight.HasRun();
    // The child does not run the parent's work.
    ok = ok && run.cancel(pending.request) == NPU_OK;
    ok = ok && run.wait(pending.request, -1) == NPU_DEVICE_ERROR;
    ok = ok && std::string(run.error()).find("forked") != std::string::npos;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(run.cancel(pending.request), NPU_OK);
  CHECK_EQ(run.wait(pending.request, -1), NPU_CANCELLED);
}
#endif

TEST(DevicesRestAndStartAgain) {
  Bytes bytes = SlowProgram(0);
  for (int round = 0; round < 50; ++round) {
    Machine machine(bytes, 3);
    Flight flight(machine.program());
    CHECK_EQ(run.submit(flight.request), NPU_OK);
    CHECK_EQ(run.wait(flight.request, -1), NPU_OK);
    CHECK(flight.HasRun());
  }
}

namespace {

/*! \brief Runs a chain of `length` additions of 1, or of products with the identity. */
RunCounters RunChain(int length, bool products) {
  Net net;
  npu_tensor value = net.Input({8, 8});
  npu_tensor one = net.Constant({}, {1});
  Floats identity(64);
  for (size_t i = 0; i < 8; ++i) identity[i * 9] = 1;
  npu_tensor matrix = net.Constant({8, 8}, identity);
  for (int i = 0; i < length; ++i) {
    value = products ? net.MatMul(value, matrix, {8, 8})
                     : net.Elementwise(Binary(NPU_VECTOR_ADD, value, one), {8, 8});
  }
  net.Output(value);
  Machine machine(net.Finish());
  Floats out;
  machine.Input(0, {8, 8}, Range(64));
  machine.Output(0, {8, 8}, &out);
  machine.Run();
  CHECK_VALUES(out, Range(64, products ? 0 : static_cast<float>(length)));
  return machine.Counters();
}

}  // namespace

TEST(IntermediatesShareMemory) {
  CHECK(RunChain(50, false).arena_bytes <= 64 * sizeof(float));
  CHECK(RunChain(50, true).arena_bytes <= 2 * 64 * sizeof(float));
}

TEST(LongProgramsRun) {
  CHECK(RunChain(10000, false).commands >= 10000u);
  CHECK(RunChain(10000, true).commands >= 10000u);
}

TEST(ReusedMemoryIsNeverStillNeeded) {
  // Compares random graphs of additions, views and reductions with values that are all kept.
  uint32_t seed = 13;
  auto random = [&seed](size_t bound) {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<size_t>(seed >> 8) % bound;
  };
  for (int round = 0; round < 30; ++round) {
    Net net;
    std::vector<npu_tensor> tensors = {net.Input({4, 4})};
    std::vector<Floats> values = {Noise(16, seed)};
    const Floats input = values[0];
    for (int i = 0; i < 60; ++i) {
      size_t a = random(tensors.size());
      size_t b = random(2) == 0 ? tensors.size() - 1 : random(tensors.size());
      Floats value(16);
      switch (random(4)) {
        case 0: {
          // The maximum of each row, subtracted from another tensor.
          npu_tensor row = net.Reduce(tensors[a], NPU_REDUCE_MAX, 0b10, {4, 1});
          tensors.push_back(net.Elementwise(Binary(NPU_VECTOR_SUBTRACT, tensors[b], row), {4, 4}));
          for (size_t k = 0; k < 16; ++k) {
            const float* first = &values[a][k / 4 * 4];
            float most = first[0];
            for (size_t j = 1; j < 4; ++j) most = first[j] > most ? first[j] : most;
            value[k] = values[b][k] - most;
          }
          break;
        }
        case 1: {
          npu_tensor out = net.Tensor({4, 4});
          npu_copy op = Copy(tensors[b], out);
          op.permutation[0] = 1;
          op.permutation[1] = 0;
          net.Add(op);
          tensors.push_back(out);
          for (size_t k = 0; k < 16; ++k) value[k] = values[b][k % 4 * 4 + k / 4];
          break;
        }
        case 2:
          tensors.push_back(net.View(net.View(tensors[b], {16}), {4, 4}));
          value = values[b];
          break;
        default:
          tensors.push_back(
              net.Elementwise(Binary(NPU_VECTOR_MINIMUM, tensors[a], tensors[b]), {4, 4}));
          for (size_t k = 0; k < 16; ++k) {
            value[k] = values[a][k] < values[b][k] ? values[a][k] : values[b][k];
          }
      }
      values.push_back(value);
    }
    const size_t outputs[] = {tensors.size() - 1, random(tensors.size()), random(tensors.size())};
    for (size_t output : outputs) net.Output(tensors[output]);
    Machine machine(net.Finish());
    machine.Input(0, {4, 4}, input);
    Floats out[3];
    for (size_t i = 0; i < 3; ++i) machine.Output(i, {4, 4}, &out[i]);
    machine.Run();
    for (size_t i = 0; i < 3; ++i) CHECK_VALUES(out[i], values[outputs[i]]);
  }
}

int main(int count, char** arguments) { return check::RunTests(count, arguments); }
