"""Saves that one could resume from, whoever told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.ledger.model import Checkpoint, Saved


@dataclass(frozen=True, slots=True)
class Durable:
    """One such save, over all ranks; times in ns."""

    attempt: int
    step: int
    taken: int
    at: int  # the last rank had it on disk


def durable(saved: Sequence[Saved], checkpoints: Sequence[Checkpoint]) -> list[Durable]:
    """Files of one step together; a Checkpointer tells itself what became of its saves."""
    found = [
        Durable(one.attempt, one.step, one.at - one.durable, one.at)
        for one in saved
        if one.level == "disk" and not one.error
    ]
    files: dict[tuple[int, int], Durable] = {}
    for save in checkpoints:
        if save.told or save.unwritten:
            continue
        key, end = (save.attempt, save.step), save.end if save.durable is None else save.durable
        old = files.get(key, Durable(*key, save.start, end))
        files[key] = Durable(*key, min(old.taken, save.start), max(old.at, end))
    return [*found, *files.values()]
