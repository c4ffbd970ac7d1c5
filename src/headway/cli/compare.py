"""Compare two runs; as a gate in CI, fail if the second is too much worse.

examples:
  headway compare BEFORE AFTER
  headway compare BEFORE AFTER --fail-if 'ett<-1' --fail-if 'tts>+10%'
  headway compare A B C --waterfall                       stages of the start of each run
  headway compare --store ./store --by torch --waterfall  the same by release

A gate is a measure, < or >, and a change:
  ett<-1                  ETT fell by more than 1 percentage point
  tts>+10%                time to start grew by more than 10 %
  ttr>+5s                 the mean time to recover grew by more than 5 s
  waste.data_stall>+2%    this bucket grew by more than 2 % of its old value
  waste.data_stall>+2     its share of the wall time grew by more than 2 points
  failures>0              there are more failures than before
Measures: ett, idleness, failure, wall, tts, ttr, failures (infrastructure only), failures_user,
failures_scheduler, failures_ambiguous, attempts, steps, saves, recompiles, start, waste, recover,
stop, and every bucket. Exit code 1 when a gate fails.
"""

from __future__ import annotations

import argparse
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError
from headway.format import duration
from headway.units import NS

if TYPE_CHECKING:
    from rich.console import Console

    from headway.report.compare import Change, Comparison, Verdict
    from headway.report.waterfall import Bar


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="runs to compare: before and after, or a series",
    )
    parser.add_argument(
        "--fail-if",
        metavar="GATE",
        action="append",
        default=[],
        dest="gates",
        help="exit with 1 if this change occurred; may be repeated",
    )
    parser.add_argument(
        "--waterfall", action="store_true", help="show a series of runs as stacked bars"
    )
    output_format = parser.add_mutually_exclusive_group()
    output_format.add_argument("--json", action="store_true", help="print the comparison as JSON")
    output_format.add_argument(
        "--html", metavar="FILE", help="write the waterfall as one HTML file"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the HTML file")
    of_store = parser.add_argument_group("waterfall of a store")
    of_store.add_argument(
        "--store", metavar="URL", help="compare the releases in a store instead of RUNs"
    )
    of_store.add_argument(
        "--by", metavar="NAME", help="field of the release: torch, image, code, week, ... (torch)"
    )
    of_store.add_argument("--where", metavar="NAME=VALUE", action="append", help="only these runs")
    of_store.add_argument("--since", metavar="WHEN", help="since 30d, 12h or 2w ago, or a date")


def run(args: argparse.Namespace) -> int:
    if args.waterfall:
        return run_waterfall(args)
    for name in ("html", "store", "by", "where", "since"):
        if getattr(args, name):
            raise UsageError(
                f"--{name} works only with --waterfall; add it", code="flag-needs-waterfall"
            )
    if len(args.runs) != 2:
        raise UsageError(
            f"compare needs two runs, not {len(args.runs)}; "
            "give two, or add --waterfall for a series",
            code="compare-needs-two-runs",
        )
    from headway.report.compare import compare, parse_gate
    from headway.run import load

    gates = [parse_gate(text) for text in args.gates]
    before, after = (load(path).ledger for path in args.runs)
    result = compare(before, after, gates)
    if args.json:
        import json

        print(json.dumps(result.to_dict(), indent=2))
    else:
        from headway.report.screen import console

        print_comparison(result, console())
    return 1 if result.failed else 0


def print_comparison(result: Comparison, console: Console) -> None:
    """Print all headline measures, the buckets that changed, and the gates."""
    from rich.text import Text

    from headway.format import one_line
    from headway.ledger.buckets import BUCKETS

    before, after = one_line(result.before, 60), one_line(result.after, 60)
    console.print(Text(f"headway: {before} -> {after}"), soft_wrap=True)
    console.print(Text(f"  {'':<29}{'before':>11}{'after':>12}{'change':>12}", style="dim"))
    for change in result.changes:
        if change.name in BUCKETS and abs(change.difference) < 0.001:
            continue
        line = Text(f"  {change.name:<29}{_value(change, change.before):>11}")
        line.append(f"{_value(change, change.after):>12}")
        line.append(f"{_difference(change):>12}{_growth(change):>10}".rstrip(), _style(change))
        console.print(line, soft_wrap=True)
    for verdict in result.verdicts:
        word, style = ("FAILED", "bold red") if verdict.failed else ("ok", "green")
        line = Text("  gate ").append(f"{word:<7}", style).append(_gate_result(verdict))
        console.print(line, soft_wrap=True)


def _value(change: Change, value: float | None) -> str:
    if value is None:
        return "never"
    if change.unit == "seconds":
        return duration(round(value * NS))
    return f"{value:.1f} %" if change.unit == "percent" else f"{value:,.0f}"


def _difference(change: Change) -> str:
    value = change.difference
    if math.isinf(value):
        return "-"
    if change.unit == "seconds":
        return f"{'+' if value > 0 else ''}{duration(round(value * NS))}"
    return f"{value:+.1f} pt" if change.unit == "percent" else f"{value:+,.0f}"


def _growth(change: Change) -> str:
    if change.unit == "percent" or math.isinf(change.growth) or not change.growth:
        return ""
    return f"{change.growth:+.1f} %"


def _style(change: Change) -> str:
    """Green for an improvement, red for a regression; numbers of steps and saves are neutral."""
    if not change.difference or change.name in ("steps", "saves"):
        return ""
    more_is_better = change.name in ("ett", "train.effective")
    return "green" if (change.difference > 0) == more_is_better else "red"


def _gate_result(verdict: Verdict) -> str:
    if math.isinf(verdict.change):
        return f"{verdict.gate.text}: the change is infinite"
    return f"{verdict.gate.text}: the change is {verdict.change:+.3g}{verdict.gate.suffix}"


def run_waterfall(args: argparse.Namespace) -> int:
    from headway.report.waterfall import Waterfall, with_distinct_names
    from headway.storage import output_file

    if args.gates:
        raise UsageError(
            "--fail-if does not work with --waterfall; drop one of them", code="gate-needs-two-runs"
        )
    if args.html:
        output_file.check_output(Path(args.html), force=args.force)
    bars = _bars_of_releases(args) if args.store else _bars_of_runs(args)
    if len(bars) < 2:
        count = "the store has one release" if args.store else "one run is given"
        raise UsageError(
            f"a waterfall needs two or more bars, but {count}", code="waterfall-too-short"
        )
    waterfall = Waterfall(with_distinct_names(bars))
    if args.json:
        import json

        print(json.dumps(waterfall.to_dict(), indent=2))
    elif args.html:
        from headway.report.waterfall import waterfall_page

        output_file.write_output(
            Path(args.html), waterfall_page(waterfall).encode(), force=args.force
        )
        print(f"headway: wrote {args.html}")
    else:
        from headway.report.screen import console
        from headway.report.waterfall import print_waterfall

        print_waterfall(waterfall, console())
    return 0


def _bars_of_runs(args: argparse.Namespace) -> list[Bar]:
    from headway.report.waterfall import bar_of_run
    from headway.run import load

    for name in ("by", "where", "since"):
        if getattr(args, name):
            raise UsageError(
                f"--{name} works only on a store; give it with --store", code="flag-needs-store"
            )
    if not args.runs:
        raise UsageError(
            "no run is given; give two or more, or a store with --store", code="run-not-given"
        )
    return [bar_of_run(load(path).ledger) for path in args.runs]


def _bars_of_releases(args: argparse.Namespace) -> list[Bar]:
    """Bars in order of release; releases without a run that trained are omitted."""
    from headway.cli.common import open_store, parse_conditions, store_errors
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.queries.releases import RELEASES, release_bars
    from headway.fleet.store.reader import QueryFn, run_query
    from headway.units import parse_time

    release = args.by or RELEASES[0]
    if args.runs:
        raise UsageError(
            f"both --store and the run {args.runs[0]} are given; give one of them",
            code="store-and-runs",
        )
    if release not in RELEASES:
        raise UsageError(
            f"--by is {release!r}, but it must be one of {', '.join(RELEASES)}",
            code="release-field-unknown",
        )
    store = open_store(args.store)
    store.check()
    now = datetime.now(UTC).replace(tzinfo=None)
    filters = Filter(since=parse_time(args.since, now), where=parse_conditions(args.where))

    def rows(question: QueryFn) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = run_query(
            store, question, since=filters.since
        ).rows.to_pylist()
        return rows

    with store_errors(store):
        bars = release_bars(rows, filters, release)
    if not bars:
        raise UsageError(
            f"no run in {store.url} with a {release} has trained; give another --by",
            code="release-not-found",
        )
    return bars
