"""The data of a ledger: frozen dataclasses, times in integer nanoseconds from the run's start."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from headway.ledger.buckets import EFFECTIVE, side
from headway.ledger.segments import Segment

SCHEMA = 1


# The parts of the time in the pt2_compile buckets, in the order of a compile.
COMPILE_PARTS = (
    "import",
    "cache_load",
    "dynamo",
    "aot_autograd",
    "inductor",
    "triton",
    "cpp",
    "autotune",
    "other",
)

FAILURE_OWNERS = ("infra", "user", "scheduler", "ambiguous")
Outcome = Literal["completed", "failed", "preempted", "stopped", "running"]
# The response of a run to a preemption notice: a last save; a save that was not done in time; no
# save, because the time was too short; no save, because no rank reacted to the notice.
NoticeResponse = Literal["saved", "late", "skipped", "none"]


def shell_code(status: int) -> int:
    """Convert an exit status to that of a shell: 143 for a death by signal 15."""
    return 128 - status if status < 0 else status


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the run."""

    index: int
    start: int
    end: int
    outcome: Outcome
    ranks: tuple[int, ...]
    world: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    resumed_from: int | None = None
    resumed_by: str | None = None  # "memory" or "disk", if a Checkpointer recorded it


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt ended early, with the evidence."""

    attempt: int
    at: int
    category: str
    owner: str
    retry: str
    root_rank: int | None
    evidence: str
    node: str | None = None
    confidence: str | None = None
    fingerprint: str | None = None  # the same for the same kind of failure
    decision: str | None = None  # the action of the supervisor


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the last sign of progress of an attempt to training again, in another one."""

    attempt: int  # the interrupted one
    until: int  # the attempt that trained again
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An injected fault, and the failure that it led to."""

    attempt: int
    at: int
    kind: str
    who: str
    planned: str  # as the plan describes it
    step: int | None = None
    missed: str | None = None  # why it had no effect
    failure: int | None = None  # index into the list of failures; None: the job continued
    detected: str | None = None  # that failure's category
    detected_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One save, as one rank recorded it; `durable` is the end of its background write."""

    attempt: int
    rank: int
    start: int
    end: int
    step: int
    path: str | None
    durable: int | None = None
    not_durable: bool = False  # its background write is not done, or failed
    from_checkpointer: bool = False  # its outcome is a CheckpointOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionNotice:
    """The notice that ended an attempt: what the response saved, and what was lost; in ns."""

    attempt: int
    at: int
    response: NoticeResponse
    accelerators: int
    step: int | None = None  # of the last save
    saved: int = 0  # training since the save before the notice that was kept
    saved_steps: int = 0
    lost: int | None = None  # trained, then rolled back; None until the run trains again
    lost_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOutcome:
    """The outcome of one save of a Checkpointer, on the rank where it cost most; times in ns."""

    attempt: int
    step: int
    at: int  # when the outcome was known
    level: str  # "memory" or "disk"
    blocked: int
    step_slowdown: int  # sum over the steps during the save
    durable: int
    size: int  # bytes, over all ranks
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInterval:
    """The interval of one level of checkpoints, the recommended one, and the loss of each."""

    level: str
    interval: int
    recommended: int | None = None
    wasted_percent: float | None = None  # of the loop time, expected
    recommended_percent: float | None = None
    failures_per_hour: float | None = None
    failures_low: float | None = None  # 95 % credible
    failures_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSave:
    """Saves of jobs under `--async-save`, over all ranks; times in ns."""

    saves: int  # written in the background
    blocked: int  # in the calls that save
    write: int  # in the background
    wait: int  # for files that were needed before they were complete
    failed: int
    sync_fallbacks: Mapping[str, int]  # number of synchronous saves by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """The publish of a training run's last checkpoint, which is a separate run; times in ns."""

    run: str  # the other run: the publish of a training, or the training of a publish
    folder: str
    anchor: str
    store: str
    snapshot: str = ""
    took: int | None = None  # None: not known yet
    error: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One PT2 compile, as one rank recorded it."""

    attempt: int
    rank: int
    start: int
    end: int
    location: str
    reason: str
    recompile: bool
    cached: bool
    backward: int = 0  # ns for its backward graph, which is compiled on first use
    caller: str = ""
    guard_values: Mapping[str, Any] = field(
        default_factory=dict
    )  # the values that the failed guard checked
    missed_precompile: bool = (
        False  # compiled ahead on a fast batch, then again by the first real batch
    )

    @property
    def ns(self) -> int:
        """Total time."""
        return self.end - self.start + self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompileLimitHit:
    """torch reached its recompile limit for a code location, which runs uncompiled from then on."""

    attempt: int
    rank: int
    at: int
    where: str
    limit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage of a start that was declared as stages."""

    name: str
    where: str
    needs: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """A start that was declared as stages; times in ns."""

    attempt: int
    rank: int
    rows: tuple[StageRow, ...]
    critical: tuple[str, ...]  # the longest chain of dependent stages
    bound: int  # lower bound of the time that these stages take in any order

    @property
    def end(self) -> int:
        """End of the last stage."""
        return max(row.end for row in self.rows)

    @property
    def took(self) -> int:
        """Time from the start of the first stage to the end of the last."""
        return self.end - min(row.start for row in self.rows)

    @property
    def one_by_one(self) -> int:
        """Sum of the stages' times."""
        return sum(row.end - row.start for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCacheLoad:
    """What a shared compile cache provided to an attempt; times in ns."""

    attempt: int
    level: str  # exact, job, near or miss
    why: str
    files: int
    bytes: int
    load: int  # time to load, in parallel with the start of the job
    compile_cold: int  # compile time without the cache
    compile: int  # compile time of this attempt, on the slowest rank

    @property
    def saved(self) -> int:
        """Compile time that the cache saved."""
        return max(self.compile_cold - self.compile, 0) if self.level != "miss" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoosterResult:
    """What one booster of `--auto` did; times in ns."""

    name: str
    state: str  # acted, on (with nothing to do) or off
    what: str = ""
    why: str = ""  # reason why it is off or was switched off
    time: int | None = None  # the time that it reduces
    baseline: int | None = None  # the same time without it; None: not known yet

    @property
    def saved(self) -> int | None:
        """Time saved, negative if it took longer; None: not known yet."""
        return None if self.time is None or self.baseline is None else self.baseline - self.time


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRun:
    """A run under `headway run --auto`."""

    job: str
    comparison_key: str  # only runs of the same kind are compared
    boosters: tuple[BoosterResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCompiles:
    """The parts of a rank's time in the compiler, and its hits in torch's caches."""

    rank: int
    parts: Mapping[str, int] = field(default_factory=dict)
    fx: tuple[int, int] = (0, 0)  # hits and misses of the FX graph cache
    aot: tuple[int, int] = (0, 0)  # hits and misses of the AOTAutograd cache
    bypassed: Mapping[str, int] = field(
        default_factory=dict
    )  # times that a cache was bypassed, by reason

    @property
    def asked(self) -> bool:
        """Whether any cache was in use."""
        return any((*self.fx, *self.aot, *self.bypassed.values()))

    def plus(self, other: RankCompiles) -> RankCompiles:
        """Return the sum of both."""
        return RankCompiles(
            rank=self.rank,
            parts=_add_counts(self.parts, other.parts),
            fx=(self.fx[0] + other.fx[0], self.fx[1] + other.fx[1]),
            aot=(self.aot[0] + other.aot[0], self.aot[1] + other.aot[1]),
            bypassed=_add_counts(self.bypassed, other.bypassed),
        )


def _add_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in [*first, *second]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """Process groups that one code location creates, over its ranks; times in ns.

    Counts are those of one rank. The avoidable time is the minimum over the ranks, because the
    other ranks may only have waited for that one.
    """

    where: str
    what: str  # new_group or split_group
    desc: str
    backend: str
    size: int
    ranks: int
    calls: int
    made: int  # calls that created a group of which the rank is a member
    used: int
    unused: int
    duplicate: int  # used groups with the ranks and backend of an earlier group
    ns: int  # on the slowest rank
    avoidable: int  # time of groups of other ranks, unused groups and duplicates
    complete: bool  # the ranks have exited: unused groups stay unused


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStepCollectives:
    """Object collectives and barriers of one code location before the first step; times in ns."""

    where: str
    what: str
    ranks: int
    times: int  # of one rank
    ns: int  # on the slowest rank
    min_time: int  # on the fastest rank; the difference may be waiting
    bytes: int  # pickled by one rank


@dataclass(frozen=True, slots=True)
class RankLedger:
    """The account of one rank; its segments cover the whole wall time of the run."""

    rank: int
    segments: tuple[Segment, ...]
    buckets: Mapping[str, int]
    steps: int
    hosts: tuple[str, ...] = ()
    host_of: Mapping[int, str] = field(default_factory=dict)  # host by attempt
    absent: int = 0  # ns in attempts with fewer ranks, without this one


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of `unknown` time with its neighbors, so that a user can name it."""

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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[PreemptionNotice, ...] = ()  # one for each attempt that was preempted
    faults: tuple[Fault, ...] = ()  # injected ones
    compile_parts: Mapping[str, int] = field(default_factory=dict)  # of the pt2_compile buckets
    rank_compiles: tuple[RankCompiles, ...] = ()
    recompile_limit_hits: tuple[RecompileLimitHit, ...] = ()
    archives: tuple[CompileCacheLoad, ...] = ()
    stages: tuple[StageGraph, ...] = ()
    archives_saved: int = 0  # number of compile archives saved for later jobs
    process_groups: tuple[ProcessGroups, ...] = ()
    pre_step_collectives: tuple[PreStepCollectives, ...] = ()
    async_save: AsyncSave | None = None
    outcomes: tuple[CheckpointOutcome, ...] = ()
    save_intervals: tuple[SaveInterval, ...] = ()  # one for each level
    published_by: Publish | None = None  # the run that published this training
    publishes_run: Publish | None = None  # the training that this run published
    auto: AutoRun | None = None
    # For each time to recover, the interrupted attempt and the one that trained again; None: each
    # attempt and the next one.
    recovered: tuple[tuple[int, int], ...] | None = None
    # First and last step of each range that was rolled back; None: derived from the attempts.
    rolled_back: tuple[tuple[int, int], ...] | None = None
    paused: int = 0  # after attempts that completed or were stopped by the user: not in `wall`
    outside: tuple[tuple[int, int], ...] = ()  # time that is not in `wall`: at which time, length

    def clock(self, ns: int, *, end: bool = False) -> int:
        """Return the wall-clock time of an instant of the run, in ns since the epoch.

        At an instant where time is left out, this is the end of that time; with `end`, its start.
        """
        gaps = sum(length for at, length in self.outside if at < ns or (at == ns and not end))
        return self.started_at + ns + gaps

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each attempt with the gap before it; the last ends with the run."""
        ends = [0, *(attempt.end for attempt in self.attempts[:-1]), self.wall]
        return tuple((start, max(start, end)) for start, end in pairwise(ends))

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """The times to recover with their attempts."""
        count = len(self.time_to_recover)
        places = self.recovered or tuple((index, index + 1) for index in range(count))
        both = zip(places, self.time_to_recover, strict=False)
        return tuple(Recovery(*place, ns) for place, ns in both)

    def recovery_of(self, attempt: int) -> int | None:
        """Return the length of the recovery after an interrupted attempt; None: not over."""
        return next((r.ns for r in self.recoveries if r.attempt <= attempt < r.until), None)

    @property
    def failures_by_owner(self) -> dict[str, int]:
        """Failures by owner; only those of `infra` are published as the number of failures."""
        counts = Counter(failure.owner for failure in self.failures)
        return {owner: counts[owner] for owner in FAILURE_OWNERS}

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
        """Return nanoseconds as a share of the wall time."""
        return 100.0 * ns / self.wall if self.wall else 0.0

    def side_total(self, which: str) -> int:
        """Return the time on one side of the account, in ns."""
        return sum(ns for bucket, ns in self.buckets.items() if side(bucket) == which)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `ledger.json` and `headway report --json`, in seconds."""
        from headway.ledger import encode

        return encode.to_dict(self)


def segments_by_attempt(
    ledger: Ledger, segments: Iterable[Segment]
) -> Iterator[tuple[int, Segment]]:
    """Yield segments with the index of their attempt, cut where an attempt ends.

    The time between two attempts belongs to the later one, as in `Ledger.windows`.
    """
    ends = [end for _, end in ledger.windows[:-1]]
    for segment in segments:
        start = segment.start
        while start < segment.end:
            place = bisect_right(ends, start)
            end = min([segment.end, *ends[place : place + 1]])
            yield place, Segment(start, end, segment.bucket)
            start = end
