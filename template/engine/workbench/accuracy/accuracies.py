# SPDX-License-Identifier: Apache-2.0
"""The contents of the accuracy report, and its output formats."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import TypeVar

import numpy as np

from ...backend.shared.aliases import Array, JsonFields, JsonObject
from ...backend.shared.backend import BACKEND

T = TypeVar("T", bound="Accuracy")

VERSION = 1
"""The version of the JSON."""
_HIGHEST = 60.0
"""The signal-to-noise ratio in dB at which a bar of the picture is full."""


@dataclass(frozen=True)
class Accuracy:
    """How close some values are to those of the float model.

    Parameters
    ----------
    snr_db
        The ratio of signal to noise in decibels; infinite if the values are equal.
    cosine
        The cosine of the angle between both, as vectors.
    largest_error
        The largest error of an element.
    largest_error_steps
        The same in steps of the quantization of these values; none if they are not quantized.
    """

    snr_db: float
    cosine: float
    largest_error: float
    largest_error_steps: float | None = None


@dataclass(frozen=True)
class LayerAccuracy(Accuracy):
    """How close a layer is to the float model's, given the float model's inputs.

    Parameters
    ----------
    name, float_name
        The variable of its result in the quantized model, and in the float model.
    ops
        The ops in it; "quantize" if it only quantizes.
    runs_as
        The type in which each of these ops runs on this backend, without repetition.
    composites
        The labels of the composites that run them, or "host".
    origin
        The author's name of the product among these ops, or of the last one; none if unknown.
    """

    name: str = ""
    float_name: str = ""
    ops: tuple[str, ...] = ()
    runs_as: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    origin: str | None = None

    @property
    def title(self) -> str:
        """The author's name, or the variable's."""
        return self.origin or self.name

    @property
    def summary(self) -> str:
        """The names of the ops joined by +; of many, only the first and last."""
        shown = self.ops if len(self.ops) < 5 else (*self.ops[:2], "...", *self.ops[-1:])
        return "+".join(shown)


@dataclass(frozen=True)
class AccuracyReport:
    """The accuracy of a quantized model on this backend.

    Parameters
    ----------
    layers
        The layers, those with the lowest signal-to-noise ratio first.
    outputs
        The outputs of the whole model.
    differences
        Where the models could not be matched, so that layers are missing.
    """

    layers: tuple[LayerAccuracy, ...]
    outputs: tuple[Accuracy, ...]
    differences: tuple[str, ...] = ()

    def to_dict(self) -> JsonObject:
        """Return the report as plain data; a number that JSON does not have is a string."""
        return {
            "backend": BACKEND,
            "version": VERSION,
            "layers": [_plain(layer) for layer in self.layers],
            "outputs": [_plain(output) for output in self.outputs],
            "differences": list(self.differences),
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> AccuracyReport:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text
            The JSON.

        Returns
        -------
        report
            The report.

        Raises
        ------
        ValueError
            Another version has written it.
        """
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data: JsonFields) -> AccuracyReport:
        """Read what `to_dict` returned.

        Parameters
        ----------
        data
            The plain data.

        Returns
        -------
        report
            The report.

        Raises
        ------
        ValueError
            Another version has written it.
        """
        if data.get("version") != VERSION:
            raise ValueError(
                f"The accuracy report has version {data.get('version')}; supported: {VERSION}."
            )
        layers = tuple(_read(LayerAccuracy, layer) for layer in data["layers"])
        outputs = tuple(_read(Accuracy, output) for output in data["outputs"])
        return cls(layers, outputs, tuple(data["differences"]))

    def __str__(self) -> str:
        """Return a table, and a line for each output."""
        rows = [("layer", "ops", "runs as", "SNR in dB", "cosine", "largest error", "composite")]
        for layer in self.layers:
            head = (layer.title, layer.summary, ", ".join(layer.runs_as))
            rows.append((*head, *_numbers(layer), ", ".join(layer.composites)))
        rows += [
            (f"output {index}", "the whole model", "", *_numbers(output), "")
            for index, output in enumerate(self.outputs)
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.rjust(width) if column in (3, 4, 5) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self.differences])

    def to_svg(self) -> str:
        """Return a picture: the signal-to-noise ratio of each layer, as a bar, the worst first."""
        height, left, width = 18, 330, 300
        parts = []
        for index, layer in enumerate(self.layers):
            top = height * (index + 2)
            share = min(max(layer.snr_db, 0.0) / _HIGHEST, 1.0)
            kind = _kind(layer)
            label = html.escape(f"{layer.title} {layer.summary}")
            runs = html.escape(f"{_decibels(layer.snr_db)} dB, {', '.join(layer.runs_as)}")
            parts += [
                f'<text x="{left - 6}" y="{top + 13}" text-anchor="end">{label}</text>',
                f'<rect class="{kind}" x="{left}" y="{top + 2}" '
                f'width="{max(share * width, 1):.1f}" height="{height - 4}"/>',
                f'<text x="{left + width + 6}" y="{top + 13}">{runs}</text>',
            ]
        ends = ", ".join(f"{_decibels(output.snr_db)} dB" for output in self.outputs)
        title = html.escape(f"Signal-to-noise ratio of each layer; at the outputs: {ends}")
        size = f'width="{left + width + 330}" height="{height * (len(self.layers) + 3)}"'
        style = (
            "text{font:12px sans-serif}.integer{fill:#2a7}.real{fill:#58c}.host{fill:#c66}"
            ".title{font-weight:bold}"
        )
        legend = "green: integers; blue: real numbers; red: on the host"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
            f'<text class="title" x="6" y="16">{title}</text><text x="6" y="32">{legend}</text>'
            + "".join(parts)
            + "</svg>\n"
        )


def _plain(accuracy: Accuracy) -> dict[str, object]:
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(accuracy).items()
    }


def _read(kind: type[T], data: JsonFields) -> T:
    numbers = {each.name for each in fields(Accuracy)}
    names = {each.name for each in fields(kind)}
    # Data of a later release may have more fields.
    values = {key: value for key, value in data.items() if key in names}
    for key, value in values.items():
        if isinstance(value, list):
            values[key] = tuple(value)
        elif key in numbers and value is not None:
            values[key] = float(value)
    return kind(**values)


def _numbers(accuracy: Accuracy) -> tuple[str, str, str]:
    steps = accuracy.largest_error_steps
    error = f"{accuracy.largest_error:.3g}" if steps is None else f"{steps:.2f} steps"
    return _decibels(accuracy.snr_db), f"{accuracy.cosine:.6f}", error


def _decibels(value: float) -> str:
    return "exact" if value == math.inf else f"{value:.1f}"


def _kind(layer: LayerAccuracy) -> str:
    if any("host" in kind for kind in layer.runs_as):
        return "host"
    return "integer" if all("int" in kind for kind in layer.runs_as) else "real"


@dataclass
class Sums:
    """The accumulated errors of all batches of values, quantized with the scale `step` or None."""

    step: Array | None = None
    axis: int = -1
    _signal: float = field(default=0.0, init=False)
    _noise: float = field(default=0.0, init=False)
    _product: float = field(default=0.0, init=False)
    _energy: float = field(default=0.0, init=False)
    _largest: float = field(default=0.0, init=False)
    _steps: float = field(default=0.0, init=False)

    def add(self, expected: Array, actual: Array) -> None:
        """Add a batch of values of the float model, and of the quantized one."""
        if expected.size == 0:
            return
        steps = None if self.step is None else self.step.astype(np.float64)
        if steps is not None and steps.size > 1:
            shape = [1] * expected.ndim
            shape[self.axis] = -1
            steps = steps.reshape(shape)
        x, y = expected.astype(np.float64), actual.astype(np.float64)
        # Masks are infinite in both models.
        are_equal = (x == y) & ~np.isfinite(x)
        x, y = (np.where(are_equal, 0.0, values) for values in (x, y))
        error = np.abs(x - y)
        error = np.where(np.isfinite(error), error, np.inf)
        self._signal += float((x * x).sum())
        self._energy += float((y * y).sum())
        self._product += float((x * y).sum())
        self._noise += float((error * error).sum())
        self._largest = max(self._largest, float(error.max()))
        if steps is not None:
            self._steps = max(self._steps, float((error / steps).max()))

    def accuracy(self) -> Accuracy:
        """Return the accuracy of all values so far."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.float64(self._signal) / self._noise
            snr = math.inf if self._noise == 0 else float(10 * np.log10(ratio))
            norms = np.sqrt(np.float64(self._signal) * self._energy)
            cosine = 1.0 if self._noise == 0 else float(self._product / norms)
        return Accuracy(
            -math.inf if math.isnan(snr) else snr,
            0.0 if math.isnan(cosine) else cosine,
            self._largest,
            None if self.step is None else self._steps,
        )
