// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <algorithm>
#include <numeric>

namespace npu {
namespace {

Order Identity(int rank) {
  Order order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

bool IsIdentity(const Order& order) { return std::is_sorted(order.begin(), order.end()); }

bool IsSame(const npu_dim& a, const npu_dim& b) { return a.size == b.size && a.symbol == b.symbol; }

bool IsSame(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const npu_dim& x, const npu_dim& y) { return IsSame(x, y); });
}

bool IsOne(const npu_dim& dim) { return IsSame(dim, FixedDim(1)); }

bool IsFixed(const npu_tensor_desc& desc) {
  return std::all_of(desc.dims, desc.dims + desc.rank,
                     [](const npu_dim& dim) { return dim.symbol < 0 && dim.size > 0; });
}

npu_tensor_desc DescOf(npu_dtype dtype, const Dims& dims) {
  npu_tensor_desc desc = {};
  desc.dtype = dtype;
  desc.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), desc.dims);
  return desc;
}

npu_tensor_desc Stored(const npu_tensor_desc& desc, const Order& order) {
  return DescOf(desc.dtype, Reordered(desc.dims, order));
}

/*! \brief Order `a` of the dimensions that `b` gives: c[i] = a[b[i]]. */
Order Composed(const Order& a, const Order& b) { return Reordered(a.data(), b); }

std::string Text(const Order& order) {
  std::string text;
  for (int dim : order) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "(" + text + ")";
}

std::vector<int64_t> Sizes(const npu_tensor_desc& desc) {
  std::vector<int64_t> sizes;
  sizes.reserve(desc.rank);
  for (int i = 0; i < desc.rank; ++i) sizes.push_back(desc.dims[i].size);
  return sizes;
}

/*! \brief Two shapes of the same elements, each dimension as a product of numbered factors; in
 *  row-major order, the factors of both are 0, 1, 2, ... */
struct SharedFactors {
  std::vector<std::vector<int>> of_a, of_b;
};

std::optional<SharedFactors> Factorize(const Dims& a, const Dims& b) {
  SharedFactors factors;
  npu_dim left = FixedDim(1), right = FixedDim(1);
  const auto divides = [](const npu_dim& x, const npu_dim& y) {
    return x.size != 0 && y.size % x.size == 0 && (x.symbol < 0 || x.symbol == y.symbol);
  };
  const auto quotient = [](const npu_dim& y, const npu_dim& x) {
    return npu_dim{y.size / x.size, x.symbol < 0 ? y.symbol : -1};
  };
  for (int factor = 0;; ++factor) {
    while (IsOne(left) && factors.of_a.size() < a.size()) {
      left = a[factors.of_a.size()];
      factors.of_a.emplace_back();
    }
    while (IsOne(right) && factors.of_b.size() < b.size()) {
      right = b[factors.of_b.size()];
      factors.of_b.emplace_back();
    }
    if (IsOne(left) && IsOne(right)) return factors;
    if (IsOne(left) || IsOne(right)) return std::nullopt;
    factors.of_a.back().push_back(factor);
    factors.of_b.back().push_back(factor);
    const npu_dim x = left, y = right;
    if (!divides(x, y) && !divides(y, x)) return std::nullopt;
    left = divides(x, y) ? FixedDim(1) : quotient(x, y);
    right = divides(x, y) ? quotient(y, x) : FixedDim(1);
  }
}

std::vector<int> Sequence(const std::vector<std::vector<int>>& factors, const Order& order) {
  std::vector<int> sequence;
  for (int dim : order) sequence.insert(sequence.end(), factors[dim].begin(), factors[dim].end());
  return sequence;
}

/*! \brief Whether both orders put a tensor's elements in the same places. */
bool HasSamePlaces(const Dims& dims, const Order& a, const Order& b) {
  const auto is_one = [&](int dim) { return IsOne(dims[dim]); };
  Order x = a, y = b;
  x.erase(std::remove_if(x.begin(), x.end(), is_one), x.end());
  y.erase(std::remove_if(y.begin(), y.end(), is_one), y.end());
  return x == y;
}

}  // namespace

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

std::optional<Order> OrderOfView(const Dims& from, const Order& order, const Dims& to) {
  const Order identity = Identity(static_cast<int>(to.size()));
  if (IsIdentity(order)) return identity;
  const std::optional<SharedFactors> factors = Factorize(from, to);
  if (!factors.has_value()) return std::nullopt;
  const std::vector<int> sequence = Sequence(factors->of_a, order);
  if (Sequence(factors->of_b, identity) == sequence) return identity;
  // Each dimension goes where its first factor is; one without factors goes behind its neighbour.
  std::vector<int> places(sequence.size());
  for (size_t i = 0; i < sequence.size(); ++i) places[sequence[i]] = static_cast<int>(i);
  std::vector<int> keys;
  for (const std::vector<int>& dim : factors->of_b) {
    keys.push_back(!dim.empty() ? places[dim.front()] : keys.empty() ? -1 : keys.back());
  }
  Order result = identity;
  std::stable_sort(result.begin(), result.end(), [&](int a, int b) { return keys[a] < keys[b]; });
  if (Sequence(factors->of_b, result) != sequence) return std::nullopt;
  return result;
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
  view.source = data;
  if (source.kind == Kind::kConstant) return AddConstant(desc, source.data, source.bytes);
  if (source.kind == Kind::kInput && IsFixed(source.desc) && IsFixed(desc)) {
    view.kind = Kind::kInput;
    view.argument = source.argument;
    view.is_reshaped = true;
  }
  return Append(std::move(view));
}

npu_tensor LayoutAdapter::Read(npu_tensor tensor, const Order& order) {
  Value& value = At(tensor);
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
    case Kind::kView: {
      const std::optional<Order> from = OrderOfView(value.dims(), order, At(value.source).dims());
      if (from.has_value()) {
        form = ViewAtDriver(Read(value.source, *from), Stored(value.desc, order));
      } else {
        Read(tensor, Known(tensor).value_or(Identity(value.rank())));
        form = Convert(value, order);
      }
      break;
    }
    case Kind::kComputed:
      if (!value.pending.empty()) {
        EmitPending(tensor, order);
        return value.forms.at(order);
      }
      if (value.forms.empty()) throw Refusal(label_ + ": reads a tensor before it is written");
      form = Convert(value, order);
  }
  return value.forms[order] = form;
}

npu_tensor LayoutAdapter::ReadAligned(npu_tensor tensor, const Order& order) {
  const Value& value = At(tensor);
  if (IsIdentity(order)) return Read(tensor, Identity(value.rank()));
  const size_t rank = order.size();
  if (static_cast<size_t>(value.rank()) == rank) return Read(tensor, order);
  auto known = aligned_.find(tensor);
  if (known == aligned_.end()) {
    Dims dims = value.dims();
    dims.insert(dims.begin(), rank - dims.size(), FixedDim(1));
    known = aligned_.emplace(tensor, AddView(tensor, DescOf(value.desc.dtype, dims))).first;
  }
  return Read(known->second, order);
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
  if (value.is_reshaped) port.dims = Sizes(value.desc);
  ports_.inputs.push_back(std::move(port));
  return form;
}

npu_tensor LayoutAdapter::ReadConstant(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  const std::vector<int64_t> sizes = Sizes(value.desc);
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
  Order order = Identity(value.rank());
  if (like.has_value() && At(*like).rank() == value.rank()) order = Known(*like).value_or(order);
  const bool is_new = value.kind == Kind::kComputed && value.forms.empty() && value.pending.empty();
  return is_new ? Write(tensor, order) : Read(tensor, order);
}

// ---- Which order ----

std::optional<Order> LayoutAdapter::Known(npu_tensor tensor) {
  const Value& value = At(tensor);
  const Order identity = Identity(value.rank());
  switch (value.kind) {
    case Kind::kInput:
    case Kind::kConstant:
      return std::nullopt;
    case Kind::kComputed:
      if (value.forms.empty()) return std::nullopt;
      return value.forms.count(identity) != 0 ? identity : value.forms.begin()->first;
    case Kind::kView: {
      const std::optional<Order> from = Known(value.source);
      if (!from.has_value()) return std::nullopt;
      return OrderOfView(At(value.source).dims(), *from, value.dims()).value_or(identity);
    }
    case Kind::kPermuted: {
      // The readers decide whether a row-major tensor is transposed.
      const std::optional<Order> from = Known(value.source);
      if (!from.has_value() || IsIdentity(*from)) return std::nullopt;
      return Composed(Inverse(value.permutation), *from);
    }
  }
  return std::nullopt;
}

std::optional<Order> LayoutAdapter::Choose(const std::vector<npu_tensor>& operands, int rank) {
  std::optional<Order> chosen;
  int most = -1;
  for (npu_tensor operand : operands) {
    if (operand < 0 || At(operand).rank() != rank) continue;
    const std::optional<Order> known = Known(operand);
    if (!known.has_value()) continue;
    // An operand in a permuted order decides; next, one that any other order would transpose.
    const bool is_identity = IsIdentity(*known);
    const bool is_free = HasSamePlaces(At(operand).dims(), *known, Identity(rank));
    const int weight = is_identity ? 1 : is_free ? 0 : 2;
    if (weight > most) chosen = known;
    most = std::max(most, weight);
  }
  return chosen;
}

void LayoutAdapter::Follow(npu_tensor out, std::optional<Order> wish,
                           std::function<void(const Order&)> emit) {
  const std::optional<Order> written = Known(out);
  if (written.has_value()) return emit(*written);
  if (!wish.has_value()) return At(out).pending.push_back({label_, std::move(emit)});
  EmitPending(out, *wish);
  emit(*wish);
}

void LayoutAdapter::EmitPending(npu_tensor tensor, const Order& order) {
  std::vector<Pending> pending = std::move(At(tensor).pending);
  At(tensor).pending.clear();
  if (pending.empty()) return;
  const std::string label = label_;
  for (const Pending& operation : pending) {
    SetLabel(operation.label);
    operation.emit(order);
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

const npu_vector_program* LayoutAdapter::Place(Program* program, const Order& order) {
  if (!program->is_there) return nullptr;
  for (npu_tensor& input : program->inputs) {
    if (input >= 0) input = ReadAligned(input, order);
  }
  for (npu_step& step : program->steps) {
    for (int32_t i = 0; i < step.operand_count; ++i) {
      npu_operand& operand = step.operands[i];
      if (operand.kind == NPU_OPERAND_TENSOR) operand.index = ReadAligned(operand.index, order);
    }
  }
  program->view.instructions = program->instructions.data();
  program->view.inputs = program->inputs.data();
  program->view.steps = program->steps.data();
  return &program->view;
}

std::pair<Order, Order> LayoutAdapter::Ask(npu_operation operation, npu_tensor data,
                                           npu_tensor weight, npu_tensor out, int64_t groups) {
  npu_layout layout = {};
  layout.size = sizeof(layout);
  layout.operation = operation;
  layout.data = At(data).desc;
  if (weight >= 0) layout.weight = At(weight).desc;
  layout.out = At(out).desc;
  layout.groups = groups;
  std::iota(layout.order, layout.order + NPU_MAX_RANK, 0);
  std::iota(layout.weight_order, layout.weight_order + NPU_MAX_RANK, 0);
  Check(driver_.api.layout(driver_.handle, &layout));
  Order order(layout.order, layout.order + layout.data.rank);
  Order weight_order(layout.weight_order, layout.weight_order + layout.weight.rank);
  for (const Order& given : {order, weight_order}) {
    if (IsPermutation(given)) continue;
    throw Refusal(label_ + ": the driver " + driver_.api.name + " declares the layout " +
                  Text(given) + ", which is not a permutation of " + std::to_string(given.size()) +
                  " dimensions");
  }
  return {order, weight_order};
}

void LayoutAdapter::Add(const npu_matmul& op) {
  npu_matmul placed = op;
  Program epilogue(op.epilogue);
  const Order order = Identity(At(op.out).rank());
  placed.a = Read(op.a, Identity(At(op.a).rank()));
  placed.b = Read(op.b, Identity(At(op.b).rank()));
  if (op.b_block != 0) {
    placed.b_scales = Read(op.b_scales, Identity(2));
    if (op.b_zero_points >= 0) placed.b_zero_points = Read(op.b_zero_points, Identity(2));
  }
  placed.epilogue = Place(&epilogue, order);
  placed.out = Write(op.out, order);
  Check(driver_.api.add_matmul(driver_.handle, &placed));
}

void LayoutAdapter::Add(const npu_convolution& op) {
  npu_convolution placed = op;
  Program epilogue(op.epilogue);
  const auto [order, weight_order] =
      Ask(NPU_OPERATION_CONVOLUTION, op.data, op.weight, op.out, op.groups);
  placed.data = Read(op.data, order);
  placed.weight = Read(op.weight, weight_order);
  placed.epilogue = Place(&epilogue, order);
  placed.out = Write(op.out, order);
  Check(driver_.api.add_convolution(driver_.handle, &placed));
}

void LayoutAdapter::Add(const npu_pool& op) {
  npu_pool placed = op;
  const Order order = Ask(NPU_OPERATION_POOL, op.data, -1, op.out, 1).first;
  placed.data = Read(op.data, order);
  placed.out = Write(op.out, order);
  Check(driver_.api.add_pool(driver_.handle, &placed));
}

void LayoutAdapter::Add(const npu_elementwise& op) {
  const Program program(op.program);
  Follow(op.out, Choose(program.inputs, At(op.out).rank()),
         [this, op, program](const Order& order) {
           npu_elementwise placed = op;
           Program copy = program;
           placed.program = Place(&copy, order);
           placed.out = Write(op.out, order);
           Check(driver_.api.add_elementwise(driver_.handle, &placed));
         });
}

void LayoutAdapter::Add(const npu_reduce& op) {
  const int rank = At(op.data).rank();
  const bool keeps = At(op.out).rank() == rank;
  // The dimensions of the data that the result keeps, and their numbers in it.
  Order kept, numbers(rank, -1);
  for (int i = 0; i < rank; ++i) {
    if (!keeps && (op.axes >> i & 1u) != 0) continue;
    numbers[i] = static_cast<int>(kept.size());
    kept.push_back(i);
  }
  std::optional<Order> wish = Choose({op.data}, rank);
  if (wish.has_value()) {
    Order out;
    for (int dim : *wish) {
      if (numbers[dim] >= 0) out.push_back(numbers[dim]);
    }
    wish = out;
  }
  const Program epilogue(op.epilogue);
  Follow(op.out, wish, [this, op, rank, numbers, kept, epilogue](const Order& order) {
    // Keep the data's order if it yields this order; otherwise put the reduced dimensions last.
    Order of_data = Known(op.data).value_or(Identity(rank));
    Order left;
    for (int dim : of_data) {
      if (numbers[dim] >= 0) left.push_back(numbers[dim]);
    }
    if (left != order) {
      of_data = Composed(kept, order);
      for (int i = 0; i < rank; ++i) {
        if (numbers[i] < 0) of_data.push_back(i);
      }
    }
    npu_reduce placed = op;
    placed.data = Read(op.data, of_data);
    placed.axes = 0;
    for (int i = 0; i < rank; ++i) placed.axes |= (op.axes >> of_data[i] & 1u) << i;
    Program copy = epilogue;
    placed.epilogue = Place(&copy, order);
    placed.out = Write(op.out, order);
    Check(driver_.api.add_reduce(driver_.handle, &placed));
  });
}

void LayoutAdapter::Add(const npu_copy& op) {
  Value& out = At(op.out);
  const Dims from = At(op.data).dims(), to = out.dims();
  const int rank = out.rank();
  const Order permutation(op.permutation, op.permutation + rank);
  bool is_whole = out.forms.empty() && out.pending.empty();
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
  std::optional<Order> wish = Known(op.data);
  if (wish.has_value() && !IsIdentity(*wish)) wish = Composed(Inverse(permutation), *wish);
  Follow(op.out, wish, [this, op, rank, permutation](const Order& order) {
    // No permutation if that costs nothing; otherwise the data's order.
    const Order wanted = Composed(permutation, order);
    const Order of_data =
        At(op.data).forms.count(wanted) != 0 ? wanted : Known(op.data).value_or(wanted);
    const Order places = Inverse(of_data);
    npu_copy placed = op;
    placed.data = Read(op.data, of_data);
    placed.out = Write(op.out, order);
    for (int i = 0; i < rank; ++i) {
      placed.permutation[i] = places[permutation[order[i]]];
      placed.data_offset[i] = op.data_offset[of_data[i]];
      placed.data_step[i] = op.data_step[of_data[i]];
      placed.out_offset[i] = op.out_offset[order[i]];
      placed.out_step[i] = op.out_step[order[i]];
    }
    Check(driver_.api.add_copy(driver_.handle, &placed));
  });
}

template <typename Op>
void LayoutAdapter::AddAlongAxis(const Op& op, const std::vector<npu_tensor>& operands,
                                 std::function<void(Op&, const Order&)> read,
                                 npu_status (*npu_build_api::*function)(npu_builder*, const Op*)) {
  Follow(op.out, Choose(operands, At(op.out).rank()),
         [this, op, read, function](const Order& order) {
           Op placed = op;
           placed.data = Read(op.data, order);
           if (read) read(placed, order);
           placed.axis = Inverse(order)[op.axis];
           placed.out = Write(op.out, order);
           Check((driver_.api.*function)(driver_.handle, &placed));
         });
}

void LayoutAdapter::Add(const npu_gather& op) {
  const bool is_elementwise = op.elementwise != 0;
  const int indices_rank = At(op.indices).rank();
  if (is_elementwise || indices_rank == 1) {
    std::vector<npu_tensor> operands = {op.data};
    if (is_elementwise) operands.push_back(op.indices);
    return AddAlongAxis<npu_gather>(
        op, operands,
        [this, op, is_elementwise](npu_gather& placed, const Order& order) {
          placed.indices = Read(op.indices, is_elementwise ? order : Identity(1));
        },
        &npu_build_api::add_gather);
  }
  npu_gather placed = op;
  placed.data = Read(op.data, Identity(At(op.data).rank()));
  placed.indices = Read(op.indices, Identity(indices_rank));
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
  Follow(op.out, Choose({op.data}, At(op.out).rank()), [this, op](const Order& order) {
    npu_lookup placed = op;
    placed.data = Read(op.data, order);
    placed.table = Read(op.table, Identity(1));
    placed.out = Write(op.out, order);
    Check(driver_.api.add_lookup(driver_.handle, &placed));
  });
}

// ---- The border ----

void LayoutAdapter::MarkOutput(npu_tensor tensor) {
  const auto argument = static_cast<int64_t>(ports_.outputs.size());
  // The elements of a view are permuted like those of the tensor it shows.
  npu_tensor shown = tensor;
  while (At(shown).kind == Kind::kView && IsFixed(At(shown).desc) &&
         IsFixed(At(At(shown).source).desc)) {
    shown = At(shown).source;
  }
  const Value& value = At(shown);
  Port port{argument, std::nullopt, Known(shown).value_or(Identity(value.rank()))};
  if (shown != tensor) port.dims = Sizes(value.desc);
  Check(driver_.api.mark_output(driver_.handle, Read(shown, port.order)));
  ports_.outputs.push_back(std::move(port));
}

void LayoutAdapter::AddUnreadInputs() {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
    if (value.kind != Kind::kInput || value.is_reshaped) continue;
    const bool is_read =
        std::any_of(ports_.inputs.begin(), ports_.inputs.end(),
                    [&](const Port& port) { return port.argument == value.argument; });
    if (!is_read) Read(static_cast<npu_tensor>(i), Identity(value.rank()));
  }
}

}  // namespace npu
