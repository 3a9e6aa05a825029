# SPDX-License-Identifier: Apache-2.0
"""Partitioning: what is offloaded, what stays on the host, and that values do not change."""

import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import backend
import support
from backend.engine.backend.regions import MOST_CUTS
from backend.engine.backend.shared.backend import PACKAGE
from backend.engine.backend.table.reasons import Code
from support import (
    BACKEND,
    SINGLE,
    TABLE,
    array,
    build,
    compile_for,
    needs_single,
    on_host,
    partition_for,
    placement,
    report_of,
    run_on_host,
    skip_where_declined,
    variable,
)

needs, lacks, needs_symbols = support.needs, support.lacks, support.needs_symbols


IMAGE, RESULT = (1, 3, 6, 6), (1, 4, 6, 6)


def constant(*shape, seed=0):
    return relax.const(array(*shape, seed=seed))


def run(executable, arrays, name="main"):
    result = relax.VirtualMachine(executable, tvm.cpu())[name](*map(tvm.runtime.tensor, arrays))
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
    return [field.numpy() for field in fields]


def assert_same_values(mod, arrays, name="main", **options):
    """Compile for the NPU and for the host, run both, and return the placement."""
    expected = run_on_host(mod, name, arrays)
    actual = run(compile_for(mod, **options), arrays, name)
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    partitioned = partition_for(mod, **options)
    relax.analysis.well_formed(partitioned)
    return placement(partitioned, name)


def reason_of(mod, op, **options):
    return next(entry.reason for entry in report_of(mod, **options).ops if entry.op == op)


def module_of(model):
    return tvm.IRModule({model.name: model.function()})


def with_host_op(case):
    """Return the function of a case, with a host op behind the first result."""
    model = case.model()
    first = model.outputs[0]
    casted = model.bind(relax.op.astype(first.expr, "float32"))
    model.outputs = [type(first)(model.bind(on_host(casted)), {})]
    return model


# ---- Any op: what surrounds it ------------------------------------------------------------------


@needs_single
def test_a_model_is_not_changed():
    for case in SINGLE:
        mod = module_of(case.model(constants=True))
        before = mod.script()
        partition_for(mod)
        assert mod.script() == before


@needs_single
def test_an_op_that_the_npu_lacks_stays_on_the_host_with_a_reason(monkeypatch):
    monkeypatch.setattr("backend.engine.backend.table.table.NOT_SELECTED", {})
    for case in SINGLE:
        model = with_host_op(case)
        mod = module_of(model)
        ops = report_of(mod).ops
        assert [entry.placement for entry in ops][:1] == ["npu"], ops
        assert ops[-1].op == f"relax.{on_host.__name__}"
        assert ops[-1].reason == f"{ops[-1].op} is not in the table of this backend"
        assert all(entry.reason for entry in ops if entry.placement == "host")
        partition_for(mod, on_decline="error")  # The driver was not asked.


def test_a_model_without_any_supported_op_is_left_alone():
    x = variable("x", 4)
    mod = build([x], lambda emit: emit(on_host(emit(on_host(x)))))
    partitioned = partition_for(mod)
    assert [str(item.name_hint) for item in partitioned.get_global_vars()] == ["main"]
    assert_same_values(mod, [array(4)])
    assert len(backend.offload_report(partitioned).on_host) == 2


@needs_single
def test_functions_have_any_name_and_number():
    models = [case.model() for case in SINGLE]
    mod = tvm.IRModule({model.name: model.function() for model in models})
    partitioned = partition_for(mod)
    for model in models:
        assert len(placement(partitioned, model.name).regions) == 1
    symbols = backend.offload_report(partitioned).regions
    assert len(symbols) == len(models)
    assert {entry.function for entry in backend.offload_report(partitioned).ops} == {
        model.name for model in models
    }


@needs_single
def test_a_function_may_have_no_dataflow_block():
    model = SINGLE[0].model()
    mod = relax.transform.ToNonDataflow()(module_of(model))
    blocks = mod[model.name].body.blocks
    assert not any(isinstance(block, relax.DataflowBlock) for block in blocks)
    assert len(placement(partition_for(mod), model.name).regions) == 1


@needs_single
def test_private_functions_are_partitioned():
    support.skip_without_host(SINGLE[0])
    model = SINGLE[0].model()
    helper = model.function().without_attr("global_symbol")
    name = relax.GlobalVar("helper")
    relax.expr._update_type(name, helper.ty)
    builder = relax.BlockBuilder(tvm.IRModule({name: helper}))
    arguments = [relax.Var(item.name, item.ty) for item in helper.params]
    with builder.function("main", arguments):
        builder.emit_func_output(builder.emit(relax.Call(name, arguments)))
    arrays = [argument.values[model.sizes[0]] for argument in model.arguments]
    assert_same_values(builder.get(), arrays)
    assert len(report_of(builder.get()).offloaded) == 1


@needs_single
def test_partitioning_twice_equals_partitioning_once():
    for case in SINGLE:
        model = with_host_op(case)
        once = partition_for(module_of(model))
        twice = partition_for(once)
        # The order of the ops may differ, and so may the indices of those that they read.
        first, second = (
            {(replace(op, reads=()), *(report.ops[i].name for i in op.reads)) for op in report.ops}
            for report in map(backend.offload_report, (once, twice))
        )
        assert first == second
        assert placement(twice, model.name).regions == placement(once, model.name).regions


@needs_single
def test_regions_of_another_backend_are_left_alone():
    case = SINGLE[0]
    foreign = case.model().function()
    foreign = foreign.with_attr("Codegen", "some_other_npu").with_attr("global_symbol", "foreign")
    name = relax.GlobalVar("foreign")
    relax.expr._update_type(name, foreign.ty)
    builder = relax.BlockBuilder(tvm.IRModule({name: foreign}))
    arguments = [relax.Var(item.name, item.ty) for item in foreign.params]
    with builder.function("main", arguments):
        builder.emit_func_output(builder.emit(relax.Call(name, arguments)))
    # TVM drops what is unused in all functions, such as the other results of batch_norm.
    mod = relax.transform.DeadCodeElimination()(builder.get())
    partitioned = partition_for(mod)
    tvm.ir.assert_structural_equal(partitioned["foreign"], mod["foreign"])
    assert report_of(mod).offloaded == ()
    assert report_of(mod).ops[0].reason == "it is a region of some_other_npu"


def test_weights_are_bound_by_name():
    x, weight = variable("x", 4), variable("w", 4)
    mod = build([x, weight], lambda emit: emit(on_host(emit(relax.op.minimum(x, weight)))))
    value = array(4, seed=1)
    expected = np.minimum(array(4), value)
    expected = run(compile_for(build([x], lambda emit: emit(on_host(x)))), [expected])
    for given in (value, tvm.runtime.tensor(value)):
        for params in ({"w": given}, {"main": [tvm.runtime.tensor(value)]}):
            for bind_constants in (True, False):
                executable = compile_for(mod, params, bind_constants=bind_constants)
                np.testing.assert_allclose(run(executable, [array(4)])[0], expected[0], rtol=1e-5)
    with pytest.raises(ValueError, match="'nothing'.*: w, x"):
        partition_for(mod, {"nothing": value})
    with pytest.raises(ValueError, match="'elsewhere'"):
        partition_for(mod, {"elsewhere": [value]})


@needs_single
def test_weights_of_every_kind_of_op_can_be_bound():
    bound_some = False
    for case in SINGLE:
        model = case.model()
        *others, last = (argument.expr.name for argument in model.arguments)
        value = model.arguments[-1].values[model.sizes[0]]
        if others and "n" not in model.arguments[-1].shape:
            bound = partition_for(module_of(model), {last: value})
            assert [param.name for param in bound[model.name].params] == others
            bound_some = True
    if not bound_some:
        pytest.skip("no op has a second input of a fixed size")


# ---- Declines -----------------------------------------------------------------------------------


@needs_single
def test_a_declined_composite_runs_on_the_host_with_the_drivers_reason(decline):
    decline(lambda function, finish: "" if finish else "the moon is full")
    for case in SINGLE:
        mod = module_of(case.model())
        (entry,) = report_of(mod).ops
        assert entry.placement == "host"
        assert "the moon is full" in entry.reason
        with pytest.raises(RuntimeError, match=f"{entry.op}.*the moon is full"):
            partition_for(mod, on_decline="error")


@needs_single
def test_a_declined_region_runs_on_the_host_with_the_drivers_reason(decline):
    decline(lambda function, finish: "no memory left" if finish else "")
    for case in SINGLE:
        model = case.model(constants=True)
        mod = module_of(model)
        partitioned = partition_for(mod)
        relax.analysis.well_formed(partitioned)
        assert [str(item.name_hint) for item in partitioned.get_global_vars()] == [model.name]
        (entry,) = backend.offload_report(partitioned).ops
        assert entry.placement == "host"
        assert "no memory left" in entry.reason
        with pytest.raises(RuntimeError, match="no memory left"):
            compile_for(mod, on_decline="error")
    support.skip_without_host(case)
    arrays = [item.values[model.sizes[0]] for item in model.arguments]
    assert_same_values(mod, arrays, model.name)


def test_anything_but_a_module_is_refused_with_how_to_get_one():
    x = variable("x", 2, 3)
    function = build([x], lambda emit: emit(relax.op.acosh(x)))["main"]
    for model, words in (
        (
            None,
            "is of type NoneType; supported: tvm.IRModule.*"
            f"{PACKAGE}.from_onnx.*{PACKAGE}.from_exported_program",
        ),
        ("model.onnx", r"is of type str; .*from_onnx\(onnx.load\(path\)\)"),
        (function, r"is of type tvm\..*Function; .*{'main': function}"),
    ):
        for what in ("partition", "compile"):
            with pytest.raises(TypeError, match=words) as caught:
                getattr(backend, f"{what}_for_{BACKEND}")(model)
            assert len(str(caught.value).splitlines()) == 1


# ---- Control flow, and what TVM's own passes do not support -------------------------------------


@support.needs_reals
@needs("relu")
def test_branches_are_partitioned():
    x, condition = variable("x", 4), relax.Var("c", relax.TensorType((), "bool"))
    results = {}
    for branch, before in ((True, lambda v: v), (False, on_host)):
        builder = relax.BlockBuilder()
        with builder.function("branch", [x]):
            builder.emit_func_output(builder.emit(relax.op.nn.relu(builder.emit(before(x)))))
        results[branch] = builder.get()["branch"].body
    builder = relax.BlockBuilder()
    with builder.function("main", [x, condition]):
        value = builder.emit(relax.If(condition, results[True], results[False]))
        builder.emit_func_output(builder.emit(relax.op.nn.relu(value)))
    mod = builder.get()
    for answer in (True, False):
        assert_same_values(mod, [array(4), np.array(answer)])
    assert [entry.op for entry in report_of(mod).offloaded] == ["relax.nn.relu"] * 3


@support.needs_reals
@needs_symbols
@needs("relu")
def test_a_match_cast_separates_regions():
    n, m = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType((n, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            before = builder.emit(relax.op.nn.relu(x))
            cast = builder.match_cast(before, relax.TensorType((m, 3), "float32"))
            zeros = builder.emit(relax.op.zeros((m, 3), "float32"))
            after = builder.emit(relax.op.nn.relu(cast))
            zeros = builder.emit(relax.op.nn.relu(zeros))
            output = builder.emit_output(relax.Tuple([before, after, zeros]))
        builder.emit_func_output(output)
    found = assert_same_values(builder.get(), [array(5, 3)])
    assert found.regions


@support.needs_reals
@needs("relu")
def test_a_packed_call_separates_regions():
    @tvm_ffi.register_global_func("test.minus_one", override=True)
    def minus_one(x):
        return tvm.runtime.tensor(x.numpy() - 1)

    x = variable("x", 4)
    packed = relax.ExternFunc("test.minus_one")

    def body(emit):
        value = emit(relax.op.nn.relu(x))
        value = emit(relax.op.call_pure_packed(packed, value, ty_args=x.ty))
        return emit(relax.op.nn.relu(value))

    mod = build([x], body)
    found = assert_same_values(mod, [array(4)])
    assert found.regions == [["relu"], ["relu"]]
    (entry,) = report_of(mod).on_host
    assert entry.op == "relax.call_pure_packed"


@support.needs_reals
@needs("relu")
def test_several_results_of_a_region_are_used():
    x = variable("x", 4)

    def body(emit):
        one = emit(relax.op.nn.relu(x))
        two = emit(relax.op.nn.relu(one))
        return [two, emit(on_host(one)), one]

    assert assert_same_values(build([x], body), [array(4)]).regions == [["relu", "relu"]]


@support.needs_reals
@needs("relu")
def test_a_region_does_not_wait_for_itself():
    x = variable("x", 4)

    def body(emit):
        one = emit(relax.op.nn.relu(x))
        two = emit(on_host(one))
        return [emit(relax.op.nn.relu(two)), emit(relax.op.nn.relu(one))]

    found = assert_same_values(build([x], body), [array(4)])
    assert sorted(found.regions) == [["relu"], ["relu", "relu"]]


def tvm_partitions(mod):
    """Partition with TVM's own passes and this backend's patterns."""
    patterns = relax.backend.pattern_registry.get_patterns_with_prefix(f"{BACKEND}.")
    mod = relax.transform.FuseOpsByPattern(patterns)(mod)
    mod = relax.transform.MergeCompositeFunctions()(mod)
    relax.analysis.well_formed(mod)
    return mod


def crossing(emit, x, y):
    """Build two chains that read each other's first half through the host."""
    one, other = emit(relax.op.nn.relu(x)), emit(relax.op.nn.relu(y))
    from_one, from_other = emit(on_host(one)), emit(on_host(other))
    late = emit(relax.op.nn.relu(from_one))
    return [emit(relax.op.add(one, from_other)), emit(relax.op.add(late, other))]


@support.needs_reals
@needs("relu", "add")
def test_two_regions_do_not_wait_for_each_other():
    x, y = variable("x", 4), variable("y", 4)
    mod = build([x, y], lambda emit: crossing(emit, x, y))
    with pytest.raises(ValueError, match="not defined"):
        tvm_partitions(mod)
    found = assert_same_values(mod, [array(4), array(4, seed=1)])
    assert list(chain.from_iterable(found.regions)).count("add") == 2


@support.needs_reals
@needs("relu", "add")
def test_a_pattern_around_something_else_is_left_out():
    """The pattern is a vendor's, without a check; TVM reports a cyclic dependency."""
    name = f"{BACKEND}.relu_plus"
    any_value = relax.dpl.wildcard()
    pattern = relax.dpl.is_op("relax.nn.relu")(any_value)
    pattern = relax.dpl.is_op("relax.add")(pattern, relax.dpl.wildcard())
    x = variable("x", 4)

    def body(emit):
        value = emit(relax.op.nn.relu(x))
        return emit(relax.op.add(value, emit(on_host(value))))

    mod = build([x], body)
    with pytest.raises(tvm.error.InternalError, match="cyclic dependency"):
        relax.transform.FuseOpsByPattern([(name, pattern)])(mod)
    relax.backend.pattern_registry.register_patterns([(name, pattern)])
    try:
        found = assert_same_values(mod, [array(4)])
        assert found.regions == [["relu"], ["add"]]
        y = build([x], lambda emit: emit(relax.op.add(emit(relax.op.nn.relu(x)), x)))
        assert placement(partition_for(y), "main").regions == [["relu_plus"]]
    finally:
        tvm_ffi.get_global_func("relax.backend.RemovePatterns")([name])


@support.needs_reals
@needs("relu", "add")
def test_a_detection_head_is_cut_without_a_cycle():
    """Three scales read each other through host ops."""
    inputs = [variable(f"x{index}", 4) for index in range(3)]

    def body(emit):
        heads = list(inputs)
        for _ in range(3):
            heads = [emit(relax.op.nn.relu(head)) for head in heads]
            mixed = [emit(on_host(head)) for head in heads]
            heads = [
                emit(relax.op.add(head, mixed[(index + 1) % 3])) for index, head in enumerate(heads)
            ]
        return heads

    found = assert_same_values(build(inputs, body), [array(4, seed=seed) for seed in range(3)])
    assert len(list(chain.from_iterable(found.regions))) == 18


# ---- Limits of regions --------------------------------------------------------------------------


@support.needs_reals
@needs("relu", "add")
def test_small_regions_stay_on_the_host():
    x = variable("x", 4)

    def body(emit):
        value = emit(relax.op.nn.relu(x))
        for count in (2, 3):
            value = emit(on_host(value))
            for _ in range(count):
                value = emit(relax.op.nn.relu(value))
        return value

    mod = build([x], body)
    assert list(map(len, assert_same_values(mod, [array(4)]).regions)) == [1, 2, 3]
    found = assert_same_values(mod, [array(4)], min_region_ops=3)
    assert list(map(len, found.regions)) == [3]
    reasons = [entry.reason for entry in report_of(mod, min_region_ops=3).on_host]
    assert reasons[0] == "its region has 1 op; min_region_ops is 3"
    assert reasons[2] == "its region has 2 ops; min_region_ops is 3"
    partition_for(mod, min_region_ops=3, on_decline="error")  # The driver declined nothing.
    (region,) = backend.offload_report(partition_for(mod, min_region_ops=3)).regions
    assert region.symbol.endswith("_0")


@support.needs_reals
@needs("relu", "add")
@pytest.mark.parametrize(
    "limit", [1, *(pytest.param(limit, marks=pytest.mark.thorough) for limit in (2, 3))]
)
def test_the_largest_of_too_many_regions_stay(limit):
    """The size is in operations, not ops, across all functions and branches of the model."""
    sizes = {"one": 5, "two": 7, "three": 6}
    functions = {}
    for name, size in sizes.items():
        x = variable("x", size)

        def body(emit, x=x, count=9 - size):
            for _ in range(count):
                x = emit(relax.op.nn.relu(x))
            return emit(on_host(x))

        functions[name] = build([x], body, name)[name]
    mod = tvm.IRModule(functions)
    kept = sorted(sizes, key=lambda name: -sizes[name] * (9 - sizes[name]))[:limit]
    report = report_of(mod, max_regions=limit)
    assert {entry.function for entry in report.offloaded} == set(kept)
    gone = [entry for entry in report.on_host if entry.op == "relax.nn.relu"]
    assert len(gone) == sum(9 - sizes[name] for name in sizes if name not in kept)
    for entry in gone:
        count = sizes[entry.function] * (9 - sizes[entry.function])
        words = f"its region has {count} operations, and max_regions, which is {limit}, keeps"
        assert entry.reason.startswith(words)
    for name in sizes:
        assert_same_values(mod, [array(sizes[name])], name, max_regions=limit)


@support.needs_reals
@needs_symbols
@needs("relu", "add")
def test_the_size_of_a_symbolic_region_is_that_at_its_bound():
    n, m = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")
    x, y = (relax.Var(s.name, relax.TensorType((s, 2), "float32")) for s in (n, m))

    def body(emit):
        small = emit(relax.op.nn.relu(emit(relax.op.nn.relu(x))))
        large = emit(on_host(emit(on_host(small))))
        return [large, emit(relax.op.nn.relu(emit(on_host(y))))]

    mod = build([x, y], body)
    for bounds, count in (({"n": 4, "m": 9}, 1), ({"n": 5, "m": 9}, 2), ({"n": 4, "m": 7}, 2)):
        options = {"max_regions": 1, "symbol_bounds": bounds}
        found = assert_same_values(mod, [array(3, 2), array(4, 2)], **options)
        assert list(map(len, found.regions)) == [count]


@support.needs_reals
@needs("relu", "add")
def test_without_merging_each_composite_is_a_region():
    x, y = variable("x", 4), variable("y", 4)
    mod = build([x, y], lambda emit: crossing(emit, x, y))
    arrays = [array(4), array(4, seed=1)]
    merged = assert_same_values(mod, arrays)
    parted = assert_same_values(mod, arrays, merge_regions=False)
    assert len(merged.regions) < len(parted.regions)
    assert sorted(parted.regions) == sorted(
        [label] for label in chain.from_iterable(merged.regions)
    )


@support.needs_reals
@needs("relu", "add")
def test_strict_lists_all_that_stays_on_the_host():
    x = variable("x", 4)

    def body(emit):
        return emit(relax.op.nn.relu(emit(on_host(emit(relax.op.add(x, x))))))

    mod = build([x], body)
    name = f"relax.{on_host.__name__}"
    with pytest.raises(RuntimeError, match=f"(?s)'strict'.*  {name} .*not in the table") as caught:
        compile_for(mod, strict=True)
    assert str(caught.value).count("relax.") == 2  # The op, and its name in the reason.
    with pytest.raises(RuntimeError, match="nn.relu .*: its region has 1 op; min_region_ops is 2"):
        compile_for(mod, strict=True, min_region_ops=2)


@needs("relu")
def test_strict_has_exceptions_by_op_and_by_name():
    x = variable("x", 4)
    mod = build([x], lambda emit: [emit(on_host(x)), emit(relax.op.nonzero(x))])
    host = on_host.__name__
    with pytest.raises(RuntimeError, match=f"(?s)where 2 do;.*{host}.*nonzero .*not_in_table"):
        partition_for(mod, strict=True)
    for names in ([host, "relax.nonzero"], ["*"], [f"relax.{host}", "nonzero"]):
        partition_for(mod, strict=True, strict_except=names)
    with pytest.raises(RuntimeError, match=f"(?s)where 1 does;.*{host}"):
        partition_for(mod, strict=True, strict_except=["nonzero"])


@needs("relu")
def test_a_report_says_once_what_would_move_ops_to_the_npu():
    x = variable("x", 4)
    mod = build([x], lambda emit: [emit(on_host(x)), emit(relax.op.nonzero(x))])
    advice = f"[not_in_table] {Code.NOT_IN_TABLE.remedy}"
    assert str(backend.offload_report(partition_for(mod))).splitlines()[-2] == advice
    with pytest.raises(RuntimeError) as caught:
        partition_for(mod, strict=True)
    assert str(caught.value).count(advice) == 1


@needs("relu")
def test_names_that_no_op_has_are_a_warning(caplog):
    x = variable("x", 4)
    mod = build([x], lambda emit: emit(relax.op.nn.relu(emit(on_host(x)))))
    host = on_host.__name__
    partitioned = partition_for(mod, keep_on_host=["nn.relo"], strict_except=[host, "*", "zzz"])
    first, second = (record.getMessage() for record in caplog.records)
    assert "'keep_on_host'" in first and "'nn.relo'" in first and "did you mean 'nn.relu'" in first
    assert "'strict_except'" in second and "'zzz', which no op of the model is called." in second
    caplog.clear()
    partition_for(partitioned, keep_on_host=["nn.relo"])
    assert not caplog.records


@support.needs_reals
@needs("relu")
def test_strict_ignores_bookkeeping_and_calls_of_own_functions():
    x = variable("x", 4)
    helper = build([x], lambda emit: emit(relax.op.nn.relu(x)), "helper")["helper"]
    name = relax.GlobalVar("helper")
    relax.expr._update_type(name, helper.ty)
    builder = relax.BlockBuilder(tvm.IRModule({name: helper.without_attr("global_symbol")}))
    y = variable("y", 4)
    with builder.function("main", [y]):
        result = builder.emit(relax.Call(name, [y]))
        builder.emit_func_output(relax.Tuple([result, builder.emit(relax.op.shape_of(result))]))
    partition_for(builder.get(), strict=True)


@support.needs_reals
@needs("relu", "add")
def test_only_the_cause_of_a_declined_region_goes_to_the_host(decline):
    """The rest forms regions around it."""

    def refuse_add(function, finish):
        too_large = finish and "R.add" in function.script()
        return "relax.add needs 12 bytes more than there are" if too_large else ""

    decline(refuse_add)
    x = variable("x", 4)

    def body(emit):
        value = emit(relax.op.nn.relu(emit(relax.op.nn.relu(x))))
        value = emit(relax.op.add(value, value))
        return emit(relax.op.nn.relu(value))

    mod = build([x], body)
    found = assert_same_values(mod, [array(4)])
    assert found.regions == [["relu", "relu"], ["relu"]]
    (entry,) = report_of(mod).on_host
    assert entry.reason == "the driver declines it: relax.add needs 12 bytes more than there are"
    symbols = [region.symbol for region in report_of(mod).regions]
    assert symbols == [f"{BACKEND}_main_{index}" for index in range(2)]
    with pytest.raises(RuntimeError, match=r"relax.add \(\w+\): relax.add needs 12 bytes more"):
        partition_for(mod, on_decline="error")


@support.needs_reals
@needs("relu", "add")
def test_a_region_that_is_declined_as_a_whole_goes_to_the_host(decline):
    def refuse_two(function, finish):
        return "two are too many" if finish and function.script().count("R.nn.relu") > 1 else ""

    decline(refuse_two)
    x = variable("x", 4)
    mod = build([x], lambda emit: emit(relax.op.nn.relu(emit(relax.op.nn.relu(x)))))
    assert assert_same_values(mod, [array(4)]).regions == []
    for entry in report_of(mod).on_host:
        assert entry.reason == "the driver declines the region: two are too many"
    found = assert_same_values(mod, [array(4)], merge_regions=False)
    assert found.regions == [["relu"], ["relu"]]


def labels_of(function):
    """Return the labels of the ops of a composite or a region, in order."""
    labels = []
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Function):
                labels += labels_of(binding.value)
            elif isinstance(getattr(binding.value, "op", None), tvm.ir.Op):
                labels.append(f"{binding.value.op.name} ({binding.var.name})")
    return labels


@support.needs_reals
@needs("relu", "add")
def test_an_op_that_is_declined_behind_another_one_cuts_the_region(decline):
    """The driver accepts the op alone, and names it when it declines the region."""

    def refuse_add_behind_relu(function, finish):
        before = ""
        for label in labels_of(function) if finish else []:
            if "add" in label and "relu" in before:
                return f"{label}: not behind another node"
            before = label
        return ""

    decline(refuse_add_behind_relu)
    x = variable("x", 4)

    def body(emit):
        value = emit(relax.op.nn.relu(emit(relax.op.add(x, x))))
        return emit(relax.op.nn.relu(emit(relax.op.add(value, value))))

    mod = build([x], body)
    found = assert_same_values(mod, [array(4)])
    assert found.regions == [["add", "relu"], ["relu"]]
    (entry,) = report_of(mod).on_host
    assert entry.op == "relax.add"
    label = f"relax.add ({entry.name})"
    assert entry.reason == f"the driver declines it: {label}: not behind another node"
    symbols = [region.symbol for region in report_of(mod).regions]
    assert symbols == [f"{BACKEND}_main_{index}" for index in range(2)]
    with pytest.raises(RuntimeError, match=rf"{re.escape(label)}: not behind another node\."):
        partition_for(mod, on_decline="error")


@pytest.mark.thorough
@needs("relu", "add")
def test_a_region_is_not_cut_forever(decline):
    """A driver that always names another op is asked a bounded number of times."""
    asked = []

    def refuse_two(function, finish):
        adds = [label for label in labels_of(function) if "add" in label]
        if not finish or len(adds) < 2:
            return ""
        asked.append(function)
        return f"no room for {adds[0]}"

    decline(refuse_two)
    x = variable("x", 4)

    def body(emit):
        value = x
        for _ in range(50):
            value = emit(relax.op.nn.relu(emit(relax.op.add(value, x))))
        return value

    mod = build([x], body)
    reasons = [entry.reason for entry in report_of(mod).on_host]
    assert len(asked) == MOST_CUTS + 1
    declined = [reason for reason in reasons if reason.startswith("the driver declines it: ")]
    assert len(declined) == MOST_CUTS
    assert any(reason.startswith("the driver declines the region: ") for reason in reasons)
    assert assert_same_values(mod, [array(4)]).regions


# ---- Symbols ------------------------------------------------------------------------------------


@support.needs_reals
@needs_symbols
@needs("relu", "add")
def test_regions_know_the_bounds_of_their_symbols():
    n, m = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")
    x, y = (relax.Var(s.name, relax.TensorType((s, 2), "float32")) for s in (n, m))

    def body(emit):
        return [emit(relax.op.nn.relu(x)), emit(relax.op.add(y, y))]

    mod = build([x, y], body)

    def bounds(mod, **options):
        partitioned = partition_for(mod, **options)
        found = {}
        for name in (item.symbol for item in backend.offload_report(partitioned).regions):
            known = partitioned[name].attrs.get("tir_var_upper_bound", {})
            found |= {str(key): int(value) for key, value in known.items()}
        return found

    assert bounds(mod) == {}  # RunCodegen can still set the bounds.
    assert bounds(mod, symbol_bound=5) == {"n": 5, "m": 5}
    assert bounds(mod, symbol_bounds={"n": 7, "k": 3}) == {"n": 7}
    mod["main"] = mod["main"].with_attr("tir_var_upper_bound", {"n": 9, "m": 8})
    assert bounds(mod) == {"n": 9, "m": 8}
    assert bounds(mod, symbol_bounds={"m": 2}, symbol_bound=5) == {"n": 9, "m": 2}


@support.needs_reals
@needs("relu", "add")
def test_independent_host_work_does_not_split_a_region():
    x, y = variable("x", 4), variable("y", 4)

    def body(emit):
        value = emit(relax.op.nn.relu(x))
        return emit(relax.op.add(value, emit(on_host(y))))

    assert len(placement(partition_for(build([x, y], body)), "main").regions) == 1


@support.needs_reals
@needs("concat")
def test_a_tuple_may_be_bound_to_a_variable():
    x, y = variable("x", 2, 3), variable("y", 4, 3)

    def body(emit):
        return emit(relax.op.concat(emit(relax.Tuple([x, y])), 0))

    mod = build([x, y], body)
    skip_where_declined(mod)
    assert assert_same_values(mod, [array(2, 3), array(4, 3)]).regions == [["concat"]]


# ---- What is fused ------------------------------------------------------------------------------


def convolution(emit, x, seed=0):
    return emit(relax.op.nn.conv2d(x, constant(4, 3, 3, 3, seed=seed), padding=1))


def added(operand, arguments=(), swapped=False):
    """Build a convolution plus an operand, which may be a function of `emit`."""
    x = variable("x", *IMAGE)

    def body(emit):
        other = operand if isinstance(operand, tvm.ir.Expr) else operand(emit)
        value = convolution(emit, x)
        return emit(relax.op.add(other, value) if swapped else relax.op.add(value, other))

    mod = build([x, *arguments], body)
    arrays = [array(*[int(size) for size in item.ty.shape]) for item in [x, *arguments]]
    return assert_same_values(mod, arrays).regions


@support.needs_reals
@needs("conv2d", "add")
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (4, 1, 1)])
def test_a_constant_per_channel_is_a_bias(shape, swapped):
    assert added(constant(*shape), swapped=swapped) == [["conv2d_bias"]]


@support.needs_reals
@needs("conv2d", "add")
def test_a_parameter_and_a_reshaped_parameter_may_be_a_bias():
    bias = variable("b", 1, 4, 1, 1)
    assert added(bias, [bias]) == [["conv2d_bias"]]
    flat = variable("b", 4)
    found = added(lambda emit: emit(relax.op.reshape(flat, (1, 4, 1, 1))), [flat])
    assert ["conv2d_bias"] in [[item for item in labels if "conv" in item] for labels in found]


@support.needs_reals
@needs("conv2d", "add")
@pytest.mark.parametrize("shape", [(1, 1, 1, 6), (1, 1, 6, 1), (), (1,), (1, 4, 6, 1)])
def test_other_constants_are_not_a_bias(shape):
    assert added(constant(*shape)) == [["conv2d", "add"]]


@support.needs_reals
@needs("conv2d", "add")
def test_a_computed_value_is_not_a_bias():
    bias = variable("b", 1, 4, 1, 1)
    found = added(lambda emit: emit(on_host(bias)), [bias])
    assert sorted(chain.from_iterable(found)) == ["add", "conv2d"]


@support.needs_reals
@needs("conv2d", "add")
@pytest.mark.parametrize("swapped", [False, True])
def test_a_tensor_of_the_results_shape_is_a_residual(swapped):
    residual = variable("r", *RESULT)
    assert added(residual, [residual], swapped=swapped) == [["conv2d_residual"]]


@support.needs_reals
@needs("conv2d", "add")
def test_a_tensor_that_broadcasts_the_result_is_not_a_residual():
    residual = variable("r", 5, 4, 6, 6)
    assert added(residual, [residual]) == [["conv2d", "add"]]


@support.needs_reals
@needs("conv2d", "add")
def test_a_value_added_to_itself_is_not_a_residual():
    x = variable("x", *IMAGE)

    def body(emit):
        value = convolution(emit, x)
        return emit(relax.op.add(value, value))

    assert assert_same_values(build([x], body), [array(*IMAGE)]).regions == [["conv2d", "add"]]


@support.needs_reals
@needs("conv2d", "add")
def test_a_value_that_is_used_elsewhere_is_not_fused_away():
    x = variable("x", *IMAGE)

    def body(emit):
        value = convolution(emit, x)
        return [emit(relax.op.add(value, constant(1, 4, 1, 1))), value]

    found = assert_same_values(build([x], body), [array(*IMAGE)])
    assert found.regions == [["conv2d", "add"]]


@support.needs_reals
@needs("conv2d", "add")
def test_one_of_two_added_convolutions_takes_the_other_as_residual():
    x = variable("x", *IMAGE)

    def body(emit):
        return emit(relax.op.add(convolution(emit, x), convolution(emit, x, seed=1)))

    found = assert_same_values(build([x], body), [array(*IMAGE)])
    assert sorted(chain.from_iterable(found.regions)) == ["conv2d", "conv2d_residual"]


@support.needs_reals
@needs("conv2d", "add")
def test_a_declined_fusion_gives_smaller_composites(decline):
    def refuse_bias(function, finish):
        return "no bias unit" if "bias" in str(function.attrs.get("Composite", "")) else ""

    decline(refuse_bias)
    assert added(constant(1, 4, 1, 1)) == [["conv2d", "add"]]


@support.needs_reals
@needs("conv2d", "add", variable=True)
def test_unbound_constants_stay_arguments():
    x = variable("x", *IMAGE)

    def body(emit):
        return emit(relax.op.add(convolution(emit, x), constant(1, 4, 1, 1)))

    mod = build([x], body)
    for bind_constants, count in ((True, 1), (False, 3)):
        found = assert_same_values(mod, [array(*IMAGE)], bind_constants=bind_constants)
        assert found.regions == [["conv2d_bias"]]
        partitioned = partition_for(mod, bind_constants=bind_constants)
        assert len(partitioned[f"{BACKEND}_main_0"].params) == count


@support.needs_reals
@needs("conv2d", "add")
def test_tvms_own_passes_work_with_the_patterns():
    x = variable("x", *IMAGE)

    def body(emit):
        return emit(relax.op.add(convolution(emit, x), constant(1, 4, 1, 1)))

    mod = build([x], body)
    expected = run_on_host(mod, "main", [array(*IMAGE)])
    patterns = relax.backend.pattern_registry.get_patterns_with_prefix(f"{BACKEND}.")
    for annotate in (True, False):
        fused = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=annotate)(mod)
        if not annotate:
            fused = relax.transform.MergeCompositeFunctions()(fused)
        assert f"{BACKEND}.conv2d_bias" in fused.script()
        compiled = tvm.compile(relax.transform.RunCodegen()(fused), target="llvm")
        actual = run(compiled, [array(*IMAGE)])
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-4)


# ---- Transposed operands ------------------------------------------------------------------------


def product(axes, uses=1):
    x, weight = variable("x", 2, 3, 4), variable("w", 2, 3, 4)

    def body(emit):
        swapped = emit(relax.op.permute_dims(weight, axes))
        value = emit(relax.op.matmul(x, swapped))
        return [value] + [emit(on_host(swapped)) for _ in range(uses - 1)]

    mod = build([x, weight], body)
    return assert_same_values(mod, [array(2, 3, 4), array(2, 3, 4, seed=1)]).regions


@support.needs_reals
@needs("matmul", variable=True)
def test_a_swap_of_the_last_dimensions_joins_the_matmul():
    assert product([0, 2, 1]) == [["linear"]]
    assert product([0, -1, -2]) == [["linear"]]


@support.needs_reals
@needs("matmul", variable=True)
def test_a_transposed_operand_that_is_used_elsewhere_is_transposed():
    labels = list(chain.from_iterable(product([0, 2, 1], uses=2)))
    assert "matmul" in labels
    assert "linear" not in labels


@support.needs_reals
@needs("matmul", variable=True)
def test_another_order_of_dimensions_does_not_join():
    x, weight = variable("x", 2, 3, 4), variable("w", 4, 2, 5)

    def body(emit):
        return emit(relax.op.matmul(x, emit(relax.op.permute_dims(weight, [1, 0, 2]))))

    found = assert_same_values(build([x, weight], body), [array(2, 3, 4), array(4, 2, 5)])
    assert "matmul" in chain.from_iterable(found.regions)
    assert "linear" not in chain.from_iterable(found.regions)


@support.needs_reals
@needs("matmul", variable=True)
@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((5,), (5, 6), (6,)),
        ((4, 5), (5,), (4,)),
        ((5,), (2, 3, 5, 6), (2, 3, 6)),
        ((2, 3, 4, 5), (5,), (2, 3, 4)),
        ((5,), (5,), ()),
    ],
)
def test_what_is_fused_behind_a_product_of_a_vector_has_the_shape_of_the_result(
    left, right, result
):
    shapes = {"x": left, "y": right, "z": result}
    x, y, z = given = [variable(name, *shape) for name, shape in shapes.items()]

    def body(emit):
        return emit(relax.op.add(emit(relax.op.matmul(x, y)), z))

    arrays = [array(*shape, seed=seed) for seed, shape in enumerate(shapes.values())]
    found = assert_same_values(build(given, body), arrays, on_decline="error")
    assert found.regions == [["matmul_residual"]]


@lacks("add")
@needs("conv2d")
def test_a_bias_needs_no_add_in_the_table():
    x = variable("x", *IMAGE)

    def body(emit):
        value = emit(relax.op.nn.conv2d(x, constant(4, 3, 3, 3), padding=1))
        return emit(relax.op.add(value, constant(1, 4, 1, 1)))

    mod = build([x], body)
    found = assert_same_values(mod, [array(*IMAGE)], on_decline="error")
    assert found.regions == [["conv2d_bias"]]


# ---- Batch normalization ------------------------------------------------------------------------


def normalized(emit, value, axis=1, **attributes):
    given = [relax.const(np.abs(array(4, seed=seed)) + 0.5) for seed in range(4)]
    norm = emit(relax.op.nn.batch_norm(value, *given, axis=axis, **attributes))
    return emit(relax.TupleGetItem(norm, 0))


@pytest.mark.thorough
@needs("conv2d")
@support.needs_pass("FoldBatchNorm")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"scale": False}, {"center": False}, {"epsilon": 0.1}])
def test_batch_norm_is_folded_into_a_convolution(attributes, biased):
    x = variable("x", *IMAGE)

    def body(emit):
        value = emit(relax.op.nn.conv2d(x, constant(4, 3, 3, 3), padding=1))
        if biased:
            value = emit(relax.op.add(value, emit(relax.op.reshape(constant(4), (1, 4, 1, 1)))))
        return normalized(emit, value, training=False, **attributes)

    mod = build([x], body)
    assert_same_values(mod, [array(*IMAGE)])
    assert [entry.op for entry in report_of(mod).ops] == ["relax.nn.conv2d", "relax.add"]


@needs("conv2d")
def test_batch_norm_is_not_folded_where_that_would_change_values():
    x = variable("x", *IMAGE)

    def trained(emit):
        value = emit(relax.op.nn.conv2d(x, constant(4, 3, 3, 3), padding=1))
        return normalized(emit, value, training=True)

    def shared(emit):
        value = emit(relax.op.nn.conv2d(x, constant(4, 3, 3, 3), padding=1))
        return [normalized(emit, value, training=False), value]

    def last_axis(emit):
        value = emit(relax.op.nn.conv2d(x, constant(4, 3, 3, 1), padding=[1, 0, 1, 0]))
        value = emit(relax.op.nn.conv2d(value, constant(4, 4, 1, 3)))
        return normalized(emit, value, axis=3, training=False)

    for body in (trained, shared, last_axis):
        mod = build([x], body)
        assert "relax.nn.batch_norm" in [entry.op for entry in report_of(mod).ops]
    reason = reason_of(build([x], trained), "relax.nn.batch_norm")
    assert "batch_norm" in reason
    assert_same_values(build([x], shared), [array(*IMAGE)])
    assert_same_values(build([x], last_axis), [array(*IMAGE)])


@needs("batch_norm")
def test_running_statistics_that_are_read_are_results_of_a_batch_norm():
    x = variable("x", 1, 4, 6, 6)

    def body(emit):
        given = [relax.const(np.abs(array(4, seed=seed)) + 0.5) for seed in range(4)]
        norm = emit(relax.op.nn.batch_norm(x, *given, axis=1, training=False))
        return [emit(relax.TupleGetItem(norm, 0)), emit(relax.TupleGetItem(norm, 1))]

    mod = build([x], body)
    assert_same_values(mod, [array(1, 4, 6, 6)])
    assert not report_of(mod).on_host


# ---- Other normalizations -----------------------------------------------------------------------


@support.needs_reals
@needs("group_norm", variable=True)
def test_a_normalization_may_disable_scale_and_shift():
    x, last = variable("x", 2, 4, 3), variable("b", 4)
    attributes = {"num_groups": 2, "channel_axis": 1, "axes": [2], "center": False}

    def norm_of(beta, **others):
        def body(emit):
            ones = relax.const(np.ones(4, "float32"))
            given = [x, ones, emit(relax.op.zeros_like(last)) if beta is None else beta]
            return emit(relax.op.nn.group_norm(*given, **attributes, **others))

        return build([x, last], body)

    for beta in (relax.const(np.zeros(4, "float32")), None):
        for scale in (True, False):
            mod = norm_of(beta, scale=scale)
            assert_same_values(mod, [array(2, 4, 3), array(4)])
            found = [entry for entry in report_of(mod).ops if "group_norm" in entry.op]
            assert [entry.placement for entry in found] == ["npu"]
    reason = reason_of(norm_of(constant(4)), "relax.nn.group_norm")
    assert "center" in reason


@needs("layer_norm")
def test_a_chain_whose_shapes_do_not_fit_the_op_is_unchanged():
    x, gamma, beta = variable("x", 1, 4, 2, 3), variable("g", 4, 1, 1), variable("b", 4, 1, 1)

    def body(emit):  # The ONNX importer's form of InstanceNormalization.
        mean = emit(relax.op.mean(x, axis=[2, 3], keepdims=True))
        variance = emit(relax.op.variance(x, axis=[2, 3], keepdims=True))
        root = emit(relax.op.sqrt(emit(relax.op.add(variance, relax.const(1e-3, "float32")))))
        normal = emit(relax.op.divide(emit(relax.op.subtract(x, mean)), root))
        return emit(relax.op.add(emit(relax.op.multiply(normal, gamma)), beta))

    mod = build([x, gamma, beta], body)
    arrays = [array(1, 4, 2, 3), array(4, 1, 1, seed=1), array(4, 1, 1, seed=2)]
    assert_same_values(mod, arrays)
    assert "relax.nn.layer_norm" not in [entry.op for entry in report_of(mod).ops]


# ---- Simplification -----------------------------------------------------------------------------


def test_ops_that_move_no_data_are_dropped_or_become_a_view():
    x = variable("x", 2, 1, 3)

    def body(emit):
        same = emit(relax.op.astype(emit(relax.op.broadcast_to(x, (2, 1, 3))), "float32"))
        return emit(on_host(emit(relax.op.expand_dims(emit(relax.op.squeeze(same, [1])), 0))))

    mod = build([x], body)
    assert_same_values(mod, [array(2, 1, 3)])
    views = ["relax.squeeze", "relax.expand_dims"]
    if TABLE.entries_of("relax.reshape"):
        views = [view if TABLE.entries_of(view) else "relax.reshape" for view in views]
    names = [entry.op for entry in report_of(mod).ops]
    assert names == [*views, f"relax.{on_host.__name__}"]


def test_constant_expressions_are_folded():
    x = variable("x", 4)

    def body(emit):
        return emit(on_host(emit(relax.op.minimum(x, emit(on_host(constant(4)))))))

    mod = build([x], body)
    assert_same_values(mod, [array(4)])
    names = [entry.op for entry in report_of(mod).ops]
    assert names == ["relax.minimum", f"relax.{on_host.__name__}"]


TAKES_WEIGHTS = [op for op in ("matmul", "add", "multiply") if TABLE.get(op)]


# ---- Artifacts ----------------------------------------------------------------------------------


@pytest.mark.skipif(not TAKES_WEIGHTS, reason="no op takes weights")
def test_weights_are_stored_once(tmp_path):
    large = array(600, 600)
    x = variable("x", 600, 600)
    host_weight = relax.const(large + 1)

    def body(emit):
        value = emit(getattr(relax.op, TAKES_WEIGHTS[0])(x, relax.const(large)))
        return emit(on_host(emit(relax.op.minimum(value, host_weight))))

    mod = build([x], body)
    path = tmp_path / "model.so"
    compile_for(mod).export_library(str(path))
    # One copy for the NPU, and one for the host.
    assert path.stat().st_size < 2.6 * large.nbytes
    actual = run(tvm.runtime.load_module(str(path)), [large])
    expected = run_on_host(mod, "main", [large])
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-3, atol=1e-3)
