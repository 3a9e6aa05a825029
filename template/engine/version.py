# SPDX-License-Identifier: Apache-2.0
"""The version of the engine: that of the npu-scaffold from which it came."""

VERSION = "0.5.0.dev0"
