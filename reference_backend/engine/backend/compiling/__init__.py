# SPDX-License-Identifier: Apache-2.0
"""From regions to artifacts: codegen, the compile cache, and models on several NPUs."""
