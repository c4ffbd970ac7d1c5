"""What an eviction costs: the accelerator-seconds that are lost if a run is evicted now.

The launcher writes it into the journal while a run goes on, and the ledger has it at the end of
what was recorded. Both call these functions, so schedulers compare runs by one definition.
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
    repeat: float = 0.0,
) -> float:
    """Accelerator-seconds that are lost if a run is evicted now; the arguments are in seconds.

    With `grace` seconds of notice a run that saves in time loses no more than the save.
    Each earlier preemption adds `repeat` seconds, so that not always the same run is evicted.
    """
    if save is not None and save <= grace and save < unsaved:
        unsaved = save
    return accelerators * (unsaved + recover + repeat * preemptions)


def save_time(durations: Sequence[float]) -> float | None:
    """Until a checkpoint is durable; of the saves of the newest attempt that made one durable."""
    return percentile(durations, 0.95) if durations else None


def recovery_time(recoveries: Sequence[float], start: float) -> float:
    """How long the run would hold accelerators again before it trains.

    `recoveries` are those that it had: from the begin of the attempt after an interruption to
    training, over as many attempts as that took. What came before is not the restart's: until
    the death was noticed, and until the next attempt began. The `start` of the run stands for
    them until there is one.
    """
    return statistics.median(recoveries) if recoveries else start


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCost:
    """What a run would lose, and what that is made of; all but the two counts in seconds."""

    accelerators: int
    unsaved: float  # since the newest durable checkpoint, or since the attempt began
    save: float | None  # until a checkpoint is durable, 95th percentile; None: it never saved
    recover: float  # from an interruption to training again
    preemptions: int  # that it had before
    lost: float  # accelerator-seconds


@dataclass(frozen=True, kw_only=True)
class CostReport:
    """A run as it stands, by its launcher; seconds."""

    run: str
    host: str  # of the launcher that speaks
    job: str | None  # of the scheduler
    over: bool  # it has ended, or its launcher was killed
    accelerators: int
    unsaved: float  # since the newest durable checkpoint, or since the attempt began
    saved: bool  # the attempt has such a checkpoint
    save: float | None  # until one is durable, 95th percentile
    recover: float
    preemptions: int
