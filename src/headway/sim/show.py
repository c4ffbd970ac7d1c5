"""A comparison of policies as a terminal table and as one HTML file without network or script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway import __version__
from headway.sim.cluster.compare import OBJECTIVES, Comparison, Interval
from headway.stats import axis_ticks


@dataclass(frozen=True, slots=True)
class Column:
    """A figure with its heading and number of decimals."""

    figure: str
    heading: str
    decimals: int = 0
    scale: float = 1.0


MAIN = (
    Column("preemptions", "preemptions"),
    Column("lost_h", "lost h"),
    Column("recover_h", "recover h"),
    Column("queue_min", "queue min", 1),
    Column("queue_min_p95", "p95"),
    Column("jct_h", "JCT h", 2),
    Column("in_quota_wait_s", "in-quota wait s", 1),
    Column("ett_percent", "ETT %", 2),
)
EVICTIONS = (
    Column("preemption_ratio", "of attempts %", 2, 100),
    Column("preemption_ratio_by_hours", "of held hours %", 2, 100),
    Column("preemptions_per_1000_h", "per 1000 h", 2),
    Column("second_order_ratio", "second-order %", 1, 100),
    Column("second_order_ratio_by_hours", "by hours %", 1, 100),
    Column("most_preemptions", "most of one job"),
    Column("faults", "faults"),
    Column("saving_h", "saving h"),
    Column("ett_percent_by_jobs", "ETT % by jobs", 2),
)
FAIRNESS = (
    Column("quota_satisfaction", "quota met %", 2, 100),
    Column("in_quota_prompt", "in-quota starts within 60 s %", 2, 100),
    Column("jain_index", "Jain index", 4),
    Column("rho", "rho", 2),
    Column("rho_by_hours", "by hours", 2),
    Column("rho_p95", "rho p95", 2),
    Column("rho_worse", "worse than alone %", 1, 100),
    Column("borrowed_h", "borrowed h"),
)
QUEUE = tuple(
    Column(f"queue_min{part}", heading, 1)
    for part, heading in (
        ("_p50", "p50"),
        ("_p99", "p99"),
        ("_by_hours", "by hours"),
        ("[1]", "1 GPU"),
        ("[2-8]", "2-8"),
        ("[9-64]", "9-64"),
        ("[65+]", "65+"),
    )
)
TURNAROUND = tuple(
    Column(column.figure.replace("queue_min", "jct_h"), column.heading, 2) for column in QUEUE
)
TABLES = (
    ("Policies", MAIN),
    ("Evictions", EVICTIONS),
    ("Quota and fairness", FAIRNESS),
    ("Queueing, minutes", QUEUE),
    ("Job completion time, hours", TURNAROUND),
)


def format_cell(column: Column, value: Interval) -> str:
    """The mean, with its confidence interval if several seeds were simulated."""
    text = f"{value.mean * column.scale:,.{column.decimals}f}"
    if value.half is None:
        return text
    return f"{text} ± {value.half * column.scale:,.{column.decimals}f}"


def format_change(value: Interval | None) -> str:
    """The change relative to the first policy."""
    if value is None:
        return "-"
    text = f"{100 * value.mean:+.0f} %"
    return text if value.half is None else f"{text} ± {100 * value.half:.0f}"


def measured_columns(comparison: Comparison, columns: tuple[Column, ...]) -> list[Column]:
    """Columns with measured values: a trace may have no jobs of a size."""
    return [column for column in columns if column.figure in comparison.figures[0][0]]


def describe(comparison: Comparison) -> str:
    """The simulated cluster in one line."""
    case, setting = comparison.case, comparison.case.setting
    load = case.trace.gpu_hours / (case.trace.days * 24 * setting.gpus)
    nodes = f"nodes of {min(setting.per_node, setting.gpus)}"
    return (
        f"{case.trace.name}: {len(case.trace.jobs):,} jobs in {case.trace.days:.0f} days on "
        f"{setting.gpus:,} accelerators in {nodes}, load {100 * load:.0f} %, "
        f"a save every {setting.interval:,.0f} s, {len(comparison.seeds)} "
        f"{'seed' if len(comparison.seeds) == 1 else 'seeds'}"
    )


PLOT_WIDTH, PLOT_HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 110.0, 16.0, 44.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A policy in the plot, with its confidence intervals."""

    name: str
    x: float
    y: float
    across: float
    up: float
    best: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """Data of a plot for the template."""

    title: str
    across: str
    up: str
    marks: tuple[Mark, ...]
    line: str  # points of the Pareto front
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]


def make_plot(comparison: Comparison, title: str, x: tuple[str, str], y: tuple[str, str]) -> Plot:
    """Plot two figures, each given with its label, and their Pareto front."""
    policies = range(len(comparison.names))
    across = [comparison.of(policy, x[0]) for policy in policies]
    up = [comparison.of(policy, y[0]) for policy in policies]
    most_x = max(interval.mean + (interval.half or 0.0) for interval in across) or 1.0
    most_y = max(interval.mean + (interval.half or 0.0) for interval in up) or 1.0
    wide, high = (PLOT_WIDTH - LEFT - RIGHT) / most_x, (PLOT_HEIGHT - TOP - BOTTOM) / most_y
    front = comparison.front(x[0], y[0])
    marks = tuple(
        Mark(
            name=comparison.names[policy],
            x=LEFT + across[policy].mean * wide,
            y=PLOT_HEIGHT - BOTTOM - up[policy].mean * high,
            across=(across[policy].half or 0.0) * wide,
            up=(up[policy].half or 0.0) * high,
            best=policy in front,
        )
        for policy in policies
    )
    best = sorted((mark.x, mark.y) for mark in marks if mark.best)
    return Plot(
        title=title,
        across=x[1],
        up=y[1],
        marks=marks,
        line=" ".join(f"{px:.1f},{py:.1f}" for px, py in best),
        ticks_x=tuple((LEFT + value * wide, f"{value:,g}") for value in axis_ticks(most_x)),
        ticks_y=tuple(
            (PLOT_HEIGHT - BOTTOM - value * high, f"{value:,g}") for value in axis_ticks(most_y)
        ),
    )


TABLE_WIDTH = 130  # narrower terminals wrap the table, so that no figure is cut off
CHANGE_FIGURES = ("preemptions", "lost_h", "lost_and_recover_h", "queue_min", "in_quota_wait_s")


def render_table(comparison: Comparison) -> RenderableType:
    """The figures, the changes relative to the first policy, and the Pareto front."""
    lines: list[RenderableType] = [Text(describe(comparison)), Text(), _figures(comparison)]
    if len(comparison.names) > 1:
        lines += [
            Text(),
            Text(f"relative to {comparison.names[0]}, paired by seed"),
            _changes(comparison),
        ]
        best = ", ".join(comparison.names[policy] for policy in comparison.front(*OBJECTIVES))
        lines += [Text(), Text(f"Pareto front of preemptions, waste and queueing: {best}")]
    return Group(*lines)


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _figures(comparison: Comparison) -> Table:
    table = _plain_table()
    table.add_column("policy", no_wrap=True)
    columns = measured_columns(comparison, MAIN)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for policy, name in enumerate(comparison.names):
        table.add_row(
            name, *(format_cell(column, comparison.of(policy, column.figure)) for column in columns)
        )
    return table


def _changes(comparison: Comparison) -> Table:
    table = _plain_table()
    table.add_column("policy", no_wrap=True)
    for heading in ("preemptions", "lost h", "lost and recover h", "queue", "in-quota wait"):
        table.add_column(heading, justify="right", no_wrap=True)
    for policy in range(1, len(comparison.names)):
        cells = (format_change(comparison.change(policy, figure)) for figure in CHANGE_FIGURES)
        table.add_row(comparison.names[policy], *cells)
    return table


_TEMPLATES: Final = Path(__file__).parent / "templates"
_WASTE: Final = ("lost_and_recover_h", "lost and recover, accelerator-hours")


def render_page(comparison: Comparison) -> str:
    """The HTML page; names of policies and traces are escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    names = comparison.names
    tables = [
        (
            title,
            [column.heading for column in measured_columns(comparison, columns)],
            [
                (
                    name,
                    [
                        format_cell(column, comparison.of(policy, column.figure))
                        for column in measured_columns(comparison, columns)
                    ],
                )
                for policy, name in enumerate(names)
            ],
        )
        for title, columns in TABLES
    ]
    changes = [
        (
            names[policy],
            [format_change(comparison.change(policy, figure)) for figure in CHANGE_FIGURES],
        )
        for policy in range(1, len(names))
    ]
    return environment.get_template("cluster.html").render(
        version=__version__,
        about=describe(comparison),
        base=names[0],
        tables=tables,
        changes=changes,
        best=", ".join(names[policy] for policy in comparison.front(*OBJECTIVES)),
        plots=[
            make_plot(comparison, "Preemptions and waste", ("preemptions", "preemptions"), _WASTE),
            make_plot(
                comparison, "Queueing and waste", ("queue_min", "mean queueing, minutes"), _WASTE
            ),
        ],
        box=(PLOT_WIDTH, PLOT_HEIGHT, LEFT, RIGHT, TOP, BOTTOM),
    )
