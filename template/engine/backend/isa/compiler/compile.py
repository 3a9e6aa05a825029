# SPDX-License-Identifier: Apache-2.0
"""From a region to a program of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import s_tir, tirx

from ...sdk.npu_region.region import Declined, Region
from ..kinds import ELEMENT_BYTES
from ..machine import CONSTANTS, FIRST_PORT, SEGMENT_BITS, WORKSPACE, Line, Machine
from ..program import Allocation, Program
from ..tuning import Sizes, key_of
from .adapter import TYPES, read_kernel
from .buffering import alternate
from .code import Assembler, Where
from .kernel import KernelCode, ScalarNest
from .kernels import Kernel, Plan, Tensor, plan_of
from .loops import Buffer, Loops, Unsupported
from .scheduling import RULES, Rule, scheduled
from .waiting import with_waits

ALIGNMENT = 64

PASSES: Mapping[str, Callable[[], tvm.transform.Pass]] = {
    "CanonicalizeLoop": s_tir.transform.CanonicalizeLoop,
    "LowerInitBlock": s_tir.transform.LowerInitBlock,
    "PlanAndUpdateBufferAllocationLocation": (
        s_tir.transform.PlanAndUpdateBufferAllocationLocation
    ),
    "ConvertBlocksToOpaque": s_tir.transform.ConvertBlocksToOpaque,
    "CompactBufferAllocation": s_tir.transform.CompactBufferAllocation,
    "LowerMatchBuffer": s_tir.transform.LowerMatchBuffer,
    "InjectSoftwarePipeline": s_tir.transform.InjectSoftwarePipeline,
    "LowerOpaqueBlock": s_tir.transform.LowerOpaqueBlock,
    "FlattenBuffer": tirx.transform.FlattenBuffer,
    "NarrowDataType": lambda: tirx.transform.NarrowDataType(32),
    "StmtSimplify": tirx.transform.StmtSimplify,
}
"""The passes from a scheduled kernel to flat loops, in their order."""


@dataclass(frozen=True)
class Settings:
    """How a vendor changes the compiler.

    Parameters
    ----------
    rules
        The rules that schedule kernels.
    before, after
        Passes on the module of a kernel before it is lowered, and after.
    disabled
        Names of passes that are left out: those of `PASSES`, of `kernels.PASSES`, "alternate"
        (`buffering.py`) and "select", without which all is scalar code.
    sizes
        Sizes for the rules, by the key of a kernel (`tuning.key_of`).
    """

    rules: Sequence[Rule] = RULES
    before: Sequence[tvm.transform.Pass] = ()
    after: Sequence[tvm.transform.Pass] = ()
    disabled: Collection[str] = ()
    sizes: Mapping[str, Sizes] = field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """A program, and what runs in it as scalar code, by the label of its op."""

    program: Program
    scalar: tuple[tuple[str, ScalarNest], ...]


def compile_region(region: Region, machine: Machine, settings: Settings | None = None) -> Compiled:
    """Make the program of a region.

    Parameters
    ----------
    region
        The region, with the elements of its constants.
    machine
        The machine.
    settings
        How a vendor changes the compiler.

    Returns
    -------
    compiled
        The program.

    Raises
    ------
    Declined
        The machine does not execute an op; the message says which statement of its loops, and why.
    """
    settings = settings or Settings()
    try:
        return compile_plan(plan_of(region, settings.disabled), machine, settings)
    except KernelDeclined as error:
        if region.folder is not None:
            (region.folder / "node.txt").write_text(error.label, "utf-8")
        raise Declined(f"{error.label}: {error}" if error.label else str(error)) from None


class KernelDeclined(Exception):
    """The machine does not execute a kernel; the message says which statement, and why.

    `label`: that of the first op in it.
    """

    def __init__(self, kernel: Kernel, why: Unsupported) -> None:
        super().__init__(str(why))
        self.label = kernel.labels[0] if kernel.labels else ""


def compile_plan(plan: Plan, machine: Machine, settings: Settings) -> Compiled:
    """Make the program of kernels.

    Raises
    ------
    KernelDeclined
        The machine does not execute one of them.
    """
    memory = Layout(plan)
    lines: list[Line] = []
    allocations: list[Allocation] = []
    scalar: list[tuple[str, ScalarNest]] = []
    begins: list[int] = []
    for kernel in plan.kernels:
        label = ", ".join(kernel.labels)
        places = [memory.place(number) for number in kernel.tensors]
        try:
            code = _best(kernel, machine, settings, places, memory)
        except Unsupported as error:
            raise KernelDeclined(kernel, error) from None
        begins.append(len(lines))
        lines += [replace(line, label=label, note=kernel.name) for line in code.lines]
        ends = begins[-1], len(lines) - 1
        allocations += [Allocation(*place, *ends) for place in code.places if code.lines]
        scalar += [(label, nest) for nest in code.scalar]
    begins.append(len(lines))
    lines.append(Line("halt", {}))
    allocations += memory.allocations(begins)
    program = Program(
        machine.name,
        tuple(lines),
        bytes(memory.constants),
        memory.workspace,
        memory.inputs,
        memory.outputs,
        tuple(allocations),
    )
    return Compiled(program, tuple(scalar))


# ---- Memory of tensors --------------------------------------------------------------------------


class Layout:
    """Where tensors are: in the segments of ports and constants, and in the workspace."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.constants = bytearray()
        self.workspace = 0
        self.inputs = self._sizes("input")
        self.outputs = self._sizes("output")
        self._places: dict[int, Where] = {}
        self._constant_places: dict[bytes, int] = {}
        self._plan_workspace()

    def _root(self, number: int) -> int:
        alias = self.plan.tensors[number].alias_of
        return number if alias is None else alias

    def _plan_workspace(self) -> None:
        """First fit, by when tensors are used."""
        spans: dict[int, tuple[int, int]] = {}
        for at, kernel in enumerate(self.plan.kernels):
            for number in map(self._root, kernel.tensors):
                if self.plan.tensors[number].source == "workspace":
                    spans[number] = (spans.get(number, (at, at))[0], at)
        self._spans = spans
        placed: list[tuple[int, int, tuple[int, int]]] = []
        for number, span in spans.items():
            size = _aligned(bytes_of(self.plan.tensors[number]))
            begin = 0
            for first, end, other in sorted(placed):
                overlaps = other[0] <= span[1] and span[0] <= other[1]
                if overlaps and begin < end and first < begin + size:
                    begin = end
            placed.append((begin, begin + size, span))
            self._places[number] = Where((WORKSPACE << SEGMENT_BITS) + begin)
            self.workspace = max(self.workspace, begin + size)
        self._own = self.workspace

    def allocations(self, begins: Sequence[int]) -> Iterator[Allocation]:
        """Iterate over tensors in the workspace.

        `begins`: the first lines of all kernels, and the line behind them.
        """
        for number, (first, last) in self._spans.items():
            size = bytes_of(self.plan.tensors[number])
            name = f"result of {self.plan.kernels[first].name}"
            lines = begins[first], begins[last + 1] - 1
            yield Allocation(name, self._places[number].base, size, *lines)

    def place(self, number: int) -> Where:
        """Return the address of a tensor."""
        number = self._root(number)
        tensor = self.plan.tensors[number]
        if number not in self._places:
            if tensor.source == "constant":
                assert tensor.data is not None
                self._places[number] = self.constant(tensor.data.tobytes())
            else:
                first = 0 if tensor.source == "input" else len(self.inputs)
                self._places[number] = Where(FIRST_PORT + first + tensor.index << SEGMENT_BITS)
        return self._places[number]

    def constant(self, data: bytes) -> Where:
        """Return the address of a constant."""
        if data not in self._constant_places:
            self._constant_places[data] = len(self.constants)
            self.constants += data.ljust(_aligned(len(data)), b"\0")
        return Where((CONSTANTS << SEGMENT_BITS) + self._constant_places[data])

    def own(self, buffers: Sequence[Buffer]) -> dict[Buffer, Where]:
        """Return places in the workspace for buffers that one kernel has."""
        at = self._own
        places = {}
        for buffer in buffers:
            places[buffer] = Where((WORKSPACE << SEGMENT_BITS) + at)
            at += _aligned(buffer.bytes)
        self.workspace = max(self.workspace, at)
        return places

    def _sizes(self, source: str) -> tuple[int, ...]:
        """Return the bytes of inputs or outputs."""
        sizes = {
            tensor.index: bytes_of(tensor)
            for tensor in self.plan.tensors
            if tensor.source == source
        }
        return tuple(sizes[index] for index in range(len(sizes)))


def bytes_of(tensor: Tensor) -> int:
    """Return how many bytes a tensor has."""
    return math.prod(tensor.shape) * ELEMENT_BYTES[TYPES[tensor.dtype]]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# ---- Kernels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelLines:
    """The lines of a kernel.

    `places` are the names, addresses and bytes of what it has in scratchpads and the workspace.
    """

    lines: list[Line]
    scalar: list[ScalarNest]
    places: list[tuple[str, int, int]]

    @property
    def scalar_lines(self) -> int:
        """How many lines of scalar code are executed."""
        return sum(nest.lines for nest in self.scalar)


def _best(
    kernel: Kernel,
    machine: Machine,
    settings: Settings,
    places: Sequence[Where],
    memory: Layout,
) -> KernelLines:
    """Return the code by the first rule that needs no scalar code, or else that with the least."""
    best: KernelLines | None = None
    failure: Unsupported | None = None
    sizes = settings.sizes.get(key_of(kernel.function), {}) if settings.sizes else {}
    for rule in (*settings.rules, None):
        try:
            function = scheduled(kernel.function, machine, rule, sizes)
            if function is None:
                continue
            loops = lowered(function, kernel.name, machine, settings)
            code = kernel_lines(loops, machine, settings, places, memory, sizes.get("tile", 0))
        except Unsupported as error:
            # What fails without a rule says the most.
            failure = error
            continue
        if best is None or code.scalar_lines < best.scalar_lines:
            best = code
        if not code.scalar:
            break
    if best is None:
        assert failure is not None
        raise failure
    return best


def lowered(function: tirx.PrimFunc, name: str, machine: Machine, settings: Settings) -> Loops:
    """Return a kernel as flat loops."""
    module = tvm.IRModule({"main": function})
    passes = [make() for key, make in PASSES.items() if key not in settings.disabled]
    for step in (*settings.before, *passes, *settings.after):
        module = step(module)
    main = next(memory.name for memory in machine.memories if memory.is_segmented)
    loops = read_kernel(module["main"], name, main)
    return loops if "alternate" in settings.disabled else alternate(loops, machine)


def kernel_lines(
    loops: Loops,
    machine: Machine,
    settings: Settings,
    places: Sequence[Where],
    memory: Layout,
    tile: int = 0,
) -> KernelLines:
    """Return the lines of a kernel whose tensors have places; `tile`: see `KernelCode`."""
    segmented = {memory.name for memory in machine.memories if memory.is_segmented}
    known = memory.own([buffer for buffer in loops.buffers if buffer.scope in segmented])
    own = [*known, *(buffer for buffer in loops.buffers if buffer.scope not in segmented)]
    known |= dict(zip(loops.parameters, places, strict=True))
    free: dict[str, int] = {}
    for buffer in loops.buffers:
        if buffer.scope in segmented:
            continue
        begin = free.get(buffer.scope, 0)
        size = machine.memory(buffer.scope).bytes
        free[buffer.scope] = begin + _aligned(buffer.bytes)
        if free[buffer.scope] > size:
            missing = free[buffer.scope] - size
            raise Unsupported(
                f"{buffer.name} of {loops.name} does not fit: {buffer.scope} has {size} bytes, and "
                f"{missing} more are needed"
            )
        known[buffer] = Where(machine.base(buffer.scope) + begin)
    selects = "select" not in settings.disabled
    code = KernelCode(
        machine, loops, known.__getitem__, free, memory.constant, vectors=selects, tile=tile
    )
    lines = Assembler(machine).assemble(with_waits(code.items(), machine))
    found = [(buffer.name, known[buffer].base, buffer.bytes) for buffer in own]
    if code.tiles:
        found.append(("tiles", code.tiles_at, code.tiles))
    return KernelLines(lines, code.scalar, found)
