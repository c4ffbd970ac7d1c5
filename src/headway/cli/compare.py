"""Compare two runs; as a gate for CI, fail when the second is too much worse.

examples:
  headway compare BEFORE AFTER
  headway compare BEFORE AFTER --fail-if 'ett<-1' --fail-if 'tts>+10%'
  headway compare A B C --waterfall                       what each start is made of, step by step
  headway compare --store ./store --by torch --waterfall  the same over releases

A gate is a measure, < or >, and a change of it:
  ett<-1                  ETT fell by more than 1 percentage point
  tts>+10%                time to start grew by more than 10 %
  ttr>+5s                 the mean time to recover grew by more than 5 s
  waste.data_stall>+2%    this bucket grew by more than 2 % of what it was
  waste.data_stall>+2     its share of the wall time grew by more than 2 points
  failures>0              there are more failures than before
Measures: ett, idleness, failure, wall, tts, ttr, failures (of the infrastructure), failures_user,
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

if TYPE_CHECKING:
    from rich.console import Console

    from headway.report.compare import Change, Comparison, Verdict
    from headway.report.waterfall import Bar


NS = 1_000_000_000


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway compare`."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="folders of runs: before, after; a series",
    )
    parser.add_argument(
        "--fail-if",
        metavar="GATE",
        action="append",
        default=[],
        dest="gates",
        help="a change that is not accepted; may be given several times",
    )
    parser.add_argument("--waterfall", action="store_true", help="the series as stacked bars")
    output_format = parser.add_mutually_exclusive_group()
    output_format.add_argument("--json", action="store_true", help="print the comparison as JSON")
    output_format.add_argument(
        "--html", metavar="FILE", help="write the waterfall as one HTML file"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the HTML file")
    of_store = parser.add_argument_group("the waterfall of a store")
    of_store.add_argument("--store", metavar="URL", help="its runs, by release, instead of RUN")
    of_store.add_argument("--by", metavar="NAME", help="torch, image, code, week, ... (torch)")
    of_store.add_argument("--where", metavar="NAME=VALUE", action="append", help="only such runs")
    of_store.add_argument("--since", metavar="WHEN", help="30d, 12h, 2w ago, or a date")


def run(args: argparse.Namespace) -> int:
    """Load both runs, compare them, judge the gates."""
    if args.waterfall:
        return run_waterfall(args)
    for name in ("html", "store", "by", "where", "since"):
        if getattr(args, name):
            raise UsageError(
                f"--{name} is for a series; add --waterfall", code="flag-needs-waterfall"
            )
    if len(args.runs) != 2:
        raise UsageError(
            f"two runs are compared, not {len(args.runs)}; "
            "name them, or add --waterfall for a series",
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
    """Headline measures always, buckets where they changed; the gates last."""
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
    """Green where less is spent or more is trained; counts of steps and saves are neither."""
    if not change.difference or change.name in ("steps", "saves"):
        return ""
    more_is_better = change.name in ("ett", "train.effective")
    return "green" if (change.difference > 0) == more_is_better else "red"


def _gate_result(verdict: Verdict) -> str:
    if math.isinf(verdict.change):
        return f"{verdict.gate.text}: the change is without bound"
    return f"{verdict.gate.text}: the change is {verdict.change:+.3g}{verdict.gate.suffix}"


def run_waterfall(args: argparse.Namespace) -> int:
    """Load them all, then show."""
    from headway.report.waterfall import Waterfall, with_distinct_names
    from headway.storage import output_file

    if args.gates:
        raise UsageError(
            "--fail-if judges two runs; leave --waterfall out", code="gate-needs-two-runs"
        )
    if args.html:
        output_file.check_output(Path(args.html), force=args.force)
    bars = _bars_of_releases(args) if args.store else _bars_of_runs(args)
    if len(bars) < 2:
        count = "one release is in the store" if args.store else "one run is given"
        raise UsageError(
            f"a waterfall has two bars or more, but only {count}", code="waterfall-too-short"
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
                f"--{name} is for a store; name it with --store", code="flag-needs-store"
            )
    if not args.runs:
        raise UsageError(
            "no run is given; name two or more, or a store with --store", code="run-not-given"
        )
    return [bar_of_run(load(path).ledger) for path in args.runs]


def _bars_of_releases(args: argparse.Namespace) -> list[Bar]:
    """By the order in which they came; those without a run that trained are left out."""
    from headway.cli.common import open_store, parse_conditions, store_errors
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.queries.releases import RELEASES, release_bars
    from headway.fleet.store.reader import QueryFn, run_query
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
            f"no run with a {release} has trained in {store.url}; give another --by",
            code="release-not-found",
        )
    return bars
