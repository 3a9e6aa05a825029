# SPDX-License-Identifier: Apache-2.0
"""Compiles regions for Arm's Ethos-U: TOSA, then Vela, in an environment that has both.

The program has Vela's command stream and weights, what Vela expects of them, and the TOSA file,
from which the run half computes values.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from ethosu.vela import __version__ as vela_version
from ethosu.vela import vela

sys.path.append(str(Path(__file__).resolve().parents[2] / "engine/backend/sdk"))
from npu_region import Declined, Node, Region, run_tool, to_tosa, tosa_of_node

SDK = f"Vela {vela_version}"
ACCELERATOR = "ethos-u55-256"


def serialize(text: str, folder: Path) -> Path:
    """Write TOSA's MLIR as the file that Vela reads."""
    source, result = folder / "region.mlir", folder / "region.tosa"
    source.write_text(text)
    tool = Path(sys.executable).with_name("tosa-opt")
    command = [tool, "--tosa-serialize", f"--tosa-flatbuffer-filename={result}", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"tosa-opt: {done.stderr.strip()}")
    return result


def words_of(error: Exception) -> str:
    """Return what Vela says, as one sentence: what it lists is said once."""
    lines = [line.strip(" -:") for line in str(error).splitlines()]
    return "Vela: " + ", ".join(dict.fromkeys(line for line in lines if line))


def compiled(text: str, accelerator: str, folder: Path) -> tuple[bytes, bytes, dict[str, str]]:
    """Compile TOSA's MLIR; return the TOSA file, Vela's program and its report."""
    path = serialize(text, folder)
    arguments = [str(path), "--accelerator-config", accelerator, "--output-format", "raw"]
    with contextlib.redirect_stdout(io.StringIO()):
        vela.main([*arguments, "--output-dir", str(folder)])
    (report,) = folder.glob("region_summary_*.csv")
    with report.open() as file:
        (row,) = csv.DictReader(file)
    return path.read_bytes(), (folder / "region_vela.npz").read_bytes(), row


def reason(node: Node, region: Region) -> str | None:
    """Return why the SDK has no such node, or None."""
    text = tosa_of_node(node, region)
    # What TOSA has, Vela may lack. It is asked about real numbers only: it takes a step of integers
    # only behind the product whose results it rescales.
    if "f32" not in text:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled(text, ACCELERATOR, Path(folder))
        except RuntimeError as error:
            return words_of(error)
    return None


def blamed(region: Region, error: Exception) -> Declined:
    """Return the decline of the first op that Vela does not even compile alone."""
    for label in dict.fromkeys(node.label for node in region.nodes):
        part = region.part(label)
        with tempfile.TemporaryDirectory() as folder:
            try:
                compiled(to_tosa(part), region.options["accelerator"], Path(folder))
            except RuntimeError as own:
                return Declined(f"{label}: {words_of(own)}")
    return Declined(words_of(error))


def compile_region(region: Region) -> bytes:
    """Return the bytes that the run half loads."""
    text = to_tosa(region)
    with tempfile.TemporaryDirectory() as name:
        try:
            tosa, stream, row = compiled(text, region.options["accelerator"], Path(name))
        except RuntimeError as error:
            raise blamed(region, error) from error
    moved = [
        sum(int(float(count)) for key, count in row.items() if re.search(rf"_{way}_bytes", key))
        for way in ("read", "write")
    ]
    expected = [int(float(row[key])) for key in ("cycles_total", "core_clock")]
    header = struct.pack("<8s6Q", b"ethos-u1", len(tosa), len(stream), *expected, *moved)
    return header + tosa + stream


if __name__ == "__main__":
    sys.exit(run_tool(SDK, reason, compile_region))
