// SPDX-License-Identifier: Apache-2.0
/*!
 * \file accesses.cc
 * \brief Which bytes the commands of a program touch.
 */
#include "accesses.h"

#include <algorithm>
#include <tuple>

namespace npu::emulator {
namespace {

/*! \brief A byte of a memory. */
using Byte = std::tuple<Memory, uint32_t, uint64_t>;

struct Range {
  uint64_t begin, end;
};

/*! \brief The bytes of a tensor from the first to the last of a box. */
Range BoxOf(const Desc& desc, const int64_t* offset, const int64_t* step, const int64_t* extent) {
  auto element = static_cast<int64_t>(ElementSize(desc.dtype));
  int64_t first = 0;
  int64_t last = 0;
  for (int32_t d = 0; d < desc.rank; ++d) {
    if (extent[d] <= 0) return {0, 0};
    // The places of elements depend on the sizes of all dimensions but the first.
    if (d > 0 && desc.dims[d].symbol >= 0) return {0, static_cast<uint64_t>(MostBytes(desc))};
    int64_t end = offset[d] + (extent[d] - 1) * step[d];
    first = first * desc.dims[d].Most() + std::min(offset[d], end);
    last = last * desc.dims[d].Most() + std::max(offset[d], end);
  }
  return {static_cast<uint64_t>(first * element), static_cast<uint64_t>((last + 1) * element)};
}

/*! \brief The bytes of a tensor that a transfer touches. */
Range TransferRange(const Transfer& op, bool output, const std::vector<Tensor>& tensors) {
  const Tensor& out = tensors[op.out];
  if (op.data < 0 || out.packed_bytes != 0 || (output && op.fill != 0)) {
    return {0, MostBytes(tensors[output ? op.out : op.data])};
  }
  const Tensor& data = tensors[op.data];
  int64_t extents[NPU_MAX_RANK];
  for (int32_t d = 0; d < out.desc.rank; ++d) {
    int32_t from = op.permutation[d];
    extents[output ? d : from] =
        std::min(StepsIn(out.desc.dims[d].Most(), op.out_offset[d], op.out_step[d]),
                 StepsIn(data.desc.dims[from].Most(), op.data_offset[from], op.data_step[from]));
  }
  return output ? BoxOf(out.desc, op.out_offset, op.out_step, extents)
                : BoxOf(data.desc, op.data_offset, op.data_step, extents);
}

}  // namespace

Accesses::Accesses(const Program& program) {
  std::vector<Byte> begins, ends;
  auto add = [&](const Command& command, npu_tensor tensor, bool output) {
    const Place& place = program.tensors[tensor].place;
    Range range = {0, MostBytes(program.tensors[tensor])};
    if (auto* transfer = std::get_if<Transfer>(&command.op)) {
      range = TransferRange(*transfer, output, program.tensors);
    }
    accesses_.push_back({tensor, 0, 0});
    begins.emplace_back(place.memory, place.index, place.offset + range.begin);
    ends.emplace_back(place.memory, place.index, place.offset + range.end);
  };
  for (const Command& command : program.commands) {
    first_.push_back(accesses_.size());
    ForEachRead(command, [&](npu_tensor tensor) { add(command, tensor, false); });
    add(command, OutputOf(command), true);
  }
  first_.push_back(accesses_.size());

  std::vector<Byte> cuts = begins;
  cuts.insert(cuts.end(), ends.begin(), ends.end());
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  auto piece = [&cuts](const Byte& byte) {
    return static_cast<int32_t>(std::lower_bound(cuts.begin(), cuts.end(), byte) - cuts.begin());
  };
  for (size_t i = 0; i < accesses_.size(); ++i) {
    accesses_[i].begin = piece(begins[i]);
    accesses_[i].end = piece(ends[i]);
  }
  pieces_ = static_cast<int32_t>(cuts.size());
}

}  // namespace npu::emulator
