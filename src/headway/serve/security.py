"""Rate limits, token authentication and response headers, as middleware around the pages."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.serve.address import is_known_host

MAX_CALLERS = 10_000  # tracked at the same time
COOKIE = "headway"
LOGIN = "/login"
PUBLIC = (LOGIN, "/static/")  # needed by the login page
METHODS = ("GET", "HEAD")
MAX_ADDRESS_BYTES = 4096  # bytes of path and query
MAX_HEADER_BYTES = 16_384  # bytes of all headers
MAX_BODY_BYTES = 4096  # bytes of a login
BURST, PER_SECOND = 300, 60  # requests per address
TOKEN_TRIES, TOKEN_TRIES_PER_SECOND = 10, 10 / 60  # wrong tokens per address
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class RateLimit:
    """A token bucket for each caller, of size `burst` and refilled at `per_second`."""

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str, cost: float = 1.0) -> bool:
        """Whether the caller may proceed; if so, `cost` is deducted."""
        now = self._clock()
        tokens, updated_at = self._callers.pop(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - updated_at) * self._per_second)
        allowed = tokens >= cost
        self._callers[caller] = (tokens - cost if allowed else tokens, now)
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return allowed


def content_security_policy(nonce: str) -> str:
    """Allow own scripts and styles only; the nonce is for the style sheet that Plotly fills."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; "
        "img-src 'self' data:; connect-src 'self'; frame-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )


class TokenAuth:
    """The token and its session cookie, both compared in constant time."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        # Random for each process: a restart ends all sessions.
        self._cookie = hmac.new(secrets.token_bytes(32), b"session", hashlib.sha256).hexdigest()

    def check(self, token: str) -> bool:
        """Whether `token` is correct."""
        return self.token is not None and _equal(token, self.token)

    @property
    def cookie(self) -> str:
        """The Set-Cookie header for a correct token."""
        return f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"

    def authorizes(self, headers: Headers) -> bool:
        """Check the cookie, or `Authorization: Bearer` for programs."""
        if self.token is None:
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.check(token.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, self._cookie)


def _equal(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "replace"), expected.encode())


class SecurityConfig(NamedTuple):
    """Authentication, the host names of this server, and the clock of the rate limits."""

    auth: TokenAuth
    host_names: frozenset[str]
    clock: Callable[[], float]


class SecurityMiddleware:
    """Checks each request before it reaches the pages, and adds security headers."""

    def __init__(self, app: ASGIApp, config: SecurityConfig) -> None:
        self._app = app
        self._config = config
        self._requests = RateLimit(BURST, PER_SECOND, config.clock)
        self._wrong_tokens = RateLimit(TOKEN_TRIES, TOKEN_TRIES_PER_SECOND, config.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", content_security_policy(nonce))
            await send(message)

        rejection = self._reject(scope)
        await (rejection or self._app)(scope, receive, with_headers)

    def _reject(self, scope: Scope) -> Response | None:
        """The error response, or None if the request may pass."""
        headers, path = Headers(scope=scope), scope["path"]
        caller = scope["client"][0] if scope.get("client") else ""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_known_host(hosts[0], self._config.host_names):
            return _error_response(400, "unknown host name; see --name")
        if scope["method"] not in METHODS and (scope["method"], path) != ("POST", LOGIN):
            return _error_response(405, "these pages are read-only", Allow="GET, HEAD")
        if len(scope.get("raw_path") or path) + len(scope["query_string"]) > MAX_ADDRESS_BYTES:
            return _error_response(414, "the URL is too long")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            return _error_response(431, "the headers are too large")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > MAX_BODY_BYTES:
            return _error_response(413, "the request is too large")
        if path.startswith("/data/") and headers.get("sec-fetch-site") == "cross-site":
            return _error_response(403, "cross-site requests for data are not allowed")
        # Check the token first, so that unauthenticated requests never lock out a client with the
        # right token, even if all share the address of one proxy.
        authorized = self._config.auth.authorizes(headers)
        logging_in = path == LOGIN and scope["method"] == "POST"
        client = f"{caller} with the token" if authorized else caller
        if not logging_in and not self._requests.allows(client):
            return _error_response(429, "too many requests; try again", **{"Retry-After": "2"})
        if path == LOGIN:
            scope["state"]["guesses_too_often"] = lambda: not self._wrong_tokens.allows(caller)
        return None if authorized else self._require_login(scope, headers, caller)

    def _require_login(self, scope: Scope, headers: Headers, caller: str) -> Response | None:
        path = scope["path"]
        if any(path.startswith(prefix) for prefix in PUBLIC):
            return None
        if "authorization" in headers and not self._wrong_tokens.allows(caller):
            return too_many_guesses()
        if path.startswith("/data/") or "authorization" in headers:
            return _error_response(401, "login required")
        target = path + ("?" + scope["query_string"].decode("ascii", "replace")).rstrip("?")
        return RedirectResponse(f"{LOGIN}?next={quote(target)}", 303)


def too_many_guesses() -> Response:
    """The response to an address that has sent too many wrong tokens."""
    return _error_response(429, "too many wrong tokens; wait a minute", **{"Retry-After": "60"})


def _error_response(status: int, reason: str, **headers: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status, headers)
