// SPDX-License-Identifier: Apache-2.0
#include "layout_adapter.h"

#include <algorithm>

namespace npu {
namespace {

std::vector<int64_t> SizesOf(const npu_tensor_desc& desc) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < desc.rank; ++i) sizes.push_back(desc.dims[i].size);
  return sizes;
}

/*! \brief How large an element is of a tensor that has so many bytes. */
size_t ElementBytes(const std::vector<int64_t>& sizes, size_t bytes) {
  for (int64_t size : sizes) bytes /= static_cast<size_t>(std::max<int64_t>(size, 1));
  return bytes;
}

}  // namespace

// ---- Tensors ----

LayoutAdapter::Value& LayoutAdapter::At(npu_tensor tensor) {
  return values_.at(static_cast<size_t>(tensor));
}

npu_tensor LayoutAdapter::Append(Value value) {
  values_.push_back(std::move(value));
  return static_cast<npu_tensor>(values_.size() - 1);
}

npu_tensor LayoutAdapter::AddInput(const npu_tensor_desc& desc, int64_t argument,
                                   const std::string&) {
  Value value(Kind::kInput, desc);
  value.argument = argument;
  return Append(std::move(value));
}

npu_tensor LayoutAdapter::AddConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                                      const std::string&) {
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
  if (source.scales != nullptr) {
    const std::optional<Scales> seen = ScalesOfView(*source.scales, source.dims(), view.dims());
    if (!seen.has_value()) {
      throw Refusal(label_ + ": a dimension with a scale for each index is split or joined");
    }
    view.scales = std::make_shared<const Scales>(*seen);
  }
  if (IsSame(source.dims(), view.dims())) return data;
  const bool shows = source.kind == Kind::kView || source.kind == Kind::kBlocked;
  if (shows && IsSame(At(source.source).dims(), view.dims())) return source.source;
  view.source = data;
  if (source.kind == Kind::kConstant) {
    Value constant(Kind::kConstant, desc);
    constant.data = source.data;
    constant.bytes = source.bytes;
    constant.scales = view.scales;
    return Append(std::move(constant));
  }
  const bool runtime_can = PortSizes(source.desc).has_value() && PortSizes(desc).has_value();
  if (source.kind == Kind::kInput && runtime_can) {
    view.kind = Kind::kInput;
    view.argument = source.argument;
    view.is_reshaped = true;
    view.samples = source.samples;
  }
  return Append(std::move(view));
}

npu_tensor LayoutAdapter::InBlocks(npu_tensor tensor, const Blocks& blocks) {
  const Value& value = At(tensor);
  if (value.kind == Kind::kBlocked && value.blocks == blocks) return value.source;
  auto known = in_blocks_.find({tensor, blocks});
  if (known == in_blocks_.end()) {
    const Dims dims = Split(value.dims(), blocks);
    const npu_tensor view = AddView(tensor, DescOf(value.desc.dtype, dims));
    known = in_blocks_.emplace(std::make_pair(tensor, blocks), view).first;
  }
  return known->second;
}

npu_tensor LayoutAdapter::Read(npu_tensor tensor, const Layout& layout) {
  const Value& value = At(tensor);
  if (!value.pending.empty()) EmitPending(tensor, layout);
  if (!layout.has_blocks()) return Read(tensor, layout.order);
  if (value.kind == Kind::kPermuted) {
    return Read(value.source, Permuted(layout, Inverse(value.permutation)));
  }
  return Read(InBlocks(tensor, layout.blocks), layout.order);
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
    case Kind::kView: {
      const std::optional<Order> from =
          value.kind == Kind::kBlocked ? SplitOrder(order, value.blocks)
                                       : OrderOfView(value.dims(), order, At(value.source).dims());
      if (from.has_value()) {
        form = ViewAtDriver(Read(value.source, *from), Stored(value.desc, order));
        DescribeForm(form, value, order);
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
    At(value.source).scales = value.scales;
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
  DescribeForm(form, value, order);
  return value.forms[order] = form;
}

void LayoutAdapter::DescribeForm(npu_tensor form, const Value& value, const Order& order) const {
  if (value.scales == nullptr) return;
  Describe(form, npu::Permuted(*value.scales, order.data(), order.size()));
}

npu_tensor LayoutAdapter::ReadInput(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  npu_tensor form = -1;
  Check(driver_.api.add_input(driver_.handle, &desc, &form));
  DescribeForm(form, value, order);
  Port port{value.argument, std::nullopt, order};
  if (value.is_reshaped) port.dims = PortSizes(value.desc);
  ports_.inputs.push_back(std::move(port));
  if (value.samples.count > 0) Describe(form, SamplesOf(value, order));
  return form;
}

Samples LayoutAdapter::SamplesOf(const Value& value, const Order& order) {
  Samples samples = value.samples;
  const std::vector<int64_t> sizes = SizesOf(value.desc);
  if (KeepsPlaces(sizes.data(), order)) return samples;
  const size_t count = static_cast<size_t>(samples.count) * samples.bytes;
  std::vector<uint64_t>& permuted = constants_->emplace_back((count + 7) / 8);
  for (size_t at = 0; at < count; at += samples.bytes) {
    Permute(sizes.data(), order, ElementBytes(sizes, samples.bytes),
            static_cast<const char*>(samples.data) + at,
            reinterpret_cast<char*>(permuted.data()) + at);
  }
  samples.data = permuted.data();
  return samples;
}

npu_tensor LayoutAdapter::ReadConstant(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  const std::vector<int64_t> sizes = SizesOf(value.desc);
  const void* data = value.data;
  if (!KeepsPlaces(sizes.data(), order)) {
    std::vector<uint64_t>& permuted = constants_->emplace_back((value.bytes + 7) / 8);
    Permute(sizes.data(), order, ElementBytes(sizes, value.bytes), data, permuted.data());
    data = permuted.data();
  }
  npu_tensor form = -1;
  driver_.Require(driver_.api.add_constant != nullptr, "add_constant", label_);
  Check(driver_.api.add_constant(driver_.handle, &desc, data, value.bytes, &form));
  DescribeForm(form, value, order);
  return form;
}

npu_tensor LayoutAdapter::Convert(const Value& value, const Order& order) {
  const npu_tensor_desc desc = Stored(value.desc, order);
  for (const auto& [other, form] : value.forms) {
    if (!HasSamePlaces(value.dims(), other, order)) continue;
    const npu_tensor view = ViewAtDriver(form, desc);
    DescribeForm(view, value, order);
    return view;
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
  DescribeForm(copy.out, value, order);
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
  // A write of a part waits for the other parts, which may cut a block.
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

// ---- The border ----

void LayoutAdapter::MarkOutput(npu_tensor tensor) {
  SetLabel("an output of the region");
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

std::optional<Ports> LayoutAdapter::Finish() {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
    if (value.kind != Kind::kInput || value.is_reshaped) continue;
    const bool is_read =
        std::any_of(ports_.inputs.begin(), ports_.inputs.end(),
                    [&](const Port& port) { return port.argument == value.argument; });
    if (!is_read) Read(static_cast<npu_tensor>(i));
  }
  return std::move(ports_);
}

}  // namespace npu
