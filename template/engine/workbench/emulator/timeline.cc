// SPDX-License-Identifier: Apache-2.0
/*!
 * \file timeline.cc
 * \brief When each command of a program runs, and what it moves.
 */
#include "timeline.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace npu::emulator {
namespace {

/*! \brief Computes the work of one command. */
class Worker {
 public:
  Worker(const Program& program, const Command& command, const int64_t* symbols)
      : program_(program), command_(command), symbols_(symbols) {}

  Work Run() {
    TensorView out = View(OutputOf(command_));
    work_.is_nothing = ElementCount(out) == 0;
    if (!work_.is_nothing) std::visit([&](const auto& op) { Add(op, out); }, command_.op);
    return work_;
  }

 private:
  TensorView View(npu_tensor tensor) const {
    return Resolve(program_.tensors[tensor].desc, symbols_);
  }

  int64_t BytesOf(npu_tensor tensor) const {
    if (program_.tensors[tensor].packed_bytes != 0) {
      return static_cast<int64_t>(program_.tensors[tensor].packed_bytes);
    }
    TensorView view = View(tensor);
    return ElementCount(view) * static_cast<int64_t>(ElementSize(view.dtype));
  }

  int64_t Instructions() const { return static_cast<int64_t>(command_.instructions.size()); }

  int64_t Vector(int64_t elements, int64_t instructions) const {
    return VectorCycles(program_.machine, elements, instructions);
  }

  /*! \brief Adds the products of a matmul or convolution, which take some cycles. */
  void AddProducts(const TensorView& out, int64_t k, int64_t cycles) {
    work_.matrix_operations = Times(2, Times(ElementCount(out), k));
    work_.cycles[kEngineMatrix] = cycles;
    work_.cycles[kEngineVector] = Vector(ElementCount(out), Instructions());
  }

  /*! \brief Adds what a command reads from the scratchpad and writes to it. */
  void AddOperands() {
    ForEachRead(command_, [this](npu_tensor tensor) {
      work_.scratchpad_bytes_read = Plus(work_.scratchpad_bytes_read, BytesOf(tensor));
    });
    work_.scratchpad_bytes_written = BytesOf(OutputOf(command_));
  }

  void Add(const npu_matmul& op, const TensorView& out) {
    AddOperands();
    TensorView a = View(op.a);
    TensorView b = View(op.b);
    int64_t n = out.dims[out.rank - 1];
    int64_t k = a.dims[a.rank - (op.transpose_a != 0 ? 2 : 1)];
    int64_t products = 1;
    for (int32_t d = 0; d < b.rank - 2; ++d) products *= b.dims[d];
    const int64_t rows = ElementCount(out) / (products * n);
    const int64_t steps = StepsOfCell(a.dtype, b.dtype);
    AddProducts(out, k, MatrixCycles(program_.machine, rows, k, n, steps, products));
  }

  void Add(const npu_convolution& op, const TensorView& out) {
    AddOperands();
    TensorView weight = View(op.weight);
    const int64_t steps = StepsOfCell(View(op.data).dtype, weight.dtype);
    const int64_t depth = ElementCount(weight) / weight.dims[0];
    AddProducts(out, depth,
                GroupedMatrixCycles(program_.machine, op.groups, ElementCount(out) / out.dims[1],
                                    depth, weight.dims[0] / op.groups, steps));
  }

  void Add(const npu_pool& op, const TensorView& out) {
    AddOperands();
    TensorView data = View(op.data);
    // Elements of all windows of a channel.
    int64_t elements = 1;
    for (int32_t i = 0; i < op.spatial_rank; ++i) {
      int64_t from = data.dims[i + 2];
      int64_t to = out.dims[i + 2];
      // Windows that divide the data share an element wherever a bound falls into one.
      int64_t along = op.kind == NPU_POOL_AVERAGE_ADAPTIVE ? from + to - std::gcd(from, to)
                                                           : Times(to, op.window[i]);
      elements = Times(elements, along);
    }
    int64_t& cycles = work_.cycles[kEngineVector];
    cycles = Vector(Times(elements, out.dims[0] * out.dims[1]), 1);
    if (op.kind != NPU_POOL_MAX) cycles = Plus(cycles, Vector(ElementCount(out), 1));
  }

  void Add(const npu_elementwise&, const TensorView& out) {
    AddOperands();
    work_.cycles[kEngineVector] = Vector(ElementCount(out), Instructions());
  }

  void Add(const npu_reduce& op, const TensorView& out) {
    AddOperands();
    int64_t after = Instructions() + (op.kind == NPU_REDUCE_MEAN ? 1 : 0);
    work_.cycles[kEngineVector] =
        Plus(Vector(ElementCount(View(op.data)), 1), Vector(ElementCount(out), after));
  }

  /*! \brief Adds a plain operation. */
  template <typename Op>
  void Add(const Op& op, const TensorView& out) {
    AddOperands();
    npu_tensor data = -1;
    ForEachOperand(op, [&data](npu_tensor tensor) { data = data < 0 ? tensor : data; });
    work_.cycles[kEngineVector] = CyclesOf(op, program_.machine, View(data), out);
  }

  void Add(const Transfer& op, const TensorView& out) {
    auto element = static_cast<int64_t>(ElementSize(out.dtype));
    bool packed = program_.tensors[op.out].packed_bytes != 0;
    CopyArgs box;
    box.out = out;
    std::copy_n(op.permutation, NPU_MAX_RANK, box.permutation);
    std::copy_n(op.data_offset, NPU_MAX_RANK, box.data_offset);
    std::copy_n(op.data_step, NPU_MAX_RANK, box.data_step);
    std::copy_n(op.out_offset, NPU_MAX_RANK, box.out_offset);
    std::copy_n(op.out_step, NPU_MAX_RANK, box.out_step);
    if (op.data >= 0) box.data = View(op.data);
    int64_t out_extents[NPU_MAX_RANK];
    int64_t data_extents[NPU_MAX_RANK];
    int64_t bytes = op.data < 0 ? 0 : element;
    for (int32_t d = 0; d < out.rank && op.data >= 0; ++d) {
      out_extents[d] = data_extents[box.permutation[d]] = box.Extent(d);
      bytes *= out_extents[d];
    }
    if (packed) bytes = BytesOf(op.out);
    int64_t written = op.fill != 0 ? BytesOf(op.out) : bytes;
    work_.is_nothing = written == 0;
    if (work_.is_nothing) return;
    Engine engine = EngineOf(command_, program_.tensors);
    int64_t& cycles = work_.cycles[engine];
    if (bytes > 0) {
      if (program_.tensors[op.data].place.memory == Memory::kScratchpad) {
        work_.scratchpad_bytes_read = bytes;
      } else {
        work_.dram_bytes_read = bytes;
        cycles = packed ? Dma(1, bytes) : Dma(box.data, data_extents, op.data_step);
      }
    }
    if (program_.tensors[op.out].place.memory == Memory::kScratchpad) {
      work_.scratchpad_bytes_written = written;
    } else {
      work_.dram_bytes_written = written;
      bool whole = packed || op.fill != 0;
      cycles = Plus(cycles, whole ? Dma(1, written) : Dma(out, out_extents, op.out_step));
    }
    if (cycles == 0) cycles = Dma(1, written);
  }

  void Add(const npu_gather& op, const TensorView& out) {
    TensorView data = View(op.data);
    int64_t slice = static_cast<int64_t>(ElementSize(out.dtype));
    int64_t slices = ElementCount(out);
    for (int32_t d = op.axis + 1; d < data.rank && op.elementwise == 0; ++d) {
      slice *= data.dims[d];
      slices /= data.dims[d];
    }
    int64_t& cycles = work_.cycles[EngineOf(command_, program_.tensors)];
    cycles = Dma(slices, slice);
    auto move = [&](npu_tensor tensor, int64_t bytes, int64_t* scratchpad, int64_t* dram) {
      bool inside = program_.tensors[tensor].place.memory == Memory::kScratchpad;
      int64_t& moved = inside ? *scratchpad : *dram;
      moved = Plus(moved, bytes);
      if (!inside && tensor != op.data) cycles = Plus(cycles, Dma(1, bytes));
    };
    int64_t bytes = BytesOf(op.out);
    move(op.data, bytes, &work_.scratchpad_bytes_read, &work_.dram_bytes_read);
    move(op.indices, BytesOf(op.indices), &work_.scratchpad_bytes_read, &work_.dram_bytes_read);
    move(op.out, bytes, &work_.scratchpad_bytes_written, &work_.dram_bytes_written);
  }

  void Add(const npu_update& op, const TensorView& out) {
    TensorView value = View(op.value);
    auto slice = static_cast<int64_t>(ElementSize(out.dtype));
    for (int32_t d = op.axis + 1; d < out.rank; ++d) slice *= out.dims[d];
    const int64_t bytes = BytesOf(op.value);
    int64_t& cycles = work_.cycles[EngineOf(command_, program_.tensors)];
    cycles = Dma(bytes / slice, slice);
    work_.is_nothing = ElementCount(value) == 0;
    for (npu_tensor read : {op.value, op.positions}) {
      const bool inside = program_.tensors[read].place.memory == Memory::kScratchpad;
      int64_t& moved = inside ? work_.scratchpad_bytes_read : work_.dram_bytes_read;
      moved = Plus(moved, BytesOf(read));
      if (!inside) cycles = Plus(cycles, Dma(1, BytesOf(read)));
    }
    work_.dram_bytes_written = bytes;
  }

  int64_t Dma(int64_t runs, int64_t bytes) const {
    return DmaCycles(program_.machine, runs, bytes);
  }

  /*! \brief The cycles of a box of a tensor in DRAM. Contiguous elements are one piece, in
   *  whichever direction they are read; so are elements less than a burst apart. */
  int64_t Dma(const TensorView& tensor, const int64_t* extents, const int64_t* steps) const {
    auto run = static_cast<int64_t>(ElementSize(tensor.dtype));
    int32_t d = tensor.rank - 1;
    for (bool all = true; all && d >= 0; --d) {
      int64_t step = extents[d] > 1 ? std::abs(steps[d]) : 1;
      if (step > 1 && step * run > kBurstBytes) break;
      run *= (extents[d] - 1) * step + 1;
      all = extents[d] == tensor.dims[d];
    }
    int64_t runs = 1;
    for (; d >= 0; --d) runs *= extents[d];
    return Dma(runs, run);
  }

  const Program& program_;
  const Command& command_;
  const int64_t* symbols_;
  Work work_;
};

}  // namespace

Work WorkOf(const Program& program, const Command& command, const int64_t* symbols) {
  return Worker(program, command, symbols).Run();
}

Timeline::Timeline(const Program& program, const Accesses& accesses)
    : program_(&program),
      accesses_(&accesses),
      intervals_(program.commands.size()),
      free_(static_cast<size_t>(kEngineCount) * program.machine.cores),
      written_(accesses.pieces()),
      touched_(accesses.pieces()) {
  for (size_t i = 0; i < intervals_.size(); ++i) {
    intervals_[i].engine = EngineOf(program.commands[i], program.tensors);
    intervals_[i].core = program.commands[i].core;
  }
  counters_.submissions = 1;
  counters_.arena_bytes = program.arena_bytes;
  counters_.scratchpad_bytes = ScratchpadBytes(program);
  counters_.constant_bytes = program.constant_bytes;
  counters_.frequency_mhz = static_cast<uint64_t>(program.machine.FrequencyMHz());
  std::vector<int64_t> bounds;
  for (const Symbol& symbol : program.symbols) bounds.push_back(symbol.bound);
  SetSymbols(bounds.data());
}

void Timeline::SetSymbols(const int64_t* symbols) {
  RunCounters& sum = counters_;
  sum.commands = sum.matrix_operations = sum.cycles = 0;
  sum.dram_bytes_read = sum.dram_bytes_written = 0;
  sum.scratchpad_bytes_read = sum.scratchpad_bytes_written = 0;
  std::fill_n(sum.busy_cycles, kEngineCount, 0);
  std::fill_n(sum.stalled_cycles, kEngineCount, 0);
  std::fill(free_.begin(), free_.end(), 0);
  written_.Clear();
  touched_.Clear();
  for (size_t i = 0; i < intervals_.size(); ++i) {
    TimeSpan& interval = intervals_[i];
    interval.start = interval.end = 0;
    Work work = WorkOf(*program_, program_->commands[i], symbols);
    if (work.is_nothing) continue;
    int64_t cycles = 0;
    for (int engine = 0; engine < kEngineCount; ++engine) {
      bool used = engine == interval.engine || work.cycles[engine] > 0;
      if (!used) continue;
      cycles = std::max(cycles, work.cycles[engine]);
      interval.start = std::max(interval.start, free_[engine + kEngineCount * interval.core]);
    }
    const Access& output = accesses_->output(i);
    interval.start = std::max(interval.start, touched_.Of(output));
    for (const Access* read = accesses_->begin(i); read != &output; ++read) {
      interval.start = std::max(interval.start, written_.Of(*read));
    }
    interval.end = Plus(interval.start, cycles);
    for (int engine = 0; engine < kEngineCount; ++engine) {
      bool used = engine == interval.engine || work.cycles[engine] > 0;
      if (!used) continue;
      int64_t& free = free_[engine + kEngineCount * interval.core];
      sum.busy_cycles[engine] += work.cycles[engine];
      sum.stalled_cycles[engine] += interval.end - free - work.cycles[engine];
      free = interval.end;
    }
    for (const Access* read = accesses_->begin(i); read != &output; ++read) {
      touched_.Raise(*read, interval.end);
    }
    touched_.Raise(output, interval.end);
    written_.Raise(output, interval.end);
    ++sum.commands;
    sum.cycles = std::max(sum.cycles, static_cast<uint64_t>(interval.end));
    sum.matrix_operations += work.matrix_operations;
    sum.dram_bytes_read += work.dram_bytes_read;
    sum.dram_bytes_written += work.dram_bytes_written;
    sum.scratchpad_bytes_read += work.scratchpad_bytes_read;
    sum.scratchpad_bytes_written += work.scratchpad_bytes_written;
  }
}

}  // namespace npu::emulator
