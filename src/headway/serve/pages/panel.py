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
MAX_TEXT_LENGTH = 400  # of texts from journals


class Panel(NamedTuple):
    """One part of a page; `layout` reserves its space until the data arrives."""

    name: str
    title: str
    note: str
    layout: str  # cards, chart, tall, table
    load: PanelQuery
    live: bool = False  # not cached: the data depends on more than the version of the store


class Page(NamedTuple):
    """One page; `parameters` are those that only this page has."""

    path: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    parameters: tuple[str, ...] = ()


class Column(NamedTuple):
    """One column; the unit determines how values are formatted."""

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
    """Rows with these columns; the extra field `plot` describes their chart."""
    return {
        "columns": [column._asdict() for column in columns],
        "rows": [[to_json_value(row.get(column.key)) for column in columns] for row in rows],
        **others,
    }


def cards(*items: Card, **others: Any) -> dict[str, Any]:
    """Large numbers."""
    return {
        "cards": [card._replace(value=to_json_value(card.value))._asdict() for card in items],
        **others,
    }


def to_json_value(value: Any) -> Any:
    """Convert to JSON: times in ISO format, floats rounded, texts on one line."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, float):
        return None if value != value or value in (float("inf"), float("-inf")) else round(value, 4)
    if isinstance(value, str):
        return one_line(value, MAX_TEXT_LENGTH)
    return value


def add_cumulative(rows: Sequence[Mapping[str, Any]], of: str) -> list[dict[str, Any]]:
    """Add to each row the share of the total up to and including it."""
    total = sum(row[of] or 0.0 for row in rows)
    result, so_far = [], 0.0
    for row in rows:
        so_far += row[of] or 0.0
        result.append({**row, "cumulative": 100.0 * so_far / total if total else None})
    return result


def percentiles_over_time(
    source: Source, query: PageQuery, name: str, *extra: Column
) -> dict[str, Any]:
    """Median and p90 of the query `name` over time, with extra columns."""
    period = source.period(query)
    rows = source.rows(build_query(name, source.filter_for(query, period)), query)
    median, p90 = f"{name}_p50_s", f"{name}_p90_s"
    columns = [
        Column(period, period, "period"),
        Column(median, "median", "seconds"),
        Column(p90, "p90", "seconds"),
        Column(f"{name}_s_by_jobs", "mean", "seconds"),
        *extra,
    ]
    return table(columns, rows, plot={"kind": "lines", "x": period, "lines": [median, p90]})
