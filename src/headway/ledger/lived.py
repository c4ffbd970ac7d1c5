"""An attempt with the accounts of its ranks, merged into one."""

from __future__ import annotations

from dataclasses import dataclass

from headway.ledger import timeline
from headway.ledger.attempts import AttemptRecord
from headway.ledger.leaves import UNKNOWN
from headway.ledger.life import AttemptEnd
from headway.ledger.model import Segment
from headway.ledger.rank import RankAccount, account_rank

# A rank in one of these stands in a collective and waits for the others.
COLLECTIVE_WAIT = frozenset({"start.process_group_init", "recover.process_group_init"})


@dataclass(frozen=True, slots=True)
class AttemptTimeline:
    """What became of one attempt."""

    lives: tuple[RankAccount, ...]
    trainers: tuple[RankAccount, ...]
    segments: tuple[Segment, ...]
    progress_until: int  # the last sign of progress
    ready: int | None


def account_attempt(index: int, draft: AttemptRecord, zero: int) -> AttemptTimeline:
    """Account for every rank of an attempt, and for the attempt as a whole."""
    group = "recover" if draft.recovers else "start"
    raised = min((t for life in draft.lives if (t := life.raised) is not None), default=None)
    fate = AttemptEnd(
        draft.begin, draft.end, group, draft.outcome, draft.told_to_stop, zero, raised
    )
    trainers = draft.trainers()
    accounts = {id(life): account_rank(life, fate, index) for life in draft.lives}
    merged = [accounts[id(life)] for life in trainers]
    if merged:
        timelines = [m.segments for m in merged if m.segments]
        segments = timeline.merge_ranks(timelines, COLLECTIVE_WAIT) if timelines else []
    else:
        segments = _without_ranks(draft, group)
    steps = [life.last_step_end for life in trainers if life.last_step_end is not None]
    signs = [life.last_sign for life in draft.lives]
    ready = [m.ready for m in merged if m.ready is not None]
    return AttemptTimeline(
        lives=tuple(accounts.values()),
        trainers=tuple(merged),
        segments=tuple(segments),
        progress_until=_within_attempt(draft, max(steps or signs or [draft.begin])),
        ready=_within_attempt(draft, max(ready)) if ready and len(ready) == len(merged) else None,
    )


def _within_attempt(draft: AttemptRecord, t: int) -> int:
    return min(max(t, draft.begin), draft.end)


def _without_ranks(draft: AttemptRecord, group: str) -> list[Segment]:
    """No rank left a journal: what the launcher did is known, and nothing else."""
    spawned = draft.begin if draft.launch.spawned is None else draft.launch.spawned
    spawned = min(max(spawned, draft.begin), draft.end)
    return timeline.join(
        [
            Segment(draft.begin, spawned, f"{group}.launcher_init"),
            Segment(spawned, draft.end, UNKNOWN),
        ]
    )
