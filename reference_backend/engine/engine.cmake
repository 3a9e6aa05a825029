# SPDX-License-Identifier: Apache-2.0
#
# Builds a backend out of engine/ and vendor/:
#
#   <package>_driver    the driver's run half        no dependency
#   <package>_runtime   engine/runtime               tvm-ffi and the driver
#   <package>_codegen   engine/codegen, lowerings    tvm-ffi; contains the driver's build half
#
# A board needs the first two. What compiles is in the third alone.
#
# Whoever includes this file sets:
#
#   NPU_PACKAGE      the name of the Python package
#   NPU_NAMES_DIR    the folder of backend.h
#   NPU_LOWERINGS    the ops whose lowerings are compiled
#   NPU_VENDOR_CMAKE what the vendor adds to the build; optional
#   NPU_RUNTIME, NPU_CODEGEN, NPU_TESTS, NPU_WERROR   what to build, and how
#   NPU_SANITIZE     sanitizers for everything, e.g. "address,undefined"; optional

set(_engine "${CMAKE_CURRENT_LIST_DIR}")
find_package(Threads REQUIRED)

# What the vendor's build settings may extend.
set(NPU_VENDOR_LOWERINGS "")
if(NPU_VENDOR_CMAKE)
  include("${NPU_VENDOR_CMAKE}")
endif()

# What all targets share.
add_library(npu_options INTERFACE)
target_compile_features(npu_options INTERFACE cxx_std_17)
target_compile_options(npu_options INTERFACE -Wall -Wextra)
target_include_directories(npu_options INTERFACE "${_engine}/include" "${NPU_NAMES_DIR}")
if(NPU_WERROR)
  target_compile_options(npu_options INTERFACE -Werror)
endif()
if(NPU_SANITIZE)
  target_compile_options(npu_options INTERFACE -fsanitize=${NPU_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(npu_options INTERFACE -fsanitize=${NPU_SANITIZE})
endif()

# The libraries stand side by side inside the Python package.
function(npu_add_library name)
  add_library(${name} SHARED ${ARGN})
  target_link_libraries(${name} PRIVATE npu_options)
  set_target_properties(
    ${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                       BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN"
  )
  if(NOT NPU_SANITIZE AND NOT APPLE)
    # A missing symbol is an error here, not when the library is loaded.
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  install(TARGETS ${name} DESTINATION ${NPU_PACKAGE})
endfunction()

# Objects, because the tests also test what the libraries do not export.
function(npu_add_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC npu_options Threads::Threads)
  set_target_properties(
    ${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                       POSITION_INDEPENDENT_CODE ON
  )
endfunction()

# ---- Driver: the emulator ----

# The run half, and what both halves share.
set(_kernels convolution copy evaluator gather gemm integers kernels matmul pool reduce rows
    simd_avx2 simd_avx512 simd_generic windows
)
list(TRANSFORM _kernels PREPEND "kernels/")
set(_sources accesses device elision execute faults listing machine program queue rules tensor
    thread_pool timeline ${_kernels}
)
list(TRANSFORM _sources PREPEND "${_engine}/emulator/")
list(TRANSFORM _sources APPEND ".cc")
npu_add_objects(npu_emulator ${_sources})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # One file per instruction set; which one runs is decided at run time.
  set_source_files_properties(
    "${_engine}/emulator/kernels/simd_avx2.cc" PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c"
  )
  set_source_files_properties(
    "${_engine}/emulator/kernels/simd_avx512.cc"
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl"
  )
endif()

# The build half: not on a board.
if(NPU_CODEGEN OR NPU_TESTS)
  set(_sources arena assembler builder compile emit graph tiling)
  list(TRANSFORM _sources PREPEND "${_engine}/emulator/compiler/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_objects(npu_emulator_build ${_sources})
  # An archive of the rest, out of which the linker takes what the build half needs.
  add_library(npu_emulator_archive STATIC $<TARGET_OBJECTS:npu_emulator>)
  set_target_properties(npu_emulator_archive PROPERTIES LINKER_LANGUAGE CXX)
endif()

# ---- Runtime ----

if(NPU_RUNTIME)
  npu_add_library(${NPU_PACKAGE}_driver $<TARGET_OBJECTS:npu_emulator>)
  set_target_properties(${NPU_PACKAGE}_driver PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${NPU_PACKAGE}_driver PRIVATE Threads::Threads)

  set(_sources execution object_file runtime signature)
  list(TRANSFORM _sources PREPEND "${_engine}/runtime/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_library(${NPU_PACKAGE}_runtime ${_sources} "${_engine}/common/artifact.cc")
  target_include_directories(${NPU_PACKAGE}_runtime PRIVATE "${_engine}/common")
  target_link_libraries(
    ${NPU_PACKAGE}_runtime PRIVATE ${NPU_PACKAGE}_driver tvm_ffi::header tvm_ffi::shared
  )
endif()

# ---- Codegen ----

if(NPU_CODEGEN)
  set(_sources codegen graph ir_adapter lowering)
  list(TRANSFORM _sources PREPEND "${_engine}/codegen/")
  list(TRANSFORM _sources APPEND ".cc")
  # Many small files of the same includes: joined, they compile in a fifth of the time.
  list(TRANSFORM NPU_LOWERINGS PREPEND "${_engine}/lowerings/" OUTPUT_VARIABLE _lowerings)
  list(TRANSFORM _lowerings APPEND ".cc")
  npu_add_objects(npu_lowerings ${_lowerings})
  target_include_directories(npu_lowerings PRIVATE "${_engine}/common" "${_engine}/codegen")
  set_target_properties(npu_lowerings PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  npu_add_library(
    ${NPU_PACKAGE}_codegen ${_sources} ${NPU_VENDOR_LOWERINGS} "${_engine}/common/artifact.cc"
    $<TARGET_OBJECTS:npu_lowerings> $<TARGET_OBJECTS:npu_emulator_build>
  )
  target_include_directories(
    ${NPU_PACKAGE}_codegen PRIVATE "${_engine}/common" "${_engine}/codegen" "${_engine}/lowerings"
  )
  target_link_libraries(
    ${NPU_PACKAGE}_codegen PRIVATE npu_emulator_archive Threads::Threads tvm_ffi::header
                                   tvm_ffi::shared
  )
endif()

# ---- Tests of the driver and of the runtime ----

if(NPU_TESTS)
  enable_testing()
  set(_tests "${_engine}/tests/cpp")
  function(npu_add_test name)
    add_executable(npu_${name} "${_tests}/${name}.cc" ${ARGN})
    target_include_directories(npu_${name} PRIVATE "${_engine}")
    target_link_libraries(npu_${name} PRIVATE npu_options Threads::Threads)
    add_test(NAME ${name} COMMAND npu_${name})
  endfunction()

  foreach(_test compile_test driver_test kernels_test program_test)
    npu_add_test(
      ${_test} "${_engine}/emulator/kernels/oracle.cc" $<TARGET_OBJECTS:npu_emulator>
      $<TARGET_OBJECTS:npu_emulator_build>
    )
  endforeach()

  if(NPU_RUNTIME)
    npu_add_test(
      runtime_test "${_engine}/common/artifact.cc" $<TARGET_OBJECTS:npu_emulator_build>
    )
    target_include_directories(npu_runtime_test PRIVATE "${_engine}/common")
    # The runtime is found by its registered functions, not by its symbols.
    target_link_options(npu_runtime_test PRIVATE LINKER:--no-as-needed)
    target_link_libraries(
      npu_runtime_test PRIVATE ${NPU_PACKAGE}_runtime npu_emulator_archive tvm_ffi::header
                               tvm_ffi::shared
    )
  endif()
endif()
