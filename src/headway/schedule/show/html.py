"""The comparison as one HTML file: no network, no script."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headway import __version__
from headway.schedule.show.columns import (
    TABLES,
    describe,
    format_cell,
    format_change,
    measured_columns,
)
from headway.schedule.show.plot import BOTTOM, LEFT, PLOT_HEIGHT, PLOT_WIDTH, RIGHT, TOP, make_plot
from headway.schedule.show.table import CHANGE_FIGURES
from headway.schedule.simulate.compare import OBJECTIVES, Comparison

_TEMPLATES: Final = Path(__file__).parent / "templates"
_WASTE: Final = ("lost_and_recover_h", "lost and recover, accelerator-hours")


def render_page(compared: Comparison) -> str:
    """The whole page; names of policies and traces are escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    names = compared.names
    tables = [
        (
            title,
            [column.heading for column in measured_columns(compared, columns)],
            [
                (
                    name,
                    [
                        format_cell(c, compared.of(place, c.figure))
                        for c in measured_columns(compared, columns)
                    ],
                )
                for place, name in enumerate(names)
            ],
        )
        for title, columns in TABLES
    ]
    changes = [
        (names[place], [format_change(compared.change(place, figure)) for figure in CHANGE_FIGURES])
        for place in range(1, len(names))
    ]
    return environment.get_template("cluster.html").render(
        version=__version__,
        about=describe(compared),
        base=names[0],
        tables=tables,
        changes=changes,
        best=", ".join(names[place] for place in compared.front(*OBJECTIVES)),
        plots=[
            make_plot(compared, "Preemptions and waste", ("preemptions", "preemptions"), _WASTE),
            make_plot(
                compared, "Queueing and waste", ("queue_min", "mean queueing, minutes"), _WASTE
            ),
        ],
        box=(PLOT_WIDTH, PLOT_HEIGHT, LEFT, RIGHT, TOP, BOTTOM),
    )
