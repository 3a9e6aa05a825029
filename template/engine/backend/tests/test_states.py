# SPDX-License-Identifier: Apache-2.0
"""What a model keeps from one call to the next: buffers of PyTorch that change."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.runtime.vm import VirtualMachine

import backend
from backend.engine.backend.verification.originals import original_of
from support import compile_for, partition_for, run_command, run_on_host

torch = pytest.importorskip("torch")

# None of this depends on the chip.
thorough = pytest.mark.thorough
ONES = torch.ones(3)


class Network(torch.nn.Module):
    """A network of a function of itself and its inputs, with buffers."""

    def __init__(self, forward, persistent=True, **buffers):
        super().__init__()
        self._forward = forward
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent)

    def forward(self, *inputs):
        return self._forward(self, *inputs)


def read(forward, *inputs, options=None, **buffers):
    program = torch.export.export(Network(forward, **buffers), inputs or (ONES,))
    return backend.from_exported_program(program, **(options or {}))


def check_calls(forward, *inputs, **buffers):
    """Compare three calls with PyTorch's; return the states."""
    network = Network(forward, **{name: value.clone() for name, value in buffers.items()})
    mod = read(forward, *inputs, **buffers)
    kept = backend.states(mod)
    values = [state.initial for state in kept]
    for _ in range(3):
        found = run_on_host(mod, "main", [*(item.numpy() for item in inputs or (ONES,)), *values])
        wanted = network(*(inputs or (ONES,)))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        wanted = [item for item in wanted if item is not None]
        assert len(found) == len(wanted) + len(kept)
        values = [found[state.result] for state in kept]
        wanted += [getattr(network, state.name) for state in kept]
        for mine, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine, right.numpy())
    return kept


def add(network, x):
    network.state.add_(x)
    return network.state * 1.0


def test_a_buffer_that_changes_is_a_parameter_and_a_result():
    (state,) = check_calls(add, state=torch.arange(3.0))
    assert (state.name, state.parameter, state.result) == ("state", "b_state", 1)
    np.testing.assert_array_equal(state.initial, [0, 1, 2])
    # A buffer that is not stored with the network is among the constants of a program.
    mod = read(add, persistent=False, state=torch.full((3,), 2.0))
    (state,) = backend.states(mod)
    assert state.initial.tolist() == [2, 2, 2]
    # The module holds one number for a whole cache of it.
    assert [item.shape for item in mod["main"].attrs["states"][1:]] == [()]
    assert backend.states(read(lambda network, x: x * network.state, state=ONES)) == ()


def test_what_the_network_does_later_does_not_reach_the_module():
    def forward(network, x):
        network.state.add_(network.weight * x)
        return network.state * 1.0

    network = Network(forward, state=torch.arange(3.0), weight=torch.full((3,), 2.0))
    mod = backend.from_exported_program(torch.export.export(network, (ONES,)))
    network(ONES)
    network.weight.fill_(5)
    (state,) = backend.states(mod)
    np.testing.assert_array_equal(state.initial, [0, 1, 2])
    _, after = run_on_host(mod, "main", [ONES.numpy(), state.initial])
    np.testing.assert_array_equal(after, [2, 3, 4])


def test_names_of_python_stay():
    class Named(Network):
        def forward(self, input):
            return super().forward(input)

    program = torch.export.export(Named(add, state=torch.zeros(3)), (ONES,))
    params = backend.from_exported_program(program)["main"].params
    assert [param.name for param in params] == ["input", "b_state"]


def returned(network, x):
    network.state.add_(x)
    return network.state


def parts(network, x):
    network.state[1:].add_(x[1:])
    first = network.state[1:]
    network.state.mul_(2)
    return first, network.state, network.state + 1


def nothing(network, x):
    network.state += x


def last(network, x):
    before = network.state.clone()
    network.state.copy_(x)
    return before


def swapped(network, x):
    first = network.first.clone()
    network.first.copy_(network.second + x)
    network.second.copy_(first)
    return network.first - network.second


@thorough
@pytest.mark.parametrize("forward", [returned, parts, nothing, last])
def test_the_signature_tells_what_changes(forward):
    assert [state.name for state in check_calls(forward, state=torch.zeros(3))] == ["state"]


@thorough
def test_several_states_have_their_order():
    counts = torch.zeros(2, dtype=torch.int32)

    def forward(network, x):
        network.counts += 1
        return swapped(network, x), None

    kept = check_calls(forward, first=torch.ones(3), second=torch.arange(3.0), counts=counts)
    assert sorted(state.name for state in kept) == ["counts", "first", "second"]
    assert [state.result for state in kept] == [1, 2, 3]


def test_a_buffer_that_is_overwritten_before_it_is_read_is_no_state():
    def forward(network, x):
        network.state.copy_(x)
        network.state.add_(1)
        network.other.zero_()
        network.other.add_(network.state)
        return network.state * network.other

    assert check_calls(forward, state=torch.zeros(3), other=torch.zeros(3)) == ()

    def first_from_second(network, x):
        network.first.copy_(network.second)
        network.second.copy_(x)
        return network.first * 1.0

    kept = check_calls(first_from_second, first=torch.zeros(3), second=torch.zeros(3))
    assert [state.name for state in kept] == ["second"]


def test_a_tensor_that_is_several_buffers_is_one_state():
    shared = torch.zeros(3)

    def forward(network, x):
        network.first.add_(x)
        return network.second * 2.0

    mod = read(forward, first=shared, second=shared)
    (state,) = backend.states(mod)
    first, after = run_on_host(mod, "main", [ONES.numpy(), state.initial])
    second, _ = run_on_host(mod, "main", [ONES.numpy(), after])
    assert (first.tolist(), second.tolist()) == ([2, 2, 2], [4, 4, 4])


def test_a_stand_in_of_bfloat16_is_the_type_of_the_state():
    state = torch.full((3,), 0.5, dtype=torch.bfloat16)
    for options, dtype in ((None, "float32"), ({"bfloat16": "float16"}, "float16")):
        mod = read(add, ONES.bfloat16(), options=options, state=state)
        (found,) = backend.states(mod)
        assert str(found.initial.dtype) == dtype == mod["main"].params[1].ty.dtype
        assert found.initial.tolist() == [0.5] * 3


# ---- After the import ---------------------------------------------------------------------------


def test_states_survive_passes_and_the_export(tmp_path):
    def forward(network, x):
        return torch.tanh(add(network, x) @ network.weight)

    mod = read(forward, torch.ones(1, 3), state=torch.zeros(1, 3), weight=torch.eye(3))
    path = tmp_path / "model.so"
    compile_for(mod).export_library(str(path))
    machine = VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    for model in (mod, partition_for(mod), machine):
        (state,) = backend.states(model)
        assert (state.name, state.parameter, state.result) == ("state", "b_state", 1)
        assert state.initial.tolist() == [[0, 0, 0]]
    assert backend.states(VirtualMachine(compile_for(plain()), tvm.cpu())) == ()


def plain():
    return read(lambda network, x: x + 1)


@thorough
def test_the_commands_begin_with_the_initial_values(tmp_path):
    network = Network(add, state=torch.arange(3.0))
    path, inputs = tmp_path / "model.pt2", tmp_path / "inputs.npz"
    torch.export.save(torch.export.export(network, (ONES,)), path)
    np.savez(inputs, ONES.numpy())
    library, found = tmp_path / "model.so", tmp_path / "found.npz"
    code, out, errors = run_command("compile", path, "-o", library, "--verify")
    assert (code, errors) == (0, "")
    assert "inputs: inputs_0 float32[3], b_state float32[3]" in out
    assert "2 results, worst difference 0 " in out
    code, out, errors = run_command("run", library, "--inputs", inputs, "--output", found)
    assert (code, errors) == (0, "")
    assert {name: array.tolist() for name, array in np.load(found).items()} == {
        "mul": [1, 2, 3],
        "state": [1, 2, 3],
    }
    # The caller's state.
    np.savez(inputs, inputs_0=ONES.numpy(), b_state=np.full(3, 5, "float32"))
    run_command("run", library, "--inputs", inputs, "--output", found)
    assert np.load(found)["state"].tolist() == [6, 6, 6]


def test_the_original_runs_with_the_state_of_the_caller():
    program = torch.export.export(Network(add, state=torch.zeros(3)), (ONES,))
    x = ONES.numpy()
    for _ in range(2):
        results = original_of(program).run([x, 4 * x], ["state"])
        assert [item.tolist() for item in results] == [[5, 5, 5], [5, 5, 5]]


# ---- Refusals -----------------------------------------------------------------------------------


def refused(forward, *inputs, **buffers):
    with pytest.raises(ValueError) as caught:
        read(forward, *inputs, **buffers)
    return str(caught.value)


def test_other_changes_are_refused_by_name():
    message = refused(lambda network, x: x.add_(1) * 2)
    assert "the program changes its input 'inputs_0'" in message

    def parameter(network, x):
        network.weight.add_(x)
        return network.weight * 2

    weight = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    network = Network(parameter)
    network.weight = weight
    with pytest.raises(ValueError, match="changes its parameter 'weight'.*supported is that of"):
        backend.from_exported_program(torch.export.export(network, (ONES,)))

    network = Network(lambda network, x: network.tensors[0].add_(x) * 1.0)
    network.tensors = [torch.zeros(3)]
    with pytest.raises(ValueError, match="changes a tensor that is no buffer.*register_buffer"):
        backend.from_exported_program(torch.export.export(network, (ONES,)))


def test_a_buffer_that_is_a_part_of_another_is_refused_if_it_changes():
    whole = torch.zeros(2, 3)

    def forward(network, x):
        network.whole.add_(x)
        return network.part * 1.0

    message = refused(forward, whole=whole, part=whole[0])
    assert "the buffers 'whole' and 'part' of the program are parts of one tensor" in message
    check_calls(lambda network, x: network.part * x, whole=whole, part=whole[0])


def test_a_buffer_that_grows_is_refused():
    def forward(network, x):
        network.state = torch.cat([network.state, x])
        return network.state.sum()

    message = refused(forward, state=torch.zeros(3))
    assert "the program changes the sizes of its buffer 'state' from [3] to [6]" in message


@thorough
def test_weights_stay_integers_beside_a_state():
    quantization = pytest.importorskip("torchao.quantization")
    network = torch.nn.Sequential(torch.nn.Linear(32, 8), Network(add, state=torch.zeros(1, 8)))
    quantization.quantize_(network, quantization.Int8WeightOnlyConfig())
    x = torch.ones(1, 32)
    mod = backend.from_exported_program(torch.export.export(network, (x,)))
    (state,) = backend.states(mod)
    constants = []
    relax.analysis.post_order_visit(
        mod["main"].body, lambda expr: constants.append(getattr(expr.ty, "dtype", ""))
    )
    assert "int8" in map(str, constants)
    _, after = run_on_host(mod, "main", [x.numpy(), state.initial])
    np.testing.assert_allclose(after, network[0](x).detach().numpy(), rtol=1e-5)
