# SPDX-License-Identifier: Apache-2.0
"""What the installed TVM has changed of what the backend needs."""
