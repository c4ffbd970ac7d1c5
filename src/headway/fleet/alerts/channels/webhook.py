"""A notification as JSON by HTTP POST; any 2xx is done."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.fleet.alerts.channels.message import (
    ENV,
    TIMEOUT_S,
    Message,
    Refused,
    is_text,
    is_timeout,
    secret,
)

SCHEMES = ("http://", "https://")


class _Stay(urllib.request.HTTPRedirectHandler):
    """urllib would follow a redirect by GET, and take the page there for success."""

    def redirect_request(self, *args: Any) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A URL, and headers to send with it; each may be `env:NAME`."""

    webhook: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    @staticmethod
    def wrong(key: str, value: object) -> str | None:
        """What is wrong with a value of the rules file."""
        if key == "webhook" and not (is_text(value) and str(value).startswith((*SCHEMES, ENV))):
            return "must be a URL that begins with http:// or https://, or env:NAME"
        if key == "headers" and not (
            isinstance(value, dict) and all(is_text(k) and is_text(v) for k, v in value.items())
        ):
            return 'must be names and texts, such as { Authorization = "env:TOKEN" }'
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """UsageError where a variable is not set."""
        self._request(b"")

    def _request(self, body: bytes, **headers: str) -> urllib.request.Request:
        own = {name: secret(value) for name, value in self.headers.items()}
        told = {"Content-Type": "application/json", "User-Agent": "headway", **headers, **own}
        return urllib.request.Request(secret(self.webhook), body, told, method="POST")

    def send(self, message: Message) -> str:
        """Post it; what to note, or nothing."""
        key = {"Idempotency-Key": str(message["id"])}
        try:
            request = self._request(json.dumps(message).encode(), **key)
            with urllib.request.build_opener(_Stay).open(request, timeout=self.timeout_s):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            raise Refused(f"it answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise Refused(str(why) or type(error).__name__) from None
