# SPDX-License-Identifier: Apache-2.0
"""Reads decoders: one module, with a function for each number of tokens that it takes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tvm
from tvm import relax

from ..importers.sizes import sizes_of
from ..ir.calls import items_of
from ..ir.states import NoStates, declared_in
from ..shared.problem import Problem
from .reading import ModelFile, Shapes, main_of, read_model, with_bfloat16

_CHUNK = ("input_ids", "position_ids")


def read_decoder(
    paths: Sequence[Path],
    chunks: Sequence[int],
    capacity: int,
    shapes: Shapes,
    bfloat16: str | None = None,
) -> tvm.IRModule:
    """Read a decoder of an ONNX file with open sizes, or of programs of PyTorch.

    `chunks`: how many tokens functions of an ONNX file take; a program has its own number.
    `capacity`: how many tokens the cache of an ONNX file has room for.
    `shapes`: sizes of an ONNX file's inputs, where others are asked for.
    `bfloat16`: the type that tensors of bfloat16 in a program get; None for the usual one.
    """
    functions: dict[str, relax.Function] = {}
    for path in paths:
        is_onnx = path.suffix.lower() == ".onnx"
        file = read_model(path, shapes if is_onnx else {})
        if bfloat16:
            file = with_bfloat16(file, bfloat16)
        for chunk in chunks if is_onnx else (0,):
            function = _function_of(_with_states(file, chunk, capacity) if is_onnx else file)
            name = f"{path.stem}_{chunk}" if is_onnx else path.stem
            name = "".join(letter if letter.isalnum() else "_" for letter in name)
            if name in functions:
                raise Problem(
                    f"{path} becomes the function '{name}', as another program does; give it "
                    "another file name."
                )
            functions[name] = _with_last_scores(function).with_attr("global_symbol", name)
    return tvm.IRModule(functions)


def _function_of(file: ModelFile) -> relax.Function:
    try:
        function = main_of(file.imported({}))
    except Problem as problem:
        cause = problem.__cause__
        if not isinstance(cause, NoStates):
            raise
        raise Problem(
            f"{file.path} keeps nothing from one call to the next, so that it cannot continue a "
            f"text: {cause.why}"
        ) from None
    if not declared_in(function):
        raise Problem(
            f"{file.path} keeps nothing from one call to the next, so that it cannot continue a "
            "text: export the decoder with its cache, as a buffer that the program changes."
        )
    return function


def _with_last_scores(function: relax.Function) -> relax.Function:
    """Return a function whose first result has the scores behind the last token alone.

    A pass computes no others then: see `passes/rows.py`.
    """
    *blocks, block = items_of(function.body.blocks)
    *bindings, last = items_of(block.bindings)
    results = getattr(last, "value", None)
    is_last = last.var.same_as(function.body.body) and isinstance(block, relax.DataflowBlock)
    if not isinstance(results, relax.Tuple) or not is_last:
        return function
    scores, *kept = items_of(results.fields)
    sizes = sizes_of(scores.ty) or []
    count = sizes[-2] if len(sizes) > 1 else None
    if count in (None, 1):
        return function
    normalize = relax.BlockBuilder().normalize
    axis = scores.ty.ndim - 2
    call = normalize(relax.op.strided_slice(scores, [axis], [count - 1], [count]))
    sliced = relax.DataflowVar("last_scores", call.ty)
    results = normalize(relax.Tuple([sliced, *kept]))
    result = relax.Var(last.var.name, results.ty)
    added = [relax.VarBinding(sliced, call), relax.VarBinding(result, results)]
    body = relax.SeqExpr([*blocks, relax.DataflowBlock([*bindings, *added])], result)
    return relax.Function(function.params, body, results.ty, function.is_pure, function.attrs)


def _with_states(file: ModelFile, chunk: int, capacity: int) -> ModelFile:
    """Return an ONNX file that is read for a number of tokens, with its caches as states."""
    from ..importers import from_onnx

    def read(content: object) -> tvm.IRModule:
        sizes = _sizes(content, chunk, capacity)
        return from_onnx(content, states=True, shape_dict=sizes, sanitize_input_names=False)

    return replace(file, importer=read)


def _sizes(model: object, chunk: int, capacity: int) -> dict[str, list[int]]:
    """Return the sizes of inputs for one text, and a number of tokens."""
    from onnx import ModelProto
    from onnx.inliner import inline_local_functions

    from ..importers.onnx.input_sizes import inputs_of
    from ..importers.onnx.states import growing_axes, pairs_of

    assert isinstance(model, ModelProto)
    sizes = {}
    graph = (inline_local_functions(model) if model.functions else model).graph
    pairs = pairs_of(graph, True)
    grows = bool(growing_axes(graph, pairs))
    # A past that grows has no room for the last token, and the mask has it, too.
    before = max(capacity - 1, 1) if grows else capacity
    for name, value in inputs_of(graph).items():
        given = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        last = chunk if name in _CHUNK else before
        if grows and name not in (*_CHUNK, *pairs):
            last += chunk
        for at, size in enumerate(given):
            if not size:
                given[at] = 1 if at == 0 and len(given) > 1 else last
        sizes[name] = given
    return sizes
