# SPDX-License-Identifier: Apache-2.0
"""Decoders continue texts: in Python, and by the command `generate`."""

import json
import shutil

import numpy as np
import pytest
import tvm
from tvm.runtime.vm import VirtualMachine

import backend
from backend.engine.backend.models import generation
from backend.engine.backend.models.decoders import read_decoder
from backend.engine.backend.verification.originals import original_of
from onnx_node import one_node
from support import compile_for, needs_library, partition_for, run_command
from test_onnx_states import CACHES, CAPACITY, SHARED, SIZE, WORDS, decoder

pytestmark = needs_library("onnx", "onnxruntime")
CHUNK = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Write the decoder of `test_onnx_states` as a file."""
    import onnx

    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(decoder(), path)
    return path


@pytest.fixture(scope="module")
def machine(path):
    mod = read_decoder([path], (1, CHUNK), CAPACITY, {})
    return VirtualMachine(compile_for(mod), tvm.cpu())


@pytest.fixture(scope="module")
def continued(path):
    """Return what ONNX Runtime continues a text with, to the last place of the cache."""
    original = original_of(decoder())

    def run(prompt):
        ids, found = prompt, []
        caches = [np.zeros((1, SHARED, 0, SIZE), "float32")] * len(CACHES)
        while len(prompt) + len(found) <= CAPACITY:
            mask = np.ones((1, len(prompt) + len(found)), "int64")
            logits, *caches = original.run([np.array([ids]), mask, *caches])
            found.append(int(logits[0, -1].argmax()))
            ids = found[-1:]
        return found

    return run


@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 1, CAPACITY])
def test_texts_are_continued_to_the_last_place(machine, continued, length):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4][:length]
    with backend.Conversation(machine) as text:
        assert text.capacity == CAPACITY
        assert list(text.generate(prompt, CAPACITY)) == continued(prompt)
        assert text.length == CAPACITY
        sentence = f"The text has {CAPACITY} tokens, and 1 are to be added; the cache has room for"
        with pytest.raises(ValueError, match=sentence):
            text.feed([1])
        text.reset()
        assert list(text.generate(prompt, 1)) == continued(prompt)[:1]


def test_scores_behind_the_last_token_alone_are_computed(path):
    mod = read_decoder([path], (1, CHUNK), CAPACITY, {})
    text = partition_for(mod).script()
    assert text.count(f'R.Tensor((1, 1, {WORDS}), dtype="float32")')
    assert f"R.Tensor((1, {CHUNK}, {WORDS})" not in text


def test_two_answers_share_a_prompt(machine, continued):
    with backend.Conversation(machine) as text:
        text.feed([3, 1, 4, 1, 5])
        other = text.copy()
        scores = [it.feed([token]) for token, it in ((7, text), (8, other))]
        assert np.abs(scores[0] - scores[1]).max() > 0.1
        for token, it in ((7, text), (8, other)):
            wanted = continued([3, 1, 4, 1, 5, token])
            assert list(it.generate(wanted[:1], 6)) == wanted[1:7]
        other.close()


def test_a_stop_ends_a_text(machine, continued):
    prompt = [3, 1, 4, 1]
    wanted = continued(prompt)
    with backend.Conversation(machine) as text:
        stop = wanted[3]
        assert list(text.generate(prompt, 9, stop=[stop])) == wanted[: wanted.index(stop) + 1]


def test_what_cannot_be_fed_is_refused(machine):
    with backend.Conversation(machine) as text:
        for call in (lambda: text.feed([]), lambda: list(text.generate([], 4))):
            with pytest.raises(ValueError, match="There are no tokens; give at least one"):
                call()
        with pytest.raises(ValueError, match=r"0 tokens, and 21 are to be added"):
            next(text.generate([1] * 21, 4))
        with pytest.raises(ValueError, match="supported are a temperature and a top_k from 0 on"):
            next(text.generate([1], 4, temperature=-1))
        for tokens in ([3, WORDS], [-1], [2**70]):
            sentence = f"The token {tokens[-1]} is not one of the decoder's, 0 to {WORDS - 1}"
            with pytest.raises(ValueError, match=sentence):
                text.feed(tokens)
        for tokens in ([3.7], 5, [[1, 2]]):
            with pytest.raises(ValueError, match="they must be a list of numbers"):
                text.feed(tokens)
        assert text.length == 0


# ---- Drawing ------------------------------------------------------------------------------------


def test_tokens_are_drawn_with_their_probability():
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], "float32"))

    def share(**settings):
        random = np.random.default_rng(0)
        settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **settings}
        drawn = [generation.chosen(logits, random, **settings) for _ in range(4000)]
        return np.bincount(drawn, minlength=4) / len(drawn)

    np.testing.assert_allclose(share(), [0.1, 0.4, 0.2, 0.3], atol=0.03)
    np.testing.assert_allclose(share(top_k=2), [0, 4 / 7, 0, 3 / 7], atol=0.03)
    # 0.4 and 0.3 have less than 0.75 together, so that 0.2 belongs to them.
    np.testing.assert_allclose(share(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9], atol=0.03)
    np.testing.assert_allclose(share(top_p=0.7), [0, 4 / 7, 0, 3 / 7], atol=0.03)
    cold = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    np.testing.assert_allclose(share(temperature=0.5), cold / cold.sum(), atol=0.03)
    for settings in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}):
        assert share(**settings)[1] == 1


# ---- The command --------------------------------------------------------------------------------

PROMPT = "3,1,4,1,5"
SIZES = ("--chunks", f"1,{CHUNK}", "--capacity", CAPACITY)


def test_the_command_continues_a_text(path, continued, tmp_path):
    wanted = continued([3, 1, 4, 1, 5])[:6]
    library = tmp_path / "decoder.so"
    given = ("--prompt", PROMPT, "--most", 6)
    code, out, errors = run_command("generate", path, *given, *SIZES, "--output", library)
    assert (code, out) == (0, ",".join(map(str, wanted)) + "\n"), errors
    assert "5 tokens read; the first behind" in errors and "tokens per second" in errors
    code, out, errors = run_command("generate", library, *given, "--stop", f"{wanted[2]}")
    assert (code, out) == (0, ",".join(map(str, wanted[: wanted.index(wanted[2])])) + "\n"), errors
    for setting in (("--capacity", 8), ("--option", "strict=true"), ("--output", library)):
        code, out, errors = run_command("generate", library, *given, *setting)
        sentence = (
            f"{setting[0]} is for compiling, and {library} is compiled; give it to 'generate'"
        )
        assert (code, out) == (1, "") and sentence in errors
    code, out, errors = run_command("generate", library, path, *given)
    assert (code, out) == (1, "") and f"is compiled, so that {path} cannot be added" in errors


def test_the_command_takes_a_tokenizer(path, continued, tmp_path):
    pytest.importorskip("tokenizers")
    letters = "abcdefghijklmnopqrstuvwxyzäöü 0123456789"
    assert len(letters) == WORDS
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps(tokenizer_of(letters)))
    wanted = "".join(letters[token] for token in continued([3, 1, 4])[:8])
    given = ("--prompt", "dbe", "--tokenizer", tokenizer, "--most", 8, *SIZES)
    code, out, errors = run_command("generate", path, *given)
    assert (code, out) == (0, wanted + "\n"), errors
    code, out, errors = run_command("generate", path, *given, "--stop", wanted[4:6])
    assert (code, out) == (0, wanted[: wanted.index(wanted[4:6])] + "\n"), errors


def tokenizer_of(letters):
    """Return a tokenizer of the package tokenizers, each of whose tokens is a letter."""
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated"}
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**split, "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": letters[-1]},
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--prompt", "hello"), "without --tokenizer, it takes numbers of tokens, such as 12,7,30"),
        (("--prompt", PROMPT, "--tokenizer", "none.json"), "There is no file none.json."),
        (("--prompt", PROMPT, "--chunks", "4"), "takes 4 tokens at a time; it needs a function fo"),
        (("--prompt", PROMPT, "--top-p", "0", "--chunks", "1"), "and a top_p above 0 and up to 1"),
        (("--prompt", PROMPT, "--capacity", "4", "--chunks", "1"), "the cache has room for 4."),
        (("--prompt", PROMPT, "--target", "nonsense"), "FAILED: --target nonsense: "),
        (("--prompt", PROMPT, "--bfloat16", "float16"), "--bfloat16 is for programs of PyTorch"),
    ],
)
def test_the_command_refuses(path, arguments, sentence):
    code, out, errors = run_command("generate", path, "--capacity", CAPACITY, *arguments)
    assert (code, out) == (1, "")
    assert sentence in errors and errors.splitlines()[-1].startswith("FAILED: ")


# ---- Programs of PyTorch ------------------------------------------------------------------------


def programs(folder):
    """Write programs of a decoder whose next token depends on all before; return their paths."""
    torch = pytest.importorskip("torch")

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = torch.nn.Embedding(WORDS, 8)
            self.head = torch.nn.Linear(8, WORDS)
            self.register_buffer("kept", torch.zeros(CAPACITY, 8))

        def forward(self, input_ids, cache_position):
            self.kept.index_copy_(0, cache_position, self.words(input_ids)[0])
            seen = torch.arange(CAPACITY)[None] <= cache_position[:, None]
            return self.head(torch.sin(7 * (seen.float() @ self.kept)))[None]

    paths = []
    for steps in (1, CHUNK):
        inputs = (torch.zeros(1, steps, dtype=torch.int64), torch.arange(steps))
        paths.append(folder / f"takes {steps}.pt2")
        torch.export.save(torch.export.export(Decoder(), inputs), paths[-1])
    return paths, Decoder()


def test_programs_of_pytorch_are_a_decoder(tmp_path):
    paths, network = programs(tmp_path)
    import torch

    prompt = [3, 1, 4, 1, 5]
    wanted, ids = [], prompt
    while len(wanted) < 8:
        first = len(prompt) + len(wanted) - len(ids)
        with torch.no_grad():
            places = torch.arange(first, first + len(ids))
            wanted.append(int(network(torch.tensor([ids]), places)[0, -1].argmax()))
        ids = wanted[-1:]
    code, out, errors = run_command("generate", *paths, "--prompt", PROMPT, "--most", 8)
    assert (code, out) == (0, ",".join(map(str, wanted)) + "\n"), errors
    assert len({*wanted}) > 3
    # Without a mask, the places of the cache tell how long a text may be.
    code, out, errors = run_command("generate", *paths, "--prompt", PROMPT, "--most", 99)
    assert (code, out.count(",")) == (0, CAPACITY - len(prompt)), errors
    code, _, errors = run_command("generate", *paths, "--prompt", ",".join(["1"] * 21))
    assert (code, "0 tokens, and 21 are to be added" in errors) == (1, True), errors
    for option, value in (("--capacity", 30), ("--chunks", "1,4"), ("--shape", "input_ids=1,2")):
        code, _, errors = run_command("generate", *paths, "--prompt", PROMPT, option, value)
        sentence = f"{option} is for .onnx files, and {paths[0]} has sizes of its own; export it"
        assert (code, sentence in errors) == (1, True), errors
    other = tmp_path / "other"
    other.mkdir()
    twice = shutil.copy(paths[0], other)
    code, _, errors = run_command("generate", *paths, twice, "--prompt", PROMPT)
    assert (code, "give it another file name" in errors) == (1, True), errors


def test_an_onnx_file_without_a_past_is_no_decoder(tmp_path):
    onnx = pytest.importorskip("onnx")
    model, _ = one_node("Relu", ("x",), {"x": np.ones((1, 3), "float32")})
    onnx.save(model, tmp_path / "network.onnx")
    code, out, errors = run_command("generate", tmp_path / "network.onnx", "--prompt", PROMPT)
    assert (code, out) == (1, "")
    assert "keeps nothing from one call to the next, so that it cannot continue a text" in errors
    assert "no Attention, Concat, GroupQueryAttention, MultiHeadAttention, TensorScat" in errors
    assert "states={" not in errors


def test_models_that_are_no_decoders_are_refused(tmp_path):
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self, keeps):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.keeps = keeps

        def forward(self, x):
            if self.keeps:
                self.total.add_(x)
            return self.total + x

    for keeps, sentence in (
        (False, "keeps nothing from one call to the next, so that it cannot continue a text"),
        (True, "takes x; supported are one input of tokens, and others of positions or a mask"),
    ):
        path = tmp_path / "network.pt2"
        torch.export.save(torch.export.export(Network(keeps), (torch.ones(3),)), path)
        code, out, errors = run_command("generate", path, "--prompt", PROMPT)
        assert (code, out) == (1, "") and sentence in errors
