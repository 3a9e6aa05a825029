// SPDX-License-Identifier: Apache-2.0
/*!
 * \file decoder.h
 * \brief Continues a text with a decoder, as Conversation does in Python: tokens are numbers.
 */
#ifndef RUN_MODEL_DECODER_H_
#define RUN_MODEL_DECODER_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model.h"

namespace run_model {

/*! \brief The text of one session, and the functions of a decoder that add to it. */
class Decoder {
 public:
  explicit Decoder(const ffi::Module& machine) : session_(machine) {
    namespace json = ffi::json;
    auto text = CallOf(machine, std::string(kBackend) + "_functions_with_states");
    auto bytes = text.cast<ffi::Tensor>();
    ffi::String content(static_cast<const char*>(bytes.data_ptr()),
                        static_cast<size_t>(bytes.numel()));
    for (const auto& [name, value] : json::Parse(content).cast<json::Object>()) {
      const auto described = value.cast<json::Object>();
      const bool keeps_last =
          described.count("window") != 0 && described["window"].as<int64_t>().has_value();
      Program program{name.cast<ffi::String>(), {}, 0, keeps_last};
      for (const ffi::Any& item : described["inputs"].cast<json::Array>()) {
        Add(&program, item.cast<json::Array>());
      }
      if (program.steps == 0) throw UserError("'" + program.name + "' takes no tokens.");
      const auto is_mask = [](const Input& input) { return input.role == kMask; };
      if (keeps_last && std::none_of(program.inputs.begin(), program.inputs.end(), is_mask)) {
        throw UserError("'" + program.name +
                        "' keeps its last steps, and takes no mask that hides "
                        "those that it does not have yet.");
      }
      if (program.steps == 1) words_ = WordsOf(described["result"].cast<json::Array>());
      if (auto room = described["room"].as<int64_t>()) Limit(*room + program.steps - 1);
      programs_.emplace(program.steps, std::move(program));
    }
    if (programs_.count(1) == 0) {
      throw UserError("The decoder needs a function for one token, and has none.");
    }
  }

  /*! \brief Adds tokens, in chunks as large as functions take; returns the likeliest next one. */
  int64_t Feed(const std::vector<int64_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t token : tokens) {
      if (token < 0 || token >= words_) {
        throw UserError("The token " + std::to_string(token) +
                        " is not one of the decoder's, 0 to " + std::to_string(words_ - 1) + ".");
      }
    }
    if (capacity_ != 0 && length_ + count > capacity_) {
      throw UserError("The text has " + std::to_string(length_) + " tokens, and " +
                      std::to_string(count) + " are to be added; the cache has room for " +
                      std::to_string(capacity_) + ".");
    }
    ffi::Any result;
    for (int64_t done = 0; done < count;) {
      const Program& program = std::prev(programs_.upper_bound(count - done))->second;
      result = session_.Call(program.name, InputsOf(program, tokens.data() + done));
      done += program.steps;
      length_ += program.steps;
    }
    return Likeliest(result);
  }

  /*! \brief Whether nothing can be added; never, where nothing tells. */
  bool IsFull() const { return length_ == capacity_; }

 private:
  enum Role { kTokens, kPositions, kMask };
  struct Input {
    Role role;
    DLDataType dtype;
    Dims shape;
  };
  struct Program {
    std::string name;
    std::vector<Input> inputs;
    int64_t steps;
    /*! \brief Whether its states have the last steps, behind those that are not there yet. */
    bool keeps_last;
  };

  /*! \brief Adds an input: its name, type and sizes. */
  void Add(Program* program, const ffi::json::Array& described) {
    static const std::map<std::string, Role> roles = {
        {"input_ids", kTokens},       {"ids", kTokens},
        {"tokens", kTokens},          {"token", kTokens},
        {"position_ids", kPositions}, {"cache_position", kPositions},
        {"positions", kPositions},    {"position", kPositions},
        {"input_pos", kPositions},    {"attention_mask", kMask},
    };
    const std::string name = described[0].cast<ffi::String>();
    auto role = roles.find(name);
    auto sizes = described[2].as<ffi::json::Array>();
    Dims shape;
    for (size_t i = 0; sizes.has_value() && i < sizes->size(); ++i) {
      auto size = (*sizes)[static_cast<int64_t>(i)].as<int64_t>();
      if (size.has_value()) shape.push_back(*size);
    }
    if (role == roles.end() || !sizes.has_value() || shape.size() != sizes->size()) {
      throw UserError("'" + program->name + "' takes '" + name +
                      "'; supported are tokens, positions and a mask of fixed sizes, by the names "
                      "that exporters give them, such as input_ids.");
    }
    Input input{role->second, ffi::StringToDLDataType(described[1].cast<ffi::String>()), shape};
    if (input.role == kTokens) program->steps = CountOf(input);
    if (input.role == kMask) Limit(shape.back());
    program->inputs.push_back(std::move(input));
  }

  /*! \brief The size of the vocabulary, of the type and the sizes of a result. */
  static int64_t WordsOf(const ffi::json::Array& result) {
    auto sizes = result[1].as<ffi::json::Array>();
    auto words = sizes.has_value() && !sizes->empty() ? sizes->back().as<int64_t>() : std::nullopt;
    if (!words.has_value()) {
      throw UserError("The first result of a decoder has scores of tokens, whose number is fixed.");
    }
    return *words;
  }

  void Limit(int64_t capacity) {
    capacity_ = capacity_ == 0 ? capacity : std::min(capacity_, capacity);
  }

  static int64_t CountOf(const Input& input) {
    return std::accumulate(input.shape.begin(), input.shape.end(), int64_t{1},
                           std::multiplies<int64_t>());
  }

  std::vector<ffi::Tensor> InputsOf(const Program& program, const int64_t* tokens) const {
    std::vector<ffi::Tensor> tensors;
    for (const Input& input : program.inputs) {
      std::vector<int64_t> values(static_cast<size_t>(CountOf(input)));
      for (size_t i = 0; i < values.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        if (input.role == kTokens) values[i] = tokens[at];
        if (input.role == kPositions) values[i] = length_ + at;
        if (input.role == kMask) {
          const int64_t size = input.shape.back(), place = at % size;
          const int64_t known = length_ + program.steps;
          values[i] = (program.keeps_last ? place >= size - known : place < known) ? 1 : 0;
        }
      }
      ffi::Tensor tensor = MakeTensor(input.shape, input.dtype);
      const std::string dtype = ffi::DLDataTypeToString(input.dtype);
      if (dtype == "int64") {
        Copy<int64_t>(values, tensor);
      } else if (dtype == "int32") {
        Copy<int32_t>(values, tensor);
      } else if (dtype == "float32") {
        Copy<float>(values, tensor);
      } else if (dtype == "bool") {
        Copy<bool>(values, tensor);
      } else {
        throw UserError("'" + program.name + "' takes " + dtype +
                        "; supported are int64, int32, float32 and bool.");
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

  template <typename T>
  static void Copy(const std::vector<int64_t>& values, const ffi::Tensor& tensor) {
    std::transform(values.begin(), values.end(), static_cast<T*>(tensor.data_ptr()),
                   [](int64_t value) { return static_cast<T>(value); });
  }

  /*! \brief The token with the largest of the last scores, which are the first result. */
  static int64_t Likeliest(const ffi::Any& result) {
    auto tuple = result.as<ffi::Array<ffi::Any>>();
    auto scores = (tuple.has_value() ? (*tuple)[0] : result).cast<ffi::Tensor>();
    if (ffi::DLDataTypeToString(scores.dtype()) != "float32") {
      throw UserError("The scores of tokens are " + ffi::DLDataTypeToString(scores.dtype()) +
                      "; supported is float32.");
    }
    const int64_t words = scores.shape().back();
    const float* end = static_cast<const float*>(scores.data_ptr()) + scores.numel();
    return std::max_element(end - words, end) - (end - words);
  }

  Session session_;
  /*! \brief By the number of tokens that they take. */
  std::map<int64_t, Program> programs_;
  /*! \brief How many tokens the text has, and how many there is room for: 0 if nothing tells. */
  int64_t length_ = 0, capacity_ = 0;
  /*! \brief The size of the vocabulary. */
  int64_t words_ = 0;
};

}  // namespace run_model

#endif  // RUN_MODEL_DECODER_H_
