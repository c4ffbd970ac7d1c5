"""What a ledger holds: plain frozen data, times in integer nanoseconds from the run's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.ledger.leaves import EFFECTIVE, LEAVES, side

SCHEMA = 1
NS = 1_000_000_000

Outcome = Literal["completed", "failed", "preempted", "stopped", "running"]


def shell_code(status: int) -> int:
    """An exit status as a shell gives it: 143 for a death by signal 15."""
    return 128 - status if status < 0 else status


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of a timeline: half-open `[start, end)` and the leaf that owns it."""

    start: int
    end: int
    leaf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One life of the run."""

    index: int
    start: int
    end: int
    outcome: Outcome
    ranks: tuple[int, ...]
    world: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    resumed_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt ended before its time, with the evidence for it."""

    attempt: int
    at: int
    category: str
    owner: str
    retry: str
    root_rank: int | None
    evidence: str
    node: str | None = None
    confidence: str | None = None
    fingerprint: str | None = None  # the same when the same thing happens again
    decision: str | None = None  # what the supervisor did about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that was injected on purpose, and the failure it led to."""

    attempt: int
    at: int
    kind: str
    who: str
    planned: str  # in the words of the plan
    step: int | None = None
    missed: str | None = None  # why it hit nothing
    failure: int | None = None  # its place in the list of failures; None: the job went on
    detected: str | None = None  # that failure's category
    detected_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One save, as one rank saw it; `durable` is when a background write was done."""

    attempt: int
    rank: int
    start: int
    end: int
    step: int
    path: str | None
    durable: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One PT2 compile, as one rank saw it."""

    attempt: int
    rank: int
    start: int
    end: int
    where: str
    trigger: str
    reason: str
    recompile: bool
    cached: bool


@dataclass(frozen=True, slots=True)
class RankLedger:
    """The same account for one rank: its segments cover the whole wall time of the run."""

    rank: int
    segments: tuple[Segment, ...]
    buckets: Mapping[str, int]
    steps: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of `unknown` with its neighbours, so that a user can give it a name."""

    attempt: int
    rank: int
    start: int
    end: int
    after: str
    before: str


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The balanced account of one run: `buckets` sum to `wall`, exactly."""

    run: str
    wall: int
    segments: tuple[Segment, ...]
    buckets: Mapping[str, int]
    ranks: tuple[RankLedger, ...]
    steps: int
    attempts: tuple[Attempt, ...]
    failures: tuple[Failure, ...]
    time_to_start: int | None
    time_to_recover: tuple[int, ...]
    hidden: Mapping[str, int]
    queue_capacity: int | None
    checkpoints: tuple[Checkpoint, ...]
    saves: int
    save_interval: int | None
    recommended_interval: int | None
    compiles: tuple[Compile, ...]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...]
    started_at: int  # wall clock of the run's start, in ns since the epoch
    running: bool
    command: tuple[str, ...] = ()
    exit_code: int | None = None
    batches_per_step: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()  # injected on purpose

    @property
    def ett_percent(self) -> float:
        """Effective training time as a share of the wall time."""
        return self.percent(self.buckets.get(EFFECTIVE, 0))

    @property
    def idleness_percent(self) -> float:
        """Start, waste, stop and unknown as a share of the wall time."""
        return self.percent(self.side_total("idleness"))

    @property
    def failure_percent(self) -> float:
        """Lost training, hangs and recovery as a share of the wall time."""
        return self.percent(self.side_total("failure"))

    def percent(self, ns: int) -> float:
        """Nanoseconds as a share of the wall time."""
        return 100.0 * ns / self.wall if self.wall else 0.0

    def side_total(self, which: str) -> int:
        """All seconds on one side of the account, in ns."""
        return sum(ns for leaf, ns in self.buckets.items() if side(leaf) == which)

    def to_dict(self) -> dict[str, Any]:
        """The contract of `ledger.json` and `headway report --json`: seconds, rounded to 1 ns."""
        cold = sum(not c.recompile and not c.cached for c in self.compiles)
        return {
            "schema": SCHEMA,
            "run": self.run,
            "wall_s": self.wall / NS,
            "ett_percent": self.ett_percent,
            "idleness_percent": self.idleness_percent,
            "failure_percent": self.failure_percent,
            "ranks": len(self.ranks),
            "steps": self.steps,
            "running": self.running,
            "started_at": self.started_at / NS,
            "exit_code": self.exit_code,
            "buckets": _seconds(self.buckets),
            "time_to_start_s": _s(self.time_to_start),
            "time_to_recover_s": [ns / NS for ns in self.time_to_recover],
            "hidden_s": _seconds(self.hidden),
            "queue_capacity_s": _s(self.queue_capacity),
            "batches_per_step": self.batches_per_step,
            "attempts": [_attempt(a) for a in self.attempts],
            "failures": [_failure(f) for f in self.failures],
            **({"faults": [_fault(f) for f in self.faults]} if self.faults else {}),
            "checkpoints": {
                "saves": self.saves,
                "blocked_s": self.buckets.get("waste.checkpoint_block", 0) / NS,
                "interval_s": _s(self.save_interval),
                "recommended_interval_s": _s(self.recommended_interval),
            },
            "compile": {
                "cold": cold,
                "cached": sum(not c.recompile and c.cached for c in self.compiles),
                "recompiles": [
                    {
                        "where": c.where,
                        "reason": c.reason,
                        "seconds": (c.end - c.start) / NS,
                        "attempt": c.attempt,
                        "rank": c.rank,
                    }
                    for c in self.compiles
                    if c.recompile
                ],
            },
            "per_rank": [
                {"rank": r.rank, "steps": r.steps, "buckets": _seconds(r.buckets)}
                for r in self.ranks
            ],
            "notes": list(self.notes),
        }


def _s(ns: int | None) -> float | None:
    return None if ns is None else ns / NS


def _seconds(buckets: Mapping[str, int]) -> dict[str, float]:
    """In the order of the vocabulary, so that two ledgers read alike."""
    return {leaf: buckets[leaf] / NS for leaf in LEAVES if buckets.get(leaf)}


def _attempt(a: Attempt) -> dict[str, Any]:
    return {
        "index": a.index,
        "start_s": a.start / NS,
        "end_s": a.end / NS,
        "first_step": a.first_step,
        "last_step": a.last_step,
        "resumed_from": a.resumed_from,
        "outcome": a.outcome,
        "ranks": len(a.ranks),
    }


def _failure(f: Failure) -> dict[str, Any]:
    return {
        "attempt": f.attempt,
        "at_s": f.at / NS,
        "category": f.category,
        "owner": f.owner,
        "retry": f.retry,
        "root_rank": f.root_rank,
        "evidence": f.evidence,
        "node": f.node,
        "confidence": f.confidence,
        "fingerprint": f.fingerprint,
        "decision": f.decision,
    }


def _fault(f: Fault) -> dict[str, Any]:
    return {
        "attempt": f.attempt,
        "at_s": f.at / NS,
        "kind": f.kind,
        "who": f.who,
        "step": f.step,
        "planned": f.planned,
        "missed": f.missed,
        "failure": f.failure,
        "detected": f.detected,
        "detected_after_s": _s(f.detected_after),
    }
