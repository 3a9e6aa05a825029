# SPDX-License-Identifier: Apache-2.0
"""Options: where they come from, what is refused, and that artifacts know them."""

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
from backend.engine import options as module
from backend.engine.capability import OneOf
from support import BACKEND, OPS, TABLE, Case, compile_for, partition_for

PREFIX = module.PREFIX
NAMES = [field.name for field in fields(Options) if field.metadata]
"""All options, also those of the drivers."""
BY_NAME = {field.name: field for field in fields(Options)}
CASE = next(Case(op, OPS[op]["cases"][0]) for op in OPS if TABLE.get(op))
SOME = {
    "threads": 2,
    "strict": True,
    "power_mode": "low",
    "symbol_bounds": {"n": 8},
    "cache_dir": "somewhere",
}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """No variable of the user's, and nothing reported so far."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setattr(module, "_reported", set())


def model():
    return tvm.IRModule({"main": CASE.model().function().with_attr("global_symbol", "main")})


def values_of(name, generator):
    """Make up a value that the option may have."""
    field = BY_NAME[name]
    allowed, default = field.metadata["allowed"], getattr(Options(), name)
    if isinstance(default, bool):
        return bool(generator.integers(2))
    if isinstance(allowed, OneOf):
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
        # Of the options of drivers, only those of the chosen one may be set.
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
        tvm_ffi.convert(values),  # What arrives from RunCodegen.
        tmp_path / "options.toml",
        str(tmp_path / "options.json"),
    ):
        assert Options.load(source) == expected, source
    assert Options.load(None).merged(**values) == expected
    assert Options.from_dict(expected.to_dict()) == expected


def test_nothing_set_is_the_defaults():
    assert Options.load(None) == Options.load({}) == Options()
    assert Options().overrides == ()


def test_settings_go_before_options():
    loaded = Options.load({"threads": 2, "pace": 3}).merged(threads=4)
    assert (loaded.threads, loaded.pace) == (4, 3)
    with pytest.raises(RuntimeError, match="'strict'"):
        x = relax.Var("x", relax.TensorType((2,), "int64"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.bitwise_not(x)))
        partition_for(builder.get(), options={"strict": False}, strict=True)


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "threads = 2"), ("a.json", '{"threads": 2}')]
)
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert Options.load(tmp_path / name) == Options(threads=2)


def test_numbers_of_numpy_and_whole_floats_are_numbers():
    loaded = Options(threads=np.int32(2), pace=np.float32(3), cores=2.0, strict=np.bool_(True))
    assert (loaded.threads, loaded.pace, loaded.cores, loaded.strict) == (2, 3, 2, True)
    assert {type(loaded.threads), type(loaded.pace), type(loaded.cores)} == {int}


def test_paths_are_texts(tmp_path):
    assert Options(cache_dir=tmp_path).cache_dir == str(tmp_path)


def test_options_cannot_be_changed():
    with pytest.raises(AttributeError):
        Options().threads = 2


def test_all_options_are_listed_with_what_they_may_be():
    text = module.describe()
    for name in NAMES:
        assert f"\n  {name} = " in text
        assert BY_NAME[name].metadata["about"] in text


# ---- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"thread": 2}, r"'thread' is not known to \w+ \(did you mean threads\?\); known: .*pace"),
        ({"threads": 0}, "'threads' is 0; supported: a whole number, 1 to 64"),
        ({"threads": 65}, "65; supported: a whole number, 1 to 64"),
        ({"threads": "two"}, "'two'; supported: a whole number"),
        ({"threads": True}, "True; supported: a whole number"),
        ({"threads": 1.5}, "1.5; supported: a whole number"),
        ({"threads": (1, 2)}, r"'threads' is .1, 2.; supported: a whole"),
        ({"threads": None}, "None; supported: a whole number"),
        ({"strict": 1}, "'strict' is 1; supported: true or false"),
        ({"on_decline": "maybe"}, "'on_decline' is 'maybe'; supported: host, error"),
        ({"power_mode": 3}, "'power_mode' is 3; supported: low, balanced, performance"),
        ({"dump": "all"}, "'all'; supported: none, graph, program"),
        ({"cache_dir": 3}, "'cache_dir' is 3; supported: a text"),
        ({"symbol_bounds": {"n": 0}}, "{'n': 0}; supported: names with a whole number each"),
        ({"symbol_bounds": {"n": True}}, "'symbol_bounds'"),
        ({"symbol_bounds": 3}, "'symbol_bounds' is 3"),
        ({"max_tile_bytes": 2048, "scratchpad_bytes": 1024}, "2048, more than the whole scratch"),
        ({"overrides": ["threads"]}, r"overrides is \['threads'\]; it is what to_dict has written"),
        ({"overrides": 3}, "overrides is 3; it is what to_dict has written"),
        (
            {"overrides": [{"option": "thread", "value": 2, "variable": "X"}]},
            "overrides is .*thread.*; it is what",
        ),
        (
            {"overrides": [{"option": "threads", "value": 0, "variable": "X"}]},
            "'threads' is 0; supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path, values, words):
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
        ("options.toml", "threads = ", "it is not TOML: "),
        ("options.toml", "threads = 1\nthreads = 2", "it is not TOML: "),
        ("options.json", "{", "it is not JSON: "),
        ("options.json", "[" * 100_000, "it is not JSON of options: too deep"),
        ("options.json", "[1]", "it holds a list"),
        ("options.json", '{"threads": 1, "threads": 2}', "'threads' is there twice"),
        ("missing.toml", None, "it cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_no_options_is_refused(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        Options.load(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.parametrize("source", [3, ["threads"], {"threads"}])
def test_what_are_no_options_is_refused(source):
    with pytest.raises(ValueError, match=f"options is a {type(source).__name__}; supported: Opt"):
        partition_for(model(), options=source)


def test_a_setting_that_is_not_known_is_refused():
    for function in (partition_for, compile_for):
        with pytest.raises(ValueError, match="'thread' is not known"):
            function(model(), thread=2)
    words = r"'thread' is not known .* mean threads\?\); known: .*pace"
    with pytest.raises(ValueError, match=words):
        Options(thread=2)


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
        ("threads", "2", 2),
        ("scratchpad_bytes", "0x100000", 1 << 20),
        ("strict", "True", True),
        ("bind_constants", "off", False),
        ("precision", "float16", "float16"),
        ("cache_dir", "a folder", "a folder"),
        ("symbol_bounds", "n=8, m=16", {"n": 8, "m": 16}),
    ],
)
def test_a_variable_overrides_and_is_reported_once(monkeypatch, caplog, name, text, value):
    variable = PREFIX + name.upper()
    monkeypatch.setenv(variable, text)
    with caplog.at_level(logging.WARNING):
        for loaded in (
            Options.load(None),
            Options.load({"pace": 2}),
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
        ("THREADS", "two", "'threads' is 'two'; supported: a whole number, 1 to 64"),
        ("THREADS", "", "'threads' is ''"),
        ("STRICT", "maybe", "'strict' is 'maybe'; supported: true or false"),
        ("SYMBOL_BOUNDS", "n", "'symbol_bounds' is {'n': ''}"),
        ("THREAD", "2", f"sets no option of {BACKEND} .did you mean {PREFIX}THREADS"),
        ("ZZZ", "2", f"sets no option of {BACKEND}; supported: {PREFIX}"),
    ],
)
def test_a_variable_that_sets_nothing_possible_is_refused(monkeypatch, name, text, words):
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


def test_a_value_that_is_set_later_is_no_override():
    overridden = Options.load({"overrides": [{"option": "threads", "value": 2, "variable": "X"}]})
    assert overridden.threads == 2
    later = overridden.merged(threads=3)
    assert (later.threads, later.overrides) == (3, ())


def test_only_what_the_environment_says_now_is_reported(monkeypatch, caplog):
    """Not what it said when an artifact was made, whose options are read back."""
    old = [{"option": "threads", "value": 2, "variable": f"{PREFIX}THREADS"}]
    monkeypatch.setenv(f"{PREFIX}PACE", "1")
    with caplog.at_level(logging.WARNING):
        loaded = Options.load({"overrides": old})
    assert (loaded.threads, loaded.pace) == (2, 1)
    assert {item.option for item in loaded.overrides} == {"threads", "pace"}
    assert [record.getMessage() for record in caplog.records] == [
        f"{PREFIX}PACE sets the option 'pace' of {BACKEND} to 1"
    ]


# ---- On the way to the driver and to the artifact -----------------------------------------------


def read_back(executable, path):
    executable.export_library(str(path))
    return backend.read_artifacts(path)


def test_options_are_stored_in_the_artifact_and_read_back(monkeypatch, tmp_path):
    monkeypatch.setenv(PREFIX + "POWER_MODE", "low")
    settings = {"threads": 2, "symbol_bound": 7, "dump_dir": str(tmp_path / "secret")}
    (artifact,) = read_back(compile_for(model(), **settings), tmp_path / "model.so")
    found = Options.from_dict(artifact.options)
    assert (found.threads, found.symbol_bound, found.power_mode) == (2, 7, "low")
    (override,) = found.overrides
    assert (override.option, override.variable) == ("power_mode", PREFIX + "POWER_MODE")
    assert artifact.manifest["overrides"] == [
        {"option": "power_mode", "value": "low", "variable": PREFIX + "POWER_MODE"}
    ]
    # What concerns this machine alone is not shipped.
    assert found.dump_dir == Options().dump_dir
    assert "secret" not in json.dumps(artifact.to_dict())


def test_options_of_run_codegen_are_those_of_the_artifact(tmp_path):
    partitioned = partition_for(model())
    for options in (SOME | {"cache_dir": str(tmp_path / "cache")}, {}, None):
        codegen = relax.transform.RunCodegen({BACKEND: options} if options is not None else {})
        compiled = tvm.compile(codegen(partitioned), target="llvm")
        (artifact,) = read_back(compiled, tmp_path / "model.so")
        assert artifact.manifest["options"] == Options(**(options or {})).recorded()


def test_the_options_of_drivers_are_what_they_say_themselves():
    described = {}
    for role, driver in module.DRIVERS.items():
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


def test_programs_are_for_a_driver_that_is_installed():
    assert Options().driver == next(iter(module.DRIVERS))
    with pytest.raises(ValueError, match="'driver' is 'other'; supported"):
        Options(driver="other")


@pytest.mark.parametrize("name", list(Options().driver_options()))
def test_the_driver_takes_what_its_options_may_be_and_nothing_else(name):
    decline_reason = tvm_ffi.get_global_func(f"{BACKEND}.codegen.decline_reason")
    function = CASE.model().function()
    allowed = BY_NAME[name].metadata["allowed"]
    good = allowed.values if isinstance(allowed, OneOf) else [allowed.min, allowed.max]
    bad = ["", "other"] if isinstance(allowed, OneOf) else [allowed.min - 1, allowed.max + 1, "x"]
    for value in [*good, *bad]:
        driver = {**Options().driver_options(), "scratchpad_bytes": str(1 << 40), name: str(value)}
        reason = decline_reason(function, "", driver, {"n": 3}, False)
        assert (name in reason) == (value in bad), (value, reason)
