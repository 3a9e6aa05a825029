// SPDX-License-Identifier: Apache-2.0
/*!
 * \file build.cc
 * \brief The build half: asks vendor/sdk/compile.py, and lets it compile.
 */
#include <string>
#include <vector>

#include "driver_kit/build.h"
#include "driver_kit/model.h"

namespace {

using npu::kit::Node;
using npu::kit::Program;

constexpr npu::kit::ModelTool kTool = {
    "ethosu_npu",
    "sdk/compile.py",
    __FILE__,
    /*channels_last*/ true,
};

/*! \brief Why the SDK does not support a node, or "". What is declined here, the tool is not asked
 *  about. The first call is about a node with its bias (inputs[2]) and limits (least, most) fused;
 *  if declined, these become separate nodes. */
std::string Reason(const Program& program, const Node& node) {
  return npu::kit::AskTool(kTool, program, node);
}

std::vector<uint8_t> Compile(const Program& program) {
  return npu::kit::CompileByTool(kTool, program);
}

/*! \brief The SDK and the tool: another one compiles again. */
std::string Identity(const Program& program) { return npu::kit::FingerprintOfTool(kTool, program); }

constexpr const char* kAccelerators[] = {"ethos-u55-256", "ethos-u85-256"};
constexpr npu_option_info kAccelerator = {
    "accelerator",
    NPU_OPTION_CHOICE,
    "ethos-u55-256",
    0,
    0,
    kAccelerators,
    2,
    "what Vela compiles for",
};
constexpr npu_option_info kOptions[] = {
    kAccelerator,         npu::kit::kSdkCommand, npu::kit::kSdkTimeout,
    npu::kit::kSdkFolder, npu::kit::kSdkCache,
};

constexpr npu::kit::Driver kDriver = {
    "ethosu_npu",           "0.1",    Reason, kOptions, sizeof(kOptions) / sizeof(kOptions[0]),
    /*channels_last*/ true, Compile,
    /*integers*/ true,
    /*quantization*/ false,
    /*scales*/ false,
    /*composite*/ nullptr,  Identity,
};

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = npu::kit::BuildTable<kDriver>();
  return &api;
}
