"""Write the ledgers of runs to a store, where `headway fleet` finds them.

  headway ingest headway/night-1 --store ./store
  headway ingest headway/* --store s3://team/fleet --label team=ads,model=dlrm
  TZ=UTC sacct -D --json > jobs.json && headway ingest jobs.json --store ./store

Finished runs and running ones, and files with records of other tools: Slurm, Kubernetes, Kueue,
Ray and others. Done again, it replaces what is there of the same run.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.fleet.database import Database
    from headway.fleet.store import Store


def prepare_ingest(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway ingest`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder or URL of a run, or a file")
    parser.add_argument("--reader", metavar="NAME", help="of the files; by default what they are")
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument("--label", metavar="NAME=VALUE,...", help="over those of the runs")
    parser.add_argument("--quiet", action="store_true", help="say only what went wrong")


def run_ingest(args: argparse.Namespace) -> int:
    """One after the other; a run that cannot be read does not hold up the others."""
    from headway import redact
    from headway.cli.fleet_ask import open_any
    from headway.errors import UsageError, with_code
    from headway.fleet.labels import parse_labels

    labels = parse_labels(args.label)
    store = open_any(args.store)
    code = 0
    files = [path for path in args.runs if args.reader or Path(path).is_file()]
    works = [partial(ingest_run, path, store, labels) for path in args.runs if path not in files]
    if files:
        works.append(partial(ingest_files, files, args.reader, store, labels))
    for work in works:
        try:
            told = work()
        except UsageError as error:
            text = redact.text(f"headway: {error}")
            print(with_code(text, code=error.code), file=sys.stderr)
            code = error.exit_code
            continue
        if not args.quiet:
            print(redact.text(f"headway: {told}"))
    return code


def ingest_files(
    paths: list[str], name: str | None, store: Store | Database, labels: dict[str, str]
) -> str:
    """Write the runs that readers find in files, and say what was written."""
    from headway.cli.fleet_ask import store_errors
    from headway.fleet.readers.write import import_files, read_sources

    with store_errors(store):
        runs, attempts = import_files(read_sources(paths), name, store, labels)
    return f"{len(paths)} file(s): {runs} run(s), {attempts} attempt(s) to {store.url}"


def ingest_run(path: str, store: Store | Database, labels: dict[str, str]) -> str:
    """Write one run, and say what was written."""
    from headway.cli.fleet_ask import store_errors
    from headway.fleet.rows import as_of, to_rows
    from headway.launch.target import job_name
    from headway.ledger.run import load

    found = load(path)
    command = found.ledger.command
    tables = to_rows(found.ledger, job=job_name(command) if command else None, labels=labels)
    if not tables:
        return f"{path} has no attempt yet, nothing is written"
    with store_errors(store):
        store.write(tables, as_of=as_of(found.ledger))
    count = sum(map(len, tables.values()))
    return f"{path}: {len(tables['attempts'])} attempt(s), {count:,} rows to {store.url}"
