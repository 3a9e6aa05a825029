# SPDX-License-Identifier: Apache-2.0
"""Makes the accuracy report: runs each layer, the whole model, and the float model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict

import tvm
from tvm import relax

from ...backend.ir.amounts import is_product
from ...backend.passes import CANONICALIZATION, passes_for
from ...backend.passes.quantized_form import DEQUANTIZE, QUANTIZE
from ...backend.passes.rewriting import op_name
from ...backend.regions.partition import compile_for, compile_partitioned, partition_for
from ...backend.report.report import OpPlacement, offload_report
from ...backend.settings.options import Options, Source
from ...backend.shared.aliases import Array
from ...backend.table.patterns import TABLE
from ..batches import Batch, read_batch
from .accuracies import AccuracyReport, LayerAccuracy, Sums
from .matching import match
from .model_values import Graph
from .quantized_layers import Layer, cut, reading, with_kernels


def accuracy_report(
    float_model: tvm.IRModule,
    quantized_model: tvm.IRModule,
    inputs: Sequence[Array] | Sequence[Sequence[Array]],
    *,
    target: object = "llvm",
    options: Source = None,
    **settings: object,
) -> AccuracyReport:
    """Compare a quantized model with the float model that it was made from.

    Each layer runs on this backend with the float model's values as its inputs, so that errors do
    not accumulate; the whole model runs unchanged. The float model runs on the host, with TVM's own
    kernels. All of its values that layers read are in memory for one batch at a time.

    Parameters
    ----------
    float_model, quantized_model
        Both as the importers return them, before any pass.
    inputs
        The inputs of the model, or a sequence of such batches, all of the same shapes.
    target
        The target of the host part.
    options
        `Options`, a mapping, or the path of a .toml or .json file.
    **settings
        Single options, which take precedence over those.

    Returns
    -------
    report
        Its `str` is a table, the layers that lose most first; also as JSON and as a picture.

    Raises
    ------
    TypeError
        A model is not a `tvm.IRModule`.
    ValueError
        The models do not belong together, the inputs do not fit, or an option is not supported.
    RuntimeError
        Something stays on the host, which `on_decline` or `strict` forbids.
    """
    loaded = Options.load(options).merged(**settings)
    models = {"float model": float_model, "quantized model": quantized_model}
    for name, mod in models.items():
        if not isinstance(mod, tvm.IRModule):
            raise TypeError(f"The {name} is of type {type(mod).__name__}; supported: tvm.IRModule.")
    batches = _batches(inputs, Graph(quantized_model, "quantized model").params)
    real, quantized = (Graph(_as_ops(mod, batches[0]), name) for name, mod in models.items())
    _check_models(real, quantized)
    pairs, differences = match(quantized, real)
    where = _Placements(partition_for(quantized.mod, options=loaded))
    # The passes drop calls that quantize the same integers again.
    layers = [
        layer
        for layer in cut(quantized, pairs, where.names)
        if layer.ops or where.composites_of(layer)
    ]
    if not layers:
        raise ValueError(
            "No layer of the quantized model could be matched with the float model: "
            + (differences[0] if differences else "nothing is computed.")
        )
    whole_model = _machine(compile_partitioned(where.partitioned, loaded, target))
    names = [f"layer{index}" for index in range(len(layers))]
    functions = {name: layer.function for name, layer in zip(names, layers, strict=True)}
    # The whole model was checked above for ops that must not be on the host.
    layer_machine = _machine(
        compile_for(
            with_kernels(quantized, functions),
            target=target,
            options=loaded.merged(on_decline="host", strict=False),
        )
    )
    read = list(dict.fromkeys(var for layer in layers for var in (*layer.inputs, layer.output)))
    reference = _machine(
        tvm.compile(with_kernels(real, {"main": reading(real, [*read, *real.results])}), target)
    )
    sums = [Sums(layer.step, layer.axis) for layer in layers]
    ends: list[Sums] = []
    for batch in batches:
        real_values = _run(reference, "main", batch)
        values = dict(zip(read, real_values, strict=False))
        for name, layer, total in zip(names, layers, sums, strict=True):
            (result,) = _run(
                layer_machine, name, [values[var] for var in layer.inputs], layer.function.params
            )
            total.add(values[layer.output], result)
        outputs = _run(whole_model, "main", batch)
        ends = ends or [Sums() for _ in outputs]
        for total, real_end, result in zip(ends, real_values[len(read) :], outputs, strict=True):
            total.add(real_end, result)
    rows = [
        LayerAccuracy(
            **asdict(total.accuracy()),
            name=layer.name,
            float_name=layer.real_name,
            ops=layer.ops or ("quantize",),
            runs_as=where.types_of(layer),
            composites=where.composites_of(layer),
            origin=where.origin_of(layer),
        )
        for layer, total in zip(layers, sums, strict=True)
    ]
    rows.sort(key=lambda row: row.snr_db)
    return AccuracyReport(
        tuple(rows), tuple(total.accuracy() for total in ends), tuple(differences)
    )


def _machine(executable: object) -> relax.VirtualMachine:
    return relax.VirtualMachine(executable, tvm.cpu())


def _run(
    machine: relax.VirtualMachine,
    name: str,
    arguments: Sequence[Array],
    params: Sequence[relax.Var] = (),
) -> list[Array]:
    arrays = list(arguments)
    for index, param in enumerate(params):
        arrays[index] = arrays[index].astype(str(param.ty.dtype))
    result = machine[name](*map(tvm.runtime.tensor, arrays))
    outputs = [result] if isinstance(result, tvm.runtime.Tensor) else result
    return [output.numpy() for output in outputs]


def _batches(
    inputs: Sequence[Array] | Sequence[Sequence[Array]], params: Sequence[relax.Var]
) -> list[list[Array]]:
    """Return the batches as lists of arrays that fit."""
    given = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not given:
        raise ValueError("There are no inputs; give those of the model, or several batches.")
    separate = [given] if hasattr(given[0], "dtype") else given
    expected = {
        str(param.name): (
            str(param.ty.dtype),
            [getattr(size, "value", None) for size in getattr(param.ty.shape, "values", ())],
        )
        for param in params
    }
    batches: list[Batch] = []
    for index, arrays in enumerate(separate):
        where = f"batch {index} of the inputs" if len(separate) > 1 else "the inputs"
        batches.append(read_batch(arrays, where, expected))
        for name, array in batches[-1].items():
            if array.shape != (first := batches[0][name].shape):
                raise ValueError(
                    f"{where}: '{name}' has the shape {array.shape}, in the first batch {first}; "
                    "all batches must have the same shapes."
                )
    return [list(batch.values()) for batch in batches]


def _as_ops(mod: tvm.IRModule, batch: Sequence[Array]) -> tvm.IRModule:
    """Bind symbolic sizes to those of the inputs, and recover ops from kernels."""
    sizes: dict[str, int] = {}
    for param, array in zip(mod["main"].params, batch, strict=False):
        for size, length in zip(getattr(param.ty.shape, "values", ()), array.shape, strict=False):
            if isinstance(size, tvm.tirx.Var):
                sizes[size.name] = int(length)
    if sizes:
        mod = relax.transform.BindSymbolicVars(sizes, "main")(mod)
    for module_pass in passes_for(TABLE, {each.name for each in CANONICALIZATION} - _RECOVER):
        mod = module_pass(mod)
    return mod


_RECOVER = {
    "ToDataflow",
    "RecoverOps",
    "MaterializeConstants",
    "ScaleWeights",
    "FoldConstants",
    "FormClips",
}
"""Importers write a clip as kernels in one model, and as an op in the other; torchao writes weights
of 8 bits as casts, which folding would make real numbers."""


def _check_models(*both: Graph) -> None:
    for kind, part in (("inputs", "params"), ("outputs", "results")):
        kinds = [", ".join(str(var.ty) for var in getattr(graph, part)) for graph in both]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"The models have different {kind}: the float model {kinds[0]}; "
                f"the quantized model {kinds[1]}."
            )
    has = [
        any(op_name(value) in (QUANTIZE, DEQUANTIZE) for value in graph.values.values())
        for graph in both
    ]
    if has != [False, True]:
        which = "float model has" if has[0] else "quantized model has no"
        raise ValueError(
            f"The {which} quantize or dequantize. The first argument is the float model, the "
            "second the quantized one, both as from_onnx or from_exported_program returns them."
        )


class _Placements:
    """Where the ops of a partitioned model run, and on which types."""

    def __init__(self, partitioned: tvm.IRModule) -> None:
        self.partitioned = partitioned
        self._ops: dict[str, list[OpPlacement]] = {}
        for op in offload_report(partitioned).ops:
            # The passes append _integers where they move integers instead of real numbers.
            self._ops.setdefault(op.name.removesuffix("_integers"), []).append(op)

    @property
    def names(self) -> Set[str]:
        """The names of the values that this backend or the host computes."""
        return self._ops.keys()

    def types_of(self, layer: Layer) -> tuple[str, ...]:
        """Return the types in which a layer's ops run."""
        return tuple(dict.fromkeys(_type(op) for op in self._computing(layer)))

    def composites_of(self, layer: Layer) -> tuple[str, ...]:
        """Return the labels of the composites that run a layer's ops."""
        return tuple(dict.fromkeys(op.composite or "host" for op in self._computing(layer)))

    def origin_of(self, layer: Layer) -> str | None:
        """Return the author's name of a layer's product, or of its last op."""
        named = [op for op in self._computing(layer) if op.origin]
        products = [op for op in named if is_product(op.op)]
        return next((str(op.origin) for op in [*products, *named[::-1]]), None)

    def _computing(self, layer: Layer) -> list[OpPlacement]:
        ops = [op for name in layer.members for op in self._ops.get(name, ())]
        return [op for op in ops if op.op not in (QUANTIZE, DEQUANTIZE)] or ops


def _type(op: OpPlacement) -> str:
    dtype = op.runs_in or "unknown"
    return f"{dtype} on the host" if op.placement == "host" else dtype
