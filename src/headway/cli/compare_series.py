"""`headway compare --waterfall`: a series of runs, or the releases of a store."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.report.waterfall import Bar


def run_waterfall(args: argparse.Namespace) -> int:
    """Load them all, then show."""
    from headway.report import target
    from headway.report.waterfall import Waterfall, with_distinct_names

    if args.gates:
        raise UsageError(
            "--fail-if judges two runs; leave --waterfall out", code="gate-needs-two-runs"
        )
    if args.html:
        target.check_output(Path(args.html), force=args.force)
    bars = _bars_of_releases(args) if args.store else _bars_of_runs(args)
    if len(bars) < 2:
        what = "one release is in the store" if args.store else "one run is given"
        raise UsageError(
            f"a waterfall has two bars or more, but only {what}", code="waterfall-too-short"
        )
    made = Waterfall(with_distinct_names(bars))
    if args.json:
        import json

        print(json.dumps(made.to_dict(), indent=2))
    elif args.html:
        from headway.report.waterfall_html import waterfall_page

        target.write_output(Path(args.html), waterfall_page(made).encode(), force=args.force)
        print(f"headway: wrote {args.html}")
    else:
        from headway.report.screen import console
        from headway.report.waterfall_terminal import print_waterfall

        print_waterfall(made, console())
    return 0


def _bars_of_runs(args: argparse.Namespace) -> list[Bar]:
    from headway.ledger.run import load
    from headway.report.waterfall import bar_of_run

    for name in ("by", "where", "since"):
        if getattr(args, name):
            raise UsageError(
                f"--{name} is for a store; name it with --store", code="flag-needs-store"
            )
    if not args.runs:
        raise UsageError(
            "no run is given; name two or more, or a store with --store", code="run-not-given"
        )
    return [bar_of_run(load(path).ledger) for path in args.runs]


def _bars_of_releases(args: argparse.Namespace) -> list[Bar]:
    """By the order in which they came; those without a run that trained are left out."""
    from headway.cli.fleet_ask import open_store, parse_conditions, store_errors
    from headway.fleet.engine import QueryFn, run_query
    from headway.fleet.queries.slices import Filter
    from headway.serve.releases import release_bars
    from headway.serve.wanted import RELEASES
    from headway.units import parse_time

    release = args.by or RELEASES[0]
    if args.runs:
        raise UsageError(
            f"both a store and the run {args.runs[0]} are given; give one of them",
            code="store-and-runs",
        )
    if release not in RELEASES:
        raise UsageError(
            f"--by is {release!r}; give one of {', '.join(RELEASES)}", code="release-field-unknown"
        )
    store = open_store(args.store)
    store.check()
    now = datetime.now(UTC).replace(tzinfo=None)
    asked = Filter(since=parse_time(args.since, now), where=parse_conditions(args.where))

    def rows(question: QueryFn) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run_query(store, question, since=asked.since).rows.to_pylist()
        return found

    with store_errors(store):
        found = release_bars(rows, asked, release)
    if not found:
        raise UsageError(
            f"no run with a {release} has trained in {store.url}; give another --by",
            code="release-not-found",
        )
    return found
