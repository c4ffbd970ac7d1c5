"""The comparison in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.schedule.show.columns import (
    MAIN,
    describe,
    format_cell,
    format_change,
    measured_columns,
)
from headway.schedule.simulate.compare import OBJECTIVES, Comparison

TABLE_WIDTH = 130  # narrower terminals wrap it: a cut figure is a wrong one
CHANGE_FIGURES = ("preemptions", "lost_h", "lost_and_recover_h", "queue_min", "in_quota_wait_s")


def render_table(compared: Comparison) -> RenderableType:
    """The figures, what changes against the first policy, and who is on the front."""
    lines: list[RenderableType] = [Text(describe(compared)), Text(), _figures(compared)]
    if len(compared.names) > 1:
        lines += [Text(), Text(f"against {compared.names[0]}, by seed"), _changes(compared)]
        best = ", ".join(compared.names[place] for place in compared.front(*OBJECTIVES))
        lines += [Text(), Text(f"none better in preemptions, waste and queueing at once: {best}")]
    return Group(*lines)


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _figures(compared: Comparison) -> Table:
    made = _plain_table()
    made.add_column("policy", no_wrap=True)
    columns = measured_columns(compared, MAIN)
    for column in columns:
        made.add_column(column.heading, justify="right", no_wrap=True)
    for place, name in enumerate(compared.names):
        made.add_row(name, *(format_cell(one, compared.of(place, one.figure)) for one in columns))
    return made


def _changes(compared: Comparison) -> Table:
    made = _plain_table()
    made.add_column("policy", no_wrap=True)
    for heading in ("preemptions", "lost h", "lost and recover h", "queue", "in-quota wait"):
        made.add_column(heading, justify="right", no_wrap=True)
    for place in range(1, len(compared.names)):
        cells = (format_change(compared.change(place, figure)) for figure in CHANGE_FIGURES)
        made.add_row(compared.names[place], *cells)
    return made
