"""Shared by commands on a store: opening it, filters, and output of rows."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError, UsageError

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import Database


NO_STORE = "no store is given; give its folder or URL, or set HEADWAY_STORE"


def open_any(url: str | None) -> Store | Database:
    """Open the store given by flag or setting: files, or a PostgreSQL database."""
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import SCHEMES, Database
    from headway.settings import Settings

    named = Settings.read(store=url).store
    if not named:
        raise UsageError(NO_STORE, code="store-not-named")
    return Database(named) if named.startswith(SCHEMES) else Store(named)


def open_store(url: str | None) -> Store:
    """Open a store of files; UsageError for a PostgreSQL database."""
    from headway.fleet.store.parquet import Store

    store = open_any(url)
    if not isinstance(store, Store):
        raise UsageError(
            f"{store.url} is a PostgreSQL database, but this command needs a store of files",
            code="store-not-files",
        )
    return store


@contextlib.contextmanager
def store_errors(store: Store | Database) -> Iterator[None]:
    """Raise an OSError of the store as a HeadwayError with its path."""
    try:
        yield
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise HeadwayError(
            f"the store {store.url} cannot be used: {reason}", code="store-unusable"
        ) from error


def split_names(text: str | None) -> tuple[str, ...]:
    """Names in a comma-separated list, without duplicates."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def parse_conditions(texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Conditions given as `--where team=ads`."""
    from headway.fleet.queries.dimensions import RUN_DIMENSIONS

    conditions = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or name not in RUN_DIMENSIONS:
            raise UsageError(
                f"--where {text!r} is not NAME=VALUE; NAME must be one of "
                f"{', '.join(RUN_DIMENSIONS)}",
                code="condition-invalid",
            )
        conditions.append((name, value))
    return tuple(conditions)


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, as_json: bool, as_csv: bool
) -> None:
    """Print rows as JSON, as CSV or as a text table."""
    if as_json:
        print(json.dumps(list(rows), indent=1, default=_isoformat))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_csv_value(row[name]) for name in columns] for row in rows)
    elif not rows:
        print("headway: no matching rows in the store")
    else:
        cells = [list(columns), *([_cell(row[name]) for name in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        left_aligned = [not _is_number(rows, name) for name in columns]
        for line in cells:
            parts = zip(line, widths, left_aligned, strict=True)
            print("  ".join(c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in parts))


def _is_number(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    kinds = {type(row[name]) for row in rows if row[name] is not None}
    return kinds <= {int, float}


def _isoformat(value: Any) -> str:
    return str(value.isoformat())


def _csv_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _cell(value: Any) -> str:
    from headway.format import one_line

    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")
    return one_line(str(value))
