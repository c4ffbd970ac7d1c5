"""The cost of an eviction: accelerator-seconds that are lost if a run is evicted now.

The launcher records it in the journal while a run is active; the ledger computes it for the end of
the record. Both call these functions, so that schedulers compare runs by one definition.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headway.stats import percentile


def eviction_cost(
    accelerators: int,
    unsaved: float,
    recover: float,
    *,
    save: float | None = None,
    grace: float = 0.0,
    preemptions: int = 0,
    repeat_penalty_s: float = 0.0,
) -> float:
    """Return the accelerator-seconds lost if a run is evicted now; arguments are in seconds.

    With `grace` seconds of notice, a run that saves in time loses no more than the save.
    Each earlier preemption adds `repeat` seconds, so that the same run is not always evicted.
    """
    if save is not None and save <= grace and save < unsaved:
        unsaved = save
    return accelerators * (unsaved + recover + repeat_penalty_s * preemptions)


def save_time(durations: Sequence[float]) -> float | None:
    """Return the 95th percentile of the time until a checkpoint is durable.

    `durations` are those of the newest attempt that has a durable checkpoint.
    """
    return percentile(durations, 0.95) if durations else None


def recovery_time(recoveries: Sequence[float], start: float) -> float:
    """Return how long the run would hold accelerators again before it trains.

    `recoveries` are the earlier ones of the run: from the start of the attempt after an
    interruption to training, over as many attempts as that took. The time until the death was
    noticed and until the next attempt started is not part of it. Without recoveries, the result
    is the `start` of the run.
    """
    return statistics.median(recoveries) if recoveries else start


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCost:
    """What a run would lose, and the parts of that; all but the two counts in seconds."""

    accelerators: int
    unsaved: float  # since the newest durable checkpoint, or since the attempt began
    save: float | None  # until a checkpoint is durable, 95th percentile; None: it never saved
    recover: float  # from an interruption to training again
    preemptions: int  # earlier ones of the run
    lost: float  # accelerator-seconds


@dataclass(frozen=True, kw_only=True)
class CostReport:
    """The current state of a run, as its launcher reported it; times in seconds."""

    run: str
    host: str  # of the launcher that reported
    job: str | None  # id at the scheduler
    over: bool  # the run has ended, or its launcher was killed
    accelerators: int
    unsaved: float  # since the newest durable checkpoint, or since the attempt began
    saved: bool  # the attempt has such a checkpoint
    save: float | None  # until one is durable, 95th percentile
    recover: float
    preemptions: int
