# SPDX-License-Identifier: Apache-2.0
#
# Finds tvm-ffi through the Python in use, which knows where pip put it. For standalone builds: in a
# TVM checkout the targets tvm_ffi::header and tvm_ffi::shared are there already.
find_package(Python COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -m tvm_ffi.config --cmakedir
  OUTPUT_VARIABLE tvm_ffi_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _result
)
if(NOT _result EQUAL 0)
  message(
    FATAL_ERROR "tvm-ffi is not installed for ${Python_EXECUTABLE}. "
                "Run 'pip install apache-tvm' there, or pass -DPython_EXECUTABLE=<python>."
  )
endif()
find_package(tvm_ffi CONFIG REQUIRED)
set(PACKAGES "" CACHE PATH "For a board: where the wheel of tvm-ffi for it was unpacked")
if(PACKAGES)
  set_target_properties(
    tvm_ffi::shared PROPERTIES IMPORTED_LOCATION "${PACKAGES}/tvm_ffi/lib/libtvm_ffi.so"
  )
endif()
