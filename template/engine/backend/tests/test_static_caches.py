# SPDX-License-Identifier: Apache-2.0
"""Decoders with caches of a fixed length, as transformers exports them, in sessions."""

import numpy as np
import pytest
import tvm
from tvm.runtime.vm import VirtualMachine

import backend
from support import (
    compile_for,
    needs,
    partition_for,
    skip_where_declined,
    skip_where_limited,
)

torch = pytest.importorskip("torch")

CAPACITY, VOCABULARY = 12, 32
HEADS, SHARED, SIZE = 4, 2, 8
WIDTH = HEADS * SIZE
LAYERS = range(2)


def index_copy(cache, rows, value):
    cache.index_copy_(2, rows, value)


def scatter(cache, rows, value):
    cache.scatter_(2, rows.view(1, 1, -1, 1).expand(value.shape), value)


class Decoder(torch.nn.Module):
    """A decoder with shared heads and rotated positions; its second layer sees a window.

    As in transformers, caches are no parameters, and each layer counts its rows from a state that
    each call sets.
    """

    def __init__(self, write=None, window=5):
        super().__init__()
        torch.manual_seed(0)
        self.write, self.window = write, window
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        for name, width in (("q", WIDTH), ("k", SHARED * SIZE), ("v", SHARED * SIZE), ("o", WIDTH)):
            layers = [torch.nn.Linear(WIDTH, width, bias=False) for _ in LAYERS]
            setattr(self, name, torch.nn.ModuleList(layers))
        self.register_buffer("frequencies", 0.5 ** torch.arange(SIZE // 2), persistent=False)
        for layer in LAYERS if write else ():
            zeros = torch.zeros(1, SHARED, CAPACITY, SIZE)
            self.register_buffer(f"key_cache_{layer}", zeros, persistent=False)
            self.register_buffer(f"value_cache_{layer}", zeros.clone(), persistent=False)
            self.register_buffer(f"count_{layer}", torch.tensor(0), persistent=False)

    def forward(self, input_ids, cache_position):
        x = self.embedding(input_ids)
        for layer in LAYERS:
            x = x + self.attend(torch.nn.functional.rms_norm(x, (WIDTH,)), cache_position, layer)
        return x @ self.embedding.weight.T

    def attend(self, x, places, layer):
        query, key, value = (
            getattr(self, name)[layer](x).view(1, x.shape[1], -1, SIZE).transpose(1, 2)
            for name in "qkv"
        )
        query, key = self.rotated(query, places), self.rotated(key, places)
        if self.write:
            key, value = self.kept(key, value, places, layer)
        key, value = (part.repeat_interleave(HEADS // SHARED, 1) for part in (key, value))
        behind = places[:, None] - torch.arange(key.shape[2])[None]
        seen = (behind >= 0) & (behind < (self.window if layer else CAPACITY))
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, seen[None])
        return self.o[layer](found.transpose(1, 2).reshape(1, -1, WIDTH))

    def rotated(self, x, places):
        angles = torch.cat([places[:, None] * self.frequencies] * 2, -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def kept(self, key, value, places, layer):
        keys, values, count = (
            getattr(self, f"{name}_{layer}") for name in ("key_cache", "value_cache", "count")
        )
        count.copy_(places[0])
        rows = torch.arange(key.shape[2]) + count
        count.add_(key.shape[2])
        self.write(keys, rows, key)
        self.write(values, rows, value)
        return keys, values


def read(write, rows):
    inputs = (torch.zeros(1, rows, dtype=torch.long), torch.arange(rows))
    return backend.from_exported_program(torch.export.export(Decoder(write), inputs))


def tensors(*values):
    return [tvm.runtime.tensor(np.array(value)) for value in values]


def test_tokens_are_those_of_the_whole_sequence_to_the_last_slot():
    decode = read(index_copy, 1)
    assert [state.name.rstrip("_01") for state in backend.states(decode)] == [
        *("key_cache", "value_cache", "key_cache", "value_cache")
    ]
    parts = {"prefill": read(index_copy, 4)["main"], "decode": decode["main"]}
    named = {name: part.with_attr("global_symbol", name) for name, part in parts.items()}
    machine = VirtualMachine(compile_for(tvm.IRModule(named)), tvm.cpu())
    tokens = [3, 14, 15, 9]
    whole = Decoder()
    with backend.Session(machine) as session, torch.no_grad():
        logits = session["prefill"](*tensors([tokens], [0, 1, 2, 3])).numpy()
        for place in range(4, CAPACITY + 1):
            wanted = whole(torch.tensor([tokens]), torch.arange(place))[0, -1].numpy()
            np.testing.assert_allclose(logits[0, -1], wanted, rtol=1e-3, atol=1e-3)
            assert logits[0, -1].argmax() == wanted.argmax()
            tokens.append(int(wanted.argmax()))
            if place < CAPACITY:
                logits = session["decode"](*tensors([tokens[-1:]], [place])).numpy()
        with pytest.raises(ValueError, match="position 12 of the state 'key_cache_0', since 'cach"):
            session["decode"](*tensors([tokens[-1:]], [CAPACITY]))


@needs(
    *("take", "matmul", "rms_norm", "sin", "cos", "softmax", "where", "equal", "less", "max"),
    *("add", "subtract", "multiply", "negative", "split", "concat", "repeat", "logical_and"),
    *("scatter_elements", "scatter_nd", "sdpa_masked", "greater_equal", "astype"),
)
@pytest.mark.parametrize(("write", "rows"), [(index_copy, 1), (scatter, 4)])
def test_all_of_it_is_one_region(write, rows):
    module = read(write, rows)
    skip_where_declined(module)
    skip_where_limited(module)
    report = backend.offload_report(partition_for(module))
    assert [found.op for found in report.on_host] == []
    assert len(report.regions) == 1
