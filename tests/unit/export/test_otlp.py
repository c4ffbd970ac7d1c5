"""A run as OTLP/JSON.

The format: open-telemetry/opentelemetry-proto, docs/specification.md (OTLP/HTTP, JSON: ids in
hexadecimal, 64-bit numbers as text) and opentelemetry/proto/trace/v1/trace.proto.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from headway.errors import HeadwayError, UsageError
from headway.export import otlp
from tests.support import has_code
from tests.unit.report.ledgers import killed

pytestmark = pytest.mark.timeout(60)


def spans() -> list[dict[str, Any]]:
    found = [json.loads(line) for line in otlp.otlp_lines(killed())]
    return [s for one in found for s in one["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def test_one_trace_and_a_span_for_each_attempt_and_phase() -> None:
    ledger, found = killed(), spans()
    assert len({span["traceId"] for span in found}) == 1
    assert len({span["spanId"] for span in found}) == len(found)
    root, *rest = found
    assert root["name"] == ledger.run and "parentSpanId" not in root
    attempts = [span for span in rest if span["parentSpanId"] == root["spanId"]]
    assert [span["name"] for span in attempts] == ["attempt 0", "attempt 1"]
    assert "links" not in attempts[0]
    (link,) = attempts[1]["links"]
    assert link == {"traceId": root["traceId"], "spanId": attempts[0]["spanId"]}
    assert [span["status"] for span in attempts] == [{"code": 2}, {"code": 1}]
    phases = [span for span in rest if span not in attempts]
    ids = {span["spanId"] for span in attempts}
    assert {span["parentSpanId"] for span in phases} == ids
    lasted = sum(int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"]) for s in phases)
    assert lasted == ledger.wall
    assert int(root["startTimeUnixNano"]) == ledger.started_at


def test_values_have_their_types() -> None:
    told = {one["key"]: one["value"] for one in spans()[0]["attributes"]}
    assert told["ml.training.run.attempts"] == {"intValue": "2"}
    assert told["ml.training.run.ett_percent"] == {"doubleValue": killed().ett_percent}
    assert all(len(s["traceId"]) == 32 and len(s["spanId"]) == 16 for s in spans())


def test_the_same_run_has_the_same_ids() -> None:
    assert spans() == spans()


class Collector:
    """What was posted, and what it answers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answer, self.status = b"{}", 200


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    told = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            told.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            told.paths.append(self.path)
            self.send_response(told.status)
            self.send_header("Content-Length", str(len(told.answer)))
            self.end_headers()
            self.wfile.write(told.answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield told, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_it_is_posted_in_pieces(
    collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, url = collector
    monkeypatch.setattr(otlp, "BATCH", 10)
    count = otlp.send(killed(), url)
    assert set(told.paths) == {"/v1/traces"}
    sizes = [len(b["resourceSpans"][0]["scopeSpans"][0]["spans"]) for b in told.bodies]
    assert sum(sizes) == count == len(spans()) and max(sizes) <= 10


def test_a_collector_that_refuses_is_a_sentence(collector: tuple[Collector, str]) -> None:
    told, url = collector
    told.answer = b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}}'
    with pytest.raises(HeadwayError, check=has_code("spans-rejected")):
        otlp.send(killed(), url)
    told.status = 503
    with pytest.raises(HeadwayError, check=has_code("collector-failed")):
        otlp.send(killed(), url)
    with pytest.raises(HeadwayError, check=has_code("collector-failed")):
        otlp.send(killed(), "http://127.0.0.1:9")
    with pytest.raises(UsageError, check=has_code("endpoint-invalid")):
        otlp.send(killed(), "collector:4318")
