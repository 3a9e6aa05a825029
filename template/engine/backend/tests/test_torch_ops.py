# SPDX-License-Identifier: Apache-2.0
"""No op of PyTorch is read and wrong: its own samples of each op, read, run and compared."""

import re
from itertools import islice

import numpy as np
import pytest

import backend
from backend.engine.workbench.conformance.imported import Imported
from support import run_together

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # PyTorch's database of ops needs it.
pytree = pytest.importorskip("torch.utils._pytree")

# None of this depends on the chip, and to load the samples takes seconds.
pytestmark = pytest.mark.thorough

STEPS = {"float32": (0, 12, 25), "int64": (3, 16, 10), "float16": (5, 16, 15)}
"""Which ops are tried in a type: from the first, one of so many; and how many are right at least.

All would take minutes.
"""

SAMPLE = ("add", "fmod", "amax", "var_mean", "nn.functional.selu", "nn.functional.avg_pool2d")
"""Ops of which several samples are tried."""

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


def tensors_of(results):
    return [item for item in pytree.tree_leaves(results) if isinstance(item, torch.Tensor)]


def read(op, sample):
    """Return the module that is made of a call, its arguments, and PyTorch's results.

    What is refused is "", unless the refusal does not say which op: then, or if what is read has
    random results, a text says so.
    """
    call = Call(op, sample)
    try:
        wanted = tensors_of(call(*(item.clone() for item in call.tensors)))
        again = tensors_of(call(*(item.clone() for item in call.tensors)))
        program = torch.export.export(call.eval(), tuple(call.tensors))
    except Exception:  # PyTorch's own.
        return ""
    # Another type stands for bfloat16.
    if not wanted or any(item.is_complex() or item.dtype is torch.bfloat16 for item in wanted):
        return ""
    try:
        module = backend.from_exported_program(program)
    except ValueError as error:
        return "" if names_a_node(str(error), program) else f"refused with {error}"
    if not all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(wanted, again, strict=False)
    ):
        return "its results are random, and it is read"
    arguments = [item.contiguous().numpy() for item in call.tensors]
    return module, arguments, [item.detach().resolve_conj().resolve_neg() for item in wanted]


def names_a_node(text, program):
    """Whether a text has the name of a node that calls an op, or that of the op."""
    words = set(re.findall(r"[\w.]+", text))
    # Decomposing takes longer than all else.
    for make in (lambda: program, program.run_decompositions):
        nodes = [node for node in make().graph.nodes if node.op == "call_function"]
        if any(words & {node.name, str(node.target)} for node in nodes):
            return True
    return False


def difference(found, wanted):
    """Return how results differ from PyTorch's; "" if they do not."""
    for mine, right in zip(found, map(torch.Tensor.numpy, wanted), strict=True):
        if (mine.dtype, mine.shape) != (right.dtype, right.shape):
            return f"{mine.dtype}{mine.shape} in place of {right.dtype}{right.shape}"
        bound = {"float16": 2e-2, "float32": 2e-4, "float64": 2e-4}.get(str(right.dtype), 0)
        if not np.allclose(mine, right, rtol=bound, atol=bound, equal_nan=True):
            return f"{mine.reshape(-1)[:4]} in place of {right.reshape(-1)[:4]}"
    return ""


def faults(chosen, dtype, most):
    """Return what is wrong of some ops, and the names of those of which a sample was right."""
    wrong, right, models, cases = {}, [], [], {}
    for op in chosen:
        for sample in samples(op, dtype, most) if dtype in op.supported_dtypes("cpu") else ():
            found = read(op, sample)
            if isinstance(found, tuple):
                name = str(len(models))
                models.append(Imported(name, *found[:2]))
                cases[name] = op.name, sample.kwargs, found[2]
            elif found:
                wrong[op.name] = f"{found}, with {sample.kwargs}"
    for name, found in run_together(models).items():
        op, options, wanted = cases[name]
        if isinstance(found, Exception):  # TVM's own: not in silence.
            continue
        if why := difference(found, wanted):
            wrong[op] = f"{why}, with {options}"
        else:
            right.append(op)
    return wrong, right


def test_ops_are_right():
    wrong, right = faults([op for op in ops() if op.name in SAMPLE], torch.float32, 2)
    assert wrong == {}
    assert {*right} == {*SAMPLE}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", STEPS)
def test_no_op_is_read_and_wrong(dtype):
    first, step, least = STEPS[dtype]
    wrong, right = faults(ops()[first::step], getattr(torch, dtype), 1)
    assert wrong == {}
    assert len(right) >= least
