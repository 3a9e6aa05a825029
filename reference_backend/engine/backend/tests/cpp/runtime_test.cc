// SPDX-License-Identifier: Apache-2.0
/*!
 * \file runtime_test.cc
 * \brief What Python cannot observe: that calls after the first allocate no memory, and how much of
 * a driver's table the engine uses.
 *
 * All memory in C++ comes from the operators below, including that of the shared libraries.
 */
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "artifact.h"
#include "backend.h"
#include "driver_api.h"

namespace {
std::atomic<int64_t> allocations{0};
}

void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, std::align_val_t alignment) {
  ++allocations;
  auto align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (size + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace npu {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kBound = 4;
constexpr int64_t kColumns = 8;

void Check(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

/*! \brief A region that computes max(x, 0) for x of the shape [n, 8]. */
std::string MakeArtifact() {
  const npu_build_api& build = BuildDriver("emulator");
  npu_builder* builder = nullptr;
  auto check = [&](npu_status status) {
    Check(status == NPU_OK, status == NPU_OK ? "" : build.error(builder));
  };
  check(build.create(nullptr, 0, &builder));
  int32_t symbol = 0;
  check(build.add_symbol(builder, "n", kBound, &symbol));
  npu_tensor_desc desc = {};
  desc.dtype = NPU_FLOAT32;
  desc.rank = 2;
  desc.dims[0] = {1, symbol};
  desc.dims[1] = {kColumns, -1};
  npu_tensor input = -1;
  npu_elementwise op = {};
  check(build.add_input(builder, &desc, &input));
  check(build.add_tensor(builder, &desc, &op.out));
  const npu_vector_instruction instructions[] = {
      {NPU_VECTOR_LOAD, 0, 0, 0, 0},
      {NPU_VECTOR_CONSTANT, 0, 0, 0, 0},
      {NPU_VECTOR_MAXIMUM, 0, 1, 0, 0},
  };
  npu_vector_program program = {sizeof(program), 3, instructions, &input, 1, 0, nullptr};
  op.size = sizeof(op);
  op.program = &program;
  check(build.add_elementwise(builder, &op));
  check(build.mark_output(builder, op.out));
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  check(build.finish(builder, &bytes, &size));
  std::string manifest = R"({"symbol": "f", "options": {}, "backend": ")" BACKEND_NAME "\", ";
  manifest += R"("driver": "emulator"})";
  const std::string attrs = R"("attrs": {"dtype": [["float32"]], "shape": [[[-1, 8]]], )"
                            R"("symbolic_shape": [[[[1, 0], [8, -1]]]]})";
  std::string graph =
      R"({"symbol": "f", "symbols": ["n"], "arg_nodes": [0], "heads": [[1, 0, 0]],)";
  graph += R"("nodes": [{"op": "input", "name": "x", )" + attrs + "}, ";
  graph += R"({"op": "kernel", "name": "max", )" + attrs + "}]}";
  std::string artifact =
      WriteArtifact({manifest, graph, {{reinterpret_cast<const char*>(bytes), size}}});
  build.destroy(builder);
  return artifact;
}

struct Allocator {
  void AllocData(DLTensor* tensor) {
    tensor->data = ::operator new(ffi::GetDataSize(*tensor), std::align_val_t(64));
  }
  void FreeData(DLTensor* tensor) { ::operator delete(tensor->data, std::align_val_t(64)); }
};

/*! \brief Arguments of a call for each n. */
std::vector<std::vector<ffi::Any>> MakeCalls() {
  std::vector<std::vector<ffi::Any>> calls;
  for (int64_t n = 1; n <= kBound; ++n) {
    std::vector<ffi::Any> tensors;
    for (int i = 0; i < 2; ++i) {
      DLDataType float32 = {kDLFloat, 32, 1};
      auto tensor = ffi::Tensor::FromNDAlloc(Allocator(), {n, kColumns}, float32, {kDLCPU, 0});
      auto* data = static_cast<float*>(tensor.data_ptr());
      for (int64_t k = 0; k < n * kColumns; ++k) data[k] = static_cast<float>(k % 3 - 1);
      tensors.emplace_back(tensor);
    }
    calls.push_back(std::move(tensors));
  }
  return calls;
}

/*! \brief Calls a function with all sizes; returns the number of allocations after a warm-up. */
int64_t CountAllocations(const ffi::Function& function, const ffi::Function& after) {
  std::vector<std::vector<ffi::Any>> calls = MakeCalls();
  auto run = [&] {
    for (const std::vector<ffi::Any>& tensors : calls) {
      ffi::AnyView arguments[] = {tensors[0], tensors[1]};
      ffi::Any result;
      function.CallPacked(arguments, 2, &result);
    }
    if (after.defined()) after();
  };
  run();
  int64_t count = 0;
  // Threads and requests are created when that many first run concurrently, which may be later.
  for (int attempt = 0; attempt < 50; ++attempt) {
    int64_t before = allocations;
    for (int repeat = 0; repeat < 10; ++repeat) run();
    count = allocations - before;
    if (count == 0) break;
  }
  for (const std::vector<ffi::Any>& tensors : calls) {
    auto input = tensors[0].cast<ffi::Tensor>();
    auto output = tensors[1].cast<ffi::Tensor>();
    for (int64_t k = 0; k < input.numel(); ++k) {
      float value = static_cast<const float*>(input.data_ptr())[k];
      float found = static_cast<const float*>(output.data_ptr())[k];
      Check(found == (value > 0 ? value : 0), "the result is wrong");
    }
  }
  return count;
}

npu_status Nothing() { return NPU_OK; }

/*! \brief The engine uses as much of a driver's table as there is, and refuses a table without the
 *  mandatory functions. */
void CheckTables() {
  auto refused = [](const npu_run_api& table, const std::string& why) {
    try {
      Adopt(&table, "lib.so");
      Check(false, "accepted, but " + why);
    } catch (const DriverError& error) {
      Check(std::string(error.what()).find(why) != std::string::npos, error.what());
    }
  };
  npu_run_api whole = RunDriver("emulator");
  whole.size = sizeof(whole);
  for (uint32_t version : {1u, 2u, 1000u}) {
    whole.version = version;
    Check(Adopt(&whole, "lib.so").version == version, "a driver of another version is refused");
  }
  npu_run_api table = whole;
  table.version = 0;
  refused(table, "of version 0");
  table = whole;
  for (uint32_t size : {0u, 8u, static_cast<uint32_t>(offsetof(npu_run_api, event_unit)) - 1}) {
    table.size = size;
    refused(table, "of " + std::to_string(size) + " bytes");
  }
  // A newer driver: the engine ignores fields that it does not know.
  struct Longer {
    npu_run_api known;
    npu_status (*unknown)();
  } longer = {whole, Nothing};
  longer.known.size = sizeof(longer);
  Check(Adopt(&longer.known, "lib.so").execute == whole.execute, "a longer table is misread");
  table = whole;
  table.load = nullptr;
  refused(table, "has no load");
  table = whole;
  table.wait = nullptr;
  refused(table, "has no submit with its wait");
  table = whole;
  table.execute = nullptr;
  Adopt(&table, "lib.so");
  table.submit = nullptr;
  table.wait = nullptr;
  refused(table, "has no execute");
  table = whole;
  table.read_counters = nullptr;
  Check(Adopt(&table, "lib.so").counter_count == 0, "counters that nothing reads are kept");
  for (const char* name : {"", "other"}) {
    try {
      RunDriver(name);
      Check(false, "a driver that is not there is found");
    } catch (const DriverError& error) {
      Check(std::string(error.what()).find("installed: 'emulator' (emulator)") != std::string::npos,
            error.what());
    }
  }
}

/*! \brief A driver that does not declare integers gets none. */
void CheckIntegers() {
  npu_build_api table = BuildDriver("emulator");
  Check(table.integers != 0 && table.add_lookup != nullptr && table.integer_weights != 0,
        "the emulator has no integers");
  // The table of version 2.
  table.size = offsetof(npu_build_api, add_lookup);
  table.version = 2;
  npu_build_api older = Adopt(&table, "lib.so");
  Check(older.integers == 0 && older.add_lookup == nullptr && older.integer_weights == 0,
        "an older driver has integers");
  auto is_float = [](npu_tensor tensor) { return tensor != 1; };
  npu_matmul matmul = {};
  Check(!NeedsIntegers(matmul, is_float), "a matmul of floats needs integers");
  Check(!NeedsIntegerWeights(matmul, is_float), "a matmul of floats needs integer weights");
  matmul.b = 1;
  Check(NeedsIntegerWeights(matmul, is_float), "floats by integers need no integer weights");
  Check(!NeedsIntegers(matmul, is_float), "floats by integers need products of integers");
  matmul.a = 1;
  Check(NeedsIntegers(matmul, is_float), "a matmul of integers needs none");
  Check(!NeedsIntegerWeights(matmul, is_float), "a matmul of integers needs integer weights");
  npu_convolution convolution = {};
  Check(!NeedsIntegers(convolution, is_float), "a convolution of floats needs integers");
  convolution.data = 1;
  Check(NeedsIntegers(convolution, is_float), "a convolution of integers needs none");
  npu_vector_instruction instruction = {NPU_VECTOR_ADD, 0, 0, 0, 0};
  npu_vector_program program = {};
  program.instructions = &instruction;
  program.instruction_count = 1;
  npu_elementwise elementwise = {};
  elementwise.program = &program;
  npu_reduce reduce = {};
  reduce.epilogue = &program;
  Check(!NeedsIntegers(elementwise, is_float) && !NeedsIntegers(reduce, is_float),
        "a sum needs integers");
  instruction.opcode = NPU_VECTOR_RESCALE;
  Check(NeedsIntegers(elementwise, is_float) && NeedsIntegers(reduce, is_float),
        "RESCALE needs no integers");
}

void CheckAllocations() {
  ffi::Function load = ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes." BACKEND_NAME);
  ffi::Function wait_all = ffi::Function::GetGlobalRequired(BACKEND_NAME ".runtime.wait_all");
  auto region = load(ffi::Bytes(MakeArtifact())).cast<ffi::Module>();
  int64_t calls = CountAllocations(region->GetFunction("f").value(), ffi::Function(nullptr));
  Check(calls == 0, "calls allocate " + std::to_string(calls) + " times");
  int64_t submits = CountAllocations(region->GetFunction("f.submit").value(), wait_all);
  Check(submits == 0, "submitted calls allocate " + std::to_string(submits) + " times");
}

}  // namespace
}  // namespace npu

int main() {
  npu::CheckTables();
  npu::CheckIntegers();
  npu::CheckAllocations();
  std::puts("ok");
  return 0;
}
