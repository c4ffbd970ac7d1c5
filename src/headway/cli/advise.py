"""List what to change next, and how much each change would gain.

examples:
  headway advise RUN                   for one run, using what is known of its job
  headway advise RUN --with OTHER      use another run of the same job as evidence
  headway advise STORE --since 30d     for all runs of a store, by rule and job
  headway advise RUN --json            as JSON, for other tools

The gain of a change is computed on the run's own ledger: the time it would have saved is removed,
and the ledger is computed again. No second counts for two changes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC
from typing import TYPE_CHECKING

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import Database


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN|STORE", help="folder or URL of a run or of a store")
    parser.add_argument(
        "--with",
        metavar="RUN",
        action="append",
        default=[],
        dest="others",
        help="another run of the same job; may be repeated",
    )
    parser.add_argument(
        "--since", metavar="WHEN", help="for a store: only runs since 30d or 12h ago, or a date"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    store = _open_store(args.path)
    if store is None and args.since:
        raise UsageError(
            f"--since works only on a store, and {args.path} is not one", code="flag-needs-store"
        )
    if store is not None and args.others:
        raise UsageError(
            f"--with works only on a run, and {args.path} is a store", code="flag-needs-run"
        )
    if store is not None:
        return _advise_store(store, args)
    from headway.advise.gather import advise, gather
    from headway.advise.show import report_lines, to_dict

    plan = advise(gather(args.path, args.others))
    if args.json:
        print(json.dumps(to_dict(plan), indent=2))
    else:
        _print(report_lines(plan))
    return 0


def _advise_store(store: Store | Database, args: argparse.Namespace) -> int:
    from datetime import datetime

    from headway.cli.common import store_errors
    from headway.fleet.advice import advise_fleet
    from headway.units import parse_time

    since = parse_time(args.since, datetime.now(UTC).replace(tzinfo=None))
    with store_errors(store):
        report = advise_fleet(store, since)
    for note in report.notes:
        print(f"headway: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report.lines())
    return 0


def _open_store(path: str) -> Store | Database | None:
    """The store at a path or URL; None if there is none."""
    from pathlib import Path

    from headway.fleet.store.manifest import STORE_MARKER
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import SCHEMES, Database

    if path.startswith(SCHEMES):
        return Database(path)
    if "://" not in path:
        return Store(path) if (Path(path) / STORE_MARKER).is_file() else None
    store = Store(path)
    return store if store.exists() else None


def _print(lines: Iterable[str]) -> None:
    from rich.text import Text

    from headway.report.screen import console, print_line

    screen = console()
    for line in lines:
        print_line(screen, Text(line))
