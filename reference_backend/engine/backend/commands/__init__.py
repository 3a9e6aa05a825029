# SPDX-License-Identifier: Apache-2.0
"""The commands, a module for each subject; `main` parses the command line.

Only the modules that a command needs are imported: where the runtime alone is installed, `run`,
`inspect` and `check` work, and help appears at once.
"""
