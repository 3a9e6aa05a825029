# SPDX-License-Identifier: Apache-2.0
"""Lets tests import the backend as `backend`, whatever its package is called."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

ROOT = Path(__file__).parents[2]


class BackendUnderTest(MetaPathFinder, Loader):
    """Finds the backend by its short name."""

    # In a TVM checkout, the folder of these tests has the backend's name.
    package = next(
        (path.parent.name for path in ROOT.glob("python/*/_backend.py")),
        f"tvm.relax.backend.contrib.{Path(__file__).parent.name}",
    )

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.split(".")[0] == "backend" else None

    def create_module(self, spec):
        module = importlib.import_module(self.package + spec.name.removeprefix("backend"))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        # The import has stored the spec of the real name.
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, BackendUnderTest())
