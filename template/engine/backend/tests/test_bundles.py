# SPDX-License-Identifier: Apache-2.0
"""Bundles: several programs that store equal parts once."""

import struct

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import backend
from backend.engine.backend.libraries.linking import link_artifacts
from backend.engine.workbench.conformance.region import load_module
from support import BACKEND, IS_EMULATOR, build, compile_for, needs, partition_for, variable
from test_artifact import HEADER, MAGIC, SECTION, Parts, mutate, regions_in, seal, write

pytestmark = [needs("matmul"), pytest.mark.usefixtures("bound_constants")]

BUNDLE = 3
SECTIONS = ("manifest", "graph", "pieces", "ports")
"""Of each region; the last section is `data`."""
WIDTH = 64
ROWS = (1, 4, 16, 32)


def weight(width):
    return np.random.default_rng(width).standard_normal((width, width)).astype("float32")


def network(rows=ROWS, width=WIDTH):
    """Make a function of each number of rows, with the same weight."""
    functions = {}
    for count in rows:
        x = variable("x", count, width)
        mod = build([x], lambda emit, x=x: emit(relax.op.matmul(x, relax.const(weight(width)))))
        name = f"rows_{count}"
        functions[name] = mod["main"].with_attr("global_symbol", name)
    return tvm.IRModule(functions)


def assert_right(module, rows=ROWS, width=WIDTH):
    machine = relax.VirtualMachine(module, tvm.cpu())
    for count in rows:
        x = np.random.default_rng(count).standard_normal((count, width)).astype("float32")
        found = machine[f"rows_{count}"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(found, x @ weight(width), rtol=1e-3, atol=1e-3)
    return machine


def bundles_in(content):
    """Take the bundles out of a file."""
    found, at = [], content.find(MAGIC)
    while at >= 0:
        _, version, count, size, _ = HEADER.unpack_from(content, at)
        if version == BUNDLE and count > 1:
            found.append(content[at : at + size])
        at = content.find(MAGIC, at + size)
    return found


def sections_of(bundle):
    """Take a bundle apart, and check its format."""
    _, version, count, size, _ = HEADER.unpack_from(bundle)
    assert (version, size, count % 4) == (BUNDLE, len(bundle), 1)
    assert seal(bundle) == bundle
    sections = []
    for index in range(count):
        name, offset, length = SECTION.unpack_from(bundle, HEADER.size + index * SECTION.size)
        wanted = "data" if index == count - 1 else SECTIONS[index % 4]
        assert (name, offset % 64) == (wanted.encode().ljust(8, b"\0"), 0)
        sections.append((wanted, bundle[offset : offset + length]))
    return sections


def written(sections):
    """Write a bundle; its names occur several times."""
    unique = {f"{index:08}": content for index, (_, content) in enumerate(sections)}
    data = bytearray(write(BUNDLE, unique))
    for index, (name, _) in enumerate(sections):
        struct.pack_into("<8s", data, HEADER.size + index * SECTION.size, name.encode())
    return seal(bytes(data))


@pytest.fixture(scope="module")
def executable(bound_constants):
    return compile_for(network())


@pytest.fixture(scope="module")
def library(executable, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "model.so"
    executable.export_library(str(path))
    return path


@pytest.fixture(scope="module")
def bundle(library):
    found = bundles_in(library.read_bytes())
    if not found and not IS_EMULATOR:
        pytest.skip("the programs of this driver have nothing in common")
    (content,) = found
    return content


def load_regions(content):
    return list(tvm_ffi.get_global_func(f"{BACKEND}.runtime.load_regions")(content))


def test_a_library_stores_the_weights_of_its_functions_once(library, bundle, executable):
    assert_right(executable)
    machine = assert_right(tvm.runtime.load_module(str(library)))
    assert library.read_bytes().count(weight(WIDTH).tobytes()) <= 1
    regions = regions_in(machine.module)
    assert len(regions) == len(ROWS)
    # Each is the artifact that it would be alone.
    for region in regions:
        alone = bytes(region["save_to_bytes"]())
        assert Parts.read(alone).write() == alone
        assert load_module(alone)["get_symbol"]() == region["get_symbol"]()
        assert load_module(alone)["describe"]() == region["describe"]()


def test_the_report_says_what_functions_share():
    report = backend.offload_report(partition_for(network()))
    assert report.shared == weight(WIDTH).nbytes
    assert f"functions share {report.shared:,} bytes of constants" in str(report)
    assert type(report).from_json(report.to_json()) == report
    assert backend.offload_report(partition_for(network(ROWS[:1]))).shared == 0


@pytest.mark.skipif(not IS_EMULATOR, reason="weights of other drivers may differ between programs")
def test_four_programs_are_hardly_larger_than_one(tmp_path):
    width = 512
    sizes = []
    for rows in (ROWS[:1], ROWS):
        path = tmp_path / f"{len(rows)}.so"
        compile_for(network(rows, width)).export_library(str(path))
        sizes.append(path.stat().st_size)
    assert_right(tvm.runtime.load_module(str(path)), width=width)
    assert sizes[1] <= 1.05 * sizes[0]


def test_a_bundle_follows_its_format(bundle, library):
    sections = sections_of(bundle)
    assert written(sections) == bundle
    data = sections[-1][1]
    regions = load_regions(bundle)
    assert len(regions) == len(ROWS)
    for index, region in enumerate(regions):
        manifest, graph, pieces, ports = (content for _, content in sections[4 * index :][:4])
        program = b"".join(data[at : at + size] for at, size in struct.iter_unpack("<QQ", pieces))
        assert Parts(2, manifest, graph, program, ports).write() == bytes(region["save_to_bytes"]())
    found = backend.read_artifacts(library)
    assert [artifact.symbol for artifact in found] == [r["get_symbol"]() for r in regions]
    for artifact in found:
        assert artifact.sizes["artifact"] == len(bundle)
        assert 4096 <= artifact.sizes["shared"] <= artifact.sizes["program"]
        others = [other.symbol for other in found if other.symbol != artifact.symbol]
        assert list(artifact.stored_with) == others and len(others) == len(ROWS) - 1
        assert f"\n  stored with         {others[0]}\n" in str(artifact)
        assert f"shared={artifact.sizes['shared']}" in str(artifact)


@pytest.mark.parametrize("linked", [False, True])
def test_modules_keep_a_bundle_in_any_form(bundle, linked, tmp_path):
    compiled = relax.transform.RunCodegen()(partition_for(network()))
    if linked:
        compiled = link_artifacts(compiled, "llvm")
    text = tvm.ir.save_json(compiled)
    executable = tvm.compile(compiled, target="llvm")
    for name in ("model.so", "model.tar"):
        executable.export_library(str(tmp_path / name))
        assert_right(tvm.runtime.load_module(str(tmp_path / name)))
    (kept,) = bundles_in((tmp_path / "model.so").read_bytes())
    # The manifests have the options, which RunCodegen was not given.
    assert sections_of(kept)[-1] == sections_of(bundle)[-1]
    # As JSON, each module is saved with its imports.
    assert_right(tvm.compile(tvm.ir.load_json(text), target="llvm"))


def test_the_cache_has_regions_and_the_bundle_is_the_same(bundle, tmp_path):
    for name in ("first", "second"):
        executable = compile_for(network(), cache_dir=str(tmp_path / "cache"))
        executable.export_library(str(tmp_path / name))
        assert bundles_in((tmp_path / name).read_bytes()) == [bundle]
    assert len(list((tmp_path / "cache").iterdir())) == len(ROWS)


def test_regions_with_little_in_common_are_artifacts(tmp_path):
    mod = network((1,))
    mod.update(tvm.IRModule({"rows_2": network((2,), 128)["rows_2"]}))
    compile_for(mod).export_library(str(tmp_path / "model.so"))
    assert not bundles_in((tmp_path / "model.so").read_bytes())
    assert all("shared" not in a.sizes for a in backend.read_artifacts(tmp_path / "model.so"))


# ---- Other bytes --------------------------------------------------------------------------------


def with_pieces(bundle, change):
    """Change the list of pieces of the last region."""
    sections = sections_of(bundle)
    pieces = list(struct.iter_unpack("<QQ", sections[-3][1]))
    changed = change(pieces, len(sections[-1][1]))
    if not isinstance(changed, bytes):
        changed = b"".join(struct.pack("<QQ", *piece) for piece in changed)
    sections[-3] = ("pieces", changed)
    return written(sections)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda pieces, _: [*pieces[:-1], (2**64 - 64, 128)], "reaches beyond its data"),
        (lambda pieces, size: [*pieces[:-1], (0, size + 1)], "reaches beyond its data"),
        (lambda pieces, size: [*pieces[:-1], (size + 64, 0)], "reaches beyond its data"),
        (lambda pieces, _: [(8, 64), *pieces], "begins or ends at a wrong place"),
        (lambda pieces, _: [(0, 8), *pieces], "begins or ends at a wrong place"),
        (lambda pieces, _: [(0, 0), *pieces], "begins or ends at a wrong place"),
        (lambda _pieces, _: [(0, 128), (64, 64)], "has one piece twice"),
        (lambda pieces, _: struct.pack("<QQ", *pieces[0])[:-1], "list of pieces is cut off"),
    ],
)
def test_forged_pieces_are_refused(bundle, change, why):
    with pytest.raises(ValueError, match=why):
        load_regions(with_pieces(bundle, change))


def test_a_program_of_other_pieces_is_the_drivers_error(bundle):
    *_, last = load_regions(with_pieces(bundle, lambda _pieces, _: []))
    with pytest.raises((ValueError, RuntimeError), match=BACKEND):
        last["describe"]()


def test_sections_that_are_missing_are_named(bundle):
    sections = sections_of(bundle)
    for wrong, why in (
        (sections[1:], "sections instead of"),
        (sections[-1:] * 5, "'manifest' is missing"),
        ([*sections[:2], ("program", b""), *sections[3:]], "'pieces' is missing"),
    ):
        with pytest.raises(ValueError, match=why):
            load_regions(written(wrong))
    with pytest.raises(ValueError, match="is a bundle of several regions"):
        load_module(bundle)


def test_a_reference_names_a_part_of_a_bundle(bundle):
    first, *_ = load_regions(bundle)
    (kept,) = first.imports
    *_, size, checksum = HEADER.unpack_from(bundle)
    function = f"{BACKEND}_artifact_{checksum:016x}".encode()

    def region(index, version=BUNDLE):
        numbers = [size, checksum, index][:version]
        content = struct.pack(f"<{len(numbers)}Q", *numbers) + function
        module = load_module(write(version, {"external": content}))
        module.import_module(kept)
        return module

    for index, wanted in enumerate(load_regions(bundle)):
        assert region(index)["get_symbol"]() == wanted["get_symbol"]()
    for wrong in (region(len(ROWS)), region(2**64 - 1), region(0, version=2)):
        with pytest.raises(ValueError, match="has no such part of a bundle"):
            wrong["get_symbol"]()
    with pytest.raises(ValueError, match="too short"):
        load_module(write(BUNDLE, {"external": bytes(16)}))


def test_mutated_bundles_are_errors_or_work(bundle):
    generator = np.random.default_rng(5)
    sections = sections_of(bundle)
    loaded = 0
    for count in range(300):
        if count % 3 == 0:
            content = seal(mutate(generator, bundle, bundle[::-1]))
        else:
            # The container is valid: only a section is corrupt.
            changed = list(sections)
            place = int(generator.integers(len(sections)))
            name, before = changed[place]
            changed[place] = (name, mutate(generator, before, before[::-1]))
            content = written(changed)
        try:
            for region in load_regions(content):
                region["sizes"]()
                region["describe"]()
            loaded += 1
        except (ValueError, RuntimeError) as error:
            assert str(error)
    assert loaded > 0
