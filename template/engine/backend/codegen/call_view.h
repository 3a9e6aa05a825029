// SPDX-License-Identifier: Apache-2.0
/*!
 * \file call_view.h
 * \brief What lowerings read: a call of a Relax op, its arguments, results and attributes.
 */
#ifndef CODEGEN_CALL_VIEW_H_
#define CODEGEN_CALL_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "npu_driver.h"

namespace npu {

// Only declared here: without tvm-ffi's headers, lowerings compile quickly.
struct Graph;
struct Node;
struct Unit;

/*! \brief An op, attribute or type cannot be compiled; what() is for the user. */
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/*! \brief A tensor of the program. If the driver declares layouts, its number at the driver
 *  differs: see Lowering::AtDriver. */
struct Tensor {
  npu_tensor id = -1;
  npu_tensor_desc desc = {};

  /*! \brief The number of dimensions. */
  int rank() const { return desc.rank; }
  /*! \brief The dimensions. */
  std::vector<npu_dim> dims() const { return {desc.dims, desc.dims + desc.rank}; }
};

/*! \brief Whether elements are floating-point numbers. */
inline bool IsFloat(npu_dtype dtype) { return dtype == NPU_FLOAT32 || dtype == NPU_FLOAT16; }

/*! \brief A dimension of fixed size. */
inline npu_dim FixedDim(int64_t size) { return npu_dim{size, -1}; }

/*! \brief A part of an index: index / divide % modulo * multiply; no % if modulo is 0. */
struct IndexTerm {
  int64_t axis = 0;
  int64_t divide = 1;
  int64_t modulo = 0;
  int64_t multiply = 1;
};

/*! \brief A call and what is fused into it, for reading. */
class CallView {
 public:
  CallView(const Graph* graph, const Unit* unit) : graph_(graph), unit_(unit) {}

  /*! \brief The op's name in messages, e.g. "relax.nn.conv2d (lv3)". */
  std::string Name() const;

  /*! \brief The number of tensor arguments; the fields of a tuple count one by one. */
  size_t InputCount() const;
  /*! \brief Whether argument `i` is stored with its last two dimensions swapped (only for ops that
   *  registered `.AbsorbsTranspose()`); its logical shape is InputDims(i). */
  bool InputIsTransposed(size_t i) const;
  /*! \brief The logical shape of argument `i`. */
  std::vector<npu_dim> InputDims(size_t i) const;
  /*! \brief The element type of argument `i`. */
  npu_dtype InputDtype(size_t i) const;

  /*! \brief The number of results. */
  size_t OutputCount() const;
  /*! \brief Whether anything reads result `i`; an unused one need not be written. */
  bool OutputIsUsed(size_t i) const;
  /*! \brief The shape of result `i`. */
  std::vector<npu_dim> OutputDims(size_t i = 0) const;
  /*! \brief The element type of result `i`. */
  npu_dtype OutputDtype(size_t i = 0) const;
  /*! \brief Whether the op computes with quantized tensors, in integers: Input(i) is what the model
   *  dequantizes, and Epilogue() turns the accumulator into the result (only for ops that
   *  registered `.TakesQuantized()`). */
  bool IsQuantized() const;
  /*! \brief Whether all arguments are integers that have scales at the driver. */
  bool ReadsScales() const;
  /*! \brief The zero point of argument `i`: the integer for the number 0; 0 unless quantized. */
  int32_t ZeroPoint(size_t i) const;

  /*! \name Attributes and non-tensor arguments, by their Relax names.
   * A missing attribute, or one of another type, is an error that names it. */
  ///@{
  bool Bool(const std::string& name) const;
  int64_t Int(const std::string& name) const;
  /*! \brief A number. For integer results, refuses numbers that float64 rounds. */
  double Float(const std::string& name) const;
  std::string String(const std::string& name) const;
  std::vector<int64_t> Ints(const std::string& name) const;
  std::vector<double> Floats(const std::string& name) const;
  /*! \brief An index map: for each dimension of the result, the terms whose sum is the index. */
  std::vector<std::vector<IndexTerm>> IndexMap(const std::string& name) const;
  /*! \brief Whether the attribute is absent or None. */
  bool IsNone(const std::string& name) const;
  ///@}

  /*! \brief Fails if the attribute is not among `supported`, naming both; None counts as "". */
  void RequireOneOf(const std::string& name, const std::vector<std::string>& supported) const;
  /*! \brief Stops compiling this op, with a reason; it then stays on the host. */
  [[noreturn]] void Refuse(const std::string& why) const;
  /*! \brief The size of a dimension; refuses a symbolic one. */
  int64_t FixedSize(const Tensor& tensor, int dim) const;
  /*! \brief The product of these dimensions as one dimension; refuses a product of symbols. */
  npu_dim Joined(const std::vector<npu_dim>& dims) const;

  /*! \name For the engine. */
  ///@{
  const Graph& graph() const { return *graph_; }
  const Unit& unit() const { return *unit_; }
  /*! \brief The call itself, without what is fused into it. */
  const Node& anchor() const;
  ///@}

 private:
  const Graph* graph_;
  const Unit* unit_;
};

}  // namespace npu

#endif  // CODEGEN_CALL_VIEW_H_
