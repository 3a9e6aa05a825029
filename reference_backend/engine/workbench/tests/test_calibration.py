# SPDX-License-Identifier: Apache-2.0
"""Calibration data: what enters each region, and what is refused."""

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import backend
from backend.engine.backend.regions.partition import compile_partitioned
from backend.engine.backend.settings.driver_options import DRIVERS
from backend.engine.backend.settings.options import Options
from backend.engine.backend.shared.backend import BACKEND
from support import build, compile_for, needs, partition_for, run_command, variable

pytestmark = [
    needs("add", dtype="float32", variable=True),
    pytest.mark.usefixtures("bound_constants", "both_sums_taken"),
]
DRIVER = Options.load(None).driver
CHOSEN = DRIVERS[DRIVER]
X, Y = (variable(name, 2, 3) for name in "xy")
op = relax.op


def samples(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        {name: random.standard_normal((2, 3)).astype("float32") for name in "xy"}
        for _ in range(count)
    ]


def model():
    """Two sums on the NPU, with a sine on the host between them."""

    def body(emit):
        first = emit(op.add(X, Y))
        return emit(op.add(emit(op.sin(first)), X))

    return build([X, Y], body)


@pytest.fixture(scope="module")
def regions():
    partitioned = partition_for(model(), keep_on_host=["sin"])
    return len(backend.offload_report(partitioned).regions)


@pytest.fixture
def both_sums_taken(regions):
    if regions != 2:
        pytest.skip("the chip has no sums of 2 x 3 real numbers")


class Asked(list):
    """What the driver saw of regions with samples; it declines the first for `reasons`."""

    reasons = ()


@pytest.fixture
def seen(monkeypatch):
    """Let the driver take samples, and record them."""
    monkeypatch.setitem(DRIVERS, DRIVER, {**dict(CHOSEN.items()), "takes_samples": True})
    name = f"{BACKEND}.codegen.decline_reason"
    original = tvm_ffi.get_global_func(name)
    asked = Asked()

    def ask(function, *others):
        if "samples" not in function.attrs:
            return original(function, *others)
        asked.append([tensor.numpy() for tensor in function.attrs["samples"]])
        if len(asked) <= len(asked.reasons):
            return asked.reasons[len(asked) - 1]
        return original(function.without_attr("samples"), *others)

    tvm_ffi.register_global_func(name, ask, override=True)
    yield asked
    tvm_ffi.register_global_func(name, original, override=True)


def test_each_region_gets_what_enters_it(seen):
    data = samples(4)
    partitioned = partition_for(model(), calibration_data=data, keep_on_host=["sin"])
    assert len(backend.offload_report(partitioned).regions) == 2
    x, y = (np.stack([batch[name] for batch in data]) for name in "xy")
    for found, expected in zip(seen, ((x, y), (np.sin(x + y), x)), strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    # For the codegen, too.
    kept = [
        function.attrs["samples"]
        for _, function in partitioned.functions_items()
        if "samples" in (function.attrs or {})
    ]
    assert sorted(str(item[0].numpy()) for item in kept) == sorted(str(item[0]) for item in seen)


def test_ops_of_a_declined_region_are_asked_about_with_data(seen):
    def body(emit):
        return emit(op.add(emit(op.add(X, Y)), X))

    seen.reasons = ["too wide for its data"]
    data = samples(4)
    partition_for(build([X, Y], body), calibration_data=data)
    whole, first, second, *_ = seen
    x, y = (np.stack([batch[name] for batch in data]) for name in "xy")
    assert len(whole) == 2
    np.testing.assert_array_equal(first[0], x)
    np.testing.assert_allclose(second[0], x + y, rtol=1e-6)


def test_without_data_the_driver_sees_none(seen):
    partition_for(model())
    assert not seen


def test_an_array_is_a_batch_of_a_model_of_one_input(seen):
    mod = build([X], lambda emit: emit(op.add(X, X)))
    partition_for(mod, calibration_data=[np.ones((2, 3), "float32")] * 4)
    (found,) = seen
    assert [item.shape for item in found] == [(4, 2, 3)]


def open_model():
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64"), 3], "float32"))
    return build([x], lambda emit: emit(op.add(x, x)))


@pytest.mark.parametrize(
    ("make", "data", "why"),
    [
        (model, [], "calibration_data is empty"),
        (model, samples(1)[0], "calibration_data is one dict; supported: an iterable of batches"),
        (model, [{"x": np.ones((2, 3), "float32")}], "batch 0: for 'x'; the model's inputs are"),
        (
            model,
            [*samples(1), {name: np.ones((2, 4), "float32") for name in "xy"}],
            "batch 1: 'x' has the shape (2, 4); the model takes (2, 3)",
        ),
        (
            model,
            [{name: np.full((2, 3), np.nan, "float32") for name in "xy"}],
            "'x' has NaN or infinity in it",
        ),
        (
            open_model,
            [np.ones((2, 3), "float32")],
            "regions are calibrated for fixed sizes. Fix them when the model is imported",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused_before_any_work(seen, make, data, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        partition_for(make(), calibration_data=data)
    assert not seen


takes_none = pytest.mark.skipif(bool(CHOSEN["takes_samples"]), reason="the driver takes samples")


@takes_none
def test_a_driver_that_takes_no_data_says_so(tmp_path):
    why = f"The driver '{DRIVER}' takes no calibration data: it compiles what the model says."
    with pytest.raises(ValueError, match=re.escape(why)):
        compile_for(model(), calibration_data=samples(4))
    path, data = tmp_path / "model.json", tmp_path / "data.npz"
    path.write_text(tvm.ir.save_json(model()))
    np.savez(data, **{name: np.stack([item[name] for item in samples(4)]) for name in "xy"})
    output = tmp_path / "model.so"
    code, _, errors = run_command("compile", path, "--calibration", data, "-o", output)
    assert code == 1 and why in errors and "Traceback" not in errors
    assert not output.exists()
    code, _, errors = run_command("compile", path, "--calibration", tmp_path / "absent.npz")
    assert code == 1 and "absent.npz" in errors


@takes_none
def test_a_module_with_data_for_another_driver_is_refused(seen):
    options = Options.load(None)
    mod = partition_for(model(), calibration_data=samples(4))
    with pytest.raises(ValueError, match="the calibration data: the driver .* has no set_samples"):
        compile_partitioned(mod, options)


def test_a_file_of_samples_reaches_the_driver(seen, tmp_path):
    path, data = tmp_path / "model.json", tmp_path / "data.npz"
    path.write_text(tvm.ir.save_json(model()))
    given = samples(3)
    np.savez(data, **{name: np.stack([item[name] for item in given]) for name in "xy"})
    code, _, errors = run_command("report", path, "--calibration", data, "--keep-on-host", "sin")
    assert code == 0, errors
    assert "NOTE: The calibration data has 6 samples." in errors
    assert "UserWarning" not in errors
    np.testing.assert_array_equal(seen[0][0], [item["x"] for item in given])
    np.savez(data, **{name: np.ones((4, 2, 4), "float32") for name in "xy"})
    code, _, errors = run_command("report", path, "--calibration", data)
    assert code == 1 and "Traceback" not in errors
    assert "batch 0: 'x' has the shape (2, 4); the model takes (2, 3)" in errors
