// SPDX-License-Identifier: Apache-2.0
/*!
 * \file layout_operations.cc
 * \brief The operations of the LayoutAdapter: each in a layout that its tensors have.
 */
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "layout_adapter.h"

namespace npu {

LayoutAdapter::Program::Program(const npu_vector_program* program) {
  if (program == nullptr) return;
  is_there = true;
  view = *program;
  instructions.assign(program->instructions, program->instructions + program->instruction_count);
  inputs.assign(program->inputs, program->inputs + program->input_count);
  steps.assign(program->steps, program->steps + program->step_count);
}

const npu_vector_program* LayoutAdapter::Place(Program* program, const Layout& layout) {
  if (!program->is_there) return nullptr;
  for (npu_tensor& input : program->inputs) {
    if (input >= 0) input = ReadAligned(input, layout);
  }
  for (npu_step& step : program->steps) {
    for (int32_t i = 0; i < step.operand_count; ++i) {
      npu_operand& operand = step.operands[i];
      if (operand.kind == NPU_OPERAND_TENSOR) operand.index = ReadAligned(operand.index, layout);
    }
  }
  program->view.instructions = program->instructions.data();
  program->view.inputs = program->inputs.data();
  program->view.steps = program->steps.data();
  return &program->view;
}

Layout LayoutAdapter::Declared(const npu_tensor_desc& desc, const std::vector<int32_t>& blocks,
                               const int32_t* order) const {
  const std::string driver = label_ + ": the driver " + driver_.api.name + " declares ";
  const Dims dims(desc.dims, desc.dims + desc.rank);
  Layout layout;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int32_t block = i < blocks.size() ? blocks[i] : 0;
    layout.blocks.push_back(std::max(block, 1));
    if (block == 0 || block == 1) continue;
    if (block > 1 && CanSplit({dims[i]}, {block})) continue;
    throw Refusal(
        driver + "blocks of " + std::to_string(block) + " for dimension " + std::to_string(i) +
        (block < 0 ? "; 0 is for none"
         : dims[i].symbol >= 0
             ? ", whose size is known only at the call"
             : ", whose size " + std::to_string(dims[i].size) + " is no multiple of that"));
  }
  const size_t rank = Split(dims, layout.blocks).size();
  if (rank > NPU_MAX_RANK) {
    throw Refusal(driver + "blocks that make " + std::to_string(rank) + " dimensions; " +
                  std::to_string(NPU_MAX_RANK) + " is the limit");
  }
  layout.order.assign(order, order + rank);
  if (!IsPermutation(layout.order)) {
    throw Refusal(driver + "the layout " + Text(layout.order) + ", which is not a permutation of " +
                  std::to_string(rank) + " dimensions");
  }
  layout.blocks = OrNone(std::move(layout.blocks));
  return layout;
}

LayoutAdapter::Layouts LayoutAdapter::Ask(npu_operation operation, npu_tensor data,
                                          npu_tensor weight, npu_tensor out, int64_t groups) {
  npu_layout asked = {};
  asked.size = sizeof(asked);
  asked.operation = operation;
  asked.data = At(data).desc;
  if (weight >= 0) asked.weight = At(weight).desc;
  asked.out = At(out).desc;
  asked.groups = groups;
  std::iota(asked.order, asked.order + NPU_MAX_RANK, 0);
  std::iota(asked.weight_order, asked.weight_order + NPU_MAX_RANK, 0);
  asked.out_order[0] = -1;
  Check(driver_.api.layout(driver_.handle, &asked));
  const bool is_alike = asked.out_order[0] == -1;
  return {
      Declared(asked.data, {0, asked.data_block}, asked.order),
      Declared(asked.weight, {asked.weight_block[0], asked.weight_block[1]}, asked.weight_order),
      Declared(asked.out, {0, is_alike ? asked.data_block : asked.out_block},
               is_alike ? asked.order : asked.out_order)};
}

void LayoutAdapter::Add(const npu_matmul& op) {
  npu_matmul placed = op;
  Program epilogue(op.epilogue);
  const Layout layout = {{}, Identity(At(op.out).rank())};
  placed.a = Read(op.a);
  placed.b = Read(op.b);
  if (op.b_block != 0) {
    placed.b_scales = Read(op.b_scales);
    if (op.b_zero_points >= 0) placed.b_zero_points = Read(op.b_zero_points);
  }
  placed.epilogue = Place(&epilogue, layout);
  placed.out = Write(op.out, layout);
  Check(driver_.api.add_matmul(driver_.handle, &placed));
}

template <typename Op>
void LayoutAdapter::AddConvolution(npu_operation operation, const Op& op) {
  Op placed = op;
  Program epilogue(op.epilogue);
  const Layouts layouts = Ask(operation, op.data, op.weight, op.out, op.groups);
  placed.data = Read(op.data, layouts.data);
  placed.weight = Read(op.weight, layouts.weight);
  placed.epilogue = Place(&epilogue, layouts.out);
  placed.out = Write(op.out, layouts.out);
  CheckAdded<Op>((driver_.api.*Operation<Op>::kFunction)(driver_.handle, &placed));
}

void LayoutAdapter::Add(const npu_convolution& op) {
  AddConvolution(NPU_OPERATION_CONVOLUTION, op);
}

void LayoutAdapter::Add(const npu_transposed_convolution& op) {
  AddConvolution(NPU_OPERATION_TRANSPOSED_CONVOLUTION, op);
}

void LayoutAdapter::Add(const npu_pool& op) {
  npu_pool placed = op;
  const Layouts layouts = Ask(NPU_OPERATION_POOL, op.data, -1, op.out, 1);
  placed.data = Read(op.data, layouts.data);
  placed.out = Write(op.out, layouts.out);
  Check(driver_.api.add_pool(driver_.handle, &placed));
}

void LayoutAdapter::Add(const npu_elementwise& op) {
  const Program program(op.program);
  Follow(op.out, Choose(program.inputs, At(op.out).rank()),
         [this, op, program](const Layout& layout) {
           npu_elementwise placed = op;
           Program copy = program;
           placed.program = Place(&copy, layout);
           placed.out = Write(op.out, layout);
           Check(driver_.api.add_elementwise(driver_.handle, &placed));
         });
}

void LayoutAdapter::Add(const npu_reduce& op) {
  const int rank = At(op.data).rank();
  const bool keeps = At(op.out).rank() == rank;
  // The dimensions of the data that the result has.
  Order kept;
  for (int i = 0; i < rank; ++i) {
    if (keeps || (op.axes >> i & 1u) == 0) kept.push_back(i);
  }
  // The same with blocks as dimensions: which ones the result has, and their numbers in it.
  const auto split = [rank, kept](const Blocks& blocks) {
    const Order pieces = SplitOrder(kept, blocks);
    Order numbers(SplitPlaces(blocks, rank).back(), -1);
    for (size_t i = 0; i < pieces.size(); ++i) numbers[pieces[i]] = static_cast<int>(i);
    return std::make_pair(pieces, numbers);
  };
  const auto order_of_kept = [](const Order& of_data, const Order& numbers) {
    Order order;
    for (int dim : of_data) {
      if (numbers[dim] >= 0) order.push_back(numbers[dim]);
    }
    return order;
  };
  std::optional<Layout> wish = Choose({op.data}, rank);
  if (wish.has_value()) {
    const Order numbers = split(wish->blocks).second;
    wish->order = order_of_kept(wish->order, numbers);
    if (wish->has_blocks()) wish->blocks = Reordered(wish->blocks.data(), kept);
    // Ignore blocks of dimensions that the result lacks.
    wish->blocks = OrNone(std::move(wish->blocks));
  }
  const Program epilogue(op.epilogue);
  Follow(op.out, wish,
         [this, op, rank, kept, split, order_of_kept, epilogue](const Layout& layout) {
           // Keep the data's layout if it yields this one; otherwise put the reduced dimensions
           // last.
           Layout of_data = Known(op.data).value_or(Layout{{}, Identity(rank)});
           Blocks blocks = of_data.has_blocks() ? of_data.blocks : Blocks(rank, 1);
           for (size_t i = 0; i < kept.size(); ++i) {
             blocks[kept[i]] = BlockOf(layout.blocks, static_cast<int>(i));
           }
           blocks = OrNone(std::move(blocks));
           auto [pieces, numbers] = split(blocks);
           if (blocks != of_data.blocks || order_of_kept(of_data.order, numbers) != layout.order) {
             of_data.order = Composed(pieces, layout.order);
             for (size_t i = 0; i < numbers.size(); ++i) {
               if (numbers[i] < 0) of_data.order.push_back(static_cast<int>(i));
             }
             of_data.blocks = blocks;
           }
           const std::vector<int> places = SplitPlaces(blocks, rank);
           uint32_t axes = 0;
           for (int i = 0; i < rank; ++i) {
             for (int place = places[i]; place < places[i + 1]; ++place)
               axes |= (op.axes >> i & 1u) << place;
           }
           npu_reduce placed = op;
           placed.data = Read(op.data, of_data);
           placed.axes = 0;
           for (size_t i = 0; i < of_data.order.size(); ++i) {
             placed.axes |= (axes >> of_data.order[i] & 1u) << i;
           }
           Program copy = epilogue;
           placed.epilogue = Place(&copy, layout);
           placed.out = Write(op.out, layout);
           Check(driver_.api.add_reduce(driver_.handle, &placed));
         });
}

void LayoutAdapter::Add(const npu_copy& op) {
  Value& out = At(op.out);
  const Dims from = At(op.data).dims(), to = out.dims();
  const int rank = out.rank();
  const Order permutation(op.permutation, op.permutation + rank);
  bool is_whole = out.forms.empty() && out.pending.empty() && out.kind == Kind::kComputed;
  for (int i = 0; i < rank; ++i) {
    is_whole = is_whole && op.data_offset[i] == 0 && op.out_offset[i] == 0 &&
               op.data_step[i] == 1 && op.out_step[i] == 1 && IsSame(to[i], from[permutation[i]]);
  }
  if (is_whole) {
    out.kind = Kind::kPermuted;
    out.source = op.data;
    out.permutation = permutation;
    return;
  }
  std::optional<Layout> wish = Known(op.data);
  if (wish.has_value() && (wish->has_blocks() || !IsIdentity(wish->order))) {
    wish = Permuted(*wish, permutation);
  }
  const auto accepts = [=](const Layout& layout) {
    for (int i = 0; i < rank; ++i) {
      const int64_t block = BlockOf(layout.blocks, i);
      const int of_data = permutation[i];
      const bool is_whole_blocks = op.data_step[of_data] == 1 && op.out_step[i] == 1 &&
                                   op.data_offset[of_data] % block == 0 &&
                                   op.out_offset[i] % block == 0 &&
                                   CanSplit({from[of_data]}, {block}) && CanSplit({to[i]}, {block});
      if (block != 1 && !is_whole_blocks) return false;
    }
    return true;
  };
  const auto emit = [this, op, permutation](const Layout& layout) {
    // No permutation if that costs nothing; otherwise the data's order.
    const Layout wanted = Permuted(layout, Inverse(permutation));
    Layout of_data = Known(op.data).value_or(wanted);
    if (of_data.blocks != wanted.blocks || HasForm(op.data, wanted)) of_data = wanted;
    const Order pieces = SplitOrder(permutation, wanted.blocks), places = Inverse(of_data.order);
    npu_copy placed = op;
    placed.data = Read(op.data, of_data);
    placed.out = Write(op.out, layout);
    for (size_t i = 0; i < pieces.size(); ++i) {
      placed.permutation[i] = places[pieces[layout.order[i]]];
    }
    const auto place = [](const Layout& stored, const int64_t* offset, const int64_t* step,
                          int64_t* placed_offset, int64_t* placed_step) {
      const std::vector<int> first = SplitPlaces(stored.blocks, stored.rank());
      const Order where = Inverse(stored.order);
      for (int dim = 0; dim < stored.rank(); ++dim) {
        placed_offset[where[first[dim]]] = offset[dim] / BlockOf(stored.blocks, dim);
        placed_step[where[first[dim]]] = step[dim];
        if (first[dim + 1] - first[dim] == 1) continue;
        placed_offset[where[first[dim] + 1]] = 0;
        placed_step[where[first[dim] + 1]] = 1;
      }
    };
    place(of_data, op.data_offset, op.data_step, placed.data_offset, placed.data_step);
    place(layout, op.out_offset, op.out_step, placed.out_offset, placed.out_step);
    Check(driver_.api.add_copy(driver_.handle, &placed));
  };
  Follow(op.out, wish, emit, accepts);
}

/*! \brief Whether an operation goes along an axis. */
template <typename Op, typename = void>
constexpr bool kHasAxis = false;
template <typename Op>
constexpr bool kHasAxis<Op, std::void_t<decltype(Op::axis)>> = true;

template <typename Op>
void LayoutAdapter::AddInAnyOrder(const Op& op, const std::vector<npu_tensor Op::*>& reads,
                                  size_t followed,
                                  npu_status (*npu_build_api::*function)(npu_builder*, const Op*)) {
  const auto emit = [this, op, reads, followed, function](const Layout& layout) {
    Op placed = op;
    for (size_t i = 0; i < reads.size(); ++i) {
      const npu_tensor read = op.*reads[i];
      placed.*reads[i] = i < followed ? Read(read, layout) : Read(read);
    }
    if constexpr (kHasAxis<Op>) {
      placed.axis = Inverse(layout.order)[SplitPlaces(layout.blocks, layout.rank())[op.axis]];
    }
    placed.out = Write(op.out, layout);
    CheckAdded<Op>((driver_.api.*function)(driver_.handle, &placed));
  };
  Accepts accepts;
  if constexpr (kHasAxis<Op>) {
    accepts = [axis = op.axis](const Layout& layout) { return BlockOf(layout.blocks, axis) == 1; };
  }
  std::vector<npu_tensor> operands;
  for (size_t i = 0; i < followed; ++i) operands.push_back(op.*reads[i]);
  Follow(op.out, Choose(operands, At(op.out).rank()), emit, accepts);
}

void LayoutAdapter::Add(const npu_gather& op) {
  const bool is_elementwise = op.elementwise != 0;
  if (is_elementwise || At(op.indices).rank() == 1) {
    return AddInAnyOrder(op, {&npu_gather::data, &npu_gather::indices}, is_elementwise ? 2 : 1,
                         &npu_build_api::add_gather);
  }
  npu_gather placed = op;
  placed.data = Read(op.data);
  placed.indices = Read(op.indices);
  placed.out = Write(op.out, Identity(At(op.out).rank()));
  Check(driver_.api.add_gather(driver_.handle, &placed));
}

#define NPU_READ(name, role) &npu_##name::role,
#define NPU_ADD(name, reads)                                   \
  void LayoutAdapter::Add(const npu_##name& op) {              \
    AddInAnyOrder(op, {reads}, 1, &npu_build_api::add_##name); \
  }
NPU_PLAIN_OPERATIONS(NPU_ADD, NPU_READ)
#undef NPU_ADD
#undef NPU_READ

void LayoutAdapter::Add(const npu_softmax& op) {
  AddInAnyOrder(op, {&npu_softmax::data}, 1, &npu_build_api::add_softmax);
}

void LayoutAdapter::Add(const npu_update& op) {
  AddInAnyOrder(op, {&npu_update::data, &npu_update::value, &npu_update::positions}, 2,
                &npu_build_api::add_update);
}

void LayoutAdapter::Add(const npu_concat& op) {
  const std::vector<npu_tensor> inputs(op.inputs, op.inputs + op.input_count);
  const auto accepts = [this, inputs, axis = op.axis](const Layout& layout) {
    const int64_t block = BlockOf(layout.blocks, axis);
    return std::all_of(inputs.begin(), inputs.end(), [&](npu_tensor input) {
      return CanSplit({At(input).desc.dims[axis]}, {block});
    });
  };
  const auto emit = [this, op, inputs](const Layout& layout) {
    npu_concat placed = op;
    std::vector<npu_tensor> read;
    for (npu_tensor input : inputs) read.push_back(Read(input, layout));
    placed.inputs = read.data();
    placed.axis = Inverse(layout.order)[SplitPlaces(layout.blocks, layout.rank())[op.axis]];
    placed.out = Write(op.out, layout);
    CheckAdded<npu_concat>(driver_.api.add_concat(driver_.handle, &placed));
  };
  Follow(op.out, Choose(inputs, At(op.out).rank()), emit, accepts);
}

void LayoutAdapter::Add(const npu_resize& op) {
  const auto accepts = [op](const Layout& layout) {
    return BlockOf(layout.blocks, op.axes[0]) == 1 && BlockOf(layout.blocks, op.axes[1]) == 1;
  };
  const auto emit = [this, op](const Layout& layout) {
    npu_resize placed = op;
    placed.data = Read(op.data, layout);
    for (int32_t& axis : placed.axes) {
      axis = Inverse(layout.order)[SplitPlaces(layout.blocks, layout.rank())[axis]];
    }
    placed.out = Write(op.out, layout);
    CheckAdded<npu_resize>(driver_.api.add_resize(driver_.handle, &placed));
  };
  Follow(op.out, Choose({op.data}, At(op.out).rank()), emit, accepts);
}

}  // namespace npu
