# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of exported programs, with node, module and line in the span of each call.

What it makes of a node must have the type that the program declares.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import exported_program_translator as translator

from ...ir.origins import Origin, Tracer
from ...ir.states import Buffers, declare, with_buffers
from ..declared import Declared, require_declared
from ..failures import at_node, essential, unknown_operators
from .call import refusal_of
from .open_sizes import Sizes
from .states import Kept

if TYPE_CHECKING:
    from torch import fx

Converter = Callable[..., relax.Expr]
"""Makes a call of a node; one of `custom_convert_map` gets the importer, too."""


class Importer(translator.ExportedProgramImporter):  # type: ignore[misc]
    """TVM's importer, whose block builder knows the node that is read.

    `bfloat16`: the type that stands for bfloat16.
    """

    _builder: Tracer
    sizes: Sizes
    """The sizes of the program that is read."""
    _unlimited: list[relax.Var]
    _custom_ops: set[str] | None = None

    def __init__(self, bfloat16: str) -> None:
        self._bfloat16 = bfloat16
        super().__init__()
        self._of_tvm = dict(self.convert_map)

    def read(
        self,
        program: torch.export.ExportedProgram,
        converters: dict[str, Converter],
        options: Mapping[str, bool],
        kept: Sequence[Kept] = (),
        buffers: Buffers | None = None,
    ) -> tvm.IRModule:
        """Return the module of a program, whose last inputs and results are states.

        `buffers`: those that are no states.

        `options`: those of TVM's `from_exported_program`.
        """
        options = {**_OPTIONS, **options}
        mod = self.from_exported_program(program, custom_convert_map=converters, **options)
        if kept:
            told = [
                (name, parameter, self._convert_pytorch_tensor_to_tvm(initial), positions)
                for name, parameter, initial, positions in kept
            ]
            mod["main"] = declare(mod["main"], told)
        if buffers is not None:
            mod["main"] = with_buffers(mod["main"], buffers)
        return mod

    def of_tvm(self, node: fx.Node) -> relax.Expr:
        """Return what TVM's own converter makes of a node."""
        return self._of_tvm[node.target.__name__](node)

    def type_name(self, dtype: torch.dtype) -> str:
        """Return TVM's name of a type, or that of the type that stands for it."""
        return str(self._convert_data_type(dtype))

    def constant(self, tensor: torch.Tensor) -> relax.Expr:
        """Return a tensor as a constant, in the type that stands for its own."""
        return relax.const(self._convert_pytorch_tensor_to_tvm(tensor.contiguous()))

    def scalar(self, value: relax.Expr, dtype: str) -> relax.Expr:
        """Return a size or another number that is computed, as a tensor without axes."""
        return self._convert_scalar_fill_value(value, dtype)

    def _convert_data_type(self, kind: object, env: dict[Any, Any] | None = None) -> str:
        name = str(super()._convert_data_type(kind, env))
        return self._bfloat16 if name == "bfloat16" else name

    def _convert_pytorch_tensor_to_tvm(self, tensor: torch.Tensor) -> tvm.runtime.Tensor:
        if tensor.dtype == torch.bfloat16 and self._bfloat16 != "bfloat16":
            own = tensor.detach().to(getattr(torch, self._bfloat16))
        else:
            # TVM's tensor would have the memory of the network, which may change it later.
            own = tensor.detach().clone()
        return super()._convert_pytorch_tensor_to_tvm(own)

    def create_input_vars(self, program: torch.export.ExportedProgram) -> tuple[Any, ...]:
        """Return the inputs, with the sizes that the program forces."""
        kept, inputs, ranges = super().create_input_vars(program)
        self.sizes = Sizes(program)
        for node in program.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and node.name in inputs and isinstance(value, torch.Tensor):
                inputs[node.name] = self.sizes.input(inputs[node.name], value.shape)
        self._unlimited = list(inputs.values())
        return kept, inputs, ranges

    def _translate_fx_graph(
        self,
        module: object,
        nodes: object,
        inputs: dict[str, relax.Var],
        custom_ops: set[str] | None = None,
    ) -> tuple[relax.Expr, ...]:
        """Read the nodes; a call whose sizes are outside of the program's ranges fails."""
        # TVM does not pass them to the branches of torch.cond.
        self._custom_ops = custom_ops or self._custom_ops
        for value in self._unlimited:
            limited = self.sizes.limited(value)
            if limited is not None:
                # No pass of TVM removes a match_cast that nothing reads.
                self.block_builder.match_cast(value, limited)
        self._unlimited = []
        results: tuple[relax.Expr, ...] = super()._translate_fx_graph(
            module, nodes, inputs, self._custom_ops
        )
        return results

    @staticmethod
    def _flatten_output_args(values: object) -> tuple[relax.Expr, ...]:
        """Return the results of a program, without those that are None."""
        flat = torch.utils._pytree.tree_leaves(
            values, is_leaf=lambda result: isinstance(result, relax.Expr)
        )
        for number, result in enumerate(flat):
            if result is not None and not isinstance(result, relax.Expr):
                raise ValueError(
                    f"result {number} of the program is {result!r}, of type "
                    f"{type(result).__name__}; supported are tensors and None"
                )
        results = tuple(result for result in flat if result is not None)
        if not results:
            raise ValueError("the program returns no tensor")
        return results

    @property
    def block_builder(self) -> Tracer:
        """What binds the calls."""
        return self._builder

    @block_builder.setter
    def block_builder(self, builder: relax.BlockBuilder) -> None:
        self._builder = Tracer()

    def create_convert_map(self) -> dict[str, Converter]:
        """Return the converters, which tell their node."""
        return self._telling(super().create_convert_map())

    def update_convert_map(self, custom_convert_map: dict[str, Converter]) -> None:
        """Add converters."""
        super().update_convert_map(self._telling(custom_convert_map))

    def _check_unsupported_func_type(self, nodes: Sequence[fx.Node]) -> None:
        """Refuse ops without a converter, and name their nodes; TVM names only kinds."""
        nodes = [*nodes, *(node for before in nodes for node in _nodes_of_branch(before))]
        missing = [
            node
            for node in nodes
            if node.op == "call_function" and node.target.__name__ not in self.convert_map
            if self.sizes.of(node.meta.get("val")) is None
        ]
        for node in missing:
            if isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool):
                raise refusal_of(node, _TELL_BOUNDS)
        if missing:
            raise ValueError(unknown_operators([*map(_title, missing)]))
        for node in nodes:
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt):
                # `_converted` returns the size without a call of the converter.
                self.convert_map.setdefault(node.target.__name__, self._teller(self.of_tvm))

    def _telling(self, converters: dict[str, Converter]) -> dict[str, Converter]:
        return {name: self._teller(convert) for name, convert in converters.items()}

    def _teller(self, convert: Converter) -> Converter:
        def converted(node: fx.Node, *importer: translator.ExportedProgramImporter) -> relax.Expr:
            builder = self._builder
            outer, builder.span = builder.span, _origin_of(node).span(self._widened_type(node))
            try:
                with at_node(_title(node)):
                    return self._converted(convert, node, *importer)
            finally:
                builder.span = outer

        return converted

    def _widened_type(self, node: fx.Node) -> str:
        """Return the type of a node's result, if one that holds all its values stands for it."""
        is_narrow = getattr(node.meta.get("val"), "dtype", None) == torch.bfloat16
        return "bfloat16" if is_narrow and self._bfloat16 == "float32" else ""

    def _converted(
        self, convert: Converter, node: fx.Node, *importer: translator.ExportedProgramImporter
    ) -> relax.Expr:
        """Return what a converter makes of a node; its errors name the node."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            size = self.sizes.of(value)
            if size is not None:
                return size
        try:
            result = convert(node, *importer)
        except Exception as error:  # TVM's converters raise countless errors.
            if isinstance(error, ValueError) and node.name in str(error):
                raise
            hint = f". {_FIX_SIZES}" if _has_open_sizes(node) else ""
            why = essential(error)
            if isinstance(error, TypeError) and hint:
                # TVM's message is about its own classes.
                why = "it needs a size that is open"
            text = f"TVM's importer cannot read it: {why}{hint}"
            raise refusal_of(node, text) from error
        self._require_declared(node, result)
        return self._with_declared_sizes(node, result)

    def _with_declared_sizes(self, node: fx.Node, result: Any) -> Any:
        """Return a result with the sizes that the program declares, which the run compares."""
        declared, ty = node.meta.get("val"), getattr(result, "ty", None)
        if not isinstance(declared, torch.Tensor) or not isinstance(ty, relax.TensorType):
            return result
        sizes = self.sizes.of_all(declared.shape)
        if sizes is None or _is_scale(node) or len(sizes) != ty.ndim:
            return result
        if ty.shape is None:
            raise refusal_of(
                node, f"TVM cannot tell the sizes of its result from its open ones. {_FIX_SIZES}"
            )
        differing = [
            (size, made)
            for size, made in zip(sizes, ty.shape.values, strict=True)
            if not self.sizes.is_same(size, made)
        ]
        if not differing:
            return result
        checks = [self.sizes.comparison(size, made) for size, made in differing]
        if not any(checks):
            return self._builder.match_cast(result, relax.TensorType(sizes, ty.dtype))
        # TVM takes a symbol in a comparison for a new name of the size, and never returns.
        for value, ty_of_input in filter(None, checks):
            self._builder.match_cast(value, ty_of_input)
        return self._builder.emit(relax.op.reshape(result, sizes))

    def _require_declared(self, node: fx.Node, result: Any) -> None:
        """Refuse a result of another type than PyTorch declares."""
        declared = node.meta.get("val")
        if _is_scale(node):
            return
        if not isinstance(declared, (tuple, list)):
            self._require_type(node, node.name, declared, result)
            return
        is_tensor = isinstance(getattr(result, "ty", None), relax.TensorType)
        if is_tensor:
            # The converter has made the first of several results.
            others = [user for user in node.users if user.args[1:] != (0,)]
            if len(declared) > 1 and others:
                wrong = others[0].args[1]
                raise refusal_of(
                    node, f"its result {wrong} is not supported; supported is result 0"
                )
            self._require_type(node, node.name, declared[0], result)
            return
        fields = getattr(getattr(result, "ty", None), "fields", None)
        for index, (field, made) in enumerate(
            zip(declared, result if fields is None else fields, strict=False)
        ):
            self._require_type(node, f"{node.name}[{index}]", field, made)

    def _require_type(self, node: fx.Node, result: str, declared: object, made: Any) -> None:
        if not isinstance(declared, torch.Tensor):
            return
        sizes = [size if isinstance(size, int) else None for size in declared.shape]
        dtype = self.type_name(declared.dtype)
        ty = made if isinstance(made, tvm.ir.Type) else getattr(made, "ty", None)
        require_declared(_title(node), result, Declared(dtype, sizes), ty)


_OPTIONS = dict.fromkeys(
    ("keep_params_as_input", "unwrap_unit_return_tuple", "no_bind_return_tuple"), False
)
_TELL_BOUNDS = (
    "it computes with a number that item() reads and whose bounds PyTorch does not know; supported "
    "are places with bounds: n = position.item(), torch._check(n >= 0), torch._check(n < size)"
)
_FIX_SIZES = "If the open sizes are why, export the model with fixed ones"


def _nodes_of_branch(node: fx.Node) -> list[fx.Node]:
    """Return the nodes of a branch of torch.cond, and of those in it, that a node names."""
    branch = getattr(node.graph.owning_module, str(node.target), None)
    if node.op != "get_attr" or not isinstance(branch, torch.fx.GraphModule):
        return []
    nodes = list(branch.graph.nodes)
    return [*nodes, *(inner for outer in nodes for inner in _nodes_of_branch(outer))]


def _has_open_sizes(node: fx.Node) -> bool:
    """Whether a node or what it reads has sizes that only the run knows."""
    values = [read.meta.get("val") for read in (node, *node.all_input_nodes)]
    shapes = [value.shape if isinstance(value, torch.Tensor) else (value,) for value in values]
    return any(isinstance(size, torch.SymInt) for shape in shapes for size in shape)


def _is_scale(node: fx.Node) -> bool:
    """Whether a node is a scale or zero point of the run, which are vectors of TVM's types here."""
    of = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node
    return "choose_qparams" in str(getattr(of, "target", ""))


def _origin_of(node: fx.Node) -> Origin:
    """Return the name of a node, with its innermost module and the user's line."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]) if modules else ""
    # Exported as "L['self'].block.0" by some versions of torch.
    path = path.removeprefix("L['self']").removeprefix("L__self__").lstrip(".")
    # Frames are two lines each: the file and line, and the text; the innermost is the last.
    frames = [
        line.strip()
        for line in str(node.meta.get("stack_trace") or "").splitlines()
        if line.lstrip().startswith('File "') and not _OF_TORCH.search(line)
    ]
    return Origin(str(node.name), path, frames[-1] if frames else "")


_OF_TORCH = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|"
    + re.escape(f'"{Path(torch.__file__).parent}{os.sep}')
)
"""A file of PyTorch itself: as it is usually installed where a program was exported, or here."""


def _title(node: fx.Node) -> str:
    """Return a node for messages: its name, op, module and line."""
    origin = _origin_of(node)
    about = [str(node.target), origin.module and f"module {origin.module}", origin.location]
    return f"{origin.name} ({', '.join(filter(None, about))})"
