// SPDX-License-Identifier: Apache-2.0
/*!
 * \file kernels_test.cc
 * \brief Compares the kernels with plain loops, on every instruction set of this machine.
 *
 * Cases are random, but the same in each run. Values are either small integers, whose sums are
 * exact in any order, so that results must be equal, or real numbers within a tolerance.
 */
#include "emulator/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "driver_kit/vector_opcodes.h"
#include "emulator/kernels/internal.h"
#include "emulator/kernels/oracle.h"
#include "emulator/kernels/simd.h"
#include "emulator/operations.h"
#include "emulator/thread_pool.h"

namespace {

using namespace npu::emulator;  // NOLINT

using Shape = std::vector<int64_t>;

// ---- Random cases ----

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int64_t percent) { return Between(1, 100) <= percent; }
  float Real() { return static_cast<float>(Between(-1000000, 1000000)) * 1e-6f; }
  template <typename T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Between(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937 engine_;
};

// How a tensor is filled.
enum class Values { kWhole, kReal, kPowers, kSpecial, kBits };

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Shape& shape, npu_dtype dtype) {
    view_.dtype = dtype;
    view_.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view_.dims);
    bytes_.resize(static_cast<size_t>(ElementCount(view_)) * ElementSize(dtype), 0x5b);
  }
  Tensor(Random* random, const Shape& shape, npu_dtype dtype, Values values)
      : Tensor(shape, dtype) {
    for (int64_t i = 0; i < ElementCount(view_) && values != Values::kBits; ++i) {
      float value =
          values == Values::kWhole ? static_cast<float>(random->Between(-3, 3)) : random->Real();
      // Products of these are exact, and stay small.
      if (values == Values::kPowers) value = random->Pick({0.5f, 1.0f, 2.0f, -0.5f, -1.0f, -2.0f});
      if (values == Values::kSpecial && random->Chance(10)) {
        value = random->Pick({NAN, HUGE_VALF, -HUGE_VALF, 0.0f, -0.0f, 1e-40f, 3e38f, 2.5f});
      }
      oracle::Store(View(), i, value);
    }
    for (size_t i = 0; i < bytes_.size() && values == Values::kBits; ++i) {
      bytes_[i] = static_cast<uint8_t>(random->Between(0, 255));
    }
  }

  TensorView View() const {
    TensorView view = view_;
    view.data = const_cast<uint8_t*>(bytes_.data());
    return view;
  }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  TensorView view_;
  std::vector<uint8_t> bytes_;
};

npu_dtype AnyFloat(Random* random) { return random->Chance(70) ? NPU_FLOAT32 : NPU_FLOAT16; }

npu_dtype AnyInteger(Random* random) {
  return random->Pick({NPU_INT8, NPU_UINT8, NPU_INT16, NPU_INT32, NPU_INT64, NPU_BOOL});
}

npu_dtype AnyType(Random* random) {
  return random->Chance(50) ? AnyFloat(random) : AnyInteger(random);
}

// A shape that broadcasts to this one.
Shape Narrowed(Random* random, const Shape& shape) {
  int64_t drop = random->Chance(40) ? random->Between(0, static_cast<int64_t>(shape.size())) : 0;
  Shape narrowed(shape.begin() + drop, shape.end());
  for (int64_t& size : narrowed) {
    if (random->Chance(35)) size = 1;
  }
  return narrowed;
}

// A vector program with its inputs.
struct Program {
  std::vector<npu_vector_instruction> instructions;
  std::vector<Tensor> tensors;
  std::vector<TensorView> inputs;

  int32_t Add(npu_vector_opcode opcode, int32_t a = 0, int32_t b = 0, int32_t c = 0,
              double immediate = 0) {
    instructions.push_back({opcode, a, b, c, immediate});
    return static_cast<int32_t>(instructions.size()) - 1;
  }

  VectorProgram View() {
    inputs.clear();
    for (const Tensor& tensor : tensors) inputs.push_back(tensor.View());
    VectorProgram program;
    program.instructions = instructions.data();
    program.instruction_count = static_cast<int32_t>(instructions.size());
    program.inputs = inputs.data();
    program.input_count = static_cast<int32_t>(inputs.size());
    return program;
  }
};

// A program for results of this shape. For whole values it keeps them whole; for real ones it is
// continuous, so that a small difference stays small.
Program AnyProgram(Random* random, const Shape& shape, Values values, bool epilogue,
                   npu_dtype (*type)(Random*) = AnyType) {
  Program program;
  if (epilogue && random->Chance(30)) return program;
  program.tensors.emplace_back();
  if (!epilogue) {
    program.tensors[0] = Tensor(random, Narrowed(random, shape), type(random), values);
  }
  program.Add(NPU_VECTOR_LOAD, 0);
  for (int64_t extra = random->Between(0, 3); extra > 0; --extra) {
    Shape narrowed = random->Chance(40) ? shape : Narrowed(random, shape);
    program.tensors.emplace_back(random, narrowed, type(random), values);
    program.Add(NPU_VECTOR_LOAD, static_cast<int32_t>(program.tensors.size()) - 1);
  }
  // Each step reads the previous one, so that the result depends on input 0.
  int32_t chain = 0;
  int64_t fewest = program.instructions.size() > 1 ? 1 : 0;
  for (int64_t count = random->Between(fewest, 5); count > 0; --count) {
    int64_t last = static_cast<int64_t>(program.instructions.size()) - 1;
    int32_t other = static_cast<int32_t>(random->Between(0, last));
    if (random->Chance(20)) {
      float immediate = static_cast<float>(random->Between(-2, 2));
      other = program.Add(NPU_VECTOR_CONSTANT, 0, 0, 0, immediate);
    }
    if (values == Values::kReal && random->Chance(25)) {
      other =
          program.Add(random->Pick({NPU_VECTOR_TANH, NPU_VECTOR_SIGMOID, NPU_VECTOR_ERF}), other);
    }
    npu_vector_opcode opcode = random->Chance(70)
                                   ? random->Pick({NPU_VECTOR_ADD, NPU_VECTOR_SUBTRACT})
                                   : random->Pick({NPU_VECTOR_MAXIMUM, NPU_VECTOR_MINIMUM});
    if (opcode == NPU_VECTOR_SUBTRACT && other == chain) opcode = NPU_VECTOR_ADD;
    chain =
        random->Chance(50) ? program.Add(opcode, chain, other) : program.Add(opcode, other, chain);
  }
  return program;
}

// The epilogue of an integer product whose channels have this shape: a bias, requantization, a
// residual, a clip; or, if `out` has real numbers, anything in float32.
Program AnyIntegerEpilogue(Random* random, const Shape& shape, const Shape& channels,
                           npu_dtype out) {
  Program program;
  if (random->Chance(15)) return program;
  if (!IsInteger(out)) return AnyProgram(random, shape, Values::kReal, true, AnyFloat);
  program.tensors.emplace_back();
  int32_t chain = program.Add(NPU_VECTOR_LOAD, 0);
  // A number, or one for each channel.
  auto parameter = [&](int64_t low, int64_t high, npu_dtype dtype) {
    if (random->Chance(40)) {
      auto number = static_cast<double>(random->Between(low, high));
      return program.Add(NPU_VECTOR_CONSTANT, 0, 0, 0, number);
    }
    Tensor tensor(random->Chance(80) ? channels : shape, dtype);
    for (int64_t i = 0; i < ElementCount(tensor.View()); ++i) {
      oracle::StoreInteger(tensor.View(), i, random->Between(low, high));
    }
    program.tensors.push_back(tensor);
    return program.Add(NPU_VECTOR_LOAD, static_cast<int32_t>(program.tensors.size()) - 1);
  };
  auto rescale = [&](int32_t value) {
    int64_t bits = random->Pick({7, 15, 31});
    int64_t most = (int64_t{1} << bits) - 1;
    int32_t multiplier = parameter(random->Chance(80) ? most / 2 : 0, most, NPU_INT32);
    int32_t shift = random->Chance(80) ? parameter(bits, bits + 10, NPU_INT8)
                                       : parameter(random->Pick({0, -3}), 62, NPU_INT8);
    auto rounding = static_cast<double>(random->Between(NPU_ROUND_HALF_UP, NPU_ROUND_TO_ZERO));
    return program.Add(NPU_VECTOR_RESCALE, value, multiplier, shift, rounding);
  };
  if (random->Chance(70)) {
    bool large = random->Chance(10);
    int64_t most = large ? INT32_MAX : 20000;
    chain = program.Add(NPU_VECTOR_ADD, chain, parameter(-most, most, NPU_INT32));
  }
  if (random->Chance(80)) chain = rescale(chain);
  if (random->Chance(30)) {
    program.tensors.emplace_back(random, shape, random->Pick({NPU_INT8, NPU_UINT8, NPU_INT16}),
                                 Values::kBits);
    int32_t other = program.Add(NPU_VECTOR_LOAD, static_cast<int32_t>(program.tensors.size()) - 1);
    other = program.Add(NPU_VECTOR_SUBTRACT, other, parameter(-128, 255, NPU_INT16));
    if (random->Chance(70)) other = rescale(other);
    chain = program.Add(NPU_VECTOR_ADD, other, chain);
    if (random->Chance(50)) chain = rescale(chain);
  }
  if (random->Chance(10)) {
    npu_vector_opcode opcode = random->Pick(
        {NPU_VECTOR_MULTIPLY, NPU_VECTOR_FLOOR_DIVIDE, NPU_VECTOR_LESS, NPU_VECTOR_EQUAL});
    chain = program.Add(opcode, chain, parameter(-5, 300, NPU_INT16));
  }
  if (random->Chance(70)) {
    chain = program.Add(NPU_VECTOR_ADD, chain, parameter(-128, 255, NPU_INT32));
  }
  if (random->Chance(80)) {
    int32_t least = program.Add(NPU_VECTOR_CONSTANT, 0, 0, 0, random->Pick({-128, 0, -3}));
    chain = program.Add(NPU_VECTOR_MAXIMUM, least, chain);
    int32_t most = program.Add(NPU_VECTOR_CONSTANT, 0, 0, 0, random->Pick({127, 255, 100}));
    chain = program.Add(NPU_VECTOR_MINIMUM, chain, most);
  }
  return program;
}

npu_dtype AnyFactor(Random* random) { return random->Pick({NPU_INT8, NPU_UINT8}); }

int32_t AnyZeroPoint(Random* random, npu_dtype dtype) {
  if (random->Chance(30)) return 0;
  int64_t least = dtype == NPU_INT8 ? INT8_MIN : dtype == NPU_INT16 ? INT16_MIN : 0;
  int64_t most = dtype == NPU_UINT8 ? UINT8_MAX : -1 - least;
  // In the middle, some products need no sums of their operands.
  return static_cast<int32_t>(random->Chance(60)
                                  ? random->Pick({least, most, (least + most + 1) / 2})
                                  : random->Between(least, most));
}

// ---- Running and comparing ----

std::vector<std::string> InstructionSets() {
  std::vector<std::string> names;
  for (const char* name : {"generic", "avx2", "avx512", "avx512vnni", "amx"}) {
    if (SelectSimd(name)) names.emplace_back(name);
  }
  return names;
}

ThreadPool* PoolOf(int threads) {
  static ThreadPool two(2);
  static ThreadPool five(5);
  return threads == 1 ? nullptr : threads == 2 ? &two : &five;
}

// How far apart results may be: nothing, or this part of the largest.
double Tolerance(npu_dtype dtype, Values values) {
  if (values != Values::kReal) return 0;
  return dtype == NPU_FLOAT16 ? 2e-3 : 2e-5;
}

bool Same(const TensorView& got, const TensorView& want, double tolerance) {
  int64_t count = ElementCount(want);
  for (int64_t i = 0; i < count && tolerance == 0 && IsInteger(want.dtype); ++i) {
    int64_t a = oracle::LoadInteger(got, i);
    int64_t b = oracle::LoadInteger(want, i);
    if (a == b) continue;
    std::fprintf(stderr, "element %lld of %lld is %lld instead of %lld\n",
                 static_cast<long long>(i), static_cast<long long>(count),
                 static_cast<long long>(a), static_cast<long long>(b));
    return false;
  }
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    double value = std::fabs(oracle::Load(want, i));
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  bool whole = want.dtype != NPU_FLOAT32 && want.dtype != NPU_FLOAT16;
  double allowed = tolerance * std::max(largest, 1.0) + (whole && tolerance > 0 ? 1 : 0);
  for (int64_t i = 0; i < count; ++i) {
    double a = oracle::Load(got, i);
    double b = oracle::Load(want, i);
    if (check::Near(a, b, 0, allowed)) continue;
    std::fprintf(stderr, "element %lld of %lld is %.9g instead of %.9g\n",
                 static_cast<long long>(i), static_cast<long long>(count), a, b);
    return false;
  }
  return true;
}

// Memory of a kernel: exactly as much as it asks for, and full of NaN.
class ScratchMemory {
 public:
  explicit ScratchMemory(size_t bytes) {
    size_t rounded = (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    memory_.reset(std::aligned_alloc(kScratchAlignment, std::max(rounded, kScratchAlignment)));
    std::memset(memory_.get(), 0xff, rounded);
  }
  void* get() { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
};

constexpr auto kExecute = [](const auto& args, const KernelContext& context) {
  Execute(args, context);
};

// Runs a kernel with each instruction set and several numbers of threads. Results must be near
// those of the oracle, and not depend on threads.
template <typename Args, typename Kernel = decltype(kExecute)>
void Compare(const std::string& what, const Args& args, Tensor* out, double tolerance,
             void (*reference)(const Args&), const Kernel& kernel = kExecute) {
  std::vector<uint8_t> before = out->bytes();
  reference(args);
  Tensor want = *out;
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    std::vector<uint8_t> first;
    for (int threads : {1, 2, 5}) {
      out->bytes() = before;
      // The memory of `out` must stay where it is.
      KernelContext context;
      context.pool = PoolOf(threads);
      ScratchMemory memory(ScratchBytes(args, threads));
      context.scratch = memory.get();
      kernel(args, context);
      bool good = true;
      if (threads == 1) {
        first = out->bytes();
        good = Same(out->View(), want.View(), tolerance);
      } else {
        good = first == out->bytes();
      }
      if (good) continue;
      std::string where = what;
      where.append(", ").append(name).append(", ").append(std::to_string(threads));
      check::Fail(__FILE__, __LINE__, where.append(" threads"));
      return;
    }
  }
}

std::string Describe(const char* name, std::initializer_list<TensorView> tensors) {
  std::string text = name;
  for (const TensorView& tensor : tensors) {
    text += " [";
    for (int d = 0; d < tensor.rank; ++d) text += std::to_string(tensor.dims[d]) + " ";
    text += "]:" + std::to_string(tensor.dtype);
  }
  return text;
}

// ---- Matrix products ----

/*! \brief A packed weight as Halve stores it. */
std::vector<uint8_t> Halved(const std::vector<uint8_t>& packed) {
  std::vector<uint8_t> halves(HalvedBytes(packed.size()));
  Halve(packed.data(), packed.size(), halves.data());
  return halves;
}

/*! \brief Replaces elements of 8 bits by numbers that fit into 4. */
void Narrow(Tensor* tensor) {
  const TensorView view = tensor->View();
  std::vector<uint8_t>& bytes = tensor->bytes();
  const int least = view.dtype == NPU_INT8 ? -8 : 0;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((byte & 15) + least);
  CHECK(FitHalves(view.dtype, bytes.data(), bytes.size()));
}

void CheckMatMul(Random* random, Shape batch, int64_t rows, int64_t depth, int64_t columns,
                 bool integers = false) {
  Values values = random->Chance(50) ? Values::kWhole : Values::kReal;
  if (integers) values = Values::kBits;
  MatMulArgs args;
  args.transpose_a = random->Chance(30);
  args.transpose_b = random->Chance(50);
  Shape a = random->Chance(60) ? batch : Narrowed(random, batch);
  Shape b = random->Chance(40) ? batch : random->Chance(50) ? Shape() : Narrowed(random, batch);
  a.push_back(args.transpose_a ? depth : rows);
  a.push_back(args.transpose_a ? rows : depth);
  b.push_back(args.transpose_b ? columns : depth);
  b.push_back(args.transpose_b ? depth : columns);
  batch.push_back(rows);
  batch.push_back(columns);
  npu_dtype dtype = AnyFloat(random);
  npu_dtype left_type = random->Chance(90) ? dtype : AnyFloat(random);
  npu_dtype right_type = random->Chance(90) ? dtype : AnyFloat(random);
  if (integers) {
    dtype = random->Chance(85) ? AnyInteger(random) : AnyFloat(random);
    left_type = random->Chance(25) ? NPU_INT16 : AnyFactor(random);
    bool wide = left_type == NPU_INT16 && random->Chance(50);
    right_type = wide ? NPU_INT16 : AnyFactor(random);
    args.a_zero_point = AnyZeroPoint(random, left_type);
    args.b_zero_point = AnyZeroPoint(random, right_type);
  }
  Tensor left(random, a, left_type, values);
  Tensor right(random, b, right_type, values);
  Tensor out(batch, integers || random->Chance(80) ? dtype : AnyType(random));
  Program epilogue = integers ? AnyIntegerEpilogue(random, batch, {columns}, out.View().dtype)
                              : AnyProgram(random, batch, values, true);
  args.a = left.View();
  args.b = right.View();
  args.out = out.View();
  args.epilogue = epilogue.View();
  double tolerance = Tolerance(args.out.dtype, values);
  // Float32 is not exact in another order.
  if (integers && !IsIntegerEpilogue(args.epilogue, args.out.dtype)) {
    tolerance = Tolerance(args.out.dtype, Values::kReal);
  }
  std::string what = Describe("matmul", {args.a, args.b, args.out});
  if (args.transpose_a) what += " a transposed";
  if (args.transpose_b) what += " b transposed";
  Compare(what, args, &out, tolerance, oracle::MatMul);

  // All instruction sets must write the same packed bytes, and read them.
  std::vector<std::vector<uint8_t>> packed;
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    packed.emplace_back(PackedMatMulBBytes(args.b, args.transpose_b, 0));
    PackMatMulB(args.b, args.transpose_b, 0, packed.back().data());
    CHECK(packed.back() == packed.front());
  }
  args.packed_b = packed[0].data();
  Compare(what + " packed", args, &out, tolerance, oracle::MatMul);
  if (!MayBeHalved(args.a.dtype, args.b.dtype)) return;
  Narrow(&right);
  PackMatMulB(args.b, args.transpose_b, 0, packed[0].data());
  const std::vector<uint8_t> halves = Halved(packed[0]);
  args.packed_b = halves.data();
  args.b_halved = true;
  Compare(what + " halved", args, &out, tolerance, oracle::MatMul);
}

/*! \brief Floats by integer weights; `block` 0: with a single scale. */
void CheckWeights(Random* random, Shape batch, int64_t rows, int64_t depth, int64_t columns,
                  int32_t bits, int64_t block) {
  MatMulArgs args;
  args.transpose_a = random->Chance(30);
  args.transpose_b = random->Chance(50);
  args.b_bits = bits;
  args.b_block = block;
  Shape a = batch;
  Shape b = block == 0 && random->Chance(40) ? batch : Shape();
  a.push_back(args.transpose_a ? depth : rows);
  a.push_back(args.transpose_a ? rows : depth);
  b.push_back(args.transpose_b ? columns : depth);
  b.push_back(args.transpose_b ? depth : columns);
  batch.push_back(rows);
  batch.push_back(columns);
  npu_dtype dtype = random->Chance(50) ? NPU_INT8 : NPU_UINT8;
  int64_t least = dtype == NPU_UINT8 ? 0 : bits == 4 ? -8 : -128;
  int64_t count = bits == 4 ? 16 : 256;
  auto fill = [&](Tensor* tensor) {
    for (uint8_t& byte : tensor->bytes()) {
      byte = static_cast<uint8_t>(least + random->Between(0, count - 1));
    }
  };
  Tensor left(random, a, AnyFloat(random), Values::kReal);
  Tensor right(b, dtype);
  fill(&right);
  args.b_zero_point = static_cast<int32_t>(least + random->Between(0, count - 1));
  Shape blocks = {block == 0 ? 1 : depth / block, columns};
  Tensor scales(random, blocks, NPU_FLOAT32, Values::kReal);
  Tensor zeros(blocks, dtype);
  fill(&zeros);
  if (block != 0) args.b_scales = scales.View();
  if (block != 0 && random->Chance(50)) args.b_zero_points = zeros.View();
  Tensor out(batch, AnyFloat(random));
  Program epilogue = AnyProgram(random, batch, Values::kWhole, true);
  args.a = left.View();
  args.b = right.View();
  args.out = out.View();
  if (random->Chance(50)) args.epilogue = epilogue.View();
  double tolerance = Tolerance(args.out.dtype, Values::kReal);
  std::string what = Describe("matmul", {args.a, args.b, args.out}) + " of weights of " +
                     std::to_string(bits) + " bits in blocks of " + std::to_string(block);
  Compare(what, args, &out, tolerance, oracle::MatMul);
  std::vector<std::vector<uint8_t>> packed;
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    packed.emplace_back(PackedMatMulBBytes(args.b, args.transpose_b, bits));
    PackMatMulB(args.b, args.transpose_b, bits, packed.back().data());
    CHECK(packed.back() == packed.front());
  }
  args.packed_b = packed[0].data();
  Compare(what + " packed", args, &out, tolerance, oracle::MatMul);
}

TEST(matmul) {
  Random random(1);
  for (int i = 0; i < 60; ++i) {
    Shape batch;
    for (int64_t d = random.Between(0, 3); d > 0; --d) batch.push_back(random.Between(1, 3));
    CheckMatMul(&random, batch, random.Between(1, 20), random.Between(1, 40),
                random.Between(1, 70));
  }
  // Several blocks in each direction, and their edges.
  for (int repeat = 0; repeat < 3; ++repeat) {
    CheckMatMul(&random, {}, 261, 300, 5);
    CheckMatMul(&random, {}, 9, 513, 131);
    CheckMatMul(&random, {}, 40, 40, 256);
  }
  for (int64_t columns : {1, 2, 3, 4, 31, 33}) CheckMatMul(&random, {2}, 17, 30, columns);
  for (int64_t rows = 1; rows <= 9; ++rows) CheckMatMul(&random, {}, rows, 130, 50);
  for (int64_t rows : {23, 24, 25, 32, 48, 63}) CheckMatMul(&random, {}, rows, 270, 67);
}

TEST(matmul_of_integers) {
  Random random(22);
  for (int i = 0; i < 150; ++i) {
    Shape batch;
    for (int64_t d = random.Between(0, 3); d > 0; --d) batch.push_back(random.Between(1, 3));
    CheckMatMul(&random, batch, random.Between(1, 20), random.Between(1, 40), random.Between(1, 70),
                true);
  }
  for (int repeat = 0; repeat < 3; ++repeat) {
    CheckMatMul(&random, {}, 261, 300, 5, true);
    CheckMatMul(&random, {}, 9, 1029, 131, true);
    CheckMatMul(&random, {}, 40, 41, 256, true);
  }
  for (int64_t columns : {1, 2, 3, 4, 31, 33}) CheckMatMul(&random, {2}, 17, 30, columns, true);
  for (int64_t rows = 1; rows <= 9; ++rows) CheckMatMul(&random, {}, rows, 130, 50, true);
}

TEST(matmul_with_weights_of_integers) {
  Random random(23);
  for (int32_t bits : {4, 8}) {
    for (int64_t block : {0, 1, 7, 32}) {
      for (int i = 0; i < 12; ++i) {
        Shape batch;
        for (int64_t d = random.Between(0, 2); d > 0; --d) batch.push_back(random.Between(1, 3));
        int64_t depth = block == 0 ? random.Between(1, 40) : block * random.Between(1, 5);
        CheckWeights(&random, batch, random.Between(1, 20), depth, random.Between(1, 70), bits,
                     block);
      }
    }
    CheckWeights(&random, {}, 1, 1024, 131, bits, 128);
    CheckWeights(&random, {}, 261, 320, 5, bits, 32);
    CheckWeights(&random, {}, 3, 0, 5, bits, 0);
  }
  // Half a byte for each.
  TensorView b;
  b.dtype = NPU_UINT8;
  b.rank = 2;
  b.dims[0] = 64;
  b.dims[1] = 96;
  CHECK_EQ(PackedMatMulBBytes(b, false, 8), size_t{64 * 96});
  CHECK_EQ(PackedMatMulBBytes(b, false, 4), size_t{32 * 96});
}

TEST(numbers_of_4_bits_fit_halves) {
  for (npu_dtype dtype : {NPU_INT8, NPU_UINT8}) {
    const int least = dtype == NPU_INT8 ? -8 : 0;
    for (int number = least - 120; number < least + 128; ++number) {
      const uint8_t byte = static_cast<uint8_t>(number);
      CHECK_EQ(FitHalves(dtype, &byte, 1), number >= least && number < least + 16);
    }
  }
}

TEST(sums_of_integers_keep_the_low_bits) {
  // 255 * 255 * 40000 is more than 31 bits have.
  constexpr int64_t kDepth = 40000;
  Tensor a({1, kDepth}, NPU_UINT8), b({kDepth, 1}, NPU_UINT8), out({1, 1}, NPU_INT32);
  std::fill(a.bytes().begin(), a.bytes().end(), 255);
  std::fill(b.bytes().begin(), b.bytes().end(), 255);
  MatMulArgs args;
  args.a = a.View();
  args.b = b.View();
  args.out = out.View();
  Compare("a long sum", args, &out, 0, oracle::MatMul);
  CHECK_EQ(oracle::LoadInteger(out.View(), 0), int64_t{255} * 255 * kDepth - (int64_t{1} << 32));
  // With more rows, other instructions multiply.
  constexpr int64_t kRows = 8;
  Tensor rows({kRows, kDepth}, NPU_UINT8), column_of_sums({kRows, 1}, NPU_INT32);
  std::fill(rows.bytes().begin(), rows.bytes().end(), 255);
  args.a = rows.View();
  args.out = column_of_sums.View();
  Compare("long sums", args, &column_of_sums, 0, oracle::MatMul);
  args.a = a.View();
  // The largest allowed number.
  constexpr int64_t kWideDepth = 33025;
  a = Tensor({1, kWideDepth}, NPU_INT16);
  b = Tensor({kWideDepth, 1}, NPU_UINT8);
  std::fill(b.bytes().begin(), b.bytes().end(), 255);
  args.b = b.View();
  Tensor wide({1, 1}, NPU_INT64);
  std::fill(a.bytes().begin(), a.bytes().end(), 0x7f);
  args.a = a.View();
  args.a_zero_point = INT16_MIN;
  args.out = wide.View();
  Compare("a long sum of int16", args, &wide, 0, oracle::MatMul);
  CHECK_EQ(oracle::LoadInteger(wide.View(), 0), int64_t{0x7f7f + 32768} * 255 * kWideDepth);
  b = Tensor({kWideDepth, 1}, NPU_INT16);
  std::fill(b.bytes().begin(), b.bytes().end(), 0x80);
  args.b = b.View();
  args.b_zero_point = INT16_MAX;
  Compare("a long sum of two int16", args, &wide, 0, oracle::MatMul);
  CHECK_EQ(oracle::LoadInteger(wide.View(), 0),
           int64_t{0x7f7f + 32768} * (0x8080 - 65536 - 32767) * kWideDepth);
}

TEST(matmul_of_nothing) {
  Random random(2);
  CheckMatMul(&random, {}, 3, 0, 5, true);
  CheckMatMul(&random, {}, 0, 3, 5, true);
  CheckMatMul(&random, {}, 3, 0, 5);
  CheckMatMul(&random, {}, 0, 3, 5);
  CheckMatMul(&random, {2}, 4, 3, 0);
  CheckMatMul(&random, {0}, 4, 3, 2);
}

// ---- Convolutions ----

struct Layer {
  int64_t batch, channels, outputs, groups;
  Shape in, window, strides, dilations, pads_begin, pads_end;
};

// Sets the data to zeros except at a stride, as before a transposed convolution; returns the
// others.
std::vector<uint8_t> SpreadOut(Random* random, Tensor* data, ConvolutionArgs* args) {
  TensorView view = data->View();
  args->is_spread = true;
  for (int d = 0; d < args->spatial_rank; ++d) {
    args->spread[d] = random->Between(1, 4);
    args->spread_first[d] = random->Between(0, 5);
  }
  std::vector<uint8_t> elements;
  size_t size = ElementSize(view.dtype);
  for (int64_t i = 0; i < ElementCount(view); ++i) {
    bool kept = true;
    int64_t rest = i;
    for (int d = args->spatial_rank - 1; d >= 0; --d) {
      int64_t at = rest % view.dims[2 + d] - args->spread_first[d];
      rest /= view.dims[2 + d];
      kept = kept && at >= 0 && at % args->spread[d] == 0;
    }
    uint8_t* element = data->bytes().data() + static_cast<size_t>(i) * size;
    if (kept) elements.insert(elements.end(), element, element + size);
    if (!kept) std::memset(element, 0, size);
  }
  return elements;
}

void CheckConvolution(Random* random, const Layer& layer, bool integers = false) {
  Values values = random->Chance(50) ? Values::kWhole : Values::kReal;
  if (integers) values = Values::kBits;
  ConvolutionArgs args;
  args.spatial_rank = static_cast<int32_t>(layer.in.size());
  args.groups = layer.groups;
  Shape data = {layer.batch, layer.channels};
  Shape weight = {layer.outputs, layer.channels / layer.groups};
  Shape out = {layer.batch, layer.outputs};
  for (size_t d = 0; d < layer.in.size(); ++d) {
    args.strides[d] = layer.strides[d];
    args.dilations[d] = layer.dilations[d];
    args.pads_begin[d] = layer.pads_begin[d];
    args.pads_end[d] = layer.pads_end[d];
    int64_t reach = (layer.window[d] - 1) * layer.dilations[d] + 1;
    int64_t room = layer.in[d] + layer.pads_begin[d] + layer.pads_end[d] - reach;
    if (room < 0) return;
    data.push_back(layer.in[d]);
    weight.push_back(layer.window[d]);
    out.push_back(room / layer.strides[d] + 1);
  }
  npu_dtype dtype = AnyFloat(random);
  npu_dtype data_type = random->Chance(90) ? dtype : AnyFloat(random);
  npu_dtype weight_type = random->Chance(90) ? dtype : AnyFloat(random);
  if (integers) {
    dtype = random->Chance(85) ? AnyInteger(random) : AnyFloat(random);
    data_type = random->Chance(15) ? NPU_INT16 : AnyFactor(random);
    weight_type = AnyFactor(random);
    args.data_zero_point = AnyZeroPoint(random, data_type);
    args.weight_zero_point = AnyZeroPoint(random, weight_type);
  }
  Tensor x(random, data, data_type, values);
  Tensor w(random, weight, weight_type, values);
  bool steps =
      std::any_of(layer.strides.begin(), layer.strides.end(), [](int64_t s) { return s > 1; });
  std::vector<uint8_t> elements;
  if (!integers && !steps && args.groups == 1 && random->Chance(60)) {
    elements = SpreadOut(random, &x, &args);
  }
  Tensor y(out, integers || random->Chance(80) ? dtype : AnyType(random));
  Shape channels(layer.in.size() + 1, 1);
  channels[0] = layer.outputs;
  Program epilogue = integers ? AnyIntegerEpilogue(random, out, channels, dtype)
                              : AnyProgram(random, out, values, true);
  args.data = x.View();
  args.weight = w.View();
  args.out = y.View();
  args.epilogue = epilogue.View();
  auto convolution = [&elements](ConvolutionArgs given, const KernelContext& context) {
    if (given.is_spread) given.data.data = elements.data();
    Execute(given, context);
  };
  double tolerance = Tolerance(args.out.dtype, values);
  if (integers && !IsIntegerEpilogue(args.epilogue, args.out.dtype)) {
    tolerance = Tolerance(args.out.dtype, Values::kReal);
  }
  std::string what = Describe("convolution", {args.data, args.weight, args.out});
  Compare(what, args, &y, tolerance, oracle::Convolution, convolution);

  std::vector<std::vector<uint8_t>> packed;
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    packed.emplace_back(PackedConvolutionWeightBytes(args.weight, args.groups));
    PackConvolutionWeight(args.weight, args.groups, packed.back().data());
    CHECK(packed.back() == packed.front());
  }
  args.packed_weight = packed[0].data();
  Compare(what + " packed", args, &y, tolerance, oracle::Convolution, convolution);
  if (!MayBeHalved(args.data.dtype, args.weight.dtype)) return;
  Narrow(&w);
  PackConvolutionWeight(args.weight, args.groups, packed[0].data());
  const std::vector<uint8_t> halves = Halved(packed[0]);
  args.packed_weight = halves.data();
  args.weight_halved = true;
  Compare(what + " halved", args, &y, tolerance, oracle::Convolution, convolution);
}

void CheckConvolutions(Random* random, int count, bool depthwise, bool integers = false) {
  for (int i = 0; i < count; ++i) {
    Layer layer;
    size_t rank = static_cast<size_t>(random->Between(1, 3));
    layer.batch = random->Between(1, 2);
    layer.groups = depthwise ? random->Between(2, 5) : random->Between(1, 3);
    layer.channels = layer.groups * (depthwise ? 1 : random->Between(1, 4));
    layer.outputs = layer.groups * random->Between(1, depthwise ? 3 : 12);
    for (size_t d = 0; d < rank; ++d) {
      layer.in.push_back(random->Between(1, rank == 1 ? 70 : rank == 2 ? 15 : 6));
      layer.window.push_back(random->Between(1, rank == 3 ? 3 : 4));
      layer.strides.push_back(random->Chance(50) ? 1 : random->Between(1, 4));
      layer.dilations.push_back(random->Chance(60) ? 1 : random->Between(1, 4));
      layer.pads_begin.push_back(random->Chance(40) ? 0 : random->Between(0, 3));
      layer.pads_end.push_back(random->Chance(40) ? 0 : random->Between(0, 3));
    }
    CheckConvolution(random, layer, integers);
  }
}

TEST(convolution) {
  Random random(3);
  CheckConvolutions(&random, 150, false);
  // The kinds of layers that networks have, and shapes of several blocks.
  CheckConvolution(&random, {1, 3, 9, 1, {23, 21}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}});
  CheckConvolution(&random, {1, 40, 12, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  CheckConvolution(&random, {2, 20, 40, 1, {14, 14}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}});
  CheckConvolution(&random, {1, 20, 9, 1, {14, 14}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}});
  CheckConvolution(&random, {1, 30, 270, 1, {3, 3}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  CheckConvolution(&random, {1, 300, 11, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}});
  // Spread data with more outputs than are joined at once.
  for (int i = 0; i < 6; ++i) {
    CheckConvolution(&random, {1, 2, 3, 1, {50, 61}, {2, 3}, {1, 1}, {1, 1}, {1, 0}, {1, 1}});
    CheckConvolution(
        &random, {1, 2, 3, 1, {7, 19, 31}, {3, 2, 2}, {1, 1, 1}, {1, 2, 1}, {1, 0, 0}, {1, 0, 0}});
  }
  // Tiles of several panels of rows.
  for (int64_t outputs : {16, 24, 32, 40, 72}) {
    for (int64_t width : {5, 14, 30, 33}) {
      int64_t channels = random.Pick<int64_t>({3, 31});
      int64_t stride = random.Between(1, 2);
      CheckConvolution(&random, {2,
                                 2 * channels,
                                 2 * outputs,
                                 2,
                                 {7, width},
                                 {3, 3},
                                 {stride, stride},
                                 {1, 1},
                                 {1, 1},
                                 {1, 1}});
    }
  }
  // Panels whose last columns fill little of a vector.
  for (int64_t columns : {17, 18, 19, 49, 51}) {
    CheckConvolution(&random, {1, 20, 24, 1, {1, columns}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}});
  }
}

TEST(depthwise_convolution) {
  Random random(4);
  CheckConvolutions(&random, 100, true);
  CheckConvolution(&random, {1, 3, 3, 3, {70, 70}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  CheckConvolution(&random, {1, 3, 3, 3, {30, 41}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}});
  // Lines of less than a vector, of one, and of more, in and beyond the padding.
  for (int64_t size : {1, 7, 8, 14, 16, 17, 33, 56}) {
    for (int64_t stride : {1, 2}) {
      for (int64_t window : {3, 5}) {
        for (int64_t dilation : {1, 2}) {
          int64_t pad = random.Pick<int64_t>({window / 2 * dilation, window * dilation});
          CheckConvolution(&random, {2,
                                     2,
                                     random.Pick<int64_t>({2, 4}),
                                     2,
                                     {random.Pick<int64_t>({5, 9, 14, 23, 40}), size},
                                     {window, window},
                                     {stride, stride},
                                     {dilation, dilation},
                                     {pad, pad},
                                     {pad, pad}});
        }
      }
    }
  }
}

// Tiles that are computed as one may have gaps between their packed weights.
TEST(convolution_with_weights_in_parts) {
  Random random(42);
  constexpr int64_t kGap = 13;
  for (int64_t panels : {2, 3, 5, 7, 10, 13}) {
    const int64_t kRows = panels < 6 ? 2 * kPanelRows : 5 * kPanelRows;
    const int64_t rows = panels * kPanelRows;
    Tensor x(&random, Shape{1, 3, 9, 11}, NPU_FLOAT32, Values::kWhole);
    Tensor w(&random, Shape{rows, 3, 3, 3}, NPU_FLOAT32, Values::kWhole);
    Tensor out(&random, Shape{1, rows, 7, 9}, NPU_FLOAT32, Values::kWhole);
    size_t bytes = PackedConvolutionWeightBytes(w.View(), 1);
    std::vector<float> packed(bytes / sizeof(float)), parts;
    PackConvolutionWeight(w.View(), 1, packed.data());
    const size_t part = packed.size() / static_cast<size_t>(rows) * kRows;
    for (size_t i = 0; i < packed.size(); i += part) {
      size_t end = std::min(i + part, packed.size());
      parts.insert(parts.end(), packed.begin() + i, packed.begin() + end);
      parts.insert(parts.end(), kGap, std::numeric_limits<float>::quiet_NaN());
    }
    ConvolutionArgs args;
    args.spatial_rank = 2;
    for (int d = 0; d < 2; ++d) args.strides[d] = args.dilations[d] = 1;
    args.data = x.View();
    args.weight = w.View();
    args.out = out.View();
    args.packed_weight = parts.data();
    args.weight_part = kRows;
    args.weight_pitch = static_cast<int64_t>((part + kGap) * sizeof(float));
    Compare("weights in parts", args, &out, 0, oracle::Convolution);
  }
}

// A residual may lie where the output goes, so nothing may be stored before it is read.
TEST(convolution_onto_its_residual) {
  Random random(41);
  struct Channels {
    int64_t count, groups;
  };
  for (auto [count, groups] : {Channels{6, 1}, Channels{6, 6}, Channels{56, 1}}) {
    for (int64_t width : {3, 7, 11, 14, 16, 45}) {
      Tensor x(&random, Shape{1, count, 5, width}, NPU_FLOAT32, Values::kWhole);
      Tensor w(&random, Shape{count, count / groups, 3, 3}, NPU_FLOAT32, Values::kWhole);
      Program epilogue;
      epilogue.tensors.emplace_back();
      epilogue.tensors.emplace_back(&random, Shape{1, count, 5, width}, NPU_FLOAT32,
                                    Values::kWhole);
      epilogue.tensors.emplace_back(&random, Shape{1, count, 1, 1}, NPU_FLOAT32, Values::kWhole);
      for (int32_t i = 0; i < 3; ++i) epilogue.Add(NPU_VECTOR_LOAD, i);
      epilogue.Add(NPU_VECTOR_CONSTANT, 0, 0, 0, -5);
      epilogue.Add(NPU_VECTOR_ADD, 0, 2);
      epilogue.Add(NPU_VECTOR_ADD, 4, 1);
      epilogue.Add(NPU_VECTOR_MAXIMUM, 5, 3);
      ConvolutionArgs args;
      args.spatial_rank = 2;
      args.groups = groups;
      for (int d = 0; d < 2; ++d) {
        args.strides[d] = args.dilations[d] = 1;
        args.pads_begin[d] = args.pads_end[d] = 1;
      }
      args.data = x.View();
      args.weight = w.View();
      args.epilogue = epilogue.View();
      args.out = epilogue.tensors[1].View();
      Compare("onto its residual", args, &epilogue.tensors[1], 0, oracle::Convolution);
    }
  }
}

TEST(convolution_of_integers) {
  Random random(23);
  CheckConvolutions(&random, 150, false, true);
  CheckConvolutions(&random, 100, true, true);
  for (const Layer& layer :
       std::vector<Layer>{{1, 3, 9, 1, {23, 21}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}},
                          {1, 40, 12, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
                          {2, 21, 40, 1, {14, 14}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
                          {1, 20, 9, 1, {14, 14}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}},
                          {1, 30, 270, 1, {3, 3}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
                          {1, 300, 11, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
                          {1, 4, 4, 4, {70, 70}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
                          {1, 3, 6, 3, {30, 41}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}}}) {
    CheckConvolution(&random, layer, true);
  }
}

TEST(depthwise_convolution_of_integers) {
  Random random(25);
  // Lines of less than a vector, of one, and of more; windows of less than a quad, and of more.
  for (int64_t size : {7, 16, 33, 56}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t window : {1, 3, 4, 5, 8, 9}) {
        for (int64_t height : {1, 3, 5, 7}) {
          int64_t dilation = random.Chance(70) ? 1 : 2;
          int64_t pad = random.Pick<int64_t>({0, window / 2, window});
          CheckConvolution(&random,
                           {2,
                            3,
                            random.Pick<int64_t>({3, 6}),
                            3,
                            {13, size},
                            {height, window},
                            {stride, stride},
                            {dilation, 1},
                            {height / 2, pad},
                            {height, pad}},
                           true);
        }
      }
    }
  }
  // More lines than are computed at once.
  CheckConvolution(&random, {1, 2, 2, 2, {131, 70}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}, true);
  CheckConvolution(&random, {1, 2, 2, 2, {5, 3000}, {3, 5}, {2, 2}, {1, 1}, {1, 2}, {1, 2}}, true);
}

TEST(convolution_of_nothing) {
  Random random(5);
  CheckConvolution(&random, {0, 3, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  CheckConvolution(&random, {1, 0, 4, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
  CheckConvolution(&random, {1, 2, 4, 1, {0, 5}, {3, 3}, {1, 1}, {1, 1}, {2, 1}, {2, 1}});
  CheckConvolution(&random, {1, 2, 0, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}});
}

// ---- Pools ----

TEST(pool) {
  Random random(6);
  for (int i = 0; i < 250; ++i) {
    size_t rank = static_cast<size_t>(random.Between(1, 3));
    PoolArgs args;
    args.spatial_rank = static_cast<int32_t>(rank);
    args.kind = random.Pick(
        {NPU_POOL_MAX, NPU_POOL_AVERAGE, NPU_POOL_AVERAGE_INCLUDE_PAD, NPU_POOL_AVERAGE_ADAPTIVE});
    Shape data = {random.Between(1, 2), random.Between(1, 5)};
    Shape out = data;
    bool fits = true;
    for (size_t d = 0; d < rank; ++d) {
      data.push_back(random.Between(1, rank == 1 ? 60 : rank == 2 ? 17 : 6));
      if (args.kind == NPU_POOL_AVERAGE_ADAPTIVE) {
        out.push_back(random.Chance(30) ? 1 : random.Between(1, data.back() + 2));
        continue;
      }
      args.window[d] = random.Between(1, 4);
      args.strides[d] = random.Between(1, 4);
      args.dilations[d] = random.Chance(70) ? 1 : random.Between(1, 3);
      args.pads_begin[d] = random.Between(0, 2);
      args.pads_end[d] = random.Between(0, 2);
      int64_t reach = (args.window[d] - 1) * args.dilations[d] + 1;
      int64_t room = data.back() + args.pads_begin[d] + args.pads_end[d] - reach;
      fits = fits && room >= 0;
      // Rounding up corresponds to ceil mode.
      int64_t up = random.Chance(50) ? args.strides[d] - 1 : 0;
      out.push_back((room + up) / args.strides[d] + 1);
    }
    if (!fits) continue;
    npu_dtype dtype = AnyType(&random);
    bool maximum = args.kind == NPU_POOL_MAX;
    Values values = maximum && random.Chance(50) ? Values::kSpecial : Values::kReal;
    Tensor x(&random, data, dtype, values);
    Tensor y(out, dtype);
    args.data = x.View();
    args.out = y.View();
    Compare(Describe("pool", {args.data, args.out}) + " kind " + std::to_string(args.kind), args,
            &y, Tolerance(dtype, values), oracle::Pool);
  }
}

TEST(pool_of_nothing) {
  Random random(7);
  for (npu_pool_kind kind : {NPU_POOL_MAX, NPU_POOL_AVERAGE, NPU_POOL_AVERAGE_ADAPTIVE}) {
    PoolArgs args;
    args.kind = kind;
    args.spatial_rank = 1;
    args.window[0] = args.strides[0] = args.dilations[0] = 1;
    args.pads_begin[0] = args.pads_end[0] = 1;
    for (const Shape& data : {Shape{0, 2, 3}, Shape{1, 0, 3}, Shape{1, 2, 0}}) {
      Tensor x(&random, data, NPU_FLOAT32, Values::kReal);
      Tensor y({data[0], data[1], data[2] + 2}, NPU_FLOAT32);
      args.data = x.View();
      args.out = y.View();
      Compare("empty pool", args, &y, 0, oracle::Pool);
    }
  }
}

// ---- Vector programs ----

TEST(elementwise) {
  Random random(8);
  for (int i = 0; i < 250; ++i) {
    Shape shape;
    int64_t rank = random.Between(0, 5);
    for (int64_t d = 0; d < rank; ++d) {
      shape.push_back(random.Between(random.Chance(5) ? 0 : 1, rank < 3 ? 60 : 7));
    }
    Values values = random.Chance(50) ? Values::kWhole : Values::kReal;
    Program program = AnyProgram(&random, shape, values, false);
    ElementwiseArgs args;
    args.program = program.View();
    npu_dtype dtype = AnyType(&random);
    // Not all instructions exist for integers.
    if (values == Values::kReal && IsIntegerProgram(args.program, dtype)) dtype = NPU_FLOAT32;
    Tensor out(shape, dtype);
    args.out = out.View();
    std::string what = Describe("elementwise", {args.out});
    for (const TensorView& input : program.inputs) what += Describe(" ", {input});
    Compare(what, args, &out, Tolerance(args.out.dtype, values), oracle::Elementwise);
  }
}

TEST(elementwise_of_many_elements) {
  Random random(9);
  Shape shape = {3, 170, 301};
  Program program;
  for (const Shape& input : {shape, Shape{170, 1}, Shape{301}}) {
    program.tensors.emplace_back(&random, input, NPU_FLOAT32, Values::kWhole);
    program.Add(NPU_VECTOR_LOAD, static_cast<int32_t>(program.tensors.size()) - 1);
  }
  program.Add(NPU_VECTOR_ADD, 3 - 1, program.Add(NPU_VECTOR_MULTIPLY, 0, 1));
  Tensor out(shape, NPU_FLOAT32);
  ElementwiseArgs args;
  args.program = program.View();
  args.out = out.View();
  Compare("large elementwise", args, &out, 0, oracle::Elementwise);
}

TEST(elementwise_in_place) {
  Random random(10);
  Program program;
  program.tensors.emplace_back(&random, Shape{7, 301}, NPU_FLOAT32, Values::kWhole);
  program.Add(NPU_VECTOR_LOAD, 0);
  program.Add(NPU_VECTOR_ADD, 0, 0);
  program.Add(NPU_VECTOR_MULTIPLY, 1, 0);
  ElementwiseArgs args;
  args.program = program.View();
  args.out = program.inputs[0];
  Compare("in place", args, &program.tensors[0], 0, oracle::Elementwise);
}

// Every instruction on numbers of all kinds, and NaN. Exact, but for the functions.
TEST(instructions) {
  std::vector<float> numbers = {0.0f,        -0.0f,    0.5f,  -0.5f,     1.5f,      2.5f,  -2.5f,
                                0.49999997f, 1e-40f,   3e38f, -1e9f,     7.0f,      -3.0f, 8388609,
                                4194305,     16777216, NAN,   HUGE_VALF, -HUGE_VALF};
  int64_t count = static_cast<int64_t>(numbers.size());
  Tensor a({count, 1, 1}, NPU_FLOAT32), b({count, 1}, NPU_FLOAT32), c({2}, NPU_FLOAT32);
  for (int64_t i = 0; i < count; ++i) {
    oracle::Store(a.View(), i, numbers[static_cast<size_t>(i)]);
    oracle::Store(b.View(), i, numbers[static_cast<size_t>(i)]);
  }
  oracle::Store(c.View(), 0, 5);
  oracle::Store(c.View(), 1, NAN);
  for (int opcode = NPU_VECTOR_ADD; opcode < NPU_VECTOR_OPCODE_COUNT; ++opcode) {
    if (!npu::kVectorOpcodes[opcode].reals) continue;
    Program program;
    program.tensors = {a, b, c};
    for (int32_t i = 0; i < 3; ++i) program.Add(NPU_VECTOR_LOAD, i);
    program.Add(static_cast<npu_vector_opcode>(opcode), 0, 1, 2);
    const std::set<int> functions = {
        NPU_VECTOR_POWER,   NPU_VECTOR_EXP, NPU_VECTOR_LOG, NPU_VECTOR_TANH, NPU_VECTOR_ERF,
        NPU_VECTOR_SIGMOID, NPU_VECTOR_SIN, NPU_VECTOR_COS, NPU_VECTOR_TAN,  NPU_VECTOR_ATAN};
    bool function = functions.count(opcode) > 0;
    Tensor out({count, count, 2}, NPU_FLOAT32);
    ElementwiseArgs args;
    args.program = program.View();
    args.out = out.View();
    Compare("opcode " + std::to_string(opcode), args, &out, function ? 1e-5 : 0,
            oracle::Elementwise);
  }
}

// It is the quotient in float32 that is rounded down, in tables of functions too.
TEST(floor_of_a_quotient_in_float32) {
  CHECK_EQ(npu::ResultOf(NPU_VECTOR_FLOOR_DIVIDE, 3, double{0.1f}, 0), 30.0);
  const float a = 3, b = 0.1f;
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    float out = 0;
    ActiveSimd().apply(NPU_VECTOR_FLOOR_DIVIDE, {&a, 0}, {&b, 0}, {}, 1, &out);
    CHECK_EQ(out, 30.0f);
  }
}

// In units of the last place of the true value.
double Error(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : 1e30;
  float nearest = static_cast<float>(want);
  if (got == nearest) return 0;
  if (std::isinf(got) || std::isinf(nearest)) return 1e30;
  int exponent = std::max(std::ilogb(want), -126);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

TEST(accuracy_of_functions) {
  struct Function {
    npu_vector_opcode opcode;
    const char* name;
    double (*truth)(double);
    double limit;
  };
  const Function functions[] = {
      {NPU_VECTOR_EXP, "exp", [](double x) { return std::exp(x); }, 1.5},
      {NPU_VECTOR_LOG, "log", [](double x) { return std::log(x); }, 1.5},
      {NPU_VECTOR_SQRT, "sqrt", [](double x) { return std::sqrt(x); }, 0.5001},
      {NPU_VECTOR_TANH, "tanh", [](double x) { return std::tanh(x); }, 3},
      {NPU_VECTOR_ERF, "erf", [](double x) { return std::erf(x); }, 3},
      {NPU_VECTOR_SIGMOID, "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, 3},
      {NPU_VECTOR_SIN, "sin", [](double x) { return std::sin(x); }, 1.5},
      {NPU_VECTOR_COS, "cos", [](double x) { return std::cos(x); }, 1.5},
      {NPU_VECTOR_TAN, "tan", [](double x) { return std::tan(x); }, 1.5},
      {NPU_VECTOR_ATAN, "atan", [](double x) { return std::atan(x); }, 1.5},
  };
  // Floats of all sizes; numbers from 2^-6 to 2^7, where functions do most, more densely.
  std::vector<float> x;
  auto add = [&](uint32_t begin, uint32_t end, uint32_t step) {
    for (uint64_t bits = begin; bits < end; bits += step) {
      for (uint32_t sign : {0u, 0x80000000u}) {
        uint32_t word = static_cast<uint32_t>(bits) | sign;
        float value;
        std::memcpy(&value, &word, sizeof(value));
        x.push_back(value);
      }
    }
  };
  add(0, 0x7f900000, 100003);
  add(0x3c800000, 0x43000000, 1009);
  std::vector<float> y(x.size());
  for (const Function& function : functions) {
    std::vector<double> want;
    for (float value : x) want.push_back(function.truth(value));
    for (const std::string& name : InstructionSets()) {
      SelectSimd(name.c_str());
      ActiveSimd().apply(function.opcode, {x.data()}, {}, {}, static_cast<int64_t>(x.size()),
                         y.data());
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        double error = Error(y[i], want[i]);
        if (error > worst) at = x[i];
        worst = std::max(worst, error);
      }
      std::printf("     %-8s %-8s %.2f ulp at %.9g\n", name.c_str(), function.name, worst,
                  static_cast<double>(at));
      CHECK(worst <= function.limit);
    }
  }
}

// Exponents that are the same everywhere, which may be computed in another way, and others.
TEST(accuracy_of_powers) {
  std::vector<float> bases;
  for (float sign : {1.0f, -1.0f}) {
    for (float base :
         {0.0f, 1e-40f, 3e-20f, 0.1f, 0.99f, 1.0f, 1.7f, 3.0f, 6e12f, 3e38f, HUGE_VALF}) {
      bases.push_back(sign * base);
    }
  }
  bases.push_back(NAN);
  int64_t count = static_cast<int64_t>(bases.size());
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    for (float exponent : {0.0f, -0.0f, 0.5f, 1.0f, 2.0f, 2.5f, 3.0f, 4.0f, 17.0f, -1.0f, -2.0f,
                           -3.0f, 1e10f, HUGE_VALF, -HUGE_VALF, NAN}) {
      std::vector<float> exponents(std::max<size_t>(bases.size(), kSplat), exponent);
      for (int64_t mask : {0, -1}) {
        std::vector<float> got(bases.size());
        ActiveSimd().apply(NPU_VECTOR_POWER, {bases.data()}, {exponents.data(), mask}, {}, count,
                           got.data());
        for (size_t i = 0; i < bases.size(); ++i) {
          double want = std::pow(static_cast<double>(bases[i]), static_cast<double>(exponent));
          bool good = Error(got[i], want) <= 2.5 &&
                      (got[i] != 0 || std::signbit(got[i]) == std::signbit(want));
          if (good) continue;
          check::Fail(__FILE__, __LINE__,
                      std::to_string(bases[i]) + " to the " + std::to_string(exponent) + " is " +
                          std::to_string(got[i]));
        }
      }
    }
  }
}

// ---- Programs of integers ----

// Where sums wrap around, quotients overflow, and floats have no room.
const std::vector<int64_t>& Extremes() {
  static const std::vector<int64_t> numbers = {INT64_MIN,
                                               INT64_MIN + 1,
                                               -(int64_t{1} << 53) - 1,
                                               INT32_MIN,
                                               -129,
                                               -7,
                                               -2,
                                               -1,
                                               0,
                                               1,
                                               2,
                                               7,
                                               255,
                                               256,
                                               INT32_MAX,
                                               int64_t{1} << 32,
                                               (int64_t{1} << 53) + 1,
                                               INT64_MAX - 1,
                                               INT64_MAX};
  return numbers;
}

Tensor AnyIntegers(Random* random, const Shape& shape, npu_dtype dtype) {
  Tensor tensor(random, shape, dtype, random->Chance(50) ? Values::kWhole : Values::kBits);
  for (int64_t i = 0; i < ElementCount(tensor.View()); ++i) {
    if (!random->Chance(30)) continue;
    int64_t last = static_cast<int64_t>(Extremes().size()) - 1;
    oracle::StoreInteger(tensor.View(), i,
                         Extremes()[static_cast<size_t>(random->Between(0, last))]);
  }
  return tensor;
}

bool ForIntegers(int opcode) { return opcode < NPU_VECTOR_POWER; }

TEST(instructions_on_integers) {
  int64_t count = static_cast<int64_t>(Extremes().size());
  Tensor a({count, 1}, NPU_INT64), b({count}, NPU_INT64), c({1}, NPU_INT64);
  for (int64_t i = 0; i < count; ++i) {
    oracle::StoreInteger(a.View(), i, Extremes()[static_cast<size_t>(i)]);
    oracle::StoreInteger(b.View(), i, Extremes()[static_cast<size_t>(i)]);
  }
  oracle::StoreInteger(c.View(), 0, 5);
  for (int opcode = NPU_VECTOR_ADD; ForIntegers(opcode); ++opcode) {
    for (npu_dtype dtype : {NPU_INT64, NPU_INT32, NPU_INT8, NPU_UINT8, NPU_BOOL}) {
      Program program;
      program.tensors = {a, b, c};
      for (int32_t i = 0; i < 3; ++i) program.Add(NPU_VECTOR_LOAD, i);
      program.Add(static_cast<npu_vector_opcode>(opcode), 0, 1, 2);
      Tensor out({count, count}, dtype);
      ElementwiseArgs args;
      args.program = program.View();
      args.out = out.View();
      Compare("integer opcode " + std::to_string(opcode), args, &out, 0, oracle::Elementwise);
    }
  }
}

// The rules of the driver's header, in numbers.
TEST(integers_wrap_and_quotients_are_whole) {
  auto compute = [](npu_vector_opcode opcode, int64_t x, int64_t y, npu_dtype dtype = NPU_INT64) {
    Program program;
    for (int64_t value : {x, y}) {
      program.tensors.emplace_back(Shape(), NPU_INT64);
      oracle::StoreInteger(program.tensors.back().View(), 0, value);
    }
    int32_t left = program.Add(NPU_VECTOR_LOAD, 0);
    program.Add(opcode, left, program.Add(NPU_VECTOR_LOAD, 1));
    Tensor out({}, dtype);
    ElementwiseArgs args;
    args.program = program.View();
    args.out = out.View();
    ScratchMemory memory(ScratchBytes(args, 1));
    KernelContext context;
    context.scratch = memory.get();
    Execute(args, context);
    return oracle::LoadInteger(args.out, 0);
  };
  int64_t odd = (int64_t{1} << 53) + 1;
  CHECK_EQ(compute(NPU_VECTOR_ADD, odd, 0), odd);
  CHECK_EQ(compute(NPU_VECTOR_ADD, INT64_MAX, 1), INT64_MIN);
  CHECK_EQ(compute(NPU_VECTOR_SUBTRACT, INT64_MIN, 1), INT64_MAX);
  CHECK_EQ(compute(NPU_VECTOR_MULTIPLY, INT64_MAX, 2), -2);
  CHECK_EQ(compute(NPU_VECTOR_DIVIDE, -7, 2), -3);
  CHECK_EQ(compute(NPU_VECTOR_DIVIDE, 7, 0), 0);
  CHECK_EQ(compute(NPU_VECTOR_DIVIDE, INT64_MIN, -1), INT64_MIN);
  CHECK_EQ(compute(NPU_VECTOR_FLOOR_DIVIDE, -7, 2), -4);
  CHECK_EQ(compute(NPU_VECTOR_FLOOR_DIVIDE, 7, -2), -4);
  CHECK_EQ(compute(NPU_VECTOR_FLOOR_DIVIDE, -7, 0), 0);
  CHECK_EQ(compute(NPU_VECTOR_REMAINDER, -7, 2), -1);
  CHECK_EQ(compute(NPU_VECTOR_REMAINDER, 7, -2), 1);
  CHECK_EQ(compute(NPU_VECTOR_REMAINDER, INT64_MIN, -1), 0);
  CHECK_EQ(compute(NPU_VECTOR_REMAINDER, 7, 0), 0);
  CHECK_EQ(compute(NPU_VECTOR_ABSOLUTE, INT64_MIN, 0), INT64_MIN);
  CHECK_EQ(compute(NPU_VECTOR_LESS, INT64_MIN, INT64_MAX), 1);
  CHECK_EQ(compute(NPU_VECTOR_EQUAL, odd, odd - 1), 0);
  CHECK_EQ(compute(NPU_VECTOR_ADD, 300, 0, NPU_INT8), 44);
  CHECK_EQ(compute(NPU_VECTOR_ADD, 0, -1, NPU_UINT8), 255);
  CHECK_EQ(compute(NPU_VECTOR_ADD, int64_t{1} << 32, 5, NPU_INT32), 5);
  CHECK_EQ(compute(NPU_VECTOR_ADD, 256, 0, NPU_BOOL), 1);
}

TEST(programs_of_integers) {
  Random random(15);
  for (int i = 0; i < 200; ++i) {
    Shape shape;
    int64_t rank = random.Between(0, 4);
    for (int64_t d = 0; d < rank; ++d) {
      shape.push_back(random.Between(random.Chance(5) ? 0 : 1, rank < 3 ? 60 : 7));
    }
    Program program;
    auto inputs = static_cast<int32_t>(random.Between(1, 4));
    for (int32_t input = 0; input < inputs; ++input) {
      Shape narrowed = random.Chance(40) ? shape : Narrowed(&random, shape);
      program.tensors.push_back(AnyIntegers(&random, narrowed, AnyInteger(&random)));
      program.Add(NPU_VECTOR_LOAD, input);
    }
    for (int64_t steps = random.Between(0, 6); steps > 0; --steps) {
      if (random.Chance(20)) {
        program.Add(NPU_VECTOR_CONSTANT, 0, 0, 0,
                    random.Pick({-1.0, 0.0, 2.5, -0.5, 3.0, 1e18, -0x1p63, 0x1p53}));
      }
      auto any = [&] {
        return static_cast<int32_t>(
            random.Between(0, static_cast<int64_t>(program.instructions.size()) - 1));
      };
      auto opcode =
          static_cast<npu_vector_opcode>(random.Between(NPU_VECTOR_ADD, NPU_VECTOR_ABSOLUTE));
      int32_t a = any();
      int32_t b = any();
      program.Add(opcode, a, b, any());
    }
    Tensor out(shape, AnyInteger(&random));
    ElementwiseArgs args;
    args.program = program.View();
    args.out = out.View();
    std::string what = Describe("integers", {args.out});
    for (const TensorView& input : program.inputs) what += Describe(" ", {input});
    Compare(what, args, &out, 0, oracle::Elementwise);
  }
}

TEST(integers_in_place) {
  Random random(16);
  Program program;
  program.tensors.push_back(AnyIntegers(&random, {7, 301}, NPU_INT32));
  program.Add(NPU_VECTOR_LOAD, 0);
  program.Add(NPU_VECTOR_MULTIPLY, 0, 0);
  program.Add(NPU_VECTOR_SUBTRACT, 1, 0);
  ElementwiseArgs args;
  args.program = program.View();
  args.out = program.inputs[0];
  Compare("integers in place", args, &program.tensors[0], 0, oracle::Elementwise);
}

// ---- Conversions ----

TEST(integers_become_the_nearest_floats) {
  const std::vector<int64_t> wholes = {INT64_MAX, INT64_MIN, 16777217,
                                       16777219,  -16777217, (int64_t{1} << 40) + (1 << 16) + 1};
  const std::vector<float> floats = {0x1p63f,  -0x1p63f,  16777216,
                                     16777220, -16777216, 0x1.000002p40f};
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    std::vector<float> loaded(wholes.size());
    ActiveSimd().load(NPU_INT64, wholes.data(), static_cast<int64_t>(wholes.size()), loaded.data());
    CHECK(loaded == floats);
    const int32_t most = INT32_MAX;
    float got;
    ActiveSimd().load(NPU_INT32, &most, 1, &got);
    CHECK_EQ(got, 0x1p31f);
  }
}

TEST(conversions) {
  // All halves, and floats near the limits of every type.
  std::vector<uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), 0);
  std::vector<float> floats = {0.5f,
                               1.5f,
                               -0.5f,
                               127.5f,
                               -128.5f,
                               254.5f,
                               255.5f,
                               -1.0f,
                               NAN,
                               HUGE_VALF,
                               -HUGE_VALF,
                               1e10f,
                               -1e10f,
                               1e20f,
                               -1e20f,
                               65519.0f,
                               65520.0f,
                               -65536.0f,
                               6.1e-5f,
                               5.9e-8f,
                               2.9e-8f,
                               1e-45f,
                               -0.0f,
                               2147483648.0f,
                               -2147483648.0f,
                               2147483520.0f,
                               9.2233720368547758e18f,
                               -9.2233720368547758e18f,
                               0x1.fffffep62f,
                               -0x1.fffffep62f,
                               0x1.000002p63f,
                               -0x1.000002p63f,
                               2.5f,
                               3.5f};
  Random random(11);
  for (int i = 0; i < 20000; ++i) {
    floats.push_back(std::ldexp(random.Real(), static_cast<int>(random.Between(-30, 70))));
  }
  int64_t count = static_cast<int64_t>(floats.size());
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    Tensor all({65536}, NPU_FLOAT16);
    std::memcpy(all.bytes().data(), halves.data(), all.bytes().size());
    std::vector<float> loaded(65536);
    ActiveSimd().load(NPU_FLOAT16, halves.data(), 65536, loaded.data());
    bool good = true;
    for (int64_t i = 0; i < 65536; ++i) {
      good = good && check::Near(loaded[static_cast<size_t>(i)], oracle::Load(all.View(), i), 0, 0);
    }
    CHECK(good);
    for (npu_dtype dtype :
         {NPU_FLOAT32, NPU_FLOAT16, NPU_INT8, NPU_UINT8, NPU_INT32, NPU_INT64, NPU_BOOL}) {
      Tensor got({count}, dtype), want({count}, dtype);
      ActiveSimd().store(dtype, floats.data(), count, got.View().data);
      for (int64_t i = 0; i < count; ++i) {
        oracle::Store(want.View(), i, floats[static_cast<size_t>(i)]);
      }
      CHECK(Same(got.View(), want.View(), 0));
      std::vector<float> back(floats.size());
      ActiveSimd().load(dtype, want.View().data, count, back.data());
      good = true;
      for (int64_t i = 0; i < count; ++i) {
        good =
            good && check::Near(back[static_cast<size_t>(i)], oracle::Load(want.View(), i), 0, 0);
      }
      CHECK(good);
    }
  }
}

// ---- Reductions ----

void CheckReduce(Random* random, const Shape& data, uint32_t axes, npu_reduce_kind kind) {
  bool sum = kind == NPU_REDUCE_SUM || kind == NPU_REDUCE_MEAN;
  Values values = random->Chance(50) ? Values::kReal : sum ? Values::kWhole : Values::kSpecial;
  if (kind == NPU_REDUCE_PRODUCT) values = Values::kPowers;
  bool keep = random->Chance(50);
  Shape out;
  for (size_t d = 0; d < data.size(); ++d) {
    bool over = (axes >> d & 1) != 0;
    if (!over || keep) out.push_back(over ? 1 : data[d]);
  }
  npu_dtype dtype = random->Chance(70) ? NPU_FLOAT32 : AnyType(random);
  bool integers = kind != NPU_REDUCE_MEAN && IsInteger(dtype);
  if (IsInteger(dtype) && !integers) dtype = NPU_FLOAT16;
  if (integers) values = Values::kWhole;
  // The quotients of a mean are not whole.
  double tolerance = Tolerance(dtype, kind == NPU_REDUCE_MEAN ? Values::kReal : values);
  Tensor x = integers ? AnyIntegers(random, data, dtype) : Tensor(random, data, dtype, values);
  Tensor y(out, integers && random->Chance(50) ? AnyInteger(random) : dtype);
  Program epilogue;
  if (integers) epilogue = AnyProgram(random, out, values, true, AnyInteger);
  if (values == Values::kReal) epilogue = AnyProgram(random, out, values, true);
  ReduceArgs args;
  args.data = x.View();
  args.out = y.View();
  args.kind = kind;
  args.axes = axes;
  args.epilogue = epilogue.View();
  Compare(Describe("reduce", {args.data, args.out}) + " axes " + std::to_string(axes) + " kind " +
              std::to_string(kind),
          args, &y, tolerance, oracle::Reduce);
}

TEST(reduce) {
  Random random(12);
  for (int i = 0; i < 500; ++i) {
    Shape data;
    int64_t rank = random.Between(0, 5);
    for (int64_t d = 0; d < rank; ++d) {
      data.push_back(random.Between(random.Chance(3) ? 0 : 1, rank < 3 ? 90 : 8));
    }
    uint32_t axes = static_cast<uint32_t>(random.Between(0, (1 << rank) - 1));
    CheckReduce(&random, data, axes,
                random.Pick({NPU_REDUCE_SUM, NPU_REDUCE_MEAN, NPU_REDUCE_MAX, NPU_REDUCE_MIN,
                             NPU_REDUCE_PRODUCT}));
  }
  CheckReduce(&random, {70000}, 1, NPU_REDUCE_SUM);
  CheckReduce(&random, {300, 700}, 1, NPU_REDUCE_MEAN);
  CheckReduce(&random, {3, 200, 2, 150}, 10, NPU_REDUCE_SUM);
  for (npu_reduce_kind kind :
       {NPU_REDUCE_SUM, NPU_REDUCE_MAX, NPU_REDUCE_MIN, NPU_REDUCE_PRODUCT}) {
    Tensor x = AnyIntegers(&random, {3, 200, 1500}, NPU_INT64);
    for (uint32_t axes : {4, 2, 7, 5}) {
      Shape out;
      for (uint32_t d = 0; d < 3; ++d) out.push_back((axes >> d & 1) != 0 ? 1 : x.View().dims[d]);
      Tensor y(out, NPU_INT64);
      ReduceArgs args;
      args.data = x.View();
      args.out = y.View();
      args.kind = kind;
      args.axes = axes;
      Compare("large reduce of integers", args, &y, 0, oracle::Reduce);
    }
  }
}

// ---- Steps along rows ----

// Four kernels that may take one pass over rows, in memory that they share like a program's.
class RowKernels {
 public:
  // Arguments point to the members.
  RowKernels(const RowKernels&) = delete;
  RowKernels& operator=(const RowKernels&) = delete;

  // Runs them one by one from `begin` on.
  void RunEach(int begin, int end, const KernelContext& context) const {
    if (begin < 1) Execute(first, context);
    if (begin < 2) Execute(second, context);
    if (begin < 3) Execute(third, context);
    if (begin < 4 && end == 4) Execute(fourth, context);
  }
  size_t MemoryBytes(int threads) const {
    return std::max({ScratchBytes(first, threads), ScratchBytes(second, threads),
                     ScratchBytes(third, threads), ScratchBytes(fourth, threads)});
  }
  const std::vector<Tensor>& Results() const { return memory_; }

  ReduceArgs first, third;
  ElementwiseArgs second, fourth;

 protected:
  // Rows are the last `dimensions`.
  explicit RowKernels(const Tensor& x, int dimensions) {
    by_row_ = Memory(x).View();
    data_ = memory_[0].View();
    for (int d = data_.rank - dimensions; d < data_.rank; ++d) {
      by_row_.dims[d] = 1;
      first.axes |= 1u << d;
    }
    third.axes = first.axes;
    first.data = data_;
  }

  Tensor& Memory(const Tensor& tensor) {
    memory_.reserve(8);
    memory_.push_back(tensor);
    return memory_.back();
  }
  TensorView NumbersByRow() {
    return Memory(Tensor(Shape(by_row_.dims, by_row_.dims + by_row_.rank), NPU_FLOAT32)).View();
  }

  VectorProgram Program(const std::vector<npu_vector_instruction>& instructions,
                        const std::vector<TensorView>& views) {
    inputs_.push_back({instructions, views});
    VectorProgram program;
    program.instructions = inputs_.back().instructions.data();
    program.instruction_count = static_cast<int32_t>(instructions.size());
    program.inputs = inputs_.back().views.data();
    program.input_count = static_cast<int32_t>(views.size());
    return program;
  }

  TensorView data_, by_row_;

 private:
  struct Inputs {
    std::vector<npu_vector_instruction> instructions;
    std::vector<TensorView> views;
  };
  std::vector<Tensor> memory_;
  std::list<Inputs> inputs_;
};

// A softmax, or the logarithm of its sums.
class SoftmaxKernels : public RowKernels {
 public:
  SoftmaxKernels(const Tensor& x, int dimensions, bool log, bool in_place)
      : RowKernels(x, dimensions) {
    TensorView numbers = NumbersByRow();
    TensorView weights = in_place ? data_ : Memory(x).View();
    first.out = third.out = numbers;
    first.kind = NPU_REDUCE_MAX;
    third.kind = NPU_REDUCE_SUM;
    second.program = Program({{NPU_VECTOR_LOAD, 1, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 0, 0, 0, 0},
                              {NPU_VECTOR_SUBTRACT, 1, 0, 0, 0},
                              {NPU_VECTOR_EXP, 2, 0, 0, 0}},
                             {data_, numbers});
    second.out = third.data = weights;
    if (log) {
      third.epilogue =
          Program({{NPU_VECTOR_LOAD, 0, 0, 0, 0}, {NPU_VECTOR_LOG, 0, 0, 0, 0}}, {TensorView()});
    }
    fourth.program = Program({{NPU_VECTOR_LOAD, 0, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 1, 0, 0, 0},
                              {NPU_VECTOR_DIVIDE, 0, 1, 0, 0}},
                             {weights, numbers});
    fourth.out = in_place ? data_ : Memory(x).View();
  }
};

// A normalization. Parameters are for all elements of a row, or for each index of its first
// dimension.
class NormalizationKernels : public RowKernels {
 public:
  NormalizationKernels(const Tensor& x, int dimensions, bool by_element, bool in_place)
      : RowKernels(x, dimensions) {
    Shape shape(static_cast<size_t>(data_.rank), 1);
    for (int d = data_.rank - dimensions; d < data_.rank; ++d) {
      if (by_element || d == data_.rank - dimensions) shape[static_cast<size_t>(d)] = data_.dims[d];
    }
    Random random(7);
    gamma_ = Memory(Tensor(&random, shape, NPU_FLOAT32, Values::kReal)).View();
    beta_ = Memory(Tensor(&random, shape, NPU_FLOAT32, Values::kReal)).View();
    first.kind = third.kind = NPU_REDUCE_MEAN;
    first.out = NumbersByRow();
    third.out = NumbersByRow();
    second.out = third.data = Memory(x).View();
    second.program = Program({{NPU_VECTOR_LOAD, 0, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 1, 0, 0, 0},
                              {NPU_VECTOR_SUBTRACT, 0, 1, 0, 0},
                              {NPU_VECTOR_MULTIPLY, 2, 2, 0, 0}},
                             {data_, first.out});
    third.epilogue = Program({{NPU_VECTOR_LOAD, 0, 0, 0, 0},
                              {NPU_VECTOR_CONSTANT, 0, 0, 0, 1e-5},
                              {NPU_VECTOR_ADD, 0, 1, 0, 0},
                              {NPU_VECTOR_SQRT, 2, 0, 0, 0}},
                             {TensorView()});
    fourth.program = Program({{NPU_VECTOR_LOAD, 2, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 0, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 1, 0, 0, 0},
                              {NPU_VECTOR_SUBTRACT, 1, 2, 0, 0},
                              {NPU_VECTOR_MULTIPLY, 3, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 3, 0, 0, 0},
                              {NPU_VECTOR_MULTIPLY, 4, 5, 0, 0},
                              {NPU_VECTOR_LOAD, 4, 0, 0, 0},
                              {NPU_VECTOR_ADD, 6, 7, 0, 0}},
                             {data_, first.out, third.out, gamma_, beta_});
    fourth.out = in_place ? data_ : Memory(x).View();
  }

  // The fourth kernel, one operation at a time.
  void RunOperations(const KernelContext& context) {
    const std::pair<npu_vector_opcode, TensorView> operations[] = {
        {NPU_VECTOR_SUBTRACT, first.out},
        {NPU_VECTOR_MULTIPLY, third.out},
        {NPU_VECTOR_MULTIPLY, gamma_},
        {NPU_VECTOR_ADD, beta_},
    };
    TensorView from = data_;
    for (const auto& [opcode, operand] : operations) {
      ElementwiseArgs args;
      args.program = Program(
          {{NPU_VECTOR_LOAD, 0, 0, 0, 0}, {NPU_VECTOR_LOAD, 1, 0, 0, 0}, {opcode, 0, 1, 0, 0}},
          {from, operand});
      from = args.out = fourth.out;
      Execute(args, context);
    }
  }

 private:
  TensorView gamma_, beta_;
};

// Calls `run` with kernels to be run one by one, and the same kernels to be run together, which
// shall have the same results to the last bit.
template <typename Kernels, typename Run, typename... Args>
void CheckRowKernels(const Run& run, const Args&... args) {
  for (const std::string& name : InstructionSets()) {
    SelectSimd(name.c_str());
    for (int threads : {1, 2, 5}) {
      Kernels each(args...), together(args...);
      ScratchMemory scratch(each.MemoryBytes(threads));
      KernelContext context;
      context.pool = PoolOf(threads);
      context.scratch = scratch.get();
      run(&each, &together, context);
      bool same = true;
      for (size_t t = 0; t < each.Results().size(); ++t) {
        same = same && Same(together.Results()[t].View(), each.Results()[t].View(), 0);
      }
      if (!same) std::fprintf(stderr, "rows, %s, %d threads\n", name.c_str(), threads);
      CHECK(same);
    }
  }
}

// Quotients of a softmax are the same as long as they are normal numbers.
TEST(row_steps) {
  Random random(33);
  for (int i = 0; i < 120; ++i) {
    const int64_t columns = random.Chance(50) ? random.Between(1, 40) : random.Between(41, 600);
    const int dimensions = random.Chance(70) ? 1 : 2;
    const Shape shape = {random.Between(1, 3), random.Between(1, dimensions == 1 ? 40 : 4),
                         columns};
    const bool in_place = random.Chance(40), all = random.Chance(80), log = random.Chance(30);
    Tensor x(&random, shape, NPU_FLOAT32, i % 6 == 5 ? Values::kSpecial : Values::kReal);
    if (i % 6 == 4) {
      const float value = random.Pick({NAN, -HUGE_VALF, -120.0f});
      oracle::Store(x.View(), random.Between(0, ElementCount(x.View()) - 1), value);
    }
    int expected = 0;
    auto run = [&](RowKernels* each, RowKernels* together, const KernelContext& context) {
      each->RunEach(0, 4, context);
      const int done = RunRowSteps(together->first, together->second, together->third,
                                   all ? &together->fourth : nullptr, context);
      CHECK_EQ(done, expected);
      together->RunEach(done, 4, context);
    };
    expected = all && !log ? 4 : 3;
    CheckRowKernels<SoftmaxKernels>(run, x, dimensions, log, in_place);
    expected = 3;
    const bool by_element = random.Chance(50);
    CheckRowKernels<NormalizationKernels>(run, x, dimensions, by_element, in_place);
    auto run_last = [](NormalizationKernels* each, NormalizationKernels* together,
                       const KernelContext& context) {
      each->RunEach(0, 3, context);
      together->RunEach(0, 3, context);
      each->RunOperations(context);
      CHECK(Normalize(together->fourth, context));
    };
    CheckRowKernels<NormalizationKernels>(run_last, x, dimensions, by_element, in_place);
  }
}

template <typename Kernels>
int DoneAfter(void (*change)(RowKernels*)) {
  Random random(34);
  Kernels kernels(Tensor(&random, {4, 50}, NPU_FLOAT32, Values::kReal), 1, false, false);
  change(&kernels);
  ScratchMemory scratch(kernels.MemoryBytes(1));
  KernelContext context;
  context.scratch = scratch.get();
  return RunRowSteps(kernels.first, kernels.second, kernels.third, &kernels.fourth, context);
}

void SetOpcode(const VectorProgram& program, int instruction, npu_vector_opcode opcode) {
  const_cast<npu_vector_instruction*>(program.instructions)[instruction].opcode = opcode;
}

TEST(row_steps_are_told_from_others) {
  auto softmax = DoneAfter<SoftmaxKernels>;
  CHECK_EQ(softmax([](RowKernels*) {}), 4);
  CHECK_EQ(softmax([](RowKernels* k) { k->first.kind = NPU_REDUCE_MIN; }), 0);
  CHECK_EQ(softmax([](RowKernels* k) { k->third.kind = NPU_REDUCE_MEAN; }), 0);
  CHECK_EQ(softmax([](RowKernels* k) { k->third.data = k->fourth.out; }), 0);
  CHECK_EQ(softmax([](RowKernels* k) { k->second.program.instruction_count = 3; }), 0);
  // Along the other dimension: as many numbers as there are columns.
  CHECK_EQ(softmax([](RowKernels* k) { k->first.axes = k->third.axes = 1; }), 0);
  // Exponentials that begin in the middle of the data.
  CHECK_EQ(softmax([](RowKernels* k) {
             k->second.out.data = static_cast<float*>(k->first.data.data) + 1;
             k->third.data = k->second.out;
           }),
           0);
  // Another quotient: that of the data, and one that would replace the sums.
  CHECK_EQ(softmax([](RowKernels* k) {
             const_cast<TensorView*>(k->fourth.program.inputs)->data = k->first.data.data;
           }),
           3);
  CHECK_EQ(softmax([](RowKernels* k) {
             k->fourth.out.data = static_cast<float*>(k->third.out.data) + 1;
           }),
           3);

  auto normalization = DoneAfter<NormalizationKernels>;
  CHECK_EQ(normalization([](RowKernels*) {}), 3);
  CHECK_EQ(normalization([](RowKernels* k) { k->first.kind = NPU_REDUCE_SUM; }), 0);
  CHECK_EQ(normalization([](RowKernels* k) { k->third.kind = NPU_REDUCE_SUM; }), 0);
  CHECK_EQ(normalization([](RowKernels* k) { SetOpcode(k->second.program, 3, NPU_VECTOR_ADD); }),
           0);
  // Squares in place of the data, which is read again; the factor in place of the mean.
  CHECK_EQ(normalization([](RowKernels* k) { k->second.out = k->third.data = k->first.data; }), 0);
  CHECK_EQ(normalization([](RowKernels* k) { k->third.out = k->first.out; }), 0);
}

TEST(last_step_of_normalization_is_told_from_others) {
  auto matches = [](const auto& change) {
    Random random(35);
    Tensor x(&random, {4, 50}, NPU_FLOAT32, Values::kReal);
    NormalizationKernels kernels(x, 1, /*by_element=*/true, /*in_place=*/false);
    change(&kernels.fourth.program);
    return Normalize(kernels.fourth, KernelContext());
  };
  auto input = [](VectorProgram* program, int number) {
    return const_cast<TensorView*>(program->inputs) + number;
  };
  CHECK(matches([](VectorProgram*) {}));
  CHECK(!matches([](VectorProgram* program) { --program->instruction_count; }));
  for (int instruction : {3, 4, 6, 8}) {
    CHECK(!matches(
        [&](VectorProgram* program) { SetOpcode(*program, instruction, NPU_VECTOR_DIVIDE); }));
  }
  for (int number = 0; number < 5; ++number) {
    CHECK(!matches([&](VectorProgram* program) { input(program, number)->dtype = NPU_FLOAT16; }));
    // One number for all.
    CHECK(!matches([&](VectorProgram* program) {
      input(program, number)->dims[0] = input(program, number)->dims[1] = 1;
    }));
  }
}

// ---- Copies ----

TEST(copy) {
  Random random(13);
  for (int i = 0; i < 300; ++i) {
    CopyArgs args;
    Shape data, out;
    int64_t rank = random.Between(0, 5);
    for (int64_t d = 0; d < rank; ++d) {
      data.push_back(random.Between(random.Chance(3) ? 0 : 1, rank < 3 ? 150 : 9));
      args.permutation[d] = static_cast<int32_t>(d);
    }
    for (int64_t d = rank - 1; d > 0 && random.Chance(80); --d) {
      std::swap(args.permutation[d], args.permutation[random.Between(0, d)]);
    }
    // The box may end with the data or with the output, and may be empty.
    bool larger = random.Chance(50);
    bool smaller = random.Chance(50);
    args.fill = random.Chance(60);
    args.fill_value = static_cast<double>(random.Between(-2, 2));
    if (random.Chance(20)) args.fill_value = random.Chance(50) ? 1e18 : -(1 << 24) - 1;
    bool steps = random.Chance(50);
    for (int64_t d = 0; d < rank; ++d) {
      int64_t size = data[static_cast<size_t>(args.permutation[d])];
      if (larger) args.out_offset[d] = random.Between(0, 3);
      if (smaller) {
        args.data_offset[args.permutation[d]] = random.Between(0, std::min<int64_t>(size, 3));
        size = random.Between(0, size);
      }
      if (steps && size > 0) {
        int64_t axis = args.permutation[d];
        int64_t& offset = args.data_offset[axis];
        args.data_step[axis] = random.Pick({-3, -2, -1, -1, 1, 1, 2, 3});
        if (args.data_step[axis] < 0) offset = data[static_cast<size_t>(axis)] - 1 - offset;
        args.out_step[d] = random.Pick({1, 1, 1, 2, 3});
      }
      out.push_back(size + args.out_offset[d] + (larger ? random.Between(0, 3) : 0));
    }
    npu_dtype dtype = AnyType(&random);
    Tensor x(&random, data, dtype, dtype == NPU_BOOL ? Values::kReal : Values::kBits);
    Tensor y(out, dtype);
    args.data = x.View();
    if (random.Chance(5)) args.data.data = nullptr;
    args.out = y.View();
    Compare(Describe("copy", {args.data, args.out}), args, &y, 0, oracle::Copy);
  }
}

TEST(gather) {
  Random random(15);
  for (int i = 0; i < 200; ++i) {
    GatherArgs args;
    Shape data;
    int64_t rank = random.Between(1, 4);
    for (int64_t d = 0; d < rank; ++d) data.push_back(random.Between(1, rank < 3 ? 60 : 9));
    args.axis = static_cast<int32_t>(random.Between(0, rank - 1));
    args.elementwise = random.Chance(50);
    int64_t size = data[static_cast<size_t>(args.axis)];
    Shape taken, out = data;
    if (args.elementwise) {
      for (int64_t& length : out) length = random.Between(random.Chance(5) ? 0 : 1, length);
      out[static_cast<size_t>(args.axis)] = random.Between(1, 70);
      taken = out;
    } else {
      for (int64_t d = random.Between(0, 2); d > 0; --d) {
        taken.push_back(random.Between(random.Chance(5) ? 0 : 1, 20));
      }
      out.erase(out.begin() + args.axis);
      out.insert(out.begin() + args.axis, taken.begin(), taken.end());
    }
    npu_dtype dtype = AnyType(&random);
    Tensor x(&random, data, dtype, dtype == NPU_BOOL ? Values::kReal : Values::kBits);
    Tensor y(out, dtype);
    // Some are outside of the data.
    Tensor indices(taken, random.Chance(50) ? NPU_INT32 : NPU_INT64);
    TensorView numbers = indices.View();
    for (int64_t k = 0; k < ElementCount(numbers); ++k) {
      oracle::Store(numbers, k, static_cast<float>(random.Between(-3, size + 2)));
    }
    args.data = x.View();
    args.indices = numbers;
    args.out = y.View();
    Compare(Describe("gather", {args.data, args.indices, args.out}), args, &y, 0, oracle::Gather);
  }
}

TEST(scan) {
  Random random(16);
  for (int i = 0; i < 150; ++i) {
    Shape shape;
    int64_t rank = random.Between(1, 4);
    for (int64_t d = 0; d < rank; ++d) {
      shape.push_back(random.Between(random.Chance(3) ? 0 : 1, rank < 3 ? 90 : 8));
    }
    if (random.Chance(5)) shape = {3, 1100};
    npu_dtype dtype = AnyType(&random);
    npu_dtype type = IsInteger(dtype) ? random.Pick({NPU_INT8, NPU_UINT8, NPU_INT32, NPU_INT64})
                                      : AnyFloat(&random);
    Tensor x(&random, shape, dtype, IsInteger(dtype) ? Values::kBits : Values::kReal);
    Tensor y(shape, type);
    PlainArgs<npu_scan> args = {};
    args.reads[0] = x.View();
    args.out = y.View();
    args.op.axis = static_cast<int32_t>(random.Between(0, static_cast<int64_t>(shape.size()) - 1));
    args.op.exclusive = random.Chance(50) ? 1 : 0;
    args.op.kind = random.Pick({NPU_SCAN_SUM, NPU_SCAN_PRODUCT});
    double tolerance = IsInteger(type) ? 0 : type == NPU_FLOAT16 ? 2e-3 : 1e-5;
    Compare(Describe("scan", {args.data(), args.out}), args, &y, tolerance, oracle::Scan);
  }
}

TEST(order) {
  Random random(17);
  for (int i = 0; i < 200; ++i) {
    Shape shape;
    int64_t rank = random.Between(1, 4);
    for (int64_t d = 0; d < rank; ++d) {
      shape.push_back(random.Between(random.Chance(3) ? 0 : 1, rank < 3 ? 90 : 8));
    }
    if (random.Chance(5)) shape = {2, 1100};
    if (random.Chance(5)) shape = {1100, 600};
    PlainArgs<npu_order> args = {};
    args.op.axis = static_cast<int32_t>(random.Between(0, static_cast<int64_t>(shape.size()) - 1));
    args.op.descending = random.Chance(50) ? 1 : 0;
    // Few different numbers: equal ones keep their order.
    npu_dtype dtype = AnyType(&random);
    Values values = random.Pick({Values::kWhole, Values::kSpecial, Values::kBits});
    Tensor x(&random, shape, dtype, values);
    int64_t& count = shape[static_cast<size_t>(args.op.axis)];
    count = random.Pick({count, random.Between(0, count), std::min<int64_t>(count, 1),
                         std::min<int64_t>(count, random.Between(1, 4))});
    Tensor y(shape, random.Pick({NPU_INT32, NPU_INT64}));
    args.reads[0] = x.View();
    args.out = y.View();
    Compare(Describe("order", {args.data(), args.out}), args, &y, 0, oracle::Order);
  }
}

// Not even a NaN may change, so bytes are compared.
TEST(lookup) {
  Random random(24);
  for (npu_dtype from : {NPU_INT8, NPU_UINT8}) {
    for (npu_dtype to : {NPU_INT8, NPU_UINT8, NPU_INT16, NPU_FLOAT32, NPU_INT64}) {
      Tensor data(&random, {3, 1000}, from, Values::kBits),
          table(&random, {256}, to, Values::kBits);
      Tensor out({3, 1000}, to);
      PlainArgs<npu_lookup> args = {};
      args.reads[0] = data.View();
      args.reads[1] = table.View();
      args.out = out.View();
      Compare("lookup", args, &out, 0, oracle::Lookup);
    }
  }
}

TEST(rescale) {
  // By hand: a * b / 2^c, and its result with each rounding.
  struct Case {
    int64_t a, b, c, half_up, twice, half_even, half_away, down, to_zero;
  };
  constexpr int64_t kLeast = INT64_MIN;
  const Case cases[] = {
      {3, 1, 1, 2, 2, 2, 2, 1, 1},         // 1.5
      {5, 1, 1, 3, 3, 2, 3, 2, 2},         // 2.5
      {-3, 1, 1, -1, -1, -2, -2, -2, -1},  // -1.5
      {-5, 1, 1, -2, -2, -2, -3, -3, -2},  // -2.5
      {-7, 1, 2, -2, -2, -2, -2, -2, -1},  // -1.75
      {7, 3, 0, 21, 21, 21, 21, 21, 21},
      {-7, 3, -5, -21, -21, -21, -21, -21, -21},
      // The addend 2^30 of double rounding is half of what is missing to 1.
      {(int64_t{1} << 30) - 1, 1, 32, 0, 0, 0, 0, 0, 0},
      {int64_t{1} << 30, 1, 32, 0, 1, 0, 0, 0, 0},
      {-(int64_t{1} << 31), 1, 32, 0, -1, 0, -1, -1, 0},
      {-(int64_t{1} << 30), 1, 32, 0, 0, 0, 0, -1, 0},
      {INT32_MAX, INT32_MAX, 62, 1, 1, 1, 1, 0, 0},
      // More than 62 counts as 62; the product has 126 bits, of which 64 are left.
      {kLeast, kLeast, 90, 0, 0, 0, 0, 0, 0},
      {kLeast, 4, 62, -8, -8, -8, -8, -8, -8},
      {kLeast, 3, 0, kLeast, kLeast, kLeast, kLeast, kLeast, kLeast},
  };
  for (const Case& one : cases) {
    const int64_t wanted[] = {one.half_up,   one.twice, one.half_even,
                              one.half_away, one.down,  one.to_zero};
    for (int rounding = 0; rounding < 6; ++rounding) {
      Program program;
      for (int64_t number : {one.a, one.b, one.c}) {
        program.tensors.emplace_back(Shape{1}, NPU_INT64);
        oracle::StoreInteger(program.tensors.back().View(), 0, number);
        program.Add(NPU_VECTOR_LOAD, static_cast<int32_t>(program.tensors.size()) - 1);
      }
      program.Add(NPU_VECTOR_RESCALE, 0, 1, 2, rounding);
      Tensor out({1}, NPU_INT64);
      ElementwiseArgs args;
      args.program = program.View();
      args.out = out.View();
      Compare("rescale", args, &out, 0, oracle::Elementwise);
      oracle::Elementwise(args);
      CHECK_EQ(oracle::LoadInteger(out.View(), 0), wanted[rounding]);
    }
  }
}

TEST(copy_of_bits) {
  Random random(14);
  for (npu_dtype dtype : {NPU_FLOAT32, NPU_FLOAT16, NPU_INT8, NPU_INT64}) {
    for (bool transposed : {false, true}) {
      Tensor x(&random, {67, 45}, dtype, Values::kBits);
      Tensor y(transposed ? Shape{45, 67} : Shape{67, 45}, dtype);
      Tensor want = y;
      CopyArgs args;
      args.data = x.View();
      args.permutation[0] = transposed ? 1 : 0;
      args.permutation[1] = transposed ? 0 : 1;
      args.out = want.View();
      oracle::Copy(args);
      args.out = y.View();
      for (const std::string& name : InstructionSets()) {
        SelectSimd(name.c_str());
        Execute(args, KernelContext());
        CHECK(y.bytes() == want.bytes());
      }
    }
  }
}

// ---- Threads ----

TEST(thread_pool) {
  ThreadPool pool(4);
  CHECK_EQ(pool.size(), 4);
  CHECK_EQ(ThreadPool(1).size(), 1);
  // The loops of concurrent callers must all run, each once.
  auto caller = [&pool](int64_t count) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<int> seen(static_cast<size_t>(count), 0);
      std::atomic<int> bad_workers{0};
      pool.ParallelFor(count, 3, [&](int64_t begin, int64_t end, int worker) {
        if (worker < 0 || worker >= 4 || begin % 3 != 0 || end - begin > 3) ++bad_workers;
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      bool once = std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; });
      CHECK(once && bad_workers == 0);
    }
  };
  std::vector<std::thread> callers;
  for (int64_t count : {0, 1, 50, 101}) callers.emplace_back(caller, count);
  for (std::thread& thread : callers) thread.join();
}

}  // namespace

int main(int count, char** arguments) {
  std::string names;
  for (const std::string& name : InstructionSets()) names += " " + name;
  std::printf("instruction sets:%s\n", names.c_str());
  return check::RunTests(count, arguments);
}
