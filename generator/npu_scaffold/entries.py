"""The form of an op's entry in the catalogue; each violation is a sentence.

What a well-formed entry says, the engine judges: see `catalog_problems`.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import did_you_mean

ELEMENTS = ("pointwise", "moved", "joined", "chosen")
PRESETS = ("cnn", "transformer")
RELATIONS = {
    "equal": "Equal",
    "not_equal": "NotEqual",
    "at_least": "AtLeast",
    "at_most": "AtMost",
    "one_of": "Among",
}
"""The relations of rules: how each is called here, and in the engine."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """The names that entries may have: those of ops, and those of the engine.

    Parameters
    ----------
    ops
        The ops of the catalogue.
    dtypes
        The element types.
    engines
        What runs an op.
    inside
        What an op computes with between dequantize and quantize.
    tolerances
        Kind of a tolerance -> its bounds -> is it required.
    """

    ops: Collection[str]
    dtypes: Collection[str]
    engines: Collection[str]
    inside: Collection[str]
    tolerances: Mapping[str, Mapping[str, bool]]


Check = Callable[[Any, str, Entry, Known], Iterator[str]]


def entry_problems(op: object, entry: object, known: Known) -> Iterator[str]:
    """Check one entry.

    Parameters
    ----------
    op
        Its name.
    entry
        What the file has under it.
    known
        The names that it may have.

    Yields
    ------
    str
        A sentence per violation: the key, and what is allowed there.
    """
    if not isinstance(op, str) or not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", op):
        yield "the op id must be in snake case."
    if not isinstance(entry, dict):
        yield "the entry must be a mapping."
        return
    yield from _keys(entry, _ENTRY, "")
    if entry.keys().isdisjoint(("relax", "chains", "emitted_by")):
        yield "the key 'relax' is missing."
    for key, (_, check) in _ENTRY.items():
        if key in entry and check is not None:
            yield from check(entry[key], key, entry, known)


def _keys(
    value: dict[str, object], allowed: dict[str, tuple[bool, Any]] | Collection[str], where: str
) -> Iterator[str]:
    """Check the keys of a mapping; `allowed` may mark required ones."""
    prefix = f"{where}: " if where else ""
    for key in value:
        if key not in allowed:
            yield (
                f"{prefix}'{key}' is not a key here{did_you_mean(key, allowed)}; "
                f"allowed are {', '.join(allowed)}."
            )
    if isinstance(allowed, dict):
        for key, (required, _) in allowed.items():
            if required and key not in value:
                yield f"{prefix}the key '{key}' is missing."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(pattern: str, description: str) -> Check:
    def check(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield f"{key}: {value!r} is not {description}."

    return check


def _one_of(choices: Collection[str]) -> Check:
    def check(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
        if value not in choices:
            yield (
                f"{key}: {value!r} is not one of {', '.join(choices)}"
                f"{did_you_mean(value, choices)}."
            )

    return check


def _engine(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    yield from _one_of(known.engines)(value, key, entry, known)


def _list_of(choices: Collection[str]) -> Check:
    def check(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{key}: {value!r} is not a list of {', '.join(choices)}."
            return
        for item in value:
            yield from _one_of(choices)(item, key, entry, known)

    return check


def _dtypes(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    yield from _list_of(known.dtypes)(value, key, entry, known)


def names_in(entry: Entry, key: str) -> list[str]:
    """Return the names of inputs or attributes, even if the entry has other errors."""
    value = entry.get(key)
    if isinstance(value, list):
        return [item["name"] for item in value if isinstance(item, dict) and "name" in item]
    return list(value) if isinstance(value, dict) else []


def _inputs(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, list) or not value or not all(isinstance(i, dict) for i in value):
        yield f"{key}: it must be a list of mappings, one for each tensor argument."
        return
    seen: list[str] = []
    for index, item in enumerate(value):
        where = f"{key}[{index}]"
        yield from _keys(item, _INPUT, where)
        name = item.get("name")
        if not isinstance(name, str) or not name.isidentifier():
            yield f"{where}: name: {name!r} is not the name of an argument."
        elif name in seen:
            yield f"{where}: name: '{name}' is there twice."
        if ("dtypes" in item) == ("like" in item):
            yield f"{where}: it must have either 'dtypes' or 'like'."
        if "dtypes" in item:
            yield from _dtypes(item["dtypes"], f"{where}: dtypes", entry, known)
        if "like" in item and item["like"] not in seen:
            yield f"{where}: like: {item['like']!r} is not an input before it."
        ranks = item.get("ranks", [])
        if not isinstance(ranks, list) or not all(_is_integer(r) and 0 <= r <= 8 for r in ranks):
            yield f"{where}: ranks: {ranks!r} is not a list of integers from 0 to 8."
        for flag in ("constant", "tuple", "weight"):
            if not isinstance(item.get(flag, False), bool):
                yield f"{where}: {flag}: {item[flag]!r} is neither true nor false."
        seen.append(str(name))


def _attributes(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{key}: it must be a mapping of names to what is supported."
        return
    for name, constraint in value.items():
        where = f"{key}: {name}"
        if constraint == "any":
            continue
        if not isinstance(constraint, dict) or not constraint:
            allowed = ", ".join(_CONSTRAINTS)
            yield f"{where}: {constraint!r} is neither 'any' nor a mapping of {allowed}."
            continue
        yield from _keys(constraint, _CONSTRAINTS, where)
        for bound in ("min", "max"):
            if bound in constraint and not _is_number(constraint[bound]):
                yield f"{where}: {bound}: {constraint[bound]!r} is not a number."
        for members in ("not", "one_of"):
            if members in constraint and (
                not isinstance(constraint[members], list) or not constraint[members]
            ):
                yield f"{where}: {members}: {constraint[members]!r} is not a list of values."
        low, high = constraint.get("min"), constraint.get("max")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            yield f"{where}: min {low} is above max {high}, so no value is supported."


def _rules(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{key}: it must be a list of rules, for example {{equal: [attr.a, attr.b]}}."
        return
    for index, rule in enumerate(value):
        where = f"{key}[{index}]"
        found = [name for name in rule if name != "for"] if isinstance(rule, dict) else []
        if len(found) != 1:
            allowed = ", ".join(RELATIONS)
            yield f"{where}: beside 'for', it must have one key, which is one of {allowed}."
            continue
        yield from _keys(rule, (*RELATIONS, "for"), where)
        if "for" in rule:
            yield from _dtypes(rule["for"], f"{where}: for", entry, known)
        relation, operands = found[0], rule[found[0]]
        if not isinstance(operands, list) or len(operands) != 2:
            yield f"{where}: {relation}: it must compare two operands."
            continue
        if relation == "one_of" and not isinstance(operands[1], list):
            yield f"{where}: one_of: the second operand must be a list."


def _fuses(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{key}: it must be a mapping of scale, bias and residual."
        return
    yield from _keys(value, ("scale", "bias", "residual"), key)
    if "bias" in value and not _is_integer(value["bias"]):
        yield f"{key}: bias: {value['bias']!r} is not the axis of a dimension."
    for flag in ("scale", "residual"):
        yield from _flag(value.get(flag, False), f"{key}: {flag}", entry, known)


def _quantized(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{key}: it must be a mapping, perhaps with channel or inside."
        return
    yield from _keys(value, ("channel", "dtypes", "inside"), key)
    if "dtypes" in value:
        yield from _dtypes(value["dtypes"], f"{key}: dtypes", entry, known)
    if value.get("inside", "reals") not in known.inside:
        yield f"{key}: inside: {value['inside']!r} is none of {', '.join(known.inside)}."
    if "channel" in value and not _is_integer(value["channel"]):
        yield f"{key}: channel: {value['channel']!r} is not the axis of a dimension."


def _flag(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{key}: {value!r} is neither true nor false."


def _number(value: Any, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not _is_integer(value) or value < 1:
        yield f"{key}: {value!r} is not the number of an op: one more than the highest so far."


def _results(value: Any, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not _is_integer(value) or value < 1:
        yield f"{key}: {value!r} is not a number of results."


def _chains(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, list) or not value:
        yield f"{key}: it must be a list of expressions."


def _activation(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    yield from _flag(value, key, entry, known)
    if len(names_in(entry, "inputs")) != 1:
        yield f"{key}: only an op of one tensor can be fused behind another one."


def _indices(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{key}: {value!r} is not a list of indices of inputs."


def _tolerance(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if isinstance(value, str):
        yield from _one_of(("exact", "elementwise"))(value, key, entry, known)
        return
    if not isinstance(value, dict) or len(value) != 1:
        kinds = ", ".join(known.tolerances)
        yield f"{key}: it must be 'exact', or one of {kinds} with its bounds."
        return
    yield from _keys(value, tuple(known.tolerances), key)
    ((kind, given),) = value.items()
    if kind not in known.tolerances:
        return
    allowed = {name: (required, None) for name, required in known.tolerances[kind].items()}
    # A bare value is the first bound.
    bounds = given if isinstance(given, dict) else {next(iter(allowed)): given}
    yield from _keys(bounds, allowed, f"{key}: {kind}")
    for name, bound in bounds.items():
        where = f"{key}: {kind}: {name}"
        if name == "count":
            continue  # A formula.
        if name == "accumulator":
            types = ("float16", "float32", "float64", "output")
            yield from _one_of(types)(bound, where, entry, known)
        elif name == "shifted":
            yield from _one_of(names_in(entry, "inputs"))(bound, where, entry, known)
        elif not _is_number(bound) or bound < 0:
            yield f"{where}: {bound!r} is not a number from 0 on (write 1.0e-5)."


def _expression(value: Any, key: str, entry: Entry, known: Known) -> Iterator[str]:
    try:
        tree = ast.parse(value, mode="eval")
    except (SyntaxError, TypeError) as error:
        yield f"{key}: {value!r} is not a Python expression: {error}."
        return
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {
        *("np", *names_in(entry, "inputs"), *names_in(entry, "attributes")),
        *(node.id for node in names if isinstance(node.ctx, ast.Store)),
        *(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)),
        *dir(builtins),
    }
    for node in names:
        # A function may be a helper of the tests.
        if id(node) not in called and node.id not in defined:
            yield f"{key}: '{node.id}' is neither an input nor an attribute, nor np."


def _tensor(value: object, where: str, known: Known) -> Iterator[str]:
    shape = value
    if isinstance(value, dict):
        yield from _keys(value, _TENSOR, where)
        shape = value.get("shape")
        if "dtype" in value and value["dtype"] not in known.dtypes:
            yield f"{where}: dtype: {value['dtype']!r} is not one of {', '.join(known.dtypes)}."
        for bound in ("low", "high"):
            if bound in value and not _is_number(value[bound]):
                yield f"{where}: {bound}: {value[bound]!r} is not a number."
        if not isinstance(value.get("constant", False), bool):
            yield f"{where}: constant: {value['constant']!r} is neither true nor false."
    if not isinstance(shape, list) or not all(
        d == "n" or (_is_integer(d) and d >= 0) for d in shape
    ):
        yield f"{where}: {shape!r} is not a shape of sizes and n, for example [n, 3, 8, 8]."


def _cases(value: object, key: str, entry: Entry, known: Known) -> Iterator[str]:
    if not isinstance(value, list) or not value or not all(isinstance(c, dict) for c in value):
        yield f"{key}: it must be a list of mappings, one for each test."
        return
    allowed = {"refused": _REFUSED, "benchmarks": _BENCHMARK}.get(key, _CASE)
    inputs, attributes = names_in(entry, "inputs"), names_in(entry, "attributes")
    tuples = {i["name"] for i in entry.get("inputs", []) if isinstance(i, dict) and i.get("tuple")}
    names: list[Any] = []
    for index, case in enumerate(value):
        where = f"{key}[{index}]" if "name" not in case else f"{key}: {case['name']}"
        yield from _keys(case, allowed, where)
        if case.get("name") in names:
            yield f"{where}: another case has that name."
        names.append(case.get("name"))
        given = case.get("inputs", {})
        if not isinstance(given, dict):
            yield f"{where}: inputs: it must be a mapping of inputs to shapes."
            given = {}
        elif "inputs" in case:
            for name in inputs:
                if name not in given:
                    yield f"{where}: inputs: '{name}' is missing."
        for name, tensor in given.items():
            if name not in inputs:
                yield (
                    f"{where}: inputs: '{name}' is not an input{did_you_mean(name, inputs)}; "
                    f"the inputs are {', '.join(inputs)}."
                )
            elif name in tuples and not isinstance(tensor, list):
                yield f"{where}: inputs: {name}: it must be a list of tensors."
            else:
                for one in tensor if name in tuples else [tensor]:
                    yield from _tensor(one, f"{where}: inputs: {name}", known)
        given = case.get("attributes", {})
        if not isinstance(given, dict):
            yield f"{where}: attributes: it must be a mapping of attributes to values."
            continue
        for name in given:
            if name not in attributes:
                yield (
                    f"{where}: attributes: '{name}' is not listed{did_you_mean(name, attributes)}."
                )
        if not isinstance(case.get("note", ""), str):
            yield f"{where}: note: {case['note']!r} is not a text."
        if not isinstance(case.get("host", True), bool):
            yield f"{where}: host: {case['host']!r} is neither true nor false."
        if "dtypes" in case:
            yield from _dtypes(case["dtypes"], f"{where}: dtypes", entry, known)
        if key == "refused" and not isinstance(case.get("reason", ""), str):
            yield f"{where}: reason: {case['reason']!r} is not a text."
        if not isinstance(case.get("torch", ""), str):
            yield f"{where}: torch: {case['torch']!r} is not an expression."
        if "onnx" in case and not (isinstance(case["onnx"], dict) and "op" in case["onnx"]):
            yield f"{where}: onnx: it must be a mapping with the op of a node and its attributes."
        if "without" in case and case["without"] not in known.ops:
            yield f"{where}: without: {case['without']!r} is not an op of the catalogue."


# Key: is it required, and its check.
_ENTRY: dict[str, tuple[bool, Check | None]] = {
    "id": (True, _number),
    "family": (False, None),
    "relax": (False, _text(r"relax(\.\w+)+", "a Relax op, for example relax.nn.conv2d")),
    "summary": (True, _text(r"[^\n{}]{1,80}", "one line of at most 80 characters without braces")),
    "engine": (True, _engine),
    "elements": (False, _list_of(ELEMENTS)),
    "presets": (True, _list_of(PRESETS)),
    "inputs": (True, _inputs),
    "attributes": (True, _attributes),
    "rules": (False, _rules),
    "operations": (False, None),
    "results": (False, _results),
    "output_dtypes": (False, _dtypes),
    "chains": (False, _chains),
    "emitted_by": (False, None),
    "activation": (False, _activation),
    "fuses": (False, _fuses),
    "quantized": (False, _quantized),
    "absorbs_transpose": (False, _indices),
    "tolerance": (True, _tolerance),
    "numpy": (True, _expression),
    "benchmarks": (False, _cases),
    "cases": (True, _cases),
    "refused": (False, _cases),
}
_INPUT = {
    "name": (True, None),
    "dtypes": (False, None),
    "like": (False, None),
    "ranks": (True, None),
    "constant": (False, None),
    "tuple": (False, None),
    "weight": (False, None),
}
_CONSTRAINTS = ("min", "max", "not", "one_of")
_TENSOR = ("shape", "dtype", "low", "high", "values", "constant")
_BASIC = {"name": (True, None), "inputs": (True, None), "attributes": (False, None)}
_CASE = {**_BASIC, "dtypes": (False, None), "host": (False, None), "note": (False, None)}
_BENCHMARK = {
    **_BASIC,
    "torch": (False, None),
    "onnx": (False, None),
    "host": (False, None),
    "note": (False, None),
}
_REFUSED = {
    **_BASIC,
    "reason": (True, None),
    "without": (False, None),
    "host": (False, None),
    "note": (False, None),
}
