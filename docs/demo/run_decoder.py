"""Continues a text with the shipped decoder on a rendered backend, in float32, int8 and int4.

Usage: ``python run_decoder.py BACKEND_NAME``, in an environment where the backend is installed.
"""

import argparse
import importlib
import json
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import run
import tvm
from onnx import helper, numpy_helper
from tvm import relax

HERE = Path(__file__).parent
CAPACITY, CHUNK = 128, 64
"""How many tokens the cache has room for, and how many of a prompt are read at a time."""
BLOCK = 32
"""How many weights share a scale."""
PROMPT = "The for statement"
CLOCK = 1e9


def with_integers(model: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Return the decoder with the weights of its products as integers, in blocks with a scale."""
    narrow = onnx.ModelProto()
    narrow.CopyFrom(model)
    weights = {weight.name: weight for weight in narrow.graph.initializer}
    middle = 1 << (bits - 1)
    for node in narrow.graph.node:
        if node.op_type != "MatMul":
            continue
        weight = weights[node.input[1]]
        blocks = numpy_helper.to_array(weight).T
        rows, depth = blocks.shape
        blocks = blocks.reshape(rows, depth // BLOCK, BLOCK)
        scales = np.abs(blocks).max(-1) / (middle - 1)
        numbers = (np.rint(blocks / scales[..., None]) + middle).astype("uint8")
        if bits == 4:
            numbers = numbers[..., ::2] | numbers[..., 1::2] << 4
        name = weight.name
        weight.CopyFrom(numpy_helper.from_array(numbers, name))
        narrow.graph.initializer.append(
            numpy_helper.from_array(scales.reshape(-1).astype("float32"), f"{name}.scales")
        )
        sizes = {"K": depth, "N": rows, "bits": bits, "block_size": BLOCK}
        inputs = [*node.input, f"{name}.scales"]
        node.CopyFrom(
            helper.make_node(
                "MatMulNBits",
                inputs,
                [*node.output],
                node.name,
                domain="com.microsoft",
                **sizes,
            )
        )
    return narrow


def compiled(backend: Any, name: str, model: onnx.ModelProto) -> relax.VMExecutable:
    """Compile a function for one token, and one for many of a prompt, which share their weights."""
    functions = {}
    for steps in (1, CHUNK):
        shapes: dict[str, tuple[int, ...]]
        shapes = {"input_ids": (1, steps), "attention_mask": (1, CAPACITY)}
        for value in model.graph.input:
            if value.name.startswith("past."):
                _, heads, _, size = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
                shapes[value.name] = (1, heads, CAPACITY, size)
        mod = backend.from_onnx(model, states=True, shape_dict=shapes, sanitize_input_names=False)
        function = f"takes_{steps}"
        functions[function] = mod["main"].with_attr("global_symbol", function)
    # The emulated NPU then loads weights while it multiplies.
    known = backend.Options.load(None).driver_options()
    options = {"weight_buffers": 2} if "weight_buffers" in known else {}
    return getattr(backend, f"compile_for_{name}")(tvm.IRModule(functions), **options)


def size_of(executable: relax.VMExecutable) -> int:
    """Return the bytes of the library that a board takes."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "decoder.so"
        executable.export_library(str(library))
        return library.stat().st_size


def perplexity(backend: Any, machine: relax.VirtualMachine, tokens: np.ndarray) -> float:
    """Return the perplexity of tokens (n), which are read in texts as long as the cache."""
    nats = []
    with backend.Session(machine) as session:
        for text in tokens[: len(tokens) // CAPACITY * CAPACITY].reshape(-1, CAPACITY):
            session.reset()
            scores = []
            for first in range(0, CAPACITY, CHUNK):
                chunk = text[None, first : first + CHUNK]
                mask = (np.arange(CAPACITY) < first + CHUNK)[None].astype("int64")
                given = map(tvm.runtime.tensor, (chunk, mask))
                scores.append(session[f"takes_{CHUNK}"](*given).numpy()[0])
            logits = np.concatenate(scores)[:-1].astype("float64")
            logits -= logits.max(-1, keepdims=True)
            chosen = np.take_along_axis(logits, text[1:, None], -1)[:, 0]
            nats.append(np.log(np.exp(logits).sum(-1)) - chosen)
    return float(np.exp(np.mean(nats)))


def main() -> int:
    """Print text, quality, size and speed; fail where integers lose too much of the quality."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend_name", help="for example acme_npu")
    name = parser.parse_args().backend_name
    backend = importlib.import_module(f"tvm_{name}")
    model = onnx.load(HERE / "decoder.onnx")
    numbers = json.loads((HERE / "decoder_tokenizer.json").read_text())["model"]["vocab"]
    characters = {number: character for character, number in numbers.items()}
    held_out = (HERE / "decoder_held_out.txt").read_text(encoding="utf-8")
    tokens = np.array([numbers.get(character, numbers[" "]) for character in held_out])

    print("\nA decoder of 730,000 weights that was trained on Python's help texts; each token is a")
    print(f"character. Tokens per second are those of the NPU at {CLOCK / 1e9:.0f} GHz:\n")
    print(f"{'':12}perplexity{'library':>13}{'cycles':>12}{'tokens/s':>11}{'DRAM':>14}")
    texts, found = {}, {}
    for dtype, variant in (
        ("float32", model),
        ("int8", with_integers(model, 8)),
        ("int4", with_integers(model, 4)),
    ):
        executable = compiled(backend, name, variant)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        found[dtype] = perplexity(backend, machine, tokens)
        with backend.Conversation(machine) as text:
            text.feed([numbers[character] for character in PROMPT])
            before = run.counted(machine, name)
            start = [numbers[" "]]
            most = CAPACITY - len(PROMPT) - 1
            written = list(text.generate(start, most, temperature=0.5, top_p=0.9))
            after = run.counted(machine, name)
        texts[dtype] = PROMPT + " " + "".join(characters[token] for token in written)
        each = {counter: (after[counter] - before[counter]) / len(written) for counter in after}
        cells = [f"{size_of(executable) / 1e3:8.1f} kB"]
        if "cycles" in each:
            cells.append(f"{each['cycles']:9,.0f}{CLOCK / each['cycles']:11,.0f}")
        if "dram_bytes_read" in each:
            moved = each["dram_bytes_read"] + each["dram_bytes_written"]
            cells.append(f"{moved / 1e3:9.1f} kB")
        print(f"  {dtype:8}  {found[dtype]:10.3f}  {'   '.join(cells)}")
    print(f"\nThey continue '{PROMPT}', each with the same random numbers:")
    for dtype, text in texts.items():
        print(f"\n  {dtype}\n{textwrap.indent(text.strip(), '    ')}")
    if max(found.values()) > 1.05 * found["float32"]:
        print("  Integers lose 5 % of the perplexity or more.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
