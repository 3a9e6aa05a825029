// SPDX-License-Identifier: Apache-2.0
#include "sink.h"

#include "layout_adapter.h"

namespace npu {

void DriverBuilder::Check(npu_status status, const std::string& who) const {
  if (status == NPU_OK) return;
  // Running out of memory for a model is not a driver failure either.
  bool refused = status == NPU_DECLINED || status == NPU_OUT_OF_MEMORY;
  throw Refusal(who + (refused ? ": " : ": the driver failed: ") + Reason());
}

std::string DriverBuilder::Reason() const {
  const char* reason = api.error == nullptr ? nullptr : api.error(handle);
  return reason == nullptr ? "no reason given" : reason;
}

void DriverBuilder::Require(bool has, const char* function, const std::string& who) const {
  if (has) return;
  throw Refusal(who + ": the driver " + api.name + " has no " + function);
}

void Sink::SetLabel(const std::string& label) {
  label_ = label;
  if (driver_.api.set_label != nullptr) {
    Check(driver_.api.set_label(driver_.handle, label.c_str()));
  }
}

void Sink::Describe(npu_tensor at_driver, const Scales& scales) const {
  npu_quantization quantization = {};
  quantization.size = sizeof(quantization);
  quantization.count = static_cast<int32_t>(scales.scales.size());
  quantization.axis = scales.is_one() ? 0 : scales.axis;
  quantization.scales = scales.scales.data();
  quantization.zero_points = scales.zero_points.data();
  Check(driver_.api.set_quantization(driver_.handle, at_driver, &quantization));
}

void Sink::Describe(npu_tensor at_driver, const Samples& samples) const {
  const std::string who = "the calibration data";
  driver_.Require(driver_.api.set_samples != nullptr, "set_samples", who);
  driver_.Check(driver_.api.set_samples(driver_.handle, at_driver, samples.data, samples.count),
                who);
}

namespace {

/*! \brief Hands everything to the driver as it is. */
class DirectSink : public Sink {
 public:
  using Sink::Sink;

  npu_tensor AddInput(const npu_tensor_desc& desc, int64_t, const std::string& who) final {
    npu_tensor added = -1;
    driver_.Check(driver_.api.add_input(driver_.handle, &desc, &added), who);
    return added;
  }
  npu_tensor AddConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                         const std::string& who) final {
    npu_tensor added = -1;
    driver_.Check(driver_.api.add_constant(driver_.handle, &desc, data, bytes, &added), who);
    return added;
  }
  npu_tensor AddTensor(const npu_tensor_desc& desc) final {
    npu_tensor added = -1;
    Check(driver_.api.add_tensor(driver_.handle, &desc, &added));
    return added;
  }
  npu_tensor AddView(npu_tensor data, const npu_tensor_desc& desc) final {
    npu_tensor added = -1;
    Check(driver_.api.add_view(driver_.handle, data, &desc, &added));
    return added;
  }
  void SetScales(npu_tensor tensor, const Scales& scales) final { Describe(tensor, scales); }
  void SetSamples(npu_tensor input, const Samples& samples) final { Describe(input, samples); }
#define NPU_ADD(name, reads)                                             \
  void Add(const npu_##name& op) final {                                 \
    CheckAdded<npu_##name>(driver_.api.add_##name(driver_.handle, &op)); \
  }
  NPU_OPERATIONS(NPU_ADD, )
  NPU_WHOLE_OPERATIONS(NPU_ADD, )
#undef NPU_ADD
  void MarkOutput(npu_tensor tensor) final {
    driver_.Check(driver_.api.mark_output(driver_.handle, tensor), "an output of the region");
  }
  bool AddState(npu_tensor input, npu_tensor output) final {
    if (driver_.api.add_state == nullptr) return false;
    int32_t shared = 0;
    driver_.Check(driver_.api.add_state(driver_.handle, input, output, &shared),
                  "a state of the region");
    return shared != 0;
  }
  std::optional<Ports> Finish() final { return std::nullopt; }
  npu_tensor AtDriver(npu_tensor tensor, std::optional<npu_tensor>) final { return tensor; }
};

}  // namespace

std::unique_ptr<Sink> MakeSink(const DriverBuilder& driver,
                               std::deque<std::vector<uint64_t>>* constants) {
  if (driver.api.layout == nullptr) return std::make_unique<DirectSink>(driver);
  return std::make_unique<LayoutAdapter>(driver, constants);
}

}  // namespace npu
