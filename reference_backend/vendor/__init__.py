# SPDX-License-Identifier: Apache-2.0
"""What is the vendor's: no update of the template writes, renames or deletes anything here."""
