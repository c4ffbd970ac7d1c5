"""Rebuild a ledger from its rows in a store: the same sums per attempt and bucket.

A store has neither the order of buckets within an attempt nor the details beyond the sums (stages,
process groups, archives, compile parts): rules that need those propose nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from headway import redact
from headway.ledger import checkpoints
from headway.ledger import segments as ledger_segments
from headway.ledger.buckets import BUCKETS
from headway.ledger.model import Attempt, Checkpoint, CheckpointOutcome, Compile, Failure, Ledger
from headway.ledger.segments import Segment
from headway.units import NS

StoreRow = Mapping[str, Any]
LEDGER_TABLES = ("runs", "attempts", "hours", "failures", "checkpoints", "compiles")


def ledger_from_rows(run: StoreRow, rows: Mapping[str, Sequence[StoreRow]]) -> Ledger:
    """The ledger of one run; `rows` are its rows of each table."""
    rows = _renumber_attempts(rows)
    attempts = rows["attempts"]
    segments, ends = _segments(attempts, rows["hours"])
    started_at = run["started_at"]
    starts = _starts(run, attempts, ends)
    saves = tuple(_checkpoints(rows["checkpoints"], starts))
    count, interval = checkpoints.count_saves(saves)
    saved = tuple(_checkpointer_saves(rows["checkpoints"], starts))
    failures = tuple(_failures(rows["failures"], starts))
    wall = segments[-1].end if segments else 0
    return Ledger(
        run=run["run"],
        wall=wall,
        segments=tuple(segments),
        buckets=ledger_segments.time_by_bucket(segments),
        ranks=(),
        steps=run["steps"] or 0,
        attempts=tuple(_attempts(attempts, ends)),
        failures=failures,
        time_to_start=_ns(run["time_to_start_s"]),
        time_to_recover=tuple(
            ns for row in attempts if (ns := _ns(row["time_to_recover_s"])) is not None
        ),
        hidden={},
        queue_capacity=_ns(run["queue_capacity_s"]),
        checkpoints=saves,
        saves=count,
        save_interval=interval,
        recommended_interval=checkpoints.recommended_interval(saved, saves, failures, wall),
        compiles=tuple(_compiles(rows["compiles"], starts)),
        gaps=(),
        notes=(),
        started_at=round((started_at - datetime(1970, 1, 1)).total_seconds() * NS),
        running=run["running"],
        command=_split_command(run["command"] or ""),
        exit_code=run["exit_code"],
        outcomes=saved,
    )


def _renumber_attempts(rows: Mapping[str, Sequence[StoreRow]]) -> dict[str, list[StoreRow]]:
    """Number attempts from 0 without gaps, which rows of other writers may have."""
    numbers = sorted({row["attempt"] for row in rows["attempts"]})
    places = {number: place for place, number in enumerate(numbers)}
    return {
        name: sorted(
            (
                {**row, "attempt": places[row["attempt"]]}
                for row in rows[name]
                if row["attempt"] in places
            ),
            key=lambda row: row["attempt"],
        )
        for name in LEDGER_TABLES[1:]
    }


def _split_command(command: str) -> tuple[str, ...]:
    try:
        return tuple(redact.words(shlex.split(command)))
    except ValueError:  # not valid shell syntax
        return (redact.text(command),)


def _segments(
    attempts: Sequence[StoreRow], hours: Iterable[StoreRow]
) -> tuple[list[Segment], list[int]]:
    """Buckets of each attempt in a fixed order, and the end of each attempt."""
    sums: dict[tuple[int, str], float] = {}
    for row in hours:
        key = (row["attempt"], row["leaf"])
        sums[key] = sums.get(key, 0.0) + row["seconds"]
    out: list[Segment] = []
    ends = []
    at = 0
    for row in attempts:
        for bucket in BUCKETS:
            length = round(sums.get((row["attempt"], bucket), 0.0) * NS)
            out.append(Segment(at, at + length, bucket))
            at += length
        ends.append(at)
    return ledger_segments.join(out), ends


def _attempts(attempts: Sequence[StoreRow], ends: Sequence[int]) -> Iterable[Attempt]:
    for place, (row, end) in enumerate(zip(attempts, ends, strict=True)):
        yield Attempt(
            index=place,
            start=ends[place - 1] if place else 0,
            end=end,
            outcome=row["outcome"],
            ranks=tuple(range(row["accelerators"])),
            first_step=row["first_step"],
            last_step=row["last_step"],
            resumed_from=row["resumed_from"],
            resumed_by=row["resumed_by"],
        )


def _failures(rows: Iterable[StoreRow], starts: Sequence[datetime]) -> Iterable[Failure]:
    for row in rows:
        yield Failure(
            attempt=row["attempt"],
            at=_at(row, starts),
            category=row["category"],
            owner=row["owner"],
            retry=row["retry"],
            root_rank=row["root_rank"],
            evidence=row["evidence"] or "",
            node=row["host"],
            decision=row["decision"],
        )


def _checkpoints(rows: Iterable[StoreRow], starts: Sequence[datetime]) -> Iterable[Checkpoint]:
    for row in rows:
        if row["level"] == "disk" and not row["error"]:
            start, durable = _at(row, starts), _ns(row["durable_s"])
            yield Checkpoint(
                attempt=row["attempt"],
                rank=0,
                start=start,
                end=start + (_ns(row["blocked_s"]) or 0),
                step=row["step"],
                path=None,
                durable=None if durable is None else start + durable,
            )


def _checkpointer_saves(
    rows: Iterable[StoreRow], starts: Sequence[datetime]
) -> Iterable[CheckpointOutcome]:
    """Only a Checkpointer records `slower_s`."""
    for row in rows:
        if row["slower_s"] is not None:
            yield CheckpointOutcome(
                attempt=row["attempt"],
                step=row["step"],
                at=_at(row, starts),
                level=row["level"],
                blocked=_ns(row["blocked_s"]) or 0,
                step_slowdown=_ns(row["slower_s"]) or 0,
                durable=_ns(row["durable_s"]) or 0,
                size=row["bytes"] or 0,
                error=row["error"] or "",
            )


def _compiles(rows: Iterable[StoreRow], starts: Sequence[datetime]) -> Iterable[Compile]:
    for row in rows:
        start = _at(row, starts)
        yield Compile(
            attempt=row["attempt"],
            rank=0,
            start=start,
            end=start + (_ns(row["seconds"]) or 0),
            location=row["place"],
            reason=row["reason"] or "",
            recompile=row["recompile"],
            cached=row["cached"],
        )


def _starts(run: StoreRow, attempts: Sequence[StoreRow], ends: Sequence[int]) -> list[datetime]:
    """The start of the run for each attempt, as if all earlier time were in the ledger."""
    start: datetime = run["started_at"]
    starts = []
    for place, (row, end) in enumerate(zip(attempts, ends, strict=True)):
        ended_at = row["ended_at"] if place + 1 < len(attempts) else run["ended_at"]
        if ended_at is not None:
            start = max(start, ended_at - timedelta(microseconds=end // 1000))
        starts.append(start)
    return starts


def _at(row: StoreRow, starts: Sequence[datetime]) -> int:
    since: timedelta = row["at"] - starts[row["attempt"]]
    return round(since.total_seconds() * NS)


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS)
