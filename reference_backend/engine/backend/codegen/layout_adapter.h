// SPDX-License-Identifier: Apache-2.0
/*!
 * \file layout_adapter.h
 * \brief Keeps tensors in the layouts that a driver declares for its operations.
 *
 * Lowerings see tensors in the header's order of dimensions, whatever the driver. Where the driver
 * has the function `layout`, their calls come here first. Each tensor then exists at the driver in
 * the layouts in which it is read, and operations without a layout of their own follow what they
 * read. The last resort is a transposition by the driver's add_copy.
 *
 * A tensor in blocks is another tensor here: the one that has the blocks as dimensions, in some
 * order. So an operation on blocks is the same operation with a few more dimensions.
 */
#ifndef CODEGEN_LAYOUT_ADAPTER_H_
#define CODEGEN_LAYOUT_ADAPTER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "layout.h"
#include "permute.h"
#include "sink.h"

namespace npu {

/*! \brief Stands between lowerings and a driver that declares layouts. It has its own numbers of
 *  tensors. */
class LayoutAdapter : public Sink {
 public:
  /*! \brief Permuted constants are kept in `constants`, which outlives the builder. */
  LayoutAdapter(const DriverBuilder& driver, std::deque<std::vector<uint64_t>>* constants)
      : Sink(driver), constants_(constants) {}

  /*! \brief The driver gets the input where it is first read. */
  npu_tensor AddInput(const npu_tensor_desc& desc, int64_t argument, const std::string&) final;
  npu_tensor AddConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                         const std::string&) final;
  npu_tensor AddTensor(const npu_tensor_desc& desc) final;
  npu_tensor AddView(npu_tensor data, const npu_tensor_desc& desc) final;
  void SetScales(npu_tensor tensor, const Scales& scales) final {
    At(tensor).scales = std::make_shared<const Scales>(scales);
  }
  void SetSamples(npu_tensor input, const Samples& samples) final { At(input).samples = samples; }
#define NPU_ADD(name, reads) void Add(const npu_##name& op) final;
  NPU_OPERATIONS(NPU_ADD, )
  NPU_WHOLE_OPERATIONS(NPU_ADD, )
#undef NPU_ADD
  /*! \brief The output is in the layout that the tensor has. */
  void MarkOutput(npu_tensor tensor) final;
  /*! \brief False: the driver's inputs and outputs may be permuted copies. */
  bool AddState(npu_tensor, npu_tensor) final { return false; }
  /*! \brief Gives the driver the inputs that nothing reads: they may determine the value of a
   *  symbol. */
  std::optional<Ports> Finish() final;
  /*! \brief The driver's tensor in the header's order, or in the layout of `like`; for writing, if
   *  nothing has written it yet. */
  npu_tensor AtDriver(npu_tensor tensor, std::optional<npu_tensor> like) final;

 private:
  enum class Kind {
    kInput,
    kConstant,
    /*! \brief Written by operations. */
    kComputed,
    /*! \brief The elements of `source` in another shape. */
    kView,
    /*! \brief Written in blocks: the elements of `source`, which has `blocks` as dimensions. */
    kBlocked,
    /*! \brief Its dimension d is dimension permutation[d] of `source`. */
    kPermuted,
  };

  /*! \brief Emits an operation whose result has this layout. */
  using Emit = std::function<void(const Layout&)>;
  /*! \brief Whether an operation can have a result in this layout: one that would cut a block
   *  cannot. Empty: any will do. */
  using Accepts = std::function<bool(const Layout&)>;

  /*! \brief An operation that is emitted when its result is first read. */
  struct Pending {
    std::string label;
    /*! \brief The layout that suits it; none: that of the reader. */
    std::optional<Layout> wish;
    Accepts accepts;
    Emit emit;
  };

  struct Value {
    Value(Kind kind, const npu_tensor_desc& desc) : kind(kind), desc(desc) {}

    Kind kind;
    npu_tensor_desc desc;
    int64_t argument = -1;
    /*! \brief For an input: whether it is the argument in another shape. */
    bool is_reshaped = false;
    const void* data = nullptr;
    size_t bytes = 0;
    npu_tensor source = -1;
    Order permutation;
    Blocks blocks;
    std::shared_ptr<const Scales> scales;
    /*! \brief For an input, if there are any. */
    Samples samples;
    /*! \brief The driver's tensors, by their order. */
    std::map<Order, npu_tensor> forms;
    std::vector<Pending> pending;

    int rank() const { return desc.rank; }
    Dims dims() const { return {desc.dims, desc.dims + desc.rank}; }
  };

  /*! \brief A vector program that owns its memory. */
  struct Program {
    explicit Program(const npu_vector_program* program);
    bool is_there = false;
    std::vector<npu_vector_instruction> instructions;
    std::vector<npu_tensor> inputs;
    std::vector<npu_step> steps;
    npu_vector_program view = {};
  };

  Value& At(npu_tensor tensor);
  npu_tensor Append(Value value);

  /*! \brief The layouts of an operation's tensors. */
  struct Layouts {
    Layout data, weight, out;
  };

  /*! \brief The layouts that the driver declares for an operation, validated. */
  Layouts Ask(npu_operation operation, npu_tensor data, npu_tensor weight, npu_tensor out,
              int64_t groups);
  /*! \brief What the driver declares for one tensor, validated: blocks of its first dimensions. */
  Layout Declared(const npu_tensor_desc& desc, const std::vector<int32_t>& blocks,
                  const int32_t* order) const;
  /*! \brief The driver's tensor in this layout. */
  npu_tensor Read(npu_tensor tensor, const Layout& layout);
  npu_tensor Read(npu_tensor tensor, const Order& order);
  /*! \brief The driver's tensor in the header's order. */
  npu_tensor Read(npu_tensor tensor) { return Read(tensor, Identity(At(tensor).rank())); }
  /*! \brief The same for an operand of a program whose result has this layout. */
  npu_tensor ReadAligned(npu_tensor tensor, const Layout& layout);
  /*! \brief The driver's tensor that is written in this layout. */
  npu_tensor Write(npu_tensor tensor, const Layout& layout);
  npu_tensor Write(npu_tensor tensor, const Order& order);
  /*! \brief Tells the driver the scales of its tensor that has a value in this order. */
  void DescribeForm(npu_tensor form, const Value& value, const Order& order) const;
  npu_tensor ReadInput(const Value& value, const Order& order);
  /*! \brief The samples of an input in an order of its dimensions. */
  Samples SamplesOf(const Value& value, const Order& order);
  npu_tensor ReadConstant(const Value& value, const Order& order);
  /*! \brief An existing form of the tensor, in another order. */
  npu_tensor Convert(const Value& value, const Order& order);
  npu_tensor ViewAtDriver(npu_tensor tensor, const npu_tensor_desc& desc);

  /*! \brief The tensor with blocks as dimensions. */
  npu_tensor InBlocks(npu_tensor tensor, const Blocks& blocks);
  /*! \brief The layout of a tensor whose dimension d is dimension permutation[d] of another. */
  static Layout Permuted(const Layout& layout, const Order& permutation);

  /*! \brief The layout in which operations have written a tensor; none if none has. */
  std::optional<Layout> Written(npu_tensor tensor);
  /*! \brief Whether the driver has the tensor in this layout. */
  bool HasForm(npu_tensor tensor, const Layout& layout);
  /*! \brief A layout that a tensor has without a transposition; none if any order will do: it is an
   *  input, a constant, or computed only from these. */
  std::optional<Layout> Known(npu_tensor tensor);
  /*! \brief The layout of an operation on these operands; operands of another rank are ignored. */
  std::optional<Layout> Choose(const std::vector<npu_tensor>& operands, int rank);
  /*! \brief Emits an operation in the layout that `out` already has, else in the layout `wish`;
   *  without both, when its result is first read. */
  void Follow(npu_tensor out, std::optional<Layout> wish, Emit emit, const Accepts& accepts = {});
  /*! \brief The layout in which to emit pending operations: a wish, else that of the reader, if all
   *  accept it. */
  Layout LayoutOfPending(const Value& value, const std::optional<Layout>& reader);
  void EmitPending(npu_tensor tensor, const std::optional<Layout>& reader);
  /*! \brief Emits an operation on tensors of one rank, element by element or along its axis. The
   *  first `followed` tensors that it reads have the layout of its result, the others the header's
   *  order. */
  template <typename Op>
  void AddInAnyOrder(const Op& op, const std::vector<npu_tensor Op::*>& reads, size_t followed,
                     npu_status (*npu_build_api::*function)(npu_builder*, const Op*));
  /*! \brief Adds a convolution, or a transposed one. */
  template <typename Op>
  void AddConvolution(npu_operation operation, const Op& op);
  /*! \brief A program with the driver's tensors; NULL if there is no program. */
  const npu_vector_program* Place(Program* program, const Layout& layout);

  std::deque<std::vector<uint64_t>>* constants_;
  std::deque<Value> values_;
  std::unordered_map<npu_tensor, npu_tensor> aligned_;
  std::map<std::pair<npu_tensor, Blocks>, npu_tensor> in_blocks_;
  Ports ports_;
};

}  // namespace npu

#endif  // CODEGEN_LAYOUT_ADAPTER_H_
