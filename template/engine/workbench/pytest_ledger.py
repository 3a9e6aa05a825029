# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: tests fail as `vendor/expected_failures.toml` says, and are found.

The conftest.py beside `vendor/` loads it, for tests of `vendor/tests` that run alone, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Find the tests of both wings by the paths of earlier releases: all in `engine/tests`."""
    start = config.invocation_params.dir
    config.args = [found for name in config.args for found in _places(name, start)]


def _places(name: str, start: Path) -> list[str]:
    file, colons, test = name.partition("::")
    path = start / file
    if path.is_file():
        return [name]
    folder, rest = (path, "") if path.name == "tests" else (path.parent, path.name)
    wings = (folder.parent / wing / folder.name / rest for wing in ("backend", "workbench"))
    return [f"{place}{colons}{test}" for place in wings if place.exists()] or [name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that the ledger names fail, and nothing else: one that passes fails the run."""
    # It imports TVM, without which pytest shall also start.
    from .conformance import ledger

    try:
        entries = [entry for entry in ledger.read_ledger() if entry.suite == ledger.TESTS]
    except ledger.LedgerError as error:
        raise pytest.UsageError(str(error)) from None
    names = {f"{item.path.name}::{item.name}": item for item in items}
    files = {name.partition("::")[0] for name in names}
    for entry in entries:
        found = [item for name, item in names.items() if entry.names(name)]
        if not found and entry.case.partition("::")[0] in files:
            raise pytest.UsageError(f"The ledger has '{entry.case}', which is no test.")
        for item in found:
            item.add_marker(pytest.mark.xfail(reason=entry.reason, strict=True))
