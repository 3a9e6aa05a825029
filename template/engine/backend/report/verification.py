# SPDX-License-Identifier: Apache-2.0
"""The outcome of a verification: how far each result is from the original's."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..shared.aliases import JsonFields, JsonObject
from ..shared.plain_data import plain


@dataclass(frozen=True)
class ResultCheck:
    """How far one result is from the original's.

    Parameters
    ----------
    name
        Its name in the model, or its number.
    dtype, shape
        The original's type.
    error, allowed
        The error of the worst element, and its allowed error.
    differing, total
        How many elements differ at all, and how many there are.
    wrong
        What is wrong, as the end of a sentence about it; "" if all is right.
    remark
        Why the comparison says little, in the same form; "" if it says much.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    allowed: float
    differing: int
    total: int
    wrong: str = ""
    remark: str = ""

    @property
    def ratio(self) -> float:
        """The error as a part of what is allowed."""
        return self.error / self.allowed if self.error and self.allowed else float(self.error > 0)


@dataclass(frozen=True)
class Verification:
    """A compiled model against the original.

    Parameters
    ----------
    framework
        What ran the original, with its version.
    inputs
        What the inputs were, such as "random inputs, seed 0".
    results
        The results in order.
    wrong
        What is wrong with the results as a whole; "" if nothing is.
    """

    framework: str
    inputs: str
    results: tuple[ResultCheck, ...]
    wrong: str = ""

    @property
    def passed(self) -> bool:
        """Whether every result is right."""
        return not self.wrong and not any(item.wrong for item in self.results)

    def __str__(self) -> str:
        """Return it in one line."""
        count = "1 result" if len(self.results) == 1 else f"{len(self.results)} results"
        remarks = [f"{item.name!r} {item.remark}" for item in self.results if item.remark]
        if self.passed:
            worst = max((item.ratio for item in self.results), default=0.0)
            text = (
                f"verified against {self.framework}: {count}, worst difference {worst:.2g} of what "
                f"is allowed ({self.inputs})"
            )
            return "; but ".join([text, *remarks])
        wrong = [f"{item.name!r} {item.wrong}" for item in self.results if item.wrong]
        text = (
            f"the results differ from those of {self.framework} ({self.inputs}): "
            f"{'; '.join(filter(None, [self.wrong, *wrong]))}"
        )
        chosen = [item for item in self.results if item.wrong]
        if "random" in self.inputs and all("int" in item.dtype for item in chosen) and chosen:
            text += (
                ". Integers that a comparison chooses, such as the index of the largest value, may "
                "flip where random inputs give nearly equal values: try real inputs"
            )
        return text

    def to_dict(self) -> JsonObject:
        """Return it as plain data."""
        return {"passed": self.passed, "summary": str(self), **plain(self)}

    @classmethod
    def from_dict(cls, data: JsonFields) -> Verification:
        """Read what `to_dict` returned.

        Parameters
        ----------
        data
            The plain data; a later release may have more.

        Returns
        -------
        verification
            The verification.
        """
        names = [item.name for item in fields(ResultCheck)]
        results = []
        for item in data["results"]:
            known = {name: item[name] for name in names if name in item}
            results.append(ResultCheck(**{**known, "shape": tuple(item["shape"])}))
        return cls(data["framework"], data["inputs"], tuple(results), data.get("wrong", ""))
