# SPDX-License-Identifier: Apache-2.0
"""The canonicalization passes, in order, and the function that runs them.

Each pass is a `tvm.transform.module_pass` of its own name: instruments see it, and a backend can
switch it off by that name. None of them changes what a model computes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from ..table.table import Table
from . import (
    attention,
    dynamic,
    fold,
    grouped_heads,
    indices,
    kernels,
    normalize,
    packed,
    quantize_first,
    quantized_form,
    recognize,
    rows,
    scales,
    selections,
    sharing,
    signed,
    views,
    wide,
)
from .rewriting import (
    TUPLE_GET_ITEM,
    BlockRewriter,
    Reader,
    Rewriter,
    drop_unused,
    is_opaque,
    with_functions,
)

Run = Callable[[Reader, tvm.IRModule], tvm.IRModule]


@dataclass(frozen=True)
class Pass:
    """A canonicalization pass; `run` rewrites a module, which it reads through the `Reader`."""

    name: str
    run: Run


def _calls(name: str, rewriter: Rewriter, *ops: str) -> Pass:
    """Return a pass that replaces single calls of these ops."""
    return Pass(name, lambda reader, mod: reader.rewrite(mod, ops, [rewriter]))


def _blocks(name: str, rewriter: BlockRewriter) -> Pass:
    """Return a pass that replaces the bindings of dataflow blocks as a whole."""
    return Pass(name, lambda reader, mod: reader.rewrite_blocks(mod, rewriter))


def _of_tvm(name: str, transform: Callable[[tvm.IRModule], tvm.IRModule]) -> Pass:
    return Pass(name, lambda reader, mod: transform(mod))


_VIEWS = ("relax.broadcast_to", "relax.astype", "relax.expand_dims", "relax.squeeze")

CANONICALIZATION: tuple[Pass, ...] = (
    # All other passes rewrite dataflow blocks only. TVM's pass also resolves aliases.
    _of_tvm("ToDataflow", relax.transform.ConvertToDataflow(min_size=1)),
    # Before all passes that read types.
    _of_tvm("NameSizes", selections.name_sizes),
    # Early, since importers' kernels hide ops.
    _calls("RecoverOps", kernels.recover_op, "relax.call_tir"),
    # Before SimplifyViews, which drops casts to the same type.
    Pass("WidenBfloat16", wide.widen),
    _calls("SimplifyViews", views.simplify_view, *_VIEWS),
    # Before folding, which computes the index arithmetic if it is constant.
    _calls("FlattenIndices", indices.flatten_index, "relax.index_tensor"),
    _calls("PutByPlaces", indices.put_by_places, "relax.index_put"),
    _calls("CompareNaN", normalize.compare_nan, "relax.isnan"),
    _calls("CompareLargest", normalize.compare_largest, "relax.isfinite", "relax.isinf"),
    # Before folding, which would build a kernel for each initial constant.
    _calls("MaterializeConstants", fold.materialize_constant, *fold.MADE_OF_NOTHING),
    # Before folding, which leaves a dequantize of constants alone.
    _calls("ComputeBiases", quantized_form.compute_bias, quantized_form.DEQUANTIZE),
    # Before folding, which computes weights that are cast or multiplied.
    _blocks("UnpackWeights", packed.unpack_weights),
    _calls("ScaleWeights", scales.scale_weights, "relax.multiply"),
    _calls("KeepWeights", scales.keep_weights, "relax.matmul"),
    # Before all passes that read constants and the sizes in them.
    Pass("FoldConstants", fold.fold_constants),
    # After folding, which computes sums of weights, and before integers are moved.
    _calls("MultiplyBytes", dynamic.multiply_bytes, "relax.astype"),
    _calls("MultiplyRows", dynamic.multiply_rows, "relax.matmul"),
    # Before integers are moved, since element-wise ops compute with them.
    _calls("UnstackPairs", normalize.unstack_pairs, "relax.max", "relax.min", "relax.sum"),
    # After folding, which computes factors, and before transpositions are moved.
    _calls("ScaleFactors", scales.scale_factors, "relax.matmul"),
    # After folding, which computes zero points.
    _blocks("SignIntegers", signed.sign_integers),
    # After folding, which leaves a dequantize of constants alone, and before ops are put together.
    _blocks("MoveIntegers", quantized_form.move_integers),
    _calls("InterpolateReals", quantized_form.interpolate_reals, quantized_form.DEQUANTIZE),
    # After folding, which computes the indices.
    _calls("CountFromStart", indices.count_from_start, "relax.take"),
    # After MultiplyRows, which reads the rows of a product, and CountFromStart.
    _calls("TakeRowsFirst", rows.take_rows_first, "relax.strided_slice", "relax.take"),
    # After CountFromStart: the indices are read several times.
    _calls("TakeRows", indices.take_rows, "relax.take"),
    _blocks("DropEmpties", indices.drop_empties),
    # After RecoverOps, which recovers paddings.
    _calls("PadByTake", indices.pad_by_take, "relax.nn.pad"),
    # After folding, which computes the bounds.
    _calls("FormClips", normalize.form_clip, "relax.minimum"),
    _calls("FoldBatchNorm", normalize.fold_batch_norm, TUPLE_GET_ITEM),
    # After FormClips, which makes some of the clips.
    _calls("MergeClips", normalize.merge_clips, "relax.clip"),
    _calls("CompleteNorms", normalize.complete_norm, *normalize.NORMS),
    # Before the passes that match single transpositions.
    _calls("MergeTransposes", views.merge_transposes, "relax.permute_dims"),
    # Before the matmul around such a swap is unflattened, and before attention is matched.
    _calls("UnflattenSwaps", views.unflatten_swap, "relax.reshape"),
    _calls("UnflattenMatmuls", views.unflatten_matmul, "relax.reshape"),
    # Attention, from the scores outwards: each pass brings it closer to a chain of the table.
    _calls("ScaleOnce", attention.scale_once, "relax.matmul"),
    _calls("AddBiasesFirst", attention.add_biases_first, "relax.matmul"),
    _calls("GuardBehindAttention", attention.guard_behind_attention, "relax.matmul"),
    _calls("WidenBias", attention.widen_bias, "relax.nn.softmax"),
    _calls("TurnGuard", attention.turn_guard, "relax.permute_dims"),
    _calls("SwapKeys", attention.swap_key, "relax.matmul"),
    # After all passes that bring the scores' product next to the transposition of the keys.
    _calls("GroupHeads", grouped_heads.group_heads, "relax.matmul"),
    # After the passes that match real numbers that are moved.
    _blocks("QuantizeFirst", quantize_first.quantize_first),
    # After the passes that make clips.
    _calls("DropLimits", quantized_form.drop_limits, quantized_form.QUANTIZE),
    _blocks("DequantizeForEach", sharing.dequantize_for_each),
    # After all passes that turn other spellings into chains of the table.
    _blocks("RecognizeChains", recognize.recognize_chains),
    # Last: recognized ops may have several results too.
    _blocks("SplitResults", recognize.split_results),
    _of_tvm("DropUnused", drop_unused),
)
"""All passes, in order."""


def passes_for(table: Table, disabled: Iterable[str] = ()) -> list[tvm.transform.Pass]:
    """Return the passes for a table; they share a `Reader`."""
    if isinstance(disabled, str):
        raise ValueError(
            f"The disabled passes are one text, '{disabled}'; write a list: ['{disabled}']."
        )
    names = [listed.name for listed in CANONICALIZATION]
    without = set(disabled)
    for name in sorted(without.difference(names)):
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else f"; they are: {', '.join(names)}."
        raise ValueError(f"No canonicalization pass is named '{name}'{hint}")
    reader = Reader(table)
    return [
        _as_module_pass(listed, reader) for listed in CANONICALIZATION if listed.name not in without
    ]


def _as_module_pass(listed: Pass, reader: Reader) -> tvm.transform.Pass:
    def run(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        return listed.run(reader, mod)

    return tvm.transform.module_pass(run, opt_level=0, name=listed.name)


def simplify(
    mod: tvm.IRModule,
    table: Table,
    disabled: Iterable[str] = (),
    before: Sequence[tvm.transform.Pass] = (),
    after: Sequence[tvm.transform.Pass] = (),
) -> tvm.IRModule:
    """Canonicalize a model towards the ops and chains of the table."""
    passes = passes_for(table, disabled)
    for module_pass in before:
        mod = module_pass(mod)
    original = mod
    for module_pass in passes:
        mod = module_pass(mod)
    # TVM's passes rewrite the functions of other backends too.
    opaque = {
        global_var: original[global_var.name_hint]
        for global_var in mod.get_global_vars()
        if is_opaque(original[global_var.name_hint])
    }
    mod = with_functions(mod, {**dict(mod.functions_items()), **opaque})
    for module_pass in after:
        mod = module_pass(mod)
    return mod


def for_host(mod: tvm.IRModule, table: Table) -> tvm.IRModule:
    """Rewrite host ops of a partitioned model that TVM compiles wrongly, or not at all."""
    reader = Reader(table)
    mod = reader.rewrite(mod, ("relax.equal", "relax.not_equal"), [normalize.ask_for_nan])
    mod = reader.rewrite(mod, ("relax.nn.rms_norm",), [normalize.spell_out_norm])
    return reader.rewrite(mod, ("relax.full", "relax.full_like"), [normalize.spread_infinity])
