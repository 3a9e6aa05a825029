// SPDX-License-Identifier: Apache-2.0
#include "ports.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "artifact.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

[[noreturn]] void Corrupt(const std::string& defect) {
  throw ArtifactError("is corrupt: its ports " + defect + "; compile the model again");
}

int64_t CountOf(const int64_t* begin, const int64_t* end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

/*! \brief The number of elements of a shape, where at most one size is known only at the call. */
struct Count {
  /*! \brief The product of the fixed sizes and of the unknown size's factor; 0 if one is
   * impossible.
   */
  int64_t fixed = 1;
  int unknown = 0;

  void Add(int64_t factor, bool is_unknown) {
    unknown += is_unknown ? 1 : 0;
    if (factor < 1 || __builtin_mul_overflow(fixed, factor, &fixed)) fixed = 0;
  }
};

/*! \brief Whether a port's shape has the elements of the argument, whatever its unknown size. */
bool HasElementsOf(const Argument& argument, const std::vector<int64_t>& dims) {
  Count of_port, of_argument;
  for (int64_t size : dims) of_port.Add(size == -1 ? 1 : size, size == -1);
  for (const ExpectedDim& dim : argument.dims) of_argument.Add(dim.factor, dim.symbol >= 0);
  if (of_port.fixed == 0 || of_argument.fixed == 0) return false;
  if (of_port.unknown != of_argument.unknown || of_port.unknown > 1) return false;
  return of_port.unknown == 0 ? of_port.fixed == of_argument.fixed
                              : of_argument.fixed % of_port.fixed == 0;
}

std::vector<int64_t> ReadNumbers(const json::Object& object, const char* key) {
  std::vector<int64_t> numbers;
  for (const ffi::Any& number : object[ffi::String(key)].cast<json::Array>()) {
    numbers.push_back(number.cast<int64_t>());
  }
  return numbers;
}

RuntimePort ReadPort(const json::Object& object, const std::vector<Argument>& arguments,
                     size_t first, size_t end) {
  RuntimePort port;
  const auto index = object[ffi::String("argument")].cast<int64_t>();
  if (index < 0 || static_cast<uint64_t>(index) >= end - first ||
      !arguments[first + static_cast<size_t>(index)].is_tensor) {
    Corrupt("refer to an argument that does not exist");
  }
  port.argument = first + static_cast<size_t>(index);
  const Argument& argument = arguments[port.argument];
  size_t rank = argument.dims.size();
  if (object.count(ffi::String("dims")) != 0) {
    port.dims = ReadNumbers(object, "dims");
    rank = port.dims.size();
    if (!HasElementsOf(argument, port.dims)) {
      Corrupt("have a shape with another number of elements than '" + argument.name + "'");
    }
  }
  const std::vector<int64_t> order = ReadNumbers(object, "order");
  for (int64_t dim : order) {
    port.order.push_back(static_cast<int>(std::clamp<int64_t>(dim, -1, NPU_MAX_RANK)));
  }
  if (order.size() != rank || !IsPermutation(port.order)) {
    Corrupt("have an order that is not a permutation of the dimensions of '" + argument.name + "'");
  }
  return port;
}

bool HasSameType(const Argument& one, const Argument& other) {
  const auto is_same = [](const ExpectedDim& a, const ExpectedDim& b) {
    return a.factor == b.factor && a.symbol == b.symbol;
  };
  return one.is_tensor && other.is_tensor && one.driver_dtype == other.driver_dtype &&
         std::equal(one.dims.begin(), one.dims.end(), other.dims.begin(), other.dims.end(),
                    is_same);
}

std::vector<RuntimeState> ReadStates(const json::Array& pairs, const Signature& signature) {
  std::vector<RuntimeState> states;
  const std::vector<Argument>& arguments = signature.arguments();
  const size_t first_output = signature.input_count();
  for (const ffi::Any& pair : pairs) {
    const auto numbers = pair.cast<json::Array>();
    if (numbers.size() != 2) Corrupt("have a state that is no pair");
    const auto input = static_cast<uint64_t>(numbers[0].cast<int64_t>());
    const auto output = static_cast<uint64_t>(numbers[1].cast<int64_t>());
    if (input >= first_output || output >= arguments.size() - first_output) {
      Corrupt("have a state of an argument that does not exist");
    }
    const RuntimeState state = {input, first_output + output};
    if (!HasSameType(arguments[state.input], arguments[state.output])) {
      Corrupt("have a state whose values differ in type or shape");
    }
    for (const RuntimeState& other : states) {
      if (other.input == state.input || other.output == state.output) {
        Corrupt("have two states of one argument");
      }
    }
    states.push_back(state);
  }
  return states;
}

}  // namespace

RuntimePorts::RuntimePorts(std::string_view text, const Signature& signature) {
  if (text.empty()) return;
  const json::Object root = ParseObject(text, "ports");
  const std::vector<Argument>& arguments = signature.arguments();
  const size_t first_output = signature.input_count();
  try {
    if (root.count(ffi::String("states")) != 0) {
      states_ = ReadStates(root[ffi::String("states")].cast<json::Array>(), signature);
      if (root.count(ffi::String("inputs")) == 0) return;
    }
    for (const ffi::Any& port : root[ffi::String("inputs")].cast<json::Array>()) {
      ports_.push_back(ReadPort(port.cast<json::Object>(), arguments, 0, first_output));
    }
    input_count_ = ports_.size();
    for (const ffi::Any& port : root[ffi::String("outputs")].cast<json::Array>()) {
      ports_.push_back(
          ReadPort(port.cast<json::Object>(), arguments, first_output, arguments.size()));
      const size_t position = ports_.size() - 1 - input_count_;
      if (ports_.back().argument != first_output + position) Corrupt("mix up the outputs");
    }
  } catch (const ffi::Error&) {
    Corrupt("were not written by this backend");
  }
  if (ports_.size() - input_count_ != arguments.size() - first_output) {
    Corrupt("have another number of outputs than the region");
  }
}

bool RuntimePorts::Updates(size_t input, size_t output) const {
  return std::any_of(states_.begin(), states_.end(), [&](const RuntimeState& state) {
    return state.input == input && state.output == output;
  });
}

void Permutation::Run() {
  if (caller == nullptr) return;
  if (!is_output) return Permute(dims.data(), order, element_bytes, caller, memory.data());
  const std::vector<int64_t> stored = Reordered(dims.data(), order);
  Permute(stored.data(), Inverse(order), element_bytes, memory.data(), caller);
}

npu_buffer PlaceBuffer(const RuntimePort& port, const npu_buffer& buffer,
                       std::vector<int64_t>* dims, Permutation* permutation) {
  std::vector<int64_t> shape = port.dims;
  const int64_t count = CountOf(buffer.dims, buffer.dims + buffer.rank);
  const auto unknown = std::find(shape.begin(), shape.end(), -1);
  if (unknown != shape.end()) {
    *unknown = 1;
    *unknown = count / CountOf(shape.data(), shape.data() + shape.size());
  }
  if (shape.size() != port.order.size()) shape.assign(buffer.dims, buffer.dims + buffer.rank);
  *dims = Reordered(shape.data(), port.order);
  npu_buffer placed = buffer;
  placed.rank = static_cast<int32_t>(dims->size());
  placed.dims = dims->data();
  permutation->caller = nullptr;
  if (KeepsPlaces(shape.data(), port.order)) return placed;
  permutation->caller = buffer.data;
  permutation->memory.resize((buffer.bytes + 7) / 8);
  permutation->order = port.order;
  permutation->element_bytes = count == 0 ? 1 : buffer.bytes / static_cast<size_t>(count);
  permutation->dims = std::move(shape);
  placed.data = permutation->memory.data();
  return placed;
}

}  // namespace npu
