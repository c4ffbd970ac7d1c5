"""Serve a store as web pages: the fleet, its runs, failures, regressions and alerts.

  headway serve ./store                                     on this machine only: http://127.0.0.1:8787
  headway serve ./store --runs ./headway                    with live reports of runs
  HEADWAY_TOKEN=... headway serve s3://team/fleet --listen 0.0.0.0:8787

Addresses other than localhost need a token. The server never writes to the store.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
from pathlib import Path

PACKAGES = ("starlette", "uvicorn", "plotly")


def prepare(parser: argparse.ArgumentParser) -> None:
    from headway.serve.address import DEFAULT_ADDRESS

    parser.add_argument("store", metavar="STORE", nargs="?", help="folder or URL of the store")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help=f"address to listen on ({DEFAULT_ADDRESS})",
    )
    parser.add_argument("--token", help="token for the login; prefer HEADWAY_TOKEN")
    parser.add_argument(
        "--runs", metavar="FOLDER", action="append", help="folder of runs to show; may be repeated"
    )
    parser.add_argument(
        "--name", action="append", help="a DNS name of this server; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    from headway import redact
    from headway.cli.common import open_store
    from headway.errors import MissingExtra, UsageError
    from headway.fleet.store import arrow
    from headway.serve import address

    host, port = address.parse_address(args.listen)
    token = args.token if args.token is not None else os.environ.get("HEADWAY_TOKEN")
    address.check_token(host, token)
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"`headway serve` needs {package}", extra="serve")
    arrow.require_packages(*arrow.READ_PACKAGES)
    folders = [Path(folder) for folder in args.runs or ()]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"--runs {folder} is not a folder; give a folder that contains runs",
                code="not-a-folder",
            )
    store = open_store(args.store)
    store.check()
    bound = address.bind(host, port)

    from headway.serve.app import application
    from headway.serve.security import TokenAuth
    from headway.serve.server import run_server
    from headway.serve.sources import Source

    names = {socket.gethostname(), host, *(args.name or ())}
    source = Source(store, folders)
    app = application(source, TokenAuth(token), frozenset(name.lower() for name in names))
    shown_host = f"[{host}]" if ":" in host else host
    print(
        f"headway: {redact.text(store.url)} is at http://{shown_host}:{bound.getsockname()[1]}/",
        flush=True,
    )
    run_server(app, source, bound)
    return 0
