"""The price of an eviction: accelerator-seconds that are lost if a run is evicted now."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headway.eviction_cost import lost, recovery_time, save_time
from headway.ledger import price
from headway.ledger.durable import durable
from headway.ledger.leaves import DETECTION, DOWNTIME, EFFECTIVE, HANG, LOST, group
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
        (
            save.taken
            for save in durable(ledger.saved, ledger.checkpoints)
            if save.attempt == last.index and save.at <= ledger.wall
        ),
        default=last.start,
    )


def _save(ledger: Ledger) -> float | None:
    saves = durable(ledger.saved, ledger.checkpoints)
    newest = max((one.attempt for one in saves), default=0)
    return save_time([(one.at - one.taken) / NS for one in saves if one.attempt == newest])


def _recover(ledger: Ledger) -> float:
    times: list[int] = []
    spent: int | None = None  # of the interruption that is not over yet
    for segment in ledger.segments:
        if segment.leaf in (EFFECTIVE, LOST):
            times += [] if spent is None else [spent]
            spent = None
        elif spent is not None or group(segment.leaf) == "recover":
            restarts = segment.leaf not in (DETECTION, DOWNTIME, HANG)
            spent = (spent or 0) + (segment.end - segment.start if restarts else 0)
    return recovery_time([time / NS for time in times], (ledger.time_to_start or 0) / NS)
