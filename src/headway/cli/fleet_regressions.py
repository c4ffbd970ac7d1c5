"""`headway fleet regressions`: what got worse when and why, hosts that fail beyond chance."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.fleet.regressions.find import Finding
    from headway.fleet.regressions.look import ScanResult

DEFAULT_SLICES = "team,model"
MAX_PARTS = 3  # of a slice that are shown


def prepare_regressions(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--by", metavar="NAMES", default=DEFAULT_SLICES, help=f"the slices; {DEFAULT_SLICES}"
    )
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", help="only such runs")
    parser.add_argument("--since", metavar="WHEN", help="30d, 12h, 2w ago, or a date")
    parser.add_argument("--until", metavar="WHEN", help="the same; now by default")
    parser.add_argument(
        "--level",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="of the slices that are named, so many may be wrong; 0.05",
    )
    parser.add_argument(
        "--points", type=float, default=0.5, metavar="N", help="the least change; 0.5 points"
    )
    parser.add_argument(
        "--dependent", action="store_true", help="hold the level whatever slices have in common"
    )
    parser.add_argument("--gains", action="store_true", help="show what got better as well")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_regressions(args: argparse.Namespace) -> int:
    """Look, and tell."""
    from headway.cli.fleet_ask import open_store, parse_conditions, split_names
    from headway.units import parse_time

    if not 0 < args.level < 1:
        raise UsageError(
            f"--level is {args.level}, but it must lie between 0 and 1",
            code="value-out-of-range",
            option="--level",
        )
    if not args.points >= 0:
        raise UsageError(
            f"--points is {args.points}, but it must be 0 or more",
            code="value-out-of-range",
            option="--points",
        )
    by = split_names(args.by)
    if not by:
        raise UsageError(
            f"--by names no field; give some, such as {DEFAULT_SLICES}", code="split-empty"
        )
    now = datetime.now(UTC).replace(tzinfo=None)
    since, until = parse_time(args.since, now), parse_time(args.until, now)
    store = open_store(args.store)
    from headway.fleet.queries.slices import Filter
    from headway.fleet.regressions.find import ScanOptions
    from headway.fleet.regressions.look import scan

    asked = Filter(by, since, until, parse_conditions(args.where))
    options = ScanOptions(level=args.level, points=args.points, dependent=args.dependent)
    seen = scan(
        store, asked, options, _print_progress if sys.stderr.isatty() else lambda done, of: None
    )
    for note in seen.notes:
        print(f"headway: {note}", file=sys.stderr)
    found = [one for one in seen.findings if args.gains or one.regression]
    if args.json:
        print(json.dumps(_regressions_to_dict(seen, found), indent=1))
    else:
        _print_regressions(seen, found)
    return 0


def _print_progress(done: int, of: int) -> None:
    print(f"\r{done} of {of} slices", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _print_regressions(seen: ScanResult, found: list[Finding]) -> None:
    if not found:
        print(f"no change of that size in {seen.slices} slices with {seen.jobs:,} jobs")
    for one in found:
        change = one.ett_after - one.ett_before
        print(
            f"{_format_minute(one.at)}  {'/'.join(one.slice)}: {one.bucket} {one.points:+.1f} points\n"
            f"    ETT {one.ett_before:.1f} -> {one.ett_after:.1f} ({change:+.1f}: "
            f"the same jobs {one.within:+.1f}, other jobs {one.mix:+.1f}); "
            f"{one.hours:,.0f} accelerator-hours since; p {one.p:.4f}, "
            f"false discovery rate {one.level:.2%}"
        )
        for part in one.parts[:MAX_PARTS]:
            print(
                f"    {'/'.join(part.name)}: {part.mix + part.within:+.2f} of it "
                f"(itself {part.within:+.2f}, its share {part.mix:+.2f})"
            )
        for field in one.fields:
            told = "" if field.explains is None else f", goes with {field.explains:.0%} of it"
            print(
                f"    {field.field}: {field.before} -> {field.after} "
                f"({field.moved:.0%} of the hours moved, {field.usual:.0%} is usual{told})"
            )
    for host in seen.lemons:
        print(
            f"{host.host}: {host.failures} runs failed there in {host.hours:,.0f} hours, "
            f"{host.expected:.1f} would be chance; false discovery rate {host.level:.2%}"
        )
    for alarm in seen.alarms:
        print(
            f"{alarm.run_id} ({'/'.join(alarm.slice)}) runs and {alarm.words}; "
            f"seen in its hour {alarm.hour}"
        )


def _format_minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M")


def _regressions_to_dict(seen: ScanResult, found: list[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "slices": seen.slices,
        "jobs": seen.jobs,
        "as_of": seen.now,
        "regressions": [asdict(one) | {"regression": one.regression} for one in found],
        "lemons": [asdict(one) for one in seen.lemons],
        "running": [asdict(one) | {"words": one.words} for one in seen.alarms],
    }
