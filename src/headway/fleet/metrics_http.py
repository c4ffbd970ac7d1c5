"""Scrape endpoint for Prometheus: one cached page, refreshed at most once per interval."""

from __future__ import annotations

import contextlib
import hmac
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from headway import redact
from headway.errors import HeadwayError, with_code

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
REQUEST_S = 10.0  # limit for receiving a request
ANSWER_S = 30.0  # limit for sending the response
MAX_WAITING = 32  # connections without a complete request; a new one replaces the oldest


class CachedPage:
    """The text of the metrics, computed again once it is older than `every_s`."""

    def __init__(self, make: Callable[[], str], every_s: float) -> None:
        self._make, self._every = make, every_s
        self._lock = threading.Lock()
        self._text, self._until = "", 0.0

    def text(self) -> str:
        """The current text; concurrent callers wait for the same computation."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = self._make()
                self._until = time.monotonic() + self._every
            return self._text


class AccessRules(NamedTuple):
    """Conditions for a response: the token, if there is one, and a host name of this server."""

    token: str | None
    is_own_name: Callable[[str], bool]


class MetricsServer(ThreadingHTTPServer):
    """An HTTP server on an open socket, with a time limit and a maximum for incomplete requests."""

    daemon_threads = True

    def __init__(self, bound: socket.socket, page: CachedPage, rules: AccessRules) -> None:
        self.address_family = bound.family
        super().__init__(bound.getsockname()[:2], MetricsHandler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = bound, bound.getsockname()
        self.page, self.rules = page, rules
        self._waiting: dict[socket.socket, threading.Timer] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the time limit of the request."""
        timer = threading.Timer(REQUEST_S, self._drop, [request])
        timer.daemon = True
        timer.start()
        with self._lock:
            self._waiting[request] = timer
            oldest = next(iter(self._waiting)) if len(self._waiting) > MAX_WAITING else None
        if oldest is not None:
            self._drop(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.received(request)
        super().shutdown_request(request)

    def received(self, request: socket.socket) -> None:
        """The request is complete, or its connection has closed: stop its time limit."""
        with self._lock:
            timer = self._waiting.pop(request, None)
        if timer is not None:
            timer.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _drop(self, request: socket.socket) -> None:
        self.received(request)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class MetricsHandler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "headway", ""
    timeout = ANSWER_S

    def do_GET(self) -> None:
        self.server.received(self.connection)
        token, is_own_name = self.server.rules
        credentials = self.headers.get("Authorization", "").removeprefix("Bearer ")
        names = self.headers.get_all("Host") or []
        if len(names) != 1 or not is_own_name(names[0]):
            text = "unknown host name; see --name\n"
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", text)
        elif token is not None and not hmac.compare_digest(credentials.encode(), token.encode()):
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "missing or wrong token\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "the metrics are at /metrics\n")
        else:
            try:
                self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.page.text())
            except HeadwayError as error:
                text = with_code(redact.text(str(error)), code=error.code)
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{text}\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there is a request every few seconds."""
