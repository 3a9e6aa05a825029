# SPDX-License-Identifier: Apache-2.0
#
# The vendor's additions to the build; engine/engine.cmake includes this file, and no update writes it.
# Each variable is a list and may be left out. ${CMAKE_CURRENT_LIST_DIR} is this folder. Also find
# packages here: find_package(acme_sdk REQUIRED). For sources in C, add enable_language(C).
#
#   NPU_VENDOR_LOWERINGS           your lowerings; they win over the engine's for the same op
#   NPU_VENDOR_LOWERING_LIBRARIES  libraries that they link
#
# The driver, built if its sources are listed. Models are compiled for the emulator until the first
# of these is "vendor" (-DUSE_EXAMPLE_NPU_DRIVER decides for one build), or the option 'driver':
#
#   NPU_VENDOR_DEFAULT_DRIVER        "vendor" once your driver is what users need, in wheels too
#   NPU_VENDOR_DRIVER_SOURCES        sources that export npu_driver_run, and also npu_driver_build
#                                    unless the next variable is set
#   NPU_VENDOR_DRIVER_BUILD_SOURCES  sources of a build half in a separate library, which boards
#                                    don't need
#   NPU_VENDOR_DRIVER_LIBRARIES      what both libraries link: targets, or names of libraries
#   NPU_VENDOR_DRIVER_BUILD_LIBRARIES  what only the build half links
#   NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES, NPU_VENDOR_DRIVER_DEFINITIONS, NPU_VENDOR_DRIVER_OPTIONS
#                                    folders of headers, macros, and compiler options of both
#
# A second driver, such as one of a library beside an instruction set: it and the first each take what
# the other leaves. NPU_VENDOR_DEFAULT_DRIVER is "vendor" or "second", whichever is asked first.
#
#   NPU_VENDOR_SECOND_DRIVER_SOURCES, NPU_VENDOR_SECOND_DRIVER_BUILD_SOURCES,
#   NPU_VENDOR_SECOND_DRIVER_LIBRARIES  as those of the first
#
# NPU_CODEGEN is OFF in builds for boards. NPU_DRIVER is "vendor" or "emulator": list no sources in
# builds for the emulator if a machine lacks the SDK.

# set(NPU_VENDOR_LOWERINGS "${CMAKE_CURRENT_LIST_DIR}/lowerings/my_op.cc")
# set(NPU_VENDOR_DRIVER_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver/driver.cc")
