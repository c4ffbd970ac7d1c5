"""Render a plan as one HTML file without scripts or network access."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headway import __version__
from headway.format import count
from headway.plan import view
from headway.plan.plan import Plan, PlanRow
from headway.stats import axis_ticks

_TEMPLATES: Final = Path(__file__).parent / "templates"
WIDTH, HEIGHT = 760.0, 360.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 90.0, 16.0, 44.0
TICK_SECONDS: Final = (
    1,
    5,
    15,
    60,
    300,
    900,
    1800,
    3600,
    7200,
    14400,
    43200,
    86400,
    259200,
    604800,
)
CEILING: Final = 4.0  # top of the plot as a multiple of the least wasted time


@dataclass(frozen=True, slots=True)
class Curve:
    """The curve of one row, and the position of its interval on it."""

    name: str
    line: str  # first-order approximation
    exact: str
    x: float
    y: float
    inside: bool
    hue: int
    samples: tuple[tuple[float, float, float], ...]  # x, y, half-width


@dataclass(frozen=True, slots=True)
class Plot:
    curves: tuple[Curve, ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]


def html_page(plan: Plan) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("plan.html").render(
        version=__version__,
        about=view.describe_job(plan),
        notes=view.plan_notes(plan),
        rows=plan.rows,
        plot=_plot([row for row in plan.rows if row.curve]),
        box=(WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM),
        seed=plan.seed,
        words=view,
        count=count,
    )


def _plot(rows: list[PlanRow]) -> Plot | None:
    if not rows:
        return None
    points = [point for row in rows for point in row.curve]
    low, high = min(p.interval for p in points), max(p.interval for p in points)
    top = CEILING * max(min(p.wasted for p in row.curve) for row in rows)

    def across(interval: float) -> float:
        share = math.log(interval / low) / math.log(high / low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(wasted: float) -> float:
        return HEIGHT - BOTTOM - wasted / top * (HEIGHT - TOP - BOTTOM)

    def line(pairs: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in pairs if y <= top)

    return Plot(
        curves=tuple(
            Curve(
                name=count(row.job.nodes, "node"),
                line=line([(point.interval, point.wasted) for point in row.curve]),
                exact=line([(point.interval, point.exact) for point in row.curve]),
                x=across(min(max(row.point_in_use.interval, low), high)),
                y=up(min(row.point_in_use.wasted, top)),
                inside=low <= row.point_in_use.interval <= high and row.point_in_use.wasted <= top,
                hue=round(210 + 360 * place / len(rows)) % 360,
                samples=tuple(
                    (across(sample.interval), up(sample.wasted), up(0) - up(sample.ci95))
                    for sample in row.simulated_points
                    if sample.wasted <= top
                ),
            )
            for place, row in enumerate(rows)
        ),
        ticks_x=tuple(
            (across(seconds), view.format_interval(seconds))
            for seconds in TICK_SECONDS
            if low <= seconds <= high
        ),
        ticks_y=tuple((up(value), f"{value:g} %") for value in axis_ticks(top)),
    )
