"""The figures that are shown, and how each is written."""

from __future__ import annotations

from dataclasses import dataclass

from headway.schedule.simulate.compare import Comparison, Interval


@dataclass(frozen=True, slots=True)
class Column:
    """A figure, its heading, and how many decimals it has."""

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
    """A mean, and what it may be off by where several seeds were played."""
    text = f"{value.mean * column.scale:,.{column.decimals}f}"
    if value.half is None:
        return text
    return f"{text} ± {value.half * column.scale:,.{column.decimals}f}"


def format_change(value: Interval | None) -> str:
    """Against the first policy."""
    if value is None:
        return "-"
    text = f"{100 * value.mean:+.0f} %"
    return text if value.half is None else f"{text} ± {100 * value.half:.0f}"


def measured_columns(compared: Comparison, columns: tuple[Column, ...]) -> list[Column]:
    """Those that were measured: a trace may have no job of a size."""
    return [column for column in columns if column.figure in compared.figures[0][0]]


def describe(compared: Comparison) -> str:
    """One line: what was simulated."""
    case, setting = compared.case, compared.case.setting
    load = case.trace.gpu_hours / (case.trace.days * 24 * setting.gpus)
    nodes = f"nodes of {min(setting.per_node, setting.gpus)}"
    return (
        f"{case.trace.name}: {len(case.trace.jobs):,} jobs in {case.trace.days:.0f} days on "
        f"{setting.gpus:,} accelerators in {nodes}, load {100 * load:.0f} %, "
        f"a save every {setting.interval:,.0f} s, {len(compared.seeds)} "
        f"{'seed' if len(compared.seeds) == 1 else 'seeds'}"
    )
