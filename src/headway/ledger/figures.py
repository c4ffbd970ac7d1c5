"""The figures beside the buckets: times to start and to recover, saves, gaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from headway.ledger.attempts import Draft, Launch
from headway.ledger.lived import Lived
from headway.ledger.model import Checkpoint, Gap


def time_to_start(lived: Sequence[Lived], zero: int) -> int | None:
    """Allocation to the first training, over as many attempts as that took."""
    ready = next((life.ready for life in lived if life.ready is not None), None)
    return None if ready is None else ready - zero


def times_to_recover(lived: Sequence[Lived]) -> tuple[int, ...]:
    """One per interruption: from the last sign of progress to training again.

    An attempt that failed before it trained ends one recovery and begins the next, so that no
    second is counted in two of them. An interruption after which nothing trained has none.
    """
    out = []
    trained = [index for index, life in enumerate(lived) if life.ready is not None]
    for index in range(max(trained, default=0)):
        after = lived[index + 1]
        again = after.ready if after.ready is not None else after.progress_until
        out.append(max(again - lived[index].progress_until, 0))
    return tuple(out)


def hidden(lived: Sequence[Lived]) -> dict[str, int]:
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


def queued(launches: Sequence[Launch]) -> int | None:
    """How long the run stood in the scheduler's queue, over all its launches."""
    waits = [
        (x.allocated if x.allocated is not None else x.begin) - x.queued
        for x in launches
        if x.queued is not None
    ]
    return sum(max(wait, 0) for wait in waits) if waits else None


def save_rhythm(saves: Sequence[Checkpoint]) -> tuple[int, int | None]:
    """How many checkpoints (files of one step are one), and the mean time between two."""
    first: dict[tuple[int, int], int] = {}
    for save in saves:
        key = (save.attempt, save.step)
        first[key] = min(first.get(key, save.start), save.start)
    gaps = []
    ordered = sorted(first.items())
    for (before, start), (after, later) in pairwise(ordered):
        if before[0] == after[0]:
            gaps.append(later - start)
    return len(first), sum(gaps) // len(gaps) if gaps else None


def recommended_interval(
    buckets: Mapping[str, int], saves: int, failures: int, wall: int
) -> int | None:
    """Young's interval: sqrt(2 x blocking per save x mean time between failures)."""
    blocked = buckets.get("waste.checkpoint_block", 0)
    if not saves or not failures or not blocked:
        return None
    return math.isqrt(2 * (blocked // saves) * (wall // failures))


def gaps(lived: Sequence[Lived], zero: int) -> tuple[Gap, ...]:
    """The longest stretches that no span covers."""
    found = [gap for lives in lived for life in lives.trainers for gap in life.gaps]
    found.sort(key=lambda g: (g.start - g.end, g.attempt, g.rank))
    return tuple(
        Gap(g.attempt, g.rank, g.start - zero, g.end - zero, g.after, g.before) for g in found[:20]
    )


def batches_per_step(drafts: Sequence[Draft]) -> float | None:
    """Above 1 where gradients are accumulated; None when no loader was seen."""
    batches = steps = 0
    for draft in drafts:
        for life in draft.trainers():
            batches += sum(life.journal.windows.batches)
            steps += life.steps
    return round(batches / steps, 2) if steps and batches else None
