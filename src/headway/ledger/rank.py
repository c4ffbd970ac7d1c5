"""One rank in one attempt: from its journal to a gap-free list of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.journal.reader import Span
from headway.ledger.buckets import DETECTION, EFFECTIVE, HANG, PUBLISH, SHUTDOWN, UNKNOWN
from headway.ledger.model import Gap, Outcome
from headway.ledger.record import RankRecord
from headway.ledger.segments import (
    Segment,
    by_priority,
    clip,
    innermost,
    join,
    paint,
    time_by_bucket,
    union_sorted,
)
from headway.taxonomy import START_STAGES
from headway.units import NS


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The attempt as its ranks are accounted for, in run time."""

    start: int
    end: int
    group: str  # "recover" after an interruption, else "start"
    outcome: Outcome
    stop_requested_at: int | None = None
    zero: int = 0  # start of the run
    raised: int | None = None  # first exception of any rank

    @property
    def running(self) -> bool:
        """Whether the attempt is still active, so that open spans stay open."""
        return self.outcome == "running"

    @property
    def interrupted(self) -> bool:
        """Whether the attempt ended early."""
        return self.outcome in ("failed", "preempted", "stopped")

    @property
    def tail_bucket(self) -> str:
        """Bucket of the time after the last sign of life."""
        if self.running:
            return UNKNOWN
        return DETECTION if self.outcome in ("failed", "preempted") else SHUTDOWN


# Buckets of spans before the first step, and after it. Stages have the names of their buckets.
_BUCKET_BEFORE_FIRST_STEP = {
    "import": "launcher_init",
    "compile": "pt2_compile",
    "compile_import": "pt2_compile",
    "compile_cache": "pt2_compile",
    "compile_turn": "pt2_compile",
    "compile_autotune": "pt2_compile",
    "data_wait": "get_first_batch_data",
    "data_iter": "get_first_batch_data",
    "checkpoint_load": "checkpoint_load",
    **{stage: stage for stage in START_STAGES},
}
_BUCKET_AFTER = {
    "compile": "waste.recompile",
    "compile_import": "waste.recompile",
    "compile_cache": "waste.recompile",
    "compile_turn": "waste.recompile",
    "compile_autotune": "waste.recompile",
    "data_wait": "waste.data_stall",
    "data_iter": "waste.data_stall",
    "checkpoint_save": "waste.checkpoint_block",
    "evaluation": "waste.evaluation",
    "publish": PUBLISH,
}
# Spans that also own the time of spans nested in them: a compile inside a save is part of the save.
_KEEPS_NESTED = frozenset({"checkpoint_save", "checkpoint_load", "publish", "data_wait"})
_COMPILING = frozenset(
    {"compile", "compile_import", "compile_cache", "compile_turn", "compile_autotune"}
)
_NOT_A_STAGE = _COMPILING | {"data_wait", "data_iter", "import", "background"}

STALL_CELLS = 2048  # cells of an attempt into which short waits are summed
HANG_FLOOR = NS  # minimum silence of a training rank that is a hang
HANG_FLOOR_BUSY = 60 * NS  # the same inside a save, a load, a compile, ...
MANY_STEPS = 10  # a hang is a silence of this many steps
GAP_FLOOR = NS // 5


@dataclass(frozen=True, slots=True)
class RankAccount:
    """A rank's account of one attempt."""

    rank: int
    segments: list[Segment]
    ready: int | None  # start of training, after all compiles
    hung: bool
    hidden: dict[str, int]
    gaps: list[Gap]


def account_rank(rank: RankRecord, attempt: AttemptEnd, index: int) -> RankAccount:
    """Account for every nanosecond of the attempt on this rank."""
    silent_since, hung = _last_known_state(rank, attempt)
    spans = _placed_spans(rank, attempt, silent_since)
    train_start = _train_start(rank, spans)
    base = _default_timeline(rank, attempt, train_start, silent_since, hung)
    owned, hidden = _span_timeline(rank, attempt, spans, train_start)
    segments = paint(base, owned)
    segments = paint(segments, _stalls(rank, attempt, segments))
    segments = paint(segments, _drains(rank, attempt))
    segments = clip(segments, attempt.start, attempt.end)
    return RankAccount(
        rank=rank.rank,
        segments=segments,
        ready=_ready(rank, spans, train_start),
        hung=hung,
        hidden=hidden,
        gaps=_gaps(rank, segments, index),
    )


@dataclass(frozen=True, slots=True)
class _PlacedSpan:
    """A span in run time, with a known end."""

    start: int
    end: int
    name: str
    thread: int
    background: bool


def _placed_spans(rank: RankRecord, attempt: AttemptEnd, silent_since: int) -> list[_PlacedSpan]:
    """Place spans in run time; an open one ends at the last sign of life, or is still running."""
    last = attempt.end if attempt.running else silent_since
    placed = []
    for span in rank.journal.spans:
        start = span.start + rank.shift
        end = max(last, start) if span.end is None else span.end + rank.shift
        background = span.fields.get("background") is True
        if span.name == "import" and span.thread == rank.thread and _trains(rank, start, end):
            continue
        placed.append(_PlacedSpan(start, end, span.name, span.thread, background))
    waiting = _open_wait(rank)
    if waiting is not None:
        placed.append(_PlacedSpan(waiting, max(last, waiting), "data_wait", rank.thread, False))
    return placed


def _trains(rank: RankRecord, start: int, end: int) -> bool:
    """Whether the loop runs inside an import, as with `python -c "import train"`."""
    first = rank.first_step_end
    return first is not None and start < first < end


def _open_wait(rank: RankRecord) -> int | None:
    """Return since when the loop waits for a batch; prefetching threads do not count."""
    page = rank.journal.pulse
    if page is None or not page.waiting or rank.wrote_exit:
        return None
    since = page.waiting + rank.shift
    return since if since >= (rank.last_step_end or 0) else None


def _last_known_state(rank: RankRecord, attempt: AttemptEnd) -> tuple[int, bool]:
    """Return until when the rank's state is known, and whether it hung after that."""
    sign = min(rank.last_sign, attempt.end)
    if not (attempt.interrupted or attempt.running) or rank.wrote_exit:
        return sign, False
    stop_at = None if attempt.stop_requested_at is None else max(attempt.stop_requested_at, sign)
    until = attempt.end if stop_at is None else min(stop_at, attempt.end)
    patience = _hang_threshold(rank)
    # A rank that waits for a failed rank does not hang, however long that rank takes to exit.
    hung = until - sign > patience and (attempt.raised is None or attempt.raised - sign > patience)
    return sign if hung or stop_at is None else until, hung


def _hang_threshold(rank: RankRecord) -> int:
    """Return the silence that counts as a hang, from this rank's own step and span times."""
    busy = [span for span in rank.journal.spans if span.end is None]
    if not busy and _open_wait(rank) is None and rank.step_time is not None:
        return max(HANG_FLOOR, MANY_STEPS * rank.step_time)
    names = {span.name for span in busy}
    longest = max((_length(s) for s in rank.journal.spans if s.name in names), default=0)
    return max(HANG_FLOOR_BUSY, MANY_STEPS * max(longest, rank.step_time or 0))


def _length(span: Span) -> int:
    return 0 if span.end is None else span.end - span.start


def _train_start(rank: RankRecord, spans: Sequence[_PlacedSpan]) -> int | None:
    """Return the end of the wait for the first batch, or of the last start stage."""
    first = rank.first_step_end
    if first is None:
        return None
    before = [s for s in spans if s.start < first and not s.background]
    compiles = [s for s in before if s.name in _COMPILING]
    stages = [
        s for s in before if s.end <= first and (s.name == "import" or s.name not in _NOT_A_STAGE)
    ]
    # Imports and modules inside a compile are not part of the preparation of the first batch.
    ends = [s.end for s in stages if not any(_within(s, compile) for compile in compiles)]
    # Declared stages run in several threads; the loop starts after all of them.
    declared = [end for end in rank.declared if end <= first]
    prepared = min(max([*ends, *declared, rank.opened]), first)
    own = [s for s in before if s.thread == rank.thread]
    waits = sorted(s.end for s in own if s.name == "data_wait" and s.end >= prepared)
    if waits:
        return min(waits[0], first)
    iterators = [s.end for s in own if s.name == "data_iter" and s.end <= first]
    return _unseen_batch(rank, own, max([prepared, *iterators]), first)


def _within(span: _PlacedSpan, outer: _PlacedSpan) -> bool:
    return span.thread == outer.thread and outer.start <= span.start < outer.end


def _unseen_batch(
    rank: RankRecord, before: Sequence[_PlacedSpan], prepared: int, first: int
) -> int:
    """Return the start of training without a wait for the first batch, from the step time."""
    compiles = union_sorted(
        sorted(
            (max(s.start, prepared), min(s.end, first))
            for s in before
            if s.name in _COMPILING and s.end > prepared
        )
    )
    busy = first - prepared - sum(end - start for start, end in compiles)
    if rank.step_time is None or busy <= 3 * rank.first_steps * rank.step_time + GAP_FLOOR:
        return prepared
    at, remaining = first, rank.first_steps * rank.step_time
    for start, end in reversed(compiles):
        if at - end >= remaining:
            break
        remaining -= at - end
        at = start
    return max(at - remaining, prepared)


def _ready(rank: RankRecord, spans: Sequence[_PlacedSpan], train_start: int | None) -> int | None:
    first = rank.first_step_end
    if first is None or train_start is None:
        return None
    compiles = [min(s.end, first) for s in spans if s.name in _COMPILING and s.start < first]
    return max([train_start, *compiles])


def _default_timeline(
    rank: RankRecord, attempt: AttemptEnd, train_start: int | None, silent_since: int, hung: bool
) -> list[Segment]:
    """Return the timeline without spans."""
    launched = max(min(rank.opened, train_start or attempt.end, attempt.end), attempt.start)
    out = [Segment(attempt.start, launched, f"{attempt.group}.launcher_init")]
    if train_start is None or rank.last_step_end is None:
        out += _after_last_step(attempt, launched, silent_since, hung, UNKNOWN)
        return join(out)
    begin = min(max(train_start, launched), attempt.end)
    last = min(max(rank.last_step_end, begin), attempt.end)
    out += [Segment(launched, begin, UNKNOWN), Segment(begin, last, EFFECTIVE)]
    return join([*out, *_after_last_step(attempt, last, silent_since, hung, attempt.tail_bucket)])


def _after_last_step(
    attempt: AttemptEnd, at: int, silent_since: int, hung: bool, bucket: str
) -> list[Segment]:
    """Return the segments from the last known step or stage to the end of the attempt."""
    silent_since = min(max(silent_since, at), attempt.end)
    if hung:
        stop_at = (
            attempt.stop_requested_at if attempt.stop_requested_at is not None else attempt.end
        )
        released = min(max(stop_at, silent_since), attempt.end)
        return [
            Segment(at, silent_since, bucket),
            Segment(silent_since, released, HANG),
            Segment(released, attempt.end, attempt.tail_bucket),
        ]
    after = attempt.tail_bucket if attempt.interrupted else bucket
    return [Segment(at, silent_since, bucket), Segment(silent_since, attempt.end, after)]


def _stalls(rank: RankRecord, attempt: AttemptEnd, segments: Sequence[Segment]) -> list[Segment]:
    """Place short waits for data at the end of the training time of each cell.

    A cell is a second of run time (more in a long attempt), the same for all ranks. Ranks wait at
    the same time, so the run loses per cell the wait of its slowest rank, not the sum. The waits
    of a window are spread evenly over its training time.
    """
    cell = NS * max(1, -(-(attempt.end - attempt.start) // (STALL_CELLS * NS)))
    free = _in_cells(segments, attempt.zero, cell)
    waits = [0] * len(free)
    windows, at = rank.journal.windows, 0
    for index, wait in enumerate(windows.wait):
        if not wait:
            continue
        start, end = windows.start[index] + rank.shift, windows.end[index] + rank.shift
        if not windows.start[index]:
            start = attempt.start
        while at < len(free) and free[at].end <= start:
            at += 1
        _spread(wait, start, end, free, at, waits)
    wait_by_cell: dict[int, int] = {}
    for piece, wait in zip(free, waits, strict=True):
        number = (piece.start - attempt.zero) // cell
        wait_by_cell[number] = wait_by_cell.get(number, 0) + wait
    out: list[Segment] = []
    for piece in reversed(free):
        number = (piece.start - attempt.zero) // cell
        ns = min(wait_by_cell[number], piece.end - piece.start)
        wait_by_cell[number] -= ns
        if ns:
            out.append(Segment(piece.end - ns, piece.end, "waste.data_stall"))
    return out[::-1]


def _in_cells(segments: Sequence[Segment], zero: int, cell: int) -> list[Segment]:
    """Return the training time, cut at the ends of cells."""
    out = []
    for segment in segments:
        at = segment.start
        while segment.bucket == EFFECTIVE and at < segment.end:
            end = min(zero + ((at - zero) // cell + 1) * cell, segment.end)
            out.append(Segment(at, end, EFFECTIVE))
            at = end
    return out


def _spread(
    wait: int, start: int, end: int, free: Sequence[Segment], index: int, waits: list[int]
) -> None:
    """Add the wait of a window to its pieces of training time, in proportion to their length."""
    lengths: list[int] = []
    while index + len(lengths) < len(free) and free[index + len(lengths)].start < end:
        piece = free[index + len(lengths)]
        lengths.append(max(min(piece.end, end) - max(piece.start, start), 0))
    room = sum(lengths)
    wait = min(wait, room)  # waits after its last step are not part of the window
    covered = assigned = 0
    for offset, length in enumerate(lengths):
        covered += length
        share = wait * covered // room - assigned if room else 0
        waits[index + offset] += share
        assigned += share


def _span_timeline(
    rank: RankRecord, attempt: AttemptEnd, spans: Sequence[_PlacedSpan], train_start: int | None
) -> tuple[list[Segment], dict[str, int]]:
    """Return the bucket of each instant that spans cover, and the time hidden by overlap.

    During the start every thread counts; the thread that the first step waits for longest has
    priority. During training only the thread that makes the steps counts.
    """
    threads: dict[int, list[_PlacedSpan]] = {}
    for span in spans:
        if not span.background:
            threads.setdefault(span.thread, []).append(span)
    layers: list[tuple[int, int, list[Segment]]] = []
    span_time: dict[str, int] = {}
    for thread, members in threads.items():
        flat = _flatten(rank, attempt, members, train_start)
        for bucket, ns in time_by_bucket(flat).items():
            span_time[bucket] = span_time.get(bucket, 0) + ns
        if train_start is not None and thread != rank.thread:
            flat = clip(flat, attempt.start, train_start)
        last = max((s.end for s in members if _is_waited_for(rank, s, train_start)), default=0)
        layers.append((-last, thread, flat))
    owned = by_priority([flat for _, _, flat in sorted(layers, key=lambda x: x[:2])])
    for span in spans:
        if span.background:
            bucket = _bucket_of(rank, attempt, span, train_start)
            ns = min(span.end, attempt.end) - max(span.start, attempt.start)
            span_time[bucket] = span_time.get(bucket, 0) + max(ns, 0)
    owned_time = time_by_bucket(owned)
    hidden = {bucket: ns - owned_time.get(bucket, 0) for bucket, ns in span_time.items()}
    return owned, {bucket: ns for bucket, ns in hidden.items() if ns > 0}


def _is_waited_for(rank: RankRecord, span: _PlacedSpan, train_start: int | None) -> bool:
    """Whether the first step is after this span; without a step, it may wait for any span."""
    first = rank.first_step_end
    if first is None or train_start is None:
        return True
    return span.start < train_start and span.end <= first


def _flatten(
    rank: RankRecord, attempt: AttemptEnd, spans: Sequence[_PlacedSpan], train_start: int | None
) -> list[Segment]:
    named = [Segment(s.start, s.end, _bucket_of(rank, attempt, s, train_start)) for s in spans]
    opaque = frozenset(i for i, s in enumerate(spans) if s.name in _KEEPS_NESTED)
    return clip(innermost(named, opaque), attempt.start, attempt.end)


def _bucket_of(
    rank: RankRecord, attempt: AttemptEnd, span: _PlacedSpan, train_start: int | None
) -> str:
    first, last = rank.first_step_end, rank.last_step_end
    if first is None and span.name == "publish":
        return PUBLISH  # the process does not train
    starting = first is None or span.start < first
    if starting and span.name in ("data_wait", "data_iter") and train_start is not None:
        starting = span.start < train_start
    if starting:
        return f"{attempt.group}.{_BUCKET_BEFORE_FIRST_STEP.get(span.name, 'pre_train')}"
    if span.name == "data_wait" and attempt.outcome == "completed" and span.start >= (last or 0):
        return SHUTDOWN  # the end of the data
    return _BUCKET_AFTER.get(span.name, "waste.blocked")


def _drains(rank: RankRecord, attempt: AttemptEnd) -> list[Segment]:
    """Return the time in which the device executed queued steps; this is training."""
    first = rank.first_step_end
    if first is None:
        return []
    out: list[Segment] = []
    for start, end in rank.device_drains:
        start = max(start, first, out[-1].end if out else 0)
        if start < end:
            out.append(Segment(start, end, EFFECTIVE))
    return clip(out, attempt.start, attempt.end)


def _gaps(rank: RankRecord, segments: Sequence[Segment], attempt: int) -> list[Gap]:
    out = []
    for place, segment in enumerate(segments):
        if segment.bucket == UNKNOWN and segment.end - segment.start >= GAP_FLOOR:
            after = segments[place - 1].bucket if place else "start"
            before = segments[place + 1].bucket if place + 1 < len(segments) else "end"
            out.append(Gap(attempt, rank.rank, segment.start, segment.end, after, before))
    return out
