/*!
 * \file states_driver.cc
 * \brief A driver on the kit that updates states where the caller has them. Its option `lacks`
 *  names what it declines, `fault` what it does wrong.
 */
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "driver_kit/build.h"
#include "driver_kit/run.h"

#ifndef LEAST_STATE
#define LEAST_STATE 1
#endif
#ifndef READS_WRITTEN
#define READS_WRITTEN false
#endif

namespace {

using namespace npu::kit;

std::string Reason(const Program& program, const Node& node) {
  const std::string name = NameOf(node);
  const std::string no = "it has no " + name;
  if (program.options.at("lacks").find(name) != std::string::npos) return no;
  for (int32_t id : program.InputsOf(node)) {
    if (program.At(id).dtype == NPU_FLOAT16) return "it has no float16";
  }
  if (program.At(node.out).dtype == NPU_FLOAT16) return "it has no float16";
  switch (node.kind) {
    case Kind::kMatmul:
      return program.At(node.inputs[0]).rank == 2 && program.At(node.inputs[1]).rank == 2 ? "" : no;
    case Kind::kReduce:
      return node.reduce.kind == NPU_REDUCE_MAX && node.reduce.axes == 2 &&
                     program.At(node.inputs[0]).rank == 2
                 ? ""
                 : no;
    case Kind::kGather:
      return node.gather.axis == 0 && node.gather.elementwise == 0 ? "" : no;
    case Kind::kReshape:
    case Kind::kUpdate:
      return "";
    case Kind::kStep:
      switch (node.step) {
        case NPU_STEP_LESS:
        case NPU_STEP_EQUAL:
        case NPU_STEP_SELECT:
        case NPU_STEP_ADD:
        case NPU_STEP_MULTIPLY:
          return "";
        default:
          return no;
      }
    default:
      return no;
  }
}

/*! \brief Runs the nodes one after the other. */
class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory)
      : program_(program), memory_(memory) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != nullptr) continue;
      blocks_.emplace_back(BytesOf(program.values[i]));
      memory_[i] = blocks_.back().data();
    }
    own_ = memory_;
    if (!Is("weights of another program")) return;
    // As a driver would that knows weights by their place.
    static std::map<std::pair<size_t, size_t>, std::vector<uint8_t>> known;
    for (size_t i = 0; i < memory_.size(); ++i) {
      const Value& value = program.values[i];
      if (value.source != Source::kConstant) continue;
      const auto* from = static_cast<const uint8_t*>(memory_[i]);
      const auto added = known.try_emplace({i, BytesOf(value)}, from, from + BytesOf(value));
      memory_[i] = added.first->second.data();
    }
  }

#ifndef NO_BIND
  void Bind(int32_t value, void* memory) {
    if (Is("states on the host are errors")) Refuse("a state is on the host");
    if (Is("stale")) return;
    memory_[static_cast<size_t>(value)] = memory;
  }
#endif

#ifdef DEVICE_STATES
  class StateMemory {
   public:
    explicit StateMemory(size_t bytes) : device_(bytes), written_(bytes), bytes_(bytes) {
      if (bytes < LEAST_STATE) Decline("it is too small for this memory");
    }
    void Write(const void* data) {
      std::memcpy(device_.data(), data, bytes_);
      std::memcpy(written_.data(), data, bytes_);
    }
    void Read(void* data) const {
      std::memcpy(data, (READS_WRITTEN ? written_ : device_).data(), bytes_);
    }
    void* data() const { return device_.data(); }

   private:
    Block device_;
    /*! \brief What the host has written last, which a wrong driver takes for the state. */
    Block written_;
    size_t bytes_;
  };

  void Bind(int32_t value, StateMemory* state) {
    if (!Is("stale")) memory_[static_cast<size_t>(value)] = state->data();
  }
#endif

#ifdef CAN_WAIT
  // Another thread does the work.
  void Submit() {
    is_done_ = std::async(std::launch::async, [this] { Run(); });
  }
  bool Wait(int64_t timeout_us) {
    const auto limit = std::chrono::microseconds(timeout_us);
    if (timeout_us >= 0 && is_done_.wait_for(limit) != std::future_status::ready) return false;
    is_done_.get();
    return true;
  }
  // The work is short.
  void Cancel() {}
#endif

  void Run() {
    for (const State& state : program_.states) {
      const auto before = static_cast<size_t>(state.before);
      if (memory_[before] != memory_[static_cast<size_t>(state.after)]) {
        Refuse("a state has two memories");
      }
      // A test asks for it, to see that states are not copied.
      if (Is("copies are errors") && memory_[before] == own_[before]) Refuse("a state is copied");
    }
    for (const Node& node : program_.nodes) Compute(node);
  }

 private:
  bool Is(const char* fault) const { return program_.options.at("fault") == fault; }

  template <typename T>
  T* At(int32_t id) const {
    return static_cast<T*>(memory_[static_cast<size_t>(id)]);
  }

  double Load(int32_t id, int64_t i) const {
    switch (program_.At(id).dtype) {
      case NPU_FLOAT32:
        return static_cast<double>(At<float>(id)[i]);
      case NPU_INT64:
        return static_cast<double>(At<int64_t>(id)[i]);
      case NPU_INT32:
        return At<int32_t>(id)[i];
      case NPU_INT16:
        return At<int16_t>(id)[i];
      case NPU_INT8:
        return At<int8_t>(id)[i];
      default:
        return At<uint8_t>(id)[i];
    }
  }

  void Store(int32_t id, int64_t i, double number) const {
    switch (program_.At(id).dtype) {
      case NPU_FLOAT32:
        At<float>(id)[i] = static_cast<float>(number);
        return;
      case NPU_INT64:
        At<int64_t>(id)[i] = static_cast<int64_t>(number);
        return;
      case NPU_INT32:
        At<int32_t>(id)[i] = static_cast<int32_t>(number);
        return;
      case NPU_INT16:
        At<int16_t>(id)[i] = static_cast<int16_t>(number);
        return;
      case NPU_INT8:
        At<int8_t>(id)[i] = static_cast<int8_t>(number);
        return;
      default:
        At<uint8_t>(id)[i] = static_cast<uint8_t>(number);
    }
  }

  /*! \brief The element of an operand, broadcast, that belongs to an element of the result. */
  double Broadcast(int32_t id, const Value& out, int64_t i) const {
    const Value& value = program_.At(id);
    int64_t place = 0, stride = 1;
    for (int32_t d = out.rank; d-- > 0; i /= out.dims[d]) {
      const int32_t own = d - (out.rank - value.rank);
      if (own < 0) break;
      if (value.dims[own] > 1) place += i % out.dims[d] * stride;
      stride *= value.dims[own];
    }
    return Load(id, place);
  }

  void Compute(const Node& node) const {
    const Value& out = program_.At(node.out);
    const Value& data = program_.At(node.inputs[0]);
    if (node.kind == Kind::kUpdate) return Update(node);
    for (int64_t i = 0; i < CountOf(out); ++i) {
      double number = 0;
      if (node.kind == Kind::kMatmul) {
        const int64_t row = i / out.dims[1], column = i % out.dims[1];
        const bool turned = node.matmul.transpose_a != 0, other = node.matmul.transpose_b != 0;
        const int64_t depth = data.dims[turned ? 0 : 1];
        for (int64_t k = 0; k < depth; ++k) {
          number += Load(node.inputs[0], turned ? k * out.dims[0] + row : row * depth + k) *
                    Load(node.inputs[1], other ? column * depth + k : k * out.dims[1] + column);
        }
        if (node.inputs[2] >= 0) number += Load(node.inputs[2], column);
      } else if (node.kind == Kind::kReduce) {
        number = Load(node.inputs[0], i * data.dims[1]);
        for (int64_t k = 1; k < data.dims[1]; ++k) {
          number = std::max(number, Load(node.inputs[0], i * data.dims[1] + k));
        }
      } else if (node.kind == Kind::kGather) {
        const int64_t slice = CountOf(data) / data.dims[0];
        const auto index = static_cast<int64_t>(Load(node.inputs[1], i / slice));
        const int64_t last = data.dims[0] - 1;
        number =
            Load(node.inputs[0], std::min(std::max<int64_t>(index, 0), last) * slice + i % slice);
      } else if (node.kind == Kind::kReshape) {
        number = Load(node.inputs[0], i);
      } else {
        number = Step(node, out, i);
      }
      Store(node.out, i, number);
    }
  }

  double Step(const Node& node, const Value& out, int64_t i) const {
    const auto read = [&](int place) {
      return node.inputs[place] < 0 ? node.numbers[place] : Broadcast(node.inputs[place], out, i);
    };
    const double a = read(0), b = read(1);
    switch (node.step) {
      case NPU_STEP_LESS:
        return a < b ? 1 : 0;
      case NPU_STEP_EQUAL:
        return a == b ? 1 : 0;
      case NPU_STEP_SELECT:
        return a != 0 ? b : read(2);
      case NPU_STEP_MULTIPLY:
        return a * b;
      default:
        return a + b;
    }
  }

  void Update(const Node& node) const {
    auto *to = At<uint8_t>(node.out), *data = At<uint8_t>(node.inputs[0]);
    if (Is("update before read")) Write(node, data);
    if (to != data) std::memcpy(to, data, BytesOf(program_.At(node.out)));
    Write(node, to);
  }

  /*! \brief Writes the new slices. */
  void Write(const Node& node, uint8_t* to) const {
    const Value &out = program_.At(node.out), &value = program_.At(node.inputs[1]);
    const auto* from = At<const uint8_t>(node.inputs[1]);
    const int32_t axis = node.update.axis;
    const int64_t before = CountBefore(out.dims, axis), size = out.dims[axis];
    const int64_t count = value.dims[axis];
    const size_t slice = BytesOf(out) / static_cast<size_t>(before * size);
    for (int64_t outer = 0; outer < before; ++outer) {
      for (int64_t i = 0; i < count; ++i) {
        auto place = static_cast<int64_t>(Load(node.inputs[2], i));
        if (Is("one too far")) ++place;
        if (place < 0 || place >= size) continue;
        std::memcpy(to + static_cast<size_t>(outer * size + place) * slice,
                    from + static_cast<size_t>(outer * count + i) * slice, slice);
      }
    }
  }

  const Program& program_;
  /*! \brief By value: where it is, and where it was before the caller said so. */
  std::vector<void*> memory_, own_;
  std::vector<Block> blocks_;
#ifdef CAN_WAIT
  std::future<void> is_done_;
#endif
};

constexpr npu_option_info kOptions[] = {
    {"lacks", NPU_OPTION_TEXT, "", 0, 0, nullptr, 0, "what it declines"},
    {"fault", NPU_OPTION_TEXT, "", 0, 0, nullptr, 0, "what it does wrong"},
};

constexpr Driver Made() {
  Driver driver = {"states", "1.0", Reason, kOptions, 2};
  driver.mixed = true;
  driver.updates = true;
  return driver;
}
constexpr Driver kDriver = Made();

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = BuildTable<kDriver>();
  return &api;
}

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api = RunTable<Graph, NodeByNode<Graph>>("states", "1.0");
  return &api;
}
