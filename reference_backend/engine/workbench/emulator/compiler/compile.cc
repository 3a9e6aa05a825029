// SPDX-License-Identifier: Apache-2.0
/*!
 * \file compile.cc
 * \brief Which values stay in the scratchpad, and the commands of each operation.
 *
 * Operations are placed one after the other. A value stays in the scratchpad until nothing reads it
 * any more, or until an operation makes better use of its memory: then it is evicted to its home in
 * DRAM. An operation that does not fit is cut into tiles, which pass through buffers.
 */
#include "compile.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "arena.h"
#include "assembler.h"
#include "emit.h"
#include "tiling.h"

namespace npu::emulator {
namespace {

/*! \brief The state of a value that is not a view. */
struct State {
  /*! \brief With the type in which it is stored. */
  Desc desc;
  int64_t bytes = 0;
  /*! \brief The operations that read it (or views of it), and the last one that writes it. */
  std::vector<int32_t> reads;
  int32_t last_write = -1;
  /*! \brief Whether an output depends on it. */
  bool needed = false;
  /*! \brief Its place in the scratchpad, or -1. */
  int64_t offset = -1;
  /*! \brief Whether its home in DRAM holds the elements. */
  bool stored = false;
  /*! \brief Whether it is only read as a packed weight. */
  bool packed = false;
  /*! \brief Whether a copy has begun to write it. */
  bool begun = false;
};

/*! \brief A placement, and its effect on the scratchpad. */
struct Option {
  Placement placement;
  /*! \brief What remains of the scratchpad. */
  Space space{0};
  /*! \brief The end of the last buffer. */
  int64_t cursor = 0;
  /*! \brief The value whose memory the output takes over, or -1. */
  npu_tensor replaced = -1;
  std::vector<npu_tensor> evicted;
  /*! \brief Estimated cycles, including the later cost of evictions; -1 if it does not fit. */
  int64_t cost = -1;

  bool fits() const { return cost >= 0; }
};

/*! \brief Compiles one graph. */
class Compiler {
 public:
  /*! \param makes Make operands where they are loaded, if that pays. */
  Compiler(const Graph& graph, const Machine& machine, bool makes)
      : graph_(graph),
        machine_(machine),
        makes_(makes),
        assembler_(graph, descs_, machine),
        tiler_(machine),
        space_(machine.scratchpad_bytes) {}

  /*! \brief Whether an operand is made where it is loaded. */
  bool has_makers() const { return has_makers_; }

  Compiled Run() {
    Analyze();
    for (size_t i = 0; i < graph_.operations().size(); ++i) {
      const Operation& operation = graph_.operations()[i];
      if (!states_[OutputOf(operation)].needed || is_made_[i]) continue;
      assembler_.SetLabel(operation.label);
      index_ = static_cast<int32_t>(i);
      if (auto* copy = std::get_if<npu_copy>(&operation.op)) {
        AddMove(*copy);
      } else if (auto* gather = std::get_if<npu_gather>(&operation.op)) {
        AddMove(*gather);
      } else if (auto* update = std::get_if<npu_update>(&operation.op)) {
        AddUpdate(*update);
      } else {
        AddOperation(operation);
      }
      ReleaseDead(operation);
    }
    AddOutputCopies();
    return assembler_.Finish();
  }

 private:
  npu_tensor Base(npu_tensor value) const { return graph_.values()[value].base; }
  State& StateOf(npu_tensor value) { return states_[Base(value)]; }
  const State& StateOf(npu_tensor value) const { return states_[Base(value)]; }

  // ---- Known before placement ----

  void Analyze() {
    const auto& values = graph_.values();
    const auto& operations = graph_.operations();
    states_.resize(values.size());
    for (npu_tensor output : graph_.outputs()) StateOf(output).needed = true;
    for (size_t i = operations.size(); i-- > 0;) {
      State& out = states_[OutputOf(operations[i])];
      if (!out.needed) continue;
      out.last_write = std::max(out.last_write, static_cast<int32_t>(i));
      ForEachRead(operations[i], [&](npu_tensor value) {
        State& state = StateOf(value);
        state.needed = true;
        if (state.reads.empty() || state.reads.back() != static_cast<int32_t>(i)) {
          state.reads.push_back(static_cast<int32_t>(i));
        }
      });
    }
    for (State& state : states_) std::reverse(state.reads.begin(), state.reads.end());
    ChooseTypes();
    descs_.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      State& base = StateOf(static_cast<npu_tensor>(i));
      descs_[i] = values[i].desc;
      descs_[i].dtype = base.desc.dtype;
      State& state = states_[i];
      state.bytes = MostBytes(descs_[i]);
      state.stored = values[i].source == Source::kInput || values[i].source == Source::kConstant;
      state.packed = values[i].source == Source::kConstant;
    }
    // Constants are packed unless something reads them unpacked.
    for (npu_tensor output : graph_.outputs()) StateOf(output).packed = false;
    for (const Operation& operation : operations) {
      npu_tensor weight = WeightOf(operation);
      size_t reads = 0;
      ForEachRead(operation, [&](npu_tensor value) {
        if (weight < 0 || Base(value) != Base(weight)) StateOf(value).packed = false;
        reads += weight >= 0 && Base(value) == Base(weight);
      });
      if (reads > 1) StateOf(weight).packed = false;
    }
    FindMakers();
  }

  /*! \brief Finds element-wise operations whose result only one product reads, as its second
   *  operand, and which is too large to stay, such as a cache with a new row. It is made tile by
   *  tile where the product loads it, from an input of the model, and not read back. */
  void FindMakers() {
    const auto& operations = graph_.operations();
    makers_.assign(operations.size(), -1);
    is_made_.assign(operations.size(), false);
    for (size_t i = 0; makes_ && i < operations.size(); ++i) {
      State& state = states_[OutputOf(operations[i])];
      bool stays = MayStay(state) && state.bytes <= machine_.scratchpad_bytes / 4;
      if (!state.needed || state.reads.size() != 1 || stays) continue;
      const int32_t reader = state.reads[0];
      if (DataOf(operations[i], operations[reader]) < 0) continue;
      makers_[reader] = static_cast<int32_t>(i);
      is_made_[i] = has_makers_ = true;
      state.last_write = reader;
      ForEachRead(operations[i], [&](npu_tensor value) {
        std::vector<int32_t>& reads = StateOf(value).reads;
        reads.erase(std::remove(reads.begin(), reads.end(), static_cast<int32_t>(i)), reads.end());
        auto place = std::lower_bound(reads.begin(), reads.end(), reader);
        if (place == reads.end() || *place != reader) reads.insert(place, reader);
      });
    }
  }

  /*! \brief The input of the model from which an operation can make what a product reads; -1 if
   *  there is none. */
  npu_tensor DataOf(const Operation& maker, const Operation& reader) const {
    auto* matmul = std::get_if<npu_matmul>(&reader.op);
    if (!std::holds_alternative<npu_elementwise>(maker.op) || matmul == nullptr) return -1;
    const npu_tensor out = OutputOf(maker);
    size_t reads = 0;
    ForEachRead(reader, [&](npu_tensor value) { reads += Base(value) == out; });
    int32_t dims[NPU_MAX_RANK];
    if (Base(matmul->b) != out || reads != 1) return -1;
    if (!MapDims(descs_[out], descs_[matmul->b], dims)) return -1;
    npu_tensor data = -1;
    for (npu_tensor value : maker.inputs) {
      const Desc& desc = descs_[value];
      for (int32_t d = 0; d < desc.rank; ++d) {
        if (desc.dims[d].symbol >= 0) return -1;
      }
      bool same = desc.dtype == descs_[out].dtype && desc.rank == descs_[out].rank &&
                  std::equal(desc.dims, desc.dims + desc.rank, descs_[out].dims);
      if (data >= 0 && Base(value) == Base(data)) return -1;
      if (same && data < 0 && graph_.values()[Base(value)].source == Source::kInput) data = value;
    }
    for (npu_tensor value : maker.inputs) {
      if (data >= 0 && value != data && Base(value) == Base(data)) return -1;
    }
    return data;
  }

  /*! \brief For each dimension of a tensor, that of another shape of it, -1 where it has one
   *  element; false if they differ in more than such dimensions. */
  static bool MapDims(const Desc& from, const Desc& to, int32_t* dims) {
    int32_t next = 0;
    auto skip = [&] {
      while (next < to.rank && to.dims[next].symbol < 0 && to.dims[next].size == 1) ++next;
    };
    for (int32_t d = 0; d < from.rank; ++d) {
      dims[d] = -1;
      if (from.dims[d].symbol >= 0) return false;
      if (from.dims[d].size == 1) continue;
      skip();
      if (next == to.rank || !(to.dims[next] == from.dims[d])) return false;
      dims[d] = next++;
    }
    skip();
    return next == to.rank;
  }

  /*! \brief Makes operand b of a product where it is loaded. */
  void AddMaking(const Operation& maker, const Operation& reader, Loop* loop) const {
    Making& made = loop->made;
    made.operation = &maker;
    made.desc = descs_[OutputOf(maker)];
    made.read = static_cast<size_t>(loop->roles[1]);
    made.data = DataOf(maker, reader);
    made.first = loop->reads.size();
    made.is_stored = assembler_.OutputOf(OutputOf(maker)) >= 0;
    MapDims(made.desc, loop->reads[made.read].desc, made.dims);
    for (npu_tensor value : maker.inputs) {
      made.inputs.push_back(value == made.data ? -1 : static_cast<int32_t>(loop->reads.size()));
      if (value == made.data) continue;
      Operand operand;
      operand.value = value;
      operand.desc = descs_[value];
      const int32_t shift = made.desc.rank - operand.desc.rank;
      for (int32_t d = 0; d < operand.desc.rank; ++d) {
        const int32_t dim = made.dims[d + shift];
        if (operand.desc.dims[d].size == 1 || dim < 0) continue;
        operand.links[d] = loop->reads[made.read].links[dim];
      }
      loop->reads.push_back(operand);
    }
  }

  /*! \brief Whether this constant weight of a product of integers needs half of its bits. */
  bool FitsHalves(const Operation& operation, npu_tensor weight) const {
    auto* matmul = std::get_if<npu_matmul>(&operation.op);
    const npu_tensor left =
        matmul != nullptr ? matmul->a : std::get<npu_convolution>(operation.op).data;
    const Value& constant = graph_.values()[Base(weight)];
    return MayBeHalved(descs_[left].dtype, descs_[weight].dtype) &&
           FitHalves(constant.desc.dtype, graph_.constant(constant.index),
                     static_cast<size_t>(MostBytes(constant.desc)));
  }

  /*! \brief Operand b of a matmul, the weight of a convolution, or -1. */
  static npu_tensor WeightOf(const Operation& operation) {
    if (auto* matmul = std::get_if<npu_matmul>(&operation.op)) return matmul->b;
    if (auto* convolution = std::get_if<npu_convolution>(&operation.op)) {
      return convolution->weight;
    }
    return -1;
  }

  /*! \brief With precision float16, internal values are stored as float16. Copies, gathers and
   *  some plain operations do not convert: the values that they connect have one type. */
  void ChooseTypes() {
    const auto& values = graph_.values();
    std::vector<npu_tensor> group(values.size());
    for (size_t i = 0; i < values.size(); ++i) group[i] = static_cast<npu_tensor>(i);
    auto find = [&](npu_tensor value) {
      while (group[value] != value) value = group[value] = group[group[value]];
      return value;
    };
    for (const Operation& operation : graph_.operations()) {
      if (auto* copy = std::get_if<npu_copy>(&operation.op)) {
        group[find(Base(copy->data))] = find(copy->out);
      } else if (auto* gather = std::get_if<npu_gather>(&operation.op)) {
        group[find(Base(gather->data))] = find(gather->out);
      } else if (auto* update = std::get_if<npu_update>(&operation.op)) {
        group[find(Base(update->data))] = find(update->out);
        group[find(Base(update->value))] = find(update->out);
      }
      const npu_tensor like = std::visit(
          [](const auto& op) -> npu_tensor {
            if constexpr (kIsPlain<std::decay_t<decltype(op)>>) return SameType(op);
            return -1;
          },
          operation.op);
      if (like >= 0) group[find(Base(like))] = find(OutputOf(operation));
    }
    std::vector<bool> kept(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const Value& value = values[i];
      bool inside = value.source == Source::kResult && value.desc.dtype == NPU_FLOAT32 &&
                    assembler_.OutputOf(static_cast<npu_tensor>(i)) < 0;
      if (value.source != Source::kView && !inside) kept[find(static_cast<npu_tensor>(i))] = true;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      states_[i].desc = values[i].desc;
      bool half = machine_.precision == Precision::kFloat16 &&
                  values[i].source == Source::kResult && !kept[find(static_cast<npu_tensor>(i))];
      if (half) states_[i].desc.dtype = NPU_FLOAT16;
    }
  }

  /*! \brief The next operation that reads a value after the one at hand, or -1. */
  int32_t NextRead(const State& state) const {
    auto next = std::upper_bound(state.reads.begin(), state.reads.end(), index_);
    return next == state.reads.end() ? -1 : *next;
  }

  /*! \brief A value, or a view, wherever it is. */
  npu_tensor Anywhere(npu_tensor value) {
    const State& state = StateOf(value);
    if (state.offset < 0) return assembler_.AtHome(value);
    return assembler_.InScratchpad(descs_[value], state.offset);
  }

  // ---- Values that stay ----

  bool MayStay(const State& state) const {
    return machine_.max_tile_bytes == 0 || state.bytes <= machine_.max_tile_bytes;
  }

  void Stay(npu_tensor base, int64_t offset) {
    states_[base].offset = offset;
    residents_.push_back(base);
  }

  /*! \brief Removes a value from the list of those that stay; the caller takes over its memory. */
  void Leave(npu_tensor base) {
    states_[base].offset = -1;
    residents_.erase(std::find(residents_.begin(), residents_.end(), base));
  }

  void Evict(npu_tensor base) {
    State& state = states_[base];
    if (!state.stored) {
      assembler_.AddTransfer(Anywhere(base), assembler_.AtHome(base));
      state.stored = true;
    }
    Leave(base);
  }

  void ReleaseDead(const Operation& operation) {
    if (makers_[index_] >= 0) ReleaseReads(graph_.operations()[makers_[index_]]);
    ReleaseReads(operation);
    Release(OutputOf(operation));
  }

  void ReleaseReads(const Operation& operation) {
    ForEachRead(operation, [this](npu_tensor value) { Release(value); });
  }

  void Release(npu_tensor value) {
    npu_tensor base = Base(value);
    State& state = states_[base];
    if (state.offset < 0 || NextRead(state) >= 0 || state.last_write > index_) return;
    space_.Release(state.offset, AlignedBytes(state.bytes));
    Leave(base);
  }

  /*! \brief Cycles of evicting a value, now and when it is read again. */
  int64_t EvictionCycles(const State& state) const {
    int64_t cycles = DmaCycles(machine_, 1, state.bytes);
    return state.stored ? cycles : 2 * cycles;
  }

  /*! \brief The candidates for eviction, the best first: needed last, and already stored. */
  std::vector<npu_tensor> Candidates() const {
    std::vector<std::pair<int64_t, npu_tensor>> order;
    for (npu_tensor base : residents_) {
      const State& state = states_[base];
      bool now = std::binary_search(state.reads.begin(), state.reads.end(), index_);
      int64_t distance = now ? 0 : int64_t{NextRead(state)} - index_;
      order.emplace_back(distance * (state.stored ? 2 : 1), base);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::vector<npu_tensor> bases;
    bases.reserve(order.size());
    for (const auto& entry : order) bases.push_back(entry.second);
    return bases;
  }

  // ---- Copies and gathers ----

  /*! \brief The DMA's work for a copy or a gather, wherever its tensors are. */
  Transfer Move(const npu_copy& op) {
    Transfer transfer;
    transfer.data = Anywhere(op.data);
    transfer.out = Anywhere(op.out);
    // Entries beyond the rank are the same in all transfers.
    int32_t rank = descs_[op.out].rank;
    std::iota(transfer.permutation, transfer.permutation + NPU_MAX_RANK, 0);
    std::copy_n(op.permutation, rank, transfer.permutation);
    std::copy_n(op.data_offset, rank, transfer.data_offset);
    std::copy_n(op.data_step, rank, transfer.data_step);
    std::copy_n(op.out_offset, rank, transfer.out_offset);
    std::copy_n(op.out_step, rank, transfer.out_step);
    transfer.fill = op.fill;
    transfer.fill_value = op.fill_value;
    return transfer;
  }

  npu_gather Move(npu_gather op) {
    op.data = Anywhere(op.data);
    op.indices = Anywhere(op.indices);
    op.out = Anywhere(op.out);
    return op;
  }

  template <typename Op>
  void AddMove(const Op& op) {
    State& out = states_[op.out];
    bool first = !std::exchange(out.begun, true);
    if (first && !out.reads.empty() && MayStay(out)) {
      int64_t offset = space_.Allocate(AlignedBytes(out.bytes), 0);
      if (offset >= 0) Stay(op.out, offset);
    }
    Command command;
    command.op = Move(op);
    assembler_.Add(std::move(command));
    if (out.offset < 0) out.stored = true;
    if (out.last_write == index_ && out.offset >= 0 && assembler_.OutputOf(op.out) >= 0) {
      assembler_.AddTransfer(Anywhere(op.out), assembler_.AtHome(op.out));
      out.stored = true;
    }
  }

  /*! \brief Replaces slices of the data, or of a copy of it that is the output. */
  void AddUpdate(npu_update op) {
    states_[op.out].stored = true;
    const npu_tensor home = assembler_.AtHome(op.out);
    if (!graph_.IsState(op.out)) assembler_.AddTransfer(Anywhere(op.data), home);
    op.value = Anywhere(op.value);
    op.positions = Anywhere(op.positions);
    op.data = op.out = home;
    Command command;
    command.op = op;
    assembler_.Add(std::move(command));
  }

  /*! \brief Outputs that are not the home of a value. */
  void AddOutputCopies() {
    assembler_.SetLabel(0);
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      npu_tensor value = graph_.outputs()[i];
      auto index = static_cast<int32_t>(i);
      if (assembler_.OutputOf(value) == index) continue;
      assembler_.AddTransfer(assembler_.AtHome(value), assembler_.Output(index));
    }
  }

  // ---- Placement ----

  /*! \brief The operand whose memory the output may take over: a value that is only needed here,
   *  element by element. */
  npu_tensor Replaceable(const Operation& operation, const Loop& loop) const {
    size_t first = std::holds_alternative<npu_elementwise>(operation.op) ? 0 : 1;
    for (size_t i = first; i < operation.inputs.size(); ++i) {
      npu_tensor value = operation.inputs[i];
      const State& state = StateOf(value);
      if (state.offset < 0 || NextRead(state) >= 0 || state.last_write > index_) continue;
      const Desc& desc = descs_[value];
      bool same = desc.dtype == loop.out.desc.dtype && desc.rank == loop.out.desc.rank &&
                  std::equal(desc.dims, desc.dims + desc.rank, loop.out.desc.dims);
      size_t operands = 0;
      for (const Operand& operand : loop.reads) operands += Base(operand.value) == Base(value);
      bool alone = operands == 1;
      // It may also be read as a main operand.
      for (size_t k = 0; k + operation.inputs.size() < loop.roles.size() + first; ++k) {
        alone = alone && Base(loop.reads[loop.roles[k]].value) != Base(value);
      }
      if (same && alone) return Base(value);
    }
    return -1;
  }

  /*! \brief Places an operation after evictions. */
  Option TryPlace(const Operation& operation, const Loop& loop,
                  const std::vector<npu_tensor>& evicted, bool out_stays) {
    Option option;
    option.evicted = evicted;
    option.placement.loop = loop;
    Loop& placed = option.placement.loop;
    auto is_evicted = [&](npu_tensor base) {
      return std::find(evicted.begin(), evicted.end(), base) != evicted.end();
    };
    Space space = space_;
    int64_t cost = 0;
    for (npu_tensor base : evicted) {
      space.Release(states_[base].offset, AlignedBytes(states_[base].bytes));
      cost = Plus(cost, EvictionCycles(states_[base]));
    }
    for (Operand& operand : placed.reads) {
      npu_tensor base = Base(operand.value);
      operand.offset = is_evicted(base) ? -1 : states_[base].offset;
    }
    const State& out = states_[loop.out.value];
    if (out_stays) {
      npu_tensor replaced = Replaceable(operation, loop);
      placed.replaces = replaced >= 0 && !is_evicted(replaced);
      if (placed.replaces) option.replaced = replaced;
      placed.out.offset =
          placed.replaces ? states_[replaced].offset : space.Allocate(AlignedBytes(out.bytes), 0);
      if (placed.out.offset < 0) return option;
    } else if (NextRead(out) >= 0) {
      cost = Plus(cost, DmaCycles(machine_, 1, out.bytes));
    }
    option.placement.store = !out_stays || assembler_.OutputOf(loop.out.value) >= 0;
    int64_t budget = space.free();
    while (true) {
      option.placement.tiling = tiler_.Find(placed, operation, budget);
      const Tiling& tiling = option.placement.tiling;
      if (tiling.count == 0) return option;
      // Buffers that were not just used let transfers begin before the previous operation is done.
      for (int64_t cursor : {cursor_, int64_t{0}}) {
        option.space = space;
        option.cursor = cursor;
        if (!AllocateBuffers(&option)) continue;
        option.cost = Plus(cost, tiling.cycles);
        return option;
      }
      // The free space is fragmented.
      budget = std::min(budget, tiling.bytes) / 8 * 7;
    }
  }

  static bool AllocateBuffers(Option* option) {
    Placement& placement = option->placement;
    const Tiling& tiling = placement.tiling;
    bool fits = true;
    auto allocate = [&](int64_t bytes, int32_t count) {
      std::vector<int64_t> offsets;
      for (int32_t i = 0; fits && bytes > 0 && i < count; ++i) {
        offsets.push_back(option->space.Allocate(bytes, option->cursor));
        fits = offsets.back() >= 0;
        option->cursor = offsets.back() + bytes;
      }
      return offsets;
    };
    placement.reads.clear();
    for (size_t i = 0; i < tiling.reads.size(); ++i) {
      bool streamed = tiling.reads[i] == Handling::kStreamed;
      placement.reads.push_back(allocate(tiling.read_bytes[i], streamed ? tiling.buffers : 1));
    }
    int32_t outs = tiling.results > 1 ? tiling.buffers : 1;
    placement.outs = allocate(tiling.out_bytes, outs);
    placement.sums = allocate(tiling.sum_bytes, outs);
    return fits;
  }

  void AddOperation(const Operation& operation) {
    Loop loop = MakeLoop(operation, descs_);
    npu_tensor weight = WeightOf(operation);
    for (Operand& operand : loop.reads) {
      operand.packed = operand.value == weight && StateOf(weight).packed;
      operand.halved = operand.packed && FitsHalves(operation, weight);
    }
    if (makers_[index_] >= 0) {
      AddMaking(graph_.operations()[makers_[index_]], operation, &loop);
    }
    const State& out = states_[loop.out.value];
    bool may_stay = NextRead(out) >= 0 && MayStay(out);
    Option best = TryPlace(operation, loop, {}, may_stay);
    auto is_ideal = [](const Option& option) {
      return option.fits() && option.placement.tiling.fits_whole;
    };
    bool ideal = is_ideal(best);
    std::vector<npu_tensor> candidates;
    if (!ideal) {
      if (may_stay) Improve(TryPlace(operation, loop, {}, false), &best);
      candidates = Candidates();
    }
    // Evict the first, the first two, four... as long as that helps.
    int32_t in_vain = 0;
    for (size_t count = 1; !ideal && !candidates.empty() && in_vain < 2; count *= 2) {
      count = std::min(count, candidates.size());
      std::vector<npu_tensor> evicted(candidates.begin(), candidates.begin() + count);
      bool better = false;
      for (bool stays : {true, false}) {
        if (stays && !may_stay) continue;
        Option option = TryPlace(operation, loop, evicted, stays);
        ideal = ideal || (stays == may_stay && is_ideal(option));
        better = Improve(std::move(option), &best) || better;
      }
      if (best.fits() && !better) ++in_vain;
      if (count == candidates.size()) break;
    }
    if (!best.fits()) best = LastResort(operation, loop, std::move(candidates));
    Use(operation, std::move(best));
  }

  static bool Improve(Option option, Option* best) {
    if (!option.fits() || (best->fits() && best->cost <= option.cost)) return false;
    *best = std::move(option);
    return true;
  }

  /*! \brief Everything is evicted, and tiles are as small as possible. */
  Option LastResort(const Operation& operation, const Loop& loop,
                    std::vector<npu_tensor> evicted) const {
    Option option;
    option.evicted = std::move(evicted);
    option.placement.loop = loop;
    option.placement.tiling = SmallestTiling(loop, operation, machine_);
    option.space = Space(machine_.scratchpad_bytes);
    const Tiling& tiling = option.placement.tiling;
    if (machine_.max_tile_bytes > 0 && tiling.largest > machine_.max_tile_bytes) {
      OutOfMemory("a tile", tiling.largest, machine_.max_tile_bytes, "max_tile_bytes", operation);
    }
    if (tiling.bytes > option.space.free() || !AllocateBuffers(&option)) {
      OutOfMemory("its smallest tiles", tiling.bytes, option.space.free(), "scratchpad_bytes",
                  operation);
    }
    return option;
  }

  /*! \brief Carries out a placement. */
  void Use(const Operation& operation, Option option) {
    const Placement& placement = option.placement;
    const Tiling& tiling = placement.tiling;
    for (npu_tensor base : option.evicted) Evict(base);
    space_ = std::move(option.space);
    cursor_ = option.cursor;
    Emit(operation, index_, placement, machine_, &assembler_);
    if (option.replaced >= 0) Leave(option.replaced);
    const Operand& out = placement.loop.out;
    if (out.resident()) Stay(out.value, out.offset);
    states_[out.value].stored = placement.store;
    for (size_t i = 0; i < placement.reads.size(); ++i) {
      const Operand& operand = placement.loop.reads[i];
      State& state = StateOf(operand.value);
      // Keep a tensor that was loaded whole for its next reader.
      bool whole = tiling.reads[i] == Handling::kOnce && !operand.packed;
      if (whole && state.offset < 0 && NextRead(state) >= 0 && MayStay(state)) {
        Stay(Base(operand.value), placement.reads[i][0]);
        continue;
      }
      for (int64_t offset : placement.reads[i]) space_.Release(offset, tiling.read_bytes[i]);
    }
    for (int64_t offset : placement.outs) space_.Release(offset, tiling.out_bytes);
    for (int64_t offset : placement.sums) space_.Release(offset, tiling.sum_bytes);
  }

  [[noreturn]] void OutOfMemory(const char* what, int64_t needed, int64_t given, const char* option,
                                const Operation& operation) const {
    const std::string& label = graph_.labels()[operation.label];
    throw Error(
        NPU_OUT_OF_MEMORY,
        Join("The ", NameOf(operation), " ", label, label.empty() ? "" : " ", "needs at least ",
             needed, " bytes of the scratchpad for ", what, ", but there are ", given, ": ",
             needed - given, " bytes are missing. Raise the option ", option, "."));
  }

  const Graph& graph_;
  const Machine& machine_;
  bool makes_;
  bool has_makers_ = false;
  /*! \brief By value; only the entries of values that are not views are used. */
  std::vector<State> states_;
  /*! \brief The shapes of all values, with the types in which they are kept. */
  std::vector<Desc> descs_;
  Assembler assembler_;
  Tiler tiler_;
  Space space_;
  /*! \brief The end of the buffers of the last operation. */
  int64_t cursor_ = 0;
  std::vector<npu_tensor> residents_;
  /*! \brief By operation: which one makes its operand b, or -1; and whether it is such a one. */
  std::vector<int32_t> makers_;
  std::vector<bool> is_made_;
  /*! \brief The current operation. */
  int32_t index_ = 0;
};

}  // namespace

Compiled Compile(const Graph& graph, const Machine& machine) {
  Compiler compiler(graph, machine, true);
  try {
    return compiler.Run();
  } catch (const Error& error) {
    if (error.status != NPU_OUT_OF_MEMORY || !compiler.has_makers()) throw;
  }
  // Operations on their own have fewer tiles at a time.
  return Compiler(graph, machine, false).Run();
}

}  // namespace npu::emulator
