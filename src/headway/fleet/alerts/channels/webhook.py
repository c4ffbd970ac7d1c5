"""A notification as JSON by HTTP POST; any 2xx is done."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import UsageError
from headway.fleet.alerts.channels.message import (
    ENV_PREFIX,
    TIMEOUT_S,
    DeliveryFailed,
    Message,
    is_text,
    is_timeout,
    mask_secrets,
    resolve_secret,
)

URL_SCHEMES = ("http://", "https://")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # the name of a header


class _NoRedirect(urllib.request.HTTPRedirectHandler):
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
        if key == "webhook" and not (
            is_text(value) and (str(value).startswith(ENV_PREFIX) or _is_url(str(value)))
        ):
            return "must be a URL that begins with http:// or https://, or env:NAME"
        if key == "headers" and not (
            isinstance(value, dict) and all(is_text(k) and is_text(v) for k, v in value.items())
        ):
            return 'must be names and texts, such as { Authorization = "env:TOKEN" }'
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """UsageError where a variable is not set, or is nothing that HTTP can send."""
        self._secrets()

    def _secrets(self) -> tuple[str, dict[str, str]]:
        """The URL and the headers; what is wrong with them is said without them."""
        url = resolve_secret(self.webhook)
        if not _is_url(url):
            raise UsageError(
                f"{self.webhook} is no URL with http:// or https:// and without spaces",
                code="webhook-invalid",
                variable=self.webhook,
            )
        headers = {}
        for name, value in self.headers.items():
            headers[name] = resolve_secret(value)
            if not (_HEADER_NAME.fullmatch(name) and _is_header_value(headers[name])):
                raise UsageError(
                    f"the header {name!r} has characters that HTTP does not take",
                    code="webhook-invalid",
                    header=name,
                )
        return url, headers

    def send(self, message: Message) -> str:
        """Post it; what to note, or nothing."""
        url, headers = self._secrets()
        own = {"Content-Type": "application/json", "User-Agent": "headway"}
        own["Idempotency-Key"] = str(message["id"])
        hidden = (url, *urllib.parse.urlsplit(url)[2:4], *headers.values())
        try:
            request = urllib.request.Request(
                url, json.dumps(message).encode(), {**own, **headers}, method="POST"
            )
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout_s):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            raise DeliveryFailed(
                mask_secrets(f"it answered {error.code} {error.reason}", hidden),
                code="webhook-refused",
                status=error.code,
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            text = mask_secrets(str(why) or type(error).__name__, hidden)
            raise DeliveryFailed(text, code="webhook-not-reached") from None


def _is_url(text: str) -> bool:
    """With a host, and a port that is a number; without what HTTP cannot send."""
    try:
        parts = urllib.parse.urlsplit(text)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    plain = all("!" <= letter <= "~" for letter in text)
    return named and plain and text.startswith(URL_SCHEMES) and "@" not in parts.netloc


def _is_header_value(text: str) -> bool:
    return all(" " <= letter <= "~" or "\xa0" <= letter <= "\xff" for letter in text)
