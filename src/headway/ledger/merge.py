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
    """The run's timeline from its ranks': all cover the same interval.

    An instant is effective only while every rank trains. Otherwise it belongs to the rank that
    holds the others up: of those that do not train, the one that comes last to training, or to
    the collective that they meet in before. A rank whose leaf is in `waiting` stands in such a
    collective for the others, and is asked last; one of which nothing is known is asked before
    those only. Of ranks that come back together, such as never, see `_TIES`.
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


# How much is known of it, when its rank is back, which leaf of a tie, minus the rank, the leaf.
_Claim = tuple[int, int, int, int, str]
_State = _Claim | None
_TIES = {HANG: 3, DETECTION: 1, DOWNTIME: 1, UNKNOWN: 0}  # any other leaf: 2


def _edges(
    rank: int, timeline: Sequence[Segment], waiting: frozenset[str]
) -> list[tuple[int, int, _State]]:
    """At which times a rank changes its state: None for training, else its claim."""
    edges: list[tuple[int, int, _State]] = []
    resumes_at = timeline[-1].end  # when this rank is where the others wait for it
    for segment in reversed(timeline):
        if segment.bucket == EFFECTIVE:
            edges.append((segment.start, rank, None))
            resumes_at = segment.start
        else:
            certainty = 0 if segment.bucket in waiting else 1 if segment.bucket == UNKNOWN else 2
            priority = (certainty, resumes_at, _TIES.get(segment.bucket, 2), -rank, segment.bucket)
            edges.append((segment.start, rank, priority))
            if segment.bucket in waiting:
                resumes_at = segment.start  # who comes last to the collective holds the others up
    edges.reverse()
    edges.append((timeline[-1].end, rank, None))
    return edges


# A rank in one of these stands in a collective and waits for the others.
COLLECTIVE_WAIT = frozenset({"start.process_group_init", "recover.process_group_init"})


@dataclass(frozen=True, slots=True)
class AttemptTimeline:
    """What became of one attempt."""

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
    """No rank left a journal: what the launcher did is known, and nothing else."""
    spawned = attempt.begin if attempt.launch.spawned is None else attempt.launch.spawned
    spawned = min(max(spawned, attempt.begin), attempt.end)
    return join(
        [
            Segment(attempt.begin, spawned, f"{group}.launcher_init"),
            Segment(spawned, attempt.end, UNKNOWN),
        ]
    )
