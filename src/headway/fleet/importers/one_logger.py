"""Import JSON lines of nv-one-logger, as its FileExporter writes them; a file is an attempt.

There are no records of single steps: time in the training loop that is neither a save nor a
validation counts as training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.errors import UsageError
from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source
from headway.ledger.buckets import EFFECTIVE

Object = Mapping[str, Any]

SPAN_BUCKETS = {
    "distributed_code_initialization": "process_group_init",
    "data_loader_initialization": "preproc_creation",
    "model_initialization": "train_module_creation",
    "optimizer_initialization": "train_module_creation",
    "checkpoint_load": "checkpoint_load",
    "training_loop": EFFECTIVE,
    "checkpoint_save_sync": "waste.checkpoint_block",
    "checkpoint_save_async": "waste.checkpoint_block",
    "validation_loop": "waste.evaluation",
    "testing_loop": "waste.evaluation",
}


def detect(source: Source) -> bool:
    """Whether its first line is the start of a span with a time in milliseconds."""
    first = next(source.objects(), {}) if source.text.startswith("{") else {}
    return {"type", "id", "name", "start_event", "count", "pid"} <= first.keys()


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per session tag; its files, in order of time, are its attempts."""
    sessions: dict[str, list[tuple[AttemptRecord, float]]] = defaultdict(list)
    for source in sources:
        session, attempt = _attempt_record(source)
        sessions[session].append((attempt, attempt.start))
    for session, attempts in sessions.items():
        attempts.sort(key=lambda entry: entry[1])
        yield RunRecord(
            key=f"one_logger {session} {attempts[0][1]:.3f}",
            run=session,
            attempts=tuple(attempt for attempt, _ in attempts),
            labels={"reader": "one_logger"},
        )


def _attempt_record(source: Source) -> tuple[str, AttemptRecord]:
    starts: dict[str, tuple[str, float]] = {}
    spans: list[Span] = []
    attributes_: dict[str, Any] = {}
    times: list[float] = []
    error, complete = "", False
    for entry in source.objects():
        edges = {edge: _at(entry[edge]) for edge in ("start_event", "stop_event") if edge in entry}
        times += [at for at in edges.values() if at is not None]
        if entry.get("type") in ("event", "application_error"):
            attributes = entry["event"]["attributes"]
            attributes_ = {**attributes, **attributes_}
            if entry["type"] == "application_error":
                error = str(attributes.get("error_message") or "an error was recorded")
            continue
        name, start, stop = entry.get("name"), edges.get("start_event"), edges.get("stop_event")
        if start is not None:
            starts[entry["id"]] = (str(name), start)
        if stop is not None and entry["id"] in starts:
            name, start = starts.pop(entry["id"])
            complete |= name == "application"
            if name in SPAN_BUCKETS:
                spans.append(Span(start, stop, SPAN_BUCKETS[name]))
    if not times:
        raise UsageError(f"no span of nv-one-logger in {source.name}", code="record-empty")
    end = max(times)
    spans += [
        Span(at, end, SPAN_BUCKETS[name]) for name, at in starts.values() if name in SPAN_BUCKETS
    ]
    spans.sort(key=lambda span: (span.start, -span.end))
    attempt = AttemptRecord(
        start=min(times),
        end=end,
        outcome="failed" if error else "completed" if complete else "running",
        accelerators=int(attributes_.get("world_size") or 1),
        spans=tuple(spans),
        evidence=error,
    )
    return str(attributes_.get("session_tag") or source.name), attempt


def _at(event: Object) -> float | None:
    milliseconds = event["attributes"].get("timestamp_msec")
    return None if milliseconds is None else float(milliseconds) / 1000
