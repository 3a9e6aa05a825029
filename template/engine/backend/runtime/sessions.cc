// SPDX-License-Identifier: Apache-2.0
/*!
 * \file sessions.cc
 * \brief Sessions: each holds the states of one conversation with a model between its calls.
 *
 * A compiled function takes states and returns new ones. A session keeps them by reference. What
 * another session may hold too is never written, and callers get copies; but where a region of the
 * NPU alone reads a state and gives its next value, it may update the memory of the only reference.
 * Such a state is in memory of the device, if the driver has some, until the host needs it.
 * Sessions are numbers, which pass through any interface, RPC too.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sessions.h"

#include "artifact.h"
#include "names.h"
#include "signature.h"
#include "state_memory.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

[[noreturn]] void RefuseSession(const std::string& why) {
  throw ffi::Error("ValueError", std::string(kBackend) + ": " + why, "");
}

// ---- Tensors ----

struct HostTensorMemory {
  void AllocData(DLTensor* tensor) {
    tensor->data = ::operator new(ffi::GetDataSize(*tensor), std::align_val_t(kArtifactAlignment));
  }
  void FreeData(DLTensor* tensor) {
    ::operator delete(tensor->data, std::align_val_t(kArtifactAlignment));
  }
};

ffi::Tensor NewTensor(ffi::ShapeView shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(HostTensorMemory(), shape, dtype, DLDevice{kDLCPU, 0});
}

const char* BeginOf(const DLTensor& tensor) {
  return static_cast<const char*>(tensor.data) + tensor.byte_offset;
}

bool Overlap(const DLTensor& one, const DLTensor& other) {
  const char* begin = BeginOf(one);
  const char* other_begin = BeginOf(other);
  return begin < other_begin + ffi::GetDataSize(other) &&
         other_begin < begin + ffi::GetDataSize(one);
}

ffi::Tensor CopyOf(const DLTensor& tensor) {
  ffi::Tensor copy = NewTensor(ffi::ShapeView(tensor.shape, tensor.ndim), tensor.dtype);
  std::memcpy(copy.data_ptr(), BeginOf(tensor), ffi::GetDataSize(tensor));
  return copy;
}

std::string TypeText(DLDataType dtype, ffi::ShapeView shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return std::string(ffi::DLDataTypeToString(dtype)) + "[" + text + "]";
}

}  // namespace

// ---- Sessions ----

/*! \brief A state of a model, and its value in a session. */
struct HeldState {
  std::string name;
  ffi::Shape shape;
  /*! \brief The value before the first call, or one element without axes that fills it. */
  ffi::Tensor initial;
  /*! \brief None until it is first needed. While the value is on a device, it holds none, but tells
   *  regions which state they have. */
  std::optional<ffi::Tensor> value;
  std::shared_ptr<StateMemory> on_device;
  /*! \brief For regions that write another memory than they read: that of the value before. */
  std::shared_ptr<StateMemory> spare;

  /*! \brief The value in memory of the host, from now on. */
  const ffi::Tensor& Value() {
    if (on_device != nullptr) Keep(Copy());
    if (!value.has_value()) value = initial.shape().size() == shape.size() ? initial : Filled();
    return *value;
  }

  /*! \brief The value where it is, to be read at once. */
  ffi::Tensor Peek() { return on_device == nullptr ? Value() : Copy(); }

  /*! \brief A copy of the value, which stays where it is. */
  ffi::Tensor Copy() {
    if (on_device == nullptr) return CopyOf(*Value().GetDLTensorPtr());
    ffi::Tensor copy = NewTensor(shape, initial.dtype());
    on_device->Read(copy.data_ptr());
    return copy;
  }

  void Keep(std::optional<ffi::Tensor> other) {
    value = std::move(other);
    on_device.reset();
    spare.reset();
  }

  /*! \brief Makes `value` the only reference, so that a region may update it or find it. */
  void Own() {
    if (on_device == nullptr) {
      if (!Value().unique()) value = Copy();
      // What another session has read before it gave up its reference.
      std::atomic_thread_fence(std::memory_order_acquire);
    } else if (!value.has_value() || !value->unique()) {
      value = NewTensor(shape, initial.dtype());
    }
  }

  size_t Bytes() const {
    return ffi::GetDataSize(static_cast<size_t>(shape.Product()), initial.dtype());
  }

  void CheckType(const DLTensor& tensor, const std::string& session) const {
    ffi::ShapeView given(tensor.shape, tensor.ndim);
    bool is_same =
        ffi::DLDataTypeToString(tensor.dtype) == ffi::DLDataTypeToString(initial.dtype());
    is_same = is_same && std::equal(shape.begin(), shape.end(), given.begin(), given.end());
    if (!is_same || !ffi::IsContiguous(tensor) || tensor.device.device_type != kDLCPU) {
      RefuseSession(session + ": the state '" + name + "' is " + TypeText(initial.dtype(), shape) +
                    ", compact and in the memory of the host; this is " +
                    TypeText(tensor.dtype, given));
    }
  }

 private:
  ffi::Tensor Filled() const {
    ffi::Tensor tensor = NewTensor(shape, initial.dtype());
    size_t element = ffi::GetDataSize(*initial.GetDLTensorPtr());
    size_t size = ffi::GetDataSize(*tensor.GetDLTensorPtr());
    auto* data = static_cast<char*>(tensor.data_ptr());
    for (size_t at = 0; at < size; at += element) {
      std::memcpy(data + at, BeginOf(*initial.GetDLTensorPtr()), element);
    }
    return tensor;
  }
};

/*! \brief What is used by one call or function at a time, who has its `Claim`. */
struct Session {
  std::string name;
  /*! \brief Tells models apart. */
  std::string model;
  std::vector<HeldState> states;
  bool is_in_use = false;
  bool has_failed = false;

  HeldState& Find(const std::string& state) {
    std::string known;
    for (HeldState& held : states) {
      if (held.name == state) return held;
      known += (known.empty() ? "'" : ", '") + held.name + "'";
    }
    RefuseSession(name + " has no state '" + state + "'; it has " + known);
  }
};

/*! \brief The sessions of this process; safe to use from several threads. */
class Sessions {
 public:
  static Sessions& OfProcess() {
    // Not destroyed: threads may outlive the end of the program.
    static auto* sessions = new Sessions;
    return *sessions;
  }

  int64_t Add(const Session& session) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t id = next_++;
    auto added = std::make_shared<Session>(session);
    added->name = "session " + std::to_string(id);
    added->is_in_use = added->has_failed = false;
    for (HeldState& state : added->states) state.spare.reset();
    sessions_[id] = std::move(added);
    return id;
  }

  std::shared_ptr<Session> Acquire(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Session> session = Find(id);
    session->is_in_use = true;
    return session;
  }

  void Release(Session* session) {
    std::lock_guard<std::mutex> lock(mutex_);
    session->is_in_use = false;
  }

  void Close(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    Find(id);
    sessions_.erase(id);
  }

  int64_t Count() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(sessions_.size());
  }

 private:
  /*! \brief A session that nobody uses. */
  std::shared_ptr<Session> Find(int64_t id) {
    auto found = sessions_.find(id);
    if (found == sessions_.end()) {
      RefuseSession("there is no session " + std::to_string(id) +
                    " in this process; it was closed, or never opened");
    }
    if (found->second->is_in_use) {
      RefuseSession(found->second->name +
                    " is in use by another call; one call at a time is supported. Wait for it, or "
                    "open a session for each conversation");
    }
    return found->second;
  }

  std::mutex mutex_;
  int64_t next_ = 1;
  std::map<int64_t, std::shared_ptr<Session>> sessions_;
};

/*! \brief The only use of a session, until the end of its scope. */
class Claim {
 public:
  explicit Claim(int64_t id) : session_(Sessions::OfProcess().Acquire(id)) {}
  ~Claim() { Sessions::OfProcess().Release(session_.get()); }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  Session* operator->() const { return session_.get(); }
  Session& operator*() const { return *session_; }

  void RequireValid() const {
    if (session_->has_failed) {
      RefuseSession(session_->name +
                    ": a call in it failed or timed out, so its states are not known; reset it");
    }
  }

 private:
  std::shared_ptr<Session> session_;
};

// ---- States that regions update ----

/*! \brief The lent states of all calls that are under way, by the memory of their values. */
class LentStates {
 public:
  static LentStates& OfProcess() {
    // Not destroyed: threads may outlive the end of the program.
    static auto* states = new LentStates;
    return *states;
  }

  void Add(const void* value, LentState* state) {
    std::lock_guard<std::mutex> lock(mutex_);
    states_[value] = state;
    ++count_;
  }

  void Remove(const void* value) {
    std::lock_guard<std::mutex> lock(mutex_);
    states_.erase(value);
    --count_;
  }

  LentState* Find(const void* value, size_t argument) {
    // Most models have no states.
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = states_.find(value);
    if (found == states_.end()) return nullptr;
    LentState* state = found->second;
    return state->argument_ == argument && state->output_ == nullptr ? state : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, LentState*> states_;
  std::atomic<size_t> count_{0};
};

LentState* LentState::Find(const void* value, size_t argument) {
  return LentStates::OfProcess().Find(value, argument);
}

void LentState::PlaceOnHost(const void* output) {
  if (state_->on_device != nullptr) {
    state_->on_device->Read(state_->value->data_ptr());
    state_->on_device.reset();
    state_->spare.reset();
  }
  output_ = output;
}

bool LentState::PlaceOn(const OpenedDevice& device, bool in_place, const void* output) {
  // What another session holds too is not written.
  const auto is_own = [](const std::shared_ptr<StateMemory>& memory) {
    const bool is_it = memory.use_count() == 1;
    std::atomic_thread_fence(std::memory_order_acquire);
    return is_it;
  };
  const size_t bytes = state_->Bytes();
  if (bytes == 0) return false;
  std::shared_ptr<StateMemory>&current = state_->on_device, &spare = state_->spare;
  const bool is_there = current != nullptr && current->device() == device;
  std::shared_ptr<StateMemory> moved;
  if (!is_there || (in_place && !is_own(current))) {
    moved = StateMemory::Allocate(device, bytes);
    if (moved == nullptr) return false;
  }
  // A region that updates in place may have moved the state here, but no spare memory.
  if (spare != nullptr && !(spare->device() == device)) spare.reset();
  if (!in_place && (spare == nullptr || !is_own(spare))) {
    spare = StateMemory::Allocate(device, bytes);
    if (spare == nullptr) return false;
  }
  if (moved != nullptr) {
    moved->Write(BeginOf(*state_->Peek().GetDLTensorPtr()));
    // The host's memory is freed when this call ends.
    if (current == nullptr) state_->value.reset();
    current = std::move(moved);
  }
  before_ = current;
  after_ = in_place ? current : spare;
  output_ = output;
  return true;
}

bool LentState::Keep(const void* output) {
  if (output_ != output) return false;
  if (after_ != before_) std::swap(state_->on_device, state_->spare);
  return true;
}

namespace {

// ---- Calls ----

int64_t IntegerAt(const DLTensor& tensor, int64_t index) {
  if (tensor.dtype.bits == 64) return reinterpret_cast<const int64_t*>(BeginOf(tensor))[index];
  return reinterpret_cast<const int32_t*>(BeginOf(tensor))[index];
}

/*! \brief Refuses a call that would write behind the end of a state. `args` from `first` on: for
 *  each place where it writes, the name of the state, the name of what has the positions, which of
 *  them (-1: all), what is added to them at least and at most, how many positions there are, the
 *  first of them, and the input that has them, or a text if it is a state. */
void RequireCapacity(Session* session, ffi::PackedArgs args, int first) {
  constexpr int kFields = 8;
  for (int i = first; i + kFields <= args.size(); i += kFields) {
    const std::string source = args[i + 1].cast<ffi::String>();
    const auto element = args[i + 2].cast<int64_t>();
    const auto least = args[i + 3].cast<int64_t>(), most = args[i + 4].cast<int64_t>();
    const auto size = args[i + 5].cast<int64_t>(), begin = args[i + 6].cast<int64_t>();
    auto input = args[i + 7].as<ffi::Tensor>();
    const ffi::Tensor given = input.has_value() ? *input : session->Find(source).Peek();
    const DLTensor& numbers = *given.GetDLTensorPtr();
    const bool has_integers = numbers.dtype.code == kDLInt && numbers.dtype.bits >= 32;
    if (!has_integers || !ffi::IsContiguous(numbers) || numbers.device.device_type != kDLCPU) {
      RefuseSession(session->name + ": '" + source +
                    "' must have integers of 32 or 64 bits, compact and in the memory of the host");
    }
    const auto count = static_cast<int64_t>(given.numel());
    const int64_t end = element < 0 ? count : std::min(element + 1, count);
    for (int64_t at = std::max<int64_t>(element, 0); at < end; ++at) {
      const int64_t number = IntegerAt(numbers, at);
      const bool is_behind = number >= size - most;
      if (!is_behind && number >= begin - least) continue;
      // The number may be the largest that there is.
      const auto position = static_cast<int64_t>(static_cast<uint64_t>(number) +
                                                 static_cast<uint64_t>(is_behind ? most : least));
      RefuseSession(session->name + ": the call would write to position " +
                    std::to_string(position) + " of the state '" +
                    std::string(args[i].cast<ffi::String>()) + "', since '" + source + "' is " +
                    std::to_string(number) + "; the state has " + std::to_string(size) +
                    " positions, from 0. Nothing has changed: call it with an earlier position, "
                    "reset the session, or export the model with a larger state");
    }
  }
}

/*! \brief A call of a function in a session. The machine drops it, whether the function ends or
 *  fails. */
class SessionCall : public ffi::Object {
 public:
  SessionCall(int64_t id, const std::string& model, ffi::PackedArgs args, int positions)
      : claim_(id) {
    if (claim_->model != model) {
      RefuseSession(claim_->name +
                    " is one of another model; open one with the model that is called");
    }
    claim_.RequireValid();
    RequireCapacity(&*claim_, args, positions);
  }
  ~SessionCall() {
    if (has_ended_) return;
    for (const auto& [state, lent] : lent_) LentStates::OfProcess().Remove(lent->value());
    claim_->has_failed = true;
  }

  ffi::Tensor Take(const std::string& name) { return Hold(claim_->Find(name).Value()); }

  /*! \brief Takes a value that a region may update, so it is the call's alone. */
  ffi::Tensor Lend(const std::string& name, size_t argument, size_t result) {
    HeldState& state = claim_->Find(name);
    state.Own();
    const void* memory = BeginOf(*state.value->GetDLTensorPtr());
    auto& lent = lent_[&state];
    lent = std::make_unique<LentState>(&state, memory, argument, result);
    LentStates::OfProcess().Add(memory, lent.get());
    return Hold(*state.value);
  }

  /*! \brief Keeps a new state, which the inputs of the caller share no memory with. */
  void Keep(const std::string& name, ffi::Tensor value, const std::vector<ffi::Tensor>& inputs) {
    HeldState& state = claim_->Find(name);
    if (auto found = lent_.find(&state); found != lent_.end()) {
      const std::unique_ptr<LentState> lent = std::move(found->second);
      lent_.erase(found);
      LentStates::OfProcess().Remove(lent->value());
      if (lent->Keep(BeginOf(*value.GetDLTensorPtr()))) return;
    }
    state.CheckType(*value.GetDLTensorPtr(), claim_->name);
    if (OverlapsAny(*value.GetDLTensorPtr(), inputs)) value = CopyOf(*value.GetDLTensorPtr());
    kept_.emplace_back(&state, Hold(std::move(value)));
  }

  /*! \brief Replaces tensors in a result that the session holds, or held. */
  ffi::Any Apart(const ffi::Any& result) const {
    if (auto tensor = result.as<ffi::Tensor>()) {
      if (OverlapsAny(*tensor->GetDLTensorPtr(), taken_)) return CopyOf(*tensor->GetDLTensorPtr());
    } else if (auto tuple = result.as<ffi::Array<ffi::Any>>()) {
      ffi::Array<ffi::Any> parts;
      for (const ffi::Any& part : *tuple) parts.push_back(Apart(part));
      return parts;
    }
    return result;
  }

  void End() {
    for (auto& [state, value] : kept_) state->Keep(std::move(value));
    kept_.clear();
    taken_.clear();
    has_ended_ = true;
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("npu.SessionCall", SessionCall, ffi::Object);

 private:
  ffi::Tensor Hold(ffi::Tensor value) {
    taken_.push_back(value);
    return value;
  }

  static bool OverlapsAny(const DLTensor& tensor, const std::vector<ffi::Tensor>& others) {
    return std::any_of(others.begin(), others.end(), [&](const ffi::Tensor& other) {
      return Overlap(tensor, *other.GetDLTensorPtr());
    });
  }

  Claim claim_;
  std::vector<ffi::Tensor> taken_;
  std::map<HeldState*, std::unique_ptr<LentState>> lent_;
  std::vector<std::pair<HeldState*, ffi::Tensor>> kept_;
  bool has_ended_ = false;
};

SessionCall* CallOf(const ffi::AnyView& argument) {
  return const_cast<SessionCall*>(argument.cast<const SessionCall*>());
}

/*! \brief A number; virtual machines over RPC take only tensors. */
int64_t IdOf(const ffi::AnyView& argument) {
  if (auto id = argument.as<int64_t>()) return *id;
  if (auto tensor = argument.try_cast<DLTensor*>()) {
    const DLTensor& given = **tensor;
    const bool is_number = given.dtype.code == kDLInt && given.dtype.bits == 64 &&
                           given.device.device_type == kDLCPU &&
                           ffi::GetDataSize(given) == sizeof(int64_t);
    if (is_number) return *reinterpret_cast<const int64_t*>(BeginOf(given));
  }
  RefuseSession("a session is an integer, as the function that opens one returns it; this is " +
                argument.GetTypeKey());
}

/*! \brief (declaration, initial values...) -> session */
void Open(ffi::PackedArgs args, ffi::Any* result) {
  auto declaration = json::Parse(args[0].cast<ffi::String>()).cast<json::Object>();
  Session session;
  session.model = declaration[ffi::String("model")].cast<ffi::String>();
  int index = 1;
  for (const ffi::Any& item : declaration[ffi::String("states")].cast<json::Array>()) {
    auto field = item.cast<json::Object>();
    std::vector<int64_t> shape;
    for (const ffi::Any& size : field[ffi::String("shape")].cast<json::Array>()) {
      shape.push_back(size.cast<int64_t>());
    }
    session.states.push_back({field[ffi::String("name")].cast<ffi::String>(), ffi::Shape(shape),
                              args[index++].cast<ffi::Tensor>(), std::nullopt, nullptr, nullptr});
  }
  *result = Sessions::OfProcess().Add(session);
}

/*! \brief (session, model, positions...) -> call */
void Begin(ffi::PackedArgs args, ffi::Any* result) {
  constexpr int kPositions = 2;
  const std::string model = args[1].cast<ffi::String>();
  *result = ffi::ObjectRef(ffi::make_object<SessionCall>(IdOf(args[0]), model, args, kPositions));
}

/*! \brief (call, results, number of states, name and place of each, inputs...) -> other results */
void End(ffi::PackedArgs args, ffi::Any* result) {
  constexpr int kFirst = 3;
  SessionCall* call = CallOf(args[0]);
  auto results = args[1].cast<ffi::Array<ffi::Any>>();
  const int inputs_begin = kFirst + 2 * args[2].cast<int>();
  std::vector<ffi::Tensor> inputs;
  for (int i = inputs_begin; i < args.size(); ++i) {
    if (auto tensor = args[i].as<ffi::Tensor>()) inputs.push_back(*tensor);
  }
  std::vector<bool> is_state(results.size(), false);
  for (int i = kFirst; i < inputs_begin; i += 2) {
    const auto place = args[i + 1].cast<int64_t>();
    call->Keep(args[i].cast<ffi::String>(), results[place].cast<ffi::Tensor>(), inputs);
    is_state[static_cast<size_t>(place)] = true;
  }
  ffi::Array<ffi::Any> others;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!is_state[i]) others.push_back(call->Apart(results[static_cast<int64_t>(i)]));
  }
  call->End();
  if (others.size() == 1) {
    *result = others[0];
  } else {
    *result = others;
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  SessionCall::_GetOrAllocRuntimeTypeIndex();
  auto name = [](const char* function) { return GlobalName("session.") + function; };
  ffi::reflection::GlobalDef()
      .def_packed(name("open").c_str(), Open)
      .def(name("copy").c_str(),
           [](const ffi::AnyView& id) {
             Claim claim(IdOf(id));
             claim.RequireValid();
             return Sessions::OfProcess().Add(*claim);
           })
      .def(name("reset").c_str(),
           [](const ffi::AnyView& id) {
             Claim claim(IdOf(id));
             for (HeldState& state : claim->states) state.Keep(std::nullopt);
             claim->has_failed = false;
           })
      .def(name("close").c_str(),
           [](const ffi::AnyView& id) { Sessions::OfProcess().Close(IdOf(id)); })
      .def(name("read").c_str(),
           [](const ffi::AnyView& id, const ffi::String& state) {
             Claim claim(IdOf(id));
             claim.RequireValid();
             return claim->Find(state).Copy();
           })
      .def(name("write").c_str(),
           [](const ffi::AnyView& id, const ffi::String& state, DLTensor* value) {
             Claim claim(IdOf(id));
             claim.RequireValid();
             HeldState& held = claim->Find(state);
             held.CheckType(*value, claim->name);
             held.Keep(CopyOf(*value));
           })
      .def(name("count").c_str(), [] { return Sessions::OfProcess().Count(); })
      .def_packed(name("begin").c_str(), Begin)
      .def(name("take").c_str(), [](const ffi::AnyView& call,
                                    const ffi::String& state) { return CallOf(call)->Take(state); })
      .def(
          name("lend").c_str(),
          [](const ffi::AnyView& call, const ffi::String& state, int64_t argument, int64_t result) {
            return CallOf(call)->Lend(state, static_cast<size_t>(argument),
                                      static_cast<size_t>(result));
          })
      .def_packed(name("end").c_str(), End);
}

}  // namespace

}  // namespace npu
