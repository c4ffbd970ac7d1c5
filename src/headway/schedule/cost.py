"""Eviction cost of a run, from its ledger or from what its launcher reported."""

from __future__ import annotations

import os

from headway.eviction_cost import (
    CostReport,
    EvictionCost,
    eviction_cost,
    recovery_time,
    save_time,
)
from headway.ledger.buckets import DETECTION, DOWNTIME, EFFECTIVE, HANG, LOST, group
from headway.ledger.model import Ledger
from headway.ledger.publish import accelerators_held
from headway.ledger.resume import durable_saves
from headway.units import NS


def from_run(
    path: str | os.PathLike[str], *, grace: float = 0.0, repeat_penalty_s: float = 0.0
) -> EvictionCost:
    """The eviction cost of a run on disk, which may still be active."""
    from headway.run import load

    return from_ledger(load(path).ledger, grace=grace, repeat_penalty_s=repeat_penalty_s)


def from_cost_report(
    report: CostReport, *, grace: float = 0.0, repeat_penalty_s: float = 0.0
) -> EvictionCost:
    """The current eviction cost of a run, as reported by its launcher."""
    return EvictionCost(
        accelerators=report.accelerators,
        unsaved=report.unsaved,
        save=report.save,
        recover=report.recover,
        preemptions=report.preemptions,
        lost=eviction_cost(
            report.accelerators,
            report.unsaved,
            report.recover,
            save=report.save,
            grace=grace,
            preemptions=report.preemptions,
            repeat_penalty_s=repeat_penalty_s,
        ),
    )


def from_ledger(
    ledger: Ledger, *, grace: float = 0.0, repeat_penalty_s: float = 0.0
) -> EvictionCost:
    """The eviction cost at the end of the recording."""
    accelerators, last_save = accelerators_held(ledger), _last_durable_save(ledger)
    save, recover = _save_time(ledger), _recovery_time(ledger)
    preemptions = sum(attempt.outcome == "preempted" for attempt in ledger.attempts)
    unsaved = (ledger.wall - last_save) / NS
    return EvictionCost(
        accelerators=accelerators,
        unsaved=unsaved,
        save=save,
        recover=recover,
        preemptions=preemptions,
        lost=eviction_cost(
            accelerators,
            unsaved,
            recover,
            save=save,
            grace=grace,
            preemptions=preemptions,
            repeat_penalty_s=repeat_penalty_s,
        ),
    )


def _last_durable_save(ledger: Ledger) -> int:
    """When the newest durable checkpoint was taken; else the start of the attempt."""
    if not ledger.attempts:
        return ledger.wall
    last = ledger.attempts[-1]
    return max(
        (
            save.captured_at
            for save in durable_saves(ledger.outcomes, ledger.checkpoints)
            if save.attempt == last.index and save.at <= ledger.wall
        ),
        default=last.start,
    )


def _save_time(ledger: Ledger) -> float | None:
    saves = durable_saves(ledger.outcomes, ledger.checkpoints)
    last_attempt = max((save.attempt for save in saves), default=0)
    return save_time(
        [(save.at - save.captured_at) / NS for save in saves if save.attempt == last_attempt]
    )


def _recovery_time(ledger: Ledger) -> float:
    times: list[int] = []
    recovering: int | None = None  # time so far of a recovery that has not finished
    for segment in ledger.segments:
        if segment.bucket in (EFFECTIVE, LOST):
            times += [] if recovering is None else [recovering]
            recovering = None
        elif recovering is not None or group(segment.bucket) == "recover":
            restarts = segment.bucket not in (DETECTION, DOWNTIME, HANG)
            recovering = (recovering or 0) + (segment.end - segment.start if restarts else 0)
    return recovery_time([time / NS for time in times], (ledger.time_to_start or 0) / NS)
