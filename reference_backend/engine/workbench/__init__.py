# SPDX-License-Identifier: Apache-2.0
"""What a vendor works with and never ships; `backend` finds it by entry points."""
