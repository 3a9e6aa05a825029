# SPDX-License-Identifier: Apache-2.0
#
# Builds the emulator of the instruction set in NPU_VENDOR_ISA: what a driver's run half links, and a
# library for Python. engine.cmake includes this.

if(NPU_IN_TREE)
  message(FATAL_ERROR "A backend with an instruction set is not built in a TVM checkout.")
endif()
set(_isa "${CMAKE_CURRENT_BINARY_DIR}/isa")
get_filename_component(_vendor "${NPU_VENDOR_ISA}" DIRECTORY)
get_filename_component(_root "${_engine}" DIRECTORY)
get_filename_component(_name "${_engine}" NAME)
if(NOT Python_EXECUTABLE)
  find_package(Python COMPONENTS Interpreter REQUIRED)
endif()

# The table as C++. Files whose contents stay are not written, so that nothing is compiled again.
file(GLOB _sources CONFIGURE_DEPENDS "${_backend}/isa/*.py" "${_vendor}/*.py")
add_custom_command(
  OUTPUT "${_isa}/written"
  BYPRODUCTS "${_isa}/isa_table.h" "${_isa}/isa_table.inc"
  COMMAND ${CMAKE_COMMAND} -E env PYTHONDONTWRITEBYTECODE=1 "${Python_EXECUTABLE}" -m
          ${_name}.backend.isa.cpp "${NPU_VENDOR_ISA}" "${_isa}"
  COMMAND ${CMAKE_COMMAND} -E touch "${_isa}/written"
  WORKING_DIRECTORY "${_root}"
  DEPENDS "${NPU_VENDOR_ISA}" ${_sources}
  COMMENT "Writing the table of ${NPU_VENDOR_ISA} as C++"
  VERBATIM
)
add_custom_target(${NPU_PACKAGE}_isa_table DEPENDS "${_isa}/written")

set(_sources device elements execution listing products program table timing)
list(TRANSFORM _sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
list(TRANSFORM _sources APPEND ".cc")
npu_add_kernel_objects(${NPU_OBJECTS}_isa_objects ${_sources})
add_dependencies(${NPU_OBJECTS}_isa_objects ${NPU_PACKAGE}_isa_table)
target_include_directories(
  ${NPU_OBJECTS}_isa_objects PUBLIC "${_workbench}" "${_isa}" PRIVATE "${_vendor}"
)
# The same sums on each host.
target_compile_options(${NPU_OBJECTS}_isa_objects PRIVATE -ffp-contract=off)

# For the driver.
add_library(${NPU_PACKAGE}_isa_emulator STATIC $<TARGET_OBJECTS:${NPU_OBJECTS}_isa_objects>)
set_target_properties(${NPU_PACKAGE}_isa_emulator PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(${NPU_PACKAGE}_isa_emulator INTERFACE "${_workbench}")
target_link_libraries(${NPU_PACKAGE}_isa_emulator INTERFACE Threads::Threads)

# For Python: tests, tuning, reports.
if(NPU_CODEGEN OR NPU_TESTS)
  npu_add_library(
    ${NPU_PACKAGE}_isa "${CMAKE_CURRENT_LIST_DIR}/library.cc"
    $<TARGET_OBJECTS:${NPU_OBJECTS}_isa_objects>
  )
  target_include_directories(${NPU_PACKAGE}_isa PRIVATE "${_workbench}" "${_isa}")
  add_dependencies(${NPU_PACKAGE}_isa ${NPU_PACKAGE}_isa_table)
endif()
