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
FIRST_WAIT_S = 0.5  # doubled at each try
LONGEST_WAIT_S = 30.0
TIMEOUT_S = 20.0
MERGE = "application/merge-patch+json"


class Conflict(Exception):
    """Somebody else has changed it meanwhile."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for one server, not for where that one points."""

    def redirect_request(self, *args: Any) -> None:
        return None


class Api:
    """One server; `token` is asked for each request, as it may be replaced while we run."""

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
        """What is there; None where nothing is."""
        return self._request("GET", path)

    def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any] | None:
        """Change these fields, and no other; null takes one away. None where nothing is."""
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
                # A token that was replaced is read again; everything else of 4xx stays so.
                if error.code < 500 and error.code != 429 and (error.code != 401 or attempt):
                    raise SchedulerUpdateFailed(
                        f"{self.url} answered {error.code}: {reason}",
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
            f"{self.url} did not take it in {TRIES} tries: {reason}",
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
            raise ValueError("an answer that is no object")
        return document


def _error_message(error: urllib.error.HTTPError) -> str:
    """What the server says, in one line; Kubernetes tells it as a Status."""
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
    """Seconds of a Retry-After; a date in it is not waited for."""
    return float(text) if text and text.isdecimal() else 0.0


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect_api(
    url: str | None,
    token: str | None,
    authority: str | None,
    env: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> Api:
    """The API server that was named, or the one of the pod in which this runs."""
    if url is None:
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise UsageError(
                "this is no pod of Kubernetes; give the API server by --api URL, for example that "
                "of `kubectl proxy`",
                code="api-not-named",
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"--api is a URL that begins with http:// or https://, not {url!r}", code="url-invalid"
        )
    token_file = Path(token) if token else account / "token"
    ca_file = Path(authority) if authority else account / "ca.crt"
    if token and not token_file.is_file():
        raise UsageError(
            f"there is no token in {token_file}; check --token-file", code="token-file-not-found"
        )
    try:
        cafile = str(ca_file) if authority or ca_file.is_file() else None
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{ca_file} has no certificate: {error}; check --ca-file", code="certificate-invalid"
        ) from None
    # The pod's own token is for the pod's own server, and never goes in the clear.
    may_send_token = token is not None or url.startswith("https://")
    return Api(url, lambda: _read_secret(token_file) if may_send_token else None, context)


def _read_secret(path: Path) -> str | None:
    """As it is now: Kubernetes replaces it every hour or so."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """That of the pod in which this runs, else `default`."""
    return _read_secret(account / "namespace") or "default"
