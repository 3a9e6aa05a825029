"""Writes each op of the catalogue as the lines of Python that rendered tables have for it.

Templates only join these lines, so that `copier copy` needs nothing of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .entries import RELATIONS, Entry

SNIPPETS = Path("template/_macros/ops.jinja")

Node = str | tuple[str, list[tuple[str, "Node"]], str]
"""Python: a text, or brackets as `(open, items, close)` with items `(prefix, node)`."""

_WIDTH = 100
_DTYPES = {
    "float32 float16": "FLOATS",
    "float32 float16 int32 int64": "WIDE",
    "float32 float16 int32 int64 int8": "SIGNED",
    "float32 float16 int32 int64 int8 uint8": "NUMBERS",
    "float32 float16 int32 int64 int8 uint8 int16": "NOT_BOOL",
    "float32 float16 int32 int64 int8 uint8 int16 bool": "ALL",
    "int8 uint8 int16": "INTEGERS",
}
"""Names of common sets of element types."""


def snippets(catalog: Mapping[str, Entry], documents: Mapping[str, Entry]) -> str:
    """Write the lines of all ops as a file of Jinja, whose strings they are.

    Parameters
    ----------
    catalog
        The ops, without violations.
    documents
        The files of the catalogue by family, as they are.

    Returns
    -------
    str
        The text of `SNIPPETS`.
    """
    parts: dict[str, dict[str, Any]] = {
        "catalog": {op: _asked(entry) for op, entry in catalog.items()},
        "dtypes": {name: f"{name} = {_literal(given.split())}" for given, name in _DTYPES.items()},
        "headings": {},
        "shared": {},
        "ops": {},
        "chains": {op: _offer(op, entry) for op, entry in catalog.items() if "chains" in entry},
    }
    for family in dict.fromkeys(entry["family"] for entry in catalog.values()):
        document = documents[family]
        parts["headings"][family] = f"    # ---- {document['.title']} ".ljust(_WIDTH, "-")
        pieces = {
            key[1:]: piece
            for key, piece in document.items()
            if key[0] == "." and isinstance(piece, dict)
        }
        sets = {key.upper(): pieces.pop(key) for key in [*pieces] if key.endswith("_attributes")}
        for name, attributes in sets.items():
            node: Node = ("{", _attributes(attributes, {}), "}")
            text = _lines(0, f"{name}: dict[str, Constraint] = ", node)[:-1]
            parts["shared"][name] = {"uses": [], "text": text}
        for name, piece in pieces.items():
            fields, uses = _fields(piece, {}, sets)
            text = _lines(0, f"{name} = ", ("partial(", [("", "Op"), *fields], ")"))[:-1]
            parts["shared"][name] = {"uses": uses, "text": text}
        for op, entry in catalog.items():
            if entry["family"] == family:
                parts["ops"][op] = {"family": family, **_op(op, entry, pieces, sets)}
    return "".join(
        [
            "{#- The ops in Python, which 'npu-scaffold reference --write' makes. -#}\n",
            *(f"{{%- set {name} = {_jinja(part)} -%}}\n" for name, part in parts.items()),
        ]
    )


def evaluate(op: str, entry: Entry, names: Mapping[str, object]) -> object:
    """Make the engine's `Op` of an entry, so that the engine judges it.

    Parameters
    ----------
    op, entry
        A name, and an entry of the right form.
    names
        Those of the engine's module `capability`.

    Returns
    -------
    object
        The `Op`.
    """
    sets = {name: tuple(given.split()) for given, name in _DTYPES.items()}
    fields, _ = _fields(entry, {}, {})
    return eval(_flat(("Op(", [*_names(op, entry), *fields], ")")), {**names, **sets})


def _names(op: str, entry: Entry) -> list[tuple[str, Node]]:
    return [("", _literal(text)) for text in (op, entry.get("relax")) if text]


def _op(
    op: str, entry: Entry, pieces: Mapping[str, Entry], sets: Mapping[str, Entry]
) -> dict[str, object]:
    """Return the lines of an op, and the names that they use of what its family shares."""
    name, piece = _largest(pieces, entry)
    fields, uses = _fields(entry, piece, sets)
    node: Node = (f"{name or 'Op'}(", [*_names(op, entry), *fields], ")")
    return {
        "uses": [name, *uses] if name else uses,
        "entry": _lines(4, "", node, entry["summary"]),
        "limits": _lines(4, f"{_literal(op)}: ", ("Limits(", _limits(entry), ")")),
    }


def _asked(entry: Entry) -> dict[str, object]:
    """Return what the questions need of an entry."""
    return {key: entry[key] for key in ("summary", "presets", "relax") if key in entry}


def _offer(op: str, entry: Entry) -> str:
    """Return the line that names the inputs and the chains of an op that is not selected."""
    inputs = _row(_literal(item["name"]) for item in entry["inputs"])
    return _lines(4, f"{_literal(op)}: ", _row([inputs, _chains(entry["chains"])]))


# ---- The layout of Python -----------------------------------------------------------------------


def _jinja(value: object) -> str:
    if isinstance(value, dict):
        return "{\n" + "".join(f"{_jinja(key)}: {_jinja(value[key])},\n" for key in value) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_jinja, value))}]"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literal(value: object) -> str:
    """Write a value of the catalogue; a list is a tuple."""
    if isinstance(value, str):
        quote = "'" if '"' in value and "'" not in value else '"'
        return quote + value.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote
    if isinstance(value, list | tuple):
        return _flat(_row(map(_literal, value)))
    return str(value)


def _row(nodes: Iterable[Node]) -> Node:
    return ("(", [("", node) for node in nodes], ")")


def _flat(node: Node) -> str:
    if isinstance(node, str):
        return node
    opening, items, closing = node
    comma = "," if opening == "(" and len(items) == 1 else ""
    return opening + ", ".join(prefix + _flat(item) for prefix, item in items) + comma + closing


def _lines(indent: int, prefix: str, node: Node, comment: str = "") -> str:
    """Write `<prefix><node>,` as ruff formats it, with a comment on the first line."""
    line = " " * indent + prefix + _flat(node) + ","
    note = f"  # {comment}" if comment else ""
    if isinstance(node, str) or not node[1] or len(line) <= _WIDTH:
        return line + (note if len(line + note) <= _WIDTH else "")
    opening, items, closing = node
    inner = [_lines(indent + 4, *item) for item in items]
    return "\n".join([" " * indent + prefix + opening + note, *inner, f"{' ' * indent}{closing},"])


# ---- What entries mean in Python ----------------------------------------------------------------


def _largest(pieces: Mapping[str, Entry], entry: Entry) -> tuple[str, Entry]:
    """Return the largest of some pieces that an entry contains, if any."""
    found = [item for item in pieces.items() if all(entry.get(k) == v for k, v in item[1].items())]
    return max(found, key=lambda item: len(item[1]), default=("", {}))


def _fields(
    entry: Entry, known: Entry, sets: Mapping[str, Entry]
) -> tuple[list[tuple[str, Node]], list[str]]:
    """Return the fields of `Op` that are not known, and the sets of attributes that they use."""
    own = {key: value for key, value in entry.items() if key not in known}
    name, base = _largest(sets, own.get("attributes", {}))

    def attributes(given: Entry) -> Node:
        items: list[tuple[str, Node]] = [("**", name)] if name else []
        items += _attributes(given, base)
        alone = len(items) == 1 and items[0][0] == "**"
        return items[0][1] if alone else ("{", items, "}")

    writers = {**_WRITERS, "attributes": attributes}
    found = [
        (f"{key}=", writers[key](own[key]))
        for key, default in _DEFAULTS.items()
        if own.get(key, default) != default
    ]
    return found, [name] if name else []


def _limits(entry: Entry) -> list[tuple[str, Node]]:
    """Return an entry's fields of `Limits`."""
    found: dict[str, Node] = {}
    for item in entry["inputs"]:
        given = [_dtypes(item["dtypes"])] if "dtypes" in item else []
        if item["ranks"]:
            given.append(("" if given else "ranks=") + _ranks(item["ranks"]))
        found[item["name"]] = f"Takes({', '.join(given)})"
    for name, constraint in entry["attributes"].items():
        if constraint != "any":
            found[name] = _constraint(constraint)
    for key in ("rules", "output_dtypes", "fuses"):
        if key in entry:
            found[key] = _WRITERS[key](entry[key])
    if "quantized" in entry:
        found["quantized"] = _dtypes(entry["quantized"].get("dtypes", ["int8", "uint8", "int16"]))
    return [(f"{key}=", node) for key, node in found.items()]


def _input(item: Entry) -> str:
    given = [_literal(item["name"])]
    if "dtypes" in item:
        given.append(_dtypes(item["dtypes"]))
    if item["ranks"]:
        given.append(("ranks=" if "like" in item else "") + _ranks(item["ranks"]))
    if "like" in item:
        given.append(f"like={_literal(item['like'])}")
    flags = {"constant": "constant", "tuple": "is_tuple", "weight": "weight"}
    given += [f"{word}=True" for key, word in flags.items() if item.get(key)]
    return f"Input({', '.join(given)})"


def _attributes(given: Entry, known: Entry) -> list[tuple[str, Node]]:
    """Return attributes that are not known; those of any and those of one value together."""
    free: list[tuple[str, Node]] = []
    fixed: list[tuple[str, Node]] = []
    others: list[tuple[str, Node]] = []
    for name, constraint in given.items():
        if name in known:
            continue
        if constraint == "any":
            free.append(("", _literal(name)))
        elif len(constraint.get("one_of", ())) == 1:
            fixed.append((f"{name}=", _literal(constraint["one_of"][0])))
        else:
            others.append((f"{_literal(name)}: ", _constraint(constraint, named=True)))
    calls: list[tuple[str, Node]] = [("**", ("anything(", free, ")"))] if free else []
    if fixed:
        calls.append(("**", ("only(", fixed, ")")))
    return calls + others


def _constraint(given: Entry, *, named: bool = False) -> Node:
    """Write what an attribute may be; if `named`, sets of element types have their names."""
    if "one_of" in given:
        values = given["one_of"]
        unset = len(values) > 1 and values[0] == ""
        name = _DTYPES.get(" ".join(map(str, values[unset:])))
        if name and named:
            return f"OneOf({_literal('') + ', ' if unset else ''}*{name})"
        return ("OneOf(", [("", _literal(value)) for value in values], ")")
    words = {"min": "", "max": "" if "min" in given else "max=", "not": "exclude="}
    return f"Range({', '.join(words[key] + _literal(value) for key, value in given.items())})"


def _rule(given: Entry) -> str:
    dtypes = f", {_dtypes(given['for'])}" if "for" in given else ""
    ((relation, (left, right)),) = ((key, value) for key, value in given.items() if key != "for")
    return f"{RELATIONS[relation]}({_literal(left)}, {_literal(right)}{dtypes})"


def _chains(given: Sequence[str | Sequence[str]]) -> Node:
    lines = (
        _literal(item) if isinstance(item, str) else _row(map(_literal, item)) for item in given
    )
    return _row(lines)


def _tolerance(given: str | Entry) -> str:
    if isinstance(given, str):
        return f"{given.capitalize()}()"
    ((kind, bounds),) = given.items()
    if isinstance(bounds, dict):
        return _call(kind.capitalize(), bounds)
    return f"{kind.capitalize()}({_literal(bounds)})"


def _call(name: str, fields: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in fields.items())})"


def _dtypes(given: Sequence[str]) -> str:
    return _DTYPES.get(" ".join(given)) or _literal(given)


def _ranks(given: Sequence[int]) -> str:
    first, last = given[0], given[-1]
    if len(given) > 1 and last - first == len(given) - 1:
        return f"range({f'{first}, ' if first else ''}{last + 1})"
    return _literal(given)


_WRITERS: dict[str, Callable[[Any], Node]] = {
    "engine": _literal,
    "inputs": lambda given: _row(map(_input, given)),
    "rules": lambda given: _row(map(_rule, given)),
    "operations": _literal,
    "output_dtypes": _dtypes,
    "chains": _chains,
    "emitted_by": _literal,
    "activation": _literal,
    "fuses": lambda given: _call("Fuses", given),
    "quantized": lambda given: _call("Quantized", given),
    "absorbs_transpose": _literal,
    "tolerance": _tolerance,
}
"""How each field of `Op` is written, but for the attributes: they may have a name."""

_DEFAULTS: dict[str, object] = {
    **{"engine": "vector", "inputs": [], "attributes": {}, "rules": [], "operations": None},
    **{
        "output_dtypes": [],
        "chains": [],
        "emitted_by": "",
        "activation": False,
        "fuses": {},
        "quantized": None,
    },
    **{"absorbs_transpose": [], "tolerance": "exact"},
}
"""The fields of `Op` in their order, and what they are if an entry does not name them."""
