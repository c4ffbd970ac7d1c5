"""The HTTP server, with limits that clients cannot exhaust.

uvicorn limits the number of connections, but not how long a client may take to send a request or
to read the response: a client that opens many connections and does neither would lock out all
others before any login. Here each such connection has a deadline, and is closed earlier if a new
connection needs its place.
"""

from __future__ import annotations

import asyncio
import threading
from socket import socket
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headway.serve.security import MAX_HEADER_BYTES
from headway.serve.sources import Source
from headway.web import page

REQUEST_S = 10.0  # for receiving a whole request
STALL_S = 60.0  # for a client that does not read its response
MAX_IDLE = 96  # connections that wait for their client; a new one replaces the oldest
MAX_IDLE_PER_ADDRESS = 32
MAX_CONCURRENT = 256  # connections or requests
KEEP_ALIVE_S = 15


class Connection(H11Protocol):
    """One client; `idle_since` is None while the server handles a request."""

    idle_since: float | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        idle = [c for c in self.connections if isinstance(c, Connection) and c.idle_since]
        same_host = [c for c in idle if c._host == self._host]
        candidates = (
            same_host
            if len(same_host) >= MAX_IDLE_PER_ADDRESS
            else idle
            if len(idle) >= MAX_IDLE
            else []
        )
        if candidates:
            min(candidates, key=lambda c: c.idle_since or 0.0)._abort()
        self._set_deadline(REQUEST_S)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._clear_deadline()  # the request is complete
        elif self._deadline is None:
            self._set_deadline(REQUEST_S)

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()  # uvicorn itself limits the time to the next request
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline(STALL_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self.idle_since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._abort)

    def _clear_deadline(self) -> None:
        self.idle_since = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self._clear_deadline()
        self.transport.abort()


def build_server(app: ASGIApp) -> uvicorn.Server:
    """A server whose limits apply before any login."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client could claim any address
        limit_concurrency=MAX_CONCURRENT,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    return uvicorn.Server(config)


def run_server(app: ASGIApp, source: Source, bound: socket) -> None:
    """Run until Ctrl-C or SIGTERM."""
    page.static_files()  # compress them now instead of during the first request
    page.plotly_style_ids()
    threading.Thread(target=source.warm, name="headway-warm", daemon=True).start()
    try:
        build_server(app).run(sockets=[bound])
    finally:
        source.close()
