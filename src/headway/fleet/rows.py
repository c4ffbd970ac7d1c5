"""Convert a ledger to rows of the store's tables: pure, and deterministic for the same ledger."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from headway import redact
from headway.export.identity import identity_text
from headway.fleet.schema import FAILURE_COLUMNS, LABELS
from headway.fleet.store.arrow import utc_datetime
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.model import Attempt, Compile, Ledger
from headway.ledger.resume import merge_files
from headway.ledger.segments import Segment
from headway.units import NS

HOUR = 3600 * NS

Row = dict[str, Any]


def to_rows(
    ledger: Ledger, *, job: str | None = None, labels: Mapping[str, str] | None = None
) -> dict[str, list[Row]]:
    """All tables of one run; `labels` override the labels of the run."""
    if not ledger.attempts:
        return {}
    return _Run(ledger).tables(job, labels or {})


def run_id(ledger: Ledger) -> str:
    """The ID of a run: equal for copies of the run, different for any other run."""
    digest = hashlib.sha256(identity_text(ledger).encode()).digest()
    return base64.b32encode(digest)[:12].decode().lower()


def as_of(ledger: Ledger) -> float:
    """Time up to which the ledger describes the run, in seconds since the epoch."""
    return ledger.clock(ledger.wall, end=True) / NS


def _text(value: object) -> str | None:
    """A value of run.json, which other programs may write, as text."""
    return None if value is None or value == "" else str(value)


class _Run:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.id = run_id(ledger)
        largest = max(_size(attempt) for attempt in ledger.attempts)
        # An attempt without known ranks is assumed to have as many as the largest attempt.
        self.accelerators = [_size(attempt) or largest or 1 for attempt in ledger.attempts]
        self.hours = list(self._split(ledger.segments))
        self.by_rank = {rank.rank: list(self._split(rank.segments)) for rank in ledger.ranks}
        self.sums: dict[tuple[int, str], float] = defaultdict(float)
        for attempt, _, bucket, seconds in self.hours:
            self.sums[attempt, bucket] += seconds

    def tables(self, job: str | None, labels: Mapping[str, str]) -> dict[str, list[Row]]:
        buckets = list(self._buckets())
        return {
            "runs": [self._run(job, labels)],
            "attempts": [self._attempt(attempt) for attempt in self.ledger.attempts],
            "hours": [
                self._key(attempt)
                | {
                    "hour": hour,
                    "leaf": bucket,
                    "seconds": seconds,
                    "accelerator_s": seconds * self.accelerators[attempt],
                }
                for attempt, hour, bucket, seconds in self.hours
            ],
            "buckets": buckets,
            "failures": list(self._failures()),
            "checkpoints": list(self._checkpoints()),
            "compiles": list(self._compiles()),
            "nodes": list(self._nodes(buckets)),
        }

    # -- seconds by hour and bucket

    def _split(self, segments: Sequence[Segment]) -> Iterator[tuple[int, datetime, str, float]]:
        """Seconds by attempt, hour and bucket. Time before an attempt belongs to it."""
        ends = [end for _, end in self.ledger.windows[:-1]]
        totals: dict[tuple[int, int, str], int] = defaultdict(int)
        gaps = [at for at, _ in self.ledger.outside]
        for segment in segments:
            at = segment.start
            while at < segment.end:
                attempt, gap = bisect_right(ends, at), bisect_right(gaps, at)
                offset = self.ledger.clock(at) - at
                hour = (offset + at) // HOUR
                bounds = (*ends[attempt : attempt + 1], *gaps[gap : gap + 1])
                until = min(segment.end, (hour + 1) * HOUR - offset, *bounds)
                totals[attempt, hour, segment.bucket] += until - at
                at = until
        for (attempt, hour, bucket), ns in sorted(totals.items()):
            yield attempt, utc_datetime(hour * 3600), bucket, ns / NS

    def _key(self, attempt: int) -> Row:
        return {"run_id": self.id, "attempt": attempt}

    def _at(self, ns: int, *, end: bool = False) -> datetime:
        return utc_datetime(0) + timedelta(microseconds=self.ledger.clock(ns, end=end) // 1000)

    def _wall(self, attempt: int) -> float:
        """Seconds from the end of the previous attempt to the end of this one, or of the run."""
        start, end = self.ledger.windows[attempt]
        return (end - start) / NS

    def _recovery(
        self, *, interrupted: int | None = None, resumed: int | None = None
    ) -> float | None:
        """Seconds of the interruption that an attempt suffered or ended."""
        recoveries = self.ledger.recoveries
        return next(
            (r.ns / NS for r in recoveries if r.attempt == interrupted or r.until == resumed), None
        )

    # -- one method per table

    def _run(self, job: str | None, labels: Mapping[str, str]) -> Row:
        ledger, metadata = self.ledger, self.ledger.metadata
        recorded = metadata.get("labels")
        labels_of_run = redact.data({**(recorded if isinstance(recorded, dict) else {}), **labels})
        versions = metadata.get("versions")
        versions = versions if isinstance(versions, dict) else {}
        return {
            "run_id": self.id,
            "run": ledger.run,
            "job": job,
            **{column.name: _text(labels_of_run.get(column.name)) for column in LABELS},
            "user": _text(metadata.get("user")),
            **{name: _text(versions.get(name)) for name in ("torch", "python", "headway")},
            "command": shlex.join(redact.words(ledger.command)) or None,
            "labels": json.dumps(labels_of_run, sort_keys=True),
            "started_at": self._at(0),
            "ended_at": self._at(ledger.wall, end=True),
            "running": ledger.running,
            "outcome": ledger.attempts[-1].outcome,
            "exit_code": ledger.exit_code,
            "accelerators": max(self.accelerators),
            "attempts": len(ledger.attempts),
            **{FAILURE_COLUMNS[owner]: count for owner, count in ledger.failures_by_owner.items()},
            "steps": ledger.steps,
            "wall_s": ledger.wall / NS,
            "effective_s": ledger.buckets.get(EFFECTIVE, 0) / NS,
            "time_to_start_s": _seconds(ledger.time_to_start),
            "queue_capacity_s": _seconds(ledger.queue_capacity),
        }

    def _attempt(self, attempt: Attempt) -> Row:
        index = attempt.index
        return self._key(index) | {
            "started_at": self._at(attempt.start),
            "ended_at": self._at(attempt.end, end=True),
            "outcome": attempt.outcome,
            "accelerators": self.accelerators[index],
            "wall_s": self._wall(index),
            "effective_s": self.sums[index, EFFECTIVE],
            "lost_s": self.sums[index, LOST],
            "time_to_recover_s": self._recovery(resumed=index),
            "first_step": attempt.first_step,
            "last_step": attempt.last_step,
            "resumed_from": attempt.resumed_from,
            "resumed_by": attempt.resumed_by,
        }

    def _buckets(self) -> Iterator[Row]:
        for rank in self.ledger.ranks:
            for attempt, hour, bucket, seconds in self.by_rank[rank.rank]:
                if rank.rank in self.ledger.attempts[attempt].ranks:
                    yield self._key(attempt) | {
                        "rank": rank.rank,
                        "host": rank.host_of.get(attempt),
                        "hour": hour,
                        "leaf": bucket,
                        "seconds": seconds,
                    }

    def _failures(self) -> Iterator[Row]:
        for failure in self.ledger.failures:
            index = failure.attempt
            yield self._key(index) | {
                "at": self._at(failure.at, end=True),
                "category": failure.category,
                "owner": failure.owner,
                "retry": failure.retry,
                "root_rank": failure.root_rank,
                "host": self._root(index),
                "evidence": redact.text(failure.evidence),
                "confidence": failure.confidence,
                "fingerprint": failure.fingerprint,
                "decision": failure.decision and redact.text(failure.decision),
                "accelerators": self.accelerators[index],
                "lost_s": self.sums[index, LOST],
                "time_to_recover_s": self._recovery(interrupted=index),
            }

    def _root(self, attempt: int) -> str | None:
        """The host where the failure of an attempt began, if known."""
        for failure in self.ledger.failures:
            if failure.attempt == attempt:
                hosts = {rank.rank: rank.host_of.get(attempt) for rank in self.ledger.ranks}
                root_host = hosts.get(failure.root_rank) if failure.root_rank is not None else None
                return failure.node or root_host
        return None

    def _checkpoints(self) -> Iterator[Row]:
        # A Checkpointer records more than the saves that the probe recognizes.
        attempts_with_saves = {outcome.attempt for outcome in self.ledger.outcomes}
        for outcome in self.ledger.outcomes:
            yield self._key(outcome.attempt) | {
                "at": self._at(outcome.at),
                "step": outcome.step,
                "level": outcome.level,
                "blocked_s": outcome.blocked / NS,
                "slower_s": outcome.step_slowdown / NS,
                "durable_s": outcome.durable / NS,
                "bytes": outcome.size or None,
                "error": redact.text(outcome.error) or None,
                "accelerators": self.accelerators[outcome.attempt],
            }
        for save in merge_files(
            checkpoint
            for checkpoint in self.ledger.checkpoints
            if checkpoint.attempt not in attempts_with_saves
        ):
            yield self._key(save.attempt) | {
                "at": self._at(save.at),
                "step": save.step,
                "level": "disk",
                "blocked_s": save.blocked / NS,
                "durable_s": _seconds(save.written),
                "accelerators": self.accelerators[save.attempt],
            }

    def _compiles(self) -> Iterator[Row]:
        groups: dict[tuple[int, str, str, bool, bool], list[Compile]] = defaultdict(list)
        for compile_ in self.ledger.compiles:
            key = (
                compile_.attempt,
                compile_.location,
                compile_.reason,
                compile_.recompile,
                compile_.cached,
            )
            groups[key].append(compile_)
        for (attempt, where, reason, recompile, cached), compiles in sorted(groups.items()):
            by_rank: dict[int, int] = defaultdict(int)
            for compile_ in compiles:
                by_rank[compile_.rank] += compile_.ns
            yield self._key(attempt) | {
                "at": self._at(min(compile_.start for compile_ in compiles)),
                "place": where,
                "reason": reason or None,
                "recompile": recompile,
                "cached": cached,
                "ranks": len(by_rank),
                "times": len(compiles),
                "seconds": max(by_rank.values()) / NS,
                "accelerators": self.accelerators[attempt],
            }

    def _nodes(self, buckets: Sequence[Row]) -> Iterator[Row]:
        total: dict[tuple[int, str], float] = defaultdict(float)
        effective: dict[tuple[int, str], float] = defaultdict(float)
        ranks: dict[tuple[int, str], set[int]] = defaultdict(set)
        for row in buckets:
            if row["host"] is not None:
                key = (row["attempt"], row["host"])
                ranks[key].add(row["rank"])
                total[key] += row["seconds"]
                effective[key] += row["seconds"] if row["leaf"] == EFFECTIVE else 0.0
        for (attempt, host), ranks_of_host in sorted(ranks.items()):
            record = self.ledger.attempts[attempt]
            yield self._key(attempt) | {
                "host": host,
                "started_at": self._at(record.start),
                "ended_at": self._at(record.end, end=True),
                "accelerators": len(ranks_of_host),
                "wall_s": self._wall(attempt),
                "accelerator_s": total[attempt, host],
                "effective_s": effective[attempt, host],
                "failures": int(self._root(attempt) == host),
            }


def _size(attempt: Attempt) -> int:
    return max(len(attempt.ranks), attempt.world or 0)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS
