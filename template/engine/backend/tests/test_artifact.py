# SPDX-License-Identifier: Apache-2.0
"""The artifact: its format, and that any other bytes are an error, never a crash."""

import json
import struct
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from backend.engine.backend.libraries.linking import link_artifacts
from backend.engine.backend.loading import WITHOUT_TORCH
from backend.engine.backend.settings.driver_options import DRIVERS
from backend.engine.backend.settings.options import Options
from backend.engine.workbench.conformance.region import load_module, region_of
from compiled_region import Region
from support import BACKEND, IS_EMULATOR, build, compile_for, partition_for

# A second description of the format, so that the tests notice an accidental change.
MAGIC = b"\x89NPU\r\n\x1a\n"
HEADER = struct.Struct("<8sIIQQ")
SECTION = struct.Struct("<8sQQ")
SECTIONS = ("manifest", "graph", "program", "ports")
"""The last one is only present if the driver declares layouts."""
CHECKSUM_AT = 24
MASK = 2**64 - 1

MUTATIONS = 10_000


@pytest.fixture(scope="module")
def region():
    return Region()


def checksum(data, seed=0):
    def mix(state, word):
        state = (state ^ word) * 0x9E3779B97F4A7C15 & MASK
        return (state << 29 | state >> 35) & MASK

    lanes = [mix(seed, lane + 1) for lane in range(8)]
    # A last, partial block ends the data.
    padded = data + bytes(64 - len(data) % 64)
    for at in range(0, len(padded), 64):
        words = struct.unpack_from("<8Q", padded, at)
        lanes = [mix(lane, word) for lane, word in zip(lanes, words, strict=True)]
    result = mix(seed, len(data))
    for lane in lanes:
        result = mix(result, lane)
    return result ^ result >> 32


def seal(data):
    """Recompute the checksum."""
    if len(data) < HEADER.size:
        return data
    data = data[:CHECKSUM_AT] + bytes(8) + data[CHECKSUM_AT + 8 :]
    value = checksum(data[HEADER.size :], checksum(data[: HEADER.size]))
    return data[:CHECKSUM_AT] + struct.pack("<Q", value) + data[CHECKSUM_AT + 8 :]


def write(version, sections):
    """Write an artifact with any sections."""
    start, table, body = HEADER.size + len(sections) * SECTION.size, b"", b""
    for name, content in sections.items():
        body += bytes(-(start + len(body)) % 64)
        table += SECTION.pack(name.encode(), start + len(body), len(content))
        body += content
    header = HEADER.pack(MAGIC, version, len(sections), start + len(body), 0)
    return seal(header + table + body)


@dataclass
class Parts:
    """An artifact taken apart."""

    version: int
    manifest: bytes
    graph: bytes
    program: bytes
    ports: bytes = b""

    @classmethod
    def read(cls, data):
        """Take an artifact apart, and check its format."""
        magic, version, count, size, stored = HEADER.unpack_from(data)
        assert (magic, size) == (MAGIC, len(data))
        assert count in (3, 4)
        sections, end = [], HEADER.size + count * SECTION.size
        for index, name in enumerate(SECTIONS[:count]):
            found, offset, length = SECTION.unpack_from(data, HEADER.size + index * SECTION.size)
            assert found == name.encode().ljust(8, b"\0")
            assert offset % 64 == 0
            assert end <= offset < end + 64
            sections.append(data[offset : offset + length])
            end = offset + length
        assert end == size
        assert seal(data) == data, f"the checksum {stored} is wrong"
        return cls(version, *sections)

    def write(self):
        """Put the parts together again."""
        sections = {name: getattr(self, name) for name in SECTIONS}
        if not self.ports:
            del sections["ports"]
        return write(self.version, sections)

    def with_ports(self):
        """Add to the section of ports: the program has the inputs and outputs of the region."""
        graph = json.loads(self.graph)

        def port(argument, node, index=0):
            rank = len(graph["nodes"][node]["attrs"]["shape"][0][index])
            return {"argument": argument, "order": list(range(rank))}

        inputs = [node for node in graph["arg_nodes"] if graph["nodes"][node]["op"] == "input"]
        ports = {
            "inputs": [port(i, node) for i, node in enumerate(inputs)],
            "outputs": [port(i, *head[:2]) for i, head in enumerate(graph["heads"])],
        }
        # It may have others, such as those of states.
        ports |= json.loads(self.ports or "{}")
        return replace(self, ports=json.dumps(ports).encode())


def test_an_artifact_follows_its_format(region):
    parts = Parts.read(region.bytes)
    assert parts.version == tvm_ffi.get_global_func(f"{BACKEND}.runtime.info")()["format_version"]
    assert parts.write() == region.bytes
    assert parts.manifest.decode() == region.module["manifest"]()
    assert parts.graph.decode() == region.module.inspect_source("")
    sizes = {name: len(getattr(parts, name)) for name in SECTIONS}
    found = dict(region.module["sizes"]())
    assert {"ports": 0, **found} == sizes
    assert ("ports" in found) == bool(parts.ports)
    region.assert_computes(load_module(parts.write()))


def test_a_manifest_says_what_was_compiled_and_by_what(region):
    manifest = json.loads(region.module["manifest"]())
    assert manifest["backend"] == BACKEND
    assert manifest["symbol"] == region.symbol
    info = tvm_ffi.get_global_func(f"{BACKEND}.runtime.info")()
    assert manifest["driver_api_version"] == info["driver_api_version"]
    (driver,) = (item for item in DRIVERS.values() if item["name"] == manifest["driver"])
    assert manifest["driver_release"] == driver["release"]
    assert DRIVERS[manifest["options"]["driver"]] is driver
    assert isinstance(manifest["options"], dict)
    assert manifest["overrides"] == Options.load(None).recorded_overrides()
    assert set(manifest["symbol_bounds"]) == set(
        json.loads(region.module.inspect_source(""))["symbols"]
    )
    for name in ("graph_sha256", "constants_sha256", "options_sha256"):
        assert len(bytes.fromhex(manifest[name])) == 32
    for name in ("backend_version", "tvm_version", "tvm_ffi_version"):
        assert manifest[name]


def test_a_module_is_the_same_after_its_bytes(region):
    copy = load_module(region.bytes)
    region.assert_computes(copy)
    assert bytes(copy["save_to_bytes"]()) == region.bytes
    assert copy.inspect_source("") == region.module.inspect_source("")
    assert copy["describe"]() == region.module["describe"]()


def test_the_same_region_is_compiled_to_the_same_bytes(region):
    assert Region().bytes == region.bytes


# ---- Bytes that are not an artifact for this runtime ---------------------------------------------


def refusal(data):
    """Load an invalid artifact; return the one sentence of the error."""
    with pytest.raises(ValueError) as caught:
        load_module(data)
    message = str(caught.value)
    assert message.startswith(f"{BACKEND}: the artifact "), message
    assert "\n" not in message
    return message


def with_manifest(parts, **changes):
    manifest = {**json.loads(parts.manifest), **changes}
    content = {name: value for name, value in manifest.items() if value is not None}
    return Parts(parts.version, json.dumps(content).encode(), parts.graph, parts.program).write()


def with_header(data, **fields):
    names = ("magic", "version", "count", "size", "checksum")
    values = dict(zip(names, HEADER.unpack_from(data), strict=True))
    return seal(HEADER.pack(*{**values, **fields}.values()) + data[HEADER.size :])


def with_section(data, index, **fields):
    at = HEADER.size + index * SECTION.size
    values = dict(zip(("id", "offset", "size"), SECTION.unpack_from(data, at), strict=True))
    section = SECTION.pack(*{**values, **fields}.values())
    return seal(data[:at] + section + data[at + SECTION.size :])


DEEP = b"[" * 100_000


def retyped(graph, dtype):
    """Give all tensors of a graph another element type."""
    content = json.loads(graph)
    for node in content["nodes"]:
        for kinds in node.get("attrs", {}).get("dtype", []):
            kinds[:] = [dtype] * len(kinds)
    return json.dumps(content).encode()


def test_a_program_never_writes_more_than_the_graph_beside_it_says(region):
    """Both checksums are valid: the driver itself compares each buffer with its program."""
    parts = Parts.read(region.bytes)
    kinds = {array.dtype for array in (*region.inputs, *region.expected)}
    narrow = next(kind for kind in ("int8", "uint8", "bool") if np.dtype(kind) not in kinds)
    graph = retyped(parts.graph, narrow)
    module = load_module(replace(parts, graph=graph).write())
    arrays = [np.zeros(array.shape, narrow) for array in (*region.inputs, *region.expected)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    with pytest.raises(ValueError, match="the driver failed while binding") as caught:
        module[region.symbol](*tensors)
    if IS_EMULATOR:
        assert f"type {narrow}, but the program was compiled for" in str(caught.value)
    for tensor in tensors:
        assert not tensor.numpy().any()


# A change of a valid artifact, and the expected error.
REFUSED = {
    "nothing at all": (lambda data, parts: b"", "truncated: only 0 bytes"),
    "version 1": (
        lambda data, parts: struct.pack("<QQ", 1, 5) + b"hello" * 100,
        "format version 1, which is older.*compile the model again",
    ),
    "a newer version": (
        lambda data, parts: with_header(data, version=parts.version + 2),
        "which is newer.*update this backend",
    ),
    "other bytes": (lambda data, parts: b"\x7fELF" * 100, "does not begin as an artifact does"),
    "line ends converted": (
        lambda data, parts: data.replace(b"\r\n", b"\n"),
        "does not begin as an artifact does",
    ),
    "bytes behind it": (lambda data, parts: data + b"\0", "instead of"),
    "another checksum": (
        lambda data, parts: data[:CHECKSUM_AT] + bytes(8) + data[CHECKSUM_AT + 8 :],
        "checksum",
    ),
    "no section": (lambda data, parts: with_header(data, count=0), "0 sections instead of 3"),
    "many sections": (lambda data, parts: with_header(data, count=2**32 - 1), "sections instead"),
    "a section too many": (lambda data, parts: with_header(data, count=5), "sections instead"),
    "no manifest": (lambda data, parts: with_section(data, 0, id=b"man"), "'manifest' is missing"),
    "no program": (lambda data, parts: with_section(data, 2, id=b"graph"), "'program' is missing"),
    "a section over the table": (
        lambda data, parts: with_section(data, 0, offset=0),
        "'manifest' begins at a wrong place",
    ),
    "a section over another": (
        lambda data, parts: with_section(data, 1, offset=SECTION.unpack_from(data, HEADER.size)[1]),
        "'graph' begins at a wrong place",
    ),
    "a crooked section": (
        lambda data, parts: with_section(data, 2, offset=len(data) // 64 * 64 + 1),
        "'program' begins at a wrong place",
    ),
    "a section outside": (
        lambda data, parts: with_section(data, 2, offset=2**63),
        "'program' reaches beyond",
    ),
    "a long section": (
        lambda data, parts: with_section(data, 2, size=2**64 - 1),
        "'program' reaches beyond",
    ),
    "another backend": (
        lambda data, parts: with_manifest(parts, backend="acme"),
        f"for the backend 'acme'; this is the runtime of '{BACKEND}'",
    ),
    "another driver": (
        lambda data, parts: with_manifest(parts, driver="acme"),
        "compiled by the driver 'acme', which is not installed here; installed: '",
    ),
    "no driver": (lambda data, parts: with_manifest(parts, driver=None), "no 'driver'"),
    "a type that no driver has": (
        lambda data, parts: Parts(
            parts.version, parts.manifest, retyped(parts.graph, "float8_e4m3fn"), parts.program
        ).write(),
        "element type 'float8_e4m3fn', which no driver has",
    ),
    "a manifest that is not JSON": (
        lambda data, parts: Parts(parts.version, b"{", parts.graph, parts.program).write(),
        "manifest is not JSON",
    ),
    "a manifest that is not an object": (
        lambda data, parts: Parts(parts.version, b"[]", parts.graph, parts.program).write(),
        "manifest is not a JSON object",
    ),
    "an empty manifest": (
        lambda data, parts: Parts(parts.version, b"", parts.graph, parts.program).write(),
        "manifest is not JSON",
    ),
    "a manifest that is not UTF-8": (
        lambda data, parts: Parts(parts.version, b"{\xff}", parts.graph, parts.program).write(),
        "manifest is not UTF-8",
    ),
    "a manifest with control characters": (
        lambda data, parts: with_manifest(parts, backend="\x1b[31m\n\x9b"),
        r"for the backend '\\x1b\[31m\\x0a\\x9b'",
    ),
    "a deep manifest": (
        lambda data, parts: Parts(parts.version, DEEP, parts.graph, parts.program).write(),
        "manifest is nested too deeply",
    ),
    "no backend": (lambda data, parts: with_manifest(parts, backend=None), "no 'backend'"),
    "no symbol": (lambda data, parts: with_manifest(parts, symbol=None), "no 'symbol'"),
    "a symbol that is a number": (
        lambda data, parts: with_manifest(parts, symbol=3),
        "no 'symbol'",
    ),
    "another symbol": (
        lambda data, parts: with_manifest(parts, symbol="other"),
        "graph was not written by this backend",
    ),
    "no options": (lambda data, parts: with_manifest(parts, options=None), "no 'options'"),
    "an impossible time": (
        lambda data, parts: with_manifest(parts, options={"timeout_ms": -1}),
        "impossible 'timeout_ms'",
    ),
    "a deep graph": (
        lambda data, parts: Parts(parts.version, parts.manifest, DEEP, parts.program).write(),
        "graph is nested too deeply",
    ),
    "a graph of somebody else": (
        lambda data, parts: Parts(parts.version, parts.manifest, b"{}", parts.program).write(),
        "graph was not written by this backend",
    ),
}


def test_a_section_of_ports_is_accepted_if_it_matches_the_region(region):
    region.assert_computes(load_module(Parts.read(region.bytes).with_ports().write()))


def forge(change):
    """Make an artifact with changed ports; `change` gets the inputs and the outputs."""

    def forged(data, parts):
        ports = json.loads(parts.with_ports().ports)
        change(ports["inputs"], ports["outputs"])
        return replace(parts, ports=json.dumps(ports).encode()).write()

    return forged


NO_PERMUTATION = "order that is not a permutation of the dimensions"
FORGED_PORTS = {
    "no JSON": (lambda data, parts: replace(parts, ports=b"{").write(), "ports is not JSON"),
    "too deep": (lambda data, parts: replace(parts, ports=DEEP).write(), "nested too deeply"),
    "no object": (lambda data, parts: replace(parts, ports=b"[]").write(), "not a JSON object"),
    "empty": (lambda data, parts: replace(parts, ports=b"{}").write(), "ports were not written"),
    "numbers for ports": (
        forge(lambda inputs, outputs: inputs.append(3)),
        "ports were not written",
    ),
    "no order": (forge(lambda inputs, outputs: outputs[0].pop("order")), "ports were not written"),
    "an order of texts": (
        forge(lambda inputs, outputs: outputs[0].update(order=["0"])),
        "ports were not written",
    ),
    "a dimension too many": (
        forge(lambda inputs, outputs: outputs[0]["order"].append(len(outputs[0]["order"]))),
        NO_PERMUTATION,
    ),
    "a huge order": (
        forge(lambda inputs, outputs: outputs[0].update(order=list(range(100)))),
        NO_PERMUTATION,
    ),
    "a huge dimension": (
        forge(lambda inputs, outputs: outputs[0].update(order=[2**40], dims=[1])),
        "another number of elements|" + NO_PERMUTATION,
    ),
    "a negative dimension": (
        forge(lambda inputs, outputs: outputs[0]["order"].__setitem__(0, -1)),
        NO_PERMUTATION,
    ),
    "another shape": (
        forge(lambda inputs, outputs: inputs[0].update(dims=[3, 1000003], order=[1, 0])),
        "another number of elements",
    ),
    "a shape that overflows": (
        forge(lambda inputs, outputs: inputs[0].update(dims=[2**62, 4], order=[1, 0])),
        "another number of elements",
    ),
    "an open size where sizes are fixed, or two": (
        forge(lambda inputs, outputs: inputs[0].update(dims=[-1, -1], order=[1, 0])),
        "another number of elements",
    ),
    "an open size that does not divide": (
        forge(lambda inputs, outputs: inputs[0].update(dims=[1000003, -1], order=[1, 0])),
        "another number of elements",
    ),
    "an argument that does not exist": (
        forge(lambda inputs, outputs: inputs[0].update(argument=1000)),
        "an argument that does not exist",
    ),
    "a negative argument": (
        forge(lambda inputs, outputs: inputs[0].update(argument=-1)),
        "an argument that does not exist",
    ),
    "an output twice": (
        forge(lambda inputs, outputs: outputs.append(outputs[0])),
        "mix up the outputs|an argument that does not exist",
    ),
    "no output": (
        forge(lambda inputs, outputs: outputs.clear()),
        "another number of outputs",
    ),
}


def forge_states(*states):
    """Make an artifact whose ports have these states."""
    ports = json.dumps({"states": states}).encode()
    return lambda data, parts: replace(parts, ports=ports).write()


FORGED_PORTS.update(
    {
        "a state that is no pair": (forge_states([0]), "a state that is no pair"),
        "a state of texts": (forge_states(["0", "0"]), "ports were not written"),
        "a state of no input": (forge_states([1000, 0]), "an argument that does not exist"),
        "a state of no output": (forge_states([0, -1]), "an argument that does not exist"),
        "a state twice": (
            forge_states([0, 0], [0, 0]),
            "two states of one argument|values differ in type or shape",
        ),
    }
)
REFUSED.update({f"ports: {name}": case for name, case in FORGED_PORTS.items()})


CALL_REGIONS = """
import numpy as np
import tvm

backend, symbol, *paths = sys.argv[1:]
load = tvm.get_global_func("ffi.Module.load_from_bytes." + backend)
arrays = np.load("arguments.npz")
for path in paths:
    with open(path, "rb") as file:
        module = load(file.read())
    try:
        module[symbol](*(tvm.runtime.tensor(arrays[name]) for name in arrays.files))
    except (ValueError, RuntimeError) as error:
        print("refused:", str(error).splitlines()[-1])
"""


def test_a_program_with_other_inputs_than_its_ports_is_an_error(region, tmp_path):
    """The ports match the region, but not the program: its driver compares them.

    A driver that does not may crash, so this has a process of its own.
    """
    sizes = [value.size for value in region.inputs]
    largest = sizes.index(max(sizes))
    changes = (
        forge(lambda inputs, outputs: inputs.clear()),
        forge(lambda inputs, outputs: inputs.append(inputs[0])),
        forge(lambda inputs, outputs: inputs[largest].update(dims=[max(sizes)], order=[0])),
    )
    paths = [tmp_path / str(index) for index in range(len(changes))]
    for path, change in zip(paths, changes, strict=True):
        path.write_bytes(change(region.bytes, Parts.read(region.bytes)))
    np.savez(tmp_path / "arguments.npz", *(tensor.numpy() for tensor in region.tensors()))
    command = [sys.executable, "-c", WITHOUT_TORCH + CALL_REGIONS, BACKEND, region.symbol, *paths]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the driver must refuse to execute: {done.stderr}"
    refusals = done.stdout.splitlines()
    assert len(refusals) == len(changes), done.stdout
    assert all(line.startswith("refused: ") and BACKEND in line for line in refusals), refusals


@pytest.mark.parametrize("name", REFUSED)
def test_other_bytes_are_refused_with_a_sentence(region, name):
    change, words = REFUSED[name]
    data = change(region.bytes, Parts.read(region.bytes))
    with pytest.raises(ValueError, match=words):
        load_module(data)
    refusal(data)


def test_a_truncated_artifact_is_refused_wherever_it_ends(region):
    data = region.bytes
    assert len(data) > 100
    for size in range(len(data)):
        assert f"truncated: only {size}" in refusal(data[:size])


def test_each_flipped_bit_is_noticed(region):
    data = region.bytes
    assert len(data) > 100
    generator = np.random.default_rng(0)
    for position, bit in enumerate(generator.integers(0, 8, len(data))):
        broken = bytearray(data)
        broken[position] ^= 1 << bit
        refusal(bytes(broken))


def test_a_damaged_program_is_the_drivers_error(region):
    parts = Parts.read(region.bytes)
    for program in (b"", parts.program[:-1], b"no program" * 100):
        module = load_module(Parts(parts.version, parts.manifest, parts.graph, program).write())
        with pytest.raises((ValueError, RuntimeError), match=f"{BACKEND}.*driver.*loading"):
            region.assert_computes(module)


# ---- Artifacts in libraries ---------------------------------------------------------------------


def library_of(region, path):
    """Export a module that only contains the region."""
    partitioned = partition_for(tvm.IRModule({region.model.name: region.model.function()}))
    compiled = link_artifacts(relax.transform.RunCodegen()(partitioned), "llvm")
    executable = tvm.compile(compiled, target="llvm")
    executable.export_library(str(path))
    return executable


def run_library(region, path):
    return run(region, tvm.runtime.load_module(str(path)))


def run(region, module):
    machine = relax.VirtualMachine(module, tvm.cpu())
    result = machine[region.model.name](*map(tvm.runtime.tensor, region.inputs_of_model))
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else result
    region.assert_right([*region.inputs, *fields])
    return machine


def regions_in(module):
    found = [module] if module.kind == BACKEND else []
    return found + [region for item in module.imports for region in regions_in(item)]


@pytest.fixture
def linked(region, tmp_path):
    """Make a library that contains the region as an object file."""
    if not region_of(region.model)["link_apart"](""):
        pytest.skip("it is not known how to link artifacts here")
    library_of(region, tmp_path / "model.so")
    return tmp_path / "model.so"


def test_a_library_holds_an_artifact_once_and_as_it_is(region, linked):
    content = linked.read_bytes()
    assert content.count(region.bytes) == 1
    assert content.count(Parts.read(region.bytes).graph) == 1
    (found,) = regions_in(run_library(region, linked).module)
    assert bytes(found["save_to_bytes"]()) == region.bytes
    assert found["manifest"]() == region.module["manifest"]()
    assert found["describe"]() == region.module["describe"]()
    region.assert_computes(found)


def test_an_archive_of_objects_is_linked_where_it_is_loaded(region, linked, tmp_path):
    executable = library_of(region, tmp_path / "model.tar")
    run_library(region, tmp_path / "model.tar")
    # The exported module still runs here, and can be exported again.
    run(region, executable)
    executable.export_library(str(tmp_path / "again.so"))
    run_library(region, tmp_path / "again.so")


def test_a_model_entirely_on_the_npu_runs_without_a_compiler_for_c(region, monkeypatch):
    executable = compile_for(tvm.IRModule({region.model.name: region.model.function()}))
    monkeypatch.setenv("CXX", "no-compiler-for-c")
    run(region, executable)


def test_a_model_without_any_op_can_be_exported(tmp_path):
    argument = relax.Var("x", relax.TensorType((2, 3), "float32"))
    executable = compile_for(build([argument], lambda emit: argument))
    executable.export_library(str(tmp_path / "model.so"))
    given = np.arange(6, dtype="float32").reshape(2, 3)
    for module in (executable, tvm.runtime.load_module(str(tmp_path / "model.so"))):
        result = relax.VirtualMachine(module, tvm.cpu())["main"](tvm.runtime.tensor(given))
        np.testing.assert_array_equal(result.numpy(), given)


def test_a_module_with_a_linked_artifact_survives_as_json(region, linked, tmp_path):
    partitioned = partition_for(tvm.IRModule({region.model.name: region.model.function()}))
    compiled = link_artifacts(relax.transform.RunCodegen()(partitioned), "llvm")
    (module,) = tvm.ir.load_json(tvm.ir.save_json(compiled)).attrs["external_mods"]
    region.assert_computes(module)
    copy = tvm.ir.load_json(tvm.ir.save_json(compiled))
    tvm.compile(copy, target="llvm").export_library(str(tmp_path / "copy.so"))
    run_library(region, tmp_path / "copy.so")


def test_damage_in_a_library_is_an_error(region, linked):
    content = linked.read_bytes()
    start = content.index(region.bytes)
    assert len(region.bytes) > 100
    for position in range(start, start + len(region.bytes), 97):
        broken = bytearray(content)
        broken[position] ^= 4
        path = linked.with_name(f"broken_{position}.so")
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=f"{BACKEND}: the artifact "):
            run_library(region, path)


@pytest.mark.parametrize(
    "triple", ["wasm32-unknown-emscripten", "arm64-apple-darwin", "x86_64-pc-windows"]
)
def test_for_other_systems_an_artifact_stays_in_its_module(region, triple):
    module = load_module(region.bytes)
    assert not module["link_apart"](triple)
    assert not module.imports
    region.assert_computes(module)


def test_for_another_processor_an_artifact_is_an_object_of_it(region, tmp_path):
    for triple, machine in (("x86_64-linux-gnu", 62), ("aarch64-linux-gnu", 183)):
        module = load_module(region.bytes)
        assert module["link_apart"](triple)
        (artifact,) = module.imports
        artifact.write_to_file(str(tmp_path / "artifact.o"))
        content = (tmp_path / "artifact.o").read_bytes()
        assert content[:5] == b"\x7fELF\x02"
        assert struct.unpack_from("<H", content, 18) == (machine,)
        assert content.index(region.bytes) % 64 == 0
        with pytest.raises(ValueError, match="object file"):
            artifact.write_to_file(str(tmp_path / "artifact.bc"))


def reference(region, **changes):
    header = dict(zip(("size", "checksum"), HEADER.unpack_from(region.bytes)[3:], strict=True))
    values = {**header, "function": f"{BACKEND}_artifact_{header['checksum']:016x}", **changes}
    numbers = struct.pack("<QQ", values["size"], values["checksum"])
    version = Parts.read(region.bytes).version
    return write(version, {"external": numbers + values["function"].encode()})


def test_a_reference_without_its_artifact_is_an_error(region):
    module = load_module(reference(region))
    with pytest.raises(ValueError, match="not in the library that refers to it"):
        module["get_symbol"]()
    with pytest.raises(ValueError, match="refers to no artifact"):
        load_module(reference(region, function="main"))["get_symbol"]()
    with pytest.raises(ValueError, match="too short"):
        load_module(write(2, {"external": b"123"}))
    with pytest.raises(ValueError, match="'external' is missing"):
        load_module(write(2, {"manifest": b"{}"}))


def test_a_reference_finds_its_artifact_and_no_other_one(region):
    good = load_module(region.bytes)
    good["link_apart"]("x86_64-linux-gnu")
    (artifact,) = good.imports
    module = load_module(reference(region))
    module.import_module(artifact)
    region.assert_computes(module)
    for changes in ({"size": len(region.bytes) - 1}, {"checksum": 1}):
        function = f"{BACKEND}_artifact_{HEADER.unpack_from(region.bytes)[4]:016x}"
        module = load_module(reference(region, function=function, **changes))
        module.import_module(artifact)
        with pytest.raises(ValueError, match="corrupt|truncated"):
            module["get_symbol"]()


# ---- Any bytes ----------------------------------------------------------------------------------


def mutate(generator, data, other):
    """Flip, cut, repeat, or mix with another artifact."""
    data = bytearray(data)
    for _ in range(generator.integers(1, 4)):
        kind = generator.integers(5)
        begin, end = sorted(int(x) for x in generator.integers(0, len(data) + 1, 2))
        if kind == 0 and end < len(data):
            data[end] ^= 1 << int(generator.integers(8))
        elif kind == 1 and end < len(data):
            data[end] = int(generator.integers(256))
        elif kind == 2:
            del data[begin : min(end, begin + int(generator.integers(1, 100)))]
        elif kind == 3:
            data[begin:begin] = data[begin : min(end, begin + 100)]
        else:
            data[begin:end] = other[begin:end]
    return bytes(data)


@pytest.mark.thorough
def test_mutated_artifacts_are_errors_or_work(region):
    """Half of the mutations have a valid checksum, so that they reach later checks."""
    generator = np.random.default_rng(3)
    whole = Parts.read(region.bytes).with_ports()
    others = [Region(symbol_bound=7).bytes, reference(region)]
    loaded = computed = 0
    for count in range(MUTATIONS):
        other = others[generator.integers(2)]
        if count % 2 == 0:
            data = mutate(generator, region.bytes, other)
        elif count % 8 == 1:
            data = seal(mutate(generator, others[1], region.bytes))
        elif count % 4 == 1:
            data = seal(mutate(generator, region.bytes, other))
        else:
            # The container is valid: only sections are corrupt.
            parts = replace(whole)
            name = SECTIONS[generator.integers(len(SECTIONS))]
            content = getattr(whole, name)
            setattr(parts, name, mutate(generator, content, content[::-1]))
            data = parts.write()
        try:
            module = load_module(data)
        except ValueError as error:
            assert str(error).startswith(BACKEND)
            continue
        loaded += 1
        tensors = region.tensors()
        try:
            module[region.symbol](*tensors)
        except (ValueError, RuntimeError, TypeError) as error:
            assert BACKEND in str(error)
        else:
            computed += 1
    # Most mutations are noticed, and some reached the driver.
    assert 0 < computed < loaded < MUTATIONS / 2
    region.assert_computes()
