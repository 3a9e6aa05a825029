# SPDX-License-Identifier: Apache-2.0
"""Options: their sources, what is refused, and their storage in artifacts."""

import json
import logging
import os
from dataclasses import fields

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import backend
from backend import Options
from backend.engine.backend.libraries import _library
from backend.engine.backend.settings import options as module
from backend.engine.backend.settings.driver_options import DRIVERS
from backend.engine.backend.shared.constraints import InOrder
from backend.engine.backend.table.capability import OneOf
from compiled_region import first
from support import (
    BACKEND,
    another_option,
    compile_for,
    needs_options,
    partition_for,
)

PREFIX = module.PREFIX
NAMES = [field.name for field in fields(Options) if field.metadata]
"""All options, including those of the drivers."""
BY_NAME = {field.name: field for field in fields(Options)}
OTHER = another_option(Options())
"""Options of the default driver: the tests clear the environment variables."""
SOME = {
    "timeout_ms": 60_000,
    "strict": True,
    "symbol_bounds": {"n": 8},
    "cache_dir": "somewhere",
    **OTHER,
}
NOT_KNOWN = r".* is not known to \w+ \(did you mean timeout_ms\?\); known: .*max_regions"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """Clear the user's environment variables, and forget earlier warnings."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setattr(module, "_reported", set())


def model():
    function = first().model().function()
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def values_of(name, generator):
    """Make up a value that the option may have."""
    field = BY_NAME[name]
    allowed, default = field.metadata["allowed"], getattr(Options(), name)
    if isinstance(default, bool):
        return bool(generator.integers(2))
    if isinstance(default, list):
        return [str(item) for item in generator.choice(["relax.add", "/head/*", "öäü"], 2)]
    if isinstance(allowed, OneOf | InOrder):
        return str(generator.choice(allowed.values))
    if isinstance(default, str):
        return str(generator.choice(["", "a folder", "öäü", '"', "a\\b"]))
    low, high = allowed.min, min(allowed.max or 2**40, 2**62)
    number = int(generator.choice([low, high, generator.integers(low, high + 1)]))
    return {"n": number, "batch size": low} if isinstance(default, dict) else number


def possible(seed):
    """Make up some options."""
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(NAMES)[: generator.integers(len(NAMES) + 1)]
    values = {str(name): values_of(name, generator) for name in chosen}
    driver = values.get("driver", Options().driver)
    for name in list(values):
        # Only options of the chosen driver may be set.
        if driver not in BY_NAME[name].metadata.get("by_role", [driver]):
            del values[name]
    if values.get("max_tile_bytes", 0) > values.get("scratchpad_bytes", 4 << 20):
        del values["max_tile_bytes"]
    return values


def toml(values):
    """Write options as TOML."""
    lines = []
    for name, value in sorted(values.items(), key=lambda item: isinstance(item[1], dict)):
        if isinstance(value, dict):
            lines.append(f"[{name}]")
            lines += [f"{json.dumps(key)} = {item}" for key, item in value.items()]
        else:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


# ---- Sources ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_all_sources_give_the_same_options(tmp_path, seed):
    values = possible(seed)
    expected = Options(**values)
    for name, value in values.items():
        assert getattr(expected, name) == value
    (tmp_path / "options.toml").write_text(toml(values), encoding="utf-8")
    (tmp_path / "options.json").write_text(json.dumps(values), encoding="utf-8")
    for source in (
        values,
        expected,
        expected.to_dict(),
        json.loads(json.dumps(expected.to_dict())),
        tvm_ffi.convert(values),  # RunCodegen passes this form.
        tmp_path / "options.toml",
        str(tmp_path / "options.json"),
    ):
        assert Options.load(source) == expected, source
    assert Options.load(None).merged(**values) == expected
    assert Options.from_dict(expected.to_dict()) == expected


def test_nothing_set_is_the_defaults():
    assert Options.load(None) == Options.load({}) == Options()
    assert Options().overrides == ()


def test_settings_override_options():
    loaded = Options.load({"timeout_ms": 2, "max_regions": 3}).merged(timeout_ms=4)
    assert (loaded.timeout_ms, loaded.max_regions) == (4, 3)
    with pytest.raises(RuntimeError, match="'strict'"):
        x = relax.Var("x", relax.TensorType((2,), "int64"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.bitwise_not(x)))
        partition_for(builder.get(), options={"strict": False}, strict=True)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "timeout_ms = 2"), ("a.json", '{"timeout_ms": 2}')]
)
def test_a_byte_order_mark_is_ignored(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert Options.load(tmp_path / name) == Options(timeout_ms=2)


def test_numbers_of_numpy_and_whole_floats_are_numbers():
    names = ("timeout_ms", "max_regions", "min_region_ops", "strict")
    given = (np.int32(2), np.float32(3), 2.0, np.bool_(True))
    loaded = Options(**dict(zip(names, given, strict=True)))
    found = [getattr(loaded, name) for name in names]
    assert found == [2, 3, 2, True]
    assert [type(value) for value in found] == [int, int, int, bool]


def test_paths_are_texts(tmp_path):
    assert Options(cache_dir=tmp_path).cache_dir == str(tmp_path)


def test_options_cannot_be_changed():
    with pytest.raises(AttributeError):
        Options().timeout_ms = 2


def test_all_options_are_listed_with_allowed_values():
    text = module.describe()
    assert {"timeout_ms", "on_decline"} <= set(NAMES)
    for name in NAMES:
        assert f"\n  {name} = " in text
        assert BY_NAME[name].metadata["about"] in text


# ---- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"timeout": 2}, f"'timeout'{NOT_KNOWN}"),
        ({"timeout_ms": -1}, "'timeout_ms' is -1; supported: a whole number, 0 to 2147483647"),
        ({"timeout_ms": 1 << 31}, "2147483648; supported: a whole number, 0 to 2147483647"),
        ({"timeout_ms": "two"}, "'two'; supported: a whole number"),
        ({"timeout_ms": True}, "True; supported: a whole number"),
        ({"timeout_ms": 1.5}, "1.5; supported: a whole number"),
        ({"timeout_ms": (1, 2)}, r"'timeout_ms' is .1, 2.; supported: a whole"),
        ({"timeout_ms": None}, "None; supported: a whole number"),
        ({"strict": 1}, "'strict' is 1; supported: true or false"),
        ({"on_decline": "maybe"}, "'on_decline' is 'maybe'; supported: host, error"),
        pytest.param(
            {"power_mode": 3},
            "'power_mode' is 3; supported: low, balanced, performance",
            marks=needs_options("power_mode", options=Options()),
        ),
        ({"dump": "all"}, "'all'; supported: none, graph, program"),
        ({"cache_dir": 3}, "'cache_dir' is 3; supported: a string"),
        ({"symbol_bounds": {"n": 0}}, "{'n': 0}; supported: names with a whole number each"),
        ({"symbol_bounds": {"n": True}}, "'symbol_bounds'"),
        ({"symbol_bounds": 3}, "'symbol_bounds' is 3"),
        pytest.param(
            {"max_tile_bytes": 2048, "scratchpad_bytes": 1024},
            "2048, more than the whole scratch",
            marks=needs_options("max_tile_bytes", "scratchpad_bytes", options=Options()),
        ),
        ({"overrides": ["strict"]}, r"overrides is \['strict'\]; only to_dict writes it"),
        ({"overrides": 3}, "overrides is 3; only to_dict writes it"),
        (
            {"overrides": [{"option": "timeout", "value": 2, "variable": "X"}]},
            "overrides is .*timeout.*; only to_dict",
        ),
        (
            {"overrides": [{"option": "timeout_ms", "value": -1, "variable": "X"}]},
            "'timeout_ms' is -1; supported",
        ),
    ],
)
def test_unsupported_values_are_refused(tmp_path, values, words):
    with pytest.raises(ValueError, match=words):
        Options.load(values)
    with pytest.raises(ValueError, match=words):
        partition_for(model(), options=values)
    with pytest.raises(ValueError, match=words):
        relax.transform.RunCodegen({BACKEND: values})(partition_for(model()))
    try:
        (tmp_path / "options.json").write_text(json.dumps(values))
    except TypeError:
        return
    with pytest.raises(ValueError, match=r"options\.json: .*" + words):
        compile_for(model(), options=tmp_path / "options.json")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("options.yml", "", "end in .toml or .json"),
        ("options.toml", "timeout_ms = ", "it is not TOML: "),
        ("options.toml", "timeout_ms = 1\ntimeout_ms = 2", "it is not TOML: "),
        ("options.json", "{", "it is not JSON: "),
        ("options.json", "[" * 100_000, "it is not JSON of options: too deep"),
        ("options.json", "[1]", "it holds a list"),
        ("options.json", '{"strict": true, "strict": false}', "'strict' is there twice"),
        ("missing.toml", None, "it cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_no_options_is_refused(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        Options.load(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize("source", [3, ["strict"], {"strict"}])
def test_anything_but_options_is_refused(source):
    with pytest.raises(ValueError, match=f"options is a {type(source).__name__}; supported: Opt"):
        partition_for(model(), options=source)


def test_an_unknown_setting_is_refused():
    for function in (partition_for, compile_for):
        with pytest.raises(ValueError, match="'timeout' is not known"):
            function(model(), timeout=2)
    with pytest.raises(ValueError, match=NOT_KNOWN):
        Options(timeout=2)


def test_a_bound_for_no_symbol_is_a_warning(caplog):
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"),), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.bitwise_not(x)))
    with caplog.at_level(logging.WARNING):
        partition_for(builder.get(), symbol_bounds={"n": 7})
        assert not caplog.records
        options = {"symbol_bounds": {"n": 7, "batch": 3}}
        compile_for(partition_for(builder.get(), **options), **options)
    (record,) = caplog.records
    assert record.getMessage().endswith(" names batch, which the model does not have; it has: n")


# ---- The environment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timeout_ms", "2", 2),
        ("cache_bytes", "0x100000", 1 << 20),
        ("strict", "True", True),
        ("bind_constants", "off", False),
        ("dump", "graph", "graph"),
        ("cache_dir", "a folder", "a folder"),
        ("symbol_bounds", "n=8, m=16", {"n": 8, "m": 16}),
        *((name, str(value), value) for name, value in OTHER.items()),
    ],
)
def test_a_variable_overrides_and_is_reported_once(monkeypatch, caplog, name, text, value):
    variable = PREFIX + name.upper()
    monkeypatch.setenv(variable, text)
    with caplog.at_level(logging.WARNING):
        for loaded in (
            Options.load(None),
            Options.load({"max_regions": 2}),
            Options.load(None).merged(**{name: getattr(Options(), name)}),
        ):
            assert getattr(loaded, name) == value
            (override,) = loaded.overrides
            assert (override.option, override.value, override.variable) == (name, value, variable)
            assert Options.from_dict(json.loads(json.dumps(loaded.to_dict()))) == loaded
    assert [record.getMessage() for record in caplog.records] == [
        f"{variable} sets the option '{name}' of {BACKEND} to {value!r}"
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("TIMEOUT_MS", "two", "'timeout_ms' is 'two'; supported: a whole number, 0 to 2147483647"),
        ("TIMEOUT_MS", "", "'timeout_ms' is ''"),
        ("STRICT", "maybe", "'strict' is 'maybe'; supported: true or false"),
        ("SYMBOL_BOUNDS", "n", "'symbol_bounds' is {'n': ''}"),
        ("TIMEOUT", "2", f"sets no option of {BACKEND} .did you mean {PREFIX}TIMEOUT_MS"),
        ("ZZZ", "2", f"sets no option of {BACKEND}; supported: {PREFIX}"),
    ],
)
def test_a_variable_with_an_invalid_value_is_refused(monkeypatch, name, text, words):
    monkeypatch.setenv(PREFIX + name, text)
    with pytest.raises(ValueError, match=f"The environment variable {PREFIX}{name}.*{words}"):
        compile_for(model())


def test_variables_of_others_are_left_alone(monkeypatch):
    monkeypatch.setenv(PREFIX + "DEVICE", "0")
    monkeypatch.setenv(PREFIX + "PRO_THREADS", "x")

    class Point:
        name = f"{BACKEND}_pro"

    monkeypatch.setattr(module, "entry_points", lambda group: [Point])
    assert Options.load(None) == Options()


def test_a_value_that_is_set_later_is_not_an_override():
    override = {"option": "timeout_ms", "value": 2, "variable": "X"}
    overridden = Options.load({"overrides": [override]})
    assert overridden.timeout_ms == 2
    later = overridden.merged(timeout_ms=3)
    assert (later.timeout_ms, later.overrides) == (3, ())


def test_only_current_variables_are_reported(monkeypatch, caplog):
    """Variables from the time when an artifact was made are not reported with its options."""
    old = [{"option": "timeout_ms", "value": 2, "variable": f"{PREFIX}TIMEOUT_MS"}]
    monkeypatch.setenv(f"{PREFIX}MAX_REGIONS", "1")
    with caplog.at_level(logging.WARNING):
        loaded = Options.load({"overrides": old})
    assert (loaded.timeout_ms, loaded.max_regions) == (2, 1)
    assert {item.option for item in loaded.overrides} == {"timeout_ms", "max_regions"}
    assert [record.getMessage() for record in caplog.records] == [
        f"{PREFIX}MAX_REGIONS sets the option 'max_regions' of {BACKEND} to 1"
    ]


# ---- On the way to the driver and to the artifact -----------------------------------------------


def read_back(executable, path):
    executable.export_library(str(path))
    return backend.read_artifacts(path)


def test_options_are_stored_in_the_artifact_and_read_back(monkeypatch, tmp_path):
    ((name, value),) = OTHER.items()
    variable = PREFIX + name.upper()
    monkeypatch.setenv(variable, str(value))
    settings = {"max_regions": 2, "symbol_bound": 7, "dump_dir": str(tmp_path / "secret")}
    (artifact,) = read_back(compile_for(model(), **settings), tmp_path / "model.so")
    found = Options.from_dict(artifact.options)
    assert (found.max_regions, found.symbol_bound, getattr(found, name)) == (2, 7, value)
    (override,) = found.overrides
    assert (override.option, override.variable) == (name, variable)
    assert artifact.manifest["overrides"] == [
        {"option": name, "value": value, "variable": variable}
    ]
    # Options that only concern this machine are not stored.
    assert found.dump_dir == Options().dump_dir
    assert "secret" not in json.dumps(artifact.to_dict())


def test_options_of_run_codegen_are_those_of_the_artifact(tmp_path):
    partitioned = partition_for(model())
    for options in (SOME | {"cache_dir": str(tmp_path / "cache")}, {}, None):
        codegen = relax.transform.RunCodegen({BACKEND: options} if options is not None else {})
        compiled = tvm.compile(codegen(partitioned), target="llvm")
        (artifact,) = read_back(compiled, tmp_path / "model.so")
        assert artifact.manifest["options"] == Options(**(options or {})).recorded()


def test_the_options_of_drivers_are_those_that_they_declare():
    described = {}
    for role, driver in DRIVERS.items():
        assert set(Options(driver=role).driver_options()) == {
            str(spec["key"]) for spec in driver["options"]
        }
        for spec in driver["options"]:
            described.setdefault(str(spec["key"]), spec)
    assert set(described) == {name for name in NAMES if BY_NAME[name].metadata["group"] == "driver"}
    text = module.describe()
    for name, spec in described.items():
        assert f"{name} = " in text
        assert str(spec["about"]) in text
        default = getattr(Options(), name)
        assert str(int(default) if isinstance(default, bool) else default) == str(spec["default"])


@pytest.mark.skipif("vendor" in DRIVERS, reason="programs can be made for it")
def test_a_driver_that_makes_no_programs_is_refused_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(_library, "find", lambda role: None)
    with pytest.raises(ValueError, match="no driver of yours was built: NPU_VENDOR_DRIVER_SOURCES"):
        Options.load({"driver": "vendor"})
    monkeypatch.setattr(_library, "find", lambda role: tmp_path / role)
    with pytest.raises(ValueError, match="driver_build has no function npu_driver_build"):
        Options.load({"driver": "vendor"})
    with pytest.raises(ValueError, match=r"'other'; supported: \w+\.$"):
        Options.load({"driver": "other"})


def test_programs_are_for_a_driver_that_is_installed():
    assert Options().driver == next(iter(DRIVERS))
    with pytest.raises(ValueError, match="'driver' is 'other'; supported"):
        Options(driver="other")


@pytest.mark.parametrize("name", list(Options().driver_options()))
def test_the_driver_accepts_exactly_the_allowed_values_of_its_options(name):
    decline_reason = tvm_ffi.get_global_func(f"{BACKEND}.codegen.decline_reason")
    function = model()["main"]
    allowed = BY_NAME[name].metadata["allowed"]
    good = allowed.values if isinstance(allowed, OneOf) else [allowed.min, allowed.max]
    bad = ["", "other"] if isinstance(allowed, OneOf) else [allowed.min - 1, allowed.max + 1, "x"]
    room = {"scratchpad_bytes": str(1 << 40)}
    others = {key: room.get(key, value) for key, value in Options().driver_options().items()}
    for value in [*good, *bad]:
        driver = {**others, name: str(value)}
        reason = decline_reason(function, "", driver, {"n": 3}, False, ())
        assert (name in reason) == (value in bad), (value, reason)
