"""The server itself: binds, warms up, answers until it is told to stop."""

from __future__ import annotations

import threading
from socket import socket

import uvicorn
from starlette.types import ASGIApp

from headway.serve import static
from headway.serve.connections import Connection
from headway.serve.guard import MAX_HEADER_BYTES
from headway.serve.source import Source

MAX_CONCURRENT = 256  # connections, and requests
KEEP_ALIVE_S = 15


def build_server(app: ASGIApp) -> uvicorn.Server:
    """With limits that hold before anybody has logged in."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever can reach us could claim any address
        limit_concurrency=MAX_CONCURRENT,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    return uvicorn.Server(config)


def run_server(app: ASGIApp, source: Source, bound: socket) -> None:
    """Until Ctrl-C or SIGTERM."""
    static.static_files()  # packing them takes a moment: not while somebody waits for a page
    static.plotly_style_ids()
    threading.Thread(target=source.warm, name="headway-warm", daemon=True).start()
    try:
        build_server(app).run(sockets=[bound])
    finally:
        source.close()
