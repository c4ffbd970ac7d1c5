"""`headway fleet metrics`: a page for Prometheus to scrape, over what is in a store."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.fleet.database import Database
    from headway.fleet.metrics import Window
    from headway.fleet.store import Store
    from headway.schedule.publish.gauges import MetricFamily as GaugeFamily

METRICS_ADDRESS = "127.0.0.1:9464"


def prepare_metrics(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--store", metavar="URL", help="folder or URL of the store")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=METRICS_ADDRESS, help=METRICS_ADDRESS
    )
    parser.add_argument("--token", help="what a scraper must send; better by HEADWAY_TOKEN")
    parser.add_argument("--name", action="append", help="a DNS name that this server is known by")
    parser.add_argument(
        "--every", type=float, metavar="S", default=60.0, help="the store is read so often; 60"
    )
    parser.add_argument(
        "--runs", metavar="DIR", help="also what evicting each run below it now would waste"
    )
    add_window_options(parser)


def add_window_options(parser: argparse._ActionsContainer) -> None:
    """What the figures are of, and what they are split by."""
    parser.add_argument("--by", metavar="NAMES", help="labels of runs; team,model")
    parser.add_argument("--where", metavar="NAME=VALUE", action="append", help="only such runs")
    parser.add_argument("--since", metavar="AGE", help="of the last 24h, or 7d, 2w")


def run_metrics(args: argparse.Namespace) -> int:
    """Serve until it is stopped."""
    from headway.cli.fleet_ask import open_any
    from headway.errors import UsageError
    from headway.fleet.metrics_http import AccessRules, CachedPage, MetricsServer
    from headway.fleet.store import Store
    from headway.serve import listen

    host, port = listen.parse_address(args.listen)
    token = args.token if args.token is not None else os.environ.get("HEADWAY_TOKEN")
    listen.check_token(host, token)
    if not args.every >= 0:
        raise UsageError(
            f"--every is {args.every}, but it must be 0 or more",
            code="value-out-of-range",
            option="--every",
        )
    found = parse_window(args)
    store = open_any(args.store)
    if isinstance(store, Store):
        store.check()
    if args.runs:
        _eviction_costs(Path(args.runs))
    bound = listen.bind(host, port)
    runs = Path(args.runs) if args.runs else None
    names = frozenset(name.lower() for name in (socket.gethostname(), host, *(args.name or ())))
    rules = AccessRules(token, lambda header: listen.is_known_host(header, names))
    serving = MetricsServer(
        bound, CachedPage(lambda: metrics_text(store, found, runs), args.every), rules
    )
    shown = f"[{host}]" if ":" in host else host
    print(f"headway: metrics are at http://{shown}:{bound.getsockname()[1]}/metrics", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        serving.serve_forever()
    return 0


def parse_window(args: argparse.Namespace) -> Window:
    """Out of the flags of `shape`."""
    from headway.cli.fleet_ask import parse_conditions, split_names
    from headway.errors import UsageError
    from headway.fleet.metrics import BY, SINCE, Window
    from headway.fleet.queries.slices import RUN_DIMENSIONS
    from headway.units import parse_time

    now = datetime.now(UTC).replace(tzinfo=None)
    since = parse_time(args.since, now)
    by = split_names(args.by) or BY
    for one in by:
        if one not in RUN_DIMENSIONS:
            raise UsageError(
                f"metrics cannot be split by {one!r}; they can by {', '.join(RUN_DIMENSIONS)}",
                code="split-unknown",
                split=one,
            )
    return Window(SINCE if since is None else now - since, by, parse_conditions(args.where))


def metrics_text(store: Store | Database, window: Window, runs: Path | None = None) -> str:
    """All metrics, as a scraper reads them."""
    from headway.cli.fleet_ask import store_errors
    from headway.fleet.metrics import families
    from headway.report.openmetrics import Family, format_families

    now = datetime.now(UTC).replace(tzinfo=None)
    with store_errors(store):
        found = families(store, window, now)
    more = _eviction_costs(runs) if runs is not None else []
    return "".join(format_families((Family(*one) for one in (*found, *more)), {}))


def _eviction_costs(runs: Path) -> list[GaugeFamily]:
    """What evicting each run that goes on would waste."""
    from headway.schedule.publish.gauges import metric_families
    from headway.schedule.publish.offer import run_costs

    found = run_costs(runs, time.time(), grace=0.0, repeat=0.0)
    return metric_families([(one.labels, one.price) for one in found if one.price is not None])
