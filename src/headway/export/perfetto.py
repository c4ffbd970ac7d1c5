"""Exports a ledger as a Chrome trace for Perfetto: a track per rank, a row per attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from headway.ledger.buckets import MEANING, group
from headway.ledger.model import Failure, Ledger, segments_by_attempt
from headway.ledger.segments import Segment

_RUN = 1  # process id of the run's own track; that of rank n is n + 2, because 0 means the kernel


def perfetto_lines(ledger: Ledger) -> Iterator[str]:
    """Yield the trace as JSON text, an event per line, to not hold a long run twice in memory."""
    about = {"run": ledger.run, "ett_percent": ledger.ett_percent, "steps": ledger.steps}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":['
    before = "\n"
    for event in _events(ledger):
        yield before + json.dumps(event, separators=(",", ":"))
        before = ",\n"
    yield "\n]}\n"


def _events(ledger: Ledger) -> Iterator[dict[str, Any]]:
    yield from _track(ledger, _RUN, f"run {ledger.run}", ledger.segments)
    for rank in ledger.ranks:
        host = f" on {', '.join(rank.hosts)}" if rank.hosts else ""
        yield from _track(ledger, rank.rank + 2, f"rank {rank.rank}{host}", rank.segments)
    for failure in ledger.failures:
        yield _instant(failure)


def _track(
    ledger: Ledger, pid: int, name: str, segments: Sequence[Segment]
) -> Iterator[dict[str, Any]]:
    yield _name("process_name", pid, 0, name=name)
    yield _name("process_sort_index", pid, 0, sort_index=pid)
    for attempt in ledger.attempts:
        row = attempt.index + 1
        yield _name("thread_name", pid, row, name=f"attempt {attempt.index} ({attempt.outcome})")
        yield _name("thread_sort_index", pid, row, sort_index=row)
    for index, segment in segments_by_attempt(ledger, segments):
        yield {
            "ph": "X",
            "pid": pid,
            "tid": index + 1,
            "ts": segment.start / 1000,
            "dur": (segment.end - segment.start) / 1000,
            "name": segment.bucket,
            "cat": group(segment.bucket),
            "args": {"meaning": MEANING[segment.bucket]},
        }


def _name(what: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _instant(failure: Failure) -> dict[str, Any]:
    """Mark the failure on the rank that failed first, visible across the whole trace."""
    return {
        "ph": "i",
        "s": "g",
        "pid": _RUN if failure.root_rank is None else failure.root_rank + 2,
        "tid": failure.attempt + 1,
        "ts": failure.at / 1000,
        "name": f"failure: {failure.category}",
        "cat": "failure",
        "args": {
            "owner": failure.owner,
            "retry": failure.retry,
            "evidence": failure.evidence,
        },
    }
