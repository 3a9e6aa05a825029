# SPDX-License-Identifier: Apache-2.0
"""What runs beside a vendor's SDK, in an interpreter that has neither TVM nor this package."""
