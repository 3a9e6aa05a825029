# SPDX-License-Identifier: Apache-2.0
#
# The driver is Arm NN's: both halves in one library. Debian: libarmnn-dev and, to run,
# libarmnn-cpuref-backend22.

find_path(ARMNN_INCLUDE_DIR armnn/ArmNN.hpp REQUIRED)
find_library(ARMNN_LIBRARY armnn REQUIRED)

set(NPU_VENDOR_DRIVER_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver/build.cc"
                              "${CMAKE_CURRENT_LIST_DIR}/driver/run.cc"
)
set(NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES "${ARMNN_INCLUDE_DIR}")
set(NPU_VENDOR_DRIVER_LIBRARIES "${ARMNN_LIBRARY}")
