// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/run.h
 * \brief The run half of a driver whose SDK runs graphs, except for the graph: bytes, buffers,
 * requests, reasons. A request is executed by the thread that calls.
 *
 * \code
 * class Graph {
 *  public:
 *   // Makes the SDK's graph of the nodes, and throws a Failure where it cannot. memory[i] has the
 *   // elements of value i where it is a constant, an input, or an output: the same for as long as
 *   // the graph lives, aligned to 64 bytes, and with 64 bytes behind it that may be read.
 *   Graph(const npu::kit::Program& program, const std::vector<void*>& memory);
 *   void Run();
 * };
 *
 * const npu_run_api* npu_driver_run(uint32_t) {
 *   static const npu_run_api api = npu::kit::RunTable<Graph>("acme_npu", "1.0");
 *   return &api;
 * }
 * \endcode
 */
#ifndef DRIVER_KIT_RUN_H_
#define DRIVER_KIT_RUN_H_

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "driver_kit/program.h"

namespace npu::kit {

/*! \brief Memory that is aligned, zeroed, and may be read beyond its end. */
class Block {
 public:
  explicit Block(size_t bytes)
      : data_(::operator new(Aligned(bytes) + kAlignment, std::align_val_t(kAlignment))) {
    std::memset(data_, 0, Aligned(bytes) + kAlignment);
  }
  Block(Block&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Block& operator=(Block&&) = delete;
  ~Block() { ::operator delete(data_, std::align_val_t(kAlignment)); }

  void* data() const { return data_; }

 private:
  void* data_;
};

/*! \brief An element type and a shape, for messages. */
inline std::string TextOf(npu_dtype dtype, int32_t rank, const int64_t* dims) {
  constexpr const char* kNames[] = {"float32", "float16", "int8", "uint8",
                                    "int32",   "int64",   "bool", "int16"};
  std::string text = dtype < NPU_FLOAT32 || dtype > NPU_INT16 ? "?" : kNames[dtype];
  for (int32_t i = 0; i < rank; ++i) text += (i == 0 ? "[" : ", ") + std::to_string(dims[i]);
  return text + (rank > 0 ? "]" : "[]");
}

/*! \brief Refuses a buffer that does not match the program. */
inline void* CheckedData(const std::vector<Value>& ports, size_t index, const npu_buffer* buffer) {
  if (index >= ports.size()) Refuse("there is no such input or output");
  const Value& port = ports[index];
  bool same = buffer->dtype == port.dtype && buffer->rank == port.rank;
  for (int32_t i = 0; same && i < port.rank; ++i) same = buffer->dims[i] == port.dims[i];
  if (!same) {
    Refuse("it is " + TextOf(buffer->dtype, buffer->rank, buffer->dims) +
           ", but the program was compiled for " + TextOf(port.dtype, port.rank, port.dims));
  }
  if (buffer->bytes != BytesOf(port)) {
    Refuse("it has " + std::to_string(buffer->bytes) + " bytes, but " +
           TextOf(port.dtype, port.rank, port.dims) + " has " + std::to_string(BytesOf(port)));
  }
  if (buffer->data == nullptr) Refuse("it has no memory");
  return buffer->data;
}

/*! \brief Refuses a request that lacks a buffer. */
inline void RequireBound(const std::vector<void*>& buffers, const char* what) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i] == nullptr) Refuse(what + std::to_string(i) + " is not bound");
  }
}

inline std::string& RunError() {
  thread_local std::string error;
  return error;
}

template <typename Graph>
struct LoadedProgram {
  Program program;
  std::string text;
};

template <typename Graph>
struct GraphRequest {
  explicit GraphRequest(const Program& p)
      : program(p), inputs(p.inputs.size()), outputs(p.outputs.size()) {
    std::vector<bool> is_output(program.values.size(), false);
    for (const Value& output : program.outputs) is_output[static_cast<size_t>(output.place)] = true;
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      void* data = nullptr;
      if (value.source == Source::kConstant) {
        data = const_cast<void*>(program.Data(value));
      } else if (value.source == Source::kInput || is_output[i]) {
        blocks.emplace_back(BytesOf(value));
        data = blocks.back().data();
      }
      memory.push_back(data);
    }
    if (!program.nodes.empty()) graph = std::make_unique<Graph>(program, memory);
  }

  void Execute() {
    RequireBound(inputs, "input ");
    RequireBound(outputs, "output ");
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (value.source != Source::kInput) continue;
      const void* from = inputs[static_cast<size_t>(value.place)];
      std::memcpy(memory[i], from, BytesOf(value));
    }
    if (graph != nullptr) graph->Run();
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const size_t id = static_cast<size_t>(program.outputs[i].place);
      std::memcpy(outputs[i], memory[id], BytesOf(program.values[id]));
    }
  }

  const Program& program;
  std::vector<void*> inputs, outputs;
  std::vector<Block> blocks;
  /*! \brief By value. */
  std::vector<void*> memory;
  std::unique_ptr<Graph> graph;
};

/*! \brief The table of the run half. */
template <typename Graph>
npu_run_api RunTable(const char* name, const char* release) {
  using Loaded = LoadedProgram<Graph>;
  using Request = GraphRequest<Graph>;
  npu_run_api api = {};
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = name;
  api.release = release;
  api.error = [] { return RunError().c_str(); };
  api.load = [](npu_device*, const uint8_t* bytes, size_t size, npu_program** program) {
    return Try(&RunError(), [&] {
      auto loaded = std::make_unique<Loaded>();
      loaded->program = Parse(bytes, size);
      loaded->text = Listing(loaded->program);
      *program = reinterpret_cast<npu_program*>(loaded.release());
    });
  };
  api.unload = [](npu_program* program) { delete reinterpret_cast<Loaded*>(program); };
  api.describe = [](npu_program* program, const char** text) {
    *text = reinterpret_cast<Loaded*>(program)->text.c_str();
    return NPU_OK;
  };
  api.create_request = [](npu_program* program, npu_request** request) {
    return Try(&RunError(), [&] {
      const Program& loaded = reinterpret_cast<Loaded*>(program)->program;
      *request = reinterpret_cast<npu_request*>(new Request(loaded));
    });
  };
  api.destroy_request = [](npu_request* request) { delete reinterpret_cast<Request*>(request); };
  api.bind_input = [](npu_request* request, size_t index, const npu_buffer* buffer) {
    return Try(&RunError(), [&] {
      auto* bound = reinterpret_cast<Request*>(request);
      bound->inputs[index] = CheckedData(bound->program.inputs, index, buffer);
    });
  };
  api.bind_output = [](npu_request* request, size_t index, const npu_buffer* buffer) {
    return Try(&RunError(), [&] {
      auto* bound = reinterpret_cast<Request*>(request);
      bound->outputs[index] = CheckedData(bound->program.outputs, index, buffer);
    });
  };
  api.execute = [](npu_request* request) {
    return Try(&RunError(), [&] { reinterpret_cast<Request*>(request)->Execute(); });
  };
  return api;
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_RUN_H_
