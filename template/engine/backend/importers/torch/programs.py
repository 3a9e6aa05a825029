# SPDX-License-Identifier: Apache-2.0
"""Reads exported programs: what TVM's importer cannot read, or reads wrongly, has rules here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    TensorArgument,
)

from ...ir.states import Buffers
from ..attributes.torch_unread import require_arguments
from . import (
    arithmetic,
    functions,
    images,
    indexing,
    pools,
    products,
    quantized_ops,
    reductions,
    shapes,
)
from .call import Call, Rule, op_name, refusal_of
from .module_names import Importer
from .states import decomposed, read_buffers, with_states

if TYPE_CHECKING:
    import tvm
    from tvm import relax

RULES: dict[str, Rule] = {
    **quantized_ops.RULES,
    **arithmetic.RULES,
    **functions.RULES,
    **images.RULES,
    **indexing.RULES,
    **pools.RULES,
    **products.RULES,
    **reductions.RULES,
    **shapes.RULES,
}
"""What converts an op in place of TVM's importer, by the op's name without the overload."""

_NAMESPACES = ("quantized_decomposed", "torchao", "quantized", "pt2e_quant")
"""Libraries of quantized ops; only some ops of the first two are supported."""

_STAND_INS = ("float32", "float16", "bfloat16")


def read(
    program: torch.export.ExportedProgram, bfloat16: str, options: Mapping[str, Any]
) -> tvm.IRModule:
    """Read a program; `from_exported_program` of the package documents it."""
    options = dict(options)
    if bfloat16 not in _STAND_INS:
        raise ValueError(f"bfloat16={bfloat16!r}; supported are {', '.join(_STAND_INS)}")
    given = dict(options.pop("custom_convert_map", None) or {})
    for node in _nodes(program):
        _check_type(node)
    if options.pop("run_ep_decomposition", True) and not _has_sparse(program):
        program = decomposed(program, _decompositions(program))
    _check_inputs(program)
    changed = {*program.graph_signature.buffers_to_mutate.values()}
    program, kept = with_states(program)
    buffers = Buffers(read_buffers(program), changed - {state.name for state in kept})
    convert = _Converters(program, bool(options.get("keep_params_as_input")))
    ours = {}
    for node in (node for node in _nodes(program) if node.op == "call_function"):
        _check_op(node, given)
        if node.target.__name__ not in given:
            require_arguments(node, op_name(node) in RULES)
        if op_name(node) in RULES:
            ours[node.target.__name__] = convert
    return Importer(bfloat16).read(program, {**ours, **given}, options, kept, buffers)


def _nodes(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """Return the nodes of a program and of its branches."""
    for module in program.graph_module.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def _is_quantized(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and (
        getattr(node.target, "namespace", "") in _NAMESPACES or op_name(node) in quantized_ops.RULES
    )


def _decompositions(program: torch.export.ExportedProgram) -> dict[Any, Any]:
    """Return what is taken apart before a program is read."""
    table = torch.export.default_decompositions()
    # PyTorch's parts of it have sizes such as n // (n // 2), on which TVM spends minutes.
    table.pop(torch.ops.aten.pixel_unshuffle.default, None)
    # As an index_put, it would take places from the end.
    table.pop(torch.ops.aten.index_copy.default, None)
    quantized_ops = {node.target for node in _nodes(program) if _is_quantized(node)}
    if quantized_ops:
        # Some ops of torchao would be taken apart; they have converters here.
        for target in (
            *quantized_ops,
            torch.ops.aten.linear.default,
            torch.ops.aten.matmul.default,
        ):
            table.pop(target, None)
    return dict(table)


def _has_sparse(program: torch.export.ExportedProgram) -> bool:
    """Whether a program has sparse tensors, of which PyTorch takes nothing apart."""
    tensors = (*program.state_dict.values(), *program.constants.values())
    return any(
        isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided for tensor in tensors
    )


# ---- What is refused ----------------------------------------------------------------------------


def _check_type(node: torch.fx.Node) -> None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return
    kind = str(value.dtype).removeprefix("torch.")
    if kind.startswith(("float4", "float8", "complex")):
        raise refusal_of(
            node,
            f"elements of type {kind} are not supported; supported are floats of 16, 32 and 64 "
            "bits, and integers",
        )


_READ = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def _check_inputs(program: torch.export.ExportedProgram) -> None:
    """Refuse a program that takes more than tensors, such as the order of ops with effects."""
    for spec in program.graph_signature.input_specs:
        if spec.kind in _READ:
            _check_argument(spec)
            continue
        users = [
            f"torch node {user.name!r} ({user.args[1] if len(user.args) > 1 else user.target})"
            for node in program.graph.nodes
            if node.op == "placeholder" and node.name == spec.arg.name
            for user in node.users
        ]
        why = f"the program has an input of the kind {spec.kind.name}"
        if users:
            why += f", which {users[0]} reads: ops with effects and objects of Python "
            why += "are not supported"
        raise ValueError(f"{why}; supported are tensors")


def _check_argument(spec: InputSpec) -> None:
    """Refuse an argument that is a number, text or None, which TVM reads as a tensor."""
    if isinstance(spec.arg, TensorArgument):
        return
    if isinstance(spec.arg, ConstantArgument):
        what = f"{spec.arg.value!r}, of type {type(spec.arg.value).__name__}"
        hint = "Give it a fixed value inside of the model"
    else:
        what = "an open number"
        hint = "Pass it as a tensor, of which the model takes item()"
    raise ValueError(
        f"the argument {spec.arg.name!r} of the program is {what}; supported are tensors. {hint}."
    )


def _check_op(node: torch.fx.Node, given: Mapping[str, object]) -> None:
    if node.target.__name__ in given:
        return
    if _is_quantized(node) and op_name(node) not in RULES:
        names = ", ".join(sorted(quantized_ops.RULES.keys() - {"aten._int_mm"}))
        raise refusal_of(node, f"this op is not supported; supported are {names}")
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    if torch.Tag.nondeterministic_seeded in node.target.tags and _is_random(node):
        raise refusal_of(
            node,
            "it returns random numbers, other ones in each run; supported are models without "
            "them. If a dropout made them, call model.eval() before torch.export.export",
        )
    if node.target._schema.is_mutable:
        _check_in_place(node)


_OFF = {"p": 0, "dropout": 0, "dropout_p": 0, "train": False, "training": False}
"""The arguments with which an op that may be random is not."""


def _is_random(node: torch.fx.Node) -> bool:
    arguments = Call.arguments_of(node)
    return not any(name in arguments and arguments[name] == off for name, off in _OFF.items())


def _check_in_place(node: torch.fx.Node) -> None:
    """Refuse an op in place whose operand is read by others, in a program not taken apart."""
    operand = node.args[0] if node.args else None
    is_own = (
        isinstance(operand, torch.fx.Node)
        and operand.op == "call_function"
        and isinstance(operand.target, torch._ops.OpOverload)
        and all(returned.alias_info is None for returned in operand.target._schema.returns)
        and len(operand.users) == 1
    )
    if not is_own:
        raise refusal_of(
            node,
            "it changes its operand in place, which others read; supported are programs after "
            "run_decompositions(), and run_ep_decomposition=True",
        )


# ---- Converters ---------------------------------------------------------------------------------


class _Converters:
    """What TVM calls for each op that has a rule.

    `keep_parameters`: whether parameters are inputs of the result, so that no value is known.
    """

    def __init__(self, program: torch.export.ExportedProgram, keep_parameters: bool) -> None:
        signature = program.graph_signature
        tensors = {**program.constants, **dict(program.named_buffers())}
        names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        if not keep_parameters:
            tensors.update(program.named_parameters())
            names.update(signature.inputs_to_parameters)
        self._constants = {
            name: tensors[target] for name, target in names.items() if target in tensors
        }

    def __call__(self, node: torch.fx.Node, importer: Importer) -> relax.Expr:
        call = Call(node, importer, self._constants)
        return call.bound(RULES[op_name(node)](call))
