"""The graph of declared startup stages: its critical path, and the least time it can take.

See headway/startup/stages.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.ledger.model import StageGraph, StageRow
from headway.ledger.record import AttemptRecord, RankRecord


def stage_graphs(drafts: Sequence[AttemptRecord], zero: int) -> tuple[StageGraph, ...]:
    """One for each attempt: of the rank whose stages were done last."""
    found = []
    for index, draft in enumerate(drafts):
        ranks = [one for life in draft.lives if (one := _graph(index, life, zero)) is not None]
        if ranks:
            found.append(max(ranks, key=lambda graph: graph.end))
    return tuple(found)


def _graph(index: int, life: RankRecord, zero: int) -> StageGraph | None:
    told = next(life.journal.named("stages"), {}).get("stages")
    rows = [_row(one, life.shift - zero) for one in told] if isinstance(told, list) else []
    known = [row for row in rows if row is not None]
    if not known or len(known) != len(rows):
        return None
    took = {row.name: row.end - row.start for row in known}
    path = critical_path({row.name: row.needs for row in known}, took)
    main = sum(took[row.name] for row in known if row.where == "main")
    return StageGraph(
        attempt=index,
        rank=life.rank,
        rows=tuple(known),
        critical=tuple(path),
        bound=max(sum(took[name] for name in path), main),
    )


def _row(told: Any, shift: int) -> StageRow | None:
    if not isinstance(told, list) or len(told) != 5:
        return None
    name, where, needs, start, end = told
    if type(start) is not int or type(end) is not int or not isinstance(needs, list):
        return None
    return StageRow(
        name=str(name),
        where=str(where),
        needs=tuple(map(str, needs)),
        start=start + shift,
        end=max(end, start) + shift,
    )


def critical_path(needs: Mapping[str, Sequence[str]], took: Mapping[str, int]) -> list[str]:
    """The chain of stages that takes longest: no order can be quicker than it."""
    best: dict[str, tuple[int, list[str]]] = {}
    for name in needs:  # each comes after what it needs
        before = [best[need] for need in needs[name] if need in best]
        length, path = max(before, key=lambda one: one[0], default=(0, []))
        best[name] = (length + took[name], [*path, name])
    return max(best.values(), key=lambda one: one[0], default=(0, []))[1]
