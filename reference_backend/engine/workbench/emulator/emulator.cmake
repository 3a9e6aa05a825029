# SPDX-License-Identifier: Apache-2.0
#
# Builds the emulator, a driver like any other: its halves as libraries, and as objects for the
# tests of its internals. engine.cmake includes this.

# ---- The run half, and what both halves share ----

set(_kernels byte_convolution byte_matmul convolution copy evaluator gather gemm integer_sums integers
    kernels matmul pool products quads reduce row_steps rows simd_amx simd_avx2 simd_avx512
    simd_avx512vnni simd_generic windows
)
list(TRANSFORM _kernels PREPEND "${CMAKE_CURRENT_LIST_DIR}/kernels/")
list(TRANSFORM _kernels APPEND ".cc")
# One file for each plain operation.
file(GLOB _operations CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/operations/*.cc")
npu_add_kernel_objects(${NPU_OBJECTS}_kernel_objects ${_kernels} ${_operations})
# Several operations in one loop round as they do one by one.
target_compile_options(${NPU_OBJECTS}_kernel_objects PRIVATE -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # One file per instruction set; which one runs is decided at run time.
  set_source_files_properties(
    "${CMAKE_CURRENT_LIST_DIR}/kernels/simd_avx2.cc" PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c"
  )
  set(_avx512 "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl")
  set_source_files_properties(
    "${CMAKE_CURRENT_LIST_DIR}/kernels/simd_avx512.cc" PROPERTIES COMPILE_OPTIONS "${_avx512}"
  )
  set_source_files_properties(
    "${CMAKE_CURRENT_LIST_DIR}/kernels/simd_avx512vnni.cc"
    PROPERTIES COMPILE_OPTIONS "${_avx512};-mavx512vnni"
  )
  # Compilers before GCC 11 and Clang 11 do not know it.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mamx-int8" NPU_COMPILER_HAS_AMX)
  if(NPU_COMPILER_HAS_AMX)
    set_source_files_properties(
      "${CMAKE_CURRENT_LIST_DIR}/kernels/simd_amx.cc"
      PROPERTIES COMPILE_OPTIONS "${_avx512};-mamx-tile;-mamx-int8"
    )
  endif()
endif()

set(_sources accesses bytes device elision events execute faults listing machine program queue rules
    support tensor thread_pool timeline verify
)
list(TRANSFORM _sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
list(TRANSFORM _sources APPEND ".cc")
npu_add_objects(${NPU_OBJECTS}_emulator_objects ${_sources})
npu_join(${NPU_OBJECTS}_emulator_objects 0)
set(NPU_EMULATOR_OBJECTS $<TARGET_OBJECTS:${NPU_OBJECTS}_emulator_objects>
    $<TARGET_OBJECTS:${NPU_OBJECTS}_kernel_objects>
)

npu_add_library(${NPU_PACKAGE}_emulator ${NPU_EMULATOR_OBJECTS})
set_target_properties(${NPU_PACKAGE}_emulator PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(${NPU_PACKAGE}_emulator PRIVATE Threads::Threads)

# ---- The build half: not on a board ----

if(NPU_CODEGEN OR NPU_TESTS)
  set(_sources arena assembler builder compile emit graph tiling)
  list(TRANSFORM _sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/compiler/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_objects(${NPU_OBJECTS}_emulator_build_objects ${_sources})
  npu_join(${NPU_OBJECTS}_emulator_build_objects 0)
  # An archive of the rest, from which the linker takes what the build half needs.
  add_library(${NPU_PACKAGE}_emulator_archive STATIC ${NPU_EMULATOR_OBJECTS})
  set_target_properties(${NPU_PACKAGE}_emulator_archive PROPERTIES LINKER_LANGUAGE CXX)
  npu_add_library(
    ${NPU_PACKAGE}_emulator_build $<TARGET_OBJECTS:${NPU_OBJECTS}_emulator_build_objects>
  )
  set_target_properties(${NPU_PACKAGE}_emulator_build PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(
    ${NPU_PACKAGE}_emulator_build PRIVATE ${NPU_PACKAGE}_emulator_archive Threads::Threads
  )
  list(APPEND NPU_EMULATOR_OBJECTS $<TARGET_OBJECTS:${NPU_OBJECTS}_emulator_build_objects>)
endif()
