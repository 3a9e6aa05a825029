// SPDX-License-Identifier: Apache-2.0
/*!
 * \file ports.h
 * \brief The inputs and outputs of a program, if they differ from those of the region.
 *
 * A driver may keep dimensions in an order of its own. Its program then reads and writes memory of
 * the request, and elements are permuted between this and the caller's memory.
 */
#ifndef RUNTIME_PORTS_H_
#define RUNTIME_PORTS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "npu_driver.h"
#include "permute.h"
#include "signature.h"

namespace npu {

/*! \brief One input or output of the program. */
struct RuntimePort {
  /*! \brief The index of its argument in the signature. */
  size_t argument = 0;
  /*! \brief The shape of the argument that is permuted; empty for its own. A size of -1 is known at
   *  the call, from the number of elements. */
  std::vector<int64_t> dims;
  /*! \brief For each dimension of the program, its index among these. */
  Order order;
};

/*! \brief A state that the program updates: the indices of its values in the signature. */
struct RuntimeState {
  size_t input = 0;
  size_t output = 0;
};

/*! \brief The inputs and outputs of a program, in its order; inputs first. */
class RuntimePorts {
 public:
  /*! \brief Reads codegen's text, "" for the region's own ports; throws an ArtifactError unless it
   *  fits the signature. */
  RuntimePorts(std::string_view text, const Signature& signature);

  const std::vector<RuntimePort>& ports() const { return ports_; }
  size_t input_count() const { return input_count_; }
  /*! \brief Whether an input and an output are a state that the program updates where it is. */
  bool Updates(size_t input, size_t output) const;

 private:
  std::vector<RuntimePort> ports_;
  std::vector<RuntimeState> states_;
  size_t input_count_ = 0;
};

/*! \brief A buffer of the caller and its counterpart at the driver, permuted. */
struct Permutation {
  std::vector<int64_t> dims;
  Order order;
  size_t element_bytes = 0;
  void* caller = nullptr;
  /*! \brief The driver's memory. Words, so that every element type is aligned. */
  std::vector<uint64_t> memory;
  bool is_output = false;

  /*! \brief Copies from the caller's memory to the driver's, or back. */
  void Run();
};

/*!
 * \brief The buffer that the driver gets for a port.
 * \param port The port.
 * \param buffer The caller's buffer.
 * \param dims Gets the driver's dimensions, which the result refers to.
 * \param permutation Is set up, unless the caller's memory will do.
 * \return The driver's buffer.
 */
npu_buffer PlaceBuffer(const RuntimePort& port, const npu_buffer& buffer,
                       std::vector<int64_t>* dims, Permutation* permutation);

}  // namespace npu

#endif  // RUNTIME_PORTS_H_
