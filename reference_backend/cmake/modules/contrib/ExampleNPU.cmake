# SPDX-License-Identifier: Apache-2.0
#
# Builds the backend with engine/engine.cmake; vendor/vendor.cmake adds the vendor's parts.
# 'npu-scaffold graft' copies this file and the engine to their places in a TVM checkout.
#
# Options:
#   USE_EXAMPLE_NPU_DRIVER     "emulator", "vendor" or "second": the driver that models are compiled
#                  for by default; empty: NPU_VENDOR_DEFAULT_DRIVER of vendor/vendor.cmake, or the
#                  emulator. The vendor's are built if vendor/vendor.cmake lists them
#   USE_EXAMPLE_NPU_EMULATOR   build the emulator in addition to the vendor's driver
#   USE_EXAMPLE_NPU_RUNTIME    the runtime and the run halves of the drivers: a board
#   USE_EXAMPLE_NPU_CODEGEN    the compiler, with the build halves of the drivers
#   USE_EXAMPLE_NPU_TESTS      the engine's C++ tests, for ctest
#   USE_EXAMPLE_NPU_SANITIZE   sanitizers for everything, e.g. "address,undefined"
#   USE_EXAMPLE_NPU_WERROR     warnings are errors

if(NOT DEFINED USE_EXAMPLE_NPU_DRIVER)
  set(USE_EXAMPLE_NPU_DRIVER "" CACHE STRING "The default driver: emulator, vendor or second")
endif()
option(USE_EXAMPLE_NPU_EMULATOR "Build the emulator too" ON)
option(USE_EXAMPLE_NPU_RUNTIME "Build the runtime and the driver" ON)
option(USE_EXAMPLE_NPU_CODEGEN "Build the codegen" ON)
option(USE_EXAMPLE_NPU_TESTS "Build the engine's C++ tests" OFF)
set(USE_EXAMPLE_NPU_SANITIZE "" CACHE STRING "Sanitizers to build with")
option(USE_EXAMPLE_NPU_WERROR "Treat warnings as errors" OFF)

get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

foreach(_option DRIVER EMULATOR RUNTIME CODEGEN TESTS SANITIZE WERROR)
  set(NPU_${_option} "${USE_EXAMPLE_NPU_${_option}}")
endforeach()
set(NPU_PACKAGE tvm_example_npu)
set(_in_tree "${_root}/src/runtime/extra/contrib/example_npu")
if(NOT EXISTS "${_in_tree}")
  set(NPU_NAMES_DIR "${_root}/src")
  set(NPU_VENDOR_CMAKE "${_root}/vendor/vendor.cmake")
  include("${_root}/engine/engine.cmake")
elseif(NPU_RUNTIME OR NPU_CODEGEN)
  set(NPU_IN_TREE ON)
  set(NPU_TESTS OFF)
  set(NPU_NAMES_DIR "${_in_tree}")
  set(NPU_COMPILER_DIR "${_root}/src/relax/backend/contrib/example_npu")
  set(NPU_VENDOR_CMAKE "${_in_tree}/vendor/vendor.cmake")
  include("${_in_tree}/engine.cmake")
endif()
