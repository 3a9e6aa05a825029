# SPDX-License-Identifier: Apache-2.0
"""Buffers that a program changes for its next call: parameters and results of its function.

The signature of a program tells them, after its ops in place were taken apart; users of a buffer
do not.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec

from ...ir.states import Position
from ..declared import text_of
from ..failures import essential
from .call import op_name
from .positions import positions_in


class Kept(NamedTuple):
    """A buffer that is state.

    `name`: its name in the network.
    `parameter`: its name in the graph.
    `initial`: its value in the program; one element if all are the same.
    `positions`: where it is written.
    """

    name: str
    parameter: str
    initial: torch.Tensor
    positions: Sequence[Position] = ()


_CHANGES = {
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "input",
}


# ---- Before a program is taken apart ------------------------------------------------------------


def decomposed(program: ExportedProgram, table: Mapping[object, object]) -> ExportedProgram:
    """Take a program apart, after which nothing in it is changed in place."""
    program = _with_buffers_once(program)
    try:
        return program.run_decompositions(dict(table))
    except Exception as error:
        why = _why_not(program, str(error)) or (
            f"PyTorch cannot take the program apart: {essential(error)}. Export the model without "
            "the ops that are why, or read it with run_ep_decomposition=False"
        )
        raise ValueError(why) from error


def _with_buffers_once(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which a tensor that is registered as several buffers is one of them.

    PyTorch cannot take apart a program that changes such a tensor.
    """
    first: dict[object, str] = {}
    merged: dict[str, str] = {}
    for name, tensor in _buffers(program).items():
        if tensor.layout != torch.strided or not tensor.numel():
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        merged[name] = first.setdefault(place, name)
    merged = {name: other for name, other in merged.items() if name != other}
    if not merged:
        return program
    program = _copied(program)
    signature = program.graph_signature
    placeholders = {signature.inputs_to_buffers.get(node.name): node for node in _inputs(program)}
    for name, other in merged.items():
        placeholders[name].replace_all_uses_with(placeholders[other])
        program.graph.erase_node(placeholders[name])
        program.state_dict.pop(name, None)
        program.constants.pop(name, None)
    signature.input_specs = [
        spec
        for spec in signature.input_specs
        if spec.kind is not InputKind.BUFFER or spec.target not in merged
    ]
    program.graph_module.recompile()
    return program


def _why_not(program: ExportedProgram, error: str) -> str:
    """Return why PyTorch cannot take a program apart; "" if it is not that it changes a tensor."""
    if "is mutated in the forward method" in error:
        return (
            f"the program changes a tensor that is no buffer ({error.partition(' is ')[0]}); "
            "supported is that of buffers. Make it one with register_buffer"
        )
    for node in program.graph.nodes:
        name = program.graph_signature.inputs_to_buffers.get(str(node.args[0]) if node.args else "")
        if name and op_name(node) == "aten.copy_" and "expand" in error:
            sizes = [text_of(given.meta["val"].shape) for given in node.args]
            return (
                f"the program changes the sizes of its buffer {name!r} from {sizes[0]} to "
                f"{sizes[1]}; supported are buffers that keep theirs: write to a part of a larger "
                "one"
            )
    storages: dict[int, str] = {}
    for name, tensor in _buffers(program).items():
        if tensor.layout != torch.strided or not tensor.numel():
            continue
        other = storages.setdefault(tensor.untyped_storage().data_ptr(), name)
        if other != name:
            return (
                f"the buffers {other!r} and {name!r} of the program are parts of one tensor, and "
                "PyTorch cannot take apart what the program does to it; supported are buffers "
                "that share no memory. Register the whole tensor, and take its parts in forward()"
            )
    return ""


def _buffers(program: ExportedProgram) -> Mapping[str, torch.Tensor]:
    return dict(program.named_buffers())


def _inputs(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _copied(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program, which may be the caller's own, with the same tensors."""
    tensors = (*program.state_dict.values(), *program.constants.values())
    copied = copy.deepcopy(program, {id(tensor): tensor for tensor in tensors})
    for node, original in zip(copied.graph.nodes, program.graph.nodes, strict=True):
        # Copies of nodes with names of Python's own, such as "input", get others.
        node.name = original.name
    return copied


# ---- After it -----------------------------------------------------------------------------------


def changed_buffers(program: ExportedProgram) -> list[str]:
    """Return the names of buffers that a program changes, state or not."""
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
    if any(schema is not None and schema.is_mutable for schema in schemas):
        program = decomposed(program, {})
    return list(program.graph_signature.buffers_to_mutate.values())


def with_states(program: ExportedProgram) -> tuple[ExportedProgram, list[Kept]]:
    """Make the buffers that a program changes its last inputs and its last results.

    A buffer that is overwritten before it is read is no state. Other tensors that a program changes
    are refused.
    """
    if not any(spec.kind in _CHANGES for spec in program.graph_signature.output_specs):
        return program, []
    # The program may still be the caller's own.
    program = _copied(program)
    signature, read = program.graph_signature, read_buffers(program)
    output = next(node for node in reversed(program.graph.nodes) if node.op == "output")
    results: list[tuple[OutputSpec, object]] = []
    changes: list[tuple[OutputSpec, object]] = []
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if spec.kind not in _CHANGES:
            results.append((spec, value))
        elif spec.kind is not OutputKind.BUFFER_MUTATION or spec.target in read:
            _check_change(spec)
            changes.append((OutputSpec(OutputKind.USER_OUTPUT, spec.arg, spec.target), value))
    inputs = {spec.target: spec for spec in signature.input_specs if spec.target is not None}
    kept = []
    for spec, _ in changes:
        buffer = _compact(_tensor_of(program, spec.target))
        kept.append(Kept(str(spec.target), inputs[spec.target].arg.name, buffer))
        # TVM would look for an input of a constant.
        program.constants.pop(spec.target, None)
    names = {state.parameter for state in kept}
    signature.input_specs = [
        *(spec for spec in signature.input_specs if spec.arg.name not in names),
        *(InputSpec(InputKind.USER_INPUT, inputs[state.name].arg, None) for state in kept),
    ]
    signature.output_specs = [spec for spec, _ in (*results, *changes)]
    output.args = (tuple(value for _, value in (*results, *changes)),)
    program.graph.eliminate_dead_code()
    positions = positions_in(program, names)
    return program, [state._replace(positions=positions[state.parameter]) for state in kept]


def _check_change(spec: OutputSpec) -> None:
    """Refuse the change of what is not a buffer, or only one of training."""
    kind = _CHANGES[spec.kind]
    hint = f"Pass the {kind} as an input, and return it as a result"
    if str(spec.target).endswith(("running_mean", "running_var", "num_batches_tracked")):
        hint = "The model is in training mode: call model.eval() before torch.export.export"
    elif kind == "buffer":
        return
    raise ValueError(
        f"the program changes its {kind} {spec.target!r} (torch node {spec.arg.name!r}), which "
        f"lasts to the next call; supported is that of buffers, but for those of training. {hint}."
    )


def _tensor_of(program: ExportedProgram, name: str) -> torch.Tensor:
    """Return a buffer; those that are not stored with the network are among the constants."""
    tensors = {**program.constants, **program.state_dict}
    return tensors[name].detach().cpu().contiguous()


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """Return one element without axes if all are the same, such as those of an empty cache."""
    if not tensor.numel():
        return torch.zeros((), dtype=tensor.dtype)
    elements = tensor.reshape(-1).view(torch.uint8).reshape(tensor.numel(), -1)
    is_one = bool((elements == elements[0]).all())
    return tensor.reshape(-1)[0].clone() if is_one else tensor


def read_buffers(program: ExportedProgram) -> Collection[str]:
    """Return the buffers whose values at the begin of a call have an effect."""
    buffers = program.graph_signature.inputs_to_buffers
    return {
        buffers[node.name]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in buffers
        if not all(_overwrites(user, node) for user in node.users)
    }


def _overwrites(user: torch.fx.Node, buffer: torch.fx.Node) -> bool:
    """Whether an op takes only the shape and type of a buffer, and writes all of it."""
    if op_name(user) not in ("aten.copy", "aten.fill", "aten.zeros_like", "aten.full_like"):
        return False
    return user.args[0] is buffer and buffer not in user.args[1:]
