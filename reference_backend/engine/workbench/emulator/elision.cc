// SPDX-License-Identifier: Apache-2.0
/*!
 * \file elision.cc
 * \brief Leaves out transfers that the emulator's host does not need.
 */
#include "elision.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "kernels/kernels.h"

namespace npu::emulator {
namespace {

bool IsFixed(const Desc& desc) {
  return std::all_of(desc.dims, desc.dims + desc.rank,
                     [](const Dim& dim) { return dim.symbol < 0; });
}

bool SameDims(const Desc& a, const Desc& b) {
  return std::equal(a.dims, a.dims + a.rank, b.dims, b.dims + b.rank);
}

/*! \brief Whether two tensors have the same number of bytes for all values of the symbols. */
bool SameBytes(const Tensor& a, const Tensor& b) {
  if (MostBytes(a) != MostBytes(b)) return false;
  auto symbolic = [](const Desc& desc) {
    std::vector<Dim> dims;
    std::copy_if(desc.dims, desc.dims + desc.rank, std::back_inserter(dims),
                 [](const Dim& dim) { return dim.symbol >= 0; });
    return dims;
  };
  std::vector<Dim> of_a = symbolic(a.desc);
  std::vector<Dim> of_b = symbolic(b.desc);
  return std::is_permutation(of_a.begin(), of_a.end(), of_b.begin(), of_b.end());
}

/*! \brief Whether a box that begins at `offset` of `whole` has all of `tile`, in one dimension, for
 *        all values of the symbols. */
bool Covers(const Dim& tile, const Dim& whole, int64_t offset) {
  // A symbol is at least 1, so a dimension that is whole is not empty.
  bool one = tile.symbol < 0 && tile.size == 1;
  if (one && whole.begin == 0) return offset < std::min(whole.size, whole.Most());
  if (tile.symbol != whole.symbol) return false;
  if (tile.symbol < 0) return tile.size <= whole.size - offset;
  return tile.size == whole.size && tile.begin == whole.begin + offset &&
         tile.limit <= whole.limit - offset;
}

/*! \brief Whether the bytes of `whole` that `tile` needs are contiguous.
 *
 * \param offset Where the box begins in `whole`.
 * \param bytes Set to where these bytes begin, counted from those of `whole`.
 */
bool IsContiguous(const Desc& tile, const Desc& whole, const int64_t* offset, uint64_t* bytes) {
  // After the innermost dimension in which the box is a part, all are whole; before it, all have
  // one element.
  int32_t part = tile.rank - 1;
  while (part >= 0 && tile.dims[part] == whole.dims[part] && offset[part] == 0) --part;
  for (int32_t d = 0; d < part; ++d) {
    if (tile.dims[d].symbol >= 0 || tile.dims[d].size != 1) return false;
  }
  auto stride = static_cast<int64_t>(ElementSize(whole.dtype));
  bool is_fixed = true;
  int64_t begin = 0;
  for (int32_t d = whole.rank - 1; d >= 0; --d) {
    if (offset[d] != 0 && !is_fixed) return false;
    begin += offset[d] * stride;
    stride *= whole.dims[d].Most();
    is_fixed = is_fixed && whole.dims[d].symbol < 0;
  }
  *bytes = static_cast<uint64_t>(begin);
  return true;
}

/*! \brief Whether a transfer copies all of a tensor of real numbers, with zeros between elements
 *        that lie side by side in the spatial dimensions. */
bool PutsZerosBetween(const Transfer& op, const Tensor& from, const Tensor& to) {
  const Desc& data = from.desc;
  const Desc& out = to.desc;
  const bool is_plain = from.packed_bytes == 0 && IsFixed(data) && IsFixed(out);
  if (!is_plain || IsInteger(data.dtype) || out.rank < 3 || op.fill == 0 || op.fill_value != 0) {
    return false;
  }
  int64_t parts = 1;
  for (int32_t d = 0; d < out.rank; ++d) {
    const int64_t step = op.out_step[d], offset = op.out_offset[d];
    const bool is_whole = op.permutation[d] == d && op.data_offset[d] == 0 && op.data_step[d] == 1;
    if (!is_whole || step > kMostSpread || (d < 2 && (step != 1 || offset != 0))) return false;
    if (StepsIn(out.dims[d].size, offset, step) != data.dims[d].size) return false;
    parts = std::min(parts * step, kMostSpread + 1);
  }
  return parts > 1 && parts <= kMostSpread;
}

/*! \brief Whether a convolution can read its data without the zeros between. */
bool TakesSpreadData(const Command& command, const Access* read, const Access* first) {
  auto* op = std::get_if<npu_convolution>(&command.op);
  if (op == nullptr || read != first || op->groups != 1) return false;
  return std::all_of(op->strides, op->strides + op->spatial_rank,
                     [](int64_t stride) { return stride == 1; });
}

/*! \brief Goes through the commands and remembers what each one wrote. Times are command
 *  numbers. */
class Elider {
 public:
  Elider(const Program& program, const Accesses& accesses)
      : program_(program),
        accesses_(accesses),
        elision_(NoElision(program, accesses)),
        writers_(program.commands.size()),
        origins_(accesses.size(), -1),
        read_(accesses.pieces()),
        written_(accesses.pieces()) {}

  Elision Run() {
    for (size_t i = 0; i < program_.commands.size(); ++i) Visit(static_cast<int32_t>(i));
    for (size_t i = 0; i < program_.commands.size(); ++i) {
      for (const Access* access = accesses_.begin(i); access != accesses_.end(i); ++access) {
        bool output = access == &accesses_.output(i);
        size_t number = accesses_.index(access);
        int32_t origin = output ? static_cast<int32_t>(i) : origins_[number];
        if (origin < 0 || !writers_[origin].moved) continue;
        elision_.places[number] = writers_[origin].place;
        elision_.places[number].offset +=
            PlaceOf(*access).offset - PlaceOf(accesses_.output(origin)).offset;
        if (!output && writers_[origin].spreads) elision_.spreads[i] = origin;
      }
      const Writer& writer = writers_[i];
      if (writer.moved) elision_.skipped[writer.transfer] = true;
    }
    return std::move(elision_);
  }

 private:
  /*! \brief A write of a command to the scratchpad. */
  struct Writer {
    /*! \brief Whether it is tentatively elsewhere instead. */
    bool moved = false;
    /*! \brief Whether some command needs it where it is. */
    bool pinned = false;
    /*! \brief A load that puts zeros between the elements. */
    bool spreads = false;
    Place place = {};
    /*! \brief The earlier writers, whose data may be visible where this one wrote less than it
     *  could have. */
    std::vector<int32_t> below;
    /*! \brief The transfer that is left out for it, and the memory on the other side. */
    int32_t transfer = 0;
    Access there = {};
  };
  /*! \brief A part of the scratchpad, up to `end`, that one command wrote (-1: several). */
  struct Part {
    int32_t end;
    int32_t writer;
  };

  const Tensor& TensorOf(const Access& access) const { return program_.tensors[access.tensor]; }
  const Place& PlaceOf(const Access& access) const { return TensorOf(access).place; }
  bool InScratchpad(const Access& access) const {
    return PlaceOf(access).memory == Memory::kScratchpad;
  }

  void Visit(int32_t i) {
    const Access& output = accesses_.output(i);
    for (const Access* read = accesses_.begin(i); read != &output; ++read) {
      if (!InScratchpad(*read)) {
        read_.Raise(*read, i);
        continue;
      }
      int32_t writer = WriterOf(*read);
      origins_[accesses_.index(read)] = writer;
      if (writer >= 0) UseOf(writer, *read, i);
    }
    if (auto* transfer = std::get_if<Transfer>(&program_.commands[i].op)) {
      if (transfer->data >= 0) MoveLoadOrStore(*transfer, i);
    }
    if (!InScratchpad(output)) {
      written_.Raise(output, i);
    } else if (!WritesAll(i)) {
      PinAll(output);
    } else {
      // A tile may be shorter than its memory: older data can still be visible.
      if (!IsFixed(TensorOf(output).desc)) {
        ForEachWriter(output, [&](int32_t writer) { writers_[i].below.push_back(writer); });
      }
      Assign(output, i);
    }
  }

  /*! \brief Whether a command writes all elements of its output for all values of the symbols. */
  bool WritesAll(int32_t i) const {
    auto* transfer = std::get_if<Transfer>(&program_.commands[i].op);
    if (transfer == nullptr || transfer->fill != 0) return true;
    const Desc& out = TensorOf(accesses_.output(i)).desc;
    const Desc& data = program_.tensors[transfer->data].desc;
    for (int32_t d = 0; d < out.rank; ++d) {
      int32_t from = transfer->permutation[d];
      int64_t offset = transfer->data_offset[from];
      int64_t step = transfer->data_step[from];
      // Steps are only in fixed dimensions.
      bool covers = step == 1 ? Covers(out.dims[d], data.dims[from], offset)
                              : out.dims[d].symbol < 0 &&
                                    out.dims[d].size <= StepsIn(data.dims[from].size, offset, step);
      if (transfer->out_offset[d] != 0 || transfer->out_step[d] != 1 || !covers) return false;
    }
    return true;
  }

  /*! \brief Command i reads what command `number` wrote: may that data be elsewhere? */
  void UseOf(int32_t number, const Access& read, int32_t i) {
    Writer& writer = writers_[number];
    const Tensor& have = TensorOf(accesses_.output(number));
    const Tensor& want = TensorOf(read);
    bool inside = want.place.offset >= have.place.offset &&
                  want.place.offset + MostBytes(want) <= have.place.offset + MostBytes(have);
    // A tile may be shorter than its memory; then only the same bytes may be read.
    if (!IsFixed(have.desc)) {
      inside = inside && want.place.offset == have.place.offset && SameBytes(want, have);
    }
    const Access& output = accesses_.output(i);
    if (writer.spreads && writer.moved) {
      inside = SameDims(want.desc, have.desc) && want.place.offset == have.place.offset &&
               TakesSpreadData(program_.commands[i], &read, accesses_.begin(i));
    }
    if (!inside) {
      PinAll(read);
    } else if (writer.moved) {
      bool overwritten = written_.Of(writer.there) > writer.transfer;
      bool overwrites = !InScratchpad(output) && output.begin < writer.there.end &&
                        writer.there.begin < output.end;
      if (overwritten || overwrites) Pin(number);
      read_.Raise(writer.there, i);
    }
  }

  void MoveLoadOrStore(const Transfer& op, int32_t i) {
    const Access& data = *accesses_.begin(i);
    const Access& out = accesses_.output(i);
    if (InScratchpad(out) && !InScratchpad(data) &&
        PutsZerosBetween(op, TensorOf(data), TensorOf(out))) {
      Move(i, PlaceOf(data), i, data);
      writers_[i].spreads = true;
      return;
    }
    for (int32_t d = 0; d < TensorOf(out).desc.rank; ++d) {
      if (op.permutation[d] != d || op.data_step[d] != 1 || op.out_step[d] != 1) return;
    }
    bool load = InScratchpad(out) && !InScratchpad(data);
    bool store = InScratchpad(data) && !InScratchpad(out) && op.fill == 0;
    if (!load && !store) return;
    const Access& here = load ? out : data;
    const Access& there = load ? data : out;
    const Desc& tile = TensorOf(here).desc;
    const Desc& whole = TensorOf(there).desc;
    const int64_t* offset_here = load ? op.out_offset : op.data_offset;
    const int64_t* offset_there = load ? op.data_offset : op.out_offset;
    for (int32_t d = 0; d < tile.rank; ++d) {
      if (offset_here[d] != 0 || !Covers(tile.dims[d], whole.dims[d], offset_there[d])) return;
    }
    uint64_t bytes = 0;
    if (!IsContiguous(tile, whole, offset_there, &bytes)) return;
    int32_t number = load ? i : origins_[accesses_.index(&data)];
    if (number < 0) return;
    Writer& writer = writers_[number];
    if (store) {
      // The store moves up to where its data is written, so nothing may access its memory in
      // between.
      const Tensor& have = TensorOf(accesses_.output(number));
      const Tensor& want = TensorOf(data);
      bool whole = have.place.offset == want.place.offset && SameBytes(have, want);
      if (!whole || writer.moved || writer.pinned) return;
      if (read_.Of(there) >= number || written_.Of(there) >= number) return;
    }
    Place place = PlaceOf(there);
    place.offset += bytes;
    Move(number, place, i, there);
  }

  /*! \brief Lets the data that a command writes be elsewhere, which makes a transfer needless. */
  void Move(int32_t number, const Place& place, int32_t transfer, const Access& there) {
    Writer& writer = writers_[number];
    writer.moved = true;
    writer.place = place;
    writer.transfer = transfer;
    writer.there = there;
  }

  void Pin(int32_t number) {
    writers_[number].pinned = true;
    writers_[number].moved = false;
  }

  /*! \brief The only command that wrote all of a range, or -1. In that case all writers are
   *  pinned. */
  int32_t WriterOf(const Access& read) {
    auto part = First(read.begin);
    int32_t writer = -1;
    int32_t covered = read.begin;
    for (; part != parts_.end() && part->first <= covered && covered < read.end; ++part) {
      if (covered != read.begin && part->second.writer != writer) break;
      writer = part->second.writer;
      covered = part->second.end;
    }
    if (covered >= read.end) return writer;
    PinAll(read);
    return -1;
  }

  template <typename Visitor>
  void ForEachWriter(const Access& access, const Visitor& visit) {
    for (auto part = First(access.begin); part != parts_.end() && part->first < access.end;
         ++part) {
      if (part->second.writer >= 0) visit(part->second.writer);
    }
  }

  /*! \brief Pins all commands whose writes are visible in a range. It becomes one part, so that it
   *        is not searched again. */
  void PinAll(const Access& access) {
    std::vector<int32_t> seen;
    ForEachWriter(access, [&seen](int32_t writer) { seen.push_back(writer); });
    while (!seen.empty()) {
      int32_t number = seen.back();
      seen.pop_back();
      Pin(number);
      std::vector<int32_t> below = std::move(writers_[number].below);
      writers_[number].below.clear();
      seen.insert(seen.end(), below.begin(), below.end());
    }
    Assign(access, -1);
  }

  void Assign(const Access& access, int32_t writer) {
    if (access.begin == access.end) return;
    auto part = First(access.begin);
    while (part != parts_.end() && part->first < access.end) {
      auto [begin, old] = *part;
      part = parts_.erase(part);
      if (begin < access.begin) parts_[begin] = {access.begin, old.writer};
      if (old.end > access.end) parts_[access.end] = {old.end, old.writer};
    }
    parts_[access.begin] = {access.end, writer};
  }

  /*! \brief The first part that ends after a piece. */
  std::map<int32_t, Part>::iterator First(int32_t piece) {
    auto part = parts_.upper_bound(piece);
    if (part != parts_.begin() && std::prev(part)->second.end > piece) --part;
    return part;
  }

  const Program& program_;
  const Accesses& accesses_;
  Elision elision_;
  /*! \brief By command. */
  std::vector<Writer> writers_;
  /*! \brief By access: the command that wrote the data read, or -1. */
  std::vector<int32_t> origins_;
  std::map<int32_t, Part> parts_;
  /*! \brief By piece of DRAM: when it was last read and last written. */
  Latest read_, written_;
};

}  // namespace

Elision NoElision(const Program& program, const Accesses& accesses) {
  Elision elision;
  for (size_t i = 0; i < program.commands.size(); ++i) {
    for (const Access* access = accesses.begin(i); access != accesses.end(i); ++access) {
      elision.places.push_back(program.tensors[access->tensor].place);
    }
  }
  elision.skipped.resize(program.commands.size());
  elision.spreads.resize(program.commands.size(), -1);
  return elision;
}

Elision Elide(const Program& program, const Accesses& accesses) {
  return Elider(program, accesses).Run();
}

}  // namespace npu::emulator
