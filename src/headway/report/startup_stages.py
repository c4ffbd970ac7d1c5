"""The drawing of startup stages in the HTML report: a row per stage, over time, by lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from headway.format import duration, one_line
from headway.ledger.buckets import BUCKETS
from headway.ledger.model import Ledger, StageGraph, StageRow


def describe_stages(graph: StageGraph) -> str:
    """Describe a declared start: its time, the gain by overlap, and the lower bound."""
    saved = max(graph.one_by_one - graph.took, 0)
    text = f"took {duration(graph.took)}, {duration(saved)} less than sequentially; "
    text += f"lower bound {duration(graph.bound)}"
    chain = sum(row.end - row.start for row in graph.rows if row.name in graph.critical)
    if graph.bound > chain:
        text += ", the work of the main thread"
    excess = graph.took - graph.bound
    return f"{text} ({duration(excess)} less)" if excess > 0 else text


MAX_GRAPHS: Final = 5  # attempts
MAX_STAGES: Final = 100  # per attempt
MAX_LINES: Final = 500  # dependencies per attempt
DRAWING_WIDTH: Final = 1000  # in units of the view box, stretched to the page
ROW_HEIGHT: Final = 10  # in the same units
LANES: Final = {"main": "main thread", "thread": "threads", "process": "processes"}


@dataclass(frozen=True, slots=True)
class StageBar:
    """One stage; left and width in percent of the time from the first stage to the last."""

    place: int
    name: str
    bucket: int
    left: float
    width: float
    time: str
    critical: bool
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageLane:
    """The stages of one thread or process kind, under a heading."""

    name: str
    bars: tuple[StageBar, ...]


@dataclass(frozen=True, slots=True)
class DependencyLine:
    """A line from the end of a stage to the start of a stage that depends on it."""

    since: int
    until: int
    path: str
    critical: bool


@dataclass(frozen=True, slots=True)
class StageDrawing:
    """The drawing of one attempt's stages."""

    attempt: int
    rank: int
    text: str
    took: str
    bound: float  # in percent of the time from the first stage to the last
    lanes: tuple[StageLane, ...]
    lines: tuple[DependencyLine, ...]
    rows: int  # including headings
    stages: int


def draw_stages(ledger: Ledger) -> list[StageDrawing]:
    """Draw the stages of the first attempts."""
    return [_draw(graph) for graph in ledger.stages[:MAX_GRAPHS]]


def _draw(graph: StageGraph) -> StageDrawing:
    lanes = _lanes(graph.rows)
    drawn = [row for rows in lanes.values() for row in rows]
    places = {row.name: place for place, row in enumerate(drawn)}
    heights, height = {}, 0
    for rows in lanes.values():
        height += 1  # the heading
        for row in rows:
            heights[row.name] = height
            height += 1
    return StageDrawing(
        attempt=graph.attempt,
        rank=graph.rank,
        text=describe_stages(graph),
        took=duration(graph.took),
        bound=_share(graph, graph.bound),
        lanes=tuple(
            StageLane(name, tuple(_bar(graph, row, places[row.name]) for row in rows))
            for name, rows in lanes.items()
        ),
        lines=tuple(_lines(graph, drawn, places, heights)),
        rows=height,
        stages=len(graph.rows),
    )


def _lanes(rows: Sequence[StageRow]) -> dict[str, list[StageRow]]:
    """Return the stages by lane, the main thread first, in order of time."""
    limited = sorted(rows, key=lambda row: (row.start, row.end))[:MAX_STAGES]
    order = [*LANES, *dict.fromkeys(row.where for row in limited if row.where not in LANES)]
    by_lane = {where: [row for row in limited if row.where == where] for where in order}
    return {
        LANES.get(where) or one_line(where, 40): lane for where, lane in by_lane.items() if lane
    }


def _bar(graph: StageGraph, row: StageRow, place: int) -> StageBar:
    start = graph.end - graph.took
    critical = row.name in graph.critical
    needs = one_line(", ".join(row.needs), 300)
    words = [
        f"{duration(row.end - row.start)}, from {duration(row.start - start)} "
        f"to {duration(row.end - start)}",
        f"depends on {needs}" if needs else "no dependencies",
        *(["on the critical path"] if critical else []),
    ]
    return StageBar(
        place=place,
        name=one_line(row.name, 80),
        bucket=BUCKETS.index(_leaf(row.name, graph.attempt)),
        left=_share(graph, row.start - start),
        width=_share(graph, row.end - row.start),
        time=duration(row.end - row.start),
        critical=critical,
        words=tuple(words),
    )


def _leaf(name: str, attempt: int) -> str:
    """Return the bucket of a stage."""
    group = "recover" if attempt else "start"
    bucket = f"{group}.{name}"
    return bucket if bucket in BUCKETS else f"{group}.pre_train"


def _share(graph: StageGraph, ns: int) -> float:
    return min(100.0 * ns / graph.took, 100.0) if graph.took else 0.0


def _lines(
    graph: StageGraph,
    drawn: Sequence[StageRow],
    places: Mapping[str, int],
    heights: Mapping[str, int],
) -> Iterator[DependencyLine]:
    """Yield lines along the row of a dependency, then down to its user; the critical path first."""
    start = graph.end - graph.took
    rows = {row.name: row for row in drawn}
    path = set(pairwise(graph.critical))
    pairs = [(need, row.name) for row in drawn for need in dict.fromkeys(row.needs) if need in rows]
    pairs.sort(key=lambda pair: pair not in path)
    for need, name in pairs[:MAX_LINES]:
        done, used = (
            round(DRAWING_WIDTH / 100 * _share(graph, at - start))
            for at in (rows[need].end, rows[name].start)
        )
        from_y, to_y = (ROW_HEIGHT * heights[stage] + ROW_HEIGHT // 2 for stage in (need, name))
        yield DependencyLine(
            since=places[need],
            until=places[name],
            path=f"M{done} {from_y}H{used}V{to_y}",
            critical=(need, name) in path,
        )
