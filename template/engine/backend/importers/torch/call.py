# SPDX-License-Identifier: Apache-2.0
"""A node of a PyTorch program, as the converters of this package see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from tvm import relax

from ...shared.aliases import Array
from .open_sizes import Size

if TYPE_CHECKING:
    from .module_names import Importer

_INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.uint16}


def refusal_of(node: torch.fx.Node, text: str) -> ValueError:
    """Return the error that something about a node is not supported."""
    return ValueError(f"torch node {node.name!r} ({node.target}): {text}")


def op_name(node: torch.fx.Node) -> str:
    """Return the name of a node's op without its overload, such as "aten.add".

    "" for functions of Python.
    """
    return str(node.target).rpartition(".")[0]


ITEM = "aten._local_scalar_dense"
"""The op that makes a number of a tensor's only element."""


class Call:
    """A call of an op, and what its converter needs.

    `constants`: the tensors whose values are known, by the name of the node.
    """

    def __init__(
        self, node: torch.fx.Node, importer: Importer, constants: Mapping[str, torch.Tensor]
    ) -> None:
        self.node, self._importer, self._constants = node, importer, constants
        self.arguments = self.arguments_of(node)

    @staticmethod
    def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
        """Return all arguments of a node by name, with their defaults."""
        schema = node.target._schema.arguments
        defaults = {arg.name: arg.default_value for arg in schema if arg.has_default_value()}
        names = [arg.name for arg in schema if not arg.kwarg_only]
        return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}

    def __getitem__(self, name: str) -> Any:
        """Return an argument, or its default; None if the op has none of this name."""
        return self.arguments.get(name)

    @property
    def name(self) -> str:
        """The name of the op without namespace and overload."""
        return op_name(self.node).rpartition(".")[2]

    def refuse(self, text: str) -> NoReturn:
        """Raise that something about the node is not supported."""
        raise refusal_of(self.node, text)

    def emit(self, value: relax.Expr) -> relax.Var:
        """Bind an expression to a variable."""
        return self._importer.block_builder.emit(value)

    def bound(self, value: relax.Expr) -> relax.Expr:
        """Return the variable of a call, or a tuple of such; others as they are."""
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.bound(field) for field in value.fields])
        return self.emit(value) if isinstance(value, (relax.Call, relax.TupleGetItem)) else value

    def by_tvm(self) -> relax.Expr:
        """Return what TVM's own converter makes of the node."""
        return self._importer.of_tvm(self.node)

    # ---- Types ----------------------------------------------------------------------------------

    def type_name(self, dtype: torch.dtype) -> str:
        """Return TVM's name of a type, or that of the type that stands for it."""
        return self._importer.type_name(dtype)

    @property
    def result(self) -> torch.Tensor:
        """What PyTorch says of the result; of the first if there are several."""
        value = self.node.meta["val"]
        return value[0] if isinstance(value, (tuple, list)) else value

    @property
    def result_type(self) -> str:
        """The element type of the result."""
        return self.type_name(self.result.dtype)

    def common_type(self, *names: str) -> str:
        """Return the type in which PyTorch computes with some arguments."""
        return self.type_name(torch.result_type(*(self._meta(self[name]) for name in names)))

    @staticmethod
    def _meta(given: Any) -> Any:
        if not isinstance(given, torch.fx.Node):
            return given
        value = given.meta["val"]
        if isinstance(value, torch.SymInt):
            return 1
        return value if isinstance(value, torch.Tensor) else float(1)

    # ---- Operands -------------------------------------------------------------------------------

    def value(self, name: str) -> relax.Expr:
        """Return a tensor among the arguments."""
        return self.expression(self[name])

    def expression(self, given: Any) -> relax.Expr:
        """Return what was made of a node."""
        return self._importer.env[given]

    def operand(self, name: str, dtype: str) -> relax.Expr:
        """Return an argument, a tensor or a number, as a tensor of a type."""
        return self.as_type(self[name], dtype)

    def as_type(self, given: Any, dtype: str) -> relax.Expr:
        """Return a node or a number as a tensor of a type."""
        if not isinstance(given, torch.fx.Node):
            return relax.const(given, dtype)
        value = self.expression(given)
        if isinstance(value, (int, float)):
            return relax.const(value, dtype)
        if not isinstance(value.ty, relax.TensorType):
            return self._importer.scalar(value, dtype)
        return self.cast(value, dtype)

    def cast(self, value: relax.Expr, dtype: str) -> relax.Expr:
        """Return a tensor in a type."""
        value = self.bound(value)
        return value if value.ty.dtype == dtype else self.emit(relax.op.astype(value, dtype))

    def scalar(self, size: relax.Expr, dtype: str = "int64") -> relax.Expr:
        """Return a size that is open as a tensor without axes."""
        return self._importer.scalar(size, dtype)

    def truth(self, value: relax.Expr) -> relax.Expr:
        """Return whether elements differ from 0."""
        if value.ty.dtype == "bool":
            return value
        return self.emit(relax.op.not_equal(value, relax.const(0, value.ty.dtype)))

    def converted(self, value: relax.Expr) -> relax.Expr:
        """Return a tensor in the type of the result."""
        dtype = self.result_type
        return self.truth(value) if dtype == "bool" else self.cast(value, dtype)

    def constant(self, name: str) -> Array | None:
        """Return an argument as an array, if its value is known."""
        return self.known(self[name])

    def known(self, given: Any) -> Array | None:
        """Return a node or a number as an array, if its value is known."""
        if isinstance(given, torch.fx.Node):
            given = self._constants.get(given.name)
        if given is None:
            return None
        if not isinstance(given, torch.Tensor):
            return np.array(given)
        given = given.detach().cpu()
        # NumPy has no bfloat16.
        array: Array = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
        return array

    def computed(self) -> relax.Expr | None:
        """Return what PyTorch computes of constants alone; None if it reads anything else."""
        tensor = self._computed(self.node)
        return None if tensor is None else self._importer.constant(tensor)

    def _computed(self, node: torch.fx.Node) -> Any:
        if node.name in self._constants:
            return self._constants[node.name].detach()
        values = {read: self._computed(read) for read in node.all_input_nodes}
        if node.op != "call_function" or any(value is None for value in values.values()):
            return None
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        return node.target(*args, **kwargs)

    def shape(self, name: str) -> list[Size]:
        """Return the sizes of a tensor among the arguments."""
        return sizes_of(self.value(name))

    def sizes(self, given: Sequence[Any]) -> list[Size]:
        """Return sizes among the arguments, of which each must be known or be one of the inputs."""
        known = self.known_sizes(
            [item.meta.get("val") if isinstance(item, torch.fx.Node) else item for item in given]
        )
        if known is None:
            self.refuse("it needs a size that only the run knows; supported are sizes of inputs")
        return known

    def known_sizes(self, given: Sequence[Any]) -> list[Size] | None:
        """Return sizes that the program declares; None if only the run knows one."""
        return self._importer.sizes.of_all(given)

    def checked(self, value: relax.Expr, sizes: Sequence[Size]) -> relax.Var:
        """Return a tensor whose sizes the run compares with those that are given."""
        ty = relax.TensorType(sizes, value.ty.dtype)
        return self._importer.block_builder.match_cast(value, ty)

    def is_same(self, x: Size, y: Size) -> bool:
        """Whether two sizes are the same, whatever those of the inputs are."""
        return self._importer.sizes.is_same(x, y)

    def is_natural(self, size: Size) -> bool:
        """Whether a size is 0 or more, whatever those of the inputs are."""
        return self._importer.sizes.is_natural(size)

    def fixed_sizes(self, value: relax.Expr, axes: Sequence[int]) -> list[int]:
        """Return sizes that must be known."""
        sizes = sizes_of(value)
        chosen = [sizes[axis] for axis in axes]
        if not all(isinstance(size, int) for size in chosen):
            self.refuse(
                f"it needs the sizes of the axes {list(axes)}, which are open; export the model "
                "with fixed sizes of these"
            )
        return [size for size in chosen if isinstance(size, int)]

    # ---- Quantized ops --------------------------------------------------------------------------

    def dtype(self, name: str) -> str:
        """Return TVM's name of the element type in an argument."""
        return str(self[name]).removeprefix("torch.")

    def integer(self, name: str) -> str:
        """Return TVM's name of the integer type in an argument, if it is supported."""
        if self[name] not in _INTEGERS:
            self.refuse(
                f"{name}={self.dtype(name)} is not supported; supported are int8, uint8, int16 and "
                "uint16"
            )
        return self.dtype(name)

    def _flat(self, name: str) -> relax.Expr:
        value = self.value(name)
        return value if value.ty.ndim == 1 else self.emit(relax.op.reshape(value, (-1,)))

    def scale(self, name: str, vector: bool = False) -> relax.Expr:
        """Return a scale: a scalar, or a vector."""
        array = self.constant(name)
        if array is None:
            scale = self._flat(name) if vector else self.value(name)
            return self.cast(scale, "float32") if scale.ty.dtype == "float64" else scale
        kept = array.dtype if array.dtype in (np.float16, np.float32) else np.dtype("float32")
        return constant_of(array.astype(kept), vector)

    def zero_point(self, name: str, dtype: str, vector: bool = False) -> relax.Expr:
        """Return a zero point of the type of what is quantized."""
        given = self[name]
        if given is None:
            return relax.const(0, dtype)
        array = self.constant(name)
        if array is None:
            return self.cast(self._flat(name) if vector else self.value(name), dtype)
        limits = np.iinfo(dtype)
        if array.dtype.kind == "f" and np.any(array != np.round(array)):
            self.refuse("its zero points are not integers; supported are integers")
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            self.refuse(f"its zero point is outside of {dtype}; supported are values of this type")
        return constant_of(array.astype(dtype), vector)


Make = Callable[..., relax.Expr]
"""An op of Relax, or what makes several of them."""

Rule = Callable[[Call], relax.Expr]
"""What converts an op; the calls that it returns, and those inside of them, get variables."""


def is_real(dtype: str) -> bool:
    """Whether a type is one of real numbers."""
    return "float" in dtype


def sizes_of(value: relax.Expr) -> list[Size]:
    """Return the sizes of a tensor."""
    return [getattr(size, "value", size) for size in value.ty.shape.values]


def permuted(op: Call, value: relax.Expr, order: Sequence[int]) -> relax.Expr:
    """Return a tensor with its axes in another order; the same one if they are in it."""
    if list(order) == sorted(order):
        return value
    return op.emit(relax.op.permute_dims(value, list(order)))


def part_of(value: relax.Expr, axis: int, start: Size, end: Size, step: int = 1) -> relax.Expr:
    """Return the part of a tensor between two places of an axis."""
    return relax.op.strided_slice(value, [axis], [start], [end], [step])


def inverse(order: Sequence[int]) -> list[int]:
    """Return the order that undoes another."""
    return [list(order).index(axis) for axis in range(len(order))]


def constant_of(array: Array, vector: bool) -> relax.Expr:
    """Return an array of one element as a scalar, unless a vector is wanted.

    `vector`: whether one element is a vector.
    """
    shape: Sequence[int] = (-1,) if vector or array.size > 1 else ()
    return relax.const(np.ascontiguousarray(array).reshape(shape), str(array.dtype))
