// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program_test.cc
 * \brief The emulator's run half: a program's rules, bytes, times and memory.
 */
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "npu_driver.h"

#include "check.h"
#include "emulator/accesses.h"
#include "emulator/elision.h"
#include "emulator/execute.h"
#include "emulator/listing.h"
#include "emulator/machine.h"
#include "emulator/program.h"
#include "emulator/timeline.h"

namespace {

using namespace npu::emulator;  // NOLINT

const npu_build_api& build = *npu_driver_build(NPU_DRIVER_API_VERSION);
// ---- Making programs ----

/*! \brief A size, fixed or symbolic. */
Dim Size(int64_t size) {
  Dim dim;
  dim.size = size;
  return dim;
}

/*! \brief A tile [begin, begin + limit) of `factor` times symbol 0. */
Dim Tile(int64_t factor, int64_t begin, int64_t limit) {
  Dim dim;
  dim.size = factor;
  dim.symbol = 0;
  dim.begin = begin;
  dim.limit = limit;
  return dim;
}

Desc DescOf(const std::vector<Dim>& dims, npu_dtype dtype = NPU_FLOAT32) {
  Desc desc;
  desc.dtype = dtype;
  desc.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), desc.dims);
  return desc;
}

Desc Fixed(const std::vector<int64_t>& sizes, npu_dtype dtype = NPU_FLOAT32) {
  std::vector<Dim> dims;
  for (int64_t size : sizes) dims.push_back(Size(size));
  return DescOf(dims, dtype);
}

/*! \brief The constants of all programs here. */
const std::vector<float>& Constants() {
  static const std::vector<float> constants = [] {
    std::vector<float> values(256);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    return values;
  }();
  return constants;
}

/*! \brief A program under construction. */
struct Maker {
  Program program;

  Maker() {
    program.labels = {"first", "second"};
    program.arena_bytes = 4096;
    program.machine.scratchpad_bytes = 8192;
    program.constant_bytes = Constants().size() * sizeof(float);
    program.constants = reinterpret_cast<const uint8_t*>(Constants().data());
  }

  npu_tensor Put(Memory memory, uint64_t offset, const Desc& desc, uint32_t index = 0) {
    Tensor tensor;
    tensor.desc = desc;
    tensor.place = {memory, index, offset};
    program.tensors.push_back(tensor);
    return static_cast<npu_tensor>(program.tensors.size()) - 1;
  }
  /*! \brief A new input, as a whole. */
  npu_tensor Input(const Desc& desc) {
    program.inputs.push_back(desc);
    return Put(Memory::kInput, 0, desc, static_cast<uint32_t>(program.inputs.size()) - 1);
  }
  npu_tensor Output(const Desc& desc) {
    program.outputs.push_back(desc);
    return Put(Memory::kOutput, 0, desc, static_cast<uint32_t>(program.outputs.size()) - 1);
  }
  npu_tensor Scratchpad(uint64_t offset, const Desc& desc) {
    return Put(Memory::kScratchpad, offset, desc);
  }

  template <typename Op>
  Command& Add(const Op& op, int32_t core = 0) {
    Command command;
    command.op = op;
    command.core = core;
    program.commands.push_back(command);
    return program.commands.back();
  }
  /*! \brief Moves a box that begins at these offsets. */
  Transfer& Move(npu_tensor out, npu_tensor data, const std::vector<int64_t>& data_offset = {},
                 const std::vector<int64_t>& out_offset = {}) {
    Transfer op;
    op.data = data;
    op.out = out;
    for (int d = 0; d < NPU_MAX_RANK; ++d) op.permutation[d] = d;
    for (size_t d = 0; d < data_offset.size(); ++d) op.data_offset[d] = data_offset[d];
    for (size_t d = 0; d < out_offset.size(); ++d) op.out_offset[d] = out_offset[d];
    return std::get<Transfer>(Add(op).op);
  }
  /*! \brief out = a + b. */
  Command& Sum(npu_tensor out, npu_tensor a, npu_tensor b, int32_t core = 0) {
    npu_elementwise op = {};
    op.out = out;
    Command& command = Add(op, core);
    command.inputs = {a, b};
    command.instructions = {
        {NPU_VECTOR_LOAD, 0, 0, 0, 0}, {NPU_VECTOR_LOAD, 1, 0, 0, 0}, {NPU_VECTOR_ADD, 0, 1, 0, 0}};
    return command;
  }
  Command& Product(npu_tensor out, npu_tensor a, npu_tensor b, int32_t core = 0) {
    npu_matmul op = {};
    op.a = a;
    op.b = b;
    op.out = out;
    return Add(op, core);
  }

  Buffer Bytes() const {
    return Serialize(program, [this](uint8_t* to) {
      std::memcpy(to, program.constants, program.constant_bytes);
    });
  }
};

npu_convolution ConvolutionOf(npu_tensor out, npu_tensor data, npu_tensor weight) {
  npu_convolution op = {};
  op.data = data;
  op.weight = weight;
  op.out = out;
  op.spatial_rank = 2;
  op.groups = 1;
  for (int i = 0; i < NPU_MAX_SPATIAL; ++i) op.strides[i] = op.dilations[i] = 1;
  return op;
}

npu_pool PoolOf(npu_tensor out, npu_tensor data, npu_pool_kind kind, int64_t window) {
  npu_pool op = {};
  op.data = data;
  op.out = out;
  op.kind = kind;
  op.spatial_rank = 2;
  for (int i = 0; i < NPU_MAX_SPATIAL; ++i) {
    op.window[i] = op.strides[i] = window;
    op.dilations[i] = 1;
  }
  return op;
}

/*! \brief A program of static shape with a command of every kind. */
Maker Everything() {
  Maker maker;
  npu_tensor image = maker.Input(Fixed({1, 2, 4, 4}));
  npu_tensor result = maker.Output(Fixed({1, 3, 2, 2}));
  npu_tensor sums = maker.Output(Fixed({3}));
  npu_tensor data = maker.Scratchpad(0, Fixed({1, 2, 6, 6}));
  Transfer& load = maker.Move(data, image, {}, {0, 0, 1, 1});
  load.fill = 1;
  // Packed, for the convolution below.
  npu_tensor stored = maker.Put(Memory::kConstants, 0, Fixed({3, 2, 3, 3}));
  npu_tensor weight = maker.Scratchpad(512, Fixed({3, 2, 3, 3}));
  TensorView view = Resolve(Fixed({3, 2, 3, 3}), nullptr);
  uint64_t packed = PackedConvolutionWeightBytes(view, 1);
  maker.program.tensors[stored].packed_bytes = packed;
  maker.program.tensors[weight].packed_bytes = packed;
  maker.Move(weight, stored);
  npu_tensor bias = maker.Scratchpad(2048, Fixed({3, 1, 1}));
  maker.Move(bias, maker.Put(Memory::kConstants, 768, Fixed({3, 1, 1})));
  npu_tensor features = maker.Scratchpad(2112, Fixed({1, 3, 4, 4}));
  Command& convolution = maker.Add(ConvolutionOf(features, data, weight));
  convolution.inputs = {-1, bias};
  convolution.instructions = {{NPU_VECTOR_LOAD, 0, 0, 0, 0},
                              {NPU_VECTOR_LOAD, 1, 0, 0, 0},
                              {NPU_VECTOR_ADD, 0, 1, 0, 0},
                              {NPU_VECTOR_CONSTANT, 0, 0, 0, 0.5f},
                              {NPU_VECTOR_MAXIMUM, 2, 3, 0, 0}};
  npu_tensor spill = maker.Put(Memory::kArena, 64, Fixed({1, 3, 4, 4}));
  maker.Move(spill, features);
  npu_tensor back = maker.Scratchpad(0, Fixed({1, 3, 4, 4}));
  maker.Move(back, spill);
  npu_tensor pooled = maker.Scratchpad(512, Fixed({1, 3, 2, 2}));
  maker.Add(PoolOf(pooled, back, NPU_POOL_AVERAGE, 2));
  maker.Sum(pooled, pooled, bias).label = 1;
  npu_tensor left = maker.Scratchpad(512, Fixed({3, 4}));
  npu_tensor square = maker.Scratchpad(1024, Fixed({3, 3}));
  npu_matmul matmul = {};
  matmul.a = matmul.b = left;
  matmul.out = square;
  matmul.transpose_b = 1;
  maker.Add(matmul);
  npu_reduce reduce = {};
  reduce.data = square;
  reduce.out = maker.Scratchpad(1088, Fixed({3}));
  reduce.kind = NPU_REDUCE_MEAN;
  reduce.axes = 1;
  maker.Add(reduce);
  maker.Move(sums, reduce.out);
  maker.Move(result, pooled);
  return maker;
}

/*! \brief out = x * w + x[0] for x [n, 4] in tiles of 4 rows, with n up to 10. */
Maker Symbolic() {
  Maker maker;
  maker.program.symbols = {{"n", 10}};
  npu_tensor x = maker.Input(DescOf({Tile(1, 0, 10), Size(4)}));
  npu_tensor out = maker.Output(DescOf({Tile(1, 0, 10), Size(3)}));
  npu_tensor weight = maker.Scratchpad(0, Fixed({4, 3}));
  maker.Move(weight, maker.Put(Memory::kConstants, 0, Fixed({4, 3})));
  for (int64_t begin = 0; begin < 10; begin += 4) {
    int64_t rows = std::min<int64_t>(4, 10 - begin);
    uint64_t buffer = 64 + static_cast<uint64_t>(begin / 4 % 2) * 128;
    npu_tensor tile = maker.Scratchpad(buffer, DescOf({Tile(1, begin, rows), Size(4)}));
    npu_tensor result = maker.Scratchpad(buffer + 64, DescOf({Tile(1, begin, rows), Size(3)}));
    maker.Move(tile, x, {begin, 0});
    maker.Product(result, tile, weight);
    maker.Move(out, result, {}, {begin, 0});
  }
  return maker;
}

/*! \brief Rows of a table by their indices, up to n of them, and elements of these. */
Maker Gathers() {
  Maker maker;
  maker.program.symbols = {{"n", 6}};
  npu_tensor indices = maker.Input(DescOf({Tile(1, 0, 6)}, NPU_INT32));
  npu_tensor rows = maker.Output(DescOf({Tile(1, 0, 6), Size(4)}));
  npu_tensor elements = maker.Output(DescOf({Tile(1, 0, 6), Size(2)}));
  npu_tensor table = maker.Put(Memory::kConstants, 0, Fixed({5, 4}));
  npu_tensor here = maker.Scratchpad(0, DescOf({Tile(1, 0, 6), Size(4)}));
  maker.Add(npu_gather{0, table, indices, here, 0, 0});
  npu_tensor columns = maker.Scratchpad(128, DescOf({Tile(1, 0, 6), Size(2)}, NPU_INT32));
  npu_tensor numbers = maker.Put(Memory::kConstants, 0, Fixed({5, 2}, NPU_INT32));
  maker.Add(npu_gather{0, numbers, indices, columns, 0, 0});
  maker.Add(npu_gather{0, here, columns, elements, 1, 1});
  maker.Move(rows, here);
  return maker;
}

/*! \brief Running sums of x [n, 6], with n up to 5, and the order of its columns and rows. */
Maker Rows() {
  Maker maker;
  maker.program.symbols = {{"n", 5}};
  Desc whole = DescOf({Tile(1, 0, 5), Size(6)});
  npu_tensor x = maker.Input(whole);
  npu_tensor sums = maker.Output(whole);
  npu_tensor rows = maker.Output(DescOf({Tile(1, 0, 5), Size(2)}, NPU_INT32));
  npu_tensor column = maker.Output(DescOf({Size(1), Size(6)}, NPU_INT32));
  npu_tensor here = maker.Scratchpad(0, whole);
  maker.Move(here, x);
  npu_tensor scanned = maker.Scratchpad(128, whole);
  maker.Add(npu_scan{0, here, scanned, NPU_SCAN_SUM, 0, 1});
  maker.Move(sums, scanned);
  npu_tensor first = maker.Scratchpad(256, DescOf({Tile(1, 0, 5), Size(2)}, NPU_INT32));
  maker.Add(npu_order{0, here, first, 1, 1});
  maker.Move(rows, first);
  npu_tensor best = maker.Scratchpad(320, DescOf({Size(1), Size(6)}, NPU_INT32));
  maker.Add(npu_order{0, here, best, 0, 0});
  maker.Move(column, best);
  return maker;
}

std::vector<Maker> AllPrograms() { return {Everything(), Symbolic(), Gathers(), Rows()}; }

/*! \brief The message of the exception; empty if there is none. */
std::string Sentence(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void ExpectError(const char* file, int line, const std::function<void()>& body,
                 const std::string& part) {
  std::string sentence = Sentence(body);
  if (Contains(sentence, part) && !sentence.empty()) return;
  check::Fail(file, line, "expected \"" + part + "\", got \"" + sentence + "\"");
}

#define CHECK_ERROR(body, part) ExpectError(__FILE__, __LINE__, [&] { body; }, part)

// ---- Running programs ----

/*! \brief Memory that programs run in, and the contents of inputs and outputs. */
struct Run {
  std::vector<std::vector<float>> buffers;
  std::vector<float> scratchpad, arena;

  /*! \brief `symbols` has the values of the symbols; memory has the same contents before each run.
   */
  Run(const Program& program, const Accesses& accesses, const Elision& elision,
      const std::vector<int64_t>& symbols)
      : scratchpad(ScratchpadBytes(program) / sizeof(float) + 1, 7),
        arena(program.arena_bytes / sizeof(float) + 1, 9) {
    std::vector<void*> addresses;
    auto add = [&](const Desc& desc, bool input) {
      TensorView view = Resolve(desc, symbols.data());
      buffers.emplace_back(static_cast<size_t>(ElementCount(view)));
      for (size_t i = 0; i < buffers.back().size(); ++i) {
        buffers.back()[i] = input ? static_cast<float>((i * 5 + buffers.size()) % 11) - 4 : 77;
      }
      addresses.push_back(buffers.back().data());
    };
    for (const Desc& desc : program.inputs) add(desc, true);
    for (const Desc& desc : program.outputs) add(desc, false);
    Execution execution(program, accesses, elision, reinterpret_cast<uint8_t*>(scratchpad.data()),
                        reinterpret_cast<uint8_t*>(arena.data()));
    execution.SetSymbols(symbols.data());
    execution.Bind(addresses);
    Buffer scratch(execution.scratch_bytes());
    std::atomic<bool> cancel{false};
    CHECK(execution.Run({scratch.data(), nullptr}, cancel));
  }
};

// ---- Machine ----

TEST(OptionsOfTheMachineAreChecked) {
  Machine machine;
  machine.Set("cores", "4");
  machine.Set("scratchpad_bytes", "65536");
  machine.Set("power_mode", "performance");
  machine.Set("precision", "float16");
  CHECK_EQ(machine.cores, 4);
  CHECK_EQ(machine.scratchpad_bytes, 65536);
  CHECK_EQ(machine.FrequencyMHz(), 1500);
  CHECK(machine.precision == Precision::kFloat16);
  CHECK_ERROR(machine.Set("cores", "0"), "Option cores is \"0\"; it must be a whole number from 1");
  CHECK_ERROR(machine.Set("cores", "17"), "to 16.");
  CHECK_ERROR(machine.Set("cores", "2x"), "whole number");
  CHECK_ERROR(machine.Set("cores", ""), "whole number");
  CHECK_ERROR(machine.Set("cores", "99999999999999999999"), "whole number");
  CHECK_ERROR(machine.Set("power_mode", "turbo"), "one of low, balanced, performance.");
  CHECK_ERROR(machine.Set("tiles", "1"),
              "Option tiles is unknown; the driver has the options "
              "scratchpad_bytes, dram_bytes");
  machine.threads = 65;
  CHECK_ERROR(machine.Check(), "Option threads is 65");
  machine = Machine();
  machine.power_mode = static_cast<PowerMode>(3);
  CHECK_ERROR(machine.Check(), "power_mode");
}

using Grid = std::vector<std::vector<int64_t>>;

/*! \brief Numbers for the elements of a matrix. */
Grid Numbers(int64_t rows, int64_t columns, int64_t factor) {
  Grid grid(rows, std::vector<int64_t>(columns));
  for (int64_t i = 0; i < rows * columns; ++i) {
    grid[i / columns][i % columns] = i * factor % 13 - 6;
  }
  return grid;
}

/*! \brief An element, or 0 outside of the matrix. */
int64_t At(const Grid& matrix, int64_t row, int64_t column) {
  if (row < 0 || row >= static_cast<int64_t>(matrix.size())) return 0;
  return column < static_cast<int64_t>(matrix[row].size()) ? matrix[row][column] : 0;
}

/*! \brief A weight-stationary systolic array, cycle by cycle: weights enter from the top, row by
 *  row; then data enters from the left, each row one cycle later, and sums leave at the bottom. */
class SystolicArray {
 public:
  SystolicArray(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}

  /*! \brief out += a [m, k] x b [k, n], where k and n fit the array; returns the cycles. */
  int64_t Multiply(const Grid& a, const Grid& b, Grid* out) {
    auto m = static_cast<int64_t>(a.size());
    auto zero = [&] { return Grid(rows_, std::vector<int64_t>(columns_)); };
    int64_t cycles = 0;
    Grid weights = zero();
    for (int64_t step = 0; step < rows_; ++step, ++cycles) {
      for (int64_t r = rows_ - 1; r > 0; --r) weights[r] = weights[r - 1];
      int64_t row = rows_ - 1 - step;
      for (int64_t c = 0; c < columns_; ++c) weights[0][c] = At(b, row, c);
    }
    // The contents of each cell after a cycle: data moving right, sums moving down.
    Grid data = zero();
    Grid sums = zero();
    for (int64_t left = m * columns_; left > 0; ++cycles) {
      int64_t time = cycles - rows_;
      Grid next_data = zero();
      Grid next_sums = zero();
      for (int64_t r = 0; r < rows_; ++r) {
        for (int64_t c = 0; c < columns_; ++c) {
          next_data[r][c] = c == 0 ? At(a, time - r, r) : data[r][c - 1];
          next_sums[r][c] = (r == 0 ? 0 : sums[r - 1][c]) + weights[r][c] * next_data[r][c];
        }
      }
      data = next_data;
      sums = next_sums;
      for (int64_t c = 0; c < columns_; ++c) {
        int64_t line = time - (rows_ - 1) - c;
        if (line < 0 || line >= m) continue;
        --left;
        if (c < static_cast<int64_t>((*out)[line].size())) (*out)[line][c] += sums[rows_ - 1][c];
      }
    }
    return cycles;
  }

 private:
  int64_t rows_, columns_;
};

/*! \brief The same with a second weight in each cell, cycle by cycle. What happens in cell (r, c)
 *  at a time happened in cell (0, 0) r + c cycles earlier: data, sums and weights move one cell per
 *  cycle, and the first line of a tile's data makes each cell that it reaches use the weight that
 *  has come there meanwhile.
 *
 *  \param a [m, R] of each tile, with its weights b [R, C]; \param out [m, C] of each.
 *  \return The cycles. */
int64_t MultiplyBuffered(const std::vector<Grid>& a, const std::vector<Grid>& b,
                         std::vector<Grid>* out) {
  const auto tiles = static_cast<int64_t>(a.size());
  const auto m = static_cast<int64_t>(a[0].size());
  const auto rows = static_cast<int64_t>(b[0].size());
  const auto columns = static_cast<int64_t>(b[0][0].size());
  const int64_t period = std::max(rows, m);
  const Grid zero(rows, std::vector<int64_t>(columns));
  Grid used = zero, next = zero, passed = zero, data = zero, sums = zero;
  int64_t cycles = 0;
  for (int64_t left = tiles * m * columns; left > 0; ++cycles) {
    const Grid old_passed = passed, old_data = data, old_sums = sums;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t time = cycles - r - c;  // In cell (0, 0).
        // Data of tile t begins at rows + t * period.
        const int64_t tile = time < rows ? -1 : (time - rows) / period;
        const int64_t line = time - rows - tile * period;
        if (tile >= 0 && tile < tiles && line == 0) used[r][c] = next[r][c];
        // Weights of tile t enter for `rows` cycles from when the tile before begins.
        const int64_t entering = time < rows ? 0 : tile + 1;
        const int64_t step = time < rows ? time : line;
        if (time >= 0 && step < rows) {
          passed[r][c] = next[r][c];
          next[r][c] = r > 0              ? old_passed[r - 1][c]
                       : entering < tiles ? b[entering][rows - 1 - step][c]
                                          : 0;
        }
        const bool busy = tile >= 0 && tile < tiles && line < m;
        data[r][c] = c > 0 ? old_data[r][c - 1] : busy ? a[tile][line][r] : 0;
        sums[r][c] = (r > 0 ? old_sums[r - 1][c] : 0) + used[r][c] * data[r][c];
        if (!busy || r + 1 < rows) continue;
        (*out)[tile][line][c] = sums[r][c];
        --left;
      }
    }
  }
  return cycles;
}

// Compares the formula of machine.h with the machine that it describes.
TEST(MatrixCyclesAreThoseOfASystolicArray) {
  for (int64_t rows : {1, 2, 3, 8}) {
    for (int64_t columns : {1, 2, 5, 8}) {
      for (int64_t m : {1, 2, 7, 20}) {
        for (int64_t k : {1, 2, 3, 8, 9, 17}) {
          for (int64_t n : {1, 2, 5, 8, 11}) {
            Grid a(m, std::vector<int64_t>(k));
            Grid b(k, std::vector<int64_t>(n));
            for (int64_t i = 0; i < m * k; ++i) a[i / k][i % k] = i * 7 % 11 - 5;
            for (int64_t i = 0; i < k * n; ++i) b[i / n][i % n] = i * 5 % 13 - 6;
            Grid product(m, std::vector<int64_t>(n));
            SystolicArray array(rows, columns);
            int64_t cycles = 0;
            for (int64_t k0 = 0; k0 < k; k0 += rows) {
              for (int64_t n0 = 0; n0 < n; n0 += columns) {
                Grid part_of_a(m), part_of_b, part(m);
                for (int64_t i = 0; i < m; ++i) {
                  part_of_a[i].assign(a[i].begin() + k0, a[i].begin() + std::min(k, k0 + rows));
                  part[i].resize(std::min(columns, n - n0));
                }
                for (int64_t i = k0; i < std::min(k, k0 + rows); ++i) {
                  part_of_b.emplace_back(b[i].begin() + n0,
                                         b[i].begin() + std::min(n, n0 + columns));
                }
                cycles += array.Multiply(part_of_a, part_of_b, &part);
                for (int64_t i = 0; i < m; ++i) {
                  for (size_t j = 0; j < part[i].size(); ++j) product[i][n0 + j] += part[i][j];
                }
              }
            }
            for (int64_t i = 0; i < m * n; ++i) {
              int64_t sum = 0;
              for (int64_t j = 0; j < k; ++j) sum += a[i / n][j] * b[j][i % n];
              CHECK_EQ(product[i / n][i % n], sum);
            }
            Machine machine;
            machine.matrix_rows = static_cast<int32_t>(rows);
            machine.matrix_columns = static_cast<int32_t>(columns);
            CHECK_EQ(MatrixCycles(machine, m, k, n), cycles);
            // Cells that compute several steps at once.
            CHECK_EQ(MatrixCycles(machine, m, 4 * k, n, StepsOfCell(NPU_INT8, NPU_UINT8)), cycles);
            CHECK_EQ(MatrixCycles(machine, m, 4 * k - 3, n, 4), cycles);
            CHECK_EQ(MatrixCycles(machine, m, 2 * k, n, StepsOfCell(NPU_INT16, NPU_INT8)), cycles);
            CHECK_EQ(MatrixCycles(machine, m, k, n, StepsOfCell(NPU_INT16, NPU_INT16)), cycles);
          }
        }
      }
    }
  }
}

TEST(WeightsLoadWhileTheTileBeforeMultiplies) {
  for (int64_t rows : {1, 2, 5}) {
    for (int64_t columns : {1, 3}) {
      for (int64_t m : {1, 2, 9}) {
        for (int64_t tiles : {1, 2, 5}) {
          std::vector<Grid> a, b, out(tiles, Grid(m, std::vector<int64_t>(columns)));
          for (int64_t t = 0; t < tiles; ++t) {
            a.push_back(Numbers(m, rows, 7 + t));
            b.push_back(Numbers(rows, columns, 5 + t));
          }
          const int64_t cycles = MultiplyBuffered(a, b, &out);
          for (int64_t i = 0; i < tiles * m * columns; ++i) {
            const int64_t t = i / columns / m, line = i / columns % m, c = i % columns;
            int64_t sum = 0;
            for (int64_t r = 0; r < rows; ++r) sum += a[t][line][r] * b[t][r][c];
            CHECK_EQ(out[t][line][c], sum);
          }
          Machine machine;
          machine.matrix_rows = static_cast<int32_t>(rows);
          machine.matrix_columns = static_cast<int32_t>(columns);
          const int64_t alone = MatrixCycles(machine, m, rows, columns);
          machine.Set("weight_buffers", "2");
          CHECK_EQ(MatrixCycles(machine, m, tiles * rows, columns), cycles);
          CHECK_EQ(MatrixCycles(machine, m, rows, columns, 1, tiles), cycles);
          CHECK_EQ(GroupedMatrixCycles(machine, tiles, m, rows, columns), cycles);
          CHECK_EQ(MatrixCycles(machine, m, rows, columns), alone);
        }
      }
    }
  }
  // A row by 1024 x 256 takes its weights' 1 MB in 65,536 cycles, with 8 bits 16,384, with 4 8,192.
  Machine machine;
  CHECK_EQ(MatrixCycles(machine, 1, 1024, 256), 256 * 95);
  machine.weight_buffers = 2;
  CHECK_EQ(MatrixCycles(machine, 1, 1024, 256), 95 + 255 * 32);
  CHECK_EQ(MatrixCycles(machine, kMaxElements, kMaxElements, kMaxElements), kMaxCount);
  CHECK_EQ(MatrixCycles(machine, 1, 0, 256), 0);
}

TEST(CostsAreThoseOfTheModel) {
  Machine machine;
  machine.vector_lanes = 64;
  CHECK_EQ(VectorCycles(machine, 64, 3), 3);
  CHECK_EQ(VectorCycles(machine, 65, 3), 6);
  machine.dma_latency_cycles = 100;
  machine.dram_megabytes_per_second = 16000;
  // 16 bytes per cycle at 1000 MHz; a piece of 4 bytes takes a burst of 64.
  CHECK_EQ(DmaCycles(machine, 1, 4096), 100 + 256);
  CHECK_EQ(DmaCycles(machine, 1, 4097), 100 + 260);
  CHECK_EQ(DmaCycles(machine, 10, 4), 100 + 40);
  CHECK_EQ(DmaCycles(machine, 0, 4), 0);
  // DRAM is as fast as before, the clock is not.
  machine.power_mode = PowerMode::kLow;
  CHECK_EQ(DmaCycles(machine, 1, 4096), 100 + 128);
  machine.power_mode = PowerMode::kPerformance;
  CHECK_EQ(DmaCycles(machine, 1, 4096), 100 + 384);
  // Counters saturate instead of overflowing.
  CHECK_EQ(MatrixCycles(machine, kMaxElements, kMaxElements, kMaxElements), kMaxCount);
  machine.dram_megabytes_per_second = 1;
  CHECK_EQ(DmaCycles(machine, kMaxElements, kMaxElements), kMaxCount);
}

TEST(GroupsShareTheArrayWhereTheyFit) {
  Machine machine;  // 32 x 32
  const int64_t once = MatrixCycles(machine, 49, 9, 1);
  // A kernel of 3 x 3 has 9 rows, and 3 of int8: 3 or 10 channels at once.
  CHECK_EQ(GroupedMatrixCycles(machine, 512, 49, 9, 1), 171 * once);
  CHECK_EQ(GroupedMatrixCycles(machine, 512, 49, 9, 1, StepsOfCell(NPU_INT8, NPU_INT8)), 52 * once);
  // On the diagonal, they are one product, of as many rows and columns.
  CHECK_EQ(GroupedMatrixCycles(machine, 3, 49, 9, 1), MatrixCycles(machine, 49, 27, 3));
  CHECK_EQ(GroupedMatrixCycles(machine, 4, 49, 4, 16), 2 * MatrixCycles(machine, 49, 8, 32));
  // One that fills the array is on its own.
  CHECK_EQ(GroupedMatrixCycles(machine, 2, 49, 33, 1), 2 * MatrixCycles(machine, 49, 33, 1));
  CHECK_EQ(GroupedMatrixCycles(machine, 2, 49, 4, 33), 2 * MatrixCycles(machine, 49, 4, 33));
  CHECK_EQ(GroupedMatrixCycles(machine, 1, 49, 4, 3), MatrixCycles(machine, 49, 4, 3));
  CHECK_EQ(GroupedMatrixCycles(machine, 2, 0, 4, 3), 0);
}

TEST(WorkIsCountedPerOperation) {
  Maker maker = Everything();
  const Program& program = maker.program;
  std::map<size_t, Work> works;
  for (const Command& command : program.commands) {
    works.emplace(command.op.index(), WorkOf(program, command, nullptr));
  }
  auto work = [&](size_t kind) { return works.at(kind); };
  // Matmul [3, 4] x [4, 3]^T on an array of 32 x 32.
  CHECK_EQ(work(0).cycles[kEngineMatrix], 2 * 32 + 32 + 3 - 2);
  CHECK_EQ(work(0).cycles[kEngineVector], 0);
  CHECK_EQ(work(0).matrix_operations, 2 * 3 * 4 * 3);
  CHECK_EQ(work(0).scratchpad_bytes_read, 2 * 12 * 4);
  CHECK_EQ(work(0).scratchpad_bytes_written, 9 * 4);
  // Convolution: 16 positions, a depth of 18, 3 outputs; an epilogue of 5 instructions.
  CHECK_EQ(work(1).cycles[kEngineMatrix], 2 * 32 + 32 + 16 - 2);
  CHECK_EQ(work(1).cycles[kEngineVector], 5);
  CHECK_EQ(work(1).matrix_operations, 2 * 48 * 18);
  // Pool: 12 windows of 4 elements, and a division.
  CHECK_EQ(work(2).cycles[kEngineVector], 1 + 1);
  // Elementwise: 3 instructions; reduction of 9 elements, and a division.
  CHECK_EQ(work(3).cycles[kEngineVector], 3);
  CHECK_EQ(work(4).cycles[kEngineVector], 1 + 1);
  // The first transfer: an image of 2 x 16 contiguous elements, into a padded one.
  CHECK_EQ(work(5).cycles[kEngineDmaIn], DmaCycles(program.machine, 1, 128));
  CHECK_EQ(work(5).dram_bytes_read, 128);
  CHECK_EQ(work(5).dram_bytes_written, 0);
  CHECK_EQ(work(5).scratchpad_bytes_written, 2 * 36 * 4);

  Maker other;
  npu_tensor data = other.Scratchpad(0, Fixed({1, 1, 5, 7}));
  npu_tensor pooled = other.Scratchpad(256, Fixed({1, 1, 2, 3}));
  other.program.machine.vector_lanes = 1;
  const Command& adaptive = other.Add(PoolOf(pooled, data, NPU_POOL_AVERAGE_ADAPTIVE, 0));
  // Rows 0-2 and 2-4 of 5; columns 0-2, 2-4 and 4-6 of 7: 6 * 9 elements.
  CHECK_EQ(WorkOf(other.program, adaptive, nullptr).cycles[kEngineVector], 54 + 6);
  // Part of each row: a piece per row.
  npu_tensor x = other.Input(Fixed({4, 8}));
  npu_tensor corner = other.Scratchpad(512, Fixed({3, 2}));
  other.Move(corner, x, {1, 4});
  CHECK_EQ(WorkOf(other.program, other.program.commands.back(), nullptr).cycles[kEngineDmaIn],
           DmaCycles(other.program.machine, 3, 8));
  // Both sides in DRAM.
  npu_tensor far = other.Put(Memory::kArena, 0, Fixed({4, 8}));
  other.Move(far, x);
  CHECK_EQ(WorkOf(other.program, other.program.commands.back(), nullptr).cycles[kEngineDmaOut],
           2 * DmaCycles(other.program.machine, 1, 128));
  // A batched product: one for each matrix of b, with all rows that meet it.
  npu_tensor a = other.Scratchpad(0, Fixed({5, 6, 4}));
  npu_tensor one = other.Scratchpad(1024, Fixed({4, 3}));
  npu_tensor each = other.Scratchpad(1088, Fixed({5, 4, 3}));
  npu_tensor out = other.Scratchpad(2048, Fixed({5, 6, 3}));
  CHECK_EQ(WorkOf(other.program, other.Product(out, a, one), nullptr).cycles[kEngineMatrix],
           MatrixCycles(other.program.machine, 30, 4, 3));
  CHECK_EQ(WorkOf(other.program, other.Product(out, a, each), nullptr).cycles[kEngineMatrix],
           5 * MatrixCycles(other.program.machine, 6, 4, 3));
  npu_tensor grouped = other.Scratchpad(0, Fixed({5, 2, 3, 4}));
  npu_tensor shared = other.Scratchpad(1088, Fixed({5, 1, 4, 3}));
  npu_tensor result = other.Scratchpad(2048, Fixed({5, 2, 3, 3}));
  CHECK_EQ(
      WorkOf(other.program, other.Product(result, grouped, shared), nullptr).cycles[kEngineMatrix],
      5 * MatrixCycles(other.program.machine, 6, 4, 3));
}

// ---- Times ----

/*! \brief A machine with simple times: a transfer of up to 64 bytes takes 10 cycles, a vector
 *  instruction on up to 16 elements one. */
Machine EasyMachine() {
  Machine machine;
  machine.scratchpad_bytes = 8192;
  machine.dram_megabytes_per_second = 64000;
  machine.dma_latency_cycles = 9;
  machine.vector_lanes = 16;
  machine.matrix_rows = machine.matrix_columns = 4;
  return machine;
}

std::string Times(const Program& program) {
  Verify(program);
  Accesses accesses(program);
  Timeline timeline(program, accesses);
  std::string text;
  for (const TimeSpan& interval : timeline.intervals()) {
    text += Join(text.empty() ? "" : " ", interval.start, "-", interval.end);
  }
  return text;
}

TEST(EnginesOverlapUnlessTheyDependOnEachOther) {
  Maker maker;
  maker.program.machine = EasyMachine();
  npu_tensor x = maker.Input(Fixed({4, 16}));
  npu_tensor out = maker.Output(Fixed({4, 16}));
  // Double buffering: each result, of 3 cycles, waits for its load, but loads do not wait for it.
  for (int64_t i = 0; i < 4; ++i) {
    auto offset = static_cast<uint64_t>(i % 2) * 128;
    npu_tensor tile = maker.Scratchpad(offset, Fixed({1, 16}));
    npu_tensor sum = maker.Scratchpad(offset + 64, Fixed({1, 16}));
    maker.Move(tile, x, {i, 0});
    maker.Sum(sum, tile, tile);
    maker.Move(out, sum, {}, {i, 0});
  }
  CHECK_EQ(Times(maker.program),
           "0-10 10-13 13-23 10-20 20-23 23-33 20-30 30-33 33-43 30-40 40-43 43-53");
  Accesses accesses(maker.program);
  Timeline timeline(maker.program, accesses);
  const RunCounters& counters = timeline.counters();
  CHECK_EQ(counters.submissions, 1u);
  CHECK_EQ(counters.commands, 12u);
  CHECK_EQ(counters.cycles, 53u);
  CHECK_EQ(counters.busy_cycles[kEngineDmaIn], 40u);
  CHECK_EQ(counters.stalled_cycles[kEngineDmaIn], 0u);
  CHECK_EQ(counters.busy_cycles[kEngineVector], 12u);
  CHECK_EQ(counters.stalled_cycles[kEngineVector], 31u);
  CHECK_EQ(counters.busy_cycles[kEngineDmaOut], 40u);
  CHECK_EQ(counters.stalled_cycles[kEngineDmaOut], 13u);
  CHECK_EQ(counters.busy_cycles[kEngineMatrix], 0u);
  CHECK_EQ(counters.stalled_cycles[kEngineMatrix], 0u);
  CHECK_EQ(counters.dram_bytes_read, 256u);
  CHECK_EQ(counters.dram_bytes_written, 256u);
  CHECK_EQ(counters.scratchpad_bytes, 256u);
}

TEST(BuffersAreNotOverwrittenWhileTheyAreRead) {
  Maker maker;
  maker.program.machine = EasyMachine();
  npu_tensor x = maker.Input(Fixed({2, 16}));
  npu_tensor out = maker.Output(Fixed({2, 16}));
  npu_tensor tile = maker.Scratchpad(0, Fixed({1, 16}));
  npu_tensor sum = maker.Scratchpad(64, Fixed({1, 16}));
  // Single buffering: the second load waits for the first sum, the second sum for the first store.
  for (int64_t i = 0; i < 2; ++i) {
    maker.Move(tile, x, {i, 0});
    maker.Sum(sum, tile, tile);
    maker.Move(out, sum, {}, {i, 0});
  }
  CHECK_EQ(Times(maker.program), "0-10 10-13 13-23 13-23 23-26 26-36");
  // Only the box counts, not the tensor: the load of the other half does not wait for the store.
  Maker halves;
  halves.program.machine = EasyMachine();
  npu_tensor both = halves.Put(Memory::kArena, 0, Fixed({2, 16}));
  npu_tensor first = halves.Scratchpad(0, Fixed({1, 16}));
  npu_tensor second = halves.Scratchpad(64, Fixed({1, 16}));
  halves.Output(Fixed({1}));
  halves.Move(both, first);
  halves.Move(second, both, {1, 0});
  halves.Move(second, both, {0, 0});
  CHECK_EQ(Times(halves.program), "0-10 0-10 10-20");
}

TEST(EpiloguesTakeBothEnginesOfACore) {
  Maker maker;
  maker.program.machine = EasyMachine();
  maker.program.machine.cores = 2;
  maker.Output(Fixed({1}));
  npu_tensor a = maker.Scratchpad(0, Fixed({4, 4}));
  npu_tensor b = maker.Scratchpad(64, Fixed({4, 4}));
  npu_tensor c = maker.Scratchpad(128, Fixed({4, 4}));
  npu_tensor d = maker.Scratchpad(192, Fixed({4, 4}));
  npu_tensor e = maker.Scratchpad(256, Fixed({4, 4}));
  // 2 * 4 + 4 + 4 - 2 = 14 cycles of the matrix engine.
  Command& product = maker.Product(c, a, b);
  product.inputs = {-1};
  product.instructions.assign(20, {NPU_VECTOR_LOAD, 0, 0, 0, 0});
  maker.Sum(d, a, b);
  maker.Sum(e, a, b, 1);
  maker.Product(d, a, b, 0);
  CHECK_EQ(Times(maker.program), "0-20 20-23 0-3 23-37");
  Accesses accesses(maker.program);
  const RunCounters counters = Timeline(maker.program, accesses).counters();
  CHECK_EQ(counters.busy_cycles[kEngineMatrix], 28u);
  CHECK_EQ(counters.stalled_cycles[kEngineMatrix], 6u + 3u);
  CHECK_EQ(counters.busy_cycles[kEngineVector], 20u + 3 + 3);
  CHECK_EQ(counters.stalled_cycles[kEngineVector], 0u);
}

TEST(GathersMoveSlices) {
  Maker maker = Gathers();
  maker.program.machine = EasyMachine();
  Machine& machine = maker.program.machine;
  int64_t symbols[] = {5};
  auto work = [&](size_t i) { return WorkOf(maker.program, maker.program.commands[i], symbols); };
  // Rows of 16 bytes, each in its own burst, and the indices.
  CHECK_EQ(work(0).cycles[kEngineDmaIn], DmaCycles(machine, 5, 16) + DmaCycles(machine, 1, 20));
  CHECK_EQ(work(0).dram_bytes_read, 5 * 16 + 5 * 4);
  CHECK_EQ(work(0).scratchpad_bytes_written, 5 * 16);
  // Elements, by indices in the scratchpad.
  CHECK_EQ(work(2).cycles[kEngineDmaOut], DmaCycles(machine, 10, 4) + DmaCycles(machine, 1, 40));
  CHECK_EQ(work(2).dram_bytes_read, 0);
  CHECK_EQ(work(2).scratchpad_bytes_read, 2 * 40);
  CHECK_EQ(work(2).dram_bytes_written, 40);
}

TEST(RowsTakeInstructionsForEachElement) {
  Maker maker = Rows();
  maker.program.machine = EasyMachine();
  int64_t symbols[] = {4};
  auto cycles = [&](size_t i) {
    Work work = WorkOf(maker.program, maker.program.commands[i], symbols);
    return work.cycles[kEngineVector];
  };
  CHECK_EQ(cycles(1), VectorCycles(maker.program.machine, 24, 1));
  // The top two of each row: two comparisons.
  CHECK_EQ(cycles(3), VectorCycles(maker.program.machine, 24, 2));
  CHECK_EQ(cycles(5), VectorCycles(maker.program.machine, 24, 1));
  CHECK_EQ(OrderInstructions(1), 1);
  CHECK_EQ(OrderInstructions(5), 4);
  CHECK_EQ(OrderInstructions(8), 4);
}

TEST(StepsMoveWholeBursts) {
  Maker maker;
  npu_tensor data = maker.Input(Fixed({64, 64}));
  npu_tensor out = maker.Scratchpad(0, Fixed({16, 64}));
  auto cycles = [&](int64_t row_step, int64_t column_step) {
    Transfer& move = maker.Move(out, data);
    move.data_step[0] = row_step;
    move.data_step[1] = column_step;
    move.data_offset[0] = row_step < 0 ? 63 : 0;
    move.data_offset[1] = column_step < 0 ? 63 : 0;
    return WorkOf(maker.program, maker.program.commands.back(), nullptr).cycles[kEngineDmaIn];
  };
  const Machine& machine = maker.program.machine;
  CHECK_EQ(cycles(1, 1), DmaCycles(machine, 1, 16 * 256));
  CHECK_EQ(cycles(-1, -1), DmaCycles(machine, 1, 16 * 256));
  CHECK_EQ(cycles(2, 1), DmaCycles(machine, 16, 256));
  CHECK_EQ(cycles(1, 2), DmaCycles(machine, 16, (31 * 2 + 1) * 4));
  CHECK_EQ(cycles(1, -32), DmaCycles(machine, 16 * 2, 4));
}

TEST(EmptyTilesTakeNoTime) {
  Maker maker = Symbolic();
  Accesses accesses(maker.program);
  Timeline timeline(maker.program, accesses);
  RunCounters most = timeline.counters();
  CHECK_EQ(most.commands, 10u);
  CHECK_EQ(most.dram_bytes_written, 10u * 3 * 4);
  int64_t symbols[] = {3};
  timeline.SetSymbols(symbols);
  CHECK_EQ(timeline.counters().commands, 4u);
  CHECK_EQ(timeline.counters().dram_bytes_written, 3u * 3 * 4);
  CHECK_EQ(timeline.intervals()[4].end, 0);
  symbols[0] = 10;
  timeline.SetSymbols(symbols);
  CHECK_EQ(std::memcmp(&most, &timeline.counters(), sizeof(most)), 0);
}

// ---- Latest ----

TEST(LatestAgreesWithALoop) {
  std::mt19937 random(3);
  for (int32_t pieces : {1, 2, 3, 7, 8, 13}) {
    Latest latest(pieces);
    std::vector<int64_t> plain(pieces, -1);
    for (int i = 0; i < 200; ++i) {
      auto begin = static_cast<int32_t>(random() % pieces);
      auto end = static_cast<int32_t>(begin + random() % (pieces - begin + 1));
      Access access = {0, begin, end};
      int64_t most = -1;
      for (int32_t p = begin; p < end; ++p) most = std::max(most, plain[p]);
      CHECK_EQ(latest.Of(access), most);
      auto time = static_cast<int64_t>(random() % 50);
      latest.Raise(access, time);
      for (int32_t p = begin; p < end; ++p) plain[p] = std::max(plain[p], time);
    }
  }
}

// ---- Bytes ----

/*! \brief Memory of exactly this size, so that a sanitizer finds reads past its end. */
Buffer Copy(const Buffer& bytes, size_t size) {
  Buffer copy(size);
  if (size > 0) std::memcpy(copy.data(), bytes.data(), size);
  return copy;
}

TEST(ProgramsSurviveBytes) {
  for (const Maker& maker : AllPrograms()) {
    Buffer bytes = maker.Bytes();
    Program read = Deserialize(bytes.data(), bytes.size());
    Buffer again =
        Serialize(read, [&](uint8_t* to) { std::memcpy(to, read.constants, read.constant_bytes); });
    CHECK_EQ(again.size(), bytes.size());
    CHECK_EQ(std::memcmp(again.data(), bytes.data(), bytes.size()), 0);
    CHECK_EQ(reinterpret_cast<uintptr_t>(read.constants) % Buffer::kAlignment, 0u);
  }
  // A program's numbers keep all their bits.
  Maker maker = Everything();
  npu_tensor whole = maker.Scratchpad(4096, Fixed({4}, NPU_INT64));
  maker.Sum(whole, whole, whole).instructions[1] = {NPU_VECTOR_CONSTANT, 0, 0, 0, 0x1p53 - 1};
  Buffer bytes = maker.Bytes();
  Program read = Deserialize(bytes.data(), bytes.size());
  CHECK_EQ(read.commands.back().instructions[1].immediate, 0x1p53 - 1);
}

TEST(WeightBuffersSurviveBytes) {
  Maker maker = Everything();
  Buffer before = maker.Bytes();
  CHECK_EQ(before.data()[8], 4);
  maker.program.machine.weight_buffers = 2;
  Buffer bytes = maker.Bytes();
  CHECK_EQ(bytes.data()[8], 5);
  CHECK_EQ(Deserialize(bytes.data(), bytes.size()).machine.weight_buffers, 2);
  CHECK_EQ(Deserialize(before.data(), before.size()).machine.weight_buffers, 1);
  maker.program.machine.weight_buffers = 3;
  Buffer wrong = maker.Bytes();
  CHECK_ERROR(Deserialize(wrong.data(), wrong.size()), "Option weight_buffers is 3");
}

TEST(OlderFormatsAreRefused) {
  Buffer bytes = Everything().Bytes();
  bytes.data()[8] = 2;
  Seal(bytes.data(), bytes.size());
  CHECK_ERROR(Deserialize(bytes.data(), bytes.size()), "The program has format version 2, but");
}

TEST(DamagedBytesAreRefused) {
  for (const Maker& maker : AllPrograms()) {
    Buffer bytes = maker.Bytes();
    size_t tables = bytes.size() - maker.program.constant_bytes;
    for (size_t size = 0; size < bytes.size(); ++size) {
      Buffer part = Copy(bytes, size);
      CHECK(!Sentence([&] { Deserialize(part.data(), size); }).empty());
    }
    for (size_t i = 0; i < tables; ++i) {
      Buffer flipped = Copy(bytes, bytes.size());
      flipped.data()[i] ^= static_cast<uint8_t>(1 << i % 8);
      // The bytes that align the constants have no meaning.
      bool padding = tables - i < Buffer::kAlignment && std::all_of(
                                                            bytes.data() + i, bytes.data() + tables,
                                                            [](uint8_t byte) { return byte == 0; });
      CHECK(padding || !Sentence([&] { Deserialize(flipped.data(), flipped.size()); }).empty());
    }
  }
}

/*! \brief The bytes of a program, without checking its rules. */
std::string Forged(const std::function<void(Maker*)>& forge, Maker maker = Everything()) {
  forge(&maker);
  Buffer bytes = maker.Bytes();
  return Sentence([&] { Deserialize(bytes.data(), bytes.size()); });
}

template <typename Op>
Op& First(Maker* maker) {
  for (Command& command : maker->program.commands) {
    if (auto* op = std::get_if<Op>(&command.op)) return *op;
  }
  throw std::logic_error("no such command");
}

template <typename Op>
Command& FirstCommand(Maker* maker) {
  for (Command& command : maker->program.commands) {
    if (std::holds_alternative<Op>(command.op)) return command;
  }
  throw std::logic_error("no such command");
}

#define CHECK_FORGED(part, ...)                                                    \
  do {                                                                             \
    std::string got = Forged(__VA_ARGS__);                                         \
    if (got.empty() || !Contains(got, part)) check::Fail(__FILE__, __LINE__, got); \
  } while (false)

TEST(EveryRuleIsChecked) {
  CHECK_EQ(Forged([](Maker*) {}), "");
  CHECK_EQ(Forged([](Maker*) {}, Symbolic()), "");
  CHECK_FORGED("Option cores is 0", [](Maker* m) { m->program.machine.cores = 0; });
  CHECK_FORGED("has no label", [](Maker* m) { m->program.commands[1].label = 2; });
  CHECK_FORGED("has no label", [](Maker* m) { m->program.commands[1].label = -1; });
  CHECK_FORGED("is for core 1", [](Maker* m) { FirstCommand<npu_pool>(m).core = 1; });
  CHECK_FORGED("a transfer, has a core", [](Maker* m) { m->program.commands[0].core = 1; });
  CHECK_FORGED("a transfer, has a core", [](Maker* m) { m->program.commands[0].inputs = {0}; });
  CHECK_FORGED("has no outputs", [](Maker* m) { m->program.outputs.clear(); });

  // Places.
  CHECK_FORGED("does not fit into its memory, scratchpad", [](Maker* m) {
    m->program.tensors[First<npu_pool>(m).out].place.offset = 8192 - 44;
  });
  CHECK_FORGED("does not fit into its memory, scratchpad", [](Maker* m) {
    m->program.tensors[First<npu_pool>(m).out].place.offset = ~uint64_t{0} - 3;
  });
  CHECK_FORGED("does not fit into its memory, arena",
               [](Maker* m) { m->program.arena_bytes = 64 + 191; });
  CHECK_FORGED("does not fit into its memory, constants", [](Maker* m) {
    m->program.tensors[m->Put(Memory::kConstants, 1020, Fixed({2}))].desc.dims[0].size = 2;
  });
  CHECK_FORGED("does not fit into its memory, input 9",
               [](Maker* m) { m->Put(Memory::kInput, 0, Fixed({1}), 9); });
  CHECK_FORGED("does not fit into its memory, output 0",
               [](Maker* m) { m->Put(Memory::kOutput, 4, Fixed({12})); });
  CHECK_FORGED("does not fit into its memory, input 0",
               [](Maker* m) { m->Put(Memory::kInput, 0, Fixed({4}, NPU_INT32)); });
  CHECK_FORGED("does not fit into its memory, arena 1",
               [](Maker* m) { m->Put(Memory::kArena, 0, Fixed({1}), 1); });
  CHECK_FORGED("splits an element", [](Maker* m) { m->Put(Memory::kArena, 2, Fixed({1})); });
  CHECK_FORGED("in no memory", [](Maker* m) { m->Put(static_cast<Memory>(5), 0, Fixed({1})); });
  CHECK_FORGED("max_tile_bytes", [](Maker* m) { m->program.machine.max_tile_bytes = 200; });
  CHECK_FORGED("(dram_bytes): ", [](Maker* m) { m->program.machine.dram_bytes = 5000; });

  // Engines compute in the scratchpad.
  CHECK_FORGED("data of pool (command 6), tensor 1 (",
               [](Maker* m) { First<npu_pool>(m).data = 1; });
  CHECK_FORGED("is not in the scratchpad", [](Maker* m) { First<npu_pool>(m).out = 1; });
  CHECK_FORGED("but there are", [](Maker* m) { First<npu_pool>(m).data = 999; });
  CHECK_FORGED("but there are", [](Maker* m) { First<npu_pool>(m).out = -1; });
  CHECK_FORGED("but there are", [](Maker* m) { FirstCommand<npu_elementwise>(m).inputs[0] = 77; });
  CHECK_FORGED("is not in the scratchpad",
               [](Maker* m) { FirstCommand<npu_convolution>(m).inputs[1] = 0; });

  // Vector programs.
  CHECK_FORGED("An epilogue is given", [](Maker* m) {
    FirstCommand<npu_pool>(m).instructions = {{NPU_VECTOR_LOAD, 0, 0, 0, 0}};
  });
  CHECK_FORGED("has no instructions",
               [](Maker* m) { FirstCommand<npu_elementwise>(m).instructions.clear(); });
  CHECK_FORGED("is sin, which exists for real numbers only", [](Maker* m) {
    npu_tensor whole = m->Scratchpad(4096, Fixed({4}, NPU_INT32));
    m->Sum(whole, whole, whole).instructions[2].opcode = NPU_VECTOR_SIN;
  });
  CHECK_FORGED("which is not an integer of 64 bits", [](Maker* m) {
    npu_tensor whole = m->Scratchpad(4096, Fixed({4}, NPU_INT32));
    m->Sum(whole, whole, whole).instructions[1] = {NPU_VECTOR_CONSTANT, 0, 0, 0, HUGE_VAL};
  });
  CHECK_FORGED("this mixture is not supported", [](Maker* m) {
    npu_reduce reduce = {};
    reduce.data = m->Scratchpad(4096, Fixed({4}, NPU_INT32));
    reduce.out = m->Scratchpad(4160, Fixed({}));
    reduce.axes = 1;
    m->Add(reduce);
  });
  CHECK_FORGED("no earlier instruction defines",
               [](Maker* m) { FirstCommand<npu_elementwise>(m).instructions[2].b = 2; });

  // Commands do not overwrite what they read.
  CHECK_FORGED("overlaps with its input",
               [](Maker* m) { m->program.tensors[First<npu_pool>(m).out].place.offset = 64; });
  CHECK_FORGED("overlaps with its input", [](Maker* m) {
    // In place, but not element by element.
    npu_tensor shifted = m->Scratchpad(516, Fixed({1, 3, 2, 2}));
    FirstCommand<npu_elementwise>(m).inputs[0] = shifted;
  });
  CHECK_FORGED("overlaps with its input", [](Maker* m) {
    npu_tensor turned = m->Scratchpad(512, Fixed({2, 2}));
    npu_tensor large = m->Scratchpad(512, Fixed({2, 2, 2}));
    m->Sum(large, turned, turned);
  });
  CHECK_FORGED("overlaps with its input", [](Maker* m) {
    npu_tensor a = m->Put(Memory::kArena, 0, Fixed({8}));
    m->Move(m->Put(Memory::kArena, 16, Fixed({8})), a);
  });

  // Transfers.
  CHECK_FORGED("cannot be written", [](Maker* m) { First<Transfer>(m).out = 0; });
  CHECK_FORGED("cannot be written", [](Maker* m) {
    m->Move(m->Put(Memory::kConstants, 0, Fixed({3})), m->Scratchpad(0, Fixed({3})));
  });
  CHECK_FORGED("There is no data", [](Maker* m) {
    First<Transfer>(m).data = -1;
    First<Transfer>(m).fill = 0;
  });
  CHECK_FORGED("but there are", [](Maker* m) { First<Transfer>(m).data = -2; });
  CHECK_FORGED("same rank, element type and packing", [](Maker* m) {
    m->Move(m->Scratchpad(0, Fixed({16}, NPU_INT32)), m->Scratchpad(512, Fixed({16})));
  });
  CHECK_FORGED("same rank, element type and packing", [](Maker* m) {
    m->Move(m->Scratchpad(0, Fixed({16})), m->Scratchpad(512, Fixed({4, 4})));
  });
  CHECK_FORGED("every dimension once", [](Maker* m) { First<Transfer>(m).permutation[1] = 0; });
  CHECK_FORGED("every dimension once", [](Maker* m) { First<Transfer>(m).permutation[0] = -1; });
  CHECK_FORGED("begins outside", [](Maker* m) { First<Transfer>(m).data_offset[0] = -1; });
  CHECK_FORGED("begins outside", [](Maker* m) { First<Transfer>(m).out_offset[2] = 7; });
  for (int64_t step : {int64_t{0}, INT64_MIN, INT64_MAX}) {
    CHECK_FORGED("which is impossible", [=](Maker* m) { First<Transfer>(m).data_step[1] = step; });
  }
  for (int64_t step : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    CHECK_FORGED("which is impossible", [=](Maker* m) { First<Transfer>(m).out_step[1] = step; });
  }

  // Gathers, from any memory.
  auto gathers = [](const std::function<void(Maker*)>& forge) { return Forged(forge, Gathers()); };
  CHECK_EQ(gathers([](Maker*) {}), "");
  auto check_gather = [&](const char* part, const std::function<void(npu_gather*)>& forge) {
    std::string got = gathers([&](Maker* m) { forge(&First<npu_gather>(m)); });
    if (!Contains(got, part)) check::Fail(__FILE__, __LINE__, got);
  };
  for (int32_t axis : {-1, 2, INT32_MIN, INT32_MAX}) {
    check_gather("The axis of gather (command 0) is", [=](npu_gather* op) { op->axis = axis; });
  }
  check_gather("does not have the shape", [](npu_gather* op) { op->axis = 1; });
  check_gather("does not have the shape", [](npu_gather* op) { op->elementwise = 1; });
  check_gather("must be int32 or int64", [](npu_gather* op) { op->indices = op->data; });
  for (npu_tensor tensor : {-1, 99}) {
    check_gather("but there are", [=](npu_gather* op) { op->data = tensor; });
    check_gather("but there are", [=](npu_gather* op) { op->indices = tensor; });
    check_gather("but there are", [=](npu_gather* op) { op->out = tensor; });
  }
  auto forge_gather = [&](const char* part, const std::function<void(Maker*)>& forge) {
    std::string got = gathers(forge);
    if (!Contains(got, part)) check::Fail(__FILE__, __LINE__, got);
  };
  forge_gather("has a core", [](Maker* m) {
    m->program.machine.cores = 2;
    FirstCommand<npu_gather>(m).core = 1;
  });
  forge_gather("cannot be written", [](Maker* m) {
    m->program.tensors[First<npu_gather>(m).out].place.memory = Memory::kConstants;
  });
  forge_gather("has a core or a vector program", [](Maker* m) {
    FirstCommand<npu_gather>(m).instructions = {{NPU_VECTOR_LOAD, 0, 0, 0, 0}};
  });
  forge_gather("has no instructions",
               [](Maker* m) { FirstCommand<npu_gather>(m).inputs = {-1, 0}; });
  forge_gather("same element type", [](Maker* m) {
    m->program.tensors[First<npu_gather>(m).out].desc.dtype = NPU_INT32;
  });
  forge_gather("is packed",
               [](Maker* m) { m->program.tensors[First<npu_gather>(m).data].packed_bytes = 64; });
  // The rest of a symbolic dimension may be empty.
  forge_gather("is a part of a symbolic dimension", [](Maker* m) {
    m->program.tensors[First<npu_gather>(m).data].desc.dims[0] = Tile(1, 1, 5);
  });
  forge_gather("overlaps", [](Maker* m) {
    m->program.tensors[First<npu_gather>(m).data].place = {Memory::kScratchpad, 0, 80};
  });

  // Scans and orders.
  auto check_rows = [](const char* part, const std::function<void(Maker*)>& forge) {
    std::string got = Forged(forge, Rows());
    if (got.empty() || !Contains(got, part)) check::Fail(__FILE__, __LINE__, got);
  };
  CHECK_EQ(Forged([](Maker*) {}, Rows()), "");
  for (int32_t axis : {-1, 2, INT32_MIN, INT32_MAX}) {
    check_rows("The axis of scan (command 1) is",
               [=](Maker* m) { First<npu_scan>(m).axis = axis; });
    check_rows("The axis of order (command 3)", [=](Maker* m) { First<npu_order>(m).axis = axis; });
  }
  for (int32_t kind : {-1, 2, INT32_MAX}) {
    check_rows("The kind of scan (command 1) is",
               [=](Maker* m) { std::memcpy(&First<npu_scan>(m).kind, &kind, sizeof(kind)); });
  }
  for (npu_tensor tensor : {-1, 99}) {
    check_rows("but there are", [=](Maker* m) { First<npu_scan>(m).data = tensor; });
    check_rows("but there are", [=](Maker* m) { First<npu_scan>(m).out = tensor; });
    check_rows("but there are", [=](Maker* m) { First<npu_order>(m).data = tensor; });
    check_rows("but there are", [=](Maker* m) { First<npu_order>(m).out = tensor; });
  }
  check_rows("is not in the scratchpad", [](Maker* m) { First<npu_scan>(m).data = 0; });
  check_rows("is not in the scratchpad", [](Maker* m) { First<npu_order>(m).out = 2; });
  check_rows("An epilogue is given", [](Maker* m) {
    FirstCommand<npu_scan>(m).instructions = {{NPU_VECTOR_LOAD, 0, 0, 0, 0}};
  });
  check_rows("An epilogue is given", [](Maker* m) {
    FirstCommand<npu_order>(m).instructions = {{NPU_VECTOR_LOAD, 0, 0, 0, 0}};
  });
  check_rows("overlaps", [](Maker* m) { First<npu_scan>(m).out = First<npu_scan>(m).data; });
  auto data_of_order = [](Maker* m) -> Desc& {
    return m->program.tensors[First<npu_order>(m).data].desc;
  };
  check_rows("does not have the shape", [&](Maker* m) { data_of_order(m).dims[1] = Size(1); });
  check_rows("does not have the shape", [&](Maker* m) {
    // A part of a symbolic dimension may have no element.
    First<npu_order>(m) = std::get<npu_order>(m->program.commands[5].op);
    data_of_order(m).dims[0] = Tile(1, 1, 4);
    FirstCommand<npu_scan>(m) = m->program.commands[0];
  });

  // Packed data.
  auto packed = [](Maker* m) -> Tensor& {
    return m->program.tensors[First<npu_convolution>(m).weight];
  };
  CHECK_FORGED("same rank, element type and packing",
               [&](Maker* m) { packed(m).packed_bytes += 4; });
  CHECK_FORGED("instead of", [&](Maker* m) {
    for (Tensor& tensor : m->program.tensors) {
      if (tensor.packed_bytes != 0) tensor.packed_bytes -= 4;
    }
  });
  // Weights of real numbers are never halved.
  CHECK_FORGED("instead of", [&](Maker* m) {
    for (Tensor& tensor : m->program.tensors) tensor.packed_bytes /= 2;
  });
  CHECK_FORGED("is packed", [&](Maker* m) {
    First<npu_convolution>(m).data = First<npu_convolution>(m).weight;
  });
  CHECK_FORGED("A part of packed data",
               [&](Maker* m) { std::get<Transfer>(m->program.commands[1].op).data_offset[0] = 1; });
  CHECK_FORGED("packed, in an input", [](Maker* m) { m->program.tensors[0].packed_bytes = 64; });

  // Kernels pad data; the sizes of that must not overflow.
  CHECK_FORGED("The padded data of pool", [](Maker* m) {
    npu_pool& pool = First<npu_pool>(m);
    for (int i = 0; i < 2; ++i) {
      pool.window[i] = 1 << 30;
      pool.strides[i] = 1 << 30;
      pool.pads_begin[i] = 1 << 29;
      pool.pads_end[i] = 1 << 29;
      m->program.tensors[pool.out].desc.dims[2 + i].size = 1;
    }
  });

  // Symbols.
  CHECK_FORGED("is in no input's shape", [](Maker* m) { m->program.symbols.push_back({"k", 4}); });
  CHECK_FORGED(
      "The bound of symbol n is 0", [](Maker* m) { m->program.symbols[0].bound = 0; }, Symbolic());
  CHECK_FORGED(
      "has the shape of a tile",
      [](Maker* m) {
        m->program.outputs[0].dims[0].begin = 1;
        m->program.outputs[0].dims[0].limit = 9;
      },
      Symbolic());
  CHECK_FORGED(
      "names symbol 7", [](Maker* m) { m->program.tensors[0].desc.dims[0].symbol = 7; },
      Symbolic());
}

// Inputs and outputs are only as large as the current values of the symbols.
TEST(TensorsStayInsideOfInputsForAllSymbols) {
  auto fits = [](const Desc& desc, uint64_t offset) {
    Maker maker = Symbolic();  // The input is [n, 4], and n is up to 10.
    maker.Put(Memory::kInput, offset, desc);
    return Forged([](Maker*) {}, maker).empty();
  };
  CHECK(fits(Fixed({4}), 0));
  CHECK(fits(Fixed({2}), 8));
  CHECK(!fits(Fixed({4}), 4));
  CHECK(!fits(Fixed({2, 4}), 0));
  CHECK(fits(DescOf({Tile(4, 0, 40)}), 0));
  CHECK(fits(DescOf({Tile(2, 0, 20)}), 8));
  CHECK(!fits(DescOf({Tile(4, 0, 40)}), 4));
  CHECK(!fits(DescOf({Tile(5, 0, 50)}), 0));
  CHECK(fits(DescOf({Tile(1, 4, 4), Size(4)}), 4 * 16));
  CHECK(fits(DescOf({Tile(1, 4, 4), Size(2)}), 4 * 16));
  CHECK(fits(DescOf({Tile(1, 4, 4), Size(4)}), 3 * 16));
  CHECK(!fits(DescOf({Tile(1, 4, 4), Size(4)}), 5 * 16));
  CHECK(!fits(DescOf({Tile(1, 4, 4), Size(5)}), 0));
  CHECK(fits(DescOf({Tile(4, 16, 16)}), 64));
  CHECK(!fits(DescOf({Tile(1, 0, 10), Tile(1, 0, 10)}), 0));
}

// ---- Elision ----

/*! \brief Compares results with and without elision; returns the elided commands. */
size_t CheckElision(const Program& program) {
  Verify(program);
  Accesses accesses(program);
  Elision none = NoElision(program, accesses);
  Elision some = Elide(program, accesses);
  std::vector<int64_t> values = {1};
  if (!program.symbols.empty()) {
    for (int64_t value = 2; value <= program.symbols[0].bound; ++value) values.push_back(value);
  }
  for (int64_t value : values) {
    std::vector<int64_t> symbols(program.symbols.size(), value);
    Run plain(program, accesses, none, symbols);
    Run elided(program, accesses, some, symbols);
    for (size_t i = 0; i < plain.buffers.size(); ++i) {
      // Compared as bits, since NaN differs from itself.
      CHECK_EQ(std::memcmp(plain.buffers[i].data(), elided.buffers[i].data(),
                           plain.buffers[i].size() * sizeof(float)),
               0);
    }
  }
  return static_cast<size_t>(std::count(some.skipped.begin(), some.skipped.end(), true));
}

TEST(TransfersThatNobodyCanTellAreLeftOut) {
  // All except the padded load, and the store of data that is read later in another shape.
  CHECK_EQ(CheckElision(Everything().program), 6u);
  CHECK_EQ(CheckElision(Symbolic().program), 7u);
}

TEST(ConvolutionsReadSpreadDataWithoutItsZeros) {
  enum class But { kNothing, kFill, kOverwritten, kReadByOthers, kStrides };
  auto elides = [](But but) -> bool {
    Maker maker;
    npu_tensor source = maker.Put(Memory::kArena, 0, Fixed({1, 2, 3, 4}));
    npu_tensor data = maker.Scratchpad(0, Fixed({1, 2, 7, 8}));
    npu_tensor weight = maker.Scratchpad(512, Fixed({3, 2, 2, 2}));
    const bool strided = but == But::kStrides;
    Desc shape = strided ? Fixed({1, 3, 3, 4}) : Fixed({1, 3, 6, 7});
    npu_tensor result = maker.Scratchpad(1024, shape);
    maker.Move(source, maker.Input(Fixed({1, 2, 3, 4})));
    maker.Move(weight, maker.Put(Memory::kConstants, 0, Fixed({3, 2, 2, 2})));
    const size_t load = maker.program.commands.size();
    Transfer& spread = maker.Move(data, source, {}, {0, 0, 1, 0});
    spread.out_step[2] = spread.out_step[3] = 2;
    spread.fill = 1;
    spread.fill_value = but == But::kFill ? 1 : 0;
    if (but == But::kOverwritten) maker.Move(source, maker.Input(Fixed({1, 2, 3, 4})));
    npu_convolution convolution = ConvolutionOf(result, data, weight);
    for (int d = 0; strided && d < 2; ++d) convolution.strides[d] = 2;
    maker.Add(convolution);
    maker.Move(maker.Output(shape), result);
    if (but == But::kReadByOthers) {
      npu_tensor sum = maker.Scratchpad(1024, Fixed({1, 2, 7, 8}));
      maker.Sum(sum, data, data);
      maker.Move(maker.Output(Fixed({1, 2, 7, 8})), sum);
    }
    CheckElision(maker.program);
    return Elide(maker.program, Accesses(maker.program)).skipped[load];
  };
  CHECK(elides(But::kNothing));
  CHECK(!elides(But::kFill));
  CHECK(!elides(But::kOverwritten));
  CHECK(!elides(But::kReadByOthers));
  CHECK(!elides(But::kStrides));
}

TEST(TransfersThatMatterAreDone) {
  // The source of a copy is overwritten before the copy is read.
  Maker maker;
  npu_tensor x = maker.Input(Fixed({4}));
  npu_tensor out = maker.Output(Fixed({4}));
  npu_tensor out2 = maker.Output(Fixed({4}));
  npu_tensor arena = maker.Put(Memory::kArena, 0, Fixed({4}));
  npu_tensor a = maker.Scratchpad(0, Fixed({4}));
  npu_tensor b = maker.Scratchpad(16, Fixed({4}));
  npu_tensor c = maker.Scratchpad(32, Fixed({4}));
  maker.Move(a, x);
  maker.Sum(b, a, a);
  maker.Move(arena, b);  // 2: b is computed in the arena.
  maker.Move(c, arena);  // 3: must be done, since the arena changes before c is read.
  maker.Sum(b, b, a);
  maker.Move(arena, b);
  maker.Sum(c, c, b);
  maker.Move(out, c);
  maker.Move(b, arena);
  maker.Sum(c, b, a);
  maker.Move(out2, c);
  Accesses accesses(maker.program);
  Elision elision = Elide(maker.program, accesses);
  CHECK(elision.skipped[2]);
  CHECK(!elision.skipped[3]);
  CheckElision(maker.program);

  // A store must not happen while an elided load still reads its memory.
  Maker late;
  x = late.Input(Fixed({4}));
  out = late.Output(Fixed({4}));
  arena = late.Put(Memory::kArena, 0, Fixed({4}));
  a = late.Scratchpad(0, Fixed({4}));
  b = late.Scratchpad(16, Fixed({4}));
  c = late.Scratchpad(32, Fixed({4}));
  late.Move(a, x);
  late.Move(arena, x);
  late.Move(b, arena);  // 2: read at its source.
  late.Sum(c, a, a);
  late.Sum(a, a, b);    // Reads the arena, after c was computed.
  late.Move(arena, c);  // 5: so c was not computed in the arena.
  late.Move(out, a);
  late.Move(late.Output(Fixed({4})), arena);
  Accesses late_accesses(late.program);
  elision = Elide(late.program, late_accesses);
  CHECK(elision.skipped[2]);
  CHECK(!elision.skipped[5]);
  CheckElision(late.program);

  // The offset of a row depends on a symbol: the address is unknown when the program is loaded.
  Maker rows;
  rows.program.symbols = {{"n", 4}};
  x = rows.Input(DescOf({Size(2), Tile(1, 0, 4)}));
  a = rows.Scratchpad(0, DescOf({Size(1), Tile(1, 0, 4)}));
  b = rows.Scratchpad(16, DescOf({Size(1), Tile(1, 0, 4)}));
  rows.Move(a, x, {1, 0});
  rows.Sum(b, a, a);
  rows.Move(rows.Output(DescOf({Size(1), Tile(1, 0, 4)})), b);
  CHECK_EQ(CheckElision(rows.program), 1u);
}

/*! \brief Random commands on a few tensors that overlap in every way. */
Maker AnyProgram(uint32_t seed, bool symbolic) {
  std::mt19937 random(seed);
  auto below = [&random](uint32_t end) { return static_cast<int64_t>(random() % end); };
  Maker maker;
  // From complete overlap to almost none.
  uint64_t spread = 16 << seed % 3;
  maker.program.arena_bytes = 512;
  maker.program.machine.scratchpad_bytes = 1024;
  std::vector<Desc> shapes = {Fixed({8}),    Fixed({4}),       Fixed({2, 4}), Fixed({4, 2}),
                              Fixed({1, 4}), Fixed({1, 2, 4}), Fixed({2, 2})};
  Desc bound = Fixed({4, 4});
  if (symbolic) {
    maker.program.symbols = {{"n", 4}};
    bound = DescOf({Tile(1, 0, 4), Size(4)});
    for (int64_t begin : {0, 1, 2}) {
      shapes.push_back(DescOf({Tile(1, begin, 2), Size(4)}));
      shapes.push_back(DescOf({Tile(1, begin, 2), Size(2), Size(2)}));
    }
    shapes.push_back(bound);
    shapes.push_back(DescOf({Tile(4, 0, 16)}));
    shapes.push_back(DescOf({Size(4), Tile(1, 0, 4)}));
    shapes.push_back(DescOf({Size(1), Tile(1, 0, 4)}));
  }
  std::vector<npu_tensor> sources = {maker.Input(bound), maker.Input(Fixed({2, 4})),
                                     maker.Put(Memory::kConstants, 0, Fixed({4, 4}))};
  std::vector<npu_tensor> all = sources;
  std::vector<npu_tensor> computed;
  // For gathers.
  npu_tensor numbers = maker.Input(Fixed({2, 4}, NPU_INT32));
  npu_tensor few = maker.Input(Fixed({2}, NPU_INT32));
  all.push_back(maker.Output(bound));
  all.push_back(maker.Output(Fixed({2, 4})));
  for (int i = 0; i < 10; ++i) {
    const Desc& desc = shapes[below(static_cast<uint32_t>(shapes.size()))];
    all.push_back(maker.Put(Memory::kArena, static_cast<uint64_t>(below(4)) * spread, desc));
  }
  for (int i = 0; i < 14; ++i) {
    const Desc& desc = shapes[below(static_cast<uint32_t>(shapes.size()))];
    all.push_back(maker.Scratchpad(static_cast<uint64_t>(below(13)) * spread, desc));
    computed.push_back(all.back());
  }
  auto any = [&](const std::vector<npu_tensor>& of) {
    return of[below(static_cast<uint32_t>(of.size()))];
  };
  for (int i = 0; i < 60; ++i) {
    Maker before = maker;
    if (below(3) > 0) {
      npu_tensor out = any(all);
      npu_tensor data = any(all);
      int32_t rank = maker.program.tensors[data].desc.rank;
      std::vector<int64_t> data_offset(rank), out_offset(rank);
      if (below(4) == 0) data_offset[below(static_cast<uint32_t>(rank))] = below(3);
      if (below(4) == 0) out_offset[below(static_cast<uint32_t>(rank))] = below(3);
      Transfer& move = maker.Move(out, data, data_offset, out_offset);
      if (below(8) == 0) move.fill = 1;
      if (below(30) == 0) move.data = -1;
      if (below(8) == 0) {
        uint32_t d = below(static_cast<uint32_t>(rank));
        move.data_step[d] = below(2) == 0 ? -1 : 2;
        move.data_offset[d] = below(4);
      }
      if (below(16) == 0) move.out_step[below(static_cast<uint32_t>(rank))] = 2;
      if (below(8) == 0 && rank > 1) std::swap(move.permutation[0], move.permutation[1]);
    } else if (below(4) == 0) {
      maker.Product(any(computed), any(computed), any(computed));
    } else if (below(4) == 0) {
      auto axis = static_cast<int32_t>(below(2));
      auto elementwise = static_cast<int32_t>(below(2));
      maker.Add(
          npu_gather{0, any(all), below(2) == 0 ? numbers : few, any(all), axis, elementwise});
    } else {
      npu_tensor out = any(computed);
      if (below(8) == 0) {
        auto axis = static_cast<int32_t>(below(2));
        auto exclusive = static_cast<int32_t>(below(2));
        maker.Add(npu_scan{0, any(computed), out, NPU_SCAN_SUM, axis, exclusive});
        if (!Sentence([&] { Verify(maker.program); }).empty()) maker = before;
        continue;
      }
      maker.Sum(out, below(3) == 0 ? out : any(computed), any(computed));
    }
    if (!Sentence([&] { Verify(maker.program); }).empty()) maker = before;
  }
  // Compare all memory.
  std::vector<npu_tensor> results;
  npu_tensor rest = maker.Scratchpad(0, Fixed({64}));
  npu_tensor arena = maker.Put(Memory::kArena, 0, Fixed({64}));
  maker.Move(maker.Output(Fixed({64})), rest);
  maker.Move(maker.Output(Fixed({64})), arena);
  return maker;
}

TEST(ElisionChangesNoResults) {
  size_t skipped = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    Maker maker = AnyProgram(seed, seed % 2 == 1);
    // Comparing the whole scratchpad at the end prevents most elisions.
    if (seed % 8 < 6) maker.program.commands.erase(maker.program.commands.end() - 2);
    skipped += CheckElision(maker.program);
  }
  std::printf("     %zu transfers left out\n", skipped);
  CHECK(skipped > 1500);
}

/*! \brief A small network, compiled by the build half; with symbols, for up to 5 images. */
Buffer Compiled(const char* scratchpad_bytes, bool symbolic) {
  npu_option option = {"scratchpad_bytes", scratchpad_bytes};
  npu_builder* builder = nullptr;
  CHECK_EQ(build.create(&option, 1, &builder), NPU_OK);
  auto ok = [&](npu_status status) {
    if (status != NPU_OK) check::Fail(__FILE__, __LINE__, build.error(builder));
  };
  npu_dim batch = {3, -1};
  if (symbolic) {
    batch = {1, 0};
    ok(build.add_symbol(builder, "n", 5, &batch.symbol));
  }
  auto desc = [&](const std::vector<int64_t>& sizes, bool constant = false) {
    npu_tensor_desc result = {};
    result.rank = static_cast<int32_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) result.dims[i] = {sizes[i], -1};
    if (!constant) result.dims[0] = batch;
    return result;
  };
  auto tensor = [&](const std::vector<int64_t>& sizes) {
    npu_tensor_desc shape = desc(sizes);
    npu_tensor made = -1;
    ok(build.add_tensor(builder, &shape, &made));
    return made;
  };
  // Whole numbers, whose sums are exact in any tiling.
  std::vector<float> numbers(4096);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * 7 % 5) - 2;
  auto constant = [&](const std::vector<int64_t>& sizes) {
    npu_tensor_desc shape = desc(sizes, true);
    size_t count = 1;
    for (int64_t size : sizes) count *= static_cast<size_t>(size);
    npu_tensor made = -1;
    ok(build.add_constant(builder, &shape, numbers.data(), count * sizeof(float), &made));
    return made;
  };
  npu_tensor_desc image = desc({0, 3, 12, 12});
  npu_tensor data = -1;
  ok(build.add_input(builder, &image, &data));
  npu_convolution convolution = ConvolutionOf(tensor({0, 8, 12, 12}), data, constant({8, 3, 3, 3}));
  for (int i = 0; i < 2; ++i) convolution.pads_begin[i] = convolution.pads_end[i] = 1;
  convolution.size = sizeof(convolution);
  ok(build.add_convolution(builder, &convolution));
  npu_tensor features = convolution.out;
  convolution = ConvolutionOf(tensor({0, 8, 12, 12}), features, constant({8, 8, 1, 1}));
  const npu_vector_instruction add[] = {
      {NPU_VECTOR_LOAD, 0, 0, 0, 0}, {NPU_VECTOR_LOAD, 1, 0, 0, 0}, {NPU_VECTOR_ADD, 0, 1, 0, 0}};
  const npu_tensor inputs[] = {-1, features};
  npu_vector_program residual = {sizeof(residual), 3, add, inputs, 2, 0, nullptr};
  convolution.epilogue = &residual;
  convolution.size = sizeof(convolution);
  ok(build.add_convolution(builder, &convolution));
  npu_pool pool = PoolOf(tensor({0, 8, 6, 6}), convolution.out, NPU_POOL_MAX, 2);
  pool.size = sizeof(pool);
  ok(build.add_pool(builder, &pool));
  npu_reduce reduce = {};
  reduce.data = pool.out;
  reduce.out = tensor({0, 8});
  reduce.axes = 0b1100;
  reduce.size = sizeof(reduce);
  ok(build.add_reduce(builder, &reduce));
  npu_matmul matmul = {};
  matmul.a = reduce.out;
  matmul.b = constant({8, 20});
  matmul.out = tensor({0, 20});
  matmul.size = sizeof(matmul);
  ok(build.add_matmul(builder, &matmul));
  ok(build.mark_output(builder, matmul.out));
  ok(build.mark_output(builder, pool.out));
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  ok(build.finish(builder, &bytes, &size));
  Buffer result(size);
  std::memcpy(result.data(), bytes, size);
  build.destroy(builder);
  return result;
}

TEST(CompiledProgramsNeedNotMoveWhatTheyLoad) {
  for (bool symbolic : {false, true}) {
    std::vector<std::vector<float>> want;
    for (const char* scratchpad_bytes : {"1000000", "20000", "7000"}) {
      Buffer bytes = Compiled(scratchpad_bytes, symbolic);
      Program program = Deserialize(bytes.data(), bytes.size());
      CHECK(CheckElision(program) > 0);
      Accesses accesses(program);
      Run run(program, accesses, Elide(program, accesses),
              std::vector<int64_t>(program.symbols.size(), 3));
      if (want.empty()) want = run.buffers;
      CHECK(run.buffers == want);
    }
  }
}

// ---- Listing ----

TEST(ListingsSayEverything) {
  for (const Maker& maker : AllPrograms()) {
    Accesses accesses(maker.program);
    Timeline timeline(maker.program, accesses);
    std::string text = Listing(maker.program, accesses, timeline);
    CHECK_EQ(text, Listing(maker.program, accesses, timeline));
    for (const char* part : {"scratchpad_bytes", "input0", "output0", "dma_in", "matrix", "; first",
                             "totals", "cycles"}) {
      CHECK(Contains(text, part));
    }
    auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    CHECK(lines > maker.program.commands.size() + maker.program.tensors.size());
  }
  Maker maker = Gathers();
  Accesses accesses(maker.program);
  std::string text = Listing(maker.program, accesses, Timeline(maker.program, accesses));
  CHECK(Contains(text, " = gather constants[0] float32 [5, 4], input0[0] int32 [n] axis 0"));
  CHECK(Contains(text, " axis 1 elementwise"));
  Maker rows = Rows();
  Accesses touched(rows.program);
  text = Listing(rows.program, touched, Timeline(rows.program, touched));
  CHECK(Contains(text, " = scan sum scratchpad[0] float32 [n, 6] axis 0 exclusive"));
  CHECK(Contains(text, " = order scratchpad[0] float32 [n, 6] axis 1 descending"));
}

// ---- Mutations ----

/*! \brief The largest amount of work: programs with more are not run. */
bool IsSmall(const Program& program, const Timeline& timeline) {
  constexpr uint64_t kMost = 1 << 20;
  const RunCounters& counters = timeline.counters();
  uint64_t bytes = counters.scratchpad_bytes + program.arena_bytes;
  for (const Desc& desc : program.inputs) bytes += MostBytes(desc);
  for (const Desc& desc : program.outputs) bytes += MostBytes(desc);
  uint64_t moved = counters.dram_bytes_read + counters.dram_bytes_written +
                   counters.scratchpad_bytes_read + counters.scratchpad_bytes_written;
  uint64_t vector =
      counters.busy_cycles[kEngineVector] * static_cast<uint64_t>(program.machine.vector_lanes);
  return bytes < kMost && moved < kMost && counters.matrix_operations < kMost && vector < kMost;
}

// Whatever the tables contain, a program is refused, or it runs within its memory.
TEST(MutatedProgramsAreRefusedOrRun) {
  std::mt19937 random(7);
  size_t refused = 0;
  size_t ran = 0;
  std::set<std::string> sentences;
  std::vector<Buffer> originals;
  for (const Maker& maker : AllPrograms()) originals.push_back(maker.Bytes());
  for (uint32_t seed = 0; seed < 6; ++seed) {
    originals.push_back(AnyProgram(seed, seed % 2 == 1).Bytes());
  }
  for (const char* scratchpad_bytes : {"1000000", "7000"}) {
    originals.push_back(Compiled(scratchpad_bytes, true));
  }
  for (int i = 0; i < 24000; ++i) {
    const Buffer& original = originals[i % originals.size()];
    // The offset of the header's number of constant bytes.
    uint64_t constant_bytes;
    std::memcpy(&constant_bytes, original.data() + 32, sizeof(constant_bytes));
    size_t tables = original.size() - constant_bytes;
    Buffer bytes = Copy(original, original.size());
    for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
      uint8_t* at = bytes.data() + 48 + random() % (tables - 48);
      switch (random() % 4) {
        case 0:
          *at ^= static_cast<uint8_t>(1 << random() % 8);
          break;
        case 1:
          *at = static_cast<uint8_t>(*at + random() % 9 - 4);
          break;
        case 2:
          *at = static_cast<uint8_t>(random());
          break;
        default:
          std::memset(at, random() % 2 == 0 ? 0 : 255,
                      std::min<size_t>(1 + random() % 8, bytes.data() + tables - at));
      }
    }
    Seal(bytes.data(), bytes.size());
    std::string sentence = Sentence([&] {
      Program program = Deserialize(bytes.data(), bytes.size());
      Accesses accesses(program);
      Timeline timeline(program, accesses);
      if (!IsSmall(program, timeline)) return;
      Listing(program, accesses, timeline);
      std::vector<int64_t> symbols;
      for (const Symbol& symbol : program.symbols) {
        symbols.push_back(1 + static_cast<int64_t>(random() % symbol.bound));
      }
      timeline.SetSymbols(symbols.data());
      Elision elision = i % 2 == 0 ? Elide(program, accesses) : NoElision(program, accesses);
      // The arguments of kernels, and their memory.
      std::vector<uint8_t> none;
      Execution probe(program, accesses, elision, none.data(), none.data());
      if (probe.most_scratch_bytes() > 1 << 24) return;
      Buffer scratchpad(ScratchpadBytes(program));
      Buffer arena(program.arena_bytes);
      if (scratchpad.size() > 0) std::memset(scratchpad.data(), 1, scratchpad.size());
      if (arena.size() > 0) std::memset(arena.data(), 1, arena.size());
      Execution execution(program, accesses, elision, scratchpad.data(), arena.data());
      execution.SetSymbols(symbols.data());
      std::vector<Buffer> buffers;
      std::vector<void*> addresses;
      auto add = [&](const Desc& desc) {
        TensorView view = Resolve(desc, symbols.data());
        buffers.emplace_back(static_cast<size_t>(ElementCount(view)) * ElementSize(desc.dtype));
        std::memset(buffers.back().data(), 1, buffers.back().size());
        addresses.push_back(buffers.back().data());
      };
      for (const Desc& desc : program.inputs) add(desc);
      for (const Desc& desc : program.outputs) add(desc);
      execution.Bind(addresses);
      Buffer scratch(execution.scratch_bytes());
      std::atomic<bool> cancel{false};
      execution.Run({scratch.data(), nullptr}, cancel);
      ++ran;
    });
    if (!sentence.empty()) ++refused;
  }
  std::printf("     %zu refused, %zu run\n", refused, ran);
  CHECK(refused > 5000);
  CHECK(ran > 1000);
}

}  // namespace

int main(int count, char** arguments) { return check::RunTests(count, arguments); }
