# SPDX-License-Identifier: Apache-2.0
"""The report of where each op runs, and why."""
