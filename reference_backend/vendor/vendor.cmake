# SPDX-License-Identifier: Apache-2.0
#
# What the vendor adds to the build.

# Lowerings of your own: one for an op that the engine has too wins over the engine's.
# set(NPU_VENDOR_LOWERINGS "${CMAKE_CURRENT_LIST_DIR}/lowerings/my_op.cc")
