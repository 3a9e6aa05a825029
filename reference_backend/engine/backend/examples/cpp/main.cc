// SPDX-License-Identifier: Apache-2.0
/*!
 * \file main.cc
 * \brief Runs an exported model without Python: tvm-ffi, TVM's runtime, the backend's runtime.
 */
#include <dlfcn.h>
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
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"

namespace {

namespace ffi = tvm::ffi;

constexpr const char* kBackend = BACKEND_NAME;
constexpr const char* kRuntime = "lib" BACKEND_PACKAGE "_runtime.so";

constexpr const char* kUsage = R"(Usage: run_model MODEL.so [option ...]

  --input FILE.npy           the next input of the model
  --input DTYPE:SHAPE        the next input, made up and always the same: float32:1x3x224x224
  --input DTYPE:SHAPE:FILE   the next input, raw numbers: float32:1x3x224x224:image.bin
  --function NAME            what to call (main)
  --output PREFIX            write the results to PREFIX_0.npy, PREFIX_1.npy ...
  --runs N                   call N more times, and print times
  --counters                 print what the NPU counted
  --device INDEX             which NPU
)";

/*! \brief An error that the user can fix; the message is a sentence. */
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/*! \brief Host memory for tensors. */
struct HostMemory {
  static constexpr size_t kAlignment = 64;
  void AllocData(DLTensor* tensor) {
    size_t size = ffi::GetDataSize(*tensor);
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, std::max(size, kAlignment));
    if (tensor->data == nullptr) throw UserError("There is not enough memory for the inputs.");
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

using Dims = std::vector<int64_t>;

ffi::Tensor MakeTensor(const Dims& shape, DLDataType dtype) {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t count = 1;
  for (int64_t size : shape) {
    if (size < 0 || (size > 0 && count > kMost / size)) {
      throw UserError("An input has an impossible shape.");
    }
    count *= size;
  }
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()), dtype,
                                  DLDevice{kDLCPU, 0});
}

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

/*! \brief Refuses a file that would crash the dynamic loader (it maps without checks), or that the
 *  loader would refuse with a poor message. */
void CheckLibrary(const std::string& path) {
  constexpr size_t kHeader = 64, kMachine = 18, kTable = 40, kEntry = 58, kCount = 60;
  char header[kHeader] = {}, mine[kHeader] = {};
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw UserError("There is no file '" + path + "' that can be read.");
  auto size = static_cast<uint64_t>(file.tellg());
  file.seekg(0).read(header, kHeader);
  if (!file || std::memcmp(header, "\177ELF\002", 5) != 0) {
    throw UserError("'" + path + "' is not a shared library of 64 bits.");
  }
  std::ifstream("/proc/self/exe", std::ios::binary).read(mine, kHeader);
  if (std::memcmp(header + kMachine, mine + kMachine, 2) != 0) {
    throw UserError("'" + path + "' was compiled for another kind of processor: set the target.");
  }
  // Its last part is the table of sections.
  uint64_t table = 0;
  uint16_t entry = 0, count = 0;
  std::memcpy(&table, header + kTable, sizeof(table));
  std::memcpy(&entry, header + kEntry, sizeof(entry));
  std::memcpy(&count, header + kCount, sizeof(count));
  if (table > size || size - table < uint64_t{entry} * count) {
    throw UserError("'" + path + "' is truncated: copy it again.");
  }
}

template <typename... Args>
ffi::Any CallOf(const ffi::Module& module, const std::string& name, Args&&... args) {
  ffi::Optional<ffi::Function> function = module->GetFunction(name);
  if (!function.has_value()) throw UserError("The model has no function '" + name + "'.");
  return (*function)(std::forward<Args>(args)...);
}

/*! \brief Loads the backend's runtime, and its driver with it: TVM's runtime does not know it. */
void LoadBackend() {
  if (dlopen(kRuntime, RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw UserError(std::string("The runtime of the backend does not load: ") + dlerror() +
                    ". Put it beside TVM's libraries, and set LD_LIBRARY_PATH.");
  }
}

/*! \brief Loads a library and makes a virtual machine for it, as relax.VirtualMachine does. */
ffi::Module LoadModel(const std::string& path) {
  CheckLibrary(path);
  // With a path, or the loader would look in the system's folders.
  ffi::Module library = ffi::Module::LoadFromFile(std::filesystem::absolute(path).string());
  if (!library->GetFunction("vm_load_executable").has_value()) {
    throw UserError("'" + path + "' is not a model that export_library() of TVM has written.");
  }
  auto machine = CallOf(library, "vm_load_executable").cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  CallOf(machine, "vm_initialization", static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return machine;
}

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
  int runs = 0, device = -1;
  bool counters = false;
};

int ReadNumber(const std::string& option, const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) {
    throw UserError(option + " takes a number, not '" + text + "'.");
  }
  return std::stoi(text);
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
    } else if (option[0] == '-' || !arguments.model.empty()) {
      throw UserError("'" + option + "' is not understood.\n\n" + kUsage);
    } else {
      arguments.model = option;
    }
  }
  if (arguments.model.empty()) throw UserError(std::string("Which model?\n\n") + kUsage);
  return arguments;
}

void Run(const Arguments& arguments) {
  LoadBackend();
  if (arguments.device >= 0) {
    std::string name = std::string(kBackend) + ".runtime.set_device";
    ffi::Function::GetGlobalRequired(name)(arguments.device);
  }
  ffi::Module machine = LoadModel(arguments.model);
  std::vector<ffi::AnyView> inputs;
  std::vector<ffi::Tensor> tensors;
  for (const std::string& input : arguments.inputs) tensors.push_back(ReadInput(input));
  for (const ffi::Tensor& tensor : tensors) inputs.emplace_back(tensor);

  int64_t arity = CallOf(machine, "get_function_arity", arguments.function).cast<int64_t>();
  if (static_cast<size_t>(arity) != inputs.size()) {
    throw UserError("'" + arguments.function + "' takes " + std::to_string(arity) +
                    " inputs, but there are " + std::to_string(inputs.size()) + " --input.");
  }
  ffi::Function call = *machine->GetFunction(arguments.function);
  auto call_once = [&] {
    ffi::Any result;
    call.CallPacked(inputs.data(), static_cast<int32_t>(inputs.size()), &result);
    return result;
  };
  std::vector<ffi::Tensor> results;
  Flatten(call_once(), &results);
  for (size_t i = 0; i < results.size(); ++i) {
    std::printf("output %zu: %s %s\n", i, ffi::DLDataTypeToString(results[i].dtype()).c_str(),
                ShapeText(results[i]).c_str());
    if (!arguments.output.empty()) {
      WriteNumpy(arguments.output + "_" + std::to_string(i) + ".npy", results[i]);
    }
  }
  if (arguments.runs > 0) {
    std::vector<double> milliseconds;
    for (int i = 0; i < arguments.runs; ++i) {
      auto start = std::chrono::steady_clock::now();
      call_once();
      std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
      milliseconds.push_back(time.count());
    }
    std::sort(milliseconds.begin(), milliseconds.end());
    std::printf("%d runs: best %.3f ms, median %.3f ms\n", arguments.runs, milliseconds.front(),
                milliseconds[milliseconds.size() / 2]);
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
