// SPDX-License-Identifier: Apache-2.0
/*!
 * \file main.cc
 * \brief Runs an exported model without Python: tvm-ffi, TVM's runtime, the backend's runtime.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "decoder.h"
#include "model.h"

namespace {

// NOLINTNEXTLINE(google-build-using-namespace)
using namespace run_model;

constexpr const char* kUsage = R"(Usage: run_model MODEL.so [option ...]

  --input FILE.npy           the next input of the model
  --input DTYPE:SHAPE        the next input, made up and always the same: float32:1x3x224x224
  --input DTYPE:SHAPE:FILE   the next input, raw numbers: float32:1x3x224x224:image.bin
  --function NAME            what to call (main)
  --session                  keep the states of the model from call to call
  --output PREFIX            write the results to PREFIX_0.npy, PREFIX_1.npy ...
  --runs N                   call N more times, print times, and write the last results
  --counters                 print what the NPU counted
  --device INDEX             which NPU

Or, to continue a text with a decoder:

  --prompt TOKENS            numbers, such as 12,7,30, or a file of them
  --most N                   how many tokens to add at most (64)
  --stop TOKENS              numbers that end the text
)";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError("There is no file '" + path + "' that can be read.");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/*! \brief Copies numbers from a file into a tensor that they fill. */
void Fill(const ffi::Tensor& tensor, const std::string& bytes, size_t offset,
          const std::string& path) {
  size_t size = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  size_t found = bytes.size() - std::min(offset, bytes.size());
  if (found != size) {
    throw UserError("'" + path + "' holds " + std::to_string(found) +
                    " bytes of numbers, but its shape takes " + std::to_string(size) + ".");
  }
  std::memcpy(tensor.data_ptr(), bytes.data() + offset, size);
}

// ---- NumPy's files ----

/*! \brief NumPy's letters for types, e.g. "f4", and TVM's names. */
const std::map<std::string, std::string>& NumpyTypes() {
  static const std::map<std::string, std::string> types = {
      {"f2", "float16"}, {"f4", "float32"}, {"f8", "float64"}, {"i1", "int8"},
      {"i2", "int16"},   {"i4", "int32"},   {"i8", "int64"},   {"u1", "uint8"},
      {"u2", "uint16"},  {"u4", "uint32"},  {"u8", "uint64"},  {"b1", "bool"},
  };
  return types;
}

/*! \brief The text between two others, after a key of the header. */
std::optional<std::string> Field(const std::string& header, const std::string& key,
                                 const std::string& open, const std::string& close) {
  size_t at = header.find("'" + key + "'");
  size_t begin = at == std::string::npos ? at : header.find(open, at + key.size() + 2);
  if (begin == std::string::npos) return std::nullopt;
  begin += open.size();
  size_t end = header.find(close, begin);
  if (end == std::string::npos) return std::nullopt;
  return header.substr(begin, end - begin);
}

/*! \brief Reads "3, 4" or "3x4". */
Dims ReadShape(const std::string& text, char separator, const std::string& where) {
  Dims shape;
  std::string rest = text;
  rest.erase(std::remove(rest.begin(), rest.end(), ' '), rest.end());
  while (!rest.empty()) {
    size_t length = std::min(rest.find(separator), rest.size());
    std::string number = rest.substr(0, length);
    if (number.empty() || number.size() > 18 ||
        number.find_first_not_of("0123456789") != std::string::npos) {
      throw UserError(where + " has the shape '" + text + "', which is not a list of sizes.");
    }
    shape.push_back(std::stoll(number));
    rest.erase(0, length + 1);
  }
  return shape;
}

ffi::Tensor ReadNumpy(const std::string& path) {
  constexpr size_t kFixedPart = 10;
  std::string bytes = ReadFile(path);
  bool is_numpy = bytes.size() >= kFixedPart && bytes.compare(0, 6, "\x93NUMPY") == 0;
  if (!is_numpy || bytes[6] != 1) {
    throw UserError("'" + path + "' is not a .npy file of version 1, as numpy.save writes it.");
  }
  size_t data = kFixedPart + static_cast<unsigned char>(bytes[8]) +
                256 * static_cast<size_t>(static_cast<unsigned char>(bytes[9]));
  std::string header = bytes.substr(kFixedPart, data - kFixedPart);
  auto dtype = Field(header, "descr", "'", "'");
  auto shape = Field(header, "shape", "(", ")");
  if (!dtype || !shape || dtype->size() < 2) {
    throw UserError("The header of '" + path + "' is damaged.");
  }
  auto known = NumpyTypes().find(dtype->substr(1));
  if ((*dtype)[0] == '>' || known == NumpyTypes().end()) {
    throw UserError("'" + path + "' holds numbers of the type '" + *dtype +
                    "', which run_model does not know.");
  }
  if (header.find("'fortran_order': False") == std::string::npos) {
    throw UserError("'" + path + "' is in Fortran order: save numpy.ascontiguousarray of it.");
  }
  Dims sizes = ReadShape(*shape, ',', "'" + path + "'");
  ffi::Tensor tensor = MakeTensor(sizes, ffi::StringToDLDataType(known->second));
  Fill(tensor, bytes, data, path);
  return tensor;
}

std::string ShapeText(const ffi::Tensor& tensor) {
  std::string text;
  for (int64_t size : tensor.shape()) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "(" + text + (tensor.ndim() == 1 ? ",)" : ")");
}

void WriteNumpy(const std::string& path, const ffi::Tensor& tensor) {
  std::string dtype = ffi::DLDataTypeToString(tensor.dtype());
  std::string letters;
  for (const auto& [numpy, name] : NumpyTypes()) {
    if (name == dtype) letters = numpy;
  }
  if (letters.empty()) throw UserError("A result of type " + dtype + " cannot be written.");
  std::string header = "{'descr': '" + std::string(letters.back() == '1' ? "|" : "<") + letters +
                       "', 'fortran_order': False, 'shape': " + ShapeText(tensor) + ", }";
  constexpr size_t kFixedPart = 10, kAlignment = 64;
  header.resize((kFixedPart + header.size() + kAlignment) / kAlignment * kAlignment - kFixedPart,
                ' ');
  header.back() = '\n';
  std::ofstream file(path, std::ios::binary);
  file << std::string("\x93NUMPY\x01\0", 8) << static_cast<char>(header.size() % 256)
       << static_cast<char>(header.size() / 256) << header;
  file.write(static_cast<const char*>(tensor.data_ptr()),
             static_cast<std::streamsize>(ffi::GetDataSize(*tensor.GetDLTensorPtr())));
  if (!file.flush()) throw UserError("'" + path + "' cannot be written.");
}

// ---- Inputs ----

/*! \brief Values in [0, 1), or small whole numbers, the same on every machine. */
void MakeUp(const ffi::Tensor& tensor) {
  size_t size = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  DLDataType dtype = tensor.dtype();
  uint32_t state = 1;
  auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 24; };
  if (dtype.code == kDLFloat && dtype.bits == 32) {
    auto* values = static_cast<float*>(tensor.data_ptr());
    std::generate_n(values, size / sizeof(float), [&] { return next() / 256.0f; });
  } else if (dtype.bits == 8) {
    auto* values = static_cast<uint8_t*>(tensor.data_ptr());
    std::generate_n(values, size, [&] { return static_cast<uint8_t>(next() % 2); });
  } else {
    throw UserError("run_model makes up inputs of float32 and of 8 bits only: give it a file.");
  }
}

ffi::Tensor ReadInput(const std::string& text) {
  size_t dtype_end = text.find(':');
  if (dtype_end == std::string::npos || std::filesystem::exists(text)) return ReadNumpy(text);
  size_t shape_end = std::min(text.find(':', dtype_end + 1), text.size());
  std::string dtype = text.substr(0, dtype_end);
  bool is_known = false;
  for (const auto& [letters, name] : NumpyTypes()) is_known |= name == dtype;
  if (!is_known) throw UserError("'" + text + "' begins with no type such as float32.");
  Dims shape =
      ReadShape(text.substr(dtype_end + 1, shape_end - dtype_end - 1), 'x', "'" + text + "'");
  ffi::Tensor tensor = MakeTensor(shape, ffi::StringToDLDataType(dtype));
  if (shape_end == text.size()) {
    MakeUp(tensor);
  } else {
    std::string path = text.substr(shape_end + 1);
    Fill(tensor, ReadFile(path), 0, path);
  }
  return tensor;
}

// ---- The model ----

/*! \brief Prints the NPU's counters for each region of the model. */
void PrintCounters(const ffi::Module& module) {
  if (module->kind() == std::string(kBackend)) {
    std::string symbol = CallOf(module, "get_symbol").cast<ffi::String>();
    auto counters = CallOf(module, "counters").cast<ffi::Map<ffi::String, int64_t>>();
    std::map<std::string, int64_t> sorted(counters.begin(), counters.end());
    for (const auto& [name, value] : sorted) {
      std::printf("%s %s %lld\n", symbol.c_str(), name.c_str(), static_cast<long long>(value));
    }
  }
  for (const ffi::Any& import : module->imports()) PrintCounters(import.cast<ffi::Module>());
}

/*! \brief A result is a tensor, or a tuple of results. */
void Flatten(const ffi::Any& result, std::vector<ffi::Tensor>* tensors) {
  if (auto tensor = result.as<ffi::Tensor>()) {
    tensors->push_back(*tensor);
  } else if (auto tuple = result.as<ffi::Array<ffi::Any>>()) {
    for (const ffi::Any& item : *tuple) Flatten(item, tensors);
  } else {
    throw UserError("The model returns something other than tensors.");
  }
}

// ---- The command line ----

struct Arguments {
  std::string model, function = "main", output;
  std::vector<std::string> inputs;
  std::vector<int64_t> prompt, stop;
  int runs = 0, device = -1, most = 64;
  bool counters = false, session = false;
};

int ReadNumber(const std::string& option, const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) {
    throw UserError(option + " takes a number, not '" + text + "'.");
  }
  return std::stoi(text);
}

/*! \brief Reads numbers of tokens, or a file of them, between commas, spaces or lines. */
std::vector<int64_t> ReadTokens(const std::string& option, std::string text) {
  if (std::filesystem::is_regular_file(text)) text = ReadFile(text);
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream words(text);
  std::vector<int64_t> tokens;
  for (std::string word; words >> word;) tokens.push_back(ReadNumber(option, word));
  if (tokens.empty()) throw UserError(option + " has no tokens; give at least one.");
  return tokens;
}

Arguments ReadArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    std::string option = argv[i];
    auto value = [&]() -> std::string {
      if (++i == argc) throw UserError(option + " needs a value.");
      return argv[i];
    };
    if (option == "--input") {
      arguments.inputs.push_back(value());
    } else if (option == "--function") {
      arguments.function = value();
    } else if (option == "--output") {
      arguments.output = value();
    } else if (option == "--runs") {
      arguments.runs = ReadNumber(option, value());
    } else if (option == "--device") {
      arguments.device = ReadNumber(option, value());
    } else if (option == "--counters") {
      arguments.counters = true;
    } else if (option == "--session") {
      arguments.session = true;
    } else if (option == "--prompt") {
      arguments.prompt = ReadTokens(option, value());
    } else if (option == "--most") {
      arguments.most = ReadNumber(option, value());
    } else if (option == "--stop") {
      arguments.stop = ReadTokens(option, value());
    } else if (option[0] == '-' || !arguments.model.empty()) {
      throw UserError("'" + option + "' is not understood.\n\n" + kUsage);
    } else {
      arguments.model = option;
    }
  }
  if (arguments.model.empty()) throw UserError(std::string("Which model?\n\n") + kUsage);
  const bool is_call = arguments.session || !arguments.inputs.empty() ||
                       !arguments.output.empty() || arguments.runs > 0;
  if (is_call && !arguments.prompt.empty()) {
    throw UserError(
        "--prompt continues a text: it takes no --input, --session, --output or --runs.");
  }
  return arguments;
}

/*! \brief Writes the likeliest tokens behind a prompt as they come. */
void Continue(const ffi::Module& machine, const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  Decoder decoder(machine);
  std::vector<int64_t> tokens = arguments.prompt;
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  int count = 0;
  while (count < arguments.most) {
    const int64_t token = decoder.Feed(tokens);
    if (std::count(arguments.stop.begin(), arguments.stop.end(), token) != 0) break;
    std::printf("%s%lld", count == 0 ? "" : ",", static_cast<long long>(token));
    std::fflush(stdout);
    if (count++ == 0) first = Clock::now();
    if (decoder.IsFull()) break;
    tokens = {token};
  }
  const std::chrono::duration<double> before = first - start, later = Clock::now() - first;
  std::printf("\n");
  std::fflush(stdout);
  std::fprintf(stderr, "%zu tokens read; the first behind %.2f s", arguments.prompt.size(),
               before.count());
  if (count > 1) std::fprintf(stderr, ", then %.1f tokens per second", (count - 1) / later.count());
  std::fprintf(stderr, "\n");
}

/*! \brief Calls a function, perhaps several times and in a session; writes the last results. */
void CallAndWrite(const ffi::Module& machine, const Arguments& arguments) {
  std::vector<ffi::Tensor> inputs;
  for (const std::string& input : arguments.inputs) inputs.push_back(ReadInput(input));
  std::optional<Session> session;
  if (arguments.session) session.emplace(machine);

  const std::string& name = arguments.function;
  const std::string called = session ? Session::FormOf(name) : name;
  FunctionOf(machine, called);
  auto arity = CallOf(machine, "get_function_arity", called).cast<int64_t>();
  if (session) --arity;
  if (static_cast<size_t>(arity) != inputs.size()) {
    throw UserError("'" + name + "' takes " + std::to_string(arity) + " inputs, but there are " +
                    std::to_string(inputs.size()) + " --input.");
  }
  const std::vector<ffi::AnyView> views(inputs.begin(), inputs.end());
  auto call_once = [&] {
    return session ? session->Call(name, inputs) : CallWith(machine, name, views);
  };
  ffi::Any result = call_once();
  std::vector<double> milliseconds;
  for (int i = 0; i < arguments.runs; ++i) {
    auto start = std::chrono::steady_clock::now();
    result = call_once();
    std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(time.count());
  }
  std::vector<ffi::Tensor> results;
  Flatten(result, &results);
  for (size_t i = 0; i < results.size(); ++i) {
    std::printf("output %zu: %s %s\n", i, ffi::DLDataTypeToString(results[i].dtype()).c_str(),
                ShapeText(results[i]).c_str());
    if (!arguments.output.empty()) {
      WriteNumpy(arguments.output + "_" + std::to_string(i) + ".npy", results[i]);
    }
  }
  if (arguments.runs > 0) {
    std::sort(milliseconds.begin(), milliseconds.end());
    std::printf("%d runs: best %.3f ms, median %.3f ms\n", arguments.runs, milliseconds.front(),
                milliseconds[milliseconds.size() / 2]);
  }
}

void Run(const Arguments& arguments) {
  LoadBackend();
  if (arguments.device >= 0) {
    std::string name = std::string(kBackend) + ".runtime.set_device";
    ffi::Function::GetGlobalRequired(name)(arguments.device);
  }
  ffi::Module machine = LoadModel(arguments.model);
  if (arguments.prompt.empty()) {
    CallAndWrite(machine, arguments);
  } else {
    Continue(machine, arguments);
  }
  if (arguments.counters) PrintCounters(machine);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(ReadArguments(argc, argv));
  } catch (const ffi::Error& error) {
    std::cerr << "run_model: " << error.message() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "run_model: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
