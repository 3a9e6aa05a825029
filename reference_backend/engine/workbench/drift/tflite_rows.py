# SPDX-License-Identifier: Apache-2.0
"""What TVM's importer, with our converters in it, reads of the operators of TFLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...backend.importers.attributes.readings import Readings, Row
from ...backend.importers.attributes.tflite_schemas import fields_of, tables_of_options
from ...backend.importers.tflite.operators import Converter
from .abstract_values import Node, Reads
from .following import Follower

_NAMED_OTHERWISE = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MULTINOMIAL": "RandomOptions",
    "PACK": "PackOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "REDUCE_ALL": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "SUM": "ReducerOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
}
"""The options of operators that have another name."""


def find_readings(converters: Mapping[str, Callable[..., Any]] | None = None) -> Readings:
    """Return what is read of each operator."""
    if converters is None:
        converters = Converter(None, None, None, None).convert_map
    rows = {op: _row(op, _reads(converter)) for op, converter in sorted(converters.items())}
    return {"importer": rows}


def _options_of(op: str) -> str:
    """Return the name of the options of an operator; "" if it has none."""
    called = f"{op.replace('_', '')}OPTIONS"
    same_name = next((name for name in tables_of_options() if name.upper() == called), "")
    return _NAMED_OTHERWISE.get(op, same_name)


def _reads(converter: Callable[..., Any]) -> Reads:
    follower = Follower()
    follower.follow(converter, op=frozenset({Node()}))
    return follower.reads


def _row(op: str, reads: Reads) -> Row:
    used = {name.partition(".")[0] for name in reads.attributes if "." in name}
    tables = sorted({*(used & tables_of_options().keys()), _options_of(op)} - {""})
    names = {
        f"{table}.{field}": f"{table}.{field}" in reads.attributes
        for table in tables
        for field in fields_of(table)
    }
    places = {p for start, stop in reads.ranges if stop is not None for p in range(start, stop)}
    later = min((start for start, stop in reads.ranges if stop is None), default=None)
    inputs = [f"input {place}" for place in sorted(places) if later is None or place < later]
    if later is not None:
        inputs.append(f"inputs from {later}")
    return {
        "reads": [*(name for name, is_read in names.items() if is_read), *inputs],
        "ignores": [name for name, is_read in names.items() if not is_read],
    }
