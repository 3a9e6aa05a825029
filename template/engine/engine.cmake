# SPDX-License-Identifier: Apache-2.0
#
# Builds a backend out of engine/ and vendor/:
#
#   <package>_runtime           engine/backend/runtime       tvm-ffi
#   <package>_codegen           engine/backend/codegen, lowerings   tvm-ffi
#   <package>_emulator          the emulator's run half      no dependency
#   <package>_emulator_build    the emulator's build half    no dependency
#   <package>_driver            the vendor's driver, as vendor/vendor.cmake says;
#   <package>_driver_build      its build half, unless one library has both
#   <package>_second            the vendor's second driver, if there is one; <package>_second_build as above
#   <package>_isa               the emulator of the vendor's instruction set, where there is one
#
# The first two load the drivers next to them. A board needs the runtime and a run half. In a TVM
# checkout, TVM's own libraries take the place of the first two.
#
# The including file sets:
#
#   NPU_PACKAGE      the name of the Python package
#   NPU_NAMES_DIR    the folder of backend.h
#   NPU_VENDOR_CMAKE what the vendor adds to the build; optional
#   NPU_DRIVER       "vendor", "second" or "emulator": the driver that programs are for unless told
#                    otherwise, of the vendor's two the first; empty: what the vendor says, or the
#                    emulator. The vendor's are built wherever their sources are listed
#   NPU_EMULATOR     whether to build the emulator, even if there is a vendor's driver
#   NPU_RUNTIME, NPU_CODEGEN, NPU_TESTS, NPU_WERROR   what to build, and how
#   NPU_SANITIZE     sanitizers for everything, e.g. "address,undefined"; optional
#   NPU_COMPILER_DIR the folder of codegen/ and lowerings/, where it is not this one; optional
#   NPU_IN_TREE      whether this is a TVM checkout; optional

set(_engine "${CMAKE_CURRENT_LIST_DIR}")
set(_backend "${_engine}/backend")
set(_workbench "${_engine}/workbench")
if(NPU_IN_TREE)
  # Where grafts have always put both.
  set(_backend "${_engine}")
  set(_workbench "${_engine}")
endif()
find_package(Threads REQUIRED)
if(NOT NPU_COMPILER_DIR)
  set(NPU_COMPILER_DIR "${_backend}")
endif()

# The settings that vendor/vendor.cmake may make; it explains each.
foreach(_setting LOWERINGS LOWERING_LIBRARIES DRIVER_SOURCES DRIVER_BUILD_SOURCES
                 DRIVER_INCLUDE_DIRECTORIES DRIVER_DEFINITIONS DRIVER_OPTIONS DRIVER_LIBRARIES
                 DRIVER_BUILD_LIBRARIES SECOND_DRIVER_SOURCES SECOND_DRIVER_BUILD_SOURCES
                 SECOND_DRIVER_LIBRARIES DEFAULT_DRIVER ISA
)
  set(NPU_VENDOR_${_setting} "")
endforeach()
set(_given "${NPU_DRIVER}")
if(NOT _given)
  set(NPU_DRIVER "emulator")
endif()
if(NPU_VENDOR_CMAKE)
  include("${NPU_VENDOR_CMAKE}")
endif()
if(NOT _given AND NPU_VENDOR_DEFAULT_DRIVER)
  set(NPU_DRIVER "${NPU_VENDOR_DEFAULT_DRIVER}")
endif()
if(NOT NPU_DRIVER MATCHES "^(vendor|second|emulator)$")
  message(FATAL_ERROR "The driver is '${NPU_DRIVER}'; supported: vendor, second and emulator.")
endif()
set(_sources NPU_VENDOR_DRIVER_SOURCES)
if(NPU_DRIVER STREQUAL "second")
  set(_sources NPU_VENDOR_SECOND_DRIVER_SOURCES)
endif()
if(NOT NPU_DRIVER STREQUAL "emulator" AND NOT ${_sources})
  message(
    FATAL_ERROR "There is no vendor's driver to build: list its sources in "
                "${_sources} in ${NPU_VENDOR_CMAKE}, or build with the emulator."
  )
endif()
if(NPU_DRIVER STREQUAL "emulator" AND NOT NPU_EMULATOR)
  string(TOUPPER "${NPU_PACKAGE}" _option)
  string(REGEX REPLACE "^TVM_" "USE_" _option "${_option}")
  message(
    FATAL_ERROR "The emulator is the default driver, but the build leaves it out (${_option}_EMULATOR "
                "is OFF). Make the vendor's driver the default, with ${_option}_DRIVER=vendor or "
                "NPU_VENDOR_DEFAULT_DRIVER in ${NPU_VENDOR_CMAKE}, or build the emulator."
  )
endif()

# Caches of compilers tell files by their paths: objects have the same names in all backends, but in
# TVM's tree, which may have several.
set(NPU_OBJECTS npu)
if(NPU_IN_TREE)
  set(NPU_OBJECTS ${NPU_PACKAGE})
endif()

# The settings that all targets share.
add_library(${NPU_PACKAGE}_options INTERFACE)
target_compile_features(${NPU_PACKAGE}_options INTERFACE cxx_std_17)
# Messages name files of the engine, not folders of the machine that built it.
target_compile_options(
  ${NPU_PACKAGE}_options INTERFACE -Wall -Wextra -fmacro-prefix-map=${_engine}=engine
                                   -fmacro-prefix-map=${NPU_COMPILER_DIR}=engine
)
target_include_directories(${NPU_PACKAGE}_options INTERFACE "${_backend}/include" "${NPU_NAMES_DIR}")
if(NPU_WERROR)
  target_compile_options(${NPU_PACKAGE}_options INTERFACE -Werror)
endif()
if(NPU_SANITIZE)
  # A driver in C may be given any number as an enumerator, and checks it. Whatever else is found ends
  # the program, which compiles a quarter faster than if it went on.
  target_compile_options(
    ${NPU_PACKAGE}_options INTERFACE -fsanitize=${NPU_SANITIZE} -fno-sanitize=enum
                                     -fno-sanitize-recover=all -fno-omit-frame-pointer
  )
  target_link_options(${NPU_PACKAGE}_options INTERFACE -fsanitize=${NPU_SANITIZE})
endif()

# Only kernels gain from CMake's -O3. The rest is as fast with -O1, and compiles in two thirds of the
# time. A level chosen by the user stays.
set(NPU_LITTLE_OPTIMIZED "")
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")
  set(NPU_LITTLE_OPTIMIZED "$<$<CONFIG:Release>:-O1>")
endif()

# The libraries stand side by side: inside the Python package, or with TVM's.
function(npu_add_library name)
  add_library(${name} SHARED ${ARGN})
  target_link_libraries(${name} PRIVATE ${NPU_PACKAGE}_options)
  set_target_properties(
    ${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL ""
                       BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN"
  )
  if(NOT NPU_SANITIZE AND NOT APPLE)
    # A missing symbol is an error here, not when the library is loaded.
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  if(NPU_IN_TREE)
    tvm_configure_target_library(${name} RUNTIME_MODULE)
  else()
    install(TARGETS ${name} DESTINATION ${NPU_PACKAGE})
  endif()
endfunction()

# Objects, because several libraries contain them, and tests use what no library exports.
function(npu_add_objects name)
  npu_add_kernel_objects(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${NPU_LITTLE_OPTIMIZED})
endfunction()

# Objects that gain from more optimization.
function(npu_add_kernel_objects name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC ${NPU_PACKAGE}_options Threads::Threads)
  set_target_properties(
    ${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                       POSITION_INDEPENDENT_CODE ON
  )
  if(NPU_IN_TREE)
    # Backends of several names may be linked into one library of TVM's.
    target_compile_definitions(${name} PRIVATE npu=${NPU_PACKAGE})
  endif()
endfunction()

# Joins files of the same includes, `count` at a time or all (0): they compile in much less time.
# With -DCMAKE_UNITY_BUILD=OFF each is compiled alone, as linters want it.
function(npu_join target count)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
    # GCC takes a joined file for a header.
    target_compile_options(
      ${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>
    )
  endif()
endfunction()

# ---- Drivers ----

if(NPU_VENDOR_DRIVER_SOURCES OR NPU_VENDOR_SECOND_DRIVER_SOURCES)
  function(npu_add_vendor_driver name sources libraries)
    if(NOT sources)
      return()
    endif()
    npu_add_library(${name} ${sources})
    # Warnings of an SDK's headers are none of the driver's.
    target_include_directories(${name} SYSTEM PRIVATE ${NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES})
    target_compile_definitions(${name} PRIVATE ${NPU_VENDOR_DRIVER_DEFINITIONS})
    target_compile_options(${name} PRIVATE ${NPU_VENDOR_DRIVER_OPTIONS})
    target_link_libraries(${name} PRIVATE ${libraries} Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endfunction()
  npu_add_vendor_driver(
    ${NPU_PACKAGE}_driver "${NPU_VENDOR_DRIVER_SOURCES}" "${NPU_VENDOR_DRIVER_LIBRARIES}"
  )
  npu_add_vendor_driver(
    ${NPU_PACKAGE}_second "${NPU_VENDOR_SECOND_DRIVER_SOURCES}" "${NPU_VENDOR_SECOND_DRIVER_LIBRARIES}"
  )
  if(NPU_CODEGEN)
    npu_add_vendor_driver(
      ${NPU_PACKAGE}_driver_build "${NPU_VENDOR_DRIVER_BUILD_SOURCES}"
      "${NPU_VENDOR_DRIVER_LIBRARIES};${NPU_VENDOR_DRIVER_BUILD_LIBRARIES}"
    )
    npu_add_vendor_driver(
      ${NPU_PACKAGE}_second_build "${NPU_VENDOR_SECOND_DRIVER_BUILD_SOURCES}"
      "${NPU_VENDOR_SECOND_DRIVER_LIBRARIES}"
    )
  endif()
endif()

if(NPU_EMULATOR OR NPU_TESTS)
  include("${_workbench}/emulator/emulator.cmake")
endif()
if(NPU_VENDOR_ISA)
  include("${_workbench}/isa_emulator/isa_emulator.cmake")
endif()

# ---- What runtime and codegen share ----

# The library of a role, out of objects and what both roles have.
function(npu_add_ffi_library role)
  set(_name ${NPU_PACKAGE}_${role})
  list(TRANSFORM ARGN REPLACE "(.+)" "$<TARGET_OBJECTS:${NPU_OBJECTS}_\\1>" OUTPUT_VARIABLE _objects)
  npu_add_library(${_name} ${_objects} $<TARGET_OBJECTS:${NPU_OBJECTS}_common_objects>)
  set_target_properties(${_name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${_name} PRIVATE tvm_ffi::shared Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

if(NPU_RUNTIME OR NPU_CODEGEN)
  set(_sources artifact bundle driver_api names)
  list(TRANSFORM _sources PREPEND "${_backend}/common/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_objects(${NPU_OBJECTS}_common_objects ${_sources})
  # The one file that differs between backends.
  set_source_files_properties(
    "${_backend}/common/names.cc" PROPERTIES COMPILE_DEFINITIONS NPU_DEFAULT_DRIVER="${NPU_DRIVER}"
  )
  target_link_libraries(${NPU_OBJECTS}_common_objects PRIVATE tvm_ffi::header)
endif()

# ---- Runtime ----

if(NPU_RUNTIME OR NPU_IN_TREE)
  set(_sources execution object_file ports runtime sessions signature state_memory)
  list(TRANSFORM _sources PREPEND "${_backend}/runtime/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_objects(${NPU_OBJECTS}_runtime_objects ${_sources})
  target_include_directories(${NPU_OBJECTS}_runtime_objects PRIVATE "${_backend}/common")
  target_link_libraries(${NPU_OBJECTS}_runtime_objects PRIVATE tvm_ffi::header)
  npu_join(${NPU_OBJECTS}_runtime_objects 0)
endif()
if(NPU_RUNTIME AND NOT NPU_IN_TREE)
  npu_add_ffi_library(runtime runtime_objects)
endif()

# ---- Codegen ----

if(NPU_RUNTIME AND NOT NPU_CODEGEN AND NOT NPU_IN_TREE)
  message(STATUS "Only for boards: it runs models, and compiles none, for the codegen is OFF. "
                 "This folder remembers that, until it is configured with ON."
  )
endif()
if(NPU_CODEGEN)
  set(_sources
    activation attention binary convolution creation image indexing logic matrix normalization pooling
    quantization reduction scan shape unary
  )
  list(TRANSFORM _sources PREPEND "${NPU_COMPILER_DIR}/lowerings/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_objects(${NPU_OBJECTS}_lowering_objects ${_sources})
  target_include_directories(
    ${NPU_OBJECTS}_lowering_objects PRIVATE "${_backend}/common" "${NPU_COMPILER_DIR}/codegen"
  )
  npu_join(${NPU_OBJECTS}_lowering_objects 8)

  set(_sources
    call_view codegen emission graph ir_adapter layout layout_adapter layout_operations lowering
    registry requantization scales sink table units updates vector_builder weights
  )
  list(TRANSFORM _sources PREPEND "${NPU_COMPILER_DIR}/codegen/")
  list(TRANSFORM _sources APPEND ".cc")
  npu_add_objects(${NPU_OBJECTS}_codegen_objects ${_sources} ${NPU_VENDOR_LOWERINGS})
  target_include_directories(
    ${NPU_OBJECTS}_codegen_objects PRIVATE "${_backend}/common" "${NPU_COMPILER_DIR}/codegen"
                                           "${NPU_COMPILER_DIR}/lowerings"
  )
  target_link_libraries(${NPU_OBJECTS}_codegen_objects PRIVATE tvm_ffi::header)
  target_link_libraries(${NPU_OBJECTS}_codegen_objects PUBLIC ${NPU_VENDOR_LOWERING_LIBRARIES})
  # By the definition, a lowering of the vendor's wins over one of the engine's.
  set_source_files_properties(
    ${NPU_VENDOR_LOWERINGS} PROPERTIES COMPILE_DEFINITIONS NPU_VENDOR_LOWERING
  )
  npu_join(${NPU_OBJECTS}_codegen_objects 3)
  if(NOT NPU_IN_TREE)
    npu_add_ffi_library(codegen codegen_objects lowering_objects)
    target_link_libraries(${NPU_PACKAGE}_codegen PRIVATE ${NPU_VENDOR_LOWERING_LIBRARIES})
  endif()
endif()

# ---- TVM's own libraries, in a checkout of it ----

if(NPU_IN_TREE)
  set(_objects common_objects runtime_objects)
  list(TRANSFORM _objects PREPEND ${NPU_OBJECTS}_)
  if(NPU_RUNTIME)
    target_link_libraries(tvm_runtime_extra PRIVATE ${_objects} ${CMAKE_DL_LIBS})
    set(_objects ${NPU_OBJECTS}_common_objects)
  endif()
  if(NPU_CODEGEN)
    # TVM's CMakeLists.txt links these libraries into tvm_compiler; each has its own common objects.
    list(APPEND TVM_LINKER_LIBS ${NPU_OBJECTS}_codegen_objects ${NPU_OBJECTS}_lowering_objects
         ${_objects}
    )
  endif()
endif()

# ---- Tests of the driver and of the runtime ----

if(NPU_TESTS)
  enable_testing()
  function(npu_add_test wing name)
    add_executable(npu_${name} "${wing}/tests/cpp/${name}.cc" ${ARGN})
    target_compile_options(npu_${name} PRIVATE ${NPU_LITTLE_OPTIMIZED})
    target_include_directories(
      npu_${name} PRIVATE "${_backend}" "${_workbench}" "${_engine}/tests/cpp"
    )
    target_link_libraries(npu_${name} PRIVATE ${NPU_PACKAGE}_options Threads::Threads)
    add_test(NAME ${name} COMMAND npu_${name})
  endfunction()

  npu_add_test("${_backend}" layout_test "${_backend}/codegen/layout.cc")
  target_include_directories(npu_layout_test PRIVATE "${_backend}/common")

  if(NPU_CODEGEN)
    set(_sources call_view graph layout requantization scales table)
    list(TRANSFORM _sources PREPEND "${_backend}/codegen/")
    list(TRANSFORM _sources APPEND ".cc")
    npu_add_test("${_backend}" scales_test ${_sources})
    # They include the same headers of TVM's, and the test does not.
    npu_join(npu_scales_test 0)
    set_source_files_properties(
      "${_backend}/tests/cpp/scales_test.cc" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
    )
    target_include_directories(
      npu_scales_test PRIVATE "${_backend}/common" "${_backend}/codegen"
    )
    target_link_libraries(npu_scales_test PRIVATE tvm_ffi::header tvm_ffi::shared)
  endif()

  npu_add_objects(${NPU_OBJECTS}_oracle_objects "${_workbench}/emulator/kernels/oracle.cc")
  foreach(_test compile_test driver_test kernels_test program_test)
    npu_add_test(
      "${_workbench}" ${_test} $<TARGET_OBJECTS:${NPU_OBJECTS}_oracle_objects>
      ${NPU_EMULATOR_OBJECTS}
    )
  endforeach()

  if(NPU_RUNTIME)
    # The runtime's and the emulator's internals: for artifacts with mistakes of any depth.
    npu_add_test(
      "${_workbench}" fuzz_test "${_backend}/runtime/signature.cc"
      $<TARGET_OBJECTS:${NPU_OBJECTS}_common_objects> ${NPU_EMULATOR_OBJECTS}
    )
    npu_add_test("${_backend}" runtime_test $<TARGET_OBJECTS:${NPU_OBJECTS}_common_objects>)
    foreach(_test fuzz_test runtime_test)
      target_include_directories(npu_${_test} PRIVATE "${_backend}/common")
      # The runtime is found by its registered functions, not by its symbols.
      target_link_options(npu_${_test} PRIVATE LINKER:--no-as-needed)
      target_link_libraries(
        npu_${_test} PRIVATE ${NPU_PACKAGE}_runtime tvm_ffi::header tvm_ffi::shared
                             ${CMAKE_DL_LIBS}
      )
      add_dependencies(npu_${_test} ${NPU_PACKAGE}_emulator ${NPU_PACKAGE}_emulator_build)
    endforeach()
  endif()
endif()
