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


# What the time of the pt2_compile leaves goes to, in the order of a compile.
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
# What a run made of a notice: a last save; one that was not done in time; none, as there was no
# time for it; none, as nobody listened.
NoticeResponse = Literal["saved", "late", "skipped", "none"]


def shell_code(status: int) -> int:
    """An exit status as a shell gives it: 143 for a death by signal 15."""
    return 128 - status if status < 0 else status


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
    resumed_by: str | None = None  # "memory" or "disk", where a Checkpointer tells it


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


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the last sign of progress of an attempt to training again, in another one."""

    attempt: int  # that was interrupted
    until: int  # the attempt that came to train again
    ns: int


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
    unwritten: bool = False  # its background write is not done, or failed
    told: bool = False  # by a Checkpointer, which says itself what became of it: see Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionNotice:
    """The notice that ended an attempt: what its answer has saved, and what was lost; in ns."""

    attempt: int
    at: int
    answer: NoticeResponse
    accelerators: int
    step: int | None = None  # of the last save
    saved: int = 0  # trained since the save before the notice, and kept
    saved_steps: int = 0
    lost: int | None = None  # trained, then rolled back; None while nobody has trained again
    lost_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOutcome:
    """What became of one save of a Checkpointer, on the rank where it cost most; times in ns."""

    attempt: int
    step: int
    at: int  # when that was known
    level: str  # "memory" or "disk"
    blocked: int
    slower: int  # the steps meanwhile, all together
    durable: int
    size: int  # bytes, over all ranks
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInterval:
    """How often one level of checkpoints is saved, how often it should be, and what each loses."""

    level: str
    interval: int
    recommended: int | None = None
    wasted_percent: float | None = None  # of the loop, expected
    recommended_percent: float | None = None
    failures_per_hour: float | None = None
    failures_low: float | None = None  # 95 % credible
    failures_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSave:
    """Saves of jobs under `--async-save`, over all ranks; times in ns."""

    saves: int  # written behind the training
    blocked: int  # by their calls
    written: int  # behind the training
    waited: int  # by whoever needed a file before it was there
    failed: int
    plain: Mapping[str, int]  # why a save was a plain one, and how many


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A training's last checkpoint made ready to serve, by a run of its own; times in ns."""

    run: str  # the other one: of the publish for a training, of the training for a publish
    folder: str
    anchor: str
    store: str
    snapshot: str = ""
    took: int | None = None  # None while that is not known
    error: str = ""
    log: str = ""


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
    later: int = 0  # ns for its backward graph, compiled when that is first run
    caller: str = ""
    seen: Mapping[str, Any] = field(default_factory=dict)  # what the guard that failed looked at
    missed: bool = False  # compiled ahead on a fast batch, and again by the first real one

    @property
    def ns(self) -> int:
        """All that it took."""
        return self.end - self.start + self.later


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompileLimitHit:
    """torch has reached its limit of recompiles of a place: it runs uncompiled from then on."""

    attempt: int
    rank: int
    at: int
    where: str
    limit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage of a declared start."""

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
    critical: tuple[str, ...]  # the chain that takes longest
    bound: int  # the least that these stages can take, in any order

    @property
    def end(self) -> int:
        """When the last one was done."""
        return max(row.end for row in self.rows)

    @property
    def took(self) -> int:
        """From the first to the last."""
        return self.end - min(row.start for row in self.rows)

    @property
    def one_by_one(self) -> int:
        """What they would take one after the other."""
        return sum(row.end - row.start for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCacheLoad:
    """What a shared compile cache had for an attempt; times in ns."""

    attempt: int
    level: str  # exact, job, near or miss
    why: str
    files: int
    bytes: int
    load: int  # while the job started, not in its way
    cold: int  # compiling took so long when nothing was there
    here: int  # and so long here, on the rank that took longest

    @property
    def saved(self) -> int:
        """What was not compiled again."""
        return max(self.cold - self.here, 0) if self.level != "miss" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoosterResult:
    """What one booster of `--auto` did; times in ns."""

    name: str
    state: str  # acted, on (with nothing to do) or off
    what: str = ""
    why: str = ""  # it is off, or was taken back
    here: int | None = None  # what is left of the time that it shortens
    before: int | None = None  # the same without it; None if that is not known yet

    @property
    def saved(self) -> int | None:
        """Less time, or more; None if that is not known yet."""
        return None if self.here is None or self.before is None else self.before - self.here


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRun:
    """A run under `headway run --auto`."""

    job: str
    kind: str  # runs of the same one are compared
    boosters: tuple[BoosterResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCompiles:
    """What a rank's time in the compiler went to, and what torch's caches gave it."""

    rank: int
    parts: Mapping[str, int] = field(default_factory=dict)
    fx: tuple[int, int] = (0, 0)  # hits and misses of the cache of graphs
    aot: tuple[int, int] = (0, 0)  # and of that of AOTAutograd
    bypassed: Mapping[str, int] = field(default_factory=dict)  # why a cache was not asked

    @property
    def asked(self) -> bool:
        """Whether any cache was in use."""
        return any((*self.fx, *self.aot, *self.bypassed.values()))

    def plus(self, other: RankCompiles) -> RankCompiles:
        """Both together."""
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
    """Process groups that one place of the job makes, as its ranks saw it; times in ns.

    Counts are those of one rank. What is needless is what each rank could do without: the least
    of them all, as the others may only have waited for that one.
    """

    where: str
    what: str  # new_group or split_group
    desc: str
    backend: str
    size: int
    ranks: int
    calls: int
    made: int  # calls that made a group which the rank is in
    used: int
    unused: int
    again: int  # the same ranks and backend as an earlier group, and used
    ns: int  # on the rank that took longest
    needless: int  # calls for groups of other ranks, for unused and for repeated ones
    settled: bool  # the ranks came to their end: what is unused stays so


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStepCollectives:
    """Object collectives and barriers of one place, before the first step; times in ns."""

    where: str
    what: str
    ranks: int
    times: int  # of one rank
    ns: int  # on the rank that took longest
    least: int  # and on the one that took least: the rest may be waiting for that one
    bytes: int  # pickled by one rank


@dataclass(frozen=True, slots=True)
class RankLedger:
    """The same account for one rank: its segments cover the whole wall time of the run."""

    rank: int
    segments: tuple[Segment, ...]
    buckets: Mapping[str, int]
    steps: int
    hosts: tuple[str, ...] = ()
    host_of: Mapping[int, str] = field(default_factory=dict)  # where it was in each attempt
    absent: int = 0  # ns in attempts of fewer ranks, which it was not one of


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
    notices: tuple[PreemptionNotice, ...] = ()  # one for each attempt that was preempted
    faults: tuple[Fault, ...] = ()  # injected on purpose
    compile_parts: Mapping[str, int] = field(default_factory=dict)  # of the pt2_compile leaves
    rank_compiles: tuple[RankCompiles, ...] = ()
    gave_up: tuple[RecompileLimitHit, ...] = ()
    archives: tuple[CompileCacheLoad, ...] = ()
    stages: tuple[StageGraph, ...] = ()
    archived: int = 0  # how often compiled code was saved for later jobs
    groups_made: tuple[ProcessGroups, ...] = ()
    early_calls: tuple[PreStepCollectives, ...] = ()
    behind: AsyncSave | None = None
    saved: tuple[CheckpointOutcome, ...] = ()
    rhythms: tuple[SaveInterval, ...] = ()  # one for each level
    publish: Publish | None = None  # of this training
    publishes: Publish | None = None  # this run is one, of that training
    auto: AutoRun | None = None
    # Of each time to recover the attempt that was interrupted, and the one that trained again;
    # None: each one and the next.
    recovered: tuple[tuple[int, int], ...] | None = None
    # First and last step of what was trained in vain; None: not known, but by the attempts.
    rolled_back: tuple[tuple[int, int], ...] | None = None
    paused: int = 0  # after attempts that were completed, or stopped by their user: not in `wall`
    outside: tuple[tuple[int, int], ...] = ()  # when time was left out of the wall time, how much

    def clock(self, ns: int, *, end: bool = False) -> int:
        """The wall clock's time of an instant of the run, in ns since the epoch.

        Where time was left out, that is its end; for the `end` of something, its begin.
        """
        gaps = sum(length for at, length in self.outside if at < ns or (at == ns and not end))
        return self.started_at + ns + gaps

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """Of each attempt, with what lies before it; the last one up to the end of the run."""
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
        """How long the recovery took that an interrupted attempt lies in; None: it is not over."""
        return next((r.ns for r in self.recoveries if r.attempt <= attempt < r.until), None)

    @property
    def failures_by_owner(self) -> dict[str, int]:
        """Number of failures: `infra` is what is published as such, the others stand beside it."""
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
        """Nanoseconds as a share of the wall time."""
        return 100.0 * ns / self.wall if self.wall else 0.0

    def side_total(self, which: str) -> int:
        """All seconds on one side of the account, in ns."""
        return sum(ns for bucket, ns in self.buckets.items() if side(bucket) == which)

    def to_dict(self) -> dict[str, Any]:
        """The contract of `ledger.json` and `headway report --json`: seconds, rounded to 1 ns."""
        from headway.ledger import encode

        return encode.to_dict(self)


def segments_by_attempt(
    ledger: Ledger, segments: Iterable[Segment]
) -> Iterator[tuple[int, Segment]]:
    """Segments with the index of their attempt, cut where an attempt ends.

    The time between two attempts belongs to the later one, as in `Ledger.windows`.
    """
    ends = [end for _, end in ledger.windows[:-1]]
    for segment in segments:
        start = segment.start
        while start < segment.end:
            place = bisect_right(ends, start)
            end = min([segment.end, *ends[place : place + 1]])
            yield place, Segment(start, end, segment.leaf)
            start = end
