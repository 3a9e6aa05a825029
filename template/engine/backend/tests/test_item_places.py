# SPDX-License-Identifier: Apache-2.0
"""Slices that begin at `position.item()`: places that are computed, with no host in between."""

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

ROWS = 16


def known(place, least, most):
    torch._check(place >= least)
    torch._check(place <= most)
    return place


class Narrow(torch.nn.Module):
    """A cache of which one row is replaced."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, ROWS, 8))

    def forward(self, x, place):
        self.cache.narrow(2, known(place.item(), 0, ROWS - 1), 1).copy_(x)
        return self.cache.sum(2)


class Several(Narrow):
    """As many rows as are given, from the first of the places; what is read begins there, too."""

    def forward(self, x, places):
        count = x.shape[2]
        first = known(places[0].item(), 0, ROWS - count)
        self.cache[:, :, first : first + count] = x
        return self.cache[:, :, first : first + 2] * 2


class Behind(Narrow):
    """Places that are sums, from the end of the arguments and from their start."""

    def forward(self, x, place):
        first = known(place.item(), 1, ROWS - 2)
        self.cache[:, :, first + 1 : first + 2] = x
        self.cache[:, :, 1 + first - 2 : first] = x + 1
        return self.cache.sum(2)


class Counted(Narrow):
    """A number that is no place alone."""

    def forward(self, x, place):
        first = known(place.item(), 0, ROWS - 1)
        self.cache[:, :, first : first + 1] = x
        return self.cache.sum(2) * first


class FromEnd(Narrow):
    """Places that count from the end."""

    def forward(self, x, place):
        first = known(place.item(), 0, ROWS - 4)
        return (
            self.cache[:, :, first - ROWS : first - ROWS + 2] + x.sum() + self.cache.add_(1).sum()
        )


CASES = [
    (Narrow, 1, [[3], [ROWS - 1]]),
    (Several, 3, [[4, 5, 6], [ROWS - 3, 0, 0]]),
    (Several, 1, [[4], [ROWS - 1]]),
    (Behind, 1, [[3], [ROWS - 2]]),
    (Counted, 1, [[3], [0]]),
    (FromEnd, 1, [[3], [0], [5]]),
]


def read(network, rows):
    places = torch.arange(3, 3 + rows) if network is Several else torch.tensor(3)
    example = (torch.ones(1, 2, rows, 8), places)
    return backend.from_exported_program(torch.export.export(network(), example))


@pytest.mark.parametrize(("network", "rows", "calls"), CASES)
def test_values_are_those_of_torch(network, rows, calls):
    machine, original = VirtualMachine(compile_for(read(network, rows)), tvm.cpu()), network()
    with backend.Session(machine) as session:
        for number, given in enumerate(calls, 1):
            x = torch.from_numpy(
                np.random.default_rng(number).standard_normal((1, 2, rows, 8)).astype("float32")
            )
            places = torch.tensor(given if network is Several else given[0])
            wanted = original(x, places).numpy()
            inputs = (tvm.runtime.tensor(it.numpy()) for it in (x, places))
            found = session["main"](*inputs).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(session.read("cache"), original.cache.numpy())


@pytest.mark.parametrize(
    ("network", "rows", "first", "position"),
    [(Narrow, 1, ROWS, ROWS), (Several, 3, ROWS - 2, ROWS), (Behind, 1, ROWS - 1, ROWS)],
)
def test_a_call_behind_the_last_row_is_refused(network, rows, first, position):
    machine = VirtualMachine(compile_for(read(network, rows)), tvm.cpu())
    places = np.arange(first, first + rows) if network is Several else np.array(first)
    with backend.Session(machine) as session:
        inputs = map(tvm.runtime.tensor, (np.ones((1, 2, rows, 8), "float32"), places))
        with pytest.raises(ValueError, match=f"position {position} of the state 'cache'"):
            session["main"](*inputs)


@needs("reshape", "add", "state_update", "take", "multiply", "sum")
@pytest.mark.parametrize(("network", "rows"), [(Narrow, 1), (Several, 3), (Behind, 1)])
def test_all_of_it_is_one_region(network, rows, bound_constants):
    module = read(network, rows)
    skip_where_declined(module)
    skip_where_limited(module)
    report = backend.offload_report(partition_for(module))
    assert [found.op for found in report.on_host] == []
    assert len(report.regions) == 1
    assert "state_update" in {found.composite for found in report.ops}


class Either(Narrow):
    """A place that may count from the start, or from the end."""

    def forward(self, x, place):
        first = known(place.item(), -2, 2)
        return torch.slice_scatter(self.cache, x, 2, first, first + 1)


def test_a_place_that_may_count_from_the_end_is_refused():
    with pytest.raises(ValueError, match="for which torch._check tells that it is 0 or more, or"):
        read(Either, 1)


class Unlimited(Narrow):
    def forward(self, x, place):
        self.cache.narrow(2, place.item(), 1).copy_(x)
        return self.cache.sum(2)


class UnlimitedSlice(Narrow):
    def forward(self, x, place):
        first = place.item()
        self.cache[:, :, first : first + 1] = x
        return self.cache.sum(2)


@pytest.mark.parametrize("network", [Unlimited, UnlimitedSlice])
def test_a_place_without_bounds_is_refused_with_what_helps(network):
    with pytest.raises(ValueError, match=r"item\(\) reads .* torch._check\(n >= 0\), torch._check"):
        read(network, 1)
