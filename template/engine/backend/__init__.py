# SPDX-License-Identifier: Apache-2.0
"""What runs in a customer's program: from a model to a library, and the reports on it."""
