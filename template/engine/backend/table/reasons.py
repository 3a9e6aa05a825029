# SPDX-License-Identifier: Apache-2.0
"""Why an op is on the host, or wider than asked: a closed list of codes, carried by sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from ..shared.messages import FIX_SIZES, one_line

DECLINES = "the driver declines"
"""The beginning of the reason of an op that the driver declines."""

CHIP_LIMIT = " (a limit of this chip)"
"""The end of the reason of a refusal where the engine could compile the call."""

FAILED = "the driver failed"
"""Codegen's text before the driver's sentence, where its status is not a decline."""

_CAPABILITIES = "vendor/capabilities.py"
_IN_REACH = "The engine can compile it: if the chip can run it, widen the limit in "


class Code(Enum):
    """A kind of reason: of being on the host, or of computing in a wider type.

    The values are for programs: they are kept, and their list only grows.

    Each has a value, a meaning, and what would move the op to the NPU.
    """

    NOT_IN_TABLE = (
        "not_in_table",
        "the table of this backend has no such op",
        "Write the model with ops of the table, or add the op to EXTRA_OPS in "
        f"{_CAPABILITIES} with a lowering.",
    )
    NOT_SELECTED = (
        "not_selected",
        "the catalogue has the op, but this backend was rendered without it",
        "Select the op: answer the question 'ops' again with `copier update`.",
    )
    LEFT_OUT = (
        "left_out",
        "the limits of the chip leave the whole op to the host",
        f"{_IN_REACH}{_CAPABILITIES}.",
    )
    ARGUMENTS = (
        "arguments",
        "the call's arguments differ in number or kind from the table's entry",
        "Call the op with the arguments that the table has.",
    )
    UNKNOWN_TYPE = (
        "unknown_type",
        "the dtype, rank, shape or device of a tensor is not known, or a size cannot be planned",
        "Import the model with shapes and dtypes that are known; each size is a positive number or "
        f"a multiple of one symbol. Or {FIX_SIZES}.",
    )
    DTYPE = (
        "dtype",
        "the table has the op for other element types",
        "Cast to one of the types that are supported, or quantize the model.",
    )
    RANK = (
        "rank",
        "the table has the op for other numbers of dimensions",
        "Reshape to one of the ranks that are supported.",
    )
    SYMBOLIC_SIZE = (
        "symbolic_size",
        "a size is a symbol, where the op or the chip needs a number",
        f"Import the model with fixed sizes, or {FIX_SIZES}.",
    )
    RUN_TIME_SIZE = (
        "run_time_size",
        "a size is known only when the model runs, and nothing bounds it",
        "Name the largest value of the size in symbol_bounds. On the command line, "
        "`--option symbol_bounds=selected=100` bounds the size 'selected'.",
    )
    LAYOUT = (
        "layout",
        "the op is in a layout that is not supported",
        "Convert the model to the layout that is supported, for example by "
        "`relax.transform.ConvertLayout`.",
    )
    ATTRIBUTE = (
        "attribute",
        "an attribute has a value outside of its range",
        "Change the model so that the attribute has a value that is supported.",
    )
    RELATION = (
        "relation",
        "attributes or sizes do not relate as they must",
        "Change the model so that the relation holds.",
    )
    NOT_CONSTANT = (
        "not_constant",
        "an input must be a constant, but is computed or an argument",
        "Bind the weights: pass them as `params`, or import the model without "
        "`keep_params_in_input`.",
    )
    OPTION = (
        "option",
        "an option excludes it: bind_constants is off, or keep_on_host names it",
        "Change the option named in the reason.",
    )
    QUANTIZATION = (
        "quantization",
        "the scales, zero points or integers around it are not ones that it can compute with",
        "Quantize the model with `quantize_for_<name>`, or with scales as the sentence has them.",
    )
    NO_INTEGER_FORM = (
        "no_integer_form",
        "the table has no form of the op for quantized tensors",
        "Leave the op out of quantization, or use one that has such a form.",
    )
    REAL_INSIDE = (
        "real_inside",
        "the op reads and writes integers, and computes in floating point between them",
        "Nothing to do: its results are integers, as the model asks.",
    )
    USED_ELSEWHERE = (
        "used_elsewhere",
        "a value inside the composite that would hold it is used elsewhere too",
        "Compute the value a second time for its other reader.",
    )
    TUPLE = (
        "tuple",
        "its results are used as one tuple, or not at all",
        "Read the results one by one.",
    )
    SHADOWED = (
        "shadowed",
        "another composite of higher precedence holds an op that its own composite needs",
        "Leave the other composite out: narrow `fuses` of its op in "
        f"{_CAPABILITIES}, or select the op itself.",
    )
    NO_PATTERN = (
        "no_pattern",
        "the table has the op, but it fits no composite pattern here",
        "Compare the model with the composites of the op in the documentation.",
    )
    DECLINED_BY_SDK = (
        "declined_by_sdk",
        f"the function DECLINED_BY_SDK of {_CAPABILITIES} declines the call",
        "Change what the sentence names, or the function.",
    )
    DECLINED = (
        "declined",
        "the driver declines the composite, with its own sentence",
        "Change what the driver's sentence names, its options, or the driver.",
    )
    DECLINED_REGION = (
        "declined_region",
        "the driver takes each composite, but declines the region of all of them",
        "Set merge_regions to false, or change what the driver's sentence names.",
    )
    DRIVER_FAILED = (
        "driver_failed",
        "the driver reports a mistake in what was compiled, or fails, where it could decline",
        "Fix the lowering or the driver: the sentence is the driver's.",
    )
    TOO_SMALL = (
        "too_small",
        "its region has fewer ops than min_region_ops",
        "Lower min_region_ops, or move its neighbours to the NPU.",
    )
    MAX_REGIONS = (
        "max_regions",
        "there are more regions than max_regions, and its region is not among the largest",
        "Raise max_regions, or move what parts the regions to the NPU.",
    )
    CYCLE = (
        "cycle",
        "its region is too small, and a merge with its neighbour would make a cycle through the "
        "host",
        "Move the ops of the host between both regions to the NPU, or lower min_region_ops.",
    )
    KERNEL = (
        "kernel",
        "it calls a kernel that the importer has lowered",
        "Import the model so that the op stays an op of Relax.",
    )
    PACKED_CALL = (
        "packed_call",
        "it calls a packed function",
        "Write what the function does with ops of Relax.",
    )
    FUNCTION_CALL = (
        "function_call",
        "it calls a function, whose own ops are listed apart",
        "Nothing to do: the ops of the function have their own entries.",
    )
    CONTROL_FLOW = (
        "control_flow",
        "it chooses a branch, whose own ops are listed apart",
        "Nothing to do: the ops of the branches have their own entries.",
    )
    OTHER_BACKEND = (
        "other_backend",
        "it is a region of another backend",
        "Partition for this backend first.",
    )
    EFFECTS = (
        "effects",
        "it may have effects beyond its result, so that it keeps its place",
        "Write the model without the effect, so that it is in a dataflow block.",
    )
    LOCAL_FUNCTION = (
        "local_function",
        "it is inside a local function",
        "Run `relax.transform.LambdaLift` first.",
    )
    RECURSION = (
        "recursion",
        "a function of the module is recursive",
        "Unroll the recursion, or keep the loop outside of the model.",
    )

    meaning: str
    remedy: str

    def __new__(cls, value: str, meaning: str, remedy: str) -> Code:
        """Make a member whose value is the text in reports."""
        member = object.__new__(cls)
        member._value_ = value
        member.meaning, member.remedy = meaning, remedy
        return member


class Reason(str):
    """A sentence with its code.

    `code`: its kind.
    `text`: the sentence, with the value and what is allowed; line breaks become spaces.
    `of_chip`: whether the engine could compile the op, and a limit of the chip forbids it.
    `closeness`: how closely the op matches the entry of the table that refuses it, the larger the
    closer: attributes that do not suit, negative, and the stage of the check.
    """

    code: Code
    of_chip: bool
    closeness: tuple[int, int]

    def __new__(
        cls, code: Code, text: str, of_chip: bool = False, closeness: tuple[int, int] = (0, 5)
    ) -> Reason:
        """Make a sentence."""
        reason = super().__new__(cls, one_line(text))
        reason.code, reason.of_chip, reason.closeness = code, of_chip, closeness
        return reason

    def after(self, start: str) -> Reason:
        """Return it with something before it."""
        return Reason(self.code, f"{start}{self}", self.of_chip, self.closeness)

    def limited(self) -> Reason:
        """Return it as a limit of the chip."""
        return Reason(self.code, f"{self}{CHIP_LIMIT}", True, self.closeness)

    @property
    def remedy(self) -> str:
        """What would move the op to the NPU."""
        if not self.of_chip or self.code is Code.LEFT_OUT:
            return self.code.remedy
        return f"{_IN_REACH}{_CAPABILITIES}. Else: {self.code.remedy}"


def is_decline(answer: str) -> bool:
    """Whether a driver's answer declines something; a failure is none."""
    return bool(answer) and FAILED not in answer


def of_driver(answer: str, what: str = "it", code: Code = Code.DECLINED) -> Reason:
    """Return the driver's answer for a composite or a region; a failure is not a decline.

    `answer`: codegen's sentence with that of the driver; a reason if the driver was not asked.
    `code`: the code, if the driver declines.
    """
    if isinstance(answer, Reason):
        return answer
    if FAILED in answer:
        return Reason(Code.DRIVER_FAILED, f"{what} cannot be compiled: {answer}")
    return Reason(code, f"{DECLINES} {what}: {answer}")


def nearest(reasons: Sequence[Reason]) -> Reason:
    """Return the reasons of the entries that come closest as one, with the code of the first."""
    closest = max(reason.closeness for reason in reasons)
    near = [reason for reason in reasons if reason.closeness == closest]
    return Reason(near[0].code, "; ".join(dict.fromkeys(near)), near[0].of_chip, closest)


def alone_and_fused(alone: Reason, fused: Reason) -> str:
    """Say why an op is refused alone, and why as a part of a composite if that is another reason.

    It tells once what differs only in the names of op and tensor, and in what is supported.
    """

    def what(reason: Reason) -> str:
        return re.sub("'[^']*'", "''", reason.partition(": ")[2] or reason).split("; supported")[0]

    if alone.code is fused.code and what(alone) == what(fused):
        return str(alone)
    return f"{alone}. Fused with other ops it is refused as well: {fused}"
