// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file builder.cc
 * \brief The build half of the driver.
 */
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "program.h"

namespace emulator = tvm_example_npu::emulator;

struct npu_builder {
  emulator::Program program;
  /*! \brief The data of constants. */
  std::vector<emulator::Buffer> constants;
  /*! \brief What finish returned. */
  emulator::Buffer bytes;
  bool finished = false;
  /*! \brief The failure after which the builder can only be destroyed. */
  npu_status status = NPU_OK;
  std::string sentence;
};

namespace tvm_example_npu::emulator {
namespace {

/*! \brief The last failure on this thread of a call without a builder. */
thread_local std::string create_sentence;

/*! \brief Runs a function of the API on a builder that has not failed. */
template <typename Body>
npu_status Build(npu_builder* builder, const Body& body) {
  if (builder == nullptr) {
    create_sentence = "The builder is null.";
    return NPU_INVALID;
  }
  if (builder->status == NPU_OK) {
    builder->status = Guard(&builder->sentence, [&] {
      if (builder->finished) Invalid("The builder is finished; it can only be destroyed.");
      body(builder->program);
    });
  }
  return builder->status;
}

void SetOption(const npu_option& option, Program* program) {
  RequireArgument(option.key, "key of an option");
  RequireArgument(option.value, "value of an option");
  if (std::strcmp(option.key, "threads") != 0) {
    Invalid("Option ", option.key, " is unknown; the one option is threads.");
  }
  char* end = nullptr;
  errno = 0;
  int64_t threads = std::strtoll(option.value, &end, 10);
  if (end == option.value || *end != '\0' || errno != 0) {
    Invalid("Option threads is \"", option.value, "\", which is not a whole number.");
  }
  program->SetThreads(threads);
}

npu_status Create(const npu_option* options, size_t option_count, npu_builder** builder) {
  return Guard(&create_sentence, [&] {
    RequireArgument(builder, "builder");
    if (option_count > 0) RequireArgument(options, "options");
    auto created = std::make_unique<npu_builder>();
    for (size_t i = 0; i < option_count; ++i) SetOption(options[i], &created->program);
    *builder = created.release();
  });
}

void Destroy(npu_builder* builder) { delete builder; }

const char* LastError(const npu_builder* builder) {
  return builder == nullptr ? create_sentence.c_str() : builder->sentence.c_str();
}

npu_status AddSymbol(npu_builder* builder, const char* name, int32_t* symbol) {
  return Build(builder, [&](Program& program) {
    RequireArgument(name, "name");
    RequireArgument(symbol, "symbol");
    *symbol = program.AddSymbol(name);
  });
}

npu_status AddInput(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor) {
  return Build(builder, [&](Program& program) {
    RequireArgument(desc, "desc");
    RequireArgument(tensor, "tensor");
    *tensor = program.AddInput(*desc);
  });
}

npu_status AddConstant(npu_builder* builder, const npu_tensor_desc* desc, const void* data,
                       size_t bytes, npu_tensor* tensor) {
  return Build(builder, [&](Program& program) {
    RequireArgument(desc, "desc");
    RequireArgument(data, "data");
    RequireArgument(tensor, "tensor");
    Buffer copy(bytes);
    *tensor = program.AddConstant(*desc, {Storage::kPlain, copy.data(), bytes});
    std::memcpy(copy.data(), data, bytes);
    builder->constants.push_back(std::move(copy));
  });
}

npu_status AddTensor(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor) {
  return Build(builder, [&](Program& program) {
    RequireArgument(desc, "desc");
    RequireArgument(tensor, "tensor");
    *tensor = program.AddResult(*desc);
  });
}

npu_status AddView(npu_builder* builder, npu_tensor data, const npu_tensor_desc* desc,
                   npu_tensor* tensor) {
  return Build(builder, [&](Program& program) {
    RequireArgument(desc, "desc");
    RequireArgument(tensor, "tensor");
    *tensor = program.AddView(data, *desc);
  });
}

/*! \brief Copies a vector program into a command. */
void SetVector(const npu_vector_program& vector, Command* command) {
  if (vector.instruction_count < 0 || vector.input_count < 0) {
    Invalid("A vector program has a negative number of instructions or inputs.");
  }
  if (vector.instruction_count > 0) RequireArgument(vector.instructions, "instructions");
  if (vector.input_count > 0) RequireArgument(vector.inputs, "inputs");
  command->instructions.assign(vector.instructions, vector.instructions + vector.instruction_count);
  command->inputs.assign(vector.inputs, vector.inputs + vector.input_count);
}

void SetVector(npu_elementwise* op, Command* command) {
  SetVector(op->program, command);
  op->program = {};
}

void SetVector(npu_copy*, Command*) {}

template <typename Op>
void SetVector(Op* op, Command* command) {
  if (op->epilogue != nullptr) {
    SetVector(*op->epilogue, command);
    if (command->instructions.empty()) Invalid("An epilogue has no instructions.");
  }
  op->epilogue = nullptr;
}

void SetVector(npu_pool*, Command*) {}

template <typename Op>
npu_status AddOperation(npu_builder* builder, const Op* op) {
  return Build(builder, [&](Program& program) {
    RequireArgument(op, "op");
    Op copy = *op;
    Command command;
    SetVector(&copy, &command);
    command.op = copy;
    program.Add(std::move(command));
  });
}

npu_status MarkOutput(npu_builder* builder, npu_tensor tensor) {
  return Build(builder, [&](Program& program) { program.MarkOutput(tensor); });
}

npu_status Finish(npu_builder* builder, const uint8_t** bytes, size_t* size) {
  return Build(builder, [&](Program& program) {
    RequireArgument(bytes, "bytes");
    RequireArgument(size, "size");
    program.Finish();
    builder->bytes = Serialize(program);
    builder->constants.clear();
    builder->finished = true;
    *bytes = builder->bytes.data();
    *size = builder->bytes.size();
  });
}

constexpr npu_build_api kBuildApi = {
    NPU_DRIVER_API_VERSION,
    Create,
    Destroy,
    LastError,
    AddSymbol,
    AddInput,
    AddConstant,
    AddTensor,
    AddView,
    AddOperation<npu_matmul>,
    AddOperation<npu_convolution>,
    AddOperation<npu_pool>,
    AddOperation<npu_elementwise>,
    AddOperation<npu_reduce>,
    AddOperation<npu_copy>,
    MarkOutput,
    Finish,
};

}  // namespace
}  // namespace tvm_example_npu::emulator

const npu_build_api* example_npu_build_api(void) { return &emulator::kBuildApi; }
