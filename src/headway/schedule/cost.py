"""The price of an eviction: accelerator-seconds that are lost if a run is evicted now."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headway.ledger import price
from headway.ledger.durable import durable
from headway.ledger.leaves import DOWNTIME, EFFECTIVE, LOST, group
from headway.ledger.model import NS, Ledger
from headway.ledger.publish import accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a run would lose, and what that is made of; all but the two counts in seconds."""

    accelerators: int
    unsaved: float  # since the newest durable checkpoint, or since the attempt began
    save: float | None  # until a checkpoint is durable, 95th percentile; None: it never saved
    recover: float  # from an interruption to training again
    preemptions: int  # that it had before
    lost: float  # accelerator-seconds


def lost(
    held: int,
    unsaved: float,
    recover: float,
    *,
    save: float | None = None,
    grace: float = 0.0,
    preemptions: int = 0,
    repeat: float = 0.0,
) -> float:
    """Accelerator-seconds that are lost if a run on `held` accelerators is evicted now.

    With `grace` seconds of notice a run that saves in time loses no more than the save.
    Each earlier preemption adds `repeat` seconds, so that not always the same run is evicted.
    """
    if save is not None and save <= grace and save < unsaved:
        unsaved = save
    return held * (unsaved + recover + repeat * preemptions)


def from_run(path: str | os.PathLike[str], *, grace: float = 0.0, repeat: float = 0.0) -> Price:
    """The price of a run on disk, also while it is going on."""
    from headway.ledger.run import load

    return of_ledger(load(path).ledger, grace=grace, repeat=repeat)


def of_told(told: price.Told, *, grace: float = 0.0, repeat: float = 0.0) -> Price:
    """The price that the launcher of a run tells, as it is by now."""
    return Price(
        accelerators=told.accelerators,
        unsaved=told.unsaved,
        save=told.save,
        recover=told.recover,
        preemptions=told.preemptions,
        lost=lost(
            told.accelerators,
            told.unsaved,
            told.recover,
            save=told.save,
            grace=grace,
            preemptions=told.preemptions,
            repeat=repeat,
        ),
    )


def of_ledger(ledger: Ledger, *, grace: float = 0.0, repeat: float = 0.0) -> Price:
    """The price at the end of what the ledger has seen."""
    held, since = accelerators(ledger), _since(ledger)
    save, recover = _save(ledger), _recover(ledger)
    before = sum(attempt.outcome == "preempted" for attempt in ledger.attempts)
    unsaved = (ledger.wall - since) / NS
    return Price(
        accelerators=held,
        unsaved=unsaved,
        save=save,
        recover=recover,
        preemptions=before,
        lost=lost(
            held,
            unsaved,
            recover,
            save=save,
            grace=grace,
            preemptions=before,
            repeat=repeat,
        ),
    )


def _since(ledger: Ledger) -> int:
    """When the newest checkpoint that is durable was taken; silence counts from the start."""
    if not ledger.attempts:
        return ledger.wall
    last = ledger.attempts[-1]
    return max(
        (start for start, end in _saves(ledger, last.index) if end <= ledger.wall),
        default=last.start,
    )


def _saves(ledger: Ledger, attempt: int | None = None) -> list[tuple[int, int]]:
    """When each save began, and when the last rank had it on disk."""
    found = durable(ledger.saved, ledger.checkpoints)
    return [(one.taken, one.at) for one in found if attempt is None or one.attempt == attempt]


def _save(ledger: Ledger) -> float | None:
    took = [(end - start) / NS for start, end in _saves(ledger)]
    return percentile(took, 0.95) if took else None


def _recover(ledger: Ledger) -> float:
    """As measured, while it held accelerators; before the first interruption, as the start took."""
    times: list[int] = []
    spent: int | None = None  # of the interruption that is not over yet
    for segment in ledger.segments:
        if segment.leaf in (EFFECTIVE, LOST):
            times += [] if spent is None else [spent]
            spent = None
        elif spent is not None or group(segment.leaf) == "recover":
            # Between two attempts the accelerators may be somebody else's.
            held = segment.end - segment.start if segment.leaf != DOWNTIME else 0
            spent = (spent or 0) + held
    if times:
        return statistics.median(times) / NS
    return (ledger.time_to_start or 0) / NS


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
