# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import pytest

import tvm_example_npu as backend


def pytest_report_header():
    return f"backend: {backend.__name__} {backend.__version__}"


def pytest_sessionstart():
    """Say once, rather than for each file, that the backend does not load."""
    try:
        callable(backend.offload_report)
    except RuntimeError as error:
        pytest.exit(str(error), returncode=3)


def pytest_collection_finish(session):
    """Note which parameters are asked for, so that no others are compiled."""
    import support

    for item in session.items:
        if hasattr(item, "callspec"):
            support.SELECTED.update(map(str, item.callspec.params.values()))
