"""The timeline of an attempt, merged from the timelines of its ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from headway.ledger.buckets import DETECTION, DOWNTIME, EFFECTIVE, HANG, UNKNOWN
from headway.ledger.rank import AttemptEnd, RankAccount, account_rank
from headway.ledger.record import AttemptRecord
from headway.ledger.segments import Segment, join


def merge_ranks(timelines: Sequence[Sequence[Segment]], waiting: frozenset[str]) -> list[Segment]:
    """Merge the timelines of ranks, which all cover the same interval, into one.

    An instant is effective only while every rank trains. Otherwise it belongs to the rank that
    the others wait for: of the ranks that do not train, the last one to resume training or to
    enter the next collective. Ranks whose bucket is in `waiting` are in such a collective and have
    the lowest priority, then ranks in `unknown`. For ranks that resume at the same time, or never,
    see `_TIES`.
    """
    if len(timelines) == 1:
        return list(timelines[0])
    edges = heapq.merge(*(_edges(rank, t, waiting) for rank, t in enumerate(timelines)))
    not_training: dict[int, _Claim] = {}
    out: list[Segment] = []
    at: int | None = None
    for time, rank, state in edges:
        if at is not None and at < time:
            bucket = max(not_training.values())[4] if not_training else EFFECTIVE
            if out and out[-1].bucket == bucket and out[-1].end == at:
                out[-1] = Segment(out[-1].start, time, bucket)
            else:
                out.append(Segment(at, time, bucket))
        at = time
        if state is None:
            not_training.pop(rank, None)
        else:
            not_training[rank] = state
    return out


# Certainty, when the rank resumes, rank in a tie of buckets, minus the rank, the bucket.
_Claim = tuple[int, int, int, int, str]
_State = _Claim | None
_TIES = {HANG: 3, DETECTION: 1, DOWNTIME: 1, UNKNOWN: 0}  # any other bucket: 2


def _edges(
    rank: int, timeline: Sequence[Segment], waiting: frozenset[str]
) -> list[tuple[int, int, _State]]:
    """Return when a rank changes its state: None for training, else its priority."""
    edges: list[tuple[int, int, _State]] = []
    resumes_at = timeline[-1].end  # when the others no longer wait for this rank
    for segment in reversed(timeline):
        if segment.bucket == EFFECTIVE:
            edges.append((segment.start, rank, None))
            resumes_at = segment.start
        else:
            certainty = 0 if segment.bucket in waiting else 1 if segment.bucket == UNKNOWN else 2
            priority = (certainty, resumes_at, _TIES.get(segment.bucket, 2), -rank, segment.bucket)
            edges.append((segment.start, rank, priority))
            if segment.bucket in waiting:
                resumes_at = segment.start  # the others wait until this rank enters the collective
    edges.reverse()
    edges.append((timeline[-1].end, rank, None))
    return edges


# Buckets in which a rank is in a collective and waits for the others.
COLLECTIVE_WAIT = frozenset({"start.process_group_init", "recover.process_group_init"})


@dataclass(frozen=True, slots=True)
class AttemptTimeline:
    """The account of one attempt."""

    ranks: tuple[RankAccount, ...]
    trainers: tuple[RankAccount, ...]
    segments: tuple[Segment, ...]
    progress_until: int  # the last sign of progress
    ready: int | None


def account_attempt(index: int, attempt: AttemptRecord, zero: int) -> AttemptTimeline:
    """Account for every rank of an attempt, and for the attempt as a whole."""
    group = "recover" if attempt.recovers else "start"
    raised = min((t for rank in attempt.ranks if (t := rank.raised) is not None), default=None)
    end = AttemptEnd(
        attempt.begin, attempt.end, group, attempt.outcome, attempt.stop_requested_at, zero, raised
    )
    trainers = attempt.trainers()
    accounts = {id(rank): account_rank(rank, end, index) for rank in attempt.ranks}
    merged = [accounts[id(rank)] for rank in trainers]
    if merged:
        timelines = [m.segments for m in merged if m.segments]
        segments = merge_ranks(timelines, COLLECTIVE_WAIT) if timelines else []
    else:
        segments = _without_ranks(attempt, group)
    steps = [rank.last_step_end for rank in trainers if rank.last_step_end is not None]
    signs = [rank.last_sign for rank in attempt.ranks]
    ready = [m.ready for m in merged if m.ready is not None]
    return AttemptTimeline(
        ranks=tuple(accounts.values()),
        trainers=tuple(merged),
        segments=tuple(segments),
        progress_until=_within_attempt(attempt, max(steps or signs or [attempt.begin])),
        ready=_within_attempt(attempt, max(ready)) if ready and len(ready) == len(merged) else None,
    )


def _within_attempt(attempt: AttemptRecord, t: int) -> int:
    return min(max(t, attempt.begin), attempt.end)


def _without_ranks(attempt: AttemptRecord, group: str) -> list[Segment]:
    """Return the timeline of an attempt without journals of ranks, from the launcher's."""
    spawned = attempt.begin if attempt.launch.spawned is None else attempt.launch.spawned
    spawned = min(max(spawned, attempt.begin), attempt.end)
    return join(
        [
            Segment(attempt.begin, spawned, f"{group}.launcher_init"),
            Segment(spawned, attempt.end, UNKNOWN),
        ]
    )
