# SPDX-License-Identifier: Apache-2.0
"""What every part uses: names of the backend, texts, files, and the terminal."""
