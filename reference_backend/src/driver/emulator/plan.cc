// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file plan.cc
 * \brief Memory planning.
 */
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "plan.h"

namespace tvm_example_npu::emulator {
namespace {

/*! \brief Hands out parts of an arena that grows as needed. */
class Arena {
 public:
  /*! \brief The offset of free memory: the smallest piece that is large enough, or at the end. */
  size_t Allocate(size_t size) {
    auto fit = by_size_.lower_bound({size, 0});
    if (fit != by_size_.end()) {
      size_t offset = fit->second;
      size_t left = fit->first - size;
      Remove(free_.find(offset));
      if (left > 0) Insert(offset + size, left);
      return offset;
    }
    size_t offset = size_;
    if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == size_) {
      offset = free_.rbegin()->first;
      Remove(std::prev(free_.end()));
    }
    size_ = offset + size;
    return offset;
  }

  /*! \brief Gives memory back. */
  void Release(size_t offset, size_t size) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + size == next->first) {
      size += next->second;
      next = Remove(next);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        size += previous->second;
        Remove(previous);
      }
    }
    Insert(offset, size);
  }

  size_t size() const { return size_; }

 private:
  using Pieces = std::map<size_t, size_t>;

  void Insert(size_t offset, size_t size) {
    free_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  Pieces::iterator Remove(Pieces::iterator piece) {
    by_size_.erase({piece->second, piece->first});
    return free_.erase(piece);
  }

  /*! \brief Free pieces: offset to size, and (size, offset). No two of them touch. */
  Pieces free_;
  std::set<std::pair<size_t, size_t>> by_size_;
  size_t size_ = 0;
};

bool SameShape(const npu_tensor_desc& a, const npu_tensor_desc& b) {
  return a.dtype == b.dtype && a.rank == b.rank &&
         std::equal(a.dims, a.dims + a.rank, b.dims, [](const npu_dim& x, const npu_dim& y) {
           return x.size == y.size && x.symbol == y.symbol;
         });
}

size_t Bytes(const npu_tensor_desc& desc, const std::vector<int64_t>& symbols) {
  TensorView view = Resolve(desc, nullptr);
  int64_t elements = ElementCount(view);
  for (int32_t i = 0; i < desc.rank; ++i) {
    if (desc.dims[i].symbol < 0) continue;
    int64_t value = symbols[desc.dims[i].symbol];
    if (value > kMaxElements / elements) {
      throw Error(NPU_OUT_OF_MEMORY,
                  Join("With these input shapes a tensor of the program would have more than ",
                       kMaxElements, " elements."));
    }
    elements *= value;
  }
  return static_cast<size_t>(elements) * ElementSize(desc.dtype);
}

/*! \brief Plans one program. */
class Planner {
 public:
  Planner(const Program& program, const std::vector<int64_t>& symbols)
      : program_(program), last_(program.tensors().size(), -1) {
    plan_.symbols = symbols;
    plan_.locations.resize(program.tensors().size());
  }

  Plan Run() {
    PlaceOutsideArena();
    FindLastUses();
    size_t next = 0;
    const auto& commands = program_.commands();
    for (size_t i = 0; i < commands.size(); ++i) {
      Location& out = plan_.locations[Output(commands[i])];
      if (out.place == Location::kNowhere) {
        out = Reusable(commands[i], static_cast<int32_t>(i));
        if (out.place == Location::kNowhere) {
          out = {Location::kArena, arena_.Allocate(sizes_[Output(commands[i])])};
        }
      }
      for (; next < by_last_.size() && last_[by_last_[next]] == static_cast<int32_t>(i); ++next) {
        npu_tensor base = by_last_[next];
        if (!handed_on_[base]) arena_.Release(plan_.locations[base].position, sizes_[base]);
      }
    }
    for (size_t i = 0; i < plan_.locations.size(); ++i) {
      plan_.locations[i] = plan_.locations[Base(static_cast<npu_tensor>(i))];
    }
    plan_.arena_bytes = arena_.size();
    return std::move(plan_);
  }

 private:
  npu_tensor Base(npu_tensor tensor) const { return program_.tensors()[tensor].base; }

  void PlaceOutsideArena() {
    const auto& tensors = program_.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      // Also checks the sizes of inputs and views, of which nothing else is needed.
      sizes_.push_back(Aligned(Bytes(tensors[i].desc, plan_.symbols)));
      auto index = static_cast<size_t>(tensors[i].index);
      if (tensors[i].kind == TensorKind::kInput) plan_.locations[i] = {Location::kInput, index};
      if (tensors[i].kind == TensorKind::kConstant) {
        plan_.locations[i] = {Location::kConstant, index};
      }
    }
    for (size_t i = 0; i < program_.outputs().size(); ++i) {
      npu_tensor tensor = program_.outputs()[i];
      Location& location = plan_.locations[Base(tensor)];
      if (location.place == Location::kNowhere) {
        location = {Location::kOutput, i};
      } else {
        plan_.copies.push_back({tensor, i});
      }
    }
  }

  /*! \brief Sorts the tensors that go to the arena by the last command that touches them. */
  void FindLastUses() {
    const auto& commands = program_.commands();
    for (size_t i = 0; i < commands.size(); ++i) {
      auto touch = [&](npu_tensor tensor) { last_[Base(tensor)] = static_cast<int32_t>(i); };
      ForEachRead(commands[i], touch);
      touch(Output(commands[i]));
    }
    for (size_t i = 0; i < last_.size(); ++i) {
      if (last_[i] >= 0 && plan_.locations[i].place == Location::kNowhere) {
        by_last_.push_back(static_cast<npu_tensor>(i));
      }
    }
    std::sort(by_last_.begin(), by_last_.end(), [this](npu_tensor a, npu_tensor b) {
      return last_[a] != last_[b] ? last_[a] < last_[b] : a < b;
    });
    handed_on_.resize(last_.size());
  }

  /*! \brief The memory of an input of the vector program that the command's result may overwrite:
   *  nothing needs it afterwards, and the command reads it in the order in which it writes. */
  Location Reusable(const Command& command, int32_t index) {
    const npu_tensor_desc& out = program_.tensors()[Output(command)].desc;
    bool elementwise = std::holds_alternative<npu_elementwise>(command.op);
    for (size_t i = elementwise ? 0 : 1; i < command.inputs.size(); ++i) {
      npu_tensor base = Base(command.inputs[i]);
      if (plan_.locations[base].place != Location::kArena || last_[base] != index) continue;
      size_t in_order = 0;
      for (size_t k = elementwise ? 0 : 1; k < command.inputs.size(); ++k) {
        in_order += Base(command.inputs[k]) == base &&
                    SameShape(program_.tensors()[command.inputs[k]].desc, out);
      }
      size_t reads = 0;
      ForEachRead(command, [&](npu_tensor tensor) { reads += Base(tensor) == base; });
      if (reads != in_order) continue;
      handed_on_[base] = true;
      return plan_.locations[base];
    }
    return {};
  }

  const Program& program_;
  Plan plan_;
  Arena arena_;
  /*! \brief By base: rounded size, the last command that touches it, whether its memory went on. */
  std::vector<size_t> sizes_;
  std::vector<int32_t> last_;
  std::vector<bool> handed_on_;
  std::vector<npu_tensor> by_last_;
};

}  // namespace

Plan MakePlan(const Program& program, const std::vector<int64_t>& symbols) {
  return Planner(program, symbols).Run();
}

}  // namespace tvm_example_npu::emulator
