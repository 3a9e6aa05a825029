// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file device.cc
 * \brief The run half of the driver.
 */
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "execute.h"
#include "plan.h"
#include "program.h"

namespace tvm_example_npu::emulator {
namespace {

/*! \brief A dimension of an input that tells the value of a symbol. */
struct SymbolSource {
  size_t input;
  int32_t dimension;
  int32_t symbol;
  int64_t factor;
};

/*! \brief What the requests of a program share; none of it changes after the load. */
struct Loaded {
  Buffer bytes;
  Program program;
  std::vector<SymbolSource> symbol_sources;
  /*! \brief The plan of a program without symbols. */
  Plan plan;
  /*! \brief Null with one thread. */
  std::unique_ptr<ThreadPool> pool;
};

}  // namespace
}  // namespace tvm_example_npu::emulator

namespace emulator = tvm_example_npu::emulator;

struct npu_device {
  int32_t index;
};

struct npu_program {
  std::shared_ptr<const emulator::Loaded> loaded;
};

struct npu_request {
  std::shared_ptr<const emulator::Loaded> loaded;
  emulator::Plan plan;
  emulator::Execution execution;
  emulator::Buffer arena;
  emulator::Buffer scratch;
  /*! \brief Whether `execution` fits the symbols of `plan`. */
  bool prepared = false;

  /*! \brief Addresses and shapes of the inputs, followed by those of the outputs. */
  std::vector<void*> buffers;
  std::vector<int64_t> shapes;
  /*! \brief Whether something was bound since the last submission. */
  bool bound = false;
  /*! \brief Values of the symbols, by the shapes of the inputs. */
  std::vector<int64_t> symbols;

  enum { kIdle, kRunning, kDone } state = kIdle;
  npu_counters counters = {};
};

namespace tvm_example_npu::emulator {
namespace {

constexpr int32_t kDevices = 8;

/*! \brief The last failure on this thread. */
thread_local std::string last_sentence;

template <typename Body>
npu_status Run(const Body& body) {
  return Guard(&last_sentence, body);
}

std::string ShapeString(const int64_t* shape, int32_t rank) {
  std::ostringstream out;
  out << "[";
  for (int32_t i = 0; i < rank; ++i) out << (i > 0 ? ", " : "") << shape[i];
  out << "]";
  return out.str();
}

const char* LastError() { return last_sentence.c_str(); }

npu_status Open(int32_t index, npu_device** device) {
  return Run([&] {
    RequireArgument(device, "device");
    if (index < 0 || index >= kDevices) {
      Invalid("There is no device ", index, "; the emulator has devices 0 to ", kDevices - 1, ".");
    }
    *device = new npu_device{index};
  });
}

void Close(npu_device* device) { delete device; }

npu_status Load(npu_device* device, const uint8_t* bytes, size_t size, npu_program** program) {
  return Run([&] {
    RequireArgument(device, "device");
    RequireArgument(bytes, "bytes");
    RequireArgument(program, "program");
    auto loaded = std::make_shared<Loaded>();
    loaded->bytes = Buffer(size);
    if (size > 0) std::memcpy(loaded->bytes.data(), bytes, size);
    loaded->program = Deserialize(loaded->bytes.data(), size);
    const Program& loaded_program = loaded->program;
    for (size_t i = 0; i < loaded_program.inputs().size(); ++i) {
      const npu_tensor_desc& desc = loaded_program.tensors()[loaded_program.inputs()[i]].desc;
      for (int32_t d = 0; d < desc.rank; ++d) {
        const npu_dim& dim = desc.dims[d];
        if (dim.symbol >= 0) loaded->symbol_sources.push_back({i, d, dim.symbol, dim.size});
      }
    }
    if (loaded->symbol_sources.empty()) loaded->plan = MakePlan(loaded_program, {});
    if (loaded_program.threads() > 1) {
      loaded->pool = std::make_unique<ThreadPool>(loaded_program.threads());
    }
    *program = new npu_program{std::move(loaded)};
  });
}

void Unload(npu_program* program) { delete program; }

/*! \brief Makes the request ready for a plan. Memory that is large enough is kept. */
void Prepare(npu_request* request, Plan plan) {
  const Loaded& loaded = *request->loaded;
  request->prepared = false;
  request->plan = std::move(plan);
  if (request->arena.size() < request->plan.arena_bytes) {
    request->arena = Buffer();
    request->arena = Buffer(request->plan.arena_bytes);
  }
  request->execution =
      Execution(loaded.program, request->plan, request->arena.data(), loaded.program.threads());
  if (request->scratch.size() < request->execution.scratch_bytes()) {
    request->scratch = Buffer();
    request->scratch = Buffer(request->execution.scratch_bytes());
  }
  request->counters.arena_bytes = request->plan.arena_bytes;
  request->prepared = true;
  request->bound = true;
}

npu_status CreateRequest(npu_program* program, npu_request** request) {
  return Run([&] {
    RequireArgument(program, "program");
    RequireArgument(request, "request");
    auto created = std::make_unique<npu_request>();
    created->loaded = program->loaded;
    const Program& loaded = program->loaded->program;
    size_t count = loaded.inputs().size() + loaded.outputs().size();
    created->buffers.resize(count);
    created->shapes.resize(count * NPU_MAX_RANK);
    created->symbols.resize(loaded.symbols().size());
    if (program->loaded->symbol_sources.empty()) Prepare(created.get(), program->loaded->plan);
    *request = created.release();
  });
}

void DestroyRequest(npu_request* request) { delete request; }

/*! \brief What binding an input and an output have in common. */
void Bind(npu_request* request, bool input, size_t index, const void* data, const int64_t* shape,
          int32_t rank) {
  RequireArgument(request, "request");
  const Program& program = request->loaded->program;
  const char* kind = input ? "Input " : "Output ";
  const auto& tensors = input ? program.inputs() : program.outputs();
  if (request->state == npu_request::kRunning) {
    Invalid(kind, index, " cannot be bound while the request runs; call wait before.");
  }
  if (index >= tensors.size()) {
    Invalid(kind, index, " does not exist; the program has ", tensors.size(),
            input ? " inputs." : " outputs.");
  }
  const npu_tensor_desc& desc = program.tensors()[tensors[index]].desc;
  if (data == nullptr) Invalid("The data of ", input ? "input " : "output ", index, " is null.");
  if (rank < 0 || rank > NPU_MAX_RANK) Invalid(kind, index, " has rank ", rank, ".");
  if (rank > 0) RequireArgument(shape, "shape");
  if (reinterpret_cast<uintptr_t>(data) % ElementSize(desc.dtype) != 0) {
    Invalid("The data of ", input ? "input " : "output ", index,
            " is not aligned to its elements, which have ", ElementSize(desc.dtype), " bytes.");
  }
  bool fits = rank == desc.rank;
  // The sizes of outputs are known, and checked, when all inputs are.
  for (int32_t d = 0; input && fits && d < rank; ++d) {
    const npu_dim& dim = desc.dims[d];
    fits = dim.symbol < 0 ? shape[d] == dim.size : shape[d] > 0 && shape[d] % dim.size == 0;
  }
  if (!fits) {
    Invalid(kind, index, " has shape ", ShapeString(shape, rank),
            ", but the program was compiled for ", ToString(desc, program.symbols()), ".");
  }
  size_t buffer = input ? index : program.inputs().size() + index;
  request->buffers[buffer] = const_cast<void*>(data);
  if (rank > 0) std::copy_n(shape, rank, &request->shapes[buffer * NPU_MAX_RANK]);
  request->bound = true;
}

npu_status BindInput(npu_request* request, size_t index, const void* data, const int64_t* shape,
                     int32_t rank) {
  return Run([&] { Bind(request, true, index, data, shape, rank); });
}

npu_status BindOutput(npu_request* request, size_t index, void* data, const int64_t* shape,
                      int32_t rank) {
  return Run([&] { Bind(request, false, index, data, shape, rank); });
}

/*! \brief Takes the values of the symbols from the shapes of the inputs. */
void FindSymbols(npu_request* request) {
  std::fill(request->symbols.begin(), request->symbols.end(), 0);
  const auto& sources = request->loaded->symbol_sources;
  for (const SymbolSource& source : sources) {
    int64_t size = request->shapes[source.input * NPU_MAX_RANK + source.dimension];
    int64_t value = size / source.factor;
    int64_t& symbol = request->symbols[source.symbol];
    if (symbol == 0) symbol = value;
    if (symbol == value) continue;
    const std::string& name = request->loaded->program.symbols()[source.symbol];
    for (const SymbolSource& first : sources) {
      if (first.symbol != source.symbol) continue;
      Invalid("The shapes of the inputs disagree: ", name, " is ", symbol, " by dimension ",
              first.dimension, " of input ", first.input, ", but ", value, " by dimension ",
              source.dimension, " of input ", source.input, ".");
    }
  }
}

/*! \brief Checks what was bound since the last submission, and takes it over. */
void TakeOver(npu_request* request) {
  const Program& program = request->loaded->program;
  size_t inputs = program.inputs().size();
  for (size_t i = 0; i < request->buffers.size(); ++i) {
    if (request->buffers[i] != nullptr) continue;
    if (i < inputs) Invalid("Input ", i, " is not bound.");
    Invalid("Output ", i - inputs, " is not bound.");
  }
  if (!request->loaded->symbol_sources.empty()) {
    FindSymbols(request);
    if (!request->prepared || request->symbols != request->plan.symbols) {
      Prepare(request, MakePlan(program, request->symbols));
    }
  }
  for (size_t i = inputs; i < request->buffers.size(); ++i) {
    const npu_tensor_desc& desc = program.tensors()[program.outputs()[i - inputs]].desc;
    const int64_t* shape = &request->shapes[i * NPU_MAX_RANK];
    TensorView expected = Resolve(desc, request->symbols.data());
    if (!std::equal(shape, shape + desc.rank, expected.dims)) {
      Invalid("Output ", i - inputs, " has shape ", ShapeString(shape, desc.rank), " instead of ",
              ShapeString(expected.dims, desc.rank), ".");
    }
  }
  request->execution.Bind(request->buffers);
  request->bound = false;
}

npu_status Submit(npu_request* request) {
  return Run([&] {
    RequireArgument(request, "request");
    if (request->state == npu_request::kRunning) {
      Invalid("The request runs already; call wait before the next submit.");
    }
    request->state = npu_request::kIdle;
    if (request->bound || !request->prepared) TakeOver(request);
    request->execution.Run({request->scratch.data(), request->loaded->pool.get()});
    // An emulated device is done at once, but callers shall not rely on it.
    request->state = npu_request::kRunning;
    ++request->counters.submissions;
    request->counters.commands += request->execution.commands();
    request->counters.matrix_operations += request->execution.matrix_operations();
  });
}

npu_status Wait(npu_request* request) {
  return Run([&] {
    RequireArgument(request, "request");
    if (request->state == npu_request::kIdle) Invalid("Nothing was submitted.");
    request->state = npu_request::kDone;
  });
}

npu_status Counters(const npu_request* request, npu_counters* counters) {
  return Run([&] {
    RequireArgument(request, "request");
    RequireArgument(counters, "counters");
    *counters = request->counters;
  });
}

constexpr npu_run_api kRunApi = {
    NPU_DRIVER_API_VERSION,  //
    LastError,
    Open,
    Close,
    Load,
    Unload,
    CreateRequest,
    DestroyRequest,
    BindInput,
    BindOutput,
    Submit,
    Wait,
    Counters,
};

}  // namespace
}  // namespace tvm_example_npu::emulator

const npu_run_api* example_npu_run_api(void) { return &emulator::kRunApi; }
