"""HTTP client of the Kubernetes and Ray APIs: retries, service-account token, CA certificate."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.errors import SchedulerUpdateFailed, UsageError

TRIES = 4
FIRST_WAIT_S = 0.5  # doubled after each try
LONGEST_WAIT_S = 30.0
TIMEOUT_S = 20.0
MERGE = "application/merge-patch+json"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Conflict(Exception):
    """The object was changed by another client."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Do not send the token to another server."""

    def redirect_request(self, *args: Any) -> None:
        return None


class Api:
    """A server; `token` is called for each request, because the token may be rotated."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str | None] = lambda: None,
        context: ssl.SSLContext | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url, self._token, self._sleep = url.rstrip("/"), token, sleep
        self._open = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=context)
        ).open

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist."""
        return self._request("GET", path)

    def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any] | None:
        """Change these fields; null deletes one. None if the object does not exist."""
        return self._request("PATCH", path, json.dumps(change).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any] | None:
        reason, status = "", None
        for attempt in range(TRIES):
            wait = FIRST_WAIT_S * 2**attempt
            try:
                return self._request_once(method, path, body)
            except urllib.error.HTTPError as error:
                with error:
                    reason, status = _error_message(error), error.code
                if error.code == 404:
                    return None
                if error.code == 409:
                    raise Conflict from None
                # Read the token again after a 401; other 4xx responses are final.
                if error.code < 500 and error.code != 429 and (error.code != 401 or attempt):
                    raise SchedulerUpdateFailed(
                        f"{self.url} responded with {error.code}: {reason}",
                        code="api-refused",
                        status=status,
                        reason=reason,
                    ) from None
                wait = _retry_after(error.headers.get("Retry-After")) or wait
                reason = f"{error.code} {reason}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = str(getattr(error, "reason", None) or error) or type(error).__name__
                status = None
                status = None
            if attempt + 1 < TRIES:
                self._sleep(min(wait, LONGEST_WAIT_S))
        raise SchedulerUpdateFailed(
            f"{self.url} failed {TRIES} times: {reason}",
            code="api-not-reached",
            status=status,
            reason=reason,
        )

    def _request_once(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": "headway"}
        if body is not None:
            headers["Content-Type"] = MERGE
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with self._open(request, timeout=TIMEOUT_S) as response:
            document = json.loads(response.read())
        if not isinstance(document, dict):
            raise ValueError("the response is not a JSON object")
        return document


def _error_message(error: urllib.error.HTTPError) -> str:
    """The server's message on one line; Kubernetes sends a Status object."""
    try:
        text = error.read(4096).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return str(error.reason)
    try:
        text = str(json.loads(text).get("message") or error.reason)
    except (ValueError, AttributeError):
        text = text or str(error.reason)
    return " ".join(text.split())[:300]


def _retry_after(text: str | None) -> float:
    """Seconds of a Retry-After header; dates are ignored."""
    return float(text) if text and text.isdecimal() else 0.0


def connect_api(
    url: str | None,
    token: str | None,
    authority: str | None,
    env: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> Api:
    """Connect to the given API server, or to the one of this pod."""
    if url is None:
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise UsageError(
                "not running in a Kubernetes pod; give the API server with --api URL, for example "
                "that of `kubectl proxy`",
                code="api-not-named",
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"--api must be a URL with http:// or https://, not {url!r}", code="url-invalid"
        )
    token_file = Path(token) if token else account / "token"
    ca_file = Path(authority) if authority else account / "ca.crt"
    if token and not token_file.is_file():
        raise UsageError(
            f"there is no token file {token_file}; check --token-file", code="token-file-not-found"
        )
    try:
        cafile = str(ca_file) if authority or ca_file.is_file() else None
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"cannot load a certificate from {ca_file}: {error}; check --ca-file",
            code="certificate-invalid",
        ) from None
    # Never send the service account's token without TLS.
    may_send_token = token is not None or url.startswith("https://")
    return Api(url, lambda: _read_secret(token_file) if may_send_token else None, context)


def _read_secret(path: Path) -> str | None:
    """Read the file each time: Kubernetes rotates the token about every hour."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this pod, else `default`."""
    return _read_secret(account / "namespace") or "default"
