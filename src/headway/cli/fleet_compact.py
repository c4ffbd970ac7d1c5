"""`headway fleet compact`: many small files into few, while others write and read."""

from __future__ import annotations

import argparse
import sys


def prepare_compact(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        default=3600.0,
        help="what was replaced so long ago is deleted; 3600",
    )


def run_compact(args: argparse.Namespace) -> int:
    """One round; to be called every hour or day by whoever likes."""
    from headway.cli.fleet_ask import open_store, store_errors
    from headway.errors import UsageError

    if not args.grace >= 0:
        raise UsageError(
            f"--grace is {args.grace}, but it must be 0 or more",
            code="value-out-of-range",
            option="--grace",
        )
    store = open_store(args.store)
    from headway.fleet.compact import compact

    with store_errors(store):
        done = compact(store, grace_s=args.grace)
    for note in done.notes:
        print(f"headway: {note}", file=sys.stderr)
    print(
        f"headway: {done.replaced} writes are now {done.files} files with {done.rows:,} rows; "
        f"{done.deleted} files that nobody needs were deleted"
    )
    return 0
