// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.h
 * \brief What the builder makes and the device runs, and its form as bytes.
 */
#ifndef EMULATOR_PROGRAM_H_
#define EMULATOR_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace tvm_example_npu::emulator {

/*! \brief The most elements that a tensor may have. */
constexpr int64_t kMaxElements = int64_t{1} << 40;

/*! \brief Joins its arguments to one string. */
template <typename... Parts>
std::string Join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/*! \brief A failure on its way to the C API, which turns it into a status and a sentence. */
class Error : public std::runtime_error {
 public:
  Error(npu_status status, const std::string& sentence)
      : std::runtime_error(sentence), status(status) {}

  npu_status status;
};

/*! \brief Throws: the caller broke the contract of the driver's header. */
template <typename... Parts>
[[noreturn]] void Invalid(const Parts&... parts) {
  throw Error(NPU_INVALID, Join(parts...));
}

/*! \brief Throws: the emulated hardware does not do this. */
template <typename... Parts>
[[noreturn]] void Declined(const Parts&... parts) {
  throw Error(NPU_DECLINED, Join(parts...));
}

/*! \brief Throws if an argument of the C API is null. */
inline void RequireArgument(const void* argument, const char* name) {
  if (argument == nullptr) Invalid("The argument ", name, " is null.");
}

/*! \brief Runs a piece of the C API; what it throws becomes a status and a sentence. */
template <typename Body>
npu_status Guard(std::string* sentence, const Body& body) {
  try {
    body();
    return NPU_OK;
  } catch (const Error& error) {
    *sentence = error.what();
    return error.status;
  } catch (const std::bad_alloc&) {
    *sentence = "There is not enough memory.";
    return NPU_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    *sentence = Join("The emulator failed: ", error.what());
    return NPU_DEVICE_ERROR;
  }
}

/*! \brief Memory aligned for the widest vector loads. */
class Buffer {
 public:
  /*! \brief What `data` is aligned to. */
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  explicit Buffer(size_t size) : size_(size) {
    if (size > 0) {
      data_.reset(static_cast<uint8_t*>(::operator new(size, std::align_val_t(kAlignment))));
    }
  }

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(uint8_t* data) const { ::operator delete(data, std::align_val_t(kAlignment)); }
  };

  std::unique_ptr<uint8_t, Free> data_;
  size_t size_ = 0;
};

/*! \brief Rounds up to a multiple of Buffer::kAlignment. */
inline size_t Aligned(size_t size) {
  return (size + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
}

/*! \brief Where the elements of a tensor come from. */
enum class TensorKind : uint8_t { kInput, kConstant, kResult, kView };

/*! \brief A tensor of a program. */
struct Tensor {
  npu_tensor_desc desc;
  TensorKind kind;
  /*! \brief Which input or constant this is. */
  int32_t index;
  /*! \brief The tensor that holds the elements: itself, or what a view shows. */
  npu_tensor base;
};

/*! \brief How the data of a constant is stored. */
enum class Storage : uint8_t {
  kPlain,
  /*! \brief Packed by the kernels for the one matmul or convolution that reads it. */
  kPacked,
  /*! \brief Left out: nothing reads it. */
  kAbsent,
};

/*! \brief The data of a constant. */
struct Constant {
  Storage storage;
  const uint8_t* data;
  size_t bytes;
};

/*! \brief An operation. Pointers inside `op` are null: `instructions` and `inputs` are the vector
 *  program of an elementwise operation, or the epilogue of another (empty: there is none). */
struct Command {
  std::variant<npu_matmul, npu_convolution, npu_pool, npu_elementwise, npu_reduce, npu_copy> op;
  std::vector<npu_vector_instruction> instructions;
  std::vector<npu_tensor> inputs;
};

/*! \brief The tensor that a command writes. */
npu_tensor Output(const Command& command);

/*! \brief Calls `visit` with each tensor that a command reads. */
template <typename Visitor>
void ForEachRead(const Command& command, const Visitor& visit) {
  bool epilogue = true;
  if (auto* matmul = std::get_if<npu_matmul>(&command.op)) {
    visit(matmul->a);
    visit(matmul->b);
  } else if (auto* convolution = std::get_if<npu_convolution>(&command.op)) {
    visit(convolution->data);
    visit(convolution->weight);
  } else if (auto* pool = std::get_if<npu_pool>(&command.op)) {
    visit(pool->data);
  } else if (auto* reduce = std::get_if<npu_reduce>(&command.op)) {
    visit(reduce->data);
  } else if (auto* copy = std::get_if<npu_copy>(&command.op)) {
    visit(copy->data);
  } else {
    epilogue = false;
  }
  for (size_t i = epilogue ? 1 : 0; i < command.inputs.size(); ++i) visit(command.inputs[i]);
}

/*! \brief Operand b of a matmul, the weight of a convolution, or -1. */
npu_tensor MatrixWeight(const Command& command);

/*! \brief A tensor without memory; symbols have the given values, or with null the value 1. */
TensorView Resolve(const npu_tensor_desc& desc, const int64_t* symbols);

/*! \brief For messages, e.g. `float32 [n, 4]`. */
std::string ToString(const npu_tensor_desc& desc, const std::vector<std::string>& symbols);

/*!
 * \brief A program that obeys every rule of the driver's header.
 *
 * The functions that add to it check what they add and throw an Error, so that neither a builder
 * nor damaged or forged bytes can make a program that the device could not run.
 */
class Program {
 public:
  /*! \brief Sets how many threads may work on a request. */
  void SetThreads(int64_t threads);
  /*! \brief Adds a symbol. */
  int32_t AddSymbol(const std::string& name);
  /*! \brief Adds the next input. */
  npu_tensor AddInput(const npu_tensor_desc& desc);
  /*! \brief Adds a constant, whose data must outlive the program. */
  npu_tensor AddConstant(const npu_tensor_desc& desc, const Constant& constant);
  /*! \brief Adds a tensor that commands write. */
  npu_tensor AddResult(const npu_tensor_desc& desc);
  /*! \brief Adds the elements of `data` under another shape. */
  npu_tensor AddView(npu_tensor data, const npu_tensor_desc& desc);
  /*! \brief Adds a command. */
  void Add(Command command);
  /*! \brief Makes a tensor the next output. */
  void MarkOutput(npu_tensor tensor);
  /*! \brief Checks what only the whole program can break. */
  void Finish() const;

  /*! \brief How often commands and outputs use a tensor or views of it. */
  int32_t Uses(npu_tensor base) const { return progress_[base].uses; }

  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Constant>& constants() const { return constants_; }
  const std::vector<Command>& commands() const { return commands_; }
  const std::vector<npu_tensor>& inputs() const { return inputs_; }
  const std::vector<npu_tensor>& outputs() const { return outputs_; }
  int32_t threads() const { return threads_; }

 private:
  /*! \brief A box that a copy has written. */
  struct Box {
    int64_t begin[NPU_MAX_RANK];
    int64_t end[NPU_MAX_RANK];
  };
  /*! \brief How far the elements of a tensor are written. */
  struct Progress {
    bool complete = false;
    bool filled = false;
    bool read = false;
    /*! \brief What copies have written, and how many elements these are. */
    std::vector<Box> boxes;
    int64_t elements = 0;
    /*! \brief How often commands and outputs use the tensor or a view of it. */
    int32_t uses = 0;
  };

  npu_tensor Append(const Tensor& tensor);
  void CheckDesc(const npu_tensor_desc& desc) const;
  const Tensor& Get(npu_tensor tensor, const char* role) const;
  const npu_tensor_desc& Read(npu_tensor tensor, const char* role, bool may_be_packed = false);
  const npu_tensor_desc& Write(npu_tensor tensor);
  void CheckVector(const Command& command, const npu_tensor_desc& out, bool epilogue);
  void CheckPacked(const Command& command) const;
  void CheckSpatial(int32_t spatial_rank, const npu_tensor_desc& data,
                    const npu_tensor_desc& out) const;
  void CheckParameter(const char* name, int32_t dimension, int64_t value, int64_t least) const;
  std::string Where() const;
  std::string Describe(npu_tensor tensor) const;

  void Check(const npu_matmul& op);
  void Check(const npu_convolution& op);
  void Check(const npu_pool& op);
  void Check(const npu_elementwise& op);
  void Check(const npu_reduce& op);
  void Check(const npu_copy& op);

  std::vector<std::string> symbols_;
  std::vector<Tensor> tensors_;
  std::vector<Progress> progress_;
  std::vector<Constant> constants_;
  std::vector<Command> commands_;
  std::vector<npu_tensor> inputs_;
  std::vector<npu_tensor> outputs_;
  int32_t threads_ = 1;
  /*! \brief The operation being checked, for messages. */
  const char* operation_ = "";
};

/*! \brief Size of the packed form of MatrixWeight(command), a constant. */
size_t PackedBytes(const Program& program, const Command& command);

/*!
 * \brief The program as bytes: a header with format version and checksum, the tables, and the data
 *        of the constants, each aligned to Buffer::kAlignment.
 *
 * Constants that only one matmul or convolution reads as its weight are stored packed.
 */
Buffer Serialize(const Program& program);

/*! \brief Reads what Serialize wrote. Constants refer to `bytes`, which must be aligned as Buffer
 *  does and outlive the program. Anything else throws an Error. */
Program Deserialize(const uint8_t* bytes, size_t size);

}  // namespace tvm_example_npu::emulator

#endif  // EMULATOR_PROGRAM_H_
