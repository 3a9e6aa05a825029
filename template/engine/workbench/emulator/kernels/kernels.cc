// SPDX-License-Identifier: Apache-2.0
/*!
 * \file kernels.cc
 * \brief Types and shapes, and the choice of an instruction set.
 */
#include "kernels.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "simd.h"

namespace npu::emulator {

namespace {

/*! \brief Whether the processor has AMX for integers, and the system lets this process use it. */
bool HasAmx() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTiles = 1u << 24, kIntegers = 1u << 25;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTiles) == 0 || (d & kIntegers) == 0) return false;
  // Linux must be asked for permission, because signals then need more room on their stacks.
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

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
  bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (std::strcmp(name, "avx512vnni") == 0) return vnni;
  return vnni && HasAmx();
#else
  return false;
#endif
}

/*! \brief Combined here: files compiled for an instruction set must not have code that all
 *  processors run.
 */
const Simd* Avx512VnniSimd() {
  if (Avx512Simd() == nullptr || VnniProducts() == nullptr) return nullptr;
  static const Simd simd = [] {
    Simd made = *Avx512Simd();
    made.name = "avx512vnni";
    made.taps = VnniProducts()->taps;
    made.gemm_pairs = VnniProducts()->gemm_pairs;
    made.quads = &VnniProducts()->quads;
    return made;
  }();
  return &simd;
}

/*! \brief The same with AMX for quads. */
const Simd* AmxSimd() {
  if (Avx512VnniSimd() == nullptr || AmxGemm() == nullptr) return nullptr;
  static const QuadProducts quads = [] {
    QuadProducts made = VnniProducts()->quads;
    made.gemm = AmxGemm();
    made.block = kAmxBlock;
    // Setting up tiles takes as long as a short product.
    made.shallow = &VnniProducts()->quads;
    made.deep = 24;
    return made;
  }();
  static const Simd simd = [] {
    Simd made = *Avx512VnniSimd();
    made.name = "amx";
    made.quads = &quads;
    return made;
  }();
  return &simd;
}

const Simd* Find(const char* name) {
  for (const Simd* simd : {AmxSimd(), Avx512VnniSimd(), Avx512Simd(), Avx2Simd(), GenericSimd()}) {
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
  return WithElement(dtype, [](auto type) { return sizeof(type); });
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
