"""Import torchelastic events: `torchrun --event-log-handler console`, in a log with timestamps.

torchrun writes events without times, so each line of the log must begin with one, as with
`kubectl logs --timestamps` and most log collectors. A handler that sets `timestamp` works too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headway.errors import UsageError
from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source, parse_iso8601
from headway.ledger.model import Outcome

MARK = '"torchelastic.worker.status.'
ENDED: dict[str, Outcome] = {"SUCCEEDED": "completed", "FAILED": "failed"}


class AgentEvent(NamedTuple):
    """An event of a torchelastic agent."""

    at: float
    state: str
    fields: dict[str, Any]


def detect(source: Source) -> bool:
    """Whether a line contains an event."""
    return MARK in source.text


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per run ID; each restart of the workers is an attempt."""
    runs: dict[str, list[AgentEvent]] = defaultdict(list)
    for source in sources:
        for event in _events(source):
            runs[str(event.fields["run_id"])].append(event)
    for run, events in runs.items():
        events.sort(key=lambda event: event.at)
        by_restart: dict[int, list[AgentEvent]] = defaultdict(list)
        for event in events:
            by_restart[int(event.fields["agent_restarts"])].append(event)
        ordered = [by_restart[restart] for restart in sorted(by_restart)]
        yield RunRecord(
            key=f"torchelastic {run} {ordered[0][0].at:.3f}",
            run=run,
            attempts=tuple(
                _attempt_record(current, after)
                for current, after in zip(ordered, [*ordered[1:], None], strict=True)
            ),
            labels={"reader": "torchelastic"},
        )


def _events(source: Source) -> Iterator[AgentEvent]:
    for line in source.text.splitlines():
        if MARK not in line:
            continue
        before, brace, rest = line.partition("{")
        try:
            content = json.loads(brace + rest)
        except ValueError:
            continue  # truncated line
        metadata = content["metadata"]
        yield AgentEvent(_time(source, before, content), str(metadata["state"]), metadata)


def _time(source: Source, before: str, content: dict[str, Any]) -> float:
    if content.get("timestamp"):
        return float(content["timestamp"]) / 1000
    try:
        return parse_iso8601(before.split()[0])
    except (IndexError, ValueError):
        raise UsageError(
            f"{source.name} has events without times, which torchrun does not write; "
            "use a log with a time at the start of each line, such as `kubectl logs --timestamps`",
            code="record-without-times",
        ) from None


def _attempt_record(
    events: Sequence[AgentEvent], after: Sequence[AgentEvent] | None
) -> AttemptRecord:
    """An agent restarts its workers after one of them has failed."""
    spans = [
        Span(event.at - float(event.fields["duration_ms"]) / 1000, event.at, "launcher_init")
        for event in events
        if event.fields.get("duration_ms") and event.state in ("RENDEZVOUS", "ASSIGN_WORKER_RANKS")
    ]
    started = [event for event in events if event.state == "START"]
    begin = min([event.at for event in events] + [span.start for span in spans])
    last = events[-1]
    errors = [str(event.fields["raw_error"]) for event in events if event.fields.get("raw_error")]
    if after is not None:
        end = min(event.at - float(event.fields.get("duration_ms") or 0) / 1000 for event in after)
        outcome: Outcome = "failed"
    else:
        end, outcome = last.at, ENDED.get(last.state, "running")
    return AttemptRecord(
        start=begin,
        end=max(end, begin),
        outcome=outcome,
        accelerators=len({event.fields["global_rank"] for event in started}),
        spans=tuple(spans),
        hosts=tuple(dict.fromkeys(str(event.fields["hostname"]) for event in started)),
        evidence=errors[0] if errors else "torchelastic restarted the workers",
    )
