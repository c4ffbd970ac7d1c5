"""Eviction cost of a run, from its ledger or from what its launcher reported."""

from __future__ import annotations

import os

from headway import eviction_cost as headway_eviction_cost
from headway.eviction_cost import EvictionCost, eviction_cost, recovery_time, save_time
from headway.ledger.buckets import DETECTION, DOWNTIME, EFFECTIVE, HANG, LOST, group
from headway.ledger.model import Ledger
from headway.ledger.publish import accelerators_held
from headway.ledger.resume import durable_saves
from headway.units import NS


def from_run(
    path: str | os.PathLike[str], *, grace: float = 0.0, repeat: float = 0.0
) -> EvictionCost:
    """The price of a run on disk, also while it is going on."""
    from headway.run import load

    return from_ledger(load(path).ledger, grace=grace, repeat=repeat)


def from_cost_report(
    told: headway_eviction_cost.CostReport, *, grace: float = 0.0, repeat: float = 0.0
) -> EvictionCost:
    """The price that the launcher of a run tells, as it is by now."""
    return EvictionCost(
        accelerators=told.accelerators,
        unsaved=told.unsaved,
        save=told.save,
        recover=told.recover,
        preemptions=told.preemptions,
        lost=eviction_cost(
            told.accelerators,
            told.unsaved,
            told.recover,
            save=told.save,
            grace=grace,
            preemptions=told.preemptions,
            repeat=repeat,
        ),
    )


def from_ledger(ledger: Ledger, *, grace: float = 0.0, repeat: float = 0.0) -> EvictionCost:
    """The price at the end of what the ledger has seen."""
    held, since = accelerators_held(ledger), _last_durable_save(ledger)
    save, recover = _save_time(ledger), _recovery_time(ledger)
    before = sum(attempt.outcome == "preempted" for attempt in ledger.attempts)
    unsaved = (ledger.wall - since) / NS
    return EvictionCost(
        accelerators=held,
        unsaved=unsaved,
        save=save,
        recover=recover,
        preemptions=before,
        lost=eviction_cost(
            held,
            unsaved,
            recover,
            save=save,
            grace=grace,
            preemptions=before,
            repeat=repeat,
        ),
    )


def _last_durable_save(ledger: Ledger) -> int:
    """When the newest checkpoint that is durable was taken; silence counts from the start."""
    if not ledger.attempts:
        return ledger.wall
    last = ledger.attempts[-1]
    return max(
        (
            save.taken
            for save in durable_saves(ledger.saved, ledger.checkpoints)
            if save.attempt == last.index and save.at <= ledger.wall
        ),
        default=last.start,
    )


def _save_time(ledger: Ledger) -> float | None:
    saves = durable_saves(ledger.saved, ledger.checkpoints)
    newest = max((one.attempt for one in saves), default=0)
    return save_time([(one.at - one.taken) / NS for one in saves if one.attempt == newest])


def _recovery_time(ledger: Ledger) -> float:
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
