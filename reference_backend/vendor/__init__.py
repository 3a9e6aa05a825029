# SPDX-License-Identifier: Apache-2.0
"""The vendor's files: no update of the template writes, renames or deletes anything here."""
