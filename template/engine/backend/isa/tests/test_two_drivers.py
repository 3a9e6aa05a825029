# SPDX-License-Identifier: Apache-2.0
"""One model on two drivers: instructions for what the other leaves, in the order of the option."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import support
from backend.engine.backend.profiling.profiles import Profile
from backend.engine.backend.regions import composites
from backend.engine.backend.report.report import Report
from backend.engine.backend.settings import driver_options
from support import backend, build, compile_for, partition_for, variable

W = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")
X = np.random.default_rng(1).standard_normal((8, 16)).astype("float32")
WANTED = np.tanh(np.maximum(X @ W, 0) @ W) + 1


@pytest.fixture(autouse=True)
def no_products_on_the_emulator(monkeypatch):
    """Let the emulator decline what it would take: products, alone and with what follows."""
    monkeypatch.delenv(f"{support.BACKEND.upper()}_DRIVER", raising=False)
    answer = composites.answer_about

    def ask(function, driver, *given):
        if driver == "emulator" and "R.matmul(" in function.script():
            return composites.Answer("the library has no matmul")
        return answer(function, driver, *given)

    monkeypatch.setattr(composites, "answer_about", ask)


def model():
    x = variable("x", *X.shape)
    w = relax.const(W)

    def body(emit):
        first = emit(op.nn.relu(emit(op.matmul(x, w))))
        second = emit(op.tanh(emit(op.matmul(first, w))))
        return emit(op.add(second, relax.const(np.float32(1))))

    return build([x], body)


def placed(report):
    """The driver of each op, in the order of the model."""
    drivers = {region.symbol: region.driver for region in report.regions}
    return [(op.op.removeprefix("relax."), drivers.get(op.region)) for op in report.ops]


def test_each_driver_takes_what_those_before_it_leave():
    report = backend.offload_report(partition_for(model(), driver="emulator,vendor"))
    assert placed(report) == [
        *(("matmul", "vendor"), ("nn.relu", "emulator")),
        *(("matmul", "vendor"), ("tanh", "emulator"), ("add", "emulator")),
    ]
    first, relu, *_ = report.ops
    assert first.left_by == {
        "emulator": "[declined] the driver declines it: the library has no matmul"
    }
    assert not relu.left_by and first.reason is None
    assert relu.reads == (0,) and report.ops[2].reads == (1,)
    assert "regions: 4, on 'vendor': 2 ops, on 'emulator': 3 ops" in report.summary
    text = str(report)
    assert "; 'emulator' left it: [declined] the driver declines it: the library has no" in text
    assert f"region {first.region} on 'vendor': 1 op" in text
    assert Report.from_json(report.to_json()) == report


def test_the_option_says_in_which_order():
    report = backend.offload_report(partition_for(model(), driver="vendor,emulator"))
    assert {driver for _, driver in placed(report)} == {"vendor"} and len(report.regions) == 1
    alone = backend.offload_report(partition_for(model(), driver="emulator"))
    assert [op.op for op in alone.on_host] == ["relax.matmul"] * 2
    assert not alone.regions[0].driver and not alone.on_host[0].left_by


def test_what_all_leave_has_all_reasons():
    x = variable("x", *X.shape)
    mod = build([x], lambda emit: emit(op.matmul(x, relax.const(W))))
    named = {"keep_on_host": ["matmul"], "strict_except": ["matmul"]}
    (product,) = backend.offload_report(
        partition_for(mod, driver="emulator,vendor", strict=True, **named)
    ).ops
    assert product.reason == "the option keep_on_host names it" and not product.left_by
    (product,) = backend.offload_report(
        partition_for(mod, driver="emulator,vendor", min_region_ops=2)
    ).ops
    assert product.reason.endswith("min_region_ops is 2")
    assert list(product.left_by) == ["emulator"]
    with pytest.raises(RuntimeError, match=r"(?s)strict.*min_region_ops is 2"):
        partition_for(mod, driver="emulator,vendor", min_region_ops=2, strict=True)
    partition_for(model(), driver="emulator,vendor", strict=True, on_decline="error")


def test_values_and_one_profile_of_both(tmp_path):
    mod = model()
    partitioned = partition_for(mod, driver="emulator,vendor")
    executable = compile_for(mod, driver="emulator,vendor")
    path = tmp_path / "model.so"
    executable.export_library(str(path))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(X)).numpy(), WANTED, atol=1e-5)
    manifests = [artifact.manifest for artifact in backend.read_artifacts(path)]
    assert sorted(it["options"]["driver"] for it in manifests) == ["emulator"] * 2 + ["vendor"] * 2
    assert all(not it["overrides"] for it in manifests)

    profile = backend.profile(str(path), X, report=partitioned)
    assert [region.driver for region in profile.regions] == ["vendor", "emulator"] * 2
    # The chip of the instructions has no frequency, the emulator has.
    assert profile.unit == "cycles" and profile.ticks_per_us == 0
    assert " cycles on 'vendor', " in profile.summary and " us) on 'emulator'" in profile.summary
    shares = {"vendor": 0.0, "emulator": 0.0}
    drivers = {region.symbol: region.driver for region in profile.regions}
    for each in profile.ops:
        shares[drivers[each.region]] += each.attributed_share
    assert shares == pytest.approx({"vendor": 1, "emulator": 1}, abs=1e-4)
    assert " on 'vendor'" in str(profile) and " on 'emulator'" in str(profile)
    again = Profile.from_json(profile.to_json())
    assert again.summary == profile.summary


def test_regions_of_two_drivers_wait_for_each_other():
    x = variable("x", *X.shape)
    w = relax.const(W)

    def body(emit):
        left, right = emit(op.matmul(x, w)), emit(op.tanh(x))
        return emit(op.add(emit(op.exp(left)), emit(op.matmul(right, w))))

    executable = compile_for(build([x], body), driver="emulator,vendor")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    wanted = np.exp(X @ W) + np.tanh(X) @ W
    for _ in range(3):
        found = machine["main"](tvm.runtime.tensor(X)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_options_of_both_drivers(monkeypatch):
    options = backend.Options.load({"driver": "vendor,emulator", "cores": 2, "sdk_timeout_s": 7})
    assert options.drivers == ("vendor", "emulator")
    ours, others = (options.for_driver(role) for role in options.drivers)
    assert "cores" not in ours.recorded() and others.recorded()["cores"] == 2
    assert ours.recorded()["sdk_timeout_s"] == 7 and "sdk_timeout_s" not in others.recorded()
    for bad in ("vendor,vendor", "vendor,third", "vendor,", ""):
        with pytest.raises(ValueError, match="or several in order, as '"):
            backend.Options.load({"driver": bad})
    monkeypatch.setenv(f"{support.BACKEND.upper()}_DRIVER", "emulator,vendor")
    options = backend.Options.load({"driver": "emulator", "sdk_timeout_s": 7})
    assert options.drivers == ("emulator", "vendor") and len(options.overrides) == 1
    assert options.for_driver("vendor").recorded_overrides() == []
    assert json.dumps(options.to_dict())


def test_a_second_driver_that_was_not_built_is_refused_with_advice(monkeypatch):
    monkeypatch.delitem(driver_options.DRIVERS, "second", raising=False)
    monkeypatch.setattr(driver_options._library, "find", lambda role: None)
    advice = driver_options.advise_on_driver("second,vendor")
    assert "NPU_VENDOR_SECOND_DRIVER_SOURCES in vendor/vendor.cmake names its sources" in advice


def test_a_region_of_a_driver_that_is_not_here_is_refused():
    partitioned = partition_for(model(), driver="emulator,vendor")
    functions = {
        var: function.with_attr("driver", "third")
        if "driver" in (function.attrs or {})
        else function
        for var, function in partitioned.functions_items()
    }
    mod = tvm.IRModule(functions, attrs=partitioned.attrs)
    with pytest.raises(ValueError, match="'third' took the region .* is not installed here"):
        relax.transform.RunCodegen({support.BACKEND: {}})(mod)
