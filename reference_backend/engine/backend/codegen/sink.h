// SPDX-License-Identifier: Apache-2.0
/*!
 * \file sink.h
 * \brief Where tensors and operations of lowerings go: to the driver, or first to the
 * LayoutAdapter.
 */
#ifndef CODEGEN_SINK_H_
#define CODEGEN_SINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver_api.h"
#include "lowering.h"
#include "scales.h"

namespace npu {

/*! \brief The driver's function for an operation. */
template <typename Op>
struct Operation;
#define NPU_OPERATION(name, reads)                                \
  template <>                                                     \
  struct Operation<npu_##name> {                                  \
    static constexpr auto kFunction = &npu_build_api::add_##name; \
    static constexpr const char* kName = "add_" #name;            \
  };
NPU_OPERATIONS(NPU_OPERATION, )
NPU_WHOLE_OPERATIONS(NPU_OPERATION, )
#undef NPU_OPERATION

/*! \brief Whether an operation is a whole one, which others can replace. */
template <typename Op>
constexpr bool kIsWhole = false;
#define NPU_WHOLE(name, reads) \
  template <>                  \
  inline constexpr bool kIsWhole<npu_##name> = true;
NPU_WHOLE_OPERATIONS(NPU_WHOLE, )
#undef NPU_WHOLE

/*! \brief The driver declines a whole operation, which may be composed of others. */
class WholeDeclined : public Refusal {
 public:
  WholeDeclined(std::string label, const std::string& reason)
      : Refusal(label + ": " + reason), label(std::move(label)), reason(reason) {}

  /*! \brief The call's name. */
  const std::string label;
  const std::string reason;
};

/*! \brief What enters an input when the model runs on a user's data: `count` tensors, one behind
 * the other. */
struct Samples {
  const void* data = nullptr;
  int64_t count = 0;
  /*! \brief Of one of them. */
  size_t bytes = 0;
};

/*! \brief A builder of the driver. */
struct DriverBuilder {
  const npu_build_api& api;
  npu_builder* handle = nullptr;

  /*! \brief Throws a Refusal with the driver's reason unless the status is NPU_OK. */
  void Check(npu_status status, const std::string& who) const;
  /*! \brief The driver's reason for its last failure. */
  std::string Reason() const;
  /*! \brief Throws a Refusal that names an absent function. */
  void Require(bool has, const char* function, const std::string& who) const;
};

/*! \brief Takes tensors in the header's order of dimensions, and the operations on them. Errors are
 *  Refusals that name the label, or `who`. */
class Sink {
 public:
  explicit Sink(const DriverBuilder& driver) : driver_(driver) {}
  virtual ~Sink() = default;

  /*! \brief Names the following operations, for errors and for the driver. */
  void SetLabel(const std::string& label);
  /*! \brief Adds the region's input number `argument`. */
  virtual npu_tensor AddInput(const npu_tensor_desc& desc, int64_t argument,
                              const std::string& who) = 0;
  virtual npu_tensor AddConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                                 const std::string& who) = 0;
  virtual npu_tensor AddTensor(const npu_tensor_desc& desc) = 0;
  virtual npu_tensor AddView(npu_tensor data, const npu_tensor_desc& desc) = 0;
  /*! \brief Says what the integers of a tensor stand for, before anything uses it; for drivers with
   *  set_quantization. */
  virtual void SetScales(npu_tensor tensor, const Scales& scales) = 0;
  /*! \brief Hands over samples of an input that was just added. */
  virtual void SetSamples(npu_tensor input, const Samples& samples) = 0;
#define NPU_ADD(name, reads) virtual void Add(const npu_##name& op) = 0;
  NPU_OPERATIONS(NPU_ADD, )
  NPU_WHOLE_OPERATIONS(NPU_ADD, )
#undef NPU_ADD
  /*! \brief Makes a tensor the next output of the region. */
  virtual void MarkOutput(npu_tensor tensor) = 0;
  /*! \brief Names a state, whose value and next value these tensors are; tells whether they may
   * have one buffer. */
  virtual bool AddState(npu_tensor input, npu_tensor output) = 0;
  /*! \brief Ends the graph. The ports are set if the driver declares layouts. */
  virtual std::optional<Ports> Finish() = 0;
  /*! \brief The driver's own number of a tensor; see Lowering::AtDriver. */
  virtual npu_tensor AtDriver(npu_tensor tensor, std::optional<npu_tensor> like) = 0;

 protected:
  void Check(npu_status status) const { driver_.Check(status, label_); }
  /*! \brief The same for an operation that was added. */
  template <typename Op>
  void CheckAdded(npu_status status) const {
    if (kIsWhole<Op> && status == NPU_DECLINED) throw WholeDeclined(label_, driver_.Reason());
    Check(status);
  }
  /*! \brief The same for a tensor of the driver. */
  void Describe(npu_tensor at_driver, const Scales& scales) const;
  void Describe(npu_tensor at_driver, const Samples& samples) const;

  const DriverBuilder driver_;
  std::string label_;
};

/*! \brief The sink for a driver. Constants that it makes are kept in `constants`, which outlives
 * the builder. */
std::unique_ptr<Sink> MakeSink(const DriverBuilder& driver,
                               std::deque<std::vector<uint64_t>>* constants);

}  // namespace npu

#endif  // CODEGEN_SINK_H_
