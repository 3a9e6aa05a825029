// SPDX-License-Identifier: Apache-2.0
#include "ir_adapter.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/accessor.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;

/*! \brief A type of the IR, and its fields that this file reads, in the newest TVM that this
 * adapter knows; and their names in older ones, if different. */
struct IRType {
  const char* key;
  std::array<const char*, 5> fields;
  const char* key_before = nullptr;
  std::array<const char*, 5> fields_before = {};
};

constexpr IRType kCall = {"ir.Call", {"op", "args", "attrs", "ty"}};
constexpr IRType kOp = {"ir.Op", {"name", "arguments"}};
constexpr IRType kArgumentInfo = {"ir.ArgumentInfo", {"name"}};
constexpr IRType kVar = {"ir.Var", {"name", "ty"}};
constexpr IRType kDataflowVar = {"relax.expr.DataflowVar", {"name", "ty"}};
constexpr IRType kConstant = {
    "ir.GenericConst", {"value", "ty"}, "relax.expr.Constant", {"data", "ty"}};
constexpr IRType kTuple = {"ir.Tuple", {"fields"}, "relax.expr.Tuple"};
constexpr IRType kTupleGetItem = {
    "ir.TupleGetItem", {"tuple_value", "index"}, "relax.expr.TupleGetItem"};
constexpr IRType kFunction = {"relax.expr.Function", {"params", "body", "attrs"}};
constexpr IRType kDictAttrs = {"ir.DictAttrs", {"__dict__"}};
constexpr IRType kSeqExpr = {"relax.expr.SeqExpr", {"blocks", "body"}};
constexpr IRType kBindingBlock = {"relax.expr.BindingBlock", {"bindings"}};
constexpr IRType kVarBinding = {"relax.expr.VarBinding", {"var", "value"}};
constexpr IRType kShapeExpr = {"relax.expr.ShapeExpr", {"values"}};
constexpr IRType kShapeType = {"relax.ShapeType", {"values"}};
constexpr IRType kIntImm = {"ir.IntImm", {"value"}};
constexpr IRType kFloatImm = {"ir.FloatImm", {"value"}};
constexpr IRType kAdd = {"prim.Add", {"a", "b"}, "tirx.Add"};
constexpr IRType kMul = {"prim.Mul", {"a", "b"}, "tirx.Mul"};
constexpr IRType kFloorDiv = {"prim.FloorDiv", {"a", "b"}, "tirx.FloorDiv"};
constexpr IRType kFloorMod = {"prim.FloorMod", {"a", "b"}, "tirx.FloorMod"};
constexpr IRType kIndexMap = {"tirx.IndexMap", {"initial_indices", "final_indices"}};
constexpr IRType kTensorType = {"relax.TensorType", {"shape", "dtype"}};
constexpr IRType kPrimType = {"ir.PrimType", {"dtype"}};
constexpr IRType kTupleType = {"ir.TupleType", {"fields"}};

constexpr IRType kTypes[] = {kCall,     kOp,           kArgumentInfo, kVar,       kDataflowVar,
                             kConstant, kTuple,        kTupleGetItem, kFunction,  kDictAttrs,
                             kSeqExpr,  kBindingBlock, kVarBinding,   kShapeExpr, kShapeType,
                             kIntImm,   kFloatImm,     kAdd,          kMul,       kFloorDiv,
                             kFloorMod, kIndexMap,     kTensorType,   kPrimType,  kTupleType};

const TVMFFIFieldInfo* FindField(int32_t type_index, std::string_view name) {
  const TVMFFIFieldInfo* found = nullptr;
  ffi::reflection::ForEachFieldInfo(
      TVMFFIGetTypeInfo(type_index), [&](const TVMFFIFieldInfo* info) {
        if (name == std::string_view(info->name.data, info->name.size)) {
          found = info;
        }
      });
  return found;
}

/*! \brief Reads a field by name; a missing field is an error of this adapter. */
ffi::Any Field(const ffi::ObjectRef& object, const char* name) {
  // One look-up per type and field: names are literals, so their addresses identify them.
  struct KeyHash {
    size_t operator()(const std::pair<int32_t, const char*>& key) const {
      return std::hash<const void*>()(key.second) ^ static_cast<size_t>(key.first) * 0x9E3779B9u;
    }
  };
  thread_local std::unordered_map<std::pair<int32_t, const char*>, const TVMFFIFieldInfo*, KeyHash>
      cache;
  auto [it, is_new] = cache.try_emplace({object->type_index(), name}, nullptr);
  if (is_new) it->second = FindField(object->type_index(), name);
  if (it->second == nullptr) {
    throw Refusal("the IR node '" + std::string(object->GetTypeKey()) + "' has no field '" + name +
                  "' in this version of TVM");
  }
  return ffi::reflection::FieldGetter(it->second)(object);
}

template <typename T>
T FieldAs(const ffi::ObjectRef& object, const char* name) {
  return Field(object, name).cast<T>();
}

bool Is(const ffi::ObjectRef& object, const IRType& type) {
  if (!object.defined()) return false;
  const auto& key = object->GetTypeKey();
  return key == type.key || (type.key_before != nullptr && key == type.key_before);
}

bool IsVar(const ffi::ObjectRef& object) { return Is(object, kVar) || Is(object, kDataflowVar); }

std::string TypeKey(const ffi::ObjectRef& object) {
  return object.defined() ? std::string(object->GetTypeKey()) : "nothing";
}

/*! \brief The name of an op's argument. Lists those that Relax omits, as does the table in
 *  capability.py. */
std::string ArgumentName(const ffi::ObjectRef& op, size_t index) {
  static const std::unordered_map<std::string, std::vector<std::string>> names = {
      {"relax.strided_slice", {"x", "axes", "begin", "end", "strides"}},
  };
  auto known = names.find(std::string(FieldAs<ffi::String>(op, "name")));
  if (known != names.end() && index < known->second.size()) return known->second[index];
  auto arguments = FieldAs<ffi::Array<ffi::Any>>(op, "arguments");
  if (index >= arguments.size()) return "argument_" + std::to_string(index);
  auto info = arguments[static_cast<int64_t>(index)].cast<ffi::ObjectRef>();
  return std::string(FieldAs<ffi::String>(info, "name"));
}

/*! \brief The terms that add up to one index of an index map; false if it is not such a sum. */
bool ReadIndexTerms(const ffi::ObjectRef& expr, const ffi::Array<ffi::Any>& indices,
                    std::vector<IndexTerm>* terms) {
  for (int64_t i = 0; IsVar(expr) && i < static_cast<int64_t>(indices.size()); ++i) {
    if (indices[i].cast<ffi::ObjectRef>().same_as(expr)) {
      terms->push_back(IndexTerm{i});
      return true;
    }
  }
  if (Is(expr, kIntImm)) return FieldAs<int64_t>(expr, "value") == 0;
  if (!Is(expr, kAdd) && !Is(expr, kMul) && !Is(expr, kFloorDiv) && !Is(expr, kFloorMod)) {
    return false;
  }
  auto a = FieldAs<ffi::ObjectRef>(expr, "a");
  auto b = FieldAs<ffi::ObjectRef>(expr, "b");
  if (Is(expr, kAdd)) return ReadIndexTerms(a, indices, terms) && ReadIndexTerms(b, indices, terms);
  if (Is(expr, kMul) && Is(a, kIntImm)) std::swap(a, b);
  if (!Is(b, kIntImm)) return false;
  const auto number = FieldAs<int64_t>(b, "value");
  std::vector<IndexTerm> inner;
  if (number < 1 || !ReadIndexTerms(a, indices, &inner)) return false;
  for (IndexTerm& term : inner) {
    if (Is(expr, kMul)) {
      term.multiply *= number;
      continue;
    }
    // Only the quotient or remainder of one index, or of such a part, is again a part.
    if (inner.size() != 1 || term.multiply != 1 || term.modulo % number != 0) return false;
    if (Is(expr, kFloorDiv)) {
      term.divide *= number;
      term.modulo /= number;
    } else {
      term.modulo = number;
    }
  }
  terms->insert(terms->end(), inner.begin(), inner.end());
  return true;
}

/*! \brief For each index of the result its terms, each an object such as {"axis": 1, "divide": 4,
 *  "modulo": 0, "multiply": 1}; None if an index has any other form. */
ffi::Any ReadIndexMap(const ffi::ObjectRef& map) {
  auto indices = FieldAs<ffi::Array<ffi::Any>>(map, "initial_indices");
  ffi::Array<ffi::Any> result;
  for (const ffi::Any& index : FieldAs<ffi::Array<ffi::Any>>(map, "final_indices")) {
    std::vector<IndexTerm> terms;
    if (!ReadIndexTerms(index.cast<ffi::ObjectRef>(), indices, &terms)) return ffi::Any(nullptr);
    ffi::Array<ffi::Any> list;
    for (const IndexTerm& term : terms) {
      ffi::json::Object object;
      object.Set(ffi::String("axis"), term.axis);
      object.Set(ffi::String("divide"), term.divide);
      object.Set(ffi::String("modulo"), term.modulo);
      object.Set(ffi::String("multiply"), term.multiply);
      list.push_back(object);
    }
    result.push_back(list);
  }
  return result;
}

/*! \brief The value of a Relax variable while a function is read. */
struct Binding {
  enum class Kind { kTensor, kTuple, kShape, kNumber, kFunction };

  Kind kind = Kind::kTensor;
  EntryRef entry;
  std::vector<Binding> fields;
  std::vector<Dim> shape;
  ffi::Any number;
  ffi::ObjectRef function;
};

class FunctionReader {
 public:
  explicit FunctionReader(const ffi::Map<ffi::ObjectRef, ffi::String>& constant_names)
      : constant_names_(constant_names) {}

  Graph Read(const ffi::ObjectRef& function) {
    graph_.symbol = StringAttribute(function, "global_symbol");
    if (auto samples = Attribute(function, "samples")) {
      for (const auto& tensor : samples->cast<ffi::Array<ffi::Tensor>>()) {
        graph_.samples.push_back(tensor);
      }
    }
    std::string label = StringAttribute(function, "Composite");
    if (!label.empty()) EnterComposite(label);
    for (const ffi::ObjectRef& param : Params(function)) AddArgument(param);
    Binding result = ReadBody(function);
    AddHeads(result);
    if (graph_.heads.empty()) throw Refusal("the region '" + graph_.symbol + "' returns no tensor");
    CountUses();
    return std::move(graph_);
  }

 private:
  static std::vector<ffi::ObjectRef> Params(const ffi::ObjectRef& function) {
    std::vector<ffi::ObjectRef> params;
    for (const ffi::Any& param : FieldAs<ffi::Array<ffi::Any>>(function, "params")) {
      params.push_back(param.cast<ffi::ObjectRef>());
    }
    return params;
  }

  static std::optional<ffi::Any> Attribute(const ffi::ObjectRef& function, const char* key) {
    auto attrs = FieldAs<ffi::Optional<ffi::ObjectRef>>(function, "attrs");
    if (!attrs.has_value()) return std::nullopt;
    auto dict = FieldAs<ffi::Map<ffi::String, ffi::Any>>(attrs.value(), "__dict__");
    auto it = dict.find(key);
    if (it == dict.end()) return std::nullopt;
    return (*it).second;
  }

  static std::string StringAttribute(const ffi::ObjectRef& function, const char* key) {
    auto value = Attribute(function, key);
    return value.has_value() ? std::string(value->cast<ffi::String>()) : "";
  }

  void CountUses() {
    for (Node& node : graph_.nodes) node.uses.resize(node.outputs.size());
    auto count = [this](const EntryRef& entry) { ++graph_.nodes[entry.node].uses[entry.index]; };
    for (const Node& node : graph_.nodes) {
      std::for_each(node.inputs.begin(), node.inputs.end(), count);
    }
    std::for_each(graph_.heads.begin(), graph_.heads.end(), count);
  }

  void EnterComposite(const std::string& label) {
    composite_ = composite_count_++;
    composite_label_ = label;
  }

  // ---- Types ----

  Dim ReadDim(const ffi::ObjectRef& expr) {
    if (Is(expr, kIntImm)) return Dim{FieldAs<int64_t>(expr, "value"), -1};
    if (IsVar(expr)) {
      auto [it, is_new] = dims_.try_emplace(expr.get());
      if (is_new) {
        it->second = Dim{1, static_cast<int32_t>(graph_.symbols.size())};
        graph_.symbols.emplace_back(FieldAs<ffi::String>(expr, "name"));
        keep_.push_back(expr);
      }
      return it->second;
    }
    if (Is(expr, kMul)) {
      Dim a = ReadDim(FieldAs<ffi::ObjectRef>(expr, "a"));
      Dim b = ReadDim(FieldAs<ffi::ObjectRef>(expr, "b"));
      if (a.symbol < 0 || b.symbol < 0) {
        return Dim{a.size * b.size, a.symbol < 0 ? b.symbol : a.symbol};
      }
    }
    throw Refusal("a symbolic size must be a symbol or a constant times a symbol, not a '" +
                  TypeKey(expr) + "'");
  }

  std::vector<Dim> ReadDims(const ffi::Array<ffi::Any>& values) {
    std::vector<Dim> dims;
    for (const ffi::Any& value : values) dims.push_back(ReadDim(value.cast<ffi::ObjectRef>()));
    return dims;
  }

  TensorInfo ReadTensorType(const ffi::ObjectRef& type, const std::string& name) {
    TensorInfo info;
    auto dtype = FieldAs<ffi::Optional<ffi::ObjectRef>>(type, "dtype");
    if (!dtype.has_value()) throw Refusal("the element type of '" + name + "' is unknown");
    info.dtype = ffi::DLDataTypeToString(FieldAs<DLDataType>(dtype.value(), "dtype"));
    auto shape = FieldAs<ffi::Optional<ffi::ObjectRef>>(type, "shape");
    if (!shape.has_value() || !Is(shape.value(), kShapeExpr)) {
      throw Refusal("the shape of '" + name + "' is unknown");
    }
    info.shape = ReadDims(FieldAs<ffi::Array<ffi::Any>>(shape.value(), "values"));
    return info;
  }

  /*! \brief The tensors of a type: one, or the fields of a flat tuple. */
  std::vector<TensorInfo> ReadResultTypes(const ffi::ObjectRef& type, const std::string& name) {
    if (Is(type, kTensorType)) return {ReadTensorType(type, name)};
    std::vector<TensorInfo> infos;
    if (Is(type, kTupleType)) {
      for (const ffi::Any& field : FieldAs<ffi::Array<ffi::Any>>(type, "fields")) {
        auto field_type = field.cast<ffi::ObjectRef>();
        if (!Is(field_type, kTensorType)) {
          throw Refusal("'" + name + "' is a tuple with a field that is not a tensor");
        }
        infos.push_back(ReadTensorType(field_type, name));
      }
      return infos;
    }
    throw Refusal("'" + name + "' has the type '" + TypeKey(type) +
                  "'; supported are tensors and tuples of tensors");
  }

  // ---- Arguments, constants, results ----

  void AddArgument(const ffi::ObjectRef& param) {
    std::string name(FieldAs<ffi::String>(param, "name"));
    auto type = FieldAs<ffi::ObjectRef>(param, "ty");
    Node node;
    node.kind = Node::Kind::kInput;
    node.name = name;
    Binding binding;
    if (Is(type, kTensorType)) {
      node.outputs = {ReadTensorType(type, name)};
      binding.entry = EntryRef{graph_.nodes.size(), 0};
    } else if (Is(type, kShapeType)) {
      auto values = FieldAs<ffi::Optional<ffi::Array<ffi::Any>>>(type, "values");
      if (!values.has_value()) throw Refusal("the sizes in the shape '" + name + "' are unknown");
      binding.kind = Binding::Kind::kShape;
      binding.shape = ReadDims(values.value());
    } else if (Is(type, kPrimType)) {
      binding.kind = Binding::Kind::kNumber;
    } else {
      throw Refusal("the argument '" + name + "' has the type '" + TypeKey(type) +
                    "'; supported are tensors, shapes and numbers");
    }
    graph_.arguments.push_back(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
    bindings_[param.get()] = std::move(binding);
  }

  Binding AddConstant(const ffi::ObjectRef& constant) {
    auto [it, is_new] = constants_.try_emplace(constant.get());
    if (is_new) {
      Node node;
      node.kind = Node::Kind::kConstant;
      auto name = constant_names_.find(constant);
      node.name = name == constant_names_.end() ? "const_" + std::to_string(constants_.size() - 1)
                                                : std::string((*name).second);
      node.outputs = {ReadTensorType(FieldAs<ffi::ObjectRef>(constant, "ty"), node.name)};
      node.value = FieldAs<ffi::Tensor>(
          constant, (constant->GetTypeKey() == kConstant.key) ? "value" : "data");
      it->second = EntryRef{graph_.nodes.size(), 0};
      graph_.nodes.push_back(std::move(node));
      keep_.push_back(constant);
    }
    Binding binding;
    binding.entry = it->second;
    return binding;
  }

  void AddHeads(const Binding& binding) {
    switch (binding.kind) {
      case Binding::Kind::kTensor:
        graph_.heads.push_back(binding.entry);
        return;
      case Binding::Kind::kTuple:
        for (const Binding& field : binding.fields) AddHeads(field);
        return;
      default:
        throw Refusal("the region '" + graph_.symbol + "' returns something that is not a tensor");
    }
  }

  // ---- Expressions ----

  Binding ReadBody(const ffi::ObjectRef& function) {
    auto body = FieldAs<ffi::ObjectRef>(function, "body");
    if (!Is(body, kSeqExpr)) return ReadExpr(body, "result");
    for (const ffi::Any& block : FieldAs<ffi::Array<ffi::Any>>(body, "blocks")) {
      auto bindings = FieldAs<ffi::Array<ffi::Any>>(block.cast<ffi::ObjectRef>(), "bindings");
      for (const ffi::Any& item : bindings) {
        auto binding = item.cast<ffi::ObjectRef>();
        if (!Is(binding, kVarBinding)) {
          throw Refusal("a binding of the kind '" + TypeKey(binding) + "' is not supported");
        }
        auto var = FieldAs<ffi::ObjectRef>(binding, "var");
        std::string name(FieldAs<ffi::String>(var, "name"));
        bindings_[var.get()] = ReadExpr(FieldAs<ffi::ObjectRef>(binding, "value"), name);
        keep_.push_back(var);
      }
    }
    return ReadExpr(FieldAs<ffi::ObjectRef>(body, "body"), "result");
  }

  Binding ReadExpr(const ffi::ObjectRef& expr, const std::string& name) {
    Binding binding;
    if (IsVar(expr)) {
      auto it = bindings_.find(expr.get());
      if (it != bindings_.end()) return it->second;
      // A symbol used as a number: its value is known only at the call.
      binding.kind = Binding::Kind::kNumber;
      return binding;
    }
    if (Is(expr, kCall)) return ReadCall(expr, name);
    if (Is(expr, kConstant)) return AddConstant(expr);
    if (Is(expr, kTuple)) {
      binding.kind = Binding::Kind::kTuple;
      for (const ffi::Any& field : FieldAs<ffi::Array<ffi::Any>>(expr, "fields")) {
        binding.fields.push_back(ReadExpr(field.cast<ffi::ObjectRef>(), name));
      }
      return binding;
    }
    if (Is(expr, kTupleGetItem)) {
      Binding tuple = ReadExpr(FieldAs<ffi::ObjectRef>(expr, "tuple_value"), name);
      auto index = static_cast<size_t>(ReadIndex(Field(expr, "index")));
      if (tuple.kind != Binding::Kind::kTuple || index >= tuple.fields.size()) {
        throw Refusal("'" + name + "' takes a field of something that is not a tuple");
      }
      return tuple.fields[index];
    }
    if (Is(expr, kShapeExpr)) {
      binding.kind = Binding::Kind::kShape;
      binding.shape = ReadDims(FieldAs<ffi::Array<ffi::Any>>(expr, "values"));
      return binding;
    }
    if (Is(expr, kFunction)) {
      binding.kind = Binding::Kind::kFunction;
      binding.function = expr;
      return binding;
    }
    ffi::Any number = ReadAttribute(expr);
    if (number == nullptr) {
      throw Refusal("'" + name + "' is a '" + TypeKey(expr) + "', which is not supported");
    }
    binding.kind = Binding::Kind::kNumber;
    binding.number = std::move(number);
    return binding;
  }

  static int64_t ReadIndex(const ffi::Any& index) {
    if (auto value = index.try_cast<int64_t>()) return *value;
    return FieldAs<int64_t>(index.cast<ffi::ObjectRef>(), "value");
  }

  Binding ReadCall(const ffi::ObjectRef& call, const std::string& name) {
    auto op = FieldAs<ffi::ObjectRef>(call, "op");
    auto args = FieldAs<ffi::Array<ffi::Any>>(call, "args");
    if (Is(op, kOp)) return AddCallNode(call, op, args, name);
    if (IsVar(op) || Is(op, kFunction)) {
      Binding callee = ReadExpr(op, name);
      if (callee.kind == Binding::Kind::kFunction) return Inline(callee.function, args, name);
    }
    throw Refusal("'" + name + "' calls a '" + TypeKey(op) + "'; supported are calls of Relax ops");
  }

  /*! \brief Reads the body of a composite in place of its call. */
  Binding Inline(const ffi::ObjectRef& function, const ffi::Array<ffi::Any>& args,
                 const std::string& name) {
    std::vector<ffi::ObjectRef> params = Params(function);
    if (params.size() != args.size()) {
      throw Refusal("'" + name + "' calls a composite with the wrong number of arguments");
    }
    for (size_t i = 0; i < params.size(); ++i) {
      Binding value = ReadExpr(args[static_cast<int64_t>(i)].cast<ffi::ObjectRef>(), name);
      BindSymbols(FieldAs<ffi::ObjectRef>(params[i], "ty"), value);
      bindings_[params[i].get()] = std::move(value);
    }
    int outer = composite_;
    std::string outer_label = composite_label_;
    std::string label = StringAttribute(function, "Composite");
    if (!label.empty()) EnterComposite(label);
    Binding result = ReadBody(function);
    composite_ = outer;
    composite_label_ = outer_label;
    return result;
  }

  /*! \brief A composite has its own symbols; the sizes of the arguments determine their values. */
  void BindSymbols(const ffi::ObjectRef& type, const Binding& value) {
    ffi::Array<ffi::Any> values;
    const std::vector<Dim>* dims = nullptr;
    if (Is(type, kTensorType) && value.kind == Binding::Kind::kTensor) {
      auto shape = FieldAs<ffi::Optional<ffi::ObjectRef>>(type, "shape");
      if (!shape.has_value() || !Is(shape.value(), kShapeExpr)) return;
      values = FieldAs<ffi::Array<ffi::Any>>(shape.value(), "values");
      dims = &graph_.Info(value.entry).shape;
    } else if (Is(type, kShapeType) && value.kind == Binding::Kind::kShape) {
      values = FieldAs<ffi::Optional<ffi::Array<ffi::Any>>>(type, "values")
                   .value_or(ffi::Array<ffi::Any>());
      dims = &value.shape;
    }
    if (dims == nullptr || values.size() != dims->size()) return;
    for (size_t i = 0; i < dims->size(); ++i) {
      auto symbol = values[static_cast<int64_t>(i)].cast<ffi::ObjectRef>();
      if (!IsVar(symbol)) continue;
      // Insert-or-assign: one composite function may be called with different sizes.
      dims_[symbol.get()] = (*dims)[i];
      keep_.push_back(symbol);
    }
  }

  Binding AddCallNode(const ffi::ObjectRef& call, const ffi::ObjectRef& op,
                      const ffi::Array<ffi::Any>& args, const std::string& name) {
    Node node;
    node.name = name;
    node.op = std::string(FieldAs<ffi::String>(op, "name"));
    node.composite = composite_;
    node.composite_label = composite_label_;
    for (size_t i = 0; i < args.size(); ++i) {
      Binding value = ReadExpr(args[static_cast<int64_t>(i)].cast<ffi::ObjectRef>(), name);
      AddOperand(value, ArgumentName(op, i), &node);
    }
    auto attrs = FieldAs<ffi::Optional<ffi::ObjectRef>>(call, "attrs");
    if (attrs.has_value()) {
      ffi::reflection::ForEachFieldInfo(
          TVMFFIGetTypeInfo(attrs.value()->type_index()), [&](const TVMFFIFieldInfo* info) {
            ffi::Any value = ffi::reflection::FieldGetter(info)(attrs.value());
            node.attributes.Set(ffi::String(info->name.data, info->name.size),
                                ReadAttribute(value));
          });
    }
    auto type = FieldAs<ffi::ObjectRef>(call, "ty");
    node.outputs = ReadResultTypes(type, name);
    size_t count = node.outputs.size();
    size_t id = graph_.nodes.size();
    graph_.nodes.push_back(std::move(node));

    Binding result;
    if (Is(type, kTensorType)) {
      result.entry = EntryRef{id, 0};
      return result;
    }
    result.kind = Binding::Kind::kTuple;
    for (size_t i = 0; i < count; ++i) {
      Binding field;
      field.entry = EntryRef{id, i};
      result.fields.push_back(std::move(field));
    }
    return result;
  }

  void AddOperand(const Binding& value, const std::string& argument, Node* node) {
    switch (value.kind) {
      case Binding::Kind::kTensor:
        node->inputs.push_back(value.entry);
        return;
      case Binding::Kind::kTuple: {
        ffi::Array<ffi::Any> numbers;
        for (const Binding& field : value.fields) {
          if (field.kind == Binding::Kind::kNumber) {
            numbers.push_back(KnownNumber(field, argument, *node));
          } else {
            AddOperand(field, argument, node);
          }
        }
        if (numbers.size() == value.fields.size()) {
          node->attributes.Set(ffi::String(argument), numbers);
        }
        return;
      }
      case Binding::Kind::kShape: {
        ffi::Array<ffi::Any> dims;
        for (const Dim& dim : value.shape) {
          // A symbolic size reads as -1 here; the result's type has it in full.
          dims.push_back(dim.symbol < 0 ? dim.size : static_cast<int64_t>(-1));
        }
        node->attributes.Set(ffi::String(argument), dims);
        return;
      }
      case Binding::Kind::kNumber:
        node->attributes.Set(ffi::String(argument), KnownNumber(value, argument, *node));
        return;
      case Binding::Kind::kFunction:
        throw Refusal(node->op + " (" + node->name + "): takes a function as '" + argument + "'");
    }
  }

  static ffi::Any KnownNumber(const Binding& value, const std::string& argument, const Node& node) {
    if (value.number == nullptr) {
      throw Refusal(node.op + " (" + node.name + "): '" + argument +
                    "' is known only at the call; it must be a constant");
    }
    return value.number;
  }

  /*! \brief A value in the types of JSON; None if there is nothing to record. */
  static ffi::Any ReadAttribute(const ffi::Any& value) {
    if (value == nullptr) return value;
    switch (value.type_index()) {
      case kTVMFFIBool:
      case kTVMFFIInt:
      case kTVMFFIFloat:
      case kTVMFFIStr:
      case kTVMFFISmallStr:
        return value;
      case kTVMFFIDataType:
        return ffi::String(ffi::DLDataTypeToString(value.cast<DLDataType>()));
      default:
        break;
    }
    if (auto array = value.try_cast<ffi::Array<ffi::Any>>()) {
      ffi::Array<ffi::Any> result;
      for (const ffi::Any& item : *array) result.push_back(ReadAttribute(item));
      return result;
    }
    if (auto object = value.try_cast<ffi::ObjectRef>()) {
      if (Is(*object, kIntImm) || Is(*object, kFloatImm)) return Field(*object, "value");
      if (Is(*object, kIndexMap)) return ReadIndexMap(*object);
      if (Is(*object, kPrimType)) return ReadAttribute(Field(*object, "dtype"));
      // Immediates of other kinds (strings, types) keep their content in one field.
      if (const TVMFFIFieldInfo* info = FindField((*object)->type_index(), "value")) {
        return ReadAttribute(ffi::reflection::FieldGetter(info)(*object));
      }
    }
    return ffi::Any(nullptr);
  }

  const ffi::Map<ffi::ObjectRef, ffi::String>& constant_names_;
  Graph graph_;
  std::unordered_map<const ffi::Object*, Binding> bindings_;
  std::unordered_map<const ffi::Object*, EntryRef> constants_;
  std::unordered_map<const ffi::Object*, Dim> dims_;
  /*! \brief Keeps alive the objects that the maps know by address. */
  std::vector<ffi::ObjectRef> keep_;
  int composite_ = -1;
  int composite_count_ = 0;
  std::string composite_label_;
};

/*! \brief The index of a type; -1 if the loaded TVM lacks it. */
int32_t FindType(std::string_view name) {
  TVMFFIByteArray key = {name.data(), name.size()};
  int32_t type_index = 0;
  if (TVMFFITypeKeyToIndex(&key, &type_index) == 0) return type_index;
  ffi::details::MoveFromSafeCallRaised();  // The caller reports the error.
  return -1;
}

}  // namespace

std::vector<std::string> FieldNames(const std::string& type_key) {
  std::vector<std::string> names;
  const int32_t type_index = FindType(type_key);
  if (type_index < 0) return names;
  ffi::reflection::ForEachFieldInfo(
      TVMFFIGetTypeInfo(type_index),
      [&](const TVMFFIFieldInfo* info) { names.emplace_back(info->name.data, info->name.size); });
  return names;
}

std::vector<std::string> MissingIR() {
  std::vector<std::string> missing;
  for (const IRType& type : kTypes) {
    int32_t index = FindType(type.key);
    const bool is_old = index < 0 && type.key_before != nullptr;
    if (is_old) index = FindType(type.key_before);
    if (index < 0) {
      missing.emplace_back(type.key);
      continue;
    }
    const bool renamed = is_old && type.fields_before[0] != nullptr;
    for (const char* field : renamed ? type.fields_before : type.fields) {
      if (field == nullptr || FindField(index, field) != nullptr) continue;
      missing.push_back(std::string(is_old ? type.key_before : type.key) + "." + field);
    }
  }
  return missing;
}

Graph ReadFunction(const ffi::ObjectRef& function,
                   const ffi::Map<ffi::ObjectRef, ffi::String>& constant_names) {
  if (!Is(function, kFunction)) {
    throw Refusal("expected a Relax function, got a '" + TypeKey(function) + "'");
  }
  return FunctionReader(constant_names).Read(function);
}

}  // namespace npu
