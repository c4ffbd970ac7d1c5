"""Exports a ledger as OpenTelemetry OTLP/JSON: one trace per run, with linked attempts."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway import __version__
from headway.errors import HeadwayError, UsageError
from headway.export.identity import identity_text, run_labels
from headway.ledger.buckets import side
from headway.ledger.model import Ledger
from headway.ledger.segments import Segment

BATCH = 2000  # spans per request
TIMEOUT_S = 30.0
_STATUS = {"completed": 1, "failed": 2, "preempted": 2}  # 1: OK, 2: ERROR; other outcomes: unset

Span = dict[str, Any]


def trace_requests(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield ExportTraceServiceRequests; the ids are the same in every export of a run."""
    spans = list(_spans(ledger))
    for at in range(0, len(spans), BATCH):
        scope = {"scope": {"name": "headway", "version": __version__}}
        yield {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(_resource(ledger))},
                    "scopeSpans": [{**scope, "spans": spans[at : at + BATCH]}],
                }
            ]
        }


def otlp_lines(ledger: Ledger) -> Iterator[str]:
    """Yield JSON lines, the format of OpenTelemetry's file exporter."""
    for request in trace_requests(ledger):
        yield json.dumps(request, separators=(",", ":")) + "\n"


def send(ledger: Ledger, endpoint: str) -> int:
    """Post the trace to a collector, such as http://127.0.0.1:4318; return the number of spans."""
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(
            f"--endpoint {endpoint!r} is no URL of a collector, such as http://host:4318",
            code="endpoint-invalid",
        )
    url = endpoint if endpoint.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"
    count = 0
    for request in trace_requests(ledger):
        body = json.dumps(request).encode()
        http_request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(http_request, timeout=TIMEOUT_S) as answer:
                _check_accepted(url, answer.read())
        except (OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            why = getattr(error, "reason", None) or error
            raise HeadwayError(
                f"{url} did not take the trace: {why}", code="collector-failed"
            ) from error
        count += len(request["resourceSpans"][0]["scopeSpans"][0]["spans"])
    return count


def _check_accepted(url: str, answer: bytes) -> None:
    part = json.loads(answer or b"{}").get("partialSuccess") or {}
    if int(part.get("rejectedSpans") or 0):
        message = part.get("errorMessage") or "no reason given"
        raise HeadwayError(
            f"{url} rejected {part['rejectedSpans']} spans: {message}", code="spans-rejected"
        )


def _resource(ledger: Ledger) -> dict[str, Any]:
    return {
        "service.name": "headway",
        "ml.training.run.name": ledger.run,
        **{f"ml.training.run.label.{k}": v for k, v in run_labels(ledger).items()},
    }


def _spans(ledger: Ledger) -> Iterator[Span]:
    key = identity_text(ledger)
    trace, root = _id(key, 32), _id(key + "run", 16)
    run_attributes = {
        "ml.training.run.ett_percent": ledger.ett_percent,
        "ml.training.run.steps": ledger.steps,
        "ml.training.run.attempts": len(ledger.attempts),
        "ml.training.run.ranks": len(ledger.ranks),
    }
    last = ledger.attempts[-1].outcome if ledger.attempts else "running"
    yield _span(ledger, trace, root, "", ledger.run, (0, ledger.wall), run_attributes, last)
    for attempt, (begin, end) in zip(ledger.attempts, ledger.windows, strict=True):
        attributes = {
            "ml.training.attempt.index": attempt.index,
            "ml.training.attempt.outcome": attempt.outcome,
            "ml.training.attempt.first_step": attempt.first_step,
            "ml.training.attempt.last_step": attempt.last_step,
            "ml.training.attempt.resumed_from": attempt.resumed_from,
        }
        own = _id(f"{key} {attempt.index}", 16)
        name = f"attempt {attempt.index}"
        span = _span(ledger, trace, own, root, name, (begin, end), attributes, attempt.outcome)
        if attempt.index:
            span["links"] = [{"traceId": trace, "spanId": _id(f"{key} {attempt.index - 1}", 16)}]
        yield span
        for segment in _within(ledger.segments, begin, end):
            interval = (segment.start, segment.end)
            phase = {
                "ml.training.phase": segment.bucket,
                "ml.training.phase.side": side(segment.bucket),
            }
            piece = _id(f"{key} {attempt.index} {segment.start}", 16)
            yield _span(ledger, trace, piece, own, segment.bucket, interval, phase, "running")


def _within(segments: Sequence[Segment], begin: int, end: int) -> Iterator[Segment]:
    for segment in segments:
        if segment.end > begin and segment.start < end:
            yield Segment(max(segment.start, begin), min(segment.end, end), segment.bucket)


def _span(
    ledger: Ledger,
    trace: str,
    own: str,
    parent: str,
    name: str,
    between: tuple[int, int],
    attributes: Mapping[str, Any],
    outcome: str,
) -> Span:
    return {
        "traceId": trace,
        "spanId": own,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(ledger.clock(between[0])),
        "endTimeUnixNano": str(ledger.clock(between[1], end=True)),
        "attributes": _attributes(attributes),
        "status": {"code": _STATUS[outcome]} if outcome in _STATUS else {},
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(v)} for key, v in values.items() if v is not None]


def _value(value: Any) -> dict[str, Any]:
    """Encode a value; 64-bit integers are text in OTLP/JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}


def _id(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:digits]
