"""The figures beside the buckets: times to start and to recover, saves, gaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headway.ledger.attempts import AttemptRecord, Launch, UncountedTime
from headway.ledger.lived import AttemptTimeline
from headway.ledger.model import Checkpoint, Gap, Recovery
from headway.ledger.saves import merge_files


def _time_to_start(lived: Sequence[AttemptTimeline], zero: int) -> int | None:
    """Allocation to the first training, over as many attempts as that took."""
    ready = next((life.ready for life in lived if life.ready is not None), None)
    return None if ready is None else ready - zero


def _recoveries(
    drafts: Sequence[AttemptRecord], lived: Sequence[AttemptTimeline]
) -> tuple[Recovery, ...]:
    """Of each interruption the way from the last sign of progress to training again.

    Attempts that did not come to train extend the recovery that they lie in. What was interrupted
    before anything was trained lies in the time to start.
    """
    out = []
    since: int | None = None  # the attempt that was interrupted
    for index, (draft, life) in enumerate(zip(drafts, lived, strict=True)):
        if life.ready is None:
            continue
        if since is not None:
            out.append(Recovery(since, index, max(life.ready - lived[since].progress_until, 0)))
        since = index if draft.outcome in ("failed", "preempted") else None
    return tuple(out)


def _hidden(lived: Sequence[AttemptTimeline]) -> dict[str, int]:
    """Per attempt the rank that hid most of each leaf; ranks hide in parallel."""
    out: dict[str, int] = {}
    for lives in lived:
        most: dict[str, int] = {}
        for life in lives.trainers:
            for leaf, ns in life.hidden.items():
                most[leaf] = max(most.get(leaf, 0), ns)
        for leaf, ns in most.items():
            out[leaf] = out.get(leaf, 0) + ns
    return out


def _queue_capacity(launches: Sequence[Launch], outside: Sequence[UncountedTime]) -> int | None:
    """How long the run waited for capacity, as the scheduler's records tell it."""
    later = {one.launch: one.queued for one in outside}
    waits = [
        later.get(x.name, 0)
        if place
        else (x.allocated if x.allocated is not None else x.begin) - x.queued
        for place, x in enumerate(launches)
        if x.queued is not None
    ]
    return sum(max(wait, 0) for wait in waits) if waits else None


def count_saves(checkpoints: Sequence[Checkpoint]) -> tuple[int, int | None]:
    """How many saves (files of one step are one), and the mean time between two of an attempt."""
    made = merge_files(checkpoints)
    gaps = [
        after.at - before.at for before, after in pairwise(made) if before.attempt == after.attempt
    ]
    return len(made), sum(gaps) // len(gaps) if gaps else None


def longest_gaps(lived: Sequence[AttemptTimeline], zero: int) -> tuple[Gap, ...]:
    """The longest stretches that no span covers."""
    found = [gap for lives in lived for life in lives.trainers for gap in life.gaps]
    found.sort(key=lambda g: (g.start - g.end, g.attempt, g.rank))
    return tuple(
        Gap(g.attempt, g.rank, g.start - zero, g.end - zero, g.after, g.before) for g in found[:20]
    )


def _batches_per_step(drafts: Sequence[AttemptRecord]) -> float | None:
    """Above 1 where gradients are accumulated; None when no loader was seen."""
    batches = steps = 0
    for draft in drafts:
        for life in draft.trainers():
            batches += sum(life.journal.windows.batches)
            steps += life.steps
    return round(batches / steps, 2) if steps and batches else None
