"""Write a run in the format of another tool.

formats:
  headway export RUN --to perfetto -o trace.json.gz   open it at ui.perfetto.dev
  headway export RUN --to openmetrics                 for Prometheus' textfile collector
  headway export RUN --to csv                         one row per segment
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from headway.ledger.model import Ledger

FORMATS = ("perfetto", "openmetrics", "csv")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway export`."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--to", required=True, choices=FORMATS, help="the format")
    parser.add_argument("-o", "--output", metavar="FILE", help="standard output if left out")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def run(args: argparse.Namespace) -> int:
    """Load the run and write it."""
    from headway.ledger.run import load
    from headway.report.target import check, write

    target = None if args.output in (None, "-") else Path(args.output)
    if target is not None:
        check(target, force=args.force)
    text = _text(load(args.run).ledger, args.to)
    if target is None:
        sys.stdout.writelines(text)
        return 0
    write(target, _packed("".join(text).encode("utf-8", "replace"), target), force=args.force)
    print(f"headway: wrote {target}")
    return 0


def _text(ledger: Ledger, form: str) -> Iterator[str]:
    if form == "perfetto":
        from headway.report.perfetto import trace

        return trace(ledger)
    if form == "openmetrics":
        from headway.report.openmetrics import text

        return text(ledger)
    from headway.report.csv import rows

    return rows(ledger)


def _packed(content: bytes, target: Path) -> bytes:
    if target.suffix != ".gz":
        return content
    import gzip

    return gzip.compress(content, mtime=0)
