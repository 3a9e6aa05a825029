// SPDX-License-Identifier: Apache-2.0
/*!
 * \file tiling.cc
 * \brief Loops, tiles, and the search for good ones.
 */
#include "tiling.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace npu::emulator {
namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsOne(const Dim& dim) { return dim.symbol < 0 && dim.size == 1; }

// ---- Loops ----

/*! \brief Builds the loop of one operation. */
class LoopMaker {
 public:
  LoopMaker(const Operation& operation, const std::vector<Desc>& descs)
      : operation_(operation), descs_(descs) {}

  Loop Run() {
    npu_tensor out = OutputOf(operation_);
    loop_.out.value = out;
    loop_.out.desc = descs_[out];
    std::visit([this](const auto& op) { Make(op); }, operation_.op);
    // Vector programs broadcast to the output.
    bool epilogue = !std::holds_alternative<npu_elementwise>(operation_.op);
    for (size_t i = epilogue ? 1 : 0; i < operation_.inputs.size(); ++i) {
      Operand in = Reading(operation_.inputs[i]);
      int32_t shift = loop_.out.desc.rank - in.desc.rank;
      for (int32_t d = 0; d < in.desc.rank; ++d) {
        if (!IsOne(in.desc.dims[d])) in.links[d] = loop_.out.links[d + shift];
      }
      Add(in);
    }
    // Adding up parts takes one more input and a few more instructions than a program may have.
    bool full =
        operation_.inputs.size() >= NPU_MAX_VECTOR_INPUTS || operation_.instructions.size() > 240;
    for (Axis& axis : loop_.axes) {
      if (axis.partial && full) axis.least = axis.dim.Most();
    }
    return std::move(loop_);
  }

 private:
  int32_t AddAxis(const Dim& dim, bool partial = false) {
    loop_.axes.push_back({dim, 0, 1, partial});
    return static_cast<int32_t>(loop_.axes.size() - 1);
  }

  Operand Reading(npu_tensor value) const {
    Operand operand;
    operand.value = value;
    operand.desc = descs_[value];
    return operand;
  }

  /*! \brief A tensor that is read twice in the same way is one operand. */
  void Add(const Operand& operand) {
    for (size_t i = 0; i < loop_.reads.size(); ++i) {
      const Operand& other = loop_.reads[i];
      bool same = other.value == operand.value;
      for (int32_t d = 0; same && d < operand.desc.rank; ++d) {
        same = other.links[d].how == operand.links[d].how &&
               other.links[d].axis == operand.links[d].axis;
      }
      if (same) return loop_.roles.push_back(static_cast<int32_t>(i));
    }
    loop_.roles.push_back(static_cast<int32_t>(loop_.reads.size()));
    loop_.reads.push_back(operand);
  }

  void Make(const npu_matmul& op) {
    Operand a = Reading(op.a);
    Operand b = Reading(op.b);
    Operand& out = loop_.out;
    int32_t rank = out.desc.rank;
    for (int32_t d = 0; d < rank; ++d) out.links[d] = {Link::kRange, AddAxis(out.desc.dims[d])};
    int32_t a_row = a.desc.rank - (op.transpose_a != 0 ? 1 : 2);
    int32_t a_sum = a.desc.rank - (op.transpose_a != 0 ? 2 : 1);
    int32_t b_sum = b.desc.rank - (op.transpose_b != 0 ? 1 : 2);
    int32_t b_column = b.desc.rank - (op.transpose_b != 0 ? 2 : 1);
    int32_t sum = AddAxis(a.desc.dims[a_sum], true);
    for (Operand* operand : {&a, &b}) {
      for (int32_t d = 0; d < operand->desc.rank - 2; ++d) {
        if (IsOne(operand->desc.dims[d])) continue;
        operand->links[d] = {Link::kRange, d + rank - operand->desc.rank};
      }
    }
    a.links[a_row] = {Link::kRange, rank - 2};
    b.links[b_column] = {Link::kRange, rank - 1};
    a.links[a_sum] = b.links[b_sum] = {Link::kRange, sum};
    loop_.sums = AccumulatorOf(a.desc.dtype);
    Add(a);
    Add(b);
    if (op.b_block == 0) return;
    // Tiles are made of whole blocks.
    loop_.axes[sum].group = loop_.axes[sum].least = op.b_block;
    loop_.group_channels = 1;
    for (npu_tensor tensor : {op.b_scales, op.b_zero_points}) {
      if (tensor < 0) continue;
      Operand by_block = Reading(tensor);
      by_block.links[0] = {Link::kChannels, sum};
      by_block.links[1] = {Link::kRange, rank - 1};
      Add(by_block);
    }
  }

  /*! \brief Axes of a convolution or pool: n, features, rows. Returns the data. */
  Operand Windows(npu_tensor tensor, int64_t window, int64_t stride, int64_t dilation, int64_t pad,
                  int64_t pad_end) {
    Operand data = Reading(tensor);
    for (int32_t d = 0; d < 3; ++d) {
      loop_.out.links[d] = {Link::kRange, AddAxis(loop_.out.desc.dims[d])};
    }
    data.links[0] = {Link::kRange, 0};
    data.links[2] = {Link::kWindows, 2};
    loop_.in = data.desc.dims[2].size;
    loop_.span = (window - 1) * dilation + 1;
    loop_.stride = stride;
    loop_.pad = pad;
    // Every tile must have data, even where windows lie wholly in the padding.
    if (pad >= loop_.span || pad_end >= loop_.span) Whole(2);
    return data;
  }

  /*! \brief Never cuts an axis. */
  void Whole(int32_t axis) { loop_.axes[axis].least = loop_.axes[axis].dim.Most(); }

  void Make(const npu_convolution& op) {
    Operand weight = Reading(op.weight);
    Operand data = Windows(op.data, weight.desc.dims[2].size, op.strides[0], op.dilations[0],
                           op.pads_begin[0], op.pads_end[0]);
    weight.links[0] = {Link::kRange, 1};
    if (op.groups == 1) {
      int32_t channels = AddAxis(data.desc.dims[1], true);
      data.links[1] = weight.links[1] = {Link::kRange, channels};
    } else {
      loop_.axes[1].group = weight.desc.dims[0].size / op.groups;
      loop_.group_channels = weight.desc.dims[1].size;
      data.links[1] = {Link::kChannels, 1};
    }
    loop_.sums = AccumulatorOf(data.desc.dtype);
    Add(data);
    Add(weight);
  }

  void Make(const npu_pool& op) {
    bool adaptive = op.kind == NPU_POOL_AVERAGE_ADAPTIVE;
    Operand data = adaptive ? Windows(op.data, 1, 1, 1, 0, 0)
                            : Windows(op.data, op.window[0], op.strides[0], op.dilations[0],
                                      op.pads_begin[0], op.pads_end[0]);
    if (adaptive) {
      data.links[2] = {};
      Whole(2);
    }
    data.links[1] = {Link::kRange, 1};
    Add(data);
  }

  void Make(const npu_elementwise&) {
    Operand& out = loop_.out;
    for (int32_t d = 0; d < out.desc.rank; ++d) {
      out.links[d] = {Link::kRange, AddAxis(out.desc.dims[d])};
    }
  }

  void Make(const npu_reduce& op) {
    Operand data = Reading(op.data);
    bool keeps = loop_.out.desc.rank == data.desc.rank;
    if (IsInteger(data.desc.dtype)) loop_.sums = NPU_INT64;
    bool counted = op.kind == NPU_REDUCE_MEAN;
    bool symbolic = false;
    int32_t kept = 0;
    for (int32_t d = 0; d < data.desc.rank; ++d) {
      bool reduced = (op.axes >> d & 1) != 0;
      int32_t axis = AddAxis(data.desc.dims[d], reduced);
      data.links[d] = {Link::kRange, axis};
      symbolic = symbolic || (reduced && data.desc.dims[d].symbol >= 0);
      if (!reduced) loop_.out.links[keeps ? d : kept++] = {Link::kRange, axis};
    }
    // A mean of parts needs the number of elements, which only the kernel knows.
    for (int32_t d = 0; counted && symbolic && d < data.desc.rank; ++d) {
      if (loop_.axes[d].partial) Whole(d);
    }
    Add(data);
  }

  /*! \brief A plain operation. */
  template <typename Op>
  void Make(const Op& op) {
    static_assert(kIsPlain<Op>, "an operation has no loop");
    bool first = true;
    ForEachOperand(op, [&](npu_tensor tensor) {
      Operand operand = Reading(tensor);
      for (int32_t d = 0; first && d < operand.desc.rank; ++d) {
        if (d == AxisOf(op)) continue;
        operand.links[d] = loop_.out.links[d] = {Link::kRange, AddAxis(operand.desc.dims[d])};
      }
      first = false;
      Add(operand);
    });
  }

  // The DMA does not work in tiles.
  void Make(const npu_copy&) {}
  void Make(const npu_gather&) {}
  void Make(const npu_update&) {}

  const Operation& operation_;
  const std::vector<Desc>& descs_;
  Loop loop_;
};

// ---- Estimates ----

/*! \brief The largest extent of a dimension over all tiles of these sizes. */
int64_t MostExtent(const Loop& loop, const Operand& operand, int32_t d, const TileSizes& sizes) {
  const Link& link = operand.links[d];
  int64_t whole = operand.desc.dims[d].Most();
  if (link.how == Link::kWhole) return whole;
  int64_t size = sizes[link.axis];
  if (size >= loop.axes[link.axis].dim.Most()) return whole;
  switch (link.how) {
    case Link::kWindows:
      return std::min(whole, (size - 1) * loop.stride + loop.span);
    case Link::kChannels:
      return std::max<int64_t>(1, size / loop.axes[link.axis].group) * loop.group_channels;
    default:
      return std::min(whole, size);
  }
}

/*! \brief The extents of the largest tile. */
void MostPart(const Loop& loop, const Operand& operand, const TileSizes& sizes, Range* part) {
  for (int32_t d = 0; d < operand.desc.rank; ++d) {
    part[d] = {0, MostExtent(loop, operand, d, sizes)};
  }
}

/*! \brief The shape of the largest tile. */
TensorView MostView(const Loop& loop, const Operand& operand, const TileSizes& sizes) {
  TensorView view;
  view.dtype = operand.desc.dtype;
  view.rank = operand.desc.rank;
  for (int32_t d = 0; d < view.rank; ++d) view.dims[d] = MostExtent(loop, operand, d, sizes);
  return view;
}

int64_t Elements(const Desc& desc, const Range* part) {
  int64_t elements = 1;
  for (int32_t d = 0; d < desc.rank; ++d) elements *= part[d].size;
  return elements;
}

int64_t PackedBytes(const Operation& operation, const Loop& loop, const Operand& weight,
                    const Range* part, const TileSizes& sizes) {
  TensorView view;
  view.dtype = weight.desc.dtype;
  view.rank = weight.desc.rank;
  for (int32_t d = 0; d < view.rank; ++d) view.dims[d] = part[d].size;
  if (auto* matmul = std::get_if<npu_matmul>(&operation.op)) {
    const npu_dtype left = loop.reads[loop.roles[0]].desc.dtype;
    const int32_t bits = WeightBits(left, view.dtype, matmul->b_bits);
    const size_t bytes = PackedMatMulBBytes(view, matmul->transpose_b != 0, bits);
    return static_cast<int64_t>(weight.halved ? HalvedBytes(bytes) : bytes);
  }
  int64_t group = loop.axes[1].group;
  int64_t groups = group == 0 ? 1 : std::max<int64_t>(1, sizes[1] / group);
  const size_t bytes = PackedConvolutionWeightBytes(view, groups);
  return static_cast<int64_t>(weight.halved ? HalvedBytes(bytes) : bytes);
}

/*! \brief Cycles of the engines for one tile. */
int64_t ComputeCycles(const Loop& loop, const Operation& operation, const Machine& machine,
                      const TileSizes& sizes, bool adds) {
  Range part[NPU_MAX_RANK];
  MostPart(loop, loop.out, sizes, part);
  int64_t out = Elements(loop.out.desc, part);
  auto instructions = static_cast<int64_t>(operation.instructions.size()) + (adds ? 3 : 0);
  int64_t vector = VectorCycles(machine, out, instructions);
  auto elements_read = [&](int32_t role) {
    const Operand& operand = loop.reads[loop.roles[role]];
    Range read[NPU_MAX_RANK];
    MostPart(loop, operand, sizes, read);
    return Elements(operand.desc, read);
  };
  auto steps = [&] {
    auto type = [&](int32_t role) { return loop.reads[loop.roles[role]].desc.dtype; };
    return StepsOfCell(type(0), type(1));
  };
  if (std::holds_alternative<npu_matmul>(operation.op)) {
    int32_t rank = loop.out.desc.rank;
    int64_t n = sizes[rank - 1];
    int64_t k = sizes[rank];
    // Rows of all matrices that meet the same columns form one tall matrix.
    int64_t products = k == 0 ? 1 : elements_read(1) / (k * n);
    int64_t m = out / (products * n);
    return std::max(vector, MatrixCycles(machine, m, k, n, steps(), products));
  }
  if (std::holds_alternative<npu_convolution>(operation.op)) {
    int64_t group = loop.axes[1].group;
    int64_t groups = group == 0 ? 1 : std::max<int64_t>(1, sizes[1] / group);
    int64_t features = std::max<int64_t>(1, sizes[1] / groups);
    int64_t depth = elements_read(1) / std::max<int64_t>(1, sizes[1]);
    int64_t positions = out / std::max<int64_t>(1, features * groups);
    return std::max(vector,
                    GroupedMatrixCycles(machine, groups, positions, depth, features, steps()));
  }
  if (auto* pool = std::get_if<npu_pool>(&operation.op)) {
    if (pool->kind == NPU_POOL_AVERAGE_ADAPTIVE) return VectorCycles(machine, elements_read(0), 1);
    int64_t taps = 1;
    for (int32_t i = 0; i < pool->spatial_rank; ++i) taps = Times(taps, pool->window[i]);
    return VectorCycles(machine, out, taps);
  }
  if (std::holds_alternative<npu_reduce>(operation.op)) {
    return Plus(vector, VectorCycles(machine, elements_read(0), 1));
  }
  return std::visit(
      [&](const auto& op) {
        if constexpr (kIsPlain<std::decay_t<decltype(op)>>) {
          const Operand& data = loop.reads[loop.roles[0]];
          return CyclesOf(op, machine, MostView(loop, data, sizes),
                          MostView(loop, loop.out, sizes));
        }
        return vector;
      },
      operation.op);
}

/*! \brief Tensors this small are loaded whole, as long as everything fits. */
int64_t SmallBytes(const Machine& machine) {
  return std::max<int64_t>(256, machine.scratchpad_bytes / 64);
}

/*! \brief At most this many tiles of an operation that would also fit whole. */
constexpr int32_t kPipeline = 4;

/*! \brief Tries tile sizes. */
class Search {
 public:
  /*! \param small Cut tensors of at most this many bytes are loaded whole. */
  Search(const Loop& loop, const Operation& operation, const Machine& machine, int64_t space,
         int64_t small)
      : loop_(loop),
        operation_(operation),
        machine_(machine),
        space_(space),
        small_(small),
        axes_(static_cast<int32_t>(loop.axes.size())) {}

  /*! \brief The bytes of all tiles of a packed weight. The last tile can have one group where the
   *  others have several, which is packed differently, in fewer bytes. */
  int64_t MostPackedBytes(const Operand& operand, const TileSizes& sizes) const {
    Range part[NPU_MAX_RANK];
    MostPart(loop_, operand, sizes, part);
    int64_t bytes = PackedBytes(operation_, loop_, operand, part, sizes);
    if (axes_ < 2 || loop_.axes[1].dim.Most() % sizes[1] == 0) return bytes;
    TileSizes last = sizes;
    last[1] = loop_.axes[1].dim.Most() % sizes[1];
    MostPart(loop_, operand, last, part);
    return std::max(bytes, PackedBytes(operation_, loop_, operand, part, last));
  }

  /*! \brief Fills in everything about a tiling but sizes, order and buffers. */
  void Estimate(Tiling* tiling) const {
    Tiling& t = *tiling;
    int64_t counts[kMaxAxes];
    int64_t& results = t.results;
    t.count = results = 1;
    for (int32_t i = 0; i < axes_; ++i) {
      counts[i] = loop_.axes[i].Count(t.sizes[i]);
      t.count = Times(t.count, counts[i]);
      if (!loop_.axes[i].partial) results = Times(results, counts[i]);
    }
    bool adds = t.count > results;
    t.bytes = t.largest = 0;
    int64_t dma_in = 0;
    int64_t dma_out = 0;
    t.reads.resize(loop_.reads.size());
    t.read_bytes.resize(loop_.reads.size());
    Range part[NPU_MAX_RANK];
    for (size_t i = 0; i < loop_.reads.size(); ++i) {
      const Operand& operand = loop_.reads[i];
      MostPart(loop_, operand, t.sizes, part);
      auto element = static_cast<int64_t>(ElementSize(operand.desc.dtype));
      int64_t tile = Elements(operand.desc, part) * element;
      if (operand.packed) tile = MostPackedBytes(operand, t.sizes);
      bool cut = Cut(operand, counts);
      bool slice = !operand.packed && Slices(operand, part, counts);
      int64_t all = MostBytes(operand.desc);
      int64_t loads = 1;
      if (operand.resident() && slice) {
        t.reads[i] = Handling::kInPlace;
        t.read_bytes[i] = 0;
        loads = 0;
      } else if (!cut || (slice && all <= small_ && FitsTile(all))) {
        t.reads[i] = Handling::kOnce;
        if (cut) tile = all;
        t.read_bytes[i] = AlignedBytes(tile);
        for (int32_t d = 0; d < operand.desc.rank; ++d) part[d] = {0, operand.desc.dims[d].Most()};
      } else {
        t.reads[i] = Handling::kStreamed;
        t.read_bytes[i] = AlignedBytes(tile);
        loads = Loads(t, operand, counts);
      }
      t.largest = std::max(t.largest, tile);
      t.bytes += t.read_bytes[i] * (t.reads[i] == Handling::kStreamed ? t.buffers : 1);
      int64_t cycles = operand.packed ? DmaCycles(machine_, 1, tile)
                                      : TransferCycles(machine_, operand.desc, part);
      dma_in = Plus(dma_in, Times(loads, cycles));
    }
    MostPart(loop_, loop_.out, t.sizes, part);
    auto element = static_cast<int64_t>(ElementSize(loop_.out.desc.dtype));
    int64_t elements = Elements(loop_.out.desc, part);
    t.largest = std::max(t.largest, elements * element);
    bool in_place = loop_.out.resident() && Slices(loop_.out, part, counts);
    t.out = in_place ? Handling::kInPlace : Handling::kStreamed;
    t.out_bytes = in_place ? 0 : AlignedBytes(elements * element);
    t.bytes += t.out_bytes * (results > 1 ? t.buffers : 1);
    // Partial sums are in the output if that has their type.
    bool apart = loop_.out.desc.dtype != loop_.sums || loop_.replaces;
    int64_t sums = elements * static_cast<int64_t>(ElementSize(loop_.sums));
    t.sum_bytes = adds && apart ? AlignedBytes(sums) : 0;
    if (t.sum_bytes > 0) t.largest = std::max(t.largest, sums);
    t.bytes += t.sum_bytes * (results > 1 ? t.buffers : 1);
    if (!in_place) {
      int64_t& dma = loop_.out.resident() ? dma_in : dma_out;
      dma = Plus(dma, Times(results, TransferCycles(machine_, loop_.out.desc, part)));
    }
    int64_t compute = Times(t.count, ComputeCycles(loop_, operation_, machine_, t.sizes, adds));
    int64_t parallel = std::min<int64_t>(machine_.cores, results);
    if (t.count > 1) parallel = std::min<int64_t>(parallel, t.buffers);
    compute /= parallel;
    int64_t sum = Plus(Plus(dma_in, dma_out), compute);
    if (t.buffers == 1 || t.count == 1) {
      t.cycles = sum;
    } else {
      int64_t most = std::max({dma_in, dma_out, compute});
      t.cycles = most + (sum - most) / t.count;
    }
  }

  Tiling Best() const {
    Tiling best;
    best.count = 0;
    for (int32_t kind = 0; kind < Orders(); ++kind) {
      Tiling whole;
      SetOrder(kind, &whole);
      for (int32_t i = 0; i < axes_; ++i) whole.sizes[i] = loop_.axes[i].dim.Most();
      Estimate(&whole);
      bool fits = Fits(whole);
      whole.fits_whole = fits;
      if (fits) Keep(whole, &best);
      const int32_t buffers[] = {1, 2, machine_.cores + 1};
      for (int32_t i = machine_.cores == 1 ? 1 : 2; i >= 0; --i) {
        Tiling found = whole;
        found.buffers = buffers[i];
        if (fits && machine_.cores == 1) {
          if (i == 0) continue;
          // The rest of the space lets the next operation's transfers begin.
          if (whole.bytes <= space_ / kPipeline) found.buffers = kPipeline;
          if (!Pipeline(&found)) continue;
        } else {
          Descend(&found);
        }
        if (found.count > 0) Keep(found, &best);
      }
    }
    return best;
  }

  Tiling Smallest() const {
    Tiling least;
    SetOrder(0, &least);
    for (int32_t i = 0; i < axes_; ++i) {
      int64_t size = loop_.axes[i].dim.Most();
      for (int64_t next = size; next > 0; next = loop_.axes[i].Smaller(next)) size = next;
      least.sizes[i] = size;
    }
    Estimate(&least);
    // If cutting an axis does not help, it stays whole.
    for (int32_t i = 0; i < axes_; ++i) {
      Tiling larger = least;
      larger.sizes[i] = loop_.axes[i].dim.Most();
      Estimate(&larger);
      if (larger.bytes <= least.bytes && larger.largest <= least.largest) least = larger;
    }
    return least;
  }

 private:
  bool FitsTile(int64_t bytes) const {
    return machine_.max_tile_bytes == 0 || bytes <= machine_.max_tile_bytes;
  }
  bool Fits(const Tiling& tiling) const {
    return tiling.bytes <= space_ && FitsTile(tiling.largest);
  }

  static void Keep(const Tiling& found, Tiling* best) {
    bool better = best->count == 0 || found.cycles < best->cycles ||
                  (found.cycles == best->cycles && found.count < best->count);
    if (better) *best = found;
  }

  static bool Cut(const Operand& operand, const int64_t* counts) {
    for (int32_t d = 0; d < operand.desc.rank; ++d) {
      const Link& link = operand.links[d];
      if (link.how != Link::kWhole && counts[link.axis] > 1) return true;
    }
    return false;
  }

  /*! \brief Whether tiles are slices. */
  static bool Slices(const Operand& operand, const Range* part, const int64_t* counts) {
    // The largest tile may be the whole where windows overlap; other tiles are not.
    Range any[NPU_MAX_RANK];
    for (int32_t d = 0; d < operand.desc.rank; ++d) {
      const Link& link = operand.links[d];
      any[d] = part[d];
      if (link.how == Link::kWindows && counts[link.axis] > 1) {
        any[d].size = std::min(any[d].size, std::max<int64_t>(operand.desc.dims[d].Most() - 1, 1));
      }
    }
    return IsSlice(operand.desc, any);
  }

  /*! \brief How often a streamed operand is loaded. */
  int64_t Loads(const Tiling& tiling, const Operand& operand, const int64_t* counts) const {
    int64_t loads = 1;
    int64_t all = 1;
    for (int32_t i = 0; i < axes_; ++i) {
      int32_t axis = tiling.order[i];
      all = Times(all, counts[axis]);
      for (int32_t d = 0; counts[axis] > 1 && d < operand.desc.rank; ++d) {
        if (operand.links[d].how != Link::kWhole && operand.links[d].axis == axis) loads = all;
      }
    }
    return loads;
  }

  /*! \brief The orders worth a try: for products, rows before columns or after them. */
  int32_t Orders() const {
    return std::holds_alternative<npu_matmul>(operation_.op) ||
                   std::holds_alternative<npu_convolution>(operation_.op)
               ? 2
               : 1;
  }

  void SetOrder(int32_t kind, Tiling* tiling) const {
    auto begin = tiling->order.begin();
    std::iota(begin, tiling->order.end(), 0);
    if (kind == 1 && std::holds_alternative<npu_matmul>(operation_.op)) {
      std::swap(begin[axes_ - 3], begin[axes_ - 2]);
    } else if (std::holds_alternative<npu_convolution>(operation_.op)) {
      // Features first: weights move once. Features last: data does.
      if (kind == 0) std::rotate(begin, begin + 1, begin + 2);
      if (kind == 1) std::rotate(begin + 1, begin + 2, begin + 3);
    }
    std::stable_partition(begin, begin + axes_,
                          [this](int32_t axis) { return !loop_.axes[axis].partial; });
  }

  /*! \brief Cuts an operation that fits into a few tiles, if their transfers overlap so well that
   *  it pays. */
  bool Pipeline(Tiling* tiling) const {
    int64_t whole = tiling->cycles;
    if (whole < 40 * int64_t{machine_.dma_latency_cycles}) return false;
    for (bool better = true; better;) {
      better = false;
      Tiling start = *tiling;
      for (int32_t i = 0; i < axes_; ++i) {
        if (loop_.axes[i].partial || loop_.axes[i].Smaller(start.sizes[i]) == 0) continue;
        Tiling next = start;
        next.sizes[i] = loop_.axes[i].Smaller(start.sizes[i]);
        Estimate(&next);
        if (next.count > kPipeline || !Fits(next) || next.cycles >= tiling->cycles) continue;
        *tiling = std::move(next);
        better = true;
      }
    }
    return tiling->cycles < whole / 5 * 4;
  }

  /*! \brief Cuts one axis after the other until everything fits; count is 0 if it never does. */
  void Descend(Tiling* tiling) const {
    Estimate(tiling);
    while (true) {
      bool fits = Fits(*tiling);
      if (fits && tiling->count >= machine_.cores) break;
      Tiling best;
      best.count = 0;
      double best_score = std::numeric_limits<double>::infinity();
      for (int32_t i = 0; i < axes_; ++i) {
        int64_t smaller = loop_.axes[i].Smaller(tiling->sizes[i]);
        if (smaller == 0 || (fits && loop_.axes[i].partial)) continue;
        Tiling next = *tiling;
        next.sizes[i] = smaller;
        Estimate(&next);
        // Minimize cycles; reduce memory only while the tile does not fit. Sums in parts are the
        // last resort.
        double score =
            static_cast<double>(next.cycles) * static_cast<double>(std::max(next.bytes, space_));
        if (machine_.max_tile_bytes > 0) {
          score *= static_cast<double>(std::max(next.largest, machine_.max_tile_bytes));
        }
        if (loop_.axes[i].partial) score *= 1.5;
        if (score < best_score) {
          best_score = score;
          best = std::move(next);
        }
      }
      if (best.count == 0 || (fits && best.cycles >= tiling->cycles)) {
        if (!fits) tiling->count = 0;
        break;
      }
      *tiling = std::move(best);
    }
    if (tiling->count > 1) Widen(tiling);
  }

  /*! \brief Fewer tiles, if they still fit: halving may have gone too far. */
  void Widen(Tiling* tiling) const {
    for (int32_t i = 0; i < axes_; ++i) {
      for (int64_t count = loop_.axes[i].Count(tiling->sizes[i]); count > 1; --count) {
        Tiling next = *tiling;
        next.sizes[i] = loop_.axes[i].SizeFor(count - 1);
        Estimate(&next);
        if (!Fits(next) || next.cycles > tiling->cycles) break;
        *tiling = std::move(next);
      }
    }
  }

  const Loop& loop_;
  const Operation& operation_;
  const Machine& machine_;
  int64_t space_, small_;
  int32_t axes_;
};

}  // namespace

int64_t Axis::Count(int64_t size) const {
  int64_t all = dim.Most();
  if (group == 0 || size >= group) return CeilDivide(all, size);
  return all / group * CeilDivide(group, size);
}

Range Axis::At(int64_t size, int64_t index) const {
  int64_t all = dim.Most();
  if (group == 0 || size >= group) {
    return {index * size, std::min(size, all - index * size)};
  }
  int64_t each = CeilDivide(group, size);
  int64_t begin = index % each * size;
  return {index / each * group + begin, std::min(size, group - begin)};
}

int64_t Axis::Smaller(int64_t size) const {
  int64_t half = CeilDivide(size, 2);
  if (group > 0 && size > group) half = CeilDivide(half, group) * group;
  return half < least || half == size ? 0 : half;
}

int64_t Axis::SizeFor(int64_t count) const {
  int64_t all = dim.Most();
  int64_t size = CeilDivide(all, count);
  if (group == 0) return size;
  if (size >= group) return CeilDivide(size, group) * group;
  return CeilDivide(group, std::max<int64_t>(1, count / (all / group)));
}

Loop MakeLoop(const Operation& operation, const std::vector<Desc>& descs) {
  return LoopMaker(operation, descs).Run();
}

Range RangeOf(const Loop& loop, const Operand& operand, int32_t dimension, const Tile& tile) {
  const Link& link = operand.links[dimension];
  if (link.how == Link::kWhole) return {0, operand.desc.dims[dimension].Most()};
  const Range& range = tile[link.axis];
  if (range.size == loop.axes[link.axis].dim.Most()) {
    // Strides may leave elements that no window covers.
    return {0, operand.desc.dims[dimension].Most()};
  }
  switch (link.how) {
    case Link::kWindows: {
      int64_t first = range.begin * loop.stride - loop.pad;
      int64_t last = first + (range.size - 1) * loop.stride + loop.span;
      int64_t begin = std::max<int64_t>(first, 0);
      return {begin, std::min(last, loop.in) - begin};
    }
    case Link::kChannels: {
      int64_t group = loop.axes[link.axis].group;
      int64_t begin = range.begin / group;
      int64_t end = CeilDivide(range.begin + range.size, group);
      return {begin * loop.group_channels, (end - begin) * loop.group_channels};
    }
    default:
      return range;
  }
}

const Tiling& Tiler::Find(const Loop& loop, const Operation& operation, int64_t space) {
  auto axes = static_cast<int64_t>(loop.axes.size());
  auto kind = static_cast<int64_t>(operation.op.index());
  auto instructions = static_cast<int64_t>(operation.instructions.size());
  std::vector<int64_t> key = {space, kind, instructions, axes, loop.replaces, loop.group_channels};
  key.insert(key.end(), {loop.in, loop.span, loop.stride, loop.pad});
  for (const Axis& axis : loop.axes) {
    key.insert(key.end(), {axis.dim.size, axis.dim.symbol, axis.group, axis.least, axis.partial});
  }
  auto add = [&key](const Operand& operand) {
    key.insert(key.end(), {operand.desc.dtype, operand.desc.rank, operand.packed, operand.halved,
                           operand.resident()});
    for (int32_t d = 0; d < operand.desc.rank; ++d) {
      const Dim& dim = operand.desc.dims[d];
      key.insert(key.end(), {dim.size, dim.symbol, operand.links[d].how, operand.links[d].axis});
    }
  };
  add(loop.out);
  for (const Operand& operand : loop.reads) add(operand);
  for (int32_t role : loop.roles) key.push_back(role);
  if (auto* matmul = std::get_if<npu_matmul>(&operation.op)) {
    key.insert(key.end(), {matmul->transpose_b, matmul->b_bits});
  }
  if (auto* pool = std::get_if<npu_pool>(&operation.op)) {
    key.push_back(pool->kind);
    for (int32_t i = 0; i < pool->spatial_rank; ++i) key.push_back(pool->window[i]);
  }
  auto [entry, added] = found_.try_emplace(std::move(key));
  Tiling& found = entry->second;
  if (added) found = Search(loop, operation, machine_, space, SmallBytes(machine_)).Best();
  if (added && found.count == 0) found = Search(loop, operation, machine_, space, 0).Best();
  return found;
}

Tiling SmallestTiling(const Loop& loop, const Operation& operation, const Machine& machine) {
  return Search(loop, operation, machine, 0, 0).Smallest();
}

bool IsSlice(const Desc& desc, const Range* part) {
  int32_t first = desc.rank;
  int32_t last = -1;
  for (int32_t d = 0; d < desc.rank; ++d) {
    if (part[d].size == desc.dims[d].Most()) continue;
    first = std::min(first, d);
    last = d;
  }
  for (int32_t d = 0; d < desc.rank; ++d) {
    if (d < last && part[d].size != 1) return false;
    if (d > first && desc.dims[d].symbol >= 0) return false;
  }
  return true;
}

int64_t TransferCycles(const Machine& machine, const Desc& desc, const Range* part) {
  auto run = static_cast<int64_t>(ElementSize(desc.dtype));
  int32_t d = desc.rank - 1;
  for (; d >= 0; --d) {
    run *= part[d].size;
    if (part[d].size != desc.dims[d].Most()) break;
  }
  int64_t runs = 1;
  for (--d; d >= 0; --d) runs *= part[d].size;
  return DmaCycles(machine, runs, run);
}

}  // namespace npu::emulator
