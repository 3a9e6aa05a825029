# SPDX-License-Identifier: Apache-2.0
"""The part of a backend that is the same in all backends. An update replaces it: do not edit it."""
