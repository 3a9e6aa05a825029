// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/run.h
 * \brief The run half of a driver whose SDK runs graphs, except for the graph: bytes, buffers,
 * requests, reasons. A request is executed by the thread that calls, unless the graph has Submit.
 *
 * \code
 * class Graph {
 *  public:
 *   // Makes the SDK's graph of the nodes, and throws a Failure where it cannot. memory[i] has the
 *   // elements of value i where it is a constant, an input, or an output: the same for as long as
 *   // the graph lives, aligned to 64 bytes, and followed by 64 readable bytes. Where the program
 *   // has opaque bytes, constants have no memory.
 *   Graph(const npu::kit::Program& program, const std::vector<void*>& memory);
 *   void Run();
 *   // Only if the SDK reports how long nodes took: runs, and returns these times.
 *   std::vector<npu::kit::NodeTime> RunTimed();
 *   // Only if the SDK can, all three: starts what Run does; waits for its end, for so many
 *   // microseconds at most (negative: as long as it takes), and returns whether it came; asks
 *   // to end it, perhaps on another thread, so that Wait throws a Failure of NPU_CANCELLED.
 *   void Submit();
 *   bool Wait(int64_t timeout_us);
 *   void Cancel();
 *   // Only for drivers with `updates`, and if the SDK can: before each run, tells where a value of
 *   // program.states is during it, aligned to 64 bytes, but with no readable bytes behind it. Both
 *   // values of a state get the same memory. Not called for the graphs of a profile. Without it,
 *   // the kit copies states to memory that stays the same, and back.
 *   void Bind(int32_t value, void* memory);
 *   // Only beside Bind, and if sessions may keep states in memory of the device: such memory, and
 *   // its Bind. The constructor throws a Failure where there is none; one of NPU_DECLINED keeps
 *   // the state on the host.
 *   class StateMemory {
 *    public:
 *     explicit StateMemory(size_t bytes);
 *     void Write(const void* data);
 *     void Read(void* data) const;
 *   };
 *   void Bind(int32_t value, StateMemory* state);
 * };
 *
 * const npu_run_api* npu_driver_run(uint32_t) {
 *   static const npu_run_api api = npu::kit::RunTable<Graph>("acme_npu", "1.0");
 *   return &api;
 * }
 * \endcode
 *
 * A profile shows each op if the graph has RunTimed. If the SDK reports no times,
 * RunTable<Graph, npu::kit::NodeByNode<Graph>> measures them; not of programs with opaque bytes.
 */
#ifndef DRIVER_KIT_RUN_H_
#define DRIVER_KIT_RUN_H_

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "driver_kit/batches.h"
#include "driver_kit/program.h"

namespace npu::kit {

/*! \brief Memory that is aligned, zeroed, and may be read beyond its end. */
class Block {
 public:
  /*! \brief Of what may never be needed, and is written before it is read, nothing is zeroed, and
   *  so no page is taken. */
  explicit Block(size_t bytes, bool is_zeroed = true)
      : data_(::operator new(Aligned(bytes) + kAlignment, std::align_val_t(kAlignment))) {
    if (is_zeroed) std::memset(data_, 0, Aligned(bytes) + kAlignment);
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

/*! \brief The size of a buffer where its input or output grows; 0 if that does not. */
inline int64_t GrownSize(const Value& port, const npu_buffer* buffer) {
  return port.groups == 0 ? 0 : buffer->dims[GrowingOf(port)];
}

/*! \brief The state that a buffer is, or null. */
inline npu_state* StateOf(const npu_buffer* buffer) {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the field is a pointer.
  return buffer->data == nullptr && NPU_HAS(npu_buffer, buffer, state) ? buffer->state : nullptr;
}

/*! \brief Refuses a buffer that does not match the program; else, returns its data or its state. */
inline void* CheckedData(const std::vector<Value>& ports, size_t index, const npu_buffer* buffer) {
  if (index >= ports.size()) Refuse("there is no such input or output");
  const Value& port = ports[index];
  const int32_t growing = GrowingOf(port);
  bool same = buffer->dtype == port.dtype && buffer->rank == port.rank;
  for (int32_t i = 0; same && i < port.rank; ++i) {
    const int64_t size = buffer->dims[i], most = port.dims[i];
    same = i == growing ? size >= 1 && size <= most && size % GroupsIn(port) == 0 : size == most;
  }
  if (!same) {
    const std::string at_most = " with at most so many rows in dimension ";
    Refuse("it is " + TextOf(buffer->dtype, buffer->rank, buffer->dims) +
           ", but the program was compiled for " + TextOf(port.dtype, port.rank, port.dims) +
           (growing < 0 ? ""
                        : at_most + std::to_string(growing) +
                              "; compile the model with a larger symbol_bound"));
  }
  const size_t bytes = BytesOf(port, GrownSize(port, buffer));
  if (buffer->bytes != bytes) {
    Refuse("it has " + std::to_string(buffer->bytes) + " bytes, but " +
           TextOf(buffer->dtype, buffer->rank, buffer->dims) + " has " + std::to_string(bytes));
  }
  void* data = buffer->data == nullptr ? StateOf(buffer) : buffer->data;
  if (data == nullptr) Refuse("it has no memory");
  return data;
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

// ---- Times of nodes ----

/*! \brief When a node ran. */
struct NodeTime {
  /*! \brief Its place in program.nodes. Several nodes of the SDK may share one place. */
  size_t node = 0;
  /*! \brief Nanoseconds since RunTimed began. */
  int64_t begin = 0, end = 0;
  /*! \brief How much it moved from and to the device's DRAM; 0: not known. */
  uint64_t bytes_read = 0, bytes_written = 0;
  /*! \brief The engine that it ran on; a literal. */
  const char* engine = "npu";
};

/*!
 * \brief The times of nodes on an SDK that reports none: makes a graph of each node, and runs one
 *  after the other.
 *
 * What the SDK fuses, or keeps on the chip, between two nodes does not show in these times: they
 * tell which ops are slow, and their sum may be more than the whole graph takes.
 */
template <typename Graph>
class NodeByNode {
 public:
  NodeByNode(const Program& program, const std::vector<void*>& memory) : memory_(memory) {
    for (size_t i = 0; i < program.values.size(); ++i) {
      if (memory_[i] != nullptr) continue;
      blocks_.emplace_back(BytesOf(program.values[i]));
      memory_[i] = blocks_.back().data();
    }
    for (const Node& node : program.nodes) parts_.push_back(MakePart(program, node));
  }

  std::vector<NodeTime> RunTimed() {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const auto now = [start] {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    };
    std::vector<NodeTime> times;
    for (const std::unique_ptr<Part>& part : parts_) {
      NodeTime time = part->time;
      time.node = times.size();
      time.begin = now();
      part->graph->Run();
      time.end = now();
      times.push_back(time);
    }
    return times;
  }

 private:
  /*! \brief A program of one node, to which the graph refers. Before it runs, only the bytes of
   *  `time` are known. */
  struct Part {
    Program program;
    std::unique_ptr<Graph> graph;
    NodeTime time;
  };

  std::unique_ptr<Part> MakePart(const Program& whole, Node node) const {
    auto part = std::make_unique<Part>();
    Program& program = part->program;
    program.options = whole.options;
    program.constants = whole.constants;
    program.constant_bytes = whole.constant_bytes;
    std::vector<int32_t> ids;
    std::vector<void*> memory;
    const auto add = [&](int32_t id, Source source) {
      const auto found = std::find(ids.begin(), ids.end(), id);
      if (found != ids.end()) return static_cast<int32_t>(found - ids.begin());
      ids.push_back(id);
      memory.push_back(memory_[static_cast<size_t>(id)]);
      Value value = whole.At(id);
      if (source == Source::kInput && value.source != Source::kConstant) {
        value.place = static_cast<int64_t>(program.inputs.size());
        value.source = source;
        program.inputs.push_back(value);
      }
      program.values.push_back(value);
      const auto added = static_cast<int32_t>(ids.size() - 1);
      if (const Scales* scales = whole.ScalesOf(id)) program.scales[added] = *scales;
      return added;
    };
    for (int32_t& input : node.inputs) {
      if (input >= 0) input = add(input, Source::kInput);
    }
    std::vector<int32_t> more;
    if (const auto found = whole.more_inputs.find(node.out); found != whole.more_inputs.end()) {
      for (int32_t input : found->second) more.push_back(add(input, Source::kInput));
    }
    const auto name = whole.names.find(node.out);
    node.out = add(node.out, Source::kNode);
    if (name != whole.names.end()) program.names[node.out] = name->second;
    if (!more.empty()) program.more_inputs[node.out] = std::move(more);
    program.outputs.push_back(program.At(node.out));
    program.outputs.back().place = node.out;
    program.nodes.push_back(node);
    program.labels.emplace_back();
    NodeTime& time = part->time;
    for (const Value& value : program.values) {
      (value.source == Source::kNode ? time.bytes_written : time.bytes_read) += BytesOf(value);
    }
    if (node.kind == Kind::kUpdate &&
        memory[static_cast<size_t>(node.inputs[0])] == memory[static_cast<size_t>(node.out)]) {
      time.bytes_read -= BytesOf(program.At(node.inputs[0]));
      time.bytes_written = BytesOf(program.At(node.inputs[1]));
      program.states.push_back({node.inputs[0], node.out});
    }
    part->graph = std::make_unique<Graph>(program, memory);
    return part;
  }

  /*! \brief By value, including those that are internal to the whole graph. */
  std::vector<void*> memory_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<Part>> parts_;
};

/*! \brief Whether a graph reports the times of nodes. */
template <typename Graph, typename = void>
struct IsTimed : std::false_type {};
template <typename Graph>
struct IsTimed<Graph, std::void_t<decltype(std::declval<Graph&>().RunTimed())>> : std::true_type {};

template <typename Graph>
Graph ClassOf(void (Graph::*)());

/*! \brief Whether a graph runs beside the caller. A class with a Run of its own does not, though it
 *  may be derived from one that does. */
template <typename Graph, typename = void>
struct CanWait : std::false_type {};
template <typename Graph>
struct CanWait<Graph, std::void_t<decltype(std::declval<Graph&>().Wait(int64_t{})),
                                  decltype(std::declval<Graph&>().Cancel()),
                                  decltype(ClassOf(&Graph::Submit))>>
    : std::is_same<decltype(ClassOf(&Graph::Run)), decltype(ClassOf(&Graph::Submit))> {};

/*! \brief Whether a graph can be told where states are. */
template <typename Graph, typename = void>
struct CanBind : std::false_type {};
template <typename Graph>
struct CanBind<Graph, std::void_t<decltype(std::declval<Graph&>().Bind(
                          int32_t{}, static_cast<void*>(nullptr)))>> : std::true_type {};

/*! \brief Whether a graph can be told of states in memory of the device: by a Bind of its own,
 * since any pointer is a `void*` too. */
template <typename Graph, typename = void>
struct HasStateMemory : std::false_type {};
template <typename Graph>
struct HasStateMemory<
    Graph, std::void_t<typename Graph::StateMemory,
                       decltype(static_cast<void (Graph::*)(int32_t, typename Graph::StateMemory*)>(
                           &Graph::Bind))>> : std::true_type {};

/*! \brief The memory of a state in memory of the device; an empty one for other graphs. */
template <typename Graph, bool = HasStateMemory<Graph>::value>
struct DeviceState {
  explicit DeviceState(size_t size) : bytes(size), state(size) {}
  void Write(const void* data, size_t size) {
    RequireSize(size);
    state.Write(data);
  }
  void Read(void* data, size_t size) const {
    RequireSize(size);
    state.Read(data);
  }
  void RequireSize(size_t size) const {
    if (size == bytes) return;
    Refuse("a state has " + std::to_string(bytes) + " bytes, not " + std::to_string(size));
  }

  size_t bytes;
  typename Graph::StateMemory state;
};
template <typename Graph>
struct DeviceState<Graph, false> {
  void Write(const void*, size_t) {}
  void Read(void*, size_t) const {}
  void RequireSize(size_t) const {}
  size_t bytes = 0;
};

/*! \brief The state that a buffer is, with the buffer's size; or null. */
template <typename Graph>
DeviceState<Graph>* HeldOf(const npu_buffer* buffer) {
  auto* held = reinterpret_cast<DeviceState<Graph>*>(StateOf(buffer));
  if (held != nullptr) held->RequireSize(buffer->bytes);
  return held;
}

/*! \brief How many additions and multiplications a matmul or a convolution has, also a transposed
 *  one; 0 for others. */
inline uint64_t OperationsOf(const Program& program, const Node& node) {
  if (node.kind == Kind::kTransposedConvolution) {
    // Each element of the data meets all weights of its channel.
    const Value &data = program.At(node.inputs[0]), &weight = program.At(node.inputs[1]);
    const bool is_first = data.dims[1] == weight.dims[0];
    const int64_t channels = data.dims[is_first ? 1 : data.rank - 1];
    return 2 * static_cast<uint64_t>(CountOf(data) / channels) *
           static_cast<uint64_t>(CountOf(weight));
  }
  if (node.kind != Kind::kMatmul && node.kind != Kind::kConvolution) return 0;
  const Value &out = program.At(node.out), &weight = program.At(node.inputs[1]);
  int64_t summed = 0;
  if (node.kind == Kind::kMatmul) {
    const Value& a = program.At(node.inputs[0]);
    summed = a.dims[a.rank - (node.matmul.transpose_a != 0 ? 2 : 1)];
  } else {
    // Each output channel has as many weights as it sums products, whatever their order.
    summed = weight.dims[0] > 0 ? CountOf(weight) / weight.dims[0] : 0;
  }
  return 2 * static_cast<uint64_t>(CountOf(out)) * static_cast<uint64_t>(summed);
}

/*! \brief The answer to read_events. */
struct EventList {
  std::vector<npu_event> events;
  std::vector<npu_traffic> traffic;
  std::vector<std::string> names;

  EventList() = default;
  EventList(const Program& program, const std::vector<NodeTime>& times) {
    // The events point to them.
    traffic.reserve(times.size());
    names.reserve(times.size());
    for (const NodeTime& time : times) {
      if (time.node >= program.nodes.size()) Refuse("a time is of no node");
      const Node& node = program.nodes[time.node];
      const std::string& label = program.labels[time.node];
      npu_event event = {};
      names.push_back(program.NameOf(node));
      event.name = names.back().c_str();
      event.label = label.empty() ? nullptr : label.c_str();
      event.engine = time.engine;
      event.begin = time.begin;
      event.end = time.end;
      event.busy = time.end - time.begin;
      event.operations = OperationsOf(program, node);
      if (time.bytes_read + time.bytes_written > 0) {
        traffic.push_back({"dram", time.bytes_read, time.bytes_written});
        event.traffic = &traffic.back();
        event.traffic_count = 1;
      }
      events.push_back(event);
    }
  }
};

template <typename Graph>
struct LoadedProgram {
  Program program;
  std::string text;
};

/*! \brief A request. While a profile records, it is run by `Timed`, which is made for that. */
template <typename Graph, typename Timed>
struct GraphRequest {
  using Held = DeviceState<Graph>;
  /*! \brief A state: its values, and the input and the output that have them. */
  struct PlacedState {
    size_t before, after, input, output;
  };

  explicit GraphRequest(const Program& p)
      : program(p),
        inputs(p.inputs.size()),
        outputs(p.outputs.size()),
        input_states(p.inputs.size()),
        output_states(p.outputs.size()),
        input_sizes(p.inputs.size()),
        output_sizes(p.outputs.size()) {
    std::vector<bool> is_output(program.values.size(), false);
    for (const Value& output : program.outputs) is_output[static_cast<size_t>(output.place)] = true;
    std::vector<bool> is_state(program.values.size(), false);
    for (const State& state : program.states) {
      is_state[static_cast<size_t>(state.before)] = true;
      is_output[static_cast<size_t>(state.after)] = false;
      states.push_back({static_cast<size_t>(state.before), static_cast<size_t>(state.after),
                        static_cast<size_t>(program.At(state.before).place), 0});
      while (program.outputs[states.back().output].place != state.after) ++states.back().output;
    }
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      void* data = nullptr;
      if (value.source == Source::kConstant) {
        if (program.opaque == nullptr) data = const_cast<void*>(program.Data(value));
      } else if (value.source == Source::kInput || is_output[i]) {
        blocks.emplace_back(BytesOf(value), !is_state[i]);
        data = blocks.back().data();
      }
      memory.push_back(data);
    }
    for (const PlacedState& state : states) memory[state.after] = memory[state.before];
    if (!program.nodes.empty()) graph = std::make_unique<Graph>(program, memory);
  }

  void Execute() {
    ReadInputs();
    Run();
    WriteOutputs();
  }

  void Submit() {
    ReadInputs();
    // What a profile records, and what only copies, is done when this returns.
    is_done = graph == nullptr || timed != nullptr;
    if (is_done) {
      Run();
    } else {
      graph->Submit();
    }
  }

  bool Wait(int64_t timeout_us) {
    if (!is_done && !graph->Wait(timeout_us)) return false;
    WriteOutputs();
    return true;
  }

  void ReadInputs() {
    RequireBound(inputs, "input ");
    RequireBound(outputs, "output ");
    RequireApart();
    PlaceStates();
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (value.source != Source::kInput || IsBound(static_cast<int32_t>(i))) continue;
      const auto input = static_cast<size_t>(value.place);
      std::vector<uint8_t> copy;
      CopyPadded(program.inputs[input], input_sizes[input], ElementsOf(input, &copy), memory[i]);
    }
  }

  /*! \brief The elements of an input, in `copy` if it is a state in memory of the device. */
  const void* ElementsOf(size_t input, std::vector<uint8_t>* copy) const {
    const Held* state = input_states[input];
    if (state == nullptr) return inputs[input];
    copy->resize(state->bytes);
    state->Read(copy->data(), copy->size());
    return copy->data();
  }

  /*! \brief Refuses one buffer for an input and an output, unless these are one state: artifacts
   *  may be forged. */
  void RequireApart() const {
    for (size_t o = 0; o < outputs.size(); ++o) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (outputs[o] != inputs[i]) continue;
        const auto is_it = [&](const PlacedState& state) {
          return state.input == i && state.output == o;
        };
        if (std::any_of(states.begin(), states.end(), is_it)) continue;
        Refuse("input " + std::to_string(i) + " and output " + std::to_string(o) +
               " have one buffer, and are no state of the program");
      }
    }
  }

  /*! \brief Lets the graph update states where the caller has them, if it can. */
  void PlaceStates() {
    if constexpr (CanBind<Graph>::value) {
      bound.assign(program.values.size(), false);
      for (const PlacedState& state : states) {
        // The graph of a profile has memory of its own.
        const bool is_bound = timed == nullptr && Place(state);
        bound[state.before] = bound[state.after] = is_bound;
        if (is_bound) continue;
        for (const size_t value : {state.before, state.after}) {
          graph->Bind(static_cast<int32_t>(value), memory[value]);
        }
      }
    }
  }

  /*! \brief Tells the graph where the caller wants the next value of a state, which gets the value
   *  before; returns whether it can be there. */
  bool Place(const PlacedState& state) {
    void* given = outputs[state.output];
    Held* given_state = output_states[state.output];
    if (given_state == nullptr && reinterpret_cast<uintptr_t>(given) % kAlignment != 0) {
      return false;
    }
    if (given != inputs[state.input]) {
      std::vector<uint8_t> copy;
      WriteOutput(state.output, ElementsOf(state.input, &copy));
    }
    for (const size_t value : {state.before, state.after}) {
      const auto id = static_cast<int32_t>(value);
      if constexpr (HasStateMemory<Graph>::value) {
        if (given_state != nullptr) {
          graph->Bind(id, &given_state->state);
          continue;
        }
      }
      if constexpr (CanBind<Graph>::value) graph->Bind(id, given);
    }
    return true;
  }

  bool IsBound(int32_t value) const { return !bound.empty() && bound[static_cast<size_t>(value)]; }

  void WriteOutputs() {
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const Value& output = program.outputs[i];
      if (IsBound(static_cast<int32_t>(output.place))) continue;
      WriteOutput(i, memory[static_cast<size_t>(output.place)]);
    }
  }

  /*! \brief Copies elements to where the caller wants an output. */
  void WriteOutput(size_t index, const void* from) {
    const Value& output = program.outputs[index];
    if (output_states[index] != nullptr) {
      output_states[index]->Write(from, BytesOf(output));
    } else {
      CopyCropped(output, output_sizes[index], from, outputs[index]);
    }
  }

  void Run() {
    if constexpr (IsTimed<Timed>::value) {
      if (timed != nullptr) {
        events = EventList(program, timed->RunTimed());
        return;
      }
    }
    if (graph != nullptr) graph->Run();
  }

  void Record(bool on) {
    timed.reset();
    events = EventList();
    if (on && !program.nodes.empty()) timed = std::make_unique<Timed>(program, memory);
  }

  const Program& program;
  std::vector<PlacedState> states;
  std::vector<void*> inputs, outputs;
  /*! \brief Those in memory of the device, which have no other; null elsewhere. */
  std::vector<Held*> input_states, output_states;
  /*! \brief Of inputs and outputs that grow. */
  std::vector<int64_t> input_sizes, output_sizes;
  std::vector<Block> blocks;
  /*! \brief By value. */
  std::vector<void*> memory;
  /*! \brief By value: whether it is a state that the graph has where the caller has it. */
  std::vector<bool> bound;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<Timed> timed;
  bool is_done = false;
  /*! \brief Of the last execution that a profile records. */
  EventList events;
};

/*! \brief The table of the run half. Profiles have events if `Timed` has RunTimed. */
template <typename Graph, typename Timed = Graph>
npu_run_api RunTable(const char* name, const char* release) {
  using Loaded = LoadedProgram<Graph>;
  using Request = GraphRequest<Graph, Timed>;
  using Held = typename Request::Held;
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
      void* data = CheckedData(bound->program.inputs, index, buffer);
      bound->input_states[index] = HeldOf<Graph>(buffer);
      bound->inputs[index] = data;
      bound->input_sizes[index] = GrownSize(bound->program.inputs[index], buffer);
    });
  };
  api.bind_output = [](npu_request* request, size_t index, const npu_buffer* buffer) {
    return Try(&RunError(), [&] {
      auto* bound = reinterpret_cast<Request*>(request);
      void* data = CheckedData(bound->program.outputs, index, buffer);
      bound->output_states[index] = HeldOf<Graph>(buffer);
      bound->outputs[index] = data;
      bound->output_sizes[index] = GrownSize(bound->program.outputs[index], buffer);
    });
  };
  if constexpr (CanWait<Graph>::value) {
    // No execute: whoever calls it could not stop what hangs.
    api.cancels = NPU_CANCEL_RUNNING;
    api.submit = [](npu_request* request) {
      return Try(&RunError(), [&] { reinterpret_cast<Request*>(request)->Submit(); });
    };
    api.wait = [](npu_request* request, int64_t timeout_us) {
      bool is_done = true;
      const npu_status status = Try(
          &RunError(), [&] { is_done = reinterpret_cast<Request*>(request)->Wait(timeout_us); });
      return is_done ? status : NPU_TIMEOUT;
    };
    api.cancel = [](npu_request* request) {
      auto* running = reinterpret_cast<Request*>(request);
      if (running->graph != nullptr) running->graph->Cancel();
      return NPU_OK;
    };
  } else {
    api.execute = [](npu_request* request) {
      return Try(&RunError(), [&] { reinterpret_cast<Request*>(request)->Execute(); });
    };
  }
  if constexpr (HasStateMemory<Graph>::value) {
    api.allocate_state = [](npu_device*, size_t bytes, npu_state** state) {
      return Try(&RunError(), [&] { *state = reinterpret_cast<npu_state*>(new Held(bytes)); });
    };
    api.free_state = [](npu_state* state) { delete reinterpret_cast<Held*>(state); };
    api.write_state = [](npu_state* state, const void* data, size_t bytes) {
      return Try(&RunError(), [&] { reinterpret_cast<Held*>(state)->Write(data, bytes); });
    };
    api.read_state = [](npu_state* state, void* data, size_t bytes) {
      return Try(&RunError(), [&] { reinterpret_cast<Held*>(state)->Read(data, bytes); });
    };
  }
  if constexpr (IsTimed<Timed>::value) {
    api.event_unit = "ns";
    api.record_events = [](npu_request* request, int32_t on) {
      return Try(&RunError(), [&] { reinterpret_cast<Request*>(request)->Record(on != 0); });
    };
    api.read_events = [](npu_request* request, const npu_event** events, size_t* count,
                         double* units_per_microsecond) {
      const EventList& list = reinterpret_cast<Request*>(request)->events;
      *events = list.events.data();
      *count = list.events.size();
      *units_per_microsecond = 1000;
      return NPU_OK;
    };
  }
  return api;
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_RUN_H_
