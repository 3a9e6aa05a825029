// SPDX-License-Identifier: Apache-2.0
/*!
 * \file rules.h
 * \brief The rules of each operation for shapes and types.
 *
 * One set of rules for the operations of a model (compiler/graph.h) and for the commands of a
 * program (program.h), so that neither builders nor corrupt or forged bytes can violate them.
 */
#ifndef EMULATOR_RULES_H_
#define EMULATOR_RULES_H_

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "driver_kit/vector_opcodes.h"
#include "operations.h"
#include "tensor.h"

namespace npu::emulator {

/*! \brief The number of an enumerator; from C or from bytes, it may be anything. */
template <typename Enum>
int32_t Number(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int32_t), "the C API has 32-bit enumerations");
  int32_t number;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

inline bool Fixed(const Dim& dim) { return dim.symbol < 0; }

inline bool HasFixedDims(const Desc& desc) {
  return std::all_of(desc.dims, desc.dims + desc.rank, Fixed);
}

inline bool HasDims(const Desc& desc, const std::vector<Dim>& dims) {
  return desc.rank == static_cast<int32_t>(dims.size()) &&
         std::equal(dims.begin(), dims.end(), desc.dims);
}

/*! \brief Checks operations; a subclass knows the tensors. Everything throws an Error. */
class OperationRules {
 public:
  virtual ~OperationRules() = default;

 protected:
  /*! \brief The shape of a tensor that the operation reads in this role. */
  virtual const Desc& Read(npu_tensor tensor, const char* role, bool may_be_packed) = 0;
  /*! \brief The shape of the tensor that the operation writes. */
  virtual const Desc& Write(npu_tensor tensor) = 0;
  /*! \brief The current operation, for messages. */
  virtual std::string Where() const = 0;
  /*! \brief A tensor, for messages. */
  virtual std::string Describe(npu_tensor tensor) const = 0;

  void Check(const npu_matmul& op);
  void Check(const npu_convolution& op);
  void Check(const npu_pool& op);
  void Check(const npu_elementwise& op);
  void Check(const npu_reduce& op);
  void Check(const npu_gather& op);
  void Check(const npu_update& op);
#define NPU_CHECK(name, reads) void Check(const npu_##name& op);
  NPU_PLAIN_OPERATIONS(NPU_CHECK, )
#undef NPU_CHECK
  /*! \brief The number of an operation's kind, which is at most `last`. */
  template <typename Kind>
  int32_t CheckKind(const Kind& kind, Kind last) const {
    const int32_t number = Number(kind);
    if (number < 0 || number > last) {
      Invalid("The kind of ", Where(), " is ", number, ", which does not exist.");
    }
    return number;
  }
  void CheckAxis(int32_t axis, npu_tensor tensor, const Desc& desc) const;
  void CheckSameShape(npu_tensor tensor, const Desc& data, npu_tensor output,
                      const Desc& out) const;
  /*! \brief The type in which an operation passes its results to its epilogue; none for an
   *  elementwise operation. */
  template <typename Op>
  std::optional<npu_dtype> Accumulator(const Op& op) {
    if constexpr (std::is_same_v<Op, npu_elementwise>) return std::nullopt;
    if constexpr (std::is_same_v<Op, npu_reduce>) {
      return IsInteger(Read(op.data, "data", false).dtype) ? NPU_INT64 : NPU_FLOAT32;
    }
    if constexpr (std::is_same_v<Op, npu_matmul>) {
      return AccumulatorOf(Read(op.a, "operand a", false).dtype);
    }
    if constexpr (std::is_same_v<Op, npu_convolution>) {
      return AccumulatorOf(Read(op.data, "data", false).dtype);
    }
    return NPU_FLOAT32;
  }
  /*! \brief Checks an elementwise operation's program, or the epilogue of another. */
  template <typename Op>
  void CheckVector(const Op& op, const std::vector<npu_vector_instruction>& instructions,
                   const std::vector<npu_tensor>& inputs, const Desc& out) {
    constexpr bool kProduct = std::is_same_v<Op, npu_matmul> || std::is_same_v<Op, npu_convolution>;
    std::optional<npu_dtype> accumulator = Accumulator(op);
    CheckVector(instructions, inputs, out, accumulator, kProduct);
    if (kProduct && instructions.empty()) CheckPlainProduct(op.out, out, *accumulator);
  }

 private:
  /*! \brief Checks the types of the factors of a product, and their zero points. */
  void CheckFactors(npu_tensor a, int32_t a_zero_point, npu_tensor b, int32_t b_zero_point,
                    bool convolution);
  /*! \brief Checks weights of integers and their scales. */
  void CheckWeights(const npu_matmul& op, const Desc& b);
  void CheckZeroPoint(npu_tensor tensor, npu_dtype dtype, int32_t zero_point) const;
  /*! \brief Checks the output of a product without an epilogue. */
  void CheckPlainProduct(npu_tensor tensor, const Desc& out, npu_dtype accumulator) const;
  /*! \param converts Whether an accumulator that is an integer may become a real number. */
  void CheckVector(const std::vector<npu_vector_instruction>& instructions,
                   const std::vector<npu_tensor>& inputs, const Desc& out,
                   std::optional<npu_dtype> accumulator, bool converts);
  /*! \brief Checks a program that is computed in int64. */
  void CheckIntegers(const std::vector<npu_vector_instruction>& instructions) const;
};

/*! \brief Throws unless type, rank and sizes are possible. */
void CheckDesc(const Desc& desc, const std::vector<Symbol>& symbols);

}  // namespace npu::emulator

#endif  // EMULATOR_RULES_H_
