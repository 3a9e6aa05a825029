// SPDX-License-Identifier: Apache-2.0
/*!
 * \file lowering.h
 * \brief The interface of lowerings, which turn one Relax op into driver operations.
 *
 * An op registers one function:
 *
 * - REGISTER_ELEMENTWISE("relax.nn.relu", Relu): one value per output element. The same function
 *   serves the op alone and as an epilogue.
 * - REGISTER_LOWERING("relax.nn.conv2d", Conv2D): anything else. With `.TakesEpilogue()`,
 *   element-wise ops of the same composite are fused into it and arrive as Epilogue().
 *
 * An op may have both: the element-wise function is then used when it is fused, the other one when
 * it stands alone. A lowering of the vendor's wins over the engine's, and one with a predicate
 * (`.When`) over one without.
 */
#ifndef CODEGEN_LOWERING_H_
#define CODEGEN_LOWERING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call_view.h"
#include "driver_api.h"
#include "driver_kit/vector_opcodes.h"
#include "permute.h"

namespace npu {

class Emission;
struct Factors;
struct IntegerSteps;
struct Units;

/*! \brief A value inside a vector program. */
struct Value {
  int32_t index = -1;
};
using Values = std::vector<Value>;

/*! \brief Writes a program of the vector engine; driver_kit/vector_opcodes.h has its functions. */
class VectorBuilder {
 public:
  /*! \brief The elements of a tensor, broadcast to the shape of the output. */
  Value Load(const Tensor& tensor);
  Value Constant(double value);
  // Add(a, b), Exp(a), Select(condition, yes, no) and so on.
#define NPU_METHOD1(NAME, Method) \
  Value Method(Value a) { return Emit(NPU_VECTOR_##NAME, a); }
#define NPU_METHOD2(NAME, Method) \
  Value Method(Value a, Value b) { return Emit(NPU_VECTOR_##NAME, a, b); }
#define NPU_METHOD3(NAME, Method) \
  Value Method(Value a, Value b, Value c) { return Emit(NPU_VECTOR_##NAME, a, b, c); }
#define NPU_REALS(NAME, Method, name, operands, real) NPU_METHOD##operands(NAME, Method)
#define NPU_BOTH(NAME, Method, name, operands, real, integer) NPU_METHOD##operands(NAME, Method)
#define NPU_OTHER(NAME, name, operands, reals, step)
  NPU_VECTOR_OPCODES(NPU_BOTH, NPU_REALS, NPU_OTHER)
#undef NPU_METHOD1
#undef NPU_METHOD2
#undef NPU_METHOD3
#undef NPU_REALS
#undef NPU_BOTH
#undef NPU_OTHER
  /*! \brief a * multiplier / 2^shift; in programs of integers. */
  Value Rescale(Value a, Value multiplier, Value shift, npu_rounding rounding);
  /*! \brief Any instruction, including the vendor's own. */
  Value Emit(npu_vector_opcode opcode, Value a, Value b = {}, Value c = {});
  /*! \brief Presents all instructions so far, which compute `result` from `operands`, to drivers as
   *  one step of the Relax op `op`. */
  Value AsStep(npu_step_kind kind, const char* op, const Values& operands, Value result);

 private:
  friend class Lowering;

  /*! \brief Whether an operand is the result of an earlier step. */
  static bool IsComputed(const npu_operand& operand);
  /*! \brief The index by which steps refer to a value. */
  npu_operand OperandOf(Value value) const { return operands_[static_cast<size_t>(value.index)]; }
  void AddStep(npu_step_kind kind, const std::vector<npu_operand>& operands);
  /*! \brief Replaces the steps from `first` on, which compute `result`, by one step of this kind;
   * without a kind, records which op they came from. */
  void NameSteps(size_t first, Value result, const char* op, npu_step_kind kind,
                 const std::vector<npu_operand>& operands);
  /*! \brief In an epilogue: the value that the operation before it computed. */
  Value LoadAccumulator();
  /*! \brief The program whose last value is `result`; valid while this builder lives. Steps that
   *  have no name yet come from `op`. */
  npu_vector_program Finish(Value result, const char* op);

  std::vector<npu_vector_instruction> instructions_;
  std::vector<npu_tensor> inputs_;
  /*! \brief The index of each instruction's value. */
  std::vector<npu_operand> operands_;
  std::vector<npu_step> steps_;
};

/*! \brief The lowering of one Relax op, with its epilogue, to the driver. */
class Lowering : public CallView {
 public:
  /*! \brief Tensor argument `i`. */
  Tensor Input(size_t i) const;
  /*! \brief Result `i`, to be written; allocated on the first call. With an epilogue this is the
   *  result of the last fused op. */
  Tensor Output(size_t i = 0);
  /*! \brief Makes result `i` an existing tensor or a view of one, without computing anything. */
  void SetOutput(size_t i, const Tensor& tensor);

  /*! \brief For a quantized mean: each accumulator sums `counts` elements, by which Epilogue()
   *  divides. `counts` broadcast against the accumulators. */
  void AverageOver(const std::vector<double>& counts, const std::vector<npu_dim>& dims = {});
  /*! \brief The steps after the op: the element-wise ops fused into it and, if it is quantized, the
   *  rescaling. NULL if there are none. */
  const npu_vector_program* Epilogue();
  /*! \brief An epilogue made by the lowering, given the operation's value; valid while the op is
   *  lowered. */
  const npu_vector_program* EpilogueOf(const std::function<Value(VectorBuilder&, Value)>& program);

  /*! \name Extensions of the driver. */
  ///@{
  /*! \brief The driver's builder, for functions of an extension. */
  npu_builder* Builder() const;
  /*! \brief The driver's own tensor, for functions of an extension: for reading, or for writing if
   *  nothing has written it yet. Its dimensions are in the header's order. */
  npu_tensor AtDriver(const Tensor& tensor) const;
  /*! \brief The same in the driver's layout of `like`, a tensor of the same rank: for operations to
   *  which the layout does not matter. It has one more dimension for each one in blocks. */
  npu_tensor AtDriver(const Tensor& tensor, const Tensor& like) const;
  /*! \brief The driver's struct of this name; refuses the op if it has none:
   *  op.Check(op.Extension<acme_ops>("acme.ops")->add_mish(
   *      op.Builder(), op.AtDriver(in), op.AtDriver(out, in))). */
  template <typename T>
  const T* Extension(const char* name) const {
    return static_cast<const T*>(FindExtension(name));
  }
  /*! \brief Whether the driver has an extension of this name; see OpLowering::NeedsExtension. */
  bool HasExtension(const char* name) const { return ExtensionOrNull(name) != nullptr; }
  /*! \brief Turns a status that is not NPU_OK into a refusal that names this op and the driver's
   *  reason. */
  void Check(npu_status status) const;
  ///@}

  /*! \name Driver operations. If the driver refuses one, the error names this op. */
  ///@{
  /*! \brief A new tensor for intermediate values. */
  Tensor Temporary(npu_dtype dtype, const std::vector<npu_dim>& dims);
  /*! \brief A view of the same elements with another shape. */
  Tensor View(const Tensor& tensor, const std::vector<npu_dim>& dims);
  /*! \brief A constant that the lowering computes; `values` are in row-major order. */
  Tensor Constant(const std::vector<npu_dim>& dims, const std::vector<float>& values) {
    return ConstantOf(NPU_FLOAT32, dims, values.data(), values.size() * sizeof(float));
  }
  /*! \brief The same for integers, such as indices. */
  Tensor Constant(const std::vector<npu_dim>& dims, const std::vector<int64_t>& values) {
    return ConstantOf(NPU_INT64, dims, values.data(), values.size() * sizeof(int64_t));
  }
  /*! \brief The same for weights. */
  Tensor Constant(const std::vector<npu_dim>& dims, const std::vector<int8_t>& values) {
    return ConstantOf(NPU_INT8, dims, values.data(), values.size());
  }
  /*! \brief A copy of all of `data` to the beginning of `out`, for the caller to adjust:
   *  dimensions in order, steps of 1, no fill. */
  npu_copy CopyOf(const Tensor& data, const Tensor& out) const;
  void Emit(const npu_matmul& op);
  void Emit(const npu_convolution& op);
  void Emit(const npu_pool& op);
  void Emit(const npu_reduce& op);
  void Emit(const npu_copy& op);
  void Emit(const npu_gather& op);
#define NPU_EMIT(name, reads) void Emit(const npu_##name& op);
  NPU_PLAIN_OPERATIONS(NPU_EMIT, )
  NPU_WHOLE_OPERATIONS(NPU_EMIT, )
#undef NPU_EMIT
  /*! \brief Whether to emit a whole operation, such as &npu_build_api::add_concat: the driver has
   *  it, and has not declined it for this call. Otherwise it is composed of others. */
  template <typename Function>
  bool Has(Function npu_build_api::* function) const {
    const npu_build_api* api = AskedForWhole();
    return api != nullptr && api->*function != nullptr;
  }
  /*! \brief The slices of `data` at `indices` along an axis; or its elements, if `out` and
   * `indices` have the same shape. */
  void Gather(const Tensor& data, const Tensor& indices, int64_t axis, const Tensor& out,
              bool elementwise = false);
  /*! \brief out = program(...), one value per element. */
  void Elementwise(const Tensor& out, const std::function<Value(VectorBuilder&)>& program);
  /*! \brief A reduction whose result goes through `epilogue`, given the reduced value. The mean of
   *  a quantized op is a sum of integers that goes through Epilogue(). */
  void Reduce(npu_reduce_kind kind, const Tensor& data, const std::vector<int64_t>& axes,
              const Tensor& out,
              const std::function<Value(VectorBuilder&, Value)>& epilogue = nullptr);
  /*! \brief exp(data - maximum) with the maxima along an axis, so that exp cannot overflow.
   *  `maximum` receives the maxima: the shape of data, with size 1 in the axis. */
  Tensor Exponentials(const Tensor& data, int64_t axis, Tensor* maximum);
  ///@}

  /*! \name For the engine. */
  ///@{
  /*! \brief Whether element-wise ops of two quantized tensors compute with integers alone: on a
   *  chip without real numbers whose driver rescales. */
  bool RescalesElements() const;
  /*! \brief Lowers such an op: `combine` gets both arguments without their zero points, for a
   *  product in steps of their own, else in common finer steps. */
  void RescaledElements(const std::function<Value(VectorBuilder&, const Values&)>& combine);
  Lowering(const Graph* graph, const Unit* unit, const Units* units, Emission* emission)
      : CallView(graph, unit), units_(units), emission_(emission) {}
  /*! \brief Lowers the call and what is fused into it. */
  void Lower();
  ///@}

 private:
  const void* ExtensionOrNull(const char* name) const;
  const void* FindExtension(const char* name) const;
  /*! \brief The driver's table; NULL if it has declined a whole operation for this call. */
  const npu_build_api* AskedForWhole() const;
  /*! \brief The Relax op, which lives as long as the graph. */
  const char* OpName() const;
  /*! \brief Tells biases, scales and residuals apart from other steps of an epilogue; `channel` is
   *  the dimension of the channels. */
  void NameEpilogue(const npu_vector_program* epilogue, npu_tensor out, int channel);
  Tensor ConstantOf(npu_dtype dtype, const std::vector<npu_dim>& dims, const void* data,
                    size_t bytes);
  void LowerAsElementwise();
  /*! \brief Lowers a function of one 8-bit tensor between dequantize and quantize as a table. False
   *  if it is not such a function, or the driver has no tables. */
  bool LowerAsLookup();
  /*! \brief What happens to the accumulator of a quantized op, in integers, with the tensors that
   *  takes; none if it needs real numbers. `scale` is that of the accumulator, which may be `wide`.
   */
  std::optional<IntegerSteps> PlacedIntegerSteps(const std::vector<double>& scale, bool wide);
  Value RescaledBy(VectorBuilder& v, Value value, const Factors& by);
  /*! \brief Writes these steps for an accumulator. */
  Value Rescaled(VectorBuilder& v, Value result, const IntegerSteps& steps);
  /*! \brief The largest product of some of a tensor's dimensions. */
  double MostElements(const npu_tensor_desc& desc, int first, int last) const;
  /*! \brief A constant of int32. */
  Tensor Integers(const std::vector<npu_dim>& dims, const std::vector<int64_t>& values);
  /*! \brief The shape of this many numbers, one or one per channel, for broadcasting against the
   *  result. */
  std::vector<npu_dim> PerChannel(size_t count) const;
  /*! \brief This element-wise call; values of `known` nodes are not loaded. */
  Value Apply(VectorBuilder* vector, const std::map<size_t, Value>& known) const;
  /*! \brief The calls fused into this one, given its own value. */
  Value AppendFused(VectorBuilder* vector, Value value, std::map<size_t, Value> known = {}) const;

  const Units* units_;
  Emission* emission_;
  /*! \brief Data that the driver reads during calls: a deque, for stable addresses. */
  std::deque<VectorBuilder> vectors_;
  std::deque<npu_vector_program> epilogues_;
  /*! \brief How many elements each accumulator sums up, and the shape of these counts. */
  std::vector<double> counts_;
  std::vector<npu_dim> count_dims_;
  /*! \brief The amounts by which accumulators exceed the sums. */
  double offset_ = 0;
};

/*! \brief The owner of a lowering. */
enum class Owner { kEngine, kVendor };

/*! \brief How an op is lowered; made by the macros below. */
struct OpLowering {
  using LowerFunction = void (*)(Lowering&);
  using ElementwiseFunction = Value (*)(const Lowering&, VectorBuilder&, const Values&);
  using Predicate = bool (*)(const Lowering&);

  std::string op;
  LowerFunction lower = nullptr;
  ElementwiseFunction elementwise = nullptr;
  Predicate when = nullptr;
  /*! \brief The name of an extension of the driver; empty: none. */
  std::string extension;
  bool takes_epilogue = false;
  bool absorbs_transpose = false;
  bool takes_quantized = false;
  bool takes_integer_weights = false;
  int channel = 0;
  Owner owner = Owner::kEngine;
  npu_step_kind step = NPU_STEP_OTHER;
  std::vector<std::string> step_numbers;

  /*! \brief Element-wise ops of the same composite may be fused into this one. */
  OpLowering& TakesEpilogue() {
    takes_epilogue = true;
    return *this;
  }
  /*! \brief The step that drivers see for an element-wise op, with the names of its numeric
   *  attributes; without one they see its instructions. */
  OpLowering& AsStep(npu_step_kind kind, const std::vector<std::string>& numbers = {}) {
    step = kind;
    step_numbers = numbers;
    return *this;
  }
  /*! \brief A permute_dims of the same composite that swaps an argument's last two dimensions is
   *  not executed: the argument arrives with InputIsTransposed(). */
  OpLowering& AbsorbsTranspose() {
    absorbs_transpose = true;
    return *this;
  }
  /*! \brief Dequantizations of its arguments in the same composite are not executed: the arguments
   *  arrive as integers, Emit sets the zero points of products, and Epilogue() computes the result;
   *  see Lowering::IsQuantized. `channel` is the dimension of the result along which the scales of
   *  a product may differ. */
  OpLowering& TakesQuantized(int dimension = 0) {
    takes_quantized = true;
    channel = dimension;
    return *this;
  }
  /*! \brief Constant integers that are dequantized in the same composite for the second argument
   *  arrive as integers, if the driver has such products: the lowering emits one npu_matmul, in
   *  which Emit sets zero points and scales. */
  OpLowering& TakesIntegerWeights() {
    takes_integer_weights = true;
    return *this;
  }
  /*! \brief Restricts it to calls that `predicate` accepts; such an entry takes precedence over one
   * without. The predicate runs before anything is lowered: it may read attributes and dims. */
  OpLowering& When(Predicate predicate) {
    when = predicate;
    return *this;
  }
  /*! \brief Only for drivers that have this extension; for others, the op has the lowering that it
   *  would have without this one. */
  OpLowering& NeedsExtension(const std::string& name) {
    extension = name;
    return *this;
  }
};

/*! \brief Adds a lowering to the table; use the macros. */
OpLowering& RegisterOp(const std::string& op, OpLowering::LowerFunction lower, Owner owner);
/*! \brief Adds an element-wise op to the table; use the macros. */
OpLowering& RegisterOp(const std::string& op, OpLowering::ElementwiseFunction elementwise,
                       Owner owner);

// The build defines it for the files in NPU_VENDOR_LOWERINGS of vendor/vendor.cmake.
#ifdef NPU_VENDOR_LOWERING
#define LOWERING_OWNER ::npu::Owner::kVendor
#else
#define LOWERING_OWNER ::npu::Owner::kEngine
#endif

#define LOWERING_CONCAT_INNER(a, b) a##b
#define LOWERING_CONCAT(a, b) LOWERING_CONCAT_INNER(a, b)
/*! \brief Registers `void function(Lowering& op)` for a Relax op. */
#define REGISTER_LOWERING(op, function)                                              \
  [[maybe_unused]] static auto& LOWERING_CONCAT(registered_lowering_, __COUNTER__) = \
      ::npu::RegisterOp(op, static_cast<::npu::OpLowering::LowerFunction>(function), \
                        LOWERING_OWNER)
/*! \brief Registers `Value function(const Lowering& op, VectorBuilder& v, const Values& x)`. */
#define REGISTER_ELEMENTWISE(op, function)                                                 \
  [[maybe_unused]] static auto& LOWERING_CONCAT(registered_lowering_, __COUNTER__) =       \
      ::npu::RegisterOp(op, static_cast<::npu::OpLowering::ElementwiseFunction>(function), \
                        LOWERING_OWNER)

/*! \brief The Relax ops that have a lowering. */
std::vector<std::string> LoweredOps();

/*! \brief How the chip rescales integers from one scale to another: by an integer multiplier and a
 *  shift. */
struct Requantization {
  /*! \brief How many bits a multiplier has, not counting its sign. */
  int multiplier_bits = 31;
  /*! \brief The same for accumulators of int16 tensors. */
  int wide_multiplier_bits = 15;
  int least_shift = 2, most_shift = 62;
  npu_rounding rounding = NPU_ROUND_HALF_UP;
  /*! \brief Whether the chip has real numbers; sums and products of elements are rescaled without
   *  them. */
  bool has_reals = true;
};

/*! \brief The rule of this backend's chip, while this thread lowers a graph. */
const Requantization& ChipRequantization();

/*! \brief The settings of a compilation. */
struct LoweringOptions {
  /*! \brief The driver: "vendor", "emulator", or "" for the first that is installed. */
  std::string role;
  /*! \brief Settings for the driver, by name. */
  std::vector<std::pair<std::string, std::string>> driver;
  /*! \brief The largest value of each symbol, by name. */
  std::map<std::string, int64_t> symbol_bounds;
  Requantization requantization;
};

/*! \brief How far LowerGraph goes. */
enum class LoweringGoal {
  /*! \brief Passes each op to the driver: can it be lowered? */
  kOps,
  /*! \brief Also asks the driver about the whole graph: can it be compiled? */
  kCheck,
  /*! \brief Compiles it to bytes. */
  kProgram,
};

struct DestroyBuilder {
  const npu_build_api* api = nullptr;
  void operator()(npu_builder* builder) const {
    if (api->destroy != nullptr) api->destroy(builder);
  }
};

/*! \brief An input or an output of the program: an argument of the region, permuted. */
struct Port {
  /*! \brief Its index among the region's inputs, or its outputs. */
  int64_t argument = 0;
  /*! \brief The shape of the permuted argument, if it differs from its own. */
  std::optional<std::vector<int64_t>> dims;
  Order order;
};

struct Ports {
  std::vector<Port> inputs, outputs;
};

/*! \brief The driver's program of a graph. */
struct LoweredProgram {
  /*! \brief The graph with scales, if it was lowered: the builder refers to its constants. */
  std::shared_ptr<const Graph> graph;
  /*! \brief Constants of lowerings. Declared first: the builder refers to them. */
  std::deque<std::vector<uint64_t>> constants;
  std::unique_ptr<npu_builder, DestroyBuilder> builder;
  /*! \brief The driver's bytes, which live as long as the builder; empty unless the goal was
   *  kProgram. */
  std::string_view bytes;
  /*! \brief What the driver says of it, in lines. */
  std::string warnings;
  /*! \brief Set if the driver declares layouts. */
  std::optional<Ports> ports;
  /*! \brief Which input and which output may have one buffer: values of a state. */
  std::vector<std::pair<int64_t, int64_t>> states;
};

/*! \brief Throws a Refusal if the driver refuses its options. */
void CheckDriverOptions(const LoweringOptions& options);

/*! \brief What decides about programs besides the driver's library and its options; "" if nothing
 *  does. Throws a Refusal if the driver does not know. */
std::string IdentityOf(const LoweringOptions& options);

/*!
 * \brief Lowers a graph with the registered ops.
 * \param graph The graph of one region or one composite; it must outlive the
 *   result, which refers to its constants.
 * \param options The settings.
 * \param goal How far to go.
 * \return The driver's program.
 * \throws Refusal naming the op and the reason.
 */
LoweredProgram LowerGraph(const Graph& graph, const LoweringOptions& options, LoweringGoal goal);

}  // namespace npu

#endif  // CODEGEN_LOWERING_H_
