# SPDX-License-Identifier: Apache-2.0
"""A vendor's overrides are used, and win."""

import importlib

import pytest
import tvm

import backend
from backend.engine.backend.passes import CANONICALIZATION
from support import SINGLE, needs_single, partition_for


@pytest.fixture
def passes(monkeypatch):
    """Set the contents of vendor/passes.py for a test."""
    module = importlib.import_module(f"{backend.__name__}.vendor.passes")

    def set_passes(**changes):
        for name, value in changes.items():
            monkeypatch.setattr(module, name, value)

    return set_passes


def model():
    return tvm.IRModule({SINGLE[0].symbol: SINGLE[0].model().function()})


@needs_single
def test_passes_of_the_vendor_run_before_and_after_the_engines(passes):
    seen = []

    def spy(name):
        def run(mod, context):
            seen.append(name)
            return mod

        return tvm.transform.module_pass(run, opt_level=0, name=name)

    @tvm.instrument.pass_instrument
    class Recorder:
        def run_before_pass(self, mod, info):
            if info.name == CANONICALIZATION[0].name:
                seen.append("engine")

    passes(BEFORE=[spy("before")], AFTER=[spy("after")])
    with tvm.transform.PassContext(instruments=[Recorder()]):
        partition_for(model())
    assert seen == ["before", "engine", "after"]


@needs_single
def test_a_pass_that_is_disabled_does_not_run(passes):
    names = []

    @tvm.instrument.pass_instrument
    class Recorder:
        def run_before_pass(self, mod, info):
            names.append(info.name)

    passes(DISABLED=["FoldConstants"])
    with tvm.transform.PassContext(instruments=[Recorder()]):
        partition_for(model())
    assert "FoldConstants" not in names
    assert "DropUnused" in names


@needs_single
def test_an_unknown_pass_cannot_be_disabled(passes):
    passes(DISABLED=["FoldConstant"])
    with pytest.raises(ValueError, match="did you mean 'FoldConstants'"):
        partition_for(model())
