// SPDX-License-Identifier: Apache-2.0
/*!
 * \file kernels.cc
 * \brief Types and shapes, and the choice of an instruction set.
 */
#include "kernels.h"

#include <atomic>
#include <cstring>

#include "simd.h"

namespace npu::emulator {

namespace {

bool ProcessorHas(const char* name) {
  if (std::strcmp(name, "generic") == 0) return true;
#if defined(__x86_64__) || defined(__i386__)
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if !defined(__clang__) && __GNUC__ >= 11
  avx2 = avx2 && __builtin_cpu_supports("f16c");
#endif
  if (std::strcmp(name, "avx2") == 0) return avx2;
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (std::strcmp(name, "avx512") == 0) return avx512;
  return avx512 && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

/*! \brief Put together here: files of an instruction set may hold no code that all processors run.
 */
const Simd* Avx512VnniSimd() {
  if (Avx512Simd() == nullptr || VnniProducts() == nullptr) return nullptr;
  static const Simd simd = [] {
    Simd made = *Avx512Simd();
    made.name = "avx512vnni";
    made.taps = VnniProducts()->taps;
    made.gemm_pairs = VnniProducts()->gemm_pairs;
    return made;
  }();
  return &simd;
}

const Simd* Find(const char* name) {
  for (const Simd* simd : {Avx512VnniSimd(), Avx512Simd(), Avx2Simd(), GenericSimd()}) {
    bool named = simd != nullptr && (name == nullptr || std::strcmp(simd->name, name) == 0);
    if (named && ProcessorHas(simd->name)) return simd;
  }
  return nullptr;
}

std::atomic<const Simd*>& Active() {
  static std::atomic<const Simd*> active{Find(nullptr)};
  return active;
}

}  // namespace

size_t ElementSize(npu_dtype dtype) {
  switch (dtype) {
    case NPU_FLOAT32:
    case NPU_INT32:
      return 4;
    case NPU_FLOAT16:
    case NPU_INT16:
      return 2;
    case NPU_INT64:
      return 8;
    case NPU_INT8:
    case NPU_UINT8:
    case NPU_BOOL:
      break;
  }
  return 1;
}

int64_t ElementCount(const TensorView& tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.dims[d];
  return count;
}

bool IsIntegerProgram(const VectorProgram& program, npu_dtype out) {
  auto count = static_cast<size_t>(program.instruction_count);
  return IsInteger(out) && LoadsIntegers(program.instructions, count, [&](int32_t input) {
           return program.inputs[input].dtype;
         });
}

bool IsIntegerEpilogue(const VectorProgram& program, npu_dtype out) {
  auto count = static_cast<size_t>(program.instruction_count);
  return IsInteger(out) && LoadsIntegers(program.instructions, count, [&](int32_t input) {
           return input == 0 ? NPU_INT32 : program.inputs[input].dtype;
         });
}

const Simd& ActiveSimd() { return *Active().load(std::memory_order_acquire); }

bool SelectSimd(const char* name) {
  const Simd* simd = Find(name);
  if (simd != nullptr) Active() = simd;
  return simd != nullptr;
}

const char* KernelInstructionSet() { return ActiveSimd().name; }

}  // namespace npu::emulator
