# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the backend out of src/:
#
#   tvm_example_npu_driver    the driver's run half        no dependency
#   tvm_example_npu_runtime   src/runtime                  tvm-ffi and the driver
#   tvm_example_npu_codegen   src/codegen and src/ops      tvm-ffi; contains the driver's build half
#
# A board needs the first two. What compiles is in the third alone.
#
# Options:
#   USE_EXAMPLE_NPU_RUNTIME    the runtime and the run half of the driver: a board
#   USE_EXAMPLE_NPU_CODEGEN    the compiler, with the build half of the driver
#   USE_EXAMPLE_NPU_TESTS      the driver's own tests, for ctest
#   USE_EXAMPLE_NPU_SANITIZE   sanitizers for everything, e.g. "address,undefined"
#   USE_EXAMPLE_NPU_WERROR     warnings are errors

option(USE_EXAMPLE_NPU_RUNTIME "Build the runtime and the driver" ON)
option(USE_EXAMPLE_NPU_CODEGEN "Build the codegen" ON)
option(USE_EXAMPLE_NPU_TESTS "Build the driver's tests" OFF)
set(USE_EXAMPLE_NPU_SANITIZE "" CACHE STRING "Sanitizers to build with")
option(USE_EXAMPLE_NPU_WERROR "Treat warnings as errors" OFF)

get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# What all targets share.
add_library(tvm_example_npu_options INTERFACE)
target_compile_features(tvm_example_npu_options INTERFACE cxx_std_17)
target_compile_options(tvm_example_npu_options INTERFACE -Wall -Wextra)
if(USE_EXAMPLE_NPU_WERROR)
  target_compile_options(tvm_example_npu_options INTERFACE -Werror)
endif()
if(USE_EXAMPLE_NPU_SANITIZE)
  target_compile_options(
    tvm_example_npu_options INTERFACE -fsanitize=${USE_EXAMPLE_NPU_SANITIZE}
                                    -fno-omit-frame-pointer
  )
  target_link_options(tvm_example_npu_options INTERFACE -fsanitize=${USE_EXAMPLE_NPU_SANITIZE})
endif()

# The libraries stand side by side inside the Python package.
function(tvm_example_npu_add_library name)
  add_library(${name} SHARED ${ARGN})
  target_link_libraries(${name} PRIVATE tvm_example_npu_options)
  set_target_properties(
    ${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                       BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN"
  )
  if(NOT USE_EXAMPLE_NPU_SANITIZE AND NOT APPLE)
    # A missing symbol is an error here, not when the library is loaded.
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  install(TARGETS ${name} DESTINATION tvm_example_npu)
endfunction()

# ---- Driver: the emulator, until the SDK takes its place ----
#
# The SDK's run-time library goes where tvm_example_npu_emulator is linked, its compiler's library
# where tvm_example_npu_emulator_build is; the code that calls them stays in src/driver.

find_package(Threads REQUIRED)

# Objects, because the tests also test what the libraries do not export.
function(tvm_example_npu_add_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC tvm_example_npu_options Threads::Threads)
  set_target_properties(
    ${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                       POSITION_INDEPENDENT_CODE ON
  )
endfunction()

# The run half, and what both halves share.
file(GLOB _sources CONFIGURE_DEPENDS "${_root}/src/driver/emulator/*.cc"
     "${_root}/src/driver/emulator/kernels/*.cc"
)
list(FILTER _sources EXCLUDE REGEX "/oracle.cc$")  # What the tests compare with.
tvm_example_npu_add_objects(tvm_example_npu_emulator ${_sources})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # One file per instruction set; which one runs is decided at run time.
  set_source_files_properties(
    "${_root}/src/driver/emulator/kernels/simd_avx2.cc" PROPERTIES COMPILE_OPTIONS
    "-mavx2;-mfma;-mf16c"
  )
  set_source_files_properties(
    "${_root}/src/driver/emulator/kernels/simd_avx512.cc" PROPERTIES COMPILE_OPTIONS
    "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl"
  )
endif()

# The build half: not on a board.
if(USE_EXAMPLE_NPU_CODEGEN OR USE_EXAMPLE_NPU_TESTS)
  file(GLOB _sources CONFIGURE_DEPENDS "${_root}/src/driver/emulator/compiler/*.cc")
  tvm_example_npu_add_objects(tvm_example_npu_emulator_build ${_sources})
  # An archive of the rest, out of which the linker takes what the build half needs.
  add_library(tvm_example_npu_emulator_archive STATIC $<TARGET_OBJECTS:tvm_example_npu_emulator>)
  set_target_properties(tvm_example_npu_emulator_archive PROPERTIES LINKER_LANGUAGE CXX)
endif()

# ---- Runtime ----

if(USE_EXAMPLE_NPU_RUNTIME)
  tvm_example_npu_add_library(tvm_example_npu_driver $<TARGET_OBJECTS:tvm_example_npu_emulator>)
  set_target_properties(tvm_example_npu_driver PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(tvm_example_npu_driver PRIVATE Threads::Threads)

  file(GLOB _sources CONFIGURE_DEPENDS "${_root}/src/runtime/*.cc")
  tvm_example_npu_add_library(
    tvm_example_npu_runtime ${_sources} "${_root}/src/common/artifact.cc"
  )
  target_include_directories(
    tvm_example_npu_runtime PRIVATE "${_root}/src/common" "${_root}/src/driver"
  )
  target_link_libraries(
    tvm_example_npu_runtime PRIVATE tvm_example_npu_driver tvm_ffi::header tvm_ffi::shared
  )
endif()

# ---- Codegen ----

if(USE_EXAMPLE_NPU_CODEGEN)
  file(GLOB _sources CONFIGURE_DEPENDS "${_root}/src/codegen/*.cc" "${_root}/src/ops/*.cc")
  tvm_example_npu_add_library(
    tvm_example_npu_codegen ${_sources} "${_root}/src/common/artifact.cc"
                        $<TARGET_OBJECTS:tvm_example_npu_emulator_build>
  )
  target_include_directories(
    tvm_example_npu_codegen PRIVATE "${_root}/src/common" "${_root}/src/driver" "${_root}/src/codegen"
  )
  target_link_libraries(
    tvm_example_npu_codegen PRIVATE tvm_example_npu_emulator_archive Threads::Threads
                                tvm_ffi::header tvm_ffi::shared
  )
endif()

# ---- Tests of the driver and of the runtime ----

if(USE_EXAMPLE_NPU_TESTS)
  enable_testing()
  function(tvm_example_npu_add_test source)
    get_filename_component(_name ${source} NAME_WE)
    add_executable(tvm_example_npu_${_name} ${source} ${ARGN})
    target_link_libraries(tvm_example_npu_${_name} PRIVATE tvm_example_npu_options Threads::Threads)
    add_test(NAME ${_name} COMMAND tvm_example_npu_${_name})
  endfunction()

  file(GLOB _tests CONFIGURE_DEPENDS "${_root}/src/driver/tests/*_test.cc")
  foreach(_test ${_tests})
    tvm_example_npu_add_test(
      ${_test} "${_root}/src/driver/emulator/kernels/oracle.cc"
      $<TARGET_OBJECTS:tvm_example_npu_emulator> $<TARGET_OBJECTS:tvm_example_npu_emulator_build>
    )
  endforeach()

  if(USE_EXAMPLE_NPU_RUNTIME)
    tvm_example_npu_add_test(
      "${_root}/src/runtime/tests/runtime_test.cc" "${_root}/src/common/artifact.cc"
      $<TARGET_OBJECTS:tvm_example_npu_emulator_build>
    )
    target_include_directories(
      tvm_example_npu_runtime_test PRIVATE "${_root}/src/common" "${_root}/src/driver"
    )
    # The runtime is found by its registered functions, not by its symbols.
    target_link_options(tvm_example_npu_runtime_test PRIVATE LINKER:--no-as-needed)
    target_link_libraries(
      tvm_example_npu_runtime_test PRIVATE tvm_example_npu_runtime tvm_example_npu_emulator_archive
                                          tvm_ffi::header tvm_ffi::shared
    )
  endif()
endif()
