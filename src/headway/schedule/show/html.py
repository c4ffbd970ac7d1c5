"""The comparison as one HTML file: no network, no script."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headway import __version__
from headway.schedule.show.columns import TABLES, about, cell, change, there
from headway.schedule.show.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, plot
from headway.schedule.show.table import CHANGES
from headway.schedule.simulate.compare import OBJECTIVES, Compared

_TEMPLATES: Final = Path(__file__).parent / "templates"
_WASTE: Final = ("lost_and_recover_h", "lost and recover, accelerator-hours")


def page(compared: Compared) -> str:
    """The whole page; names of policies and traces are escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    names = compared.names
    tables = [
        (
            title,
            [column.heading for column in there(compared, columns)],
            [
                (name, [cell(c, compared.of(place, c.figure)) for c in there(compared, columns)])
                for place, name in enumerate(names)
            ],
        )
        for title, columns in TABLES
    ]
    changes = [
        (names[place], [change(compared.change(place, figure)) for figure in CHANGES])
        for place in range(1, len(names))
    ]
    return environment.get_template("cluster.html").render(
        version=__version__,
        about=about(compared),
        base=names[0],
        tables=tables,
        changes=changes,
        best=", ".join(names[place] for place in compared.front(*OBJECTIVES)),
        plots=[
            plot(compared, "Preemptions and waste", ("preemptions", "preemptions"), _WASTE),
            plot(compared, "Queueing and waste", ("queue_min", "mean queueing, minutes"), _WASTE),
        ],
        box=(WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM),
    )
