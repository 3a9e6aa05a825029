"""The driver interface is stable: drivers of all released versions work with today's engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import BUILD_MODEL, ROOT, Workshop, run

FROZEN = sorted(path.name for path in (ROOT / "tests/frozen_drivers").iterdir())
HEADER = ROOT / "template/engine/backend/include/npu_driver.h"
C11 = ("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror")


def test_the_header_is_c11(tmp_path: Path) -> None:
    source = tmp_path / "includes.c"
    source.write_text(
        '#include "npu_driver.h"\n#include "npu_driver.h"\n'
        "int main(void) { return sizeof(npu_run_api) == 0; }\n"
    )
    run("cc", *C11, "-I", HEADER.parent, "-o", tmp_path / "includes", source)
    run(tmp_path / "includes")


def test_the_layouts_that_the_docs_show_compile(tmp_path: Path) -> None:
    shown = re.findall(r"```c\n(.*?)```", (ROOT / "docs/driver-abi.md").read_text(), re.DOTALL)
    assert len(shown) == 2
    for index, code in enumerate(shown):
        source = tmp_path / f"shown{index}.c"
        source.write_text(
            f'#include <string.h>\n#include "npu_driver.h"\n{code}\n'
            "int main(void) { return layout(0, 0); }\n"
        )
        run("cc", *C11, "-Wno-unused-parameter", "-fsyntax-only", "-I", HEADER.parent, source)


def values(header: str) -> dict[str, int]:
    """Read the values of enumerators, each of which must be explicit."""
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", header, re.DOTALL):
        code = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        for item in filter(None, map(str.strip, code.split(","))):
            assert re.fullmatch(r"NPU_\w+ = \d+", item), f"{item} has no explicit value"
    return {name: int(value) for name, value in re.findall(r"(NPU_\w+) = (\d+)", header)}


def structs(header: str) -> dict[str, list[str]]:
    """Read the declarations of the fields of all structs."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return {
        name: [" ".join(field.split()) for field in body.split(";") if field.strip()]
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\n\} (\w+);", code, re.DOTALL)
    }


@pytest.mark.parametrize("version", FROZEN)
def test_the_header_only_appends_to_older_ones(version: str) -> None:
    frozen = ROOT / "tests/frozen_drivers" / version / HEADER.name
    now, then = HEADER.read_text(), frozen.read_text()
    assert values(then).items() <= values(now).items()
    for name, fields in structs(then).items():
        kept = structs(now)[name]
        assert kept[: len(fields)] == fields, f"{name} is another"
        assert kept == fields or fields[0] == "uint32_t size", f"{name} must not grow"


def test_the_page_says_which_structs_may_grow() -> None:
    page = (ROOT / "docs/driver-abi.md").read_text()
    (never,) = re.findall(r"- All other structs never grow(.*?)\n- ", page, re.DOTALL)
    declared = structs(HEADER.read_text()).items()
    fixed = {name for name, fields in declared if fields[0] != "uint32_t size"}
    assert set(re.findall(r"`(npu_\w+)`", never)) == fixed


OVERLAY = """
enable_language(C)
set(NPU_VENDOR_LOWERINGS "${CMAKE_CURRENT_LIST_DIR}/lowerings/sigmoid.cc")
set(NPU_VENDOR_DRIVER_SOURCES "${CMAKE_CURRENT_LIST_DIR}/driver/driver.c")
set(NPU_VENDOR_DRIVER_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/driver")
set(NPU_VENDOR_DRIVER_LIBRARIES m)
"""

SCRIPT = (
    BUILD_MODEL
    + """
import numpy as np
import pytest
import tvm
import tvm_frozen_npu as backend

assert backend.Options().driver == "vendor"
assert backend.Options(speed="slow").recorded()["speed"] == "slow"
for wrong in ({"speed": "fastest"}, {"scratchpad_bytes": 4096}, {"driver": "emulator"}):
    with pytest.raises(ValueError, match="supported|known"):
        backend.Options(**wrong)

def check(make, expected, *shapes):
    mod = build(make, *shapes)
    report = backend.offload_report(backend.partition_for_frozen_npu(mod))
    assert all(op.placement == "npu" for op in report.ops), report
    machine = relax.VirtualMachine(backend.compile_for_frozen_npu(mod), tvm.cpu())
    generator = np.random.default_rng(0)
    for _ in range(2):
        arrays = [generator.standard_normal(s, dtype="float32") for s in shapes]
        found = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
        np.testing.assert_allclose(found, expected(*arrays), rtol=1e-5, atol=1e-6)

op = relax.op
sigmoid = lambda x: 1 / (1 + np.exp(-x))
check(op.nn.relu, lambda x: np.maximum(x, 0), (4, 8))
check(lambda x: op.nn.leakyrelu(x, 0.25), lambda x: np.where(x > 0, x, x / 4), (3,))
check(lambda x: op.clip(x, -0.5, 0.25), lambda x: np.clip(x, -0.5, 0.25), (2, 3, 4))
row = np.arange(8, dtype="float32") - 3
check(lambda x: op.nn.relu(op.add(x, relax.const(row))), lambda x: np.maximum(x + row, 0), (4, 8))
check(lambda x, y: op.multiply(x, op.add(y, x)), lambda x, y: x * (y + x), (4, 8), (8,))
check(op.sigmoid, sigmoid, (4, 8))
check(lambda x: op.sigmoid(op.add(x, x)), lambda x: sigmoid(2 * x), (4, 8))

def reason(make, *shapes):
    report = backend.offload_report(backend.partition_for_frozen_npu(build(make, *shapes)))
    (entry,) = report.ops
    assert entry.placement == "host", report
    return entry.reason

assert "a sigmoid has rank 3 at most" in reason(op.sigmoid, (1, 2, 3, 4))
assert "the driver frozen has no add_matmul" in reason(op.matmul, (2, 3), (3, 4))
assert "it has no step of kind" in reason(op.erf, (2, 3))
{of_the_version}
print("right")
"""
)
OF_VERSION = {
    "v1": """
assert "the driver frozen has no add_pool" in reason(op.nn.max_pool2d, (1, 2, 6, 5))
""",
    "v2": """
def pool(x):
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), axis=(2, 3))
    return windows.max((4, 5))[:, :, ::2, ::2]

# The engine permutes: the driver pools channels last.
halve = lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2))
check(halve, pool, (2, 3, 6, 5))
check(lambda x: op.nn.relu(halve(op.add(x, x))), lambda x: np.maximum(pool(2 * x), 0), (2, 3, 6, 5))
shift = np.arange(3, dtype="float32").reshape(3, 1, 1)
check(lambda x: op.add(halve(x), relax.const(shift)), lambda x: pool(x) + shift, (1, 3, 4, 4))
assert "two spatial dimensions" in reason(op.nn.max_pool1d, (1, 2, 6))
""",
}
OF_VERSION["v3"] = (
    OF_VERSION["v2"]
    + """
# Channels in blocks, where they divide the channels; also an operand with one element for each.
check(halve, pool, (2, 4, 6, 5))
check(lambda x: op.nn.relu(halve(op.add(x, x))), lambda x: np.maximum(pool(2 * x), 0), (2, 4, 6, 5))
shift = np.arange(4, dtype="float32").reshape(4, 1, 1)
check(lambda x: op.add(halve(x), relax.const(shift)), lambda x: pool(x) + shift, (1, 4, 4, 4))

halved = backend.compile_for_frozen_npu(build(lambda x: op.nn.relu(halve(x)), (2, 4, 6, 5)))
profile = backend.profile(halved, np.ones((2, 4, 6, 5), "float32"))
assert {event.name for event in profile.events} == {"pool", "steps"}, profile.events
assert sum(event.busy for event in profile.events) == 2 * 2 * 4 * 3 * 2, profile.events
"""
)


def sample() -> str:
    """The lowering that docs/driver-abi.md shows."""
    (code,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/driver-abi.md").read_text(), re.DOTALL)
    return str(code)


@pytest.mark.slow
@pytest.mark.parametrize("version", FROZEN)
def test_a_driver_of_an_older_version_runs_through_the_whole_stack(
    version: str, render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    ops = ["add", "multiply", "relu", "leakyrelu", "clip", "sigmoid", "matmul", "erf"]
    ops += ["max_pool1d", "max_pool2d"]
    project = tmp_path / "project"
    shutil.copytree(render(backend_name="frozen_npu", op_preset="custom", ops=ops), project)
    shutil.copytree(ROOT / "tests/frozen_drivers" / version, project / "vendor/driver")
    (project / "vendor/lowerings").mkdir()
    (project / "vendor/lowerings/sigmoid.cc").write_text(sample())
    (project / "vendor/vendor.cmake").write_text(OVERLAY)
    python = workshop.environment(workshop.build(project, DRIVER="vendor", EMULATOR="OFF"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{of_the_version}", OF_VERSION[version]))
    assert run(python, script, cwd=tmp_path).splitlines()[-1] == "right"

    # A vendor compiles the same source with each engine's header.
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(project / "vendor/driver/driver.c", again)
    run(
        *("cc", *C11, "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-I", HEADER.parent),
        *("driver.c", "-lm", "-o", "libtvm_frozen_npu_driver.so"),
        cwd=again,
    )
    found = run(python, script, cwd=tmp_path, FROZEN_NPU_DRIVER_DIR=str(again))
    assert found.splitlines()[-1] == "right"
