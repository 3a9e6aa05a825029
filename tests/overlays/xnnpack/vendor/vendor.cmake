# SPDX-License-Identifier: Apache-2.0
#
# The driver is XNNPACK's: both halves in one library. Debian: libxnnpack-dev, libpthreadpool-dev.

find_path(XNNPACK_INCLUDE_DIR xnnpack.h REQUIRED)
find_library(XNNPACK_LIBRARY XNNPACK REQUIRED)
find_library(PTHREADPOOL_LIBRARY pthreadpool REQUIRED)

set(NPU_VENDOR_DRIVER_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver/build.cc"
                              "${CMAKE_CURRENT_LIST_DIR}/driver/run.cc"
)
set(NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES "${XNNPACK_INCLUDE_DIR}")
set(NPU_VENDOR_DRIVER_LIBRARIES "${XNNPACK_LIBRARY}" "${PTHREADPOOL_LIBRARY}")
