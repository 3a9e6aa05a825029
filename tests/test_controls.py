"""Negative controls: broken backends that the conformance kit must catch.

One build contains all the bugs, each behind an environment variable, so that each bug costs a run
of the kit, not a build. Without the variable, the backend is correct, and the kit passes. What the
kit does not run, such as the quantizers, the backend's own tests must catch: suite `pytest`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import IN_ONE_PROCESS, ROOT, WINGS, Workshop, attempt

VARIABLE = "MISTAKE"
HEADER = f"""
#ifndef BROKEN  // Lowerings are compiled together.
#define BROKEN
#include <cstdlib>
#include <cstring>
inline bool Broken(const char* control) {{
  const char* chosen = std::getenv("{VARIABLE}");
  return chosen != nullptr && std::strcmp(chosen, control) == 0;
}}
#endif
"""
OPS = ["conv2d", "matmul", "max_pool2d", "add", "subtract", "relu", "softmax", "mean", "concat"]
OPS += ["pad", "quantize", "dequantize", "permute_dims", "tanh", "avg_pool2d"]
# Of a decoder, whose states are then updated in place.
OPS += ["where", "less_equal", "reshape", "state_update"]


@dataclass(frozen=True)
class Control:
    """A bug: where it is, and which part of the kit, or which of the tests, must find it."""

    name: str
    file: str
    old: str
    new: str
    suite: str
    filter: str


def behind(statement: str, mistake: str) -> tuple[str, str]:
    """Insert a bug after a statement."""
    return statement, f"{statement}\n    {mistake}"


EXECUTE = "engine/workbench/emulator/execute.cc"
LOWERING = "engine/backend/codegen/lowering.cc"
REQUANTIZATION = "engine/backend/codegen/requantization.cc"
KERNELS = "engine/workbench/emulator/kernels"
PRODUCTS = f"{KERNELS}/products.cc"
PASSES = "engine/backend/passes"
SESSIONS = "engine/backend/runtime/sessions.cc"
IN_PYTHON = f'__import__("os").environ.get("{VARIABLE}")'
STRIDES = "std::copy_n(op.strides, NPU_MAX_SPATIAL, args.strides);"
DILATIONS = "std::copy_n(op.dilations, NPU_MAX_SPATIAL, args.dilations);"
PADS = "std::copy_n(op.pads_begin, NPU_MAX_SPATIAL, args.pads_begin);"
CONTROLS = [
    # TVM's own example makes this mistake. The driver reports it, which is not a decline.
    Control(
        "lost_strides",
        "engine/backend/lowerings/convolution.h",
        "strides[i] = strides.at(i);",
        'strides[i] = Broken("lost_strides") ? 1 : strides.at(i);',
        "ops",
        "conv2d",
    ),
    Control(
        "ignored_stride",
        EXECUTE,
        *behind(STRIDES, 'if (Broken("ignored_stride")) std::fill_n(args.strides, 3, 1);'),
        "ops",
        "conv2d",
    ),
    Control(
        "ignored_dilation",
        EXECUTE,
        *behind(DILATIONS, 'if (Broken("ignored_dilation")) std::fill_n(args.dilations, 3, 1);'),
        "ops",
        "conv2d",
    ),
    Control(
        "padding_off_by_one",
        EXECUTE,
        *behind(PADS, 'if (Broken("padding_off_by_one")) ++args.pads_begin[0];'),
        "ops",
        "conv2d",
    ),
    Control(
        "lost_batch_element",
        EXECUTE,
        "    args.kind = op.kind;\n    args.spatial_rank = op.spatial_rank;",
        "    args.kind = op.kind;\n    args.spatial_rank = op.spatial_rank;\n"
        '    if (Broken("lost_batch_element") && args.data.dims[0] > 1) --args.data.dims[0];',
        "ops",
        "max_pool2d",
    ),
    Control(
        "ignored_fill",
        EXECUTE,
        *behind(
            "args.fill_value = op.fill_value;", 'if (Broken("ignored_fill")) args.fill_value = 0;'
        ),
        "ops",
        "pad",
    ),
    Control(
        "ignored_permutation",
        EXECUTE,
        "std::copy_n(op.permutation, NPU_MAX_RANK, args.permutation);",
        "std::copy_n(op.permutation, NPU_MAX_RANK, args.permutation);\n"
        '      if (Broken("ignored_permutation")) {\n'
        "        for (int32_t d = 0; d < NPU_MAX_RANK; ++d) args.permutation[d] = d;\n      }",
        "ops",
        "permute_dims",
    ),
    Control(
        "stale_buffer",
        EXECUTE,
        "  for (size_t i = 0; i < steps_.size();) {\n    if (cancel",
        "  // What an earlier call has left in the buffers passes for the result.\n"
        "  static std::atomic<int> calls{0};\n"
        '  if (Broken("stale_buffer") && ++calls % 2 == 0) return true;\n'
        "  for (size_t i = 0; i < steps_.size();) {\n    if (cancel",
        "contract",
        "matmul",
    ),
    Control(
        "dropped_bias",
        LOWERING,
        "    const Unit unit(graph(), node, op);",
        '    if (Broken("dropped_bias") && op->op == "relax.add") {\n'
        "      known[node] = value;\n      continue;\n    }\n"
        "    const Unit unit(graph(), node, op);",
        "composites",
        "bias",
    ),
    Control(
        "swapped_operands",
        "engine/backend/lowerings/binary.cc",
        "v.Subtract(x[0], x[1])",
        'Broken("swapped_operands") ? v.Subtract(x[1], x[0]) : v.Subtract(x[0], x[1])',
        "ops",
        "subtract",
    ),
    Control(
        "wrong_axis",
        "engine/backend/lowerings/normalization.cc",
        '(op.Int("axis") + rank) % rank',
        'Broken("wrong_axis") ? rank - 1 : (op.Int("axis") + rank) % rank',
        "ops",
        "softmax",
    ),
    Control(
        "wrong_zero_point",
        "engine/backend/lowerings/quantization.cc",
        "v.Subtract(x[0], x[2])",
        'Broken("wrong_zero_point") ? x[0] : v.Subtract(x[0], x[2])',
        "ops",
        "dequantize",
    ),
    Control(
        "wrong_rounding",
        "engine/backend/lowerings/quantization.cc",
        "v.RoundEven(v.Divide(x[0], x[1]))",
        'Broken("wrong_rounding") ? v.RoundAway(v.Divide(x[0], x[1]))\n'
        "                                   : v.RoundEven(v.Divide(x[0], x[1]))",
        "ops",
        "quantize",
    ),
    Control(
        "ignored_zero_point",
        LOWERING,
        "known.data_zero_point = ZeroPoint(0);",
        'known.data_zero_point = Broken("ignored_zero_point") ? 0 : ZeroPoint(0);',
        "quantized",
        "conv2d",
    ),
    Control(
        "wrong_rescaling",
        REQUANTIZATION,
        "made.rounding = rule.rounding;",
        'made.rounding = Broken("wrong_rescaling") ? NPU_ROUND_DOWN : rule.rounding;',
        "quantized",
        "conv2d",
    ),
    Control(
        "padding_without_zero_point",
        f"{KERNELS}/byte_convolution.cc",
        "  return quads ? ZeroQuad(args.data.dtype, args.data_zero_point) : 0;",
        '  if (Broken("padding_without_zero_point")) {\n'
        "    if (quads) return ZeroQuad(args.data.dtype, 0);\n"
        "    uint32_t pair = static_cast<uint32_t>(-args.data_zero_point) & 0xffff;\n"
        "    pair |= pair << 16;\n"
        "    float padding;\n"
        "    std::memcpy(&padding, &pair, sizeof(pair));\n"
        "    return padding;\n  }\n"
        "  return quads ? ZeroQuad(args.data.dtype, args.data_zero_point) : 0;",
        "quantized",
        "conv2d",
    ),
    Control(
        "missing_saturation",
        LOWERING,
        "v.Constant(steps.least)), v.Constant(steps.most));",
        'v.Constant(steps.least - (Broken("missing_saturation") ? 1000 : 0))),\n'
        "                     v.Constant(steps.most + "
        '(Broken("missing_saturation") ? 1000 : 0)));',
        "quantized",
        "matmul",
    ),
    Control(
        "scale_of_the_next_channel",
        REQUANTIZATION,
        "factors[i] = scale[i] / step[0];",
        "{\n    size_t from = i;\n"
        '    if (Broken("scale_of_the_next_channel")) from = (i + 1) % scale.size();\n'
        "    factors[i] = scale[from] / step[0];\n  }",
        "quantized",
        "matmul",
    ),
    Control(
        "swapped_scale_of_the_residual",
        REQUANTIZATION,
        "MakeFactors(call, rule, {scales[0] / step[0]})",
        'MakeFactors(call, rule, {Broken("swapped_scale_of_the_residual")\n'
        "                                                ? step[0] / scales[0]\n"
        "                                                : scales[0] / step[0]})",
        "quantized",
        "residual",
    ),
    Control(
        "padding_counts_always",
        "engine/backend/lowerings/pool.h",
        "if (at >= least && at < end) ++count;",
        'if (Broken("padding_counts_always") || (at >= least && at < end)) ++count;',
        "quantized",
        "avg_pool2d",
    ),
    Control(
        "zero_points_in_the_sum",
        LOWERING,
        "offset_ = count * ZeroPoint(0);",
        'offset_ = Broken("zero_points_in_the_sum") ? 0 : count * ZeroPoint(0);',
        "quantized",
        "mean",
    ),
    Control(
        "table_of_the_other_type",
        "engine/backend/codegen/table.cc",
        "EndsOf(from).first",
        'EndsOf((from == NPU_INT8) != Broken("table_of_the_other_type") ? NPU_INT8\n'
        "                                                             : NPU_UINT8)\n"
        "                           .first",
        "quantized",
        "tanh",
    ),
    Control(
        "joined_without_rescaling",
        f"{PASSES}/quantized_form.py",
        "return same_type and _same_parameters(call, source, values)",
        f'alike = {IN_PYTHON} == "joined_without_rescaling"\n'
        "    return same_type and (alike or _same_parameters(call, source, values))",
        "quantized",
        "joined",
    ),
    Control(
        "ties_in_another_way",
        LOWERING,
        "v.Load(Integers(dims, by.shifts)),\n                   by.rounding);",
        "v.Load(Integers(dims, by.shifts)),\n"
        '                   Broken("ties_in_another_way") ? NPU_ROUND_HALF_EVEN : by.rounding);',
        "quantized",
        "ties",
    ),
    Control(
        "swapped_halves",
        PRODUCTS,
        "    const int high = i + 1 < bytes ? packed[i + 1] << 4 : 0;",
        "    const int high = i + 1 < bytes ? packed[i + 1] << 4 : 0;\n"
        '    if (Broken("swapped_halves")) {\n'
        "      halves[i / 2] = static_cast<uint8_t>((packed[i] & 15) << 4 | (high >> 4 & 15));\n"
        "      continue;\n    }",
        "quantized",
        "int4",
    ),
    Control(
        "accumulator_of_24_bits",
        f"{KERNELS}/integer_sums.cc",
        "  simd_.requantize(how_, sums, rows, kPanelColumns, columns,",
        '  if (Broken("accumulator_of_24_bits")) {\n'
        "    auto* all = reinterpret_cast<int32_t*>(const_cast<float*>(sums));\n"
        "    for (int64_t i = 0; i < rows; ++i) {\n"
        "      for (int64_t j = 0; j < columns; ++j) {\n"
        "        int32_t& sum = all[i * kPanelColumns + j];\n"
        "        sum = static_cast<int32_t>(static_cast<uint32_t>(sum) << 8) >> 8;\n"
        "      }\n      }\n    }\n"
        "  simd_.requantize(how_, sums, rows, kPanelColumns, columns,",
        "quantized",
        "long",
    ),
    Control(
        "sums_of_int16_in_32_bits",
        PRODUCTS,
        "        std::copy_n(sums, block, real);",
        '        for (int64_t k = 0; k < block && Broken("sums_of_int16_in_32_bits"); ++k) {\n'
        "          sums[k] = static_cast<int32_t>(sums[k]);\n        }\n"
        "        std::copy_n(sums, block, real);",
        "quantized",
        "conv2d-long",
    ),
    Control(
        "bias_behind_reshape_is_zero",
        f"{PASSES}/evaluate.py",
        'np.reshape(x, attributes["out_shape"])',
        "np.reshape(np.zeros_like(x) if "
        f'{IN_PYTHON} == "bias_behind_reshape_is_zero" else x, attributes["out_shape"])',
        "fuzz",
        "integer graphs",
    ),
    Control(
        "weights_folded_to_float",
        f"{PASSES}/sharing.py",
        "if isinstance(data, Constant) and not ",
        f'if isinstance(data, Constant) and {IN_PYTHON} == "weights_folded_to_float" or '
        "isinstance(data, Constant) and not ",
        "quantized",
        "matmul",
    ),
    Control(
        "scores_quantized_before_a_topk",
        "engine/workbench/quantization/planning.py",
        "return {name for group in self.units for name in inputs_of(group)}",
        f'edges = {IN_PYTHON} == "scores_quantized_before_a_topk"\n'
        "        read = edges_of if edges else inputs_of\n"
        "        return {name for group in self.units for name in read(group)}",
        "pytest",
        "scores_that_a_topk_reads_stay_float",
    ),
    Control(
        "lost_nan",
        "engine/backend/lowerings/activation.cc",
        "v.Maximum(x[0], v.Constant(0))",
        'Broken("lost_nan") ? v.Select(v.Less(v.Constant(0), x[0]), x[0], v.Constant(0))\n'
        "                            : v.Maximum(x[0], v.Constant(0))",
        "ops",
        "relu",
    ),
    Control(
        "swallowed_error",
        "engine/backend/runtime/execution.cc",
        "    npu_status status = driver_.execute(request->handle);",
        "    npu_status status = driver_.execute(request->handle);\n"
        '    if (Broken("swallowed_error")) status = NPU_OK;',
        "contract",
        "matmul",
    ),
    Control(
        "a_row_too_many",
        SESSIONS,
        "const bool is_behind = number >= size - most;",
        'const bool is_behind = number >= size - most + (Broken("a_row_too_many") ? 1 : 0);',
        "states",
        "behind_the_last_row",
    ),
    Control(
        "a_reset_of_nothing",
        SESSIONS,
        "for (HeldState& state : claim->states) state.Keep(std::nullopt);",
        "for (HeldState& state : claim->states) {\n"
        '               if (!Broken("a_reset_of_nothing")) state.Keep(std::nullopt);\n'
        "             }",
        "states",
        "a_reset",
    ),
    Control(
        "one_session_for_all",
        SESSIONS,
        "    int64_t id = next_++;",
        '    int64_t id = Broken("one_session_for_all") ? 1 : next_++;',
        "states",
        "in_turn_are_those_apart",
    ),
    Control(
        "all_models_alike",
        "engine/backend/ir/sessions.py",
        "return found.hexdigest()",
        f'return "" if {IN_PYTHON} == "all_models_alike" else found.hexdigest()',
        "states",
        "of_another_model",
    ),
    Control(
        "copies_share_memory",
        SESSIONS,
        "const bool is_it = memory.use_count() == 1;",
        'const bool is_it = memory.use_count() == 1 || Broken("copies_share_memory");',
        "states",
        "a_copy",
    ),
    Control(
        "a_stale_row",
        f"{KERNELS}/gather.cc",
        "    if (position < 0 || position >= size) continue;",
        "    if (position < 0 || position >= size) continue;\n"
        '    if (Broken("a_stale_row") && position == size - 1) continue;',
        "states",
        "filled_to_its_last_row",
    ),
    Control(
        "failures_forgotten",
        SESSIONS,
        "    claim_->has_failed = true;",
        '    claim_->has_failed = !Broken("failures_forgotten");',
        "states",
        "marks_its_session",
    ),
    Control(
        "declines_everything",
        LOWERING,
        "void Lowering::Lower() {",
        'void Lowering::Lower() {\n  if (Broken("declines_everything")) throw Refusal("no");',
        "ops",
        "relu",
    ),
]


@pytest.fixture(scope="module")
def kit(
    render: Callable[..., Path], workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[int, str]]:
    """Build the backend with all bugs; return a function that runs the kit on it."""
    project = tmp_path_factory.mktemp("broken") / "backend"
    shutil.copytree(render(backend_name="broken", op_preset="custom", ops=OPS), project)
    for control in CONTROLS:
        path = project / control.file
        text = path.read_text()
        text = text.replace(control.old, control.new)
        if path.suffix in (".cc", ".h") and HEADER not in text:
            # After the comments at the top of the file.
            text = re.sub(r"^#include", f"{HEADER}\n#include", text, count=1, flags=re.MULTILINE)
        path.write_text(text)
    python = workshop.environment(workshop.build(project))

    def run_kit(suite: str, filters: Iterable[str], mistake: str = "") -> tuple[int, str]:
        if suite == "pytest":
            command = [python, "-m", "pytest", "-q", *WINGS, "-k", " or ".join(filters)]
            done = attempt(*command, cwd=project, **{VARIABLE: mistake})
            return done.returncode, done.stdout
        command = [python, "-m", "tvm_broken", "conformance", *IN_ONE_PROCESS]
        command += ["--suite", suite]
        command += [part for text in filters for part in ("--filter", text)]
        # The fuzz suite writes its findings to the working directory.
        done = attempt(*command, cwd=project, **{VARIABLE: mistake})
        return done.returncode, done.stdout

    return run_kit


def test_the_engine_has_the_text_that_each_control_replaces() -> None:
    changed = [
        f"{control.name}: {control.file}"
        for control in CONTROLS
        if control.old not in (ROOT / "template" / control.file).read_text()
    ]
    assert not changed


@pytest.mark.slow
@pytest.mark.parametrize("suite", sorted({control.suite for control in CONTROLS}))
def test_the_kit_passes_the_backend_without_a_mistake(
    suite: str, kit: Callable[..., tuple[int, str]]
) -> None:
    code, text = kit(suite, {control.filter for control in CONTROLS if control.suite == suite})
    assert code == 0, text


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_the_kit_catches_each_mistake(
    control: Control, kit: Callable[..., tuple[int, str]]
) -> None:
    code, text = kit(control.suite, [control.filter], control.name)
    assert code == 1, text
    # The run finished, and found the bug.
    end = " failed, " if control.suite == "pytest" else "FAILED: "
    assert end in text.splitlines()[-1], text
