// SPDX-License-Identifier: Apache-2.0
/*!
 * \file signature.h
 * \brief The arguments of a region: read from its graph, checked at each call.
 */
#ifndef RUNTIME_SIGNATURE_H_
#define RUNTIME_SIGNATURE_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npu_driver.h"

namespace npu {

/*! \brief The expected size: `factor`, or `factor` times a symbol's value. */
struct ExpectedDim {
  int64_t factor = 0;
  int symbol = -1;
};

/*! \brief The expected type of an argument. */
struct Argument {
  std::string name;
  /*! \brief False for a shape or a number, which the program does not read. */
  bool is_tensor = false;
  DLDataType dtype = {};
  npu_dtype driver_dtype = NPU_FLOAT32;
  std::vector<ExpectedDim> dims;
  /*! \brief The dims as text, e.g. "(n, 3, 8, 8)". */
  std::string shape_text;
};

/*! \brief Parses JSON of an artifact; throws an ArtifactError unless it is an object of limited
 *  depth, since the parser recurses. */
tvm::ffi::json::Object ParseObject(std::string_view text, const char* section);

/*! \brief The arguments of a region, outputs last, from the graph. */
class Signature {
 public:
  /*! \brief Reads the graph; throws an ArtifactError if codegen did not write it. */
  Signature(const std::string& symbol, std::string_view graph_json);

  const std::vector<Argument>& arguments() const { return arguments_; }
  /*! \brief How many of the arguments are inputs. */
  size_t input_count() const { return input_count_; }

  /*!
   * \brief Throws an error for the user unless the arguments match.
   * \param args The arguments of the call.
   * \param buffers Gets the memory of each argument that is a tensor, at the argument's index.
   * \return Whether there is something to compute: not for an empty batch.
   */
  bool Check(const tvm::ffi::PackedArgs& args, npu_buffer* buffers) const;

  /*! \brief The name of an argument in messages. */
  std::string Describe(const Argument& argument) const;

 private:
  void Read(const tvm::ffi::json::Object& root);
  Argument ReadArgument(const tvm::ffi::json::Object& node, int64_t index) const;
  std::string DimText(const ExpectedDim& dim) const;
  void CheckTensor(const Argument& argument, const DLTensor& tensor, int64_t* values) const;

  std::string symbol_;
  std::vector<Argument> arguments_;
  size_t input_count_ = 0;
  std::vector<std::string> symbols_;
};

}  // namespace npu

#endif  // RUNTIME_SIGNATURE_H_
