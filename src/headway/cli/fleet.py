"""Query and maintain a store of many runs.

  headway fleet ett --store ./store --by team,week      ETT%, and where the rest went
  headway fleet tts --store ./store --since 30d         Time to Start
  headway fleet ttr --store ./store --by model          Time to Recover
  headway fleet failures --store ./store --by owner     failures and their cost
  headway fleet checkpoints --store ./store             time blocked by checkpoints
  headway fleet compile --store ./store --by torch      cost of compilation
  headway fleet nodes --store ./store --limit 10        hosts and their failures
  headway fleet top --store ./store                     largest losses of accelerator-hours
  headway fleet regressions --store ./store             regressions, their time, and what changed
  headway fleet alerts --store ./store --rules a.toml   notify people and services by rules
  headway fleet simulate --store ./sim --jobs 100000    generate a store of simulated jobs
  headway fleet metrics --store ./store                 metrics for Prometheus to scrape
  headway fleet compact --store ./store                 merge small files

Every mean is given twice: weighted by accelerator-hours, and unweighted over jobs. Runs are written
to a store by `headway run --store` or `headway ingest`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import function
from headway.cli.common import (
    open_any,
    open_store,
    parse_conditions,
    print_rows,
    split_names,
    store_errors,
)
from headway.errors import UsageError, with_code

if TYPE_CHECKING:
    from headway.fleet.metrics import Window
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import Database
    from headway.schedule.publishers.file import MetricFamily as GaugeFamily

INGEST_HELP = """Write the ledgers of runs to a store, for `headway fleet`.

  headway ingest headway/night-1 --store ./store
  headway ingest headway/* --store s3://team/fleet --label team=ads,model=dlrm
  TZ=UTC sacct -D --json > jobs.json && headway ingest jobs.json --store ./store

Accepts finished and running runs, and files with records of other tools: Slurm, Kubernetes, Kueue,
Ray and others. Ingesting a run again replaces its earlier rows.
"""
METRICS_ADDRESS = "127.0.0.1:9464"
# Each is `module:name` with `prepare_name(parser)` and `run_name(args)`, see headway.cli.function;
# the name of the action is in `args.action`.
ASK = "headway.cli.fleet:question"
ACTIONS = {
    "ett": (ASK, "ETT%, idleness% and failure%"),
    "tts": (ASK, "Time to Start"),
    "ttr": (ASK, "Time to Recover"),
    "failures": (ASK, "failures by category, and their cost"),
    "checkpoints": (ASK, "time that checkpoints block the training"),
    "compile": (ASK, "cost of compilation, and what caches saved"),
    "nodes": (ASK, "hosts, their runs, and failures that started there"),
    "top": (ASK, "largest losses of accelerator-hours"),
    "regressions": (
        "headway.cli.fleet_analysis:regressions",
        "regressions, their time, and what changed",
    ),
    "alerts": ("headway.cli.fleet_analysis:alerts", "evaluate rules and send notifications"),
    "simulate": ("headway.cli.simulate:fleet", "generate a store of simulated jobs"),
    "metrics": ("headway.cli.fleet:metrics", "serve metrics for Prometheus to scrape"),
    "compact": ("headway.cli.fleet:compact", "merge small files"),
}


def prepare_question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--by", metavar="NAMES", help="group by these fields, such as team,model,week"
    )
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", help="only these runs")
    parser.add_argument("--since", metavar="WHEN", help="since 30d, 12h or 2w ago, or a date")
    parser.add_argument("--until", metavar="WHEN", help="until then; now by default")
    parser.add_argument("--limit", type=int, metavar="N", help="maximum number of rows")
    output_format = parser.add_mutually_exclusive_group()
    output_format.add_argument("--json", action="store_true", help="print JSON")
    output_format.add_argument("--csv", action="store_true", help="print CSV")


def run_question(args: argparse.Namespace) -> int:
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
    from headway.fleet.queries.dimensions import Filter
    from headway.fleet.queries.queries import build_query
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.reader import run_query

    filters = Filter(split_names(args.by), since, until, parse_conditions(args.where), args.limit)
    query = build_query(args.action, filters)
    with store_errors(store):
        if isinstance(store, Store):
            answer = run_query(store, query, since=since, until=until)
        else:
            answer = store.query(query)
    for note in answer.notes:
        print(f"headway: {note}", file=sys.stderr)
    print_rows(
        answer.rows.column_names, answer.rows.to_pylist(), as_json=args.json, as_csv=args.csv
    )
    return 0


def prepare_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=METRICS_ADDRESS,
        help=f"address to listen on ({METRICS_ADDRESS})",
    )
    parser.add_argument(
        "--token", help="bearer token that scrapers must send; prefer HEADWAY_TOKEN"
    )
    parser.add_argument(
        "--name", action="append", help="a DNS name of this server; may be repeated"
    )
    parser.add_argument(
        "--every",
        type=float,
        metavar="S",
        default=60.0,
        help="read the store at most this often, in seconds (60)",
    )
    parser.add_argument(
        "--runs", metavar="DIR", help="also export the eviction cost of each run in this folder"
    )
    add_window_options(parser)


def add_window_options(parser: argparse._ActionsContainer) -> None:
    """Add options for the runs and the labels of metrics."""
    parser.add_argument("--by", metavar="NAMES", help="labels of the metrics (team,model)")
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", help="only these runs")
    parser.add_argument(
        "--since", metavar="AGE", help="age of the oldest runs, such as 7d or 2w (24h)"
    )


def run_metrics(args: argparse.Namespace) -> int:
    from headway.fleet.metrics_http import AccessRules, CachedPage, MetricsServer
    from headway.fleet.store.parquet import Store
    from headway.serve import address

    host, port = address.parse_address(args.listen)
    token = args.token if args.token is not None else os.environ.get("HEADWAY_TOKEN")
    address.check_token(host, token)
    if not args.every >= 0:
        raise UsageError(
            f"--every is {args.every}, but it must be 0 or more",
            code="value-out-of-range",
            option="--every",
        )
    window = parse_window(args)
    store = open_any(args.store)
    if isinstance(store, Store):
        store.check()
    if args.runs:
        _eviction_costs(Path(args.runs))
    bound = address.bind(host, port)
    runs = Path(args.runs) if args.runs else None
    names = frozenset(name.lower() for name in (socket.gethostname(), host, *(args.name or ())))
    rules = AccessRules(token, lambda header: address.is_known_host(header, names))
    serving = MetricsServer(
        bound, CachedPage(lambda: metrics_text(store, window, runs), args.every), rules
    )
    shown_host = f"[{host}]" if ":" in host else host
    print(
        f"headway: metrics are at http://{shown_host}:{bound.getsockname()[1]}/metrics", flush=True
    )
    with contextlib.suppress(KeyboardInterrupt):
        serving.serve_forever()
    return 0


def parse_window(args: argparse.Namespace) -> Window:
    """The window given by the flags of `add_window_options`."""
    from headway.fleet.metrics import BY, SINCE, Window
    from headway.fleet.queries.dimensions import RUN_DIMENSIONS
    from headway.units import parse_time

    now = datetime.now(UTC).replace(tzinfo=None)
    since = parse_time(args.since, now)
    by = split_names(args.by) or BY
    for name in by:
        if name not in RUN_DIMENSIONS:
            raise UsageError(
                f"metrics cannot be grouped by {name!r}; use one of {', '.join(RUN_DIMENSIONS)}",
                code="split-unknown",
                split=name,
            )
    return Window(SINCE if since is None else now - since, by, parse_conditions(args.where))


def metrics_text(store: Store | Database, window: Window, runs: Path | None = None) -> str:
    """All metrics in the OpenMetrics text format."""
    from headway.export.openmetrics import Family, format_families
    from headway.fleet.metrics import families

    now = datetime.now(UTC).replace(tzinfo=None)
    with store_errors(store):
        metrics = families(store, window, now)
    costs = _eviction_costs(runs) if runs is not None else []
    return "".join(format_families((Family(*family) for family in (*metrics, *costs)), {}))


def _eviction_costs(runs: Path) -> list[GaugeFamily]:
    """Eviction cost of each run in progress."""
    from headway.schedule.publishers.base import run_costs
    from headway.schedule.publishers.file import metric_families

    costs = run_costs(runs, time.time(), grace=0.0, repeat_penalty_s=0.0)
    return metric_families([(cost.labels, cost.price) for cost in costs if cost.price is not None])


def prepare_compact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        default=3600.0,
        help="delete files that were replaced this many seconds ago (3600)",
    )


def run_compact(args: argparse.Namespace) -> int:
    """Compact the store once; meant to be called every hour or day."""
    if not args.grace >= 0:
        raise UsageError(
            f"--grace is {args.grace}, but it must be 0 or more",
            code="value-out-of-range",
            option="--grace",
        )
    store = open_store(args.store)
    from headway.fleet.store.compaction import compact

    with store_errors(store):
        result = compact(store, grace_s=args.grace)
    for note in result.notes:
        print(f"headway: {note}", file=sys.stderr)
    print(
        f"headway: merged {result.replaced} writes into {result.files} files with "
        f"{result.rows:,} rows; deleted {result.deleted} unused files"
    )
    return 0


def prepare_ingest(parser: argparse.ArgumentParser) -> None:
    parser.description = INGEST_HELP
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder or URL of a run, or a file")
    parser.add_argument("--reader", metavar="NAME", help="reader of the files; detected by default")
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--label", metavar="NAME=VALUE,...", help="labels that override those of the runs"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def run_ingest(args: argparse.Namespace) -> int:
    """Ingest every run; one that cannot be read does not stop the others."""
    from headway import redact
    from headway.settings import parse_labels

    labels = parse_labels(args.label)
    store = open_any(args.store)
    code = 0
    files = [path for path in args.runs if args.reader or Path(path).is_file()]
    works = [partial(ingest_run, path, store, labels) for path in args.runs if path not in files]
    if files:
        works.append(partial(ingest_files, files, args.reader, store, labels))
    for work in works:
        try:
            summary = work()
        except UsageError as error:
            text = redact.text(f"headway: {error}")
            print(with_code(text, code=error.code), file=sys.stderr)
            code = error.exit_code
            continue
        if not args.quiet:
            print(redact.text(f"headway: {summary}"))
    return code


def ingest_files(
    paths: list[str], name: str | None, store: Store | Database, labels: dict[str, str]
) -> str:
    """Write the runs found in files to a store; return a summary."""
    from headway.fleet.importers import import_files, read_sources

    with store_errors(store):
        runs, attempts = import_files(read_sources(paths), name, store, labels)
    return f"{len(paths)} file(s): {runs} run(s), {attempts} attempt(s) to {store.url}"


def ingest_run(path: str, store: Store | Database, labels: dict[str, str]) -> str:
    """Write one run to a store; return a summary."""
    from headway.fleet.rows import as_of, to_rows
    from headway.launch.run_folder import job_name
    from headway.run import load

    run = load(path)
    command = run.ledger.command
    tables = to_rows(run.ledger, job=job_name(command) if command else None, labels=labels)
    if not tables:
        return f"{path} has no attempt yet; nothing was written"
    with store_errors(store):
        store.write(tables, as_of=as_of(run.ledger))
    count = sum(map(len, tables.values()))
    return f"{path}: {len(tables['attempts'])} attempt(s), {count:,} rows to {store.url}"


def prepare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (place, text) in ACTIONS.items():
        # argparse formats `help` with %, and prints `description` as it is.
        part = actions.add_parser(name, help=text.replace("%", "%%"), description=text)
        function(place, "prepare")(part)


def run(args: argparse.Namespace) -> int:
    code: int = function(ACTIONS[args.action][0], "run")(args)
    return code
