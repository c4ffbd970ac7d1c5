"""The server itself: binds, warms up, answers until it is told to stop."""

from __future__ import annotations

import threading
from socket import socket

import uvicorn
from starlette.types import ASGIApp

from headway.serve import static
from headway.serve.connections import Connection
from headway.serve.guard import HEADER
from headway.serve.source import Source

AT_ONCE = 256  # connections, and requests
IDLE_S = 15


def server(app: ASGIApp) -> uvicorn.Server:
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
        limit_concurrency=AT_ONCE,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=HEADER,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, source: Source, bound: socket) -> None:
    """Until Ctrl-C or SIGTERM."""
    static.files()  # packing them takes a moment: not while somebody waits for a page
    static.sheets()
    threading.Thread(target=source.warm, name="headway-warm", daemon=True).start()
    try:
        server(app).run(sockets=[bound])
    finally:
        source.close()
