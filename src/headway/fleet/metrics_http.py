"""The scrape endpoint: one page, asked of the store at most once a minute."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, socket

from headway.errors import HeadwayError

CONTENT = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Page:
    """The text of the metrics, made again when it is older than `every_s`."""

    def __init__(self, make: Callable[[], str], every_s: float) -> None:
        self._make, self._every = make, every_s
        self._lock = threading.Lock()
        self._text, self._until = "", 0.0

    def text(self) -> str:
        """What is known; those who ask meanwhile wait for one answer."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = self._make()
                self._until = time.monotonic() + self._every
            return self._text


def server(bound: socket, page: Page, token: str | None) -> ThreadingHTTPServer:
    """On an open port; with a token, only `Authorization: Bearer TOKEN` is answered."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "headway", ""
        timeout = 30

        def do_GET(self) -> None:
            told = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token is not None and not hmac.compare_digest(told.encode(), token.encode()):
                self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "give the token\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "the metrics are at /metrics\n")
            else:
                try:
                    self._answer(HTTPStatus.OK, CONTENT, page.text())
                except HeadwayError as error:
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")

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
            """Nothing: a scrape every few seconds is no news."""

    class Server(ThreadingHTTPServer):
        address_family = bound.family
        daemon_threads = True

    made = Server(bound.getsockname()[:2], Handler, bind_and_activate=False)
    made.socket.close()
    made.socket = bound
    if bound.family == AF_INET6:
        made.server_address = bound.getsockname()
    return made
