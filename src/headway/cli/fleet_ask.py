"""The questions of `headway fleet`: one table each, for people or as JSON or CSV."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError, UsageError

if TYPE_CHECKING:
    from headway.fleet.database import Database
    from headway.fleet.store import Store

NO_STORE = "no store is named; give its folder or URL, or set HEADWAY_STORE"


def prepare_question(parser: argparse.ArgumentParser) -> None:
    """What every question can be told."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument("--by", metavar="NAMES", help="split by these, such as team,model,week")
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", help="only such runs")
    parser.add_argument("--since", metavar="WHEN", help="30d, 12h, 2w ago, or a date")
    parser.add_argument("--until", metavar="WHEN", help="the same; now by default")
    parser.add_argument("--limit", type=int, metavar="N", help="so many rows at most")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--csv", action="store_true", help="print CSV")


def run_question(args: argparse.Namespace) -> int:
    """Ask, and show the answer."""
    from headway.units import parse_time

    now = datetime.now(UTC).replace(tzinfo=None)
    store = open_any(args.store)
    since, until = parse_time(args.since, now), parse_time(args.until, now)
    if args.limit is not None and args.limit < 1:
        raise UsageError(
            f"--limit is {args.limit}, but it must be 1 or more",
            code="value-out-of-range",
            option="--limit",
        )
    from headway.fleet.engine import run_query
    from headway.fleet.queries import build_query
    from headway.fleet.queries.slices import Filter
    from headway.fleet.store import Store

    asked = Filter(split_names(args.by), since, until, parse_conditions(args.where), args.limit)
    put = build_query(args.action, asked)
    with store_errors(store):
        if isinstance(store, Store):
            answer = run_query(store, put, since=since, until=until)
        else:
            answer = store.ask(put)
    for note in answer.notes:
        print(f"headway: {note}", file=sys.stderr)
    print_rows(
        answer.rows.column_names, answer.rows.to_pylist(), as_json=args.json, as_csv=args.csv
    )
    return 0


def open_any(url: str | None) -> Store | Database:
    """The store that is named by flag or setting: files, or a PostgreSQL."""
    from headway.fleet.database import SCHEMES, Database
    from headway.fleet.store import Store
    from headway.settings import Settings

    named = Settings.read(store=url).store
    if not named:
        raise UsageError(NO_STORE, code="store-not-named")
    return Database(named) if named.startswith(SCHEMES) else Store(named)


def open_store(url: str | None) -> Store:
    """The same, where it must be files."""
    from headway.fleet.store import Store

    found = open_any(url)
    if not isinstance(found, Store):
        raise UsageError(
            f"{found.url} is a PostgreSQL, and this needs a store of files", code="store-not-files"
        )
    return found


@contextlib.contextmanager
def store_errors(store: Store | Database) -> Iterator[None]:
    """What the disk of a store refuses, in one sentence."""
    try:
        yield
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise HeadwayError(
            f"the store {store.url} cannot be used: {why}", code="store-unusable"
        ) from error


def split_names(text: str | None) -> tuple[str, ...]:
    """`team,week` as its parts, each once."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def parse_conditions(given: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """`--where team=ads`."""
    from headway.fleet.queries.slices import RUN_DIMENSIONS

    found = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or name not in RUN_DIMENSIONS:
            raise UsageError(
                f"--where {text!r} is not NAME=VALUE with a name out of {', '.join(RUN_DIMENSIONS)}",
                code="condition-invalid",
            )
        found.append((name, value))
    return tuple(found)


def print_rows(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, as_json: bool, as_csv: bool
) -> None:
    """As JSON, as CSV or as a table for people."""
    if as_json:
        print(json.dumps(list(rows), indent=1, default=_isoformat))
    elif as_csv:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(columns)
        out.writerows([_csv_value(row[name]) for name in columns] for row in rows)
    elif not rows:
        print("headway: nothing of that is in the store")
    else:
        cells = [list(columns), *([_cell(row[name]) for name in columns] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        left = [not _is_number(rows, name) for name in columns]
        for line in cells:
            parts = zip(line, widths, left, strict=True)
            print("  ".join(c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in parts))


def _is_number(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    kinds = {type(row[name]) for row in rows if row[name] is not None}
    return kinds <= {int, float}


def _isoformat(value: Any) -> str:
    return str(value.isoformat())


def _csv_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _cell(value: Any) -> str:
    from headway.report.words import one_line

    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")
    return one_line(str(value))
