// SPDX-License-Identifier: Apache-2.0
#include "layout_adapter.h"

#include <algorithm>
#include <numeric>

namespace npu {
void DriverBuilder::Check(npu_status status, const std::string& who) const {
  if (status == NPU_OK) return;
  const char* reason = api.error == nullptr ? nullptr : api.error(handle);
  // Running out of memory for a model is not a driver failure either.
  bool refused = status == NPU_DECLINED || status == NPU_OUT_OF_MEMORY;
  throw Refusal(who + (refused ? ": " : ": the driver failed: ") +
                (reason == nullptr ? "no reason given" : reason));
}

void DriverBuilder::Require(bool has, const char* function, const std::string& who) const {
  if (has) return;
  throw Refusal(who + ": the driver " + api.name + " has no " + function);
}

// ---- Tensors ----

LayoutAdapter::Value& LayoutAdapter::At(npu_tensor tensor) {
  return values_.at(static_cast<size_t>(tensor));
}

npu_tensor LayoutAdapter::Append(Value value) {
  values_.push_back(std::move(value));
  return static_cast<npu_tensor>(values_.size() - 1);
}

void LayoutAdapter::SetLabel(const std::string& label) {
  label_ = label;
  if (driver_.api.set_label != nullptr) {
    Check(driver_.api.set_label(driver_.handle, label.c_str()));
  }
}

npu_tensor LayoutAdapter::AddInput(const npu_tensor_desc& desc, int64_t argument) {
  Value value(Kind::kInput, desc);
  value.argument = argument;
  return Append(std::move(value));
}

npu_tensor LayoutAdapter::AddConstant(const npu_tensor_desc& desc, const void* data, size_t bytes) {
  Value value(Kind::kConstant, desc);
  value.data = data;
  value.bytes = bytes;
  return Append(std::move(value));
}

npu_tensor LayoutAdapter::AddTensor(const npu_tensor_desc& desc) {
  return Append(Value(Kind::kComputed, desc));
}

npu_tensor LayoutAdapter::AddView(npu_tensor data, const npu_tensor_desc& desc) {
  const Value& source = At(data);
  Value view(Kind::kView, desc);
  if (IsSame(source.dims(), view.dims())) return data;
  const bool shows = source.kind == Kind::kView || source.kind == Kind::kBlocked;
  if (shows && IsSame(At(source.source).dims(), view.dims())) return source.source;
  view.source = data;
  if (source.kind == Kind::kConstant) return AddConstant(desc, source.data, source.bytes);
  const bool runtime_can = PortSizes(source.desc).has_value() && PortSizes(desc).has_value();
  if (source.kind == Kind::kInput && runtime_can) {
    view.kind = Kind::kInput;
    view.argument = source.argument;
    view.is_reshaped = true;
  }
  return Append(std::move(view));
}

npu_tensor LayoutAdapter::InBlocks(npu_tensor tensor, const Blocks& blocks) {
  const Value& value = At(tensor);
  if (value.kind == Kind::kBlocked && value.blocks == blocks) return value.source;
  return AddView(tensor, DescOf(value.desc.dtype, Split(value.dims(), blocks)));
}

npu_tensor LayoutAdapter::Read(npu_tensor tensor, const Layout& layout) {
  const Value& value = At(tensor);
  if (!value.pending.empty()) EmitPending(tensor, layout);
  if (!layout.has_blocks()) return Read(tensor, layout.order);
  if (value.kind == Kind::kPermuted) {
    return Read(value.source, Permuted(layout, Inverse(value.permutation)));
  }
  const auto known = in_blocks_.find({tensor, layout.blocks});
  npu_tensor split = known == in_blocks_.end() ? InBlocks(tensor, layout.blocks) : known->second;
  in_blocks_[{tensor, layout.blocks}] = split;
  return Read(split, layout.order);
}

npu_tensor LayoutAdapter::Read(npu_tensor tensor, const Order& order) {
  Value& value = At(tensor);
  if (!value.pending.empty()) EmitPending(tensor, Layout{{}, order});
  auto known = value.forms.find(order);
  if (known != value.forms.end()) return known->second;
  npu_tensor form = -1;
  switch (value.kind) {
    case Kind::kInput:
      form = ReadInput(value, order);
      break;
    case Kind::kConstant:
      form = ReadConstant(value, order);
      break;
    case Kind::kPermuted:
      form = Read(value.source, Composed(value.permutation, order));
      break;
    case Kind::kBlocked:
      form = ViewAtDriver(Read(value.source, SplitOrder(order, value.blocks)),
                          Stored(value.desc, order));
      break;
    case Kind::kView: {
      const std::optional<Order> from = OrderOfView(value.dims(), order, At(value.source).dims());
      if (from.has_value()) {
        form = ViewAtDriver(Read(value.source, *from), Stored(value.desc, order));
      } else {
        const std::optional<Layout> now = Known(tensor);
        Read(tensor, now.has_value() ? now->order : Identity(value.rank()));
        form = Convert(value, order);
      }
      break;
    }
    case Kind::kComputed:
      if (value.forms.empty()) throw Refusal(label_ + ": reads a tensor before it is written");
      form = Convert(value, order);
  }
  return value.forms[order] = form;
}

npu_tensor LayoutAdapter::ReadAligned(npu_tensor tensor, const Layout& layout) {
  const Value& value = At(tensor);
  if (!layout.has_blocks() && IsIdentity(layout.order)) return Read(tensor);
  const int rank = layout.rank();
  if (value.rank() == rank) return Read(tensor, layout);
  auto known = aligned_.find(tensor);
  if (known == aligned_.end()) {
    Dims dims = value.dims();
    dims.insert(dims.begin(), static_cast<size_t>(rank) - dims.size(), FixedDim(1));
    known = aligned_.emplace(tensor, AddView(tensor, DescOf(value.desc.dtype, dims))).first;
  }
  return Read(known->second, layout);
}

npu_tensor LayoutAdapter::Write(npu_tensor tensor, const Layout& layout) {
  if (!layout.has_blocks()) return Write(tensor, layout.order);
  Value& value = At(tensor);
  if (value.kind == Kind::kComputed && value.forms.empty()) {
    value.source = AddTensor(DescOf(value.desc.dtype, Split(value.dims(), layout.blocks)));
    value.kind = Kind::kBlocked;
    value.blocks = layout.blocks;
  }
  if (value.kind != Kind::kBlocked || value.blocks != layout.blocks) {
    throw Refusal(label_ + ": its lowering writes to a tensor that has other blocks");
  }
  return Write(value.source, layout.order);
}

npu_tensor LayoutAdapter::Write(npu_tensor tensor, const Order& order) {
  Value& value = At(tensor);
  if (value.kind != Kind::kComputed) {
    throw Refusal(label_ + ": its lowering writes to a view, an input or a constant");
  }
  auto known = value.forms.find(order);
  if (known != value.forms.end()) return known->second;
  const npu_tensor_desc desc = Stored(value.desc, order);
  npu_tensor form = -1;
  Check(driver_.api.add_tensor(driver_.handle, &desc, &form));
  return value.forms[order] = form;
}

npu_tensor LayoutAdapter::ReadInput(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  npu_tensor form = -1;
  Check(driver_.api.add_input(driver_.handle, &desc, &form));
  Port port{value.argument, std::nullopt, order};
  if (value.is_reshaped) port.dims = PortSizes(value.desc);
  ports_.inputs.push_back(std::move(port));
  return form;
}

npu_tensor LayoutAdapter::ReadConstant(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  std::vector<int64_t> sizes;
  for (const npu_dim& dim : value.dims()) sizes.push_back(dim.size);
  const void* data = value.data;
  if (!KeepsPlaces(sizes.data(), order)) {
    size_t element = value.bytes;
    for (int64_t size : sizes) element /= static_cast<size_t>(std::max<int64_t>(size, 1));
    std::vector<uint64_t>& permuted = constants_->emplace_back((value.bytes + 7) / 8);
    Permute(sizes.data(), order, element, data, permuted.data());
    data = permuted.data();
  }
  npu_tensor form = -1;
  driver_.Require(driver_.api.add_constant != nullptr, "add_constant", label_);
  Check(driver_.api.add_constant(driver_.handle, &desc, data, value.bytes, &form));
  return form;
}

npu_tensor LayoutAdapter::Convert(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  for (const auto& [other, form] : value.forms) {
    if (HasSamePlaces(value.dims(), other, order)) return ViewAtDriver(form, desc);
  }
  auto from = value.forms.find(Identity(value.rank()));
  if (from == value.forms.end()) from = value.forms.begin();
  const std::string who = label_ + ": a tensor has to be transposed from the order " +
                          Text(from->first) + " of its dimensions to " + Text(order);
  driver_.Require(driver_.api.add_copy != nullptr, "add_copy", who);
  npu_copy copy = {};
  copy.size = sizeof(copy);
  copy.data = from->second;
  driver_.Check(driver_.api.add_tensor(driver_.handle, &desc, &copy.out), who);
  const Order places = Inverse(from->first);
  for (int i = 0; i < NPU_MAX_RANK; ++i) {
    copy.permutation[i] = i < value.rank() ? places[order[i]] : i;
    copy.data_step[i] = copy.out_step[i] = 1;
  }
  driver_.Check(driver_.api.add_copy(driver_.handle, &copy), who);
  return copy.out;
}

npu_tensor LayoutAdapter::ViewAtDriver(npu_tensor tensor, const npu_tensor_desc& desc) {
  npu_tensor view = -1;
  driver_.Require(driver_.api.add_view != nullptr, "add_view", label_);
  Check(driver_.api.add_view(driver_.handle, tensor, &desc, &view));
  return view;
}

npu_tensor LayoutAdapter::AtDriver(npu_tensor tensor, std::optional<npu_tensor> like) {
  const Value& value = At(tensor);
  std::optional<Layout> layout;
  if (like.has_value() && At(*like).rank() == value.rank()) layout = Known(*like);
  if (!layout.has_value() || !CanSplit(value.dims(), layout->blocks)) {
    layout = Layout{{}, Identity(value.rank())};
  }
  const bool is_new = value.kind == Kind::kComputed && value.forms.empty() && value.pending.empty();
  return is_new ? Write(tensor, *layout) : Read(tensor, *layout);
}

// ---- Which layout ----

Layout LayoutAdapter::Permuted(const Layout& layout, const Order& permutation) {
  if (!layout.has_blocks()) return {{}, Composed(Inverse(permutation), layout.order)};
  const Order pieces = SplitOrder(permutation, layout.blocks);
  return {Reordered(layout.blocks.data(), permutation), Composed(Inverse(pieces), layout.order)};
}

std::optional<Layout> LayoutAdapter::Written(npu_tensor tensor) {
  const Value& value = At(tensor);
  if (value.kind == Kind::kBlocked)
    return Layout{value.blocks, Written(value.source).value().order};
  if (value.kind != Kind::kComputed || value.forms.empty()) return std::nullopt;
  const Order identity = Identity(value.rank());
  return Layout{{}, value.forms.count(identity) != 0 ? identity : value.forms.begin()->first};
}

bool LayoutAdapter::HasForm(npu_tensor tensor, const Layout& layout) {
  const Value& value = At(tensor);
  if (!layout.has_blocks()) return value.forms.count(layout.order) != 0;
  if (value.kind != Kind::kBlocked || value.blocks != layout.blocks) return false;
  return HasForm(value.source, Layout{{}, layout.order});
}

std::optional<Layout> LayoutAdapter::Known(npu_tensor tensor) {
  const Value& value = At(tensor);
  switch (value.kind) {
    case Kind::kInput:
    case Kind::kConstant:
      return std::nullopt;
    case Kind::kComputed: {
      const bool has_wish = std::any_of(value.pending.begin(), value.pending.end(),
                                        [](const Pending& op) { return op.wish.has_value(); });
      return has_wish ? LayoutOfPending(value, std::nullopt) : Written(tensor);
    }
    case Kind::kBlocked: {
      const Layout written = Written(tensor).value();
      const std::optional<Order> whole =
          OrderOfView(At(value.source).dims(), written.order, value.dims());
      return whole.has_value() ? Layout{{}, *whole} : written;
    }
    case Kind::kView: {
      const std::optional<Layout> from = Known(value.source);
      if (!from.has_value()) return std::nullopt;
      const Dims stored = Split(At(value.source).dims(), from->blocks);
      return Layout{
          {}, OrderOfView(stored, from->order, value.dims()).value_or(Identity(value.rank()))};
    }
    case Kind::kPermuted: {
      // The readers decide whether a row-major tensor is transposed.
      const std::optional<Layout> from = Known(value.source);
      if (!from.has_value() || (!from->has_blocks() && IsIdentity(from->order)))
        return std::nullopt;
      return Permuted(*from, value.permutation);
    }
  }
  return std::nullopt;
}

std::optional<Layout> LayoutAdapter::Choose(const std::vector<npu_tensor>& operands, int rank) {
  std::optional<Layout> chosen;
  int most = -1;
  for (npu_tensor operand : operands) {
    if (operand < 0 || At(operand).rank() != rank) continue;
    const std::optional<Layout> known = Known(operand);
    if (!known.has_value()) continue;
    // An operand in a layout of its own decides; next, one that any other order would transpose.
    const bool is_plain = !known->has_blocks();
    const bool is_identity = is_plain && IsIdentity(known->order);
    const bool is_free =
        is_plain && HasSamePlaces(At(operand).dims(), known->order, Identity(rank));
    const int weight = is_identity ? 1 : is_free ? 0 : 2;
    if (weight > most) chosen = known;
    most = std::max(most, weight);
  }
  return chosen;
}

void LayoutAdapter::Follow(npu_tensor out, std::optional<Layout> wish, Emit emit,
                           const Accepts& accepts) {
  const std::optional<Layout> written = Written(out);
  if (written.has_value()) {
    if (!accepts || accepts(*written)) return emit(*written);
    throw Refusal(label_ + ": its lowering writes a part of a tensor after the tensor was read");
  }
  const bool has_wish = wish.has_value();
  std::vector<Pending>& pending = At(out).pending;
  pending.push_back({label_, std::move(wish), accepts, std::move(emit)});
  if (!has_wish) return;
  // What writes a part of a tensor waits for the other parts, which may cut a block.
  const bool waits = std::any_of(pending.begin(), pending.end(), [](const Pending& op) {
    return !op.wish.has_value() || op.wish->has_blocks();
  });
  if (!accepts || !waits) EmitPending(out, std::nullopt);
}

Layout LayoutAdapter::LayoutOfPending(const Value& value, const std::optional<Layout>& reader) {
  const auto suits = [&value](const std::optional<Layout>& layout) {
    return layout.has_value() && CanSplit(value.dims(), layout->blocks) &&
           std::all_of(value.pending.begin(), value.pending.end(),
                       [&](const Pending& op) { return !op.accepts || op.accepts(*layout); });
  };
  for (const Pending& op : value.pending) {
    if (suits(op.wish)) return *op.wish;
  }
  return suits(reader) ? *reader : Layout{{}, Identity(value.rank())};
}

void LayoutAdapter::EmitPending(npu_tensor tensor, const std::optional<Layout>& reader) {
  const Layout layout = LayoutOfPending(At(tensor), reader);
  std::vector<Pending> pending = std::move(At(tensor).pending);
  At(tensor).pending.clear();
  const std::string label = label_;
  for (const Pending& operation : pending) {
    SetLabel(operation.label);
    operation.emit(layout);
  }
  SetLabel(label);
}

// ---- Operations ----

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
    const bool is_fixed = dims[i].symbol < 0;
    if (block == 0 || block == 1) continue;
    if (block > 1 && is_fixed && CanSplit({dims[i]}, {block})) continue;
    throw Refusal(
        driver + "blocks of " + std::to_string(block) + " for dimension " + std::to_string(i) +
        (block < 0   ? "; 0 is for none"
         : !is_fixed ? ", whose size is known only at the call"
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

void LayoutAdapter::Add(const npu_convolution& op) {
  npu_convolution placed = op;
  Program epilogue(op.epilogue);
  const Layouts layouts = Ask(NPU_OPERATION_CONVOLUTION, op.data, op.weight, op.out, op.groups);
  placed.data = Read(op.data, layouts.data);
  placed.weight = Read(op.weight, layouts.weight);
  placed.epilogue = Place(&epilogue, layouts.out);
  placed.out = Write(op.out, layouts.out);
  Check(driver_.api.add_convolution(driver_.handle, &placed));
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
    // Blocks of dimensions that the result does not have are none of it.
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
    const auto place = [](const Layout& stored, int rank, const int64_t* offset,
                          const int64_t* step, int64_t* placed_offset, int64_t* placed_step) {
      const std::vector<int> first = SplitPlaces(stored.blocks, rank);
      const Order where = Inverse(stored.order);
      for (int dim = 0; dim < rank; ++dim) {
        placed_offset[where[first[dim]]] = offset[dim] / BlockOf(stored.blocks, dim);
        placed_step[where[first[dim]]] = step[dim];
        if (first[dim + 1] - first[dim] == 1) continue;
        placed_offset[where[first[dim] + 1]] = 0;
        placed_step[where[first[dim] + 1]] = 1;
      }
    };
    const int rank = static_cast<int>(permutation.size());
    place(of_data, rank, op.data_offset, op.data_step, placed.data_offset, placed.data_step);
    place(layout, rank, op.out_offset, op.out_step, placed.out_offset, placed.out_step);
    Check(driver_.api.add_copy(driver_.handle, &placed));
  };
  Follow(op.out, wish, emit, accepts);
}

template <typename Op>
void LayoutAdapter::AddAlongAxis(const Op& op, const std::vector<npu_tensor>& operands,
                                 std::function<void(Op&, const Layout&)> read,
                                 npu_status (*npu_build_api::*function)(npu_builder*, const Op*)) {
  const auto emit = [this, op, read, function](const Layout& layout) {
    Op placed = op;
    placed.data = Read(op.data, layout);
    if (read) read(placed, layout);
    placed.axis = Inverse(layout.order)[SplitPlaces(layout.blocks, layout.rank())[op.axis]];
    placed.out = Write(op.out, layout);
    Check((driver_.api.*function)(driver_.handle, &placed));
  };
  const auto accepts = [axis = op.axis](const Layout& layout) {
    return BlockOf(layout.blocks, axis) == 1;
  };
  Follow(op.out, Choose(operands, At(op.out).rank()), emit, accepts);
}

void LayoutAdapter::Add(const npu_gather& op) {
  const bool is_elementwise = op.elementwise != 0;
  if (is_elementwise || At(op.indices).rank() == 1) {
    std::vector<npu_tensor> operands = {op.data};
    if (is_elementwise) operands.push_back(op.indices);
    return AddAlongAxis<npu_gather>(
        op, operands,
        [this, op, is_elementwise](npu_gather& placed, const Layout& layout) {
          placed.indices = is_elementwise ? Read(op.indices, layout) : Read(op.indices);
        },
        &npu_build_api::add_gather);
  }
  npu_gather placed = op;
  placed.data = Read(op.data);
  placed.indices = Read(op.indices);
  placed.out = Write(op.out, Identity(At(op.out).rank()));
  Check(driver_.api.add_gather(driver_.handle, &placed));
}

void LayoutAdapter::Add(const npu_scan& op) {
  AddAlongAxis<npu_scan>(op, {op.data}, nullptr, &npu_build_api::add_scan);
}

void LayoutAdapter::Add(const npu_order& op) {
  AddAlongAxis<npu_order>(op, {op.data}, nullptr, &npu_build_api::add_order);
}

void LayoutAdapter::Add(const npu_lookup& op) {
  Follow(op.out, Choose({op.data}, At(op.out).rank()), [this, op](const Layout& layout) {
    npu_lookup placed = op;
    placed.data = Read(op.data, layout);
    placed.table = Read(op.table);
    placed.out = Write(op.out, layout);
    Check(driver_.api.add_lookup(driver_.handle, &placed));
  });
}

// ---- The border ----

void LayoutAdapter::MarkOutput(npu_tensor tensor) {
  const auto argument = static_cast<int64_t>(ports_.outputs.size());
  // The elements of a view are permuted like those of the tensor it shows.
  npu_tensor shown = tensor;
  while (At(shown).kind == Kind::kView && PortSizes(At(shown).desc).has_value() &&
         PortSizes(At(At(shown).source).desc).has_value()) {
    shown = At(shown).source;
  }
  const Value& value = At(shown);
  Layout layout = Known(shown).value_or(Layout{{}, Identity(value.rank())});
  const auto stored = [&] { return DescOf(value.desc.dtype, Split(value.dims(), layout.blocks)); };
  if (!PortSizes(stored()).has_value() && layout.has_blocks())
    layout = {{}, Identity(value.rank())};
  Port port{argument, std::nullopt, layout.order};
  if (shown != tensor || layout.has_blocks()) port.dims = PortSizes(stored());
  Check(driver_.api.mark_output(driver_.handle, Read(shown, layout)));
  ports_.outputs.push_back(std::move(port));
}

void LayoutAdapter::AddUnreadInputs() {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
    if (value.kind != Kind::kInput || value.is_reshaped) continue;
    const bool is_read =
        std::any_of(ports_.inputs.begin(), ports_.inputs.end(),
                    [&](const Port& port) { return port.argument == value.argument; });
    if (!is_read) Read(static_cast<npu_tensor>(i));
  }
}

}  // namespace npu
