"""Generates with nine families of decoders of transformers, and compares each token with theirs.

The networks are small and have random weights. What transformers itself exports, with a cache of a
fixed length, is compiled for one token and for a chunk of a prompt. Prompts have 1 token to one
more than two chunks, and the longest text fills the cache to its last place.

Usage: ``python tests/run_families.py BACKEND_NAME [FAMILY...]``, in an environment with the
backend, torch and ``transformers==5.24.0``. It takes some minutes.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
import tvm
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM
from tvm import relax

CHUNK, TOKENS = 8, 256
CAPACITY = 2 * CHUNK + 1 + TOKENS - 1
"""Nothing is computed of the last token."""
WORDS = 64
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CAPACITY,
    "pad_token_id": None,
    "eos_token_id": None,
    "bos_token_id": None,
}
GEMMA = {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}


def network_of(name: str, **sizes: Any) -> Callable[[], Any]:
    """Return a function that makes a network, by the beginning of its classes' names."""

    def make() -> Any:
        config = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
        head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        chosen = getattr(transformers, config)(**sizes)
        # As transformers advises for its soft caps.
        chosen._attn_implementation = "eager" if name == "Gemma2" else "sdpa"
        return getattr(transformers, name + head)(chosen).eval()

    return make


FAMILIES = {
    "llama": network_of("Llama", **SIZES),
    "qwen2": network_of("Qwen2", **SIZES),
    "qwen3": network_of("Qwen3", head_dim=8, **SIZES),
    "mistral": network_of("Mistral", **SIZES),
    "gemma2": network_of("Gemma2", **GEMMA),
    "gemma3": network_of("Gemma3", **GEMMA, layer_types=["sliding_attention", "full_attention"]),
    "phi3": network_of("Phi3", **SIZES),
    "smollm3": network_of("SmolLM3", **SIZES),
    "gpt2": network_of(
        "GPT2", vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=CAPACITY
    ),
}


def program_of(backend: Any, network: Any, steps: int) -> relax.Function:
    """Return what transformers exports for a number of tokens, as it is."""
    cache = {"batch_size": 1, "max_cache_len": CAPACITY, "device": "cpu"}
    network.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=CAPACITY, cache_config=cache
    )
    wrapper = TorchExportableModuleForDecoderOnlyLM(network, **cache)
    exported = wrapper.export(
        input_ids=torch.zeros(1, steps, dtype=torch.long), cache_position=torch.arange(steps)
    )
    function = backend.from_exported_program(exported)["main"]
    return function.with_attr("global_symbol", f"takes_{steps}")


def expected(network: Any, prompt: list[int]) -> list[int]:
    """Return the tokens by which transformers continues a prompt."""
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=TOKENS, min_new_tokens=TOKENS
    )
    network.generation_config = config
    ids = torch.tensor([prompt])
    with torch.no_grad():
        found = network.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def judge(backend: Any, name: str, family: str) -> bool:
    """Print what became of a family; return whether all of it is right and on the NPU."""
    torch.manual_seed(0)
    network = FAMILIES[family]()
    functions = {f"takes_{steps}": program_of(backend, network, steps) for steps in (1, CHUNK)}
    mod = tvm.IRModule(functions)
    report = backend.offload_report(getattr(backend, f"partition_for_{name}")(mod))
    machine = relax.VirtualMachine(getattr(backend, f"compile_for_{name}")(mod), tvm.cpu())
    random = np.random.default_rng(0)
    right, wanted = 0, []
    lengths = range(1, 2 * CHUNK + 2)
    for length in lengths:
        prompt = random.integers(0, WORDS, length).tolist()
        wanted = expected(network, prompt)
        with backend.Conversation(machine) as text:
            found = list(text.generate(prompt, most=TOKENS))
        right += sum(mine == theirs for mine, theirs in zip(found, wanted, strict=True))
    total = TOKENS * len(lengths)
    print(f"{family}: {right:,} of {total:,} tokens are those of transformers; {report.summary}")
    return right == total and not report.on_host


def main() -> int:
    """Judge the families that are asked for, or all."""
    name, *asked = sys.argv[1:]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    backend = importlib.import_module(f"tvm_{name}")
    return 0 if all([judge(backend, name, family) for family in asked or FAMILIES]) else 1


if __name__ == "__main__":
    sys.exit(main())
