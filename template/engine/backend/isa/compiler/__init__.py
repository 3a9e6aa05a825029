# SPDX-License-Identifier: Apache-2.0
"""Makes programs of instructions out of regions, with TVM's loops."""
