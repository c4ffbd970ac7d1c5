"""The graph of declared startup stages: its critical path, and the minimum time of a start.

See headway/startup/stages.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.ledger.model import StageGraph, StageRow
from headway.ledger.record import AttemptRecord, RankRecord


def stage_graphs(attempts: Sequence[AttemptRecord], zero: int) -> tuple[StageGraph, ...]:
    """Return a graph per attempt, of the rank whose stages ended last."""
    graphs = []
    for index, attempt in enumerate(attempts):
        by_rank = [_graph(index, rank, zero) for rank in attempt.ranks]
        known = [graph for graph in by_rank if graph is not None]
        if known:
            graphs.append(max(known, key=lambda graph: graph.end))
    return tuple(graphs)


def _graph(index: int, rank: RankRecord, zero: int) -> StageGraph | None:
    declared = next(rank.journal.named("stages"), {}).get("stages")
    rows = (
        [_row(fields, rank.shift - zero) for fields in declared]
        if isinstance(declared, list)
        else []
    )
    known = [row for row in rows if row is not None]
    if not known or len(known) != len(rows):
        return None
    took = {row.name: row.end - row.start for row in known}
    path = critical_path({row.name: row.needs for row in known}, took)
    main = sum(took[row.name] for row in known if row.where == "main")
    return StageGraph(
        attempt=index,
        rank=rank.rank,
        rows=tuple(known),
        critical=tuple(path),
        bound=max(sum(took[name] for name in path), main),
    )


def _row(fields: Any, shift: int) -> StageRow | None:
    if not isinstance(fields, list) or len(fields) != 5:
        return None
    name, where, needs, start, end = fields
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
    """Return the longest chain of dependent stages: no order of the stages is faster."""
    best: dict[str, tuple[int, list[str]]] = {}
    for name in needs:  # a stage follows the stages that it needs
        before = [best[need] for need in needs[name] if need in best]
        length, path = max(before, key=lambda entry: entry[0], default=(0, []))
        best[name] = (length + took[name], [*path, name])
    return max(best.values(), key=lambda entry: entry[0], default=(0, []))[1]
