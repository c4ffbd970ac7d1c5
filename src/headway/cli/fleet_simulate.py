"""`headway fleet simulate`: a store of jobs that never ran, with planted regressions."""

from __future__ import annotations

import argparse
import sys
import time


def prepare_fleet(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument("--jobs", type=int, default=10_000, metavar="N", help="how many; 10000")
    parser.add_argument("--days", type=int, default=90, metavar="N", help="over so many; 90")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another one: other jobs")
    parser.add_argument(
        "--scale", type=int, default=1, metavar="N", help="accelerators of each job, times this; 1"
    )
    parser.add_argument(
        "--regressions", type=int, default=8, metavar="N", help="to plant, 2 points of ETT each; 8"
    )
    parser.add_argument("--lemons", type=int, default=5, metavar="N", help="bad hosts to plant; 5")


def run_fleet(args: argparse.Namespace) -> int:
    """Draw and write it."""
    from headway.cli.fleet_ask import open_store

    store = open_store(args.store)
    from headway import redact
    from headway.fleet.simulate.fleet import TRUTH_FILE, simulate
    from headway.fleet.simulate.plan import make_scenario

    made = make_scenario(args.seed, args.jobs, args.days, args.scale, args.regressions, args.lemons)
    began = time.monotonic()

    def tell(days: int, rows: int) -> None:
        took = time.monotonic() - began
        print(f"{days} of {args.days} days, {rows:,} rows, {took:.0f} s", file=sys.stderr)

    counts = simulate(store, made, tell)
    print(
        f"headway: {counts['runs']:,} runs and {counts['buckets']:,} rows of buckets are in "
        f"{redact.text(store.url)}; what was planted stands in {TRUTH_FILE} there"
    )
    return 0
