# SPDX-License-Identifier: Apache-2.0
"""No op of PyTorch is read and wrong: its own samples of each op, read, run and compared."""

from itertools import islice

import numpy as np
import pytest

import backend
from support import run_on_host

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # PyTorch's database of ops needs it.
pytree = pytest.importorskip("torch.utils._pytree")

STEP = 8
"""One op of so many is tried; with 1, all are, which takes minutes."""

SAMPLE = ("add", "fmod", "amax", "var_mean", "nn.functional.selu", "nn.functional.avg_pool2d")
"""The ops that are tried by default."""

UNDEFINED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty")
"""Ops whose results have no values."""


def ops():
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not op.name.startswith(UNDEFINED)]


def samples(op, dtype, most):
    """Return samples with as many different keywords as there are."""
    found, seen = [], set()
    torch.manual_seed(0)
    candidates = list(islice(op.sample_inputs("cpu", dtype), 40))
    for sample in sorted(candidates, key=lambda one: -len(one.kwargs)):
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        tensors = [item for item in leaves if isinstance(item, torch.Tensor)]
        is_small = all(item.numel() <= 3000 and item.layout == torch.strided for item in tensors)
        keywords = frozenset(
            (name, str(item))
            for name, item in sample.kwargs.items()
            if not isinstance(item, torch.Tensor)
        )
        if tensors and is_small and tensors[0].numel() and keywords not in seen:
            seen.add(keywords)
            found.append(sample)
    return found[:most]


class Call(torch.nn.Module):
    """A call of an op, of tensors only: all other arguments are constants."""

    def __init__(self, op, sample):
        super().__init__()
        self.op = op
        leaves, self.spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        self.leaves = [item if not isinstance(item, torch.Tensor) else ... for item in leaves]
        self.tensors = [item.detach() for item in leaves if isinstance(item, torch.Tensor)]

    def forward(self, *tensors):
        given = iter(tensors)
        leaves = [next(given) if item is ... else item for item in self.leaves]
        arguments, named = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*arguments, **named)


def fault(op, sample):
    """Return what is wrong of an op that is read; None if it is right, "" if it is not read."""
    call = Call(op, sample)
    try:
        expected = call(*(item.clone() for item in call.tensors))
        again = call(*(item.clone() for item in call.tensors))
        program = torch.export.export(call.eval(), tuple(call.tensors))
    except Exception:  # PyTorch's own.
        return ""
    wanted = [item for item in pytree.tree_leaves(expected) if isinstance(item, torch.Tensor)]
    again = [item for item in pytree.tree_leaves(again) if isinstance(item, torch.Tensor)]
    # Another type stands for bfloat16.
    if not wanted or any(item.is_complex() or item.dtype is torch.bfloat16 for item in wanted):
        return ""
    try:
        module = backend.from_exported_program(program)
    except ValueError as error:
        named = ("node", "the program", "result")
        return "" if any(word in str(error) for word in named) else f"refused with {error}"
    if not all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(wanted, again, strict=False)
    ):
        return "its results are random, and it is read"
    try:
        found = run_on_host(module, "main", [item.contiguous().numpy() for item in call.tensors])
    except Exception:  # TVM's own: not in silence.
        return ""
    for mine, right in zip(found, wanted, strict=True):
        right = right.detach().resolve_conj().resolve_neg().numpy()
        if (mine.dtype, mine.shape) != (right.dtype, right.shape):
            return f"{mine.dtype}{mine.shape} in place of {right.dtype}{right.shape}"
        bound = {"float16": 2e-2, "float32": 2e-4, "float64": 2e-4}.get(str(right.dtype), 0)
        if not np.allclose(mine, right, rtol=bound, atol=bound, equal_nan=True):
            return f"{mine.reshape(-1)[:4]} in place of {right.reshape(-1)[:4]}"
    return None


def faults(chosen, dtype, most):
    """Return what is wrong of some ops, and how many samples were right."""
    wrong, right = {}, 0
    for op in chosen:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype, most):
            found = fault(op, sample)
            right += found is None
            if found:
                wrong[op.name] = f"{found}, with {sample.kwargs}"
    return wrong, right


@pytest.mark.parametrize("name", SAMPLE)
def test_an_op_is_right(name):
    wrong, right = faults([op for op in ops() if op.name == name], torch.float32, 2)
    assert wrong == {}
    assert right > 0


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype, least", [("float32", 25), ("int64", 12), ("float16", 12)])
def test_no_op_is_read_and_wrong(dtype, least):
    wrong, right = faults(ops()[::STEP], getattr(torch, dtype), 1)
    assert wrong == {}
    assert right >= least
