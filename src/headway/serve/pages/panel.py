"""Pages, panels, and the JSON that a panel sends: a table, optionally a plot, or cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from headway.fleet.queries.queries import build_query
from headway.format import one_line
from headway.serve.query import PageQuery
from headway.serve.sources import Source

PanelQuery = Callable[[Source, PageQuery], dict[str, Any]]


class Panel(NamedTuple):
    """One part of a page; `shape` is the room that is kept for it until its data is there."""

    name: str
    title: str
    note: str
    layout: str  # cards, chart, tall, table
    load: PanelQuery
    live: bool = False  # what it shows does not follow from the version of the store alone


class Page(NamedTuple):
    """One page; `own` are the parameters that only it has."""

    path: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    parameters: tuple[str, ...] = ()


MAX_TEXT_LENGTH = 400  # characters of a text from a journal


class Column(NamedTuple):
    """One column; the unit says how a value is written."""

    key: str
    label: str
    unit: str = "text"  # count, percent, points, hours, seconds, time, period, leaf, run, mark


class Card(NamedTuple):
    """One large number."""

    label: str
    value: Any
    unit: str
    remark: str = ""


def table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], **others: Any
) -> dict[str, Any]:
    """Rows with those columns; `plot` among the others says how they are drawn."""
    return {
        "columns": [column._asdict() for column in columns],
        "rows": [[to_json_value(row.get(column.key)) for column in columns] for row in rows],
        **others,
    }


def cards(*items: Card, **others: Any) -> dict[str, Any]:
    """Large numbers side by side."""
    return {
        "cards": [card._replace(value=to_json_value(card.value))._asdict() for card in items],
        **others,
    }


def to_json_value(value: Any) -> Any:
    """As JSON can say it: times in ISO, floats short, texts on one line."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, float):
        return None if value != value or value in (float("inf"), float("-inf")) else round(value, 4)
    if isinstance(value, str):
        return one_line(value, MAX_TEXT_LENGTH)
    return value


def add_cumulative(rows: Sequence[Mapping[str, Any]], of: str) -> list[dict[str, Any]]:
    """The rows with the share of the total that they and those before them have."""
    total = sum(row[of] or 0.0 for row in rows)
    result, so_far = [], 0.0
    for row in rows:
        so_far += row[of] or 0.0
        result.append({**row, "cumulative": 100.0 * so_far / total if total else None})
    return result


def percentiles_over_time(
    source: Source, query: PageQuery, name: str, *extra: Column
) -> dict[str, Any]:
    """By the answers to the question of that name; `more` stands beside."""
    period = source.period(query)
    rows = source.rows(build_query(name, source.filter_for(query, period)), query)
    median, p90 = f"{name}_p50_s", f"{name}_p90_s"
    columns = [
        Column(period, period, "period"),
        Column(median, "median", "seconds"),
        Column(p90, "nine of ten", "seconds"),
        Column(f"{name}_s_by_jobs", "mean", "seconds"),
        *extra,
    ]
    return table(columns, rows, plot={"kind": "lines", "x": period, "lines": [median, p90]})
