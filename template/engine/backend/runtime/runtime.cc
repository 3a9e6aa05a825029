// SPDX-License-Identifier: Apache-2.0
/*!
 * \file runtime.cc
 * \brief The module that TVM calls: it holds an artifact and hands TVM's buffers to the driver.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aligned_memory.h"
#include "artifact.h"
#include "driver_api.h"
#include "execution.h"
#include "names.h"
#include "object_file.h"
#include "ports.h"
#include "sessions.h"
#include "signature.h"
#include "user_error.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

/*! \brief The fields of a manifest that the runtime reads. */
struct Manifest {
  explicit Manifest(std::string_view text) {
    json::Object root = ParseObject(text, "manifest");
    auto backend = Get<ffi::String>(root, "backend", "a string");
    if (backend != kBackend) {
      throw ArtifactError("was compiled for the backend '" + std::string(backend) +
                          "'; this is the runtime of '" + kBackend + "'");
    }
    auto name = Get<ffi::String>(root, "driver", "a string");
    try {
      driver = &RunDriver(std::string(name));
    } catch (const DriverError& error) {
      throw ArtifactError(error.what());
    }
    symbol = Get<ffi::String>(root, "symbol", "a string");
    auto options = Get<json::Object>(root, "options", "an object");
    if (options.count(ffi::String("timeout_ms")) != 0) {
      constexpr int64_t kMostMilliseconds = int64_t{1} << 31;  // 24 days.
      timeout_ms = Get<int64_t>(options, "timeout_ms", "an integer");
      if (timeout_ms < 0 || timeout_ms > kMostMilliseconds) {
        throw ArtifactError("is corrupt: its manifest has an impossible 'timeout_ms'");
      }
    }
  }

  const npu_run_api* driver = nullptr;
  std::string symbol;
  int64_t timeout_ms = 0;

 private:
  template <typename T>
  static T Get(const json::Object& object, const char* key, const char* kind) {
    auto it = object.find(ffi::String(key));
    if (it != object.end()) {
      if (auto value = (*it).second.try_cast<T>()) return *value;
    }
    throw ArtifactError(std::string("is corrupt: its manifest has no '") + key + "' that is " +
                        kind);
  }
};

/*! \brief An artifact in memory, checked. */
struct Region {
  explicit Region(const Artifact& artifact)
      : artifact(artifact),
        manifest(artifact.manifest),
        signature(manifest.symbol, artifact.graph),
        ports(artifact.ports, signature) {}

  const Artifact artifact;
  const Manifest manifest;
  const Signature signature;
  const RuntimePorts ports;
};

/*! \brief An artifact or a bundle in memory, checked and split into its sections. */
struct Holder {
  /*! \brief Refers to aligned bytes that `owner` keeps. */
  Holder(std::string_view bytes, std::shared_ptr<const void> owner)
      : owner(std::move(owner)),
        bytes(bytes),
        artifacts(ReadArtifacts(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size())) {
    for (const Artifact& artifact : artifacts) regions.emplace_back(artifact);
  }

  /*! \brief Copies bytes. */
  static std::shared_ptr<const Holder> Copy(const ffi::Bytes& bytes) {
    auto copy = std::make_shared<const AlignedMemory>(bytes.size());
    std::memcpy(copy->data(), bytes.data(), bytes.size());
    return std::make_shared<const Holder>(copy->view(), copy);
  }

  /*! \brief Refers to the bytes in a tensor, which is aligned and keeps them. */
  static std::shared_ptr<const Holder> Refer(const ffi::Tensor& tensor) {
    const auto* data = static_cast<const char*>(tensor.data_ptr());
    return std::make_shared<const Holder>(std::string_view(data, tensor.numel()),
                                          std::make_shared<const ffi::Tensor>(tensor));
  }

  /*! \brief The name of the function by which a library returns the address of these bytes. */
  std::string FunctionName() const {
    char checksum[17];
    auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    std::snprintf(checksum, sizeof(checksum), "%016" PRIx64, StoredChecksum(data));
    return kArtifactFunction + std::string(checksum);
  }

  /*! \brief A reference to all, or to one of a bundle. */
  ArtifactReference Reference(size_t index) const {
    auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    ArtifactReference reference = {FunctionName(), bytes.size(), StoredChecksum(data)};
    if (regions.size() > 1) reference.index = index;
    return reference;
  }

  const std::shared_ptr<const void> owner;
  const std::string_view bytes;
  const std::vector<Artifact> artifacts;
  std::deque<Region> regions;
};

/*! \brief The bundles of this process, so that the regions of one check and hold it once. */
class KnownBundles {
 public:
  static void Add(const std::shared_ptr<const Holder>& bundle) {
    std::lock_guard<std::mutex> lock(Mutex());
    Map()[bundle->Reference(0).checksum] = bundle;
  }

  /*! \brief The bundle with this checksum, at an address if one is given; else null. */
  static std::shared_ptr<const Holder> Find(uint64_t checksum, size_t size, const void* address) {
    std::lock_guard<std::mutex> lock(Mutex());
    std::shared_ptr<const Holder> found = Map()[checksum].lock();
    if (found == nullptr || found->bytes.size() != size) return nullptr;
    return address == nullptr || address == found->bytes.data() ? found : nullptr;
  }

 private:
  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::map<uint64_t, std::weak_ptr<const Holder>>& Map() {
    static auto* map = new std::map<uint64_t, std::weak_ptr<const Holder>>;
    return *map;
  }
};

ffi::String TextOf(const char* text) { return text == nullptr ? "" : text; }

constexpr char kAbout[] = ": the artifact ";

/*!
 * \brief An artifact, or a bundle, that TVM links into a library as an object file.
 *
 * TVM copies the bytes of modules several times when it loads a library. A linked artifact is
 * mapped, and shared by all processes that run it. The library then replaces this module: both have
 * a function that returns the address of the artifact.
 */
class ArtifactModule : public ffi::ModuleObj {
 public:
  /*! \brief Without a processor, the artifact cannot be linked, and TVM keeps its bytes. */
  ArtifactModule(std::shared_ptr<const Holder> holder, std::optional<Processor> processor)
      : holder_(std::move(holder)), processor_(processor) {}

  /*! \brief Lets it be linked for a processor. */
  void SetProcessor(Processor processor) { processor_ = processor; }

  const char* kind() const final { return kArtifactKind; }

  int GetPropertyMask() const final {
    int mask = ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
    return processor_.has_value() ? mask | ffi::Module::kCompilationExportable : mask;
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name != holder_->FunctionName()) return std::nullopt;
    return ffi::Function::FromTyped([holder = holder_] {
      return const_cast<void*>(static_cast<const void*>(holder->bytes.data()));
    });
  }

  ffi::Array<ffi::String> GetWriteFormats() const final { return {"o"}; }

  void WriteToFile(const ffi::String& path, const ffi::String&) const final {
    std::string name(path);
    if (!processor_.has_value() || name.size() < 2 || name.substr(name.size() - 2) != ".o") {
      TVM_FFI_THROW(ValueError) << kBackend << ": an artifact can be linked as an object file (.o) "
                                << "for Linux, not as '" << name << "'; compile the model with "
                                << "RunCodegen and tvm.compile to keep it inside of its module";
    }
    // The linker looks up the function that TVM would call.
    std::string function = ffi::symbol::tvm_ffi_symbol_prefix + holder_->FunctionName();
    if (!WriteObjectFile(name, *processor_, function, holder_->bytes)) {
      TVM_FFI_THROW(RuntimeError) << kBackend << ": '" << name
                                  << "' cannot be written: " << std::strerror(errno);
    }
  }

  ffi::Bytes SaveToBytes() const final {
    return ffi::Bytes(holder_->bytes.data(), holder_->bytes.size());
  }

  static ffi::Module LoadFromBytes(const ffi::Bytes& bytes) {
    return Translated<ArtifactError>(kAbout, [&] {
      auto holder = Holder::Copy(bytes);
      if (holder->regions.size() > 1) KnownBundles::Add(holder);
      return ffi::Module(ffi::make_object<ArtifactModule>(std::move(holder), std::nullopt));
    });
  }

 private:
  std::shared_ptr<const Holder> holder_;
  std::optional<Processor> processor_;
};

/*! \brief One compiled region, and its program once it is needed. */
class RegionModule : public ffi::ModuleObj {
 public:
  explicit RegionModule(std::shared_ptr<const Holder> holder)
      : RegionModule(std::move(holder), 0) {}
  /*! \brief A region of a bundle. The first imports it, so that TVM saves it: it cannot save a
   *  module that several others import. */
  RegionModule(std::shared_ptr<const Holder> holder, size_t index, ffi::Module bundle)
      : RegionModule(std::move(holder), index) {
    bundle_ = std::move(bundle);
    if (index == 0) ImportModule(*bundle_);
    is_apart_ = true;
  }
  /*! \brief A region whose artifact is in an import. */
  explicit RegionModule(ArtifactReference reference)
      : reference_(std::move(reference)), is_apart_(true) {}

  const char* kind() const final { return kBackend; }

  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const std::string& symbol = Get().manifest.symbol;
    // The function keeps the module alive.
    auto self = ffi::GetObjectPtr<RegionModule>(this);
    if (name == symbol) {
      return ffi::Function::FromPacked(
          [self](ffi::PackedArgs args, ffi::Any*) { self->Call(args); });
    }
    if (name == symbol + ".submit") {
      return ffi::Function::FromPacked(
          [self](ffi::PackedArgs args, ffi::Any*) { self->Submit(args); });
    }
    if (name == "__init_" + symbol) {
      return ffi::Function::FromTyped([self](const ffi::Array<ffi::Tensor>&) {
        self->Load();
        return 0;
      });
    }
    if (name == "link_apart") {
      return ffi::Function::FromTyped(
          [self](const ffi::String& triple) { return self->LinkApart(std::string(triple)); });
    }
    if (name == "set_profiling") {
      return ffi::Function::FromTyped([self](bool on) { self->Load()->SetProfiling(on); });
    }
    using Answer = ffi::Any (*)(RegionModule*);
    static const std::map<std::string_view, Answer> kAnswers = {
        {"get_symbol",
         [](RegionModule* module) -> ffi::Any { return module->Get().manifest.symbol; }},
        // The program holds the constants, so TVM need not keep them for this module.
        {"get_const_vars", [](RegionModule*) -> ffi::Any { return ffi::Array<ffi::String>(); }},
        {"save_to_bytes", [](RegionModule* module) -> ffi::Any { return module->Whole(); }},
        {"counters", [](RegionModule* module) -> ffi::Any { return module->Load()->Counters(); }},
        {"counter_units",
         [](RegionModule* module) -> ffi::Any { return module->Load()->CounterUnits(); }},
        {"manifest",
         [](RegionModule* module) -> ffi::Any { return Text(module->Get().artifact.manifest); }},
        {"describe", [](RegionModule* module) -> ffi::Any { return module->Load()->Describe(); }},
        {"profile", [](RegionModule* module) -> ffi::Any { return module->Load()->TakeProfile(); }},
        {"sizes", [](RegionModule* module) -> ffi::Any { return module->Sizes(); }},
    };
    auto named = kAnswers.find(std::string_view(name.data(), name.size()));
    if (named != kAnswers.end()) {
      return ffi::Function::FromPacked(
          [self, answer = named->second](ffi::PackedArgs, ffi::Any* result) {
            *result = answer(self.get());
          });
    }
    return std::nullopt;
  }

  /*! \brief The bytes that TVM saves next to those of the imports: the artifact, or where it is. */
  ffi::Bytes SaveToBytes() const final {
    return is_apart_ ? ffi::Bytes(WriteReference(reference_)) : Whole();
  }

  ffi::String InspectSource(const ffi::String&) const final { return Text(Get().artifact.graph); }

 private:
  static ffi::String Text(std::string_view text) { return ffi::String(text.data(), text.size()); }

  RegionModule(std::shared_ptr<const Holder> holder, size_t index)
      : reference_(holder->Reference(index)), holder_(std::move(holder)) {
    resolved_.store(&holder_->regions[index]);
  }

  /*! \brief The artifact, also of a region that is stored in a bundle. */
  ffi::Bytes Whole() const {
    const Artifact& artifact = Get().artifact;
    return reference_.index.has_value() ? ffi::Bytes(WriteArtifact(artifact))
                                        : ffi::Bytes(holder_->bytes.data(), holder_->bytes.size());
  }

  ffi::Map<ffi::String, int64_t> Sizes() const {
    const Artifact& artifact = Get().artifact;
    ffi::Map<ffi::String, int64_t> sizes = {
        {"manifest", static_cast<int64_t>(artifact.manifest.size())},
        {"graph", static_cast<int64_t>(artifact.graph.size())},
        {"program", static_cast<int64_t>(SizeOf(artifact.program))},
    };
    if (!artifact.ports.empty()) sizes.Set("ports", static_cast<int64_t>(artifact.ports.size()));
    if (reference_.index.has_value()) {
      const size_t shared = SharedSize(holder_->artifacts, *reference_.index);
      sizes.Set("shared", static_cast<int64_t>(shared));
    }
    return sizes;
  }

  /*! \brief The region; a reference is resolved on first use, because TVM gives a module its
   *  imports only after it is made. */
  const Region& Get() const {
    const Region* region = resolved_.load(std::memory_order_acquire);
    if (region != nullptr) return *region;
    std::lock_guard<std::mutex> lock(mutex_);
    if (holder_ == nullptr)
      holder_ = Translated<ArtifactError>(kAbout, [this] { return FindHolder(); });
    resolved_.store(&holder_->regions[reference_.index.value_or(0)], std::memory_order_release);
    return *resolved_.load();
  }

  std::shared_ptr<const Holder> FindHolder() const {
    // Corrupt bytes must not select an arbitrary function.
    if (reference_.function.rfind(kArtifactFunction, 0) != 0) {
      throw ArtifactError("is corrupt: it refers to no artifact");
    }
    for (const ffi::Any& import : imports()) {
      auto module = import.cast<ffi::Module>();
      auto function = module->GetFunction(reference_.function);
      if (!function.has_value()) continue;
      auto* data = static_cast<const uint8_t*>(function.value()().cast<void*>());
      if (StoredChecksum(data) != reference_.checksum) {
        throw ArtifactError("is corrupt: the library holds a different artifact in its place");
      }
      auto holder = KnownBundles::Find(reference_.checksum, reference_.size, data);
      if (holder == nullptr) {
        std::string_view bytes(reinterpret_cast<const char*>(data), reference_.size);
        holder = std::make_shared<const Holder>(bytes, std::make_shared<ffi::Module>(module));
        if (holder->regions.size() > 1) KnownBundles::Add(holder);
      }
      return WithPart(std::move(holder));
    }
    if (reference_.index.has_value()) {
      auto holder = KnownBundles::Find(reference_.checksum, reference_.size, nullptr);
      if (holder != nullptr) return WithPart(std::move(holder));
    }
    throw ArtifactError("is not in the library that refers to it; export the library again");
  }

  std::shared_ptr<const Holder> WithPart(std::shared_ptr<const Holder> holder) const {
    const size_t count = holder->regions.size();
    if ((count > 1) != reference_.index.has_value() || reference_.index.value_or(0) >= count) {
      throw ArtifactError("is corrupt: the library has no such part of a bundle");
    }
    return holder;
  }

  /*! \brief Lets TVM link the artifact, or the bundle; false for unknown processors. */
  bool LinkApart(const std::string& triple) {
    std::optional<Processor> processor = FindProcessor(triple);
    if (processor.has_value() && bundle_.has_value()) {
      static_cast<ArtifactModule*>(bundle_->operator->())->SetProcessor(*processor);
      // Each region finds the library as an import, which is no module to save.
      if (imports().empty()) ImportModule(*bundle_);
    }
    if (!processor.has_value() || is_apart_) return is_apart_;
    ImportModule(ffi::Module(ffi::make_object<ArtifactModule>(holder_, *processor)));
    return is_apart_ = true;
  }

  /*! \brief The program on the device, loaded on first use. */
  LoadedProgram* Load() {
    LoadedProgram* loaded = loaded_.load(std::memory_order_acquire);
    if (loaded == nullptr) {
      const Region& region = Get();
      std::lock_guard<std::mutex> lock(mutex_);
      if (owned_ == nullptr) {
        owned_ = std::make_unique<LoadedProgram>(*region.manifest.driver, region.artifact.program,
                                                 device_, region.manifest.symbol,
                                                 region.manifest.timeout_ms);
      }
      loaded = owned_.get();
      loaded_.store(loaded, std::memory_order_release);
    }
    return loaded;
  }

  /*! \brief Returns a request at the end of its scope. */
  struct Release {
    void operator()(Request* request) const { request->program->Release(request); }
  };
  using Lease = std::unique_ptr<Request, Release>;

  /*! \brief The buffers of a call, on the stack if there are few. */
  class Buffers {
   public:
    explicit Buffers(size_t count) {
      if (count > std::size(few_)) many_.resize(count);
    }
    npu_buffer* data() { return many_.empty() ? few_ : many_.data(); }

   private:
    npu_buffer few_[12];
    std::vector<npu_buffer> many_;
  };

  /*! \brief Brings what a session has lent to where the program reads it, in the request's device
   *  or on the host. */
  static void PlaceStates(const Signature& signature, const RuntimePorts& ports,
                          npu_buffer* buffers, Request* request) {
    // With ports of its own, a program reads what was permuted on the host.
    const bool has_memory =
        request->program->driver().allocate_state != nullptr && ports.ports().empty();
    const size_t inputs = signature.input_count(), count = signature.arguments().size();
    for (size_t i = 0; i < inputs; ++i) {
      if (!signature.arguments()[i].is_tensor) continue;
      LentState* state = LentState::Find(buffers[i].data, i);
      if (state == nullptr) continue;
      const size_t result = inputs + state->result();
      // Another library may have been put in place of the one that the model was compiled with.
      const bool fits = state->result() < count - inputs &&
                        signature.arguments()[result].is_tensor &&
                        buffers[result].bytes == buffers[i].bytes;
      const bool in_place = fits && ports.Updates(i, result);
      if (fits && has_memory &&
          state->PlaceOn(request->program->device(), in_place, buffers[result].data)) {
        buffers[i].data = buffers[result].data = nullptr;
        buffers[i].state = state->before()->handle();
        buffers[result].state = state->after()->handle();
        request->states.insert(request->states.end(), {state->before(), state->after()});
      } else {
        state->PlaceOnHost(in_place ? buffers[result].data : nullptr);
        if (in_place) buffers[result].data = buffers[i].data;
      }
    }
  }

  /*! \brief A request with the buffers of a call. */
  Lease Bind(const Signature& signature, npu_buffer* buffers) {
    const RuntimePorts& ports = Get().ports;
    Lease request(Load()->Acquire());
    PlaceStates(signature, ports, buffers, request.get());
    RefuseAliases(signature, ports, buffers);
    const npu_run_api& driver = request->program->driver();
    if (!ports.ports().empty()) {
      BindPorts(signature, ports, buffers, request.get());
      return request;
    }
    const std::vector<Argument>& arguments = signature.arguments();
    size_t input = 0;
    size_t output = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].is_tensor) continue;
      npu_status status = i < signature.input_count()
                              ? driver.bind_input(request->handle, input++, &buffers[i])
                              : driver.bind_output(request->handle, output++, &buffers[i]);
      if (status != NPU_OK) {
        CheckDriver(driver, status, "binding " + signature.Describe(arguments[i]));
      }
    }
    return request;
  }

  /*! \brief Binds the inputs and outputs of a program that differ from those of the region. */
  static void BindPorts(const Signature& signature, const RuntimePorts& ports,
                        const npu_buffer* buffers, Request* request) {
    const npu_run_api& driver = request->program->driver();
    request->permutations.resize(ports.ports().size());
    std::vector<int64_t> dims;
    for (size_t i = 0; i < ports.ports().size(); ++i) {
      const RuntimePort& port = ports.ports()[i];
      Permutation& permutation = request->permutations[i];
      permutation.is_output = i >= ports.input_count();
      const npu_buffer placed = PlaceBuffer(port, buffers[port.argument], &dims, &permutation);
      npu_status status =
          permutation.is_output
              ? driver.bind_output(request->handle, i - ports.input_count(), &placed)
              : driver.bind_input(request->handle, i, &placed);
      if (status != NPU_OK) {
        CheckDriver(driver, status,
                    "binding " + signature.Describe(signature.arguments()[port.argument]));
      }
    }
  }

  /*! \brief Throws if an output overlaps with another argument: a driver may write outputs while it
   *  still reads inputs. Only the values of a state may have one buffer. */
  static void RefuseAliases(const Signature& signature, const RuntimePorts& ports,
                            const npu_buffer* buffers) {
    const std::vector<Argument>& arguments = signature.arguments();
    auto begin_of = [](const npu_buffer& buffer) { return static_cast<const char*>(buffer.data); };
    for (size_t i = signature.input_count(); i < arguments.size(); ++i) {
      if (!arguments[i].is_tensor || buffers[i].state != nullptr) continue;
      const char* begin = begin_of(buffers[i]);
      const char* end = begin + buffers[i].bytes;
      for (size_t k = 0; k < i; ++k) {
        if (!arguments[k].is_tensor || buffers[k].state != nullptr) continue;
        const char* begin_k = begin_of(buffers[k]);
        if (begin_k >= end || begin_k + buffers[k].bytes <= begin) continue;
        if (begin_k == begin && ports.Updates(k, i)) continue;
        TVM_FFI_THROW(ValueError) << signature.Describe(arguments[i]) << " shares memory with '"
                                  << arguments[k].name << "'; an output needs memory of its own";
      }
    }
  }

  void Call(const ffi::PackedArgs& args) {
    // Requests that this thread submitted may write the inputs.
    PendingRequests::OfThisThread().WaitAll();
    const Signature& signature = Get().signature;
    Buffers buffers(signature.arguments().size());
    if (!signature.Check(args, buffers.data())) return;
    Lease request = Bind(signature, buffers.data());
    request->program->Execute(request.get());
  }

  /*! \brief As Call, but the work may go on until runtime.wait_all. */
  void Submit(const ffi::PackedArgs& args) {
    const Signature& signature = Get().signature;
    Buffers buffers(signature.arguments().size());
    if (!signature.Check(args, buffers.data())) return;
    for (size_t i = 0; i < signature.arguments().size(); ++i) {
      if (!signature.arguments()[i].is_tensor) continue;
      // A buffer that TVM does not own may be gone when this returns.
      if (!args[static_cast<int>(i)].as<ffi::Tensor>().has_value()) return Call(args);
    }
    Lease request = Bind(signature, buffers.data());
    for (size_t i = 0; i < signature.arguments().size(); ++i) {
      if (!signature.arguments()[i].is_tensor) continue;
      const npu_buffer& buffer = buffers.data()[i];
      const char* data = static_cast<const char*>(buffer.data);
      // A region alone has a state.
      if (buffer.state == nullptr) {
        request->memory.push_back({data, data + buffer.bytes, i >= signature.input_count()});
      }
      request->tensors.push_back(args[static_cast<int>(i)].cast<ffi::Tensor>());
    }
    request->module = ffi::GetObjectPtr<ffi::Object>(this);
    PendingRequests::OfThisThread().Submit(request.release());
  }

  /*! \brief The artifact's place in a library, if one holds it. */
  ArtifactReference reference_;
  /*! \brief The module of its bundle, where this was compiled. */
  std::optional<ffi::Module> bundle_;
  /*! \brief Whether TVM saves the reference in place of the artifact. */
  bool is_apart_ = false;
  int64_t device_ = GetDevice();
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Holder> holder_;
  mutable std::atomic<const Region*> resolved_{nullptr};
  std::unique_ptr<LoadedProgram> owned_;
  std::atomic<LoadedProgram*> loaded_{nullptr};
};

ffi::Module LoadFromBytes(const ffi::Bytes& bytes) {
  return Translated<ArtifactError>(kAbout, [&] {
    auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    if (IsReference(data, bytes.size())) {
      return ffi::Module(ffi::make_object<RegionModule>(ReadReference(data, bytes.size())));
    }
    auto holder = Holder::Copy(bytes);
    if (holder->regions.size() > 1) {
      throw ArtifactError("is a bundle of several regions, which a library refers to");
    }
    return ffi::Module(ffi::make_object<RegionModule>(std::move(holder)));
  });
}

/*! \brief The regions of an artifact or a bundle: in bytes, or in the codegen's tensor, which is
 * not copied. */
ffi::Array<ffi::Module> LoadRegions(const ffi::Any& given) {
  return Translated<ArtifactError>(kAbout, [&] {
    const auto tensor = given.as<ffi::Tensor>();
    const auto holder =
        tensor.has_value() ? Holder::Refer(*tensor) : Holder::Copy(given.cast<ffi::Bytes>());
    if (holder->regions.size() == 1) {
      return ffi::Array<ffi::Module>{ffi::Module(ffi::make_object<RegionModule>(holder))};
    }
    const ffi::Module bundle(ffi::make_object<ArtifactModule>(holder, std::nullopt));
    ffi::Array<ffi::Module> modules;
    for (size_t i = 0; i < holder->regions.size(); ++i) {
      modules.push_back(ffi::Module(ffi::make_object<RegionModule>(holder, i, bundle)));
    }
    return modules;
  });
}

/*! \brief The drivers here and their self-descriptions, the vendor's first. */
ffi::Array<ffi::Map<ffi::String, ffi::Any>> Drivers() {
  ffi::Array<ffi::Map<ffi::String, ffi::Any>> drivers;
  for (const auto& driver : RunDrivers()) {
    int32_t devices = 1;
    if (driver.api.count_devices != nullptr) {
      CheckDriver(driver.api, driver.api.count_devices(&devices), "counting its devices");
    }
    ffi::Array<ffi::Map<ffi::String, ffi::Any>> counters;
    for (size_t i = 0; i < driver.api.counter_count; ++i) {
      const npu_counter_info& counter = driver.api.counters[i];
      counters.push_back({{"name", TextOf(counter.name)},
                          {"unit", TextOf(counter.unit)},
                          {"is_sum", counter.kind == NPU_COUNTER_SUM},
                          {"about", TextOf(counter.about)}});
    }
    constexpr const char* kCancels[] = {"nothing", "waiting", "running"};
    auto cancels = static_cast<uint32_t>(driver.api.cancel == nullptr ? 0 : driver.api.cancels);
    drivers.push_back({{"role", ffi::String(driver.role)},
                       {"name", TextOf(driver.api.name)},
                       {"release", TextOf(driver.api.release)},
                       {"api_version", static_cast<int64_t>(driver.api.version)},
                       {"devices", static_cast<int64_t>(devices)},
                       {"cancels", ffi::String(kCancels[std::min(cancels, 2u)])},
                       {"counters", counters}});
  }
  return drivers;
}

/*! \brief Makes calls of the driver in a role fail, for tests; false if it has no such extension.
 */
bool FailNext(const ffi::String& role, const ffi::String& call, int64_t status, int64_t count) {
  const auto& installed = RunDrivers();
  const auto in_role = std::find_if(installed.begin(), installed.end(),
                                    [&](const auto& driver) { return driver.role == role; });
  if (in_role == installed.end()) return false;
  const npu_run_api& driver = in_role->api;
  const void* faults = driver.extension == nullptr ? nullptr : driver.extension(NPU_FAULTS);
  if (faults == nullptr) return false;
  CheckDriver(driver,
              static_cast<const npu_faults*>(faults)->fail_next(
                  call.c_str(), static_cast<npu_status>(status), static_cast<int32_t>(count)),
              "asking for a failure of '" + std::string(call) + "'");
  return true;
}

ffi::Map<ffi::String, ffi::Any> Info() {
  if (RunDrivers().empty()) {
    throw DriverError(
        std::string("there is no driver next to the runtime; build the backend again, or set ") +
        kDriverFolderVariable + " to the folder of one");
  }
  return {
      {"backend", ffi::String(kBackend)},
      {"driver_api_version", static_cast<int64_t>(NPU_DRIVER_API_VERSION)},
      {"format_version", static_cast<int64_t>(kArtifactVersion)},
  };
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def((std::string("ffi.Module.load_from_bytes.") + kBackend).c_str(), LoadFromBytes)
      // TVM's tutorials and tests check for a runtime by this name.
      .def((std::string("runtime.") + kClassName + "JSONRuntimeCreate").c_str(), LoadFromBytes)
      .def((std::string("ffi.Module.load_from_bytes.") + kArtifactKind).c_str(),
           ArtifactModule::LoadFromBytes)
      .def(GlobalName("runtime.load_regions").c_str(), LoadRegions)
      .def(GlobalName("runtime.info").c_str(), Info)
      .def(GlobalName("runtime.drivers").c_str(), Drivers)
      .def(GlobalName("runtime.fail_next").c_str(), FailNext)
      .def(GlobalName("runtime.set_device").c_str(), SetDevice)
      .def(GlobalName("runtime.device").c_str(), GetDevice)
      .def(GlobalName("runtime.wait_all").c_str(),
           [] { PendingRequests::OfThisThread().WaitAll(); });
}

}  // namespace
}  // namespace npu
