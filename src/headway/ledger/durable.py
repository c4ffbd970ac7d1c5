"""Saves that one could resume from, whoever told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.ledger.model import Checkpoint, CheckpointOutcome


@dataclass(frozen=True, slots=True)
class DurableSave:
    """One such save, over all ranks; times in ns."""

    attempt: int
    step: int
    taken: int
    at: int  # the last rank had it on disk


def durable_saves(
    saved: Sequence[CheckpointOutcome], checkpoints: Sequence[Checkpoint]
) -> list[DurableSave]:
    """Files of one step together; a Checkpointer tells itself what became of its saves."""
    found = [
        DurableSave(one.attempt, one.step, one.at - one.durable, one.at)
        for one in saved
        if one.level == "disk" and not one.error
    ]
    files: dict[tuple[int, int], DurableSave] = {}
    for save in checkpoints:
        if save.told or save.unwritten:
            continue
        key, end = (save.attempt, save.step), save.end if save.durable is None else save.durable
        old = files.get(key, DurableSave(*key, save.start, end))
        files[key] = DurableSave(*key, min(old.taken, save.start), max(old.at, end))
    return [*found, *files.values()]
