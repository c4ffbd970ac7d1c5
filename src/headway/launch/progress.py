"""Durable checkpoints of the ranks, and the step that the job has reached over its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headway.journal.saves import Event, Lineage
from headway.launch.rank_tail import RankTail
from headway.units import NS

DurableSave = tuple[int, int]  # when the state was captured, and when it was durable


def durable_saves(ranks: Iterable[RankTail]) -> list[DurableSave]:
    """The checkpoints of these ranks that a job could resume from; files of a step count as one."""
    saves: dict[tuple[str, object], DurableSave] = {}
    for rank in ranks:
        for save in rank.saves:
            if "level" in save or save.get("part") is True:
                continue  # a Checkpointer reports the outcome itself
            _merge_save(saves, ("span", save.get("step")), save["t"], save["end"])
        for outcome in rank.outcomes:
            if outcome.get("level") == "disk" and not outcome.get("error"):
                took = round(float(outcome.get("durable_s") or 0.0) * NS)
                _merge_save(saves, ("told", outcome.get("step")), outcome["t"] - took, outcome["t"])
    return sorted(saves.values(), key=lambda save: save[1])


def _merge_save(
    saves: dict[tuple[str, object], DurableSave], key: tuple[str, object], *times: int
) -> None:
    start, end = saves.get(key, times)
    saves[key] = (min(start, times[0]), max(end, times[1]))


class Progress:
    """Matches loads with the saves of earlier attempts as the ledger does.

    Unknown values are None: a job may save and load in ways that are not recorded.
    """

    def __init__(self) -> None:
        self.durable = 0  # the highest step that was ever saved
        self._lineage = Lineage()
        self._attempts = 0

    def conclude(self, ranks: Sequence[RankTail]) -> tuple[int | None, bool | None]:
        """The step that these ranks reached, and whether they added a durable one."""
        steps_made = max((rank.pulse().steps for rank in ranks), default=0)
        saves = [(number, save) for number, rank in enumerate(ranks) for save in rank.saves]
        loads = [(number, load) for number, rank in enumerate(ranks) for load in rank.loads]
        start_steps = [
            rank.declared_start_step for rank in ranks if rank.declared_start_step is not None
        ]
        stretches = self._lineage.add(
            self._attempts,
            [
                *(_lineage_event(number, save, save.get("step"), False) for number, save in saves),
                *(
                    _lineage_event(number, load, load.get("made"), True)._replace(
                        step=_restored_step(load)
                    )
                    for number, load in loads
                ),
            ],
            steps=steps_made,
            declared=min(start_steps, default=None),
            known=not self._lineage.saves and all(load.get("made") for _, load in loads),
        )
        self._attempts += 1
        added = False
        for number, save in saves:
            event = _lineage_event(number, save, save.get("step"), False)
            earlier = [stretch for stretch in stretches[1:] if stretch.at <= event.t]
            stretch = [stretches[0], *earlier][-1]
            step = stretch.step(event.steps_done) if stretch.known else None
            if event.steps_done and (step is None or step > self.durable):
                self.durable, added = max(self.durable, step or 0), True
        last = [stretches[0], *(s for s in stretches[1:] if s.steps_done < steps_made)][-1]
        step = last.step(steps_made) if last.known else None
        if steps_made and not self._lineage.saves:
            return step, None  # no save was recorded
        return step, added


def _restored_step(load: dict[str, Any]) -> int | None:
    """The step that a Checkpointer reports to have restored."""
    step = load.get("step")
    return step if load.get("ev") == "restored" and type(step) is int else None


def _lineage_event(rank: int, fields: dict[str, Any], steps_made: object, is_load: bool) -> Event:
    t = fields.get("t")
    return Event(
        t=t if type(t) is int else 0,
        rank=rank,
        steps_done=steps_made if type(steps_made) is int else 0,
        is_load=is_load,
        fields=fields,
    )
