# SPDX-License-Identifier: Apache-2.0
#
# The SDK is an environment of Python with ethos-u-vela and tosa-tools; ETHOSU_SDK is its folder.
# The build half calls Vela there; the run half links TOSA's reference model.

set(ETHOSU_SDK "$ENV{ETHOSU_SDK}" CACHE PATH "the environment with ethos-u-vela and tosa-tools")
file(GLOB _tools "${ETHOSU_SDK}/lib/python3*/site-packages")
find_library(TOSA_MODEL tosa_reference_model_lib PATHS "${_tools}/lib64" NO_DEFAULT_PATH REQUIRED)
find_library(TOSA_FILES tosa_serialization_lib PATHS "${_tools}/lib64" NO_DEFAULT_PATH REQUIRED)
find_library(FLATBUFFERS flatbuffers PATHS "${_tools}/lib64" NO_DEFAULT_PATH REQUIRED)

set(NPU_VENDOR_DEFAULT_DRIVER "vendor")
set(NPU_VENDOR_DRIVER_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver/run.cc")
set(NPU_VENDOR_DRIVER_BUILD_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver/build.cc")
set(NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES "${_tools}/include"
                                          "${_tools}/include/tosa_serialization_lib"
)
set(NPU_VENDOR_DRIVER_LIBRARIES "${TOSA_MODEL}" "${TOSA_FILES}" "${FLATBUFFERS}")
