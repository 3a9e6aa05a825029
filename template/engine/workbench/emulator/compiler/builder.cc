// SPDX-License-Identifier: Apache-2.0
/*!
 * \file builder.cc
 * \brief The build half of the driver's API.
 */
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "compile.h"

namespace emulator = npu::emulator;

struct npu_builder {
  emulator::Machine machine;
  emulator::Graph graph;
  /*! \brief The bytes that finish returned. */
  emulator::Buffer bytes;
  bool finished = false;
  /*! \brief The failure after which the builder can only be destroyed. */
  npu_status status = NPU_OK;
  std::string sentence;
};

namespace npu::emulator {
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
      body(builder->graph);
    });
  }
  return builder->status;
}

npu_status Create(const npu_option* options, size_t option_count, npu_builder** builder) {
  return Guard(&create_sentence, [&] {
    RequireArgument(builder, "builder");
    if (option_count > 0) RequireArgument(options, "options");
    auto created = std::make_unique<npu_builder>();
    for (size_t i = 0; i < option_count; ++i) {
      RequireArgument(options[i].key, "key of an option");
      RequireArgument(options[i].value, "value of an option");
      created->machine.Set(options[i].key, options[i].value);
    }
    created->machine.Check();
    if (created->machine.max_tile_bytes > created->machine.scratchpad_bytes) {
      Invalid("Option max_tile_bytes is ", created->machine.max_tile_bytes,
              ", more than the whole scratchpad of ", created->machine.scratchpad_bytes,
              " bytes; at most that, or 0 for no limit of its own.");
    }
    *builder = created.release();
  });
}

void Destroy(npu_builder* builder) { delete builder; }

const char* LastError(const npu_builder* builder) {
  return builder == nullptr ? create_sentence.c_str() : builder->sentence.c_str();
}

npu_status AddSymbol(npu_builder* builder, const char* name, int64_t bound, int32_t* symbol) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(name, "name");
    RequireArgument(symbol, "symbol");
    *symbol = graph.AddSymbol(name, bound);
  });
}

npu_status AddInput(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(desc, "desc");
    RequireArgument(tensor, "tensor");
    *tensor = graph.AddInput(*desc);
  });
}

npu_status AddConstant(npu_builder* builder, const npu_tensor_desc* desc, const void* data,
                       size_t bytes, npu_tensor* tensor) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(desc, "desc");
    RequireArgument(data, "data");
    RequireArgument(tensor, "tensor");
    *tensor = graph.AddConstant(*desc, data, bytes);
  });
}

npu_status AddTensor(npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* tensor) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(desc, "desc");
    RequireArgument(tensor, "tensor");
    *tensor = graph.AddResult(*desc);
  });
}

npu_status AddView(npu_builder* builder, npu_tensor data, const npu_tensor_desc* desc,
                   npu_tensor* tensor) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(desc, "desc");
    RequireArgument(tensor, "tensor");
    *tensor = graph.AddView(data, *desc);
  });
}

npu_status SetLabel(npu_builder* builder, const char* label) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(label, "label");
    graph.SetLabel(label);
  });
}

/*! \brief Copies a vector program into an operation. */
void SetVector(const npu_vector_program& vector, Operation* operation) {
  if (!NPU_HAS(npu_vector_program, &vector, input_count)) {
    Invalid("A vector program has a size of ", vector.size,
            ", smaller than in any version of the header.");
  }
  if (vector.instruction_count < 0 || vector.input_count < 0) {
    Invalid("A vector program has a negative number of instructions or inputs.");
  }
  if (vector.instruction_count > 0) RequireArgument(vector.instructions, "instructions");
  if (vector.input_count > 0) RequireArgument(vector.inputs, "inputs");
  operation->instructions.assign(vector.instructions,
                                 vector.instructions + vector.instruction_count);
  operation->inputs.assign(vector.inputs, vector.inputs + vector.input_count);
}

void SetVector(npu_elementwise* op, Operation* operation) {
  RequireArgument(op->program, "program");
  SetVector(*op->program, operation);
  op->program = nullptr;
}

/*! \brief The least size of an operation: that of version 1, or of the version that introduced
 *  it. */
template <typename Op>
constexpr size_t kLeastSize = sizeof(Op);
template <>
constexpr size_t kLeastSize<npu_matmul> = offsetof(npu_matmul, a_zero_point);
template <>
constexpr size_t kLeastSize<npu_convolution> = offsetof(npu_convolution, data_zero_point);

template <typename Op, typename = void>
constexpr bool kHasEpilogue = false;
template <typename Op>
constexpr bool kHasEpilogue<Op, std::void_t<decltype(Op::epilogue)>> = true;

template <typename Op>
void SetVector(Op* op, Operation* operation) {
  if constexpr (kHasEpilogue<Op>) {
    if (op->epilogue != nullptr) {
      SetVector(*op->epilogue, operation);
      if (operation->instructions.empty()) Invalid("An epilogue has no instructions.");
    }
    op->epilogue = nullptr;
  }
}

template <typename Op>
npu_status AddOperation(npu_builder* builder, const Op* op) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(op, "op");
    if (op->size < kLeastSize<Op>) Invalid("An operation has a size of ", op->size, " bytes.");
    // Fields that an older struct lacks are 0.
    Op copy = {};
    std::memcpy(&copy, op, std::min<size_t>(op->size, sizeof(Op)));
    Operation operation;
    SetVector(&copy, &operation);
    operation.op = copy;
    graph.Add(std::move(operation));
  });
}

npu_status MarkOutput(npu_builder* builder, npu_tensor tensor) {
  return Build(builder, [&](Graph& graph) { graph.MarkOutput(tensor); });
}

npu_status AddState(npu_builder* builder, npu_tensor input, npu_tensor output, int32_t* shared) {
  return Build(builder, [&](Graph& graph) {
    RequireArgument(shared, "shared");
    *shared = graph.AddState(input, output) ? 1 : 0;
  });
}

npu_status Finish(npu_builder* builder, const uint8_t** bytes, size_t* size) {
  return Build(builder, [&](Graph& graph) {
    if (bytes != nullptr) RequireArgument(size, "size");
    graph.Finish();
    graph.FoldCopies();
    Compiled compiled = Compile(graph, builder->machine);
    Verify(compiled.program);  // Catch compiler bugs here, not on a board.
    builder->finished = true;
    if (bytes == nullptr) return;
    builder->bytes =
        Serialize(compiled.program, [&](uint8_t* to) { WriteConstants(graph, compiled, to); });
    *bytes = builder->bytes.data();
    *size = builder->bytes.size();
  });
}

constexpr npu_build_api MakeBuildApi() {
  npu_build_api api = {};
  api.size = sizeof(npu_build_api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = kDriverName;
  api.release = kDriverRelease;
  api.options = kOptions;
  api.option_count = kOptionCount;
  api.create = Create;
  api.destroy = Destroy;
  api.error = LastError;
  api.add_symbol = AddSymbol;
  api.add_input = AddInput;
  api.add_constant = AddConstant;
  api.add_tensor = AddTensor;
  api.add_view = AddView;
  api.set_label = SetLabel;
#define NPU_ADD(name, reads) api.add_##name = AddOperation<npu_##name>;
  EMULATOR_OPERATIONS(NPU_ADD, )
#undef NPU_ADD
  api.add_state = AddState;
  api.mark_output = MarkOutput;
  api.finish = Finish;
  api.integers = api.integer_weights = true;
  return api;
}

constexpr npu_build_api kBuildApi = MakeBuildApi();

}  // namespace
}  // namespace npu::emulator

const npu_build_api* npu_driver_build(uint32_t) { return &emulator::kBuildApi; }
