"""Runs as importers find them in the records of other tools, and the ledger built from them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.ledger import segments as ledger_segments
from headway.ledger.buckets import DOWNTIME, EFFECTIVE, LOST, UNKNOWN
from headway.ledger.encode import mask_secrets
from headway.ledger.model import Attempt, Failure, Ledger, Outcome, RankLedger
from headway.ledger.segments import Segment
from headway.taxonomy import OWNERS, START_STAGES
from headway.units import NS

LATEST = 4_102_444_800.0  # year 2100
LONGEST = 3 * 366 * 86400.0  # seconds of a run; each day is a file in the store
MOST_ACCELERATORS = 1_000_000
# Hours of a run times its accelerators; above this, no rows per rank are written.
MOST_HOURS = 2_000_000.0


@dataclass(frozen=True, slots=True)
class Span:
    """A time span with a known start stage or bucket, in seconds since the epoch."""

    start: float
    end: float
    stage: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt as recorded by another tool. Time without a span is unknown."""

    start: float  # when its machines were allocated
    end: float  # or the time up to which it is known
    outcome: Outcome
    accelerators: int
    spans: tuple[Span, ...] = ()
    hosts: tuple[str, ...] = ()
    queued: float | None = None  # seconds of waiting for capacity
    category: str = "unknown"  # of the failure, if the outcome is one
    evidence: str = ""

    @property
    def steps(self) -> list[Span]:
        """The spans of steps."""
        return [span for span in self.spans if span.step is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run. `key` is the same at every import, and unique among runs."""

    key: str
    run: str
    attempts: tuple[AttemptRecord, ...]
    job: str | None = None  # the same for every run of it
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    command: tuple[str, ...] = ()
    exit_code: int | None = None

    def check(self) -> None:
        """Raise ValueError or TypeError for an implausible run, whose ledger might never be
        complete.
        """
        texts = [self.key, self.run, self.job or "", self.user or "", *self.command]
        texts += [part for label in self.labels.items() for part in label]
        texts += [text for attempt in self.attempts for text in (attempt.evidence, *attempt.hosts)]
        "".join(texts).encode()  # raises if a text contains invalid Unicode
        times = [at for attempt in self.attempts for at in (attempt.start, attempt.end)]
        times += [
            at
            for attempt in self.attempts
            for span in attempt.spans
            for at in (span.start, span.end)
        ]
        waits = [attempt.queued for attempt in self.attempts if attempt.queued is not None]
        if not self.attempts or not all(0 <= at <= LATEST for at in (*times, *waits)):
            raise ValueError(f"the run {self.run!r:.80} has a time before 1970 or after 2100")
        if max(times) - min(times) > LONGEST:
            raise ValueError(f"the run {self.run!r:.80} lasts more than three years")
        sizes = [operator.index(attempt.accelerators) for attempt in self.attempts]
        if not min(sizes) >= 0 or max(sizes) > MOST_ACCELERATORS:
            raise ValueError(f"the run {self.run!r:.80} has {max(sizes)} accelerators")
        numbers = [span.step for attempt in self.attempts for span in attempt.steps]
        numbers += [self.exit_code] if self.exit_code is not None else []
        if not all(type(number) is int and abs(number) < 1 << 62 for number in numbers):
            raise ValueError(
                f"the run {self.run!r:.80} has a step or exit code that is not a valid integer"
            )


def build_ledger(record: RunRecord) -> Ledger:
    """The balanced ledger of a run with at least one attempt."""
    attempts = record.attempts
    zero = min(attempts[0].start, *(span.start for span in attempts[0].spans), attempts[0].end)
    wall = _ns(attempts[-1].end, zero)
    segments = _segments(attempts, zero)
    steps = {span.step for attempt in attempts for span in attempt.steps}
    waits = [attempt.queued for attempt in attempts if attempt.queued is not None]
    ledger = Ledger(
        run=record.run,
        wall=wall,
        segments=tuple(segments),
        buckets=ledger_segments.time_by_bucket(segments),
        ranks=_ranks(attempts, segments),
        steps=len(steps),
        attempts=tuple(_attempt(index, attempt, zero) for index, attempt in enumerate(attempts)),
        failures=tuple(
            _failure(index, attempt, zero)
            for index, attempt in enumerate(attempts)
            if attempt.outcome in ("failed", "preempted")
        ),
        time_to_start=next((s.start for s in segments if s.bucket in (EFFECTIVE, LOST)), None),
        time_to_recover=_recovery_times(attempts),
        hidden={},
        queue_capacity=round(sum(waits) * NS) if waits else None,
        checkpoints=(),
        saves=0,
        save_interval=None,
        recommended_interval=None,
        compiles=(),
        gaps=(),
        notes=(),
        started_at=round(zero * NS),
        running=attempts[-1].outcome == "running",
        command=record.command,
        exit_code=record.exit_code,
        metadata={"created": record.key, "labels": dict(record.labels), "user": record.user},
    )
    return mask_secrets(ledger)


def _ns(seconds: float, zero: float) -> int:
    return round((seconds - zero) * NS)


def _segments(attempts: Sequence[AttemptRecord], zero: float) -> list[Segment]:
    """Attempts in order. Unknown time before a later attempt is downtime."""
    background: list[Segment] = []
    known: list[Segment] = []
    at = 0
    for index, attempt in enumerate(attempts):
        start, end = max(_ns(attempt.start, zero), at), max(_ns(attempt.end, zero), at)
        background += [
            Segment(at, start, DOWNTIME if index else UNKNOWN),
            Segment(start, end, UNKNOWN),
        ]
        later_steps = [later.steps[0].step for later in attempts[index + 1 :] if later.steps]
        resumed_at = min((step for step in later_steps if step is not None), default=None)
        spans = [
            Segment(_ns(span.start, zero), _ns(span.end, zero), _bucket(span, index, resumed_at))
            for span in attempt.spans
        ]
        known += ledger_segments.innermost(ledger_segments.clip(spans, at, end))
        at = end
    return ledger_segments.paint(ledger_segments.join(background), known)


def _bucket(span: Span, index: int, resumed_at: int | None) -> str:
    """A step that a later attempt repeats is lost training."""
    if span.step is not None and resumed_at is not None and span.step >= resumed_at:
        return LOST
    if span.stage in START_STAGES:
        return f"{'recover' if index else 'start'}.{span.stage}"
    return span.stage


def _attempt(index: int, attempt: AttemptRecord, zero: float) -> Attempt:
    steps = [span.step for span in attempt.steps if span.step is not None]
    return Attempt(
        index=index,
        start=_ns(attempt.start, zero),
        end=_ns(attempt.end, zero),
        outcome=attempt.outcome,
        ranks=tuple(range(attempt.accelerators)),
        world=attempt.accelerators,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
    )


def _failure(index: int, attempt: AttemptRecord, zero: float) -> Failure:
    owner, retry = OWNERS[attempt.category]
    return Failure(
        attempt=index,
        at=_ns(attempt.end, zero),
        category=attempt.category,
        owner=owner,
        retry=retry,
        root_rank=None,
        evidence=attempt.evidence,
        node=attempt.hosts[0] if owner == "infra" and len(attempt.hosts) == 1 else None,
    )


def _recovery_times(attempts: Sequence[AttemptRecord]) -> tuple[int, ...]:
    """From the last step before an interruption to the first one after it, if both are known."""
    trained = [index for index, attempt in enumerate(attempts) if attempt.steps]
    times = []
    for index in range(max(trained, default=0)):
        before, after = attempts[index].steps, attempts[index + 1].steps
        stopped = before[-1].end if before else attempts[index].start
        resumed = after[0].start if after else attempts[index + 1].start
        times.append(max(_ns(resumed, stopped), 0))
    return tuple(times)


def _ranks(
    attempts: Sequence[AttemptRecord], segments: Sequence[Segment]
) -> tuple[RankLedger, ...]:
    """Ranks by host, if all hosts have the same number; each rank has the segments of the run."""
    largest = max(attempt.accelerators for attempt in attempts)
    if largest * (attempts[-1].end - attempts[0].start) / 3600 > MOST_HOURS:
        return ()
    hosts: dict[int, dict[int, str]] = {}
    for index, attempt in enumerate(attempts):
        if attempt.hosts and attempt.accelerators % len(attempt.hosts) == 0:
            each = attempt.accelerators // len(attempt.hosts)
            for rank in range(attempt.accelerators):
                hosts.setdefault(rank, {})[index] = attempt.hosts[rank // each]
    return tuple(
        RankLedger(
            rank,
            tuple(segments),
            ledger_segments.time_by_bucket(segments),
            0,
            tuple(dict.fromkeys(host_of.values())),
            host_of,
        )
        for rank, host_of in sorted(hosts.items())
    )
