"""Deliver notifications: receivers (webhook, e-mail, command) and the queue of unsent messages.

`send` of a receiver raises DeliveryFailed if the message was not accepted. The queue keeps the
order per receiver and retries each message until it is accepted.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from headway.errors import HeadwayError, UsageError
from headway.fleet.alerts.state import Notification, State

Message = Mapping[str, Any]
ENV_PREFIX = "env:"
TIMEOUT_S = 10.0
MIN_SECRET = 4  # minimum length of a secret that is masked


class DeliveryFailed(HeadwayError):
    """A receiver did not accept a notification. The message contains no secrets."""


def resolve_secret(value: str) -> str:
    """The value, or the value of the environment variable that it names."""
    if not value.startswith(ENV_PREFIX):
        return value
    name = value.removeprefix(ENV_PREFIX)
    secret = os.environ.get(name, "").strip()  # `$(cat FILE)` and secret stores may add whitespace
    if not secret:
        raise UsageError(
            f"the rules need the environment variable {name}, which is not set",
            code="environment-variable-not-set",
            variable=name,
        )
    return secret


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a message of a library or server, which may repeat its input."""
    words = {
        word for secret in secrets for word in (secret, *secret.split()) if len(word) >= MIN_SECRET
    }
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "***")
    return text


def is_text(value: object) -> bool:
    """Whether it is a non-empty string on one line."""
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def is_timeout(value: Any) -> bool:
    """Whether it is a time limit in seconds."""
    return type(value) in (int, float) and 0 < value <= 300


URL_SCHEMES = ("http://", "https://")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: urllib would use GET and count that page as success."""

    def redirect_request(self, *args: Any) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A URL and the headers to send; each may be `env:NAME`."""

    webhook: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    @staticmethod
    def wrong(key: str, value: object) -> str | None:
        """The error of a value of the rules file, or None."""
        if key == "webhook" and not (
            is_text(value) and (str(value).startswith(ENV_PREFIX) or _is_url(str(value)))
        ):
            return "must be a URL that begins with http:// or https://, or env:NAME"
        if key == "headers" and not (
            isinstance(value, dict) and all(is_text(k) and is_text(v) for k, v in value.items())
        ):
            return 'must be names and strings, such as { Authorization = "env:TOKEN" }'
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """Raise UsageError if a variable is not set or its value is invalid in HTTP."""
        self._secrets()

    def _secrets(self) -> tuple[str, dict[str, str]]:
        """The URL and the headers; errors do not contain their values."""
        url = resolve_secret(self.webhook)
        if not _is_url(url):
            raise UsageError(
                f"{self.webhook} is not a URL with http:// or https:// and without spaces",
                code="webhook-invalid",
                variable=self.webhook,
            )
        headers = {}
        for name, value in self.headers.items():
            headers[name] = resolve_secret(value)
            if not (_HEADER_NAME.fullmatch(name) and _is_header_value(headers[name])):
                raise UsageError(
                    f"the header {name!r} contains characters that are invalid in HTTP",
                    code="webhook-invalid",
                    header=name,
                )
        return url, headers

    def send(self, message: Message) -> str:
        """Send the message as JSON; always returns an empty string."""
        url, headers = self._secrets()
        defaults = {"Content-Type": "application/json", "User-Agent": "headway"}
        defaults["Idempotency-Key"] = str(message["id"])
        hidden = (url, *urllib.parse.urlsplit(url)[2:4], *headers.values())
        try:
            request = urllib.request.Request(
                url, json.dumps(message).encode(), {**defaults, **headers}, method="POST"
            )
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout_s):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            raise DeliveryFailed(
                mask_secrets(f"the server returned {error.code} {error.reason}", hidden),
                code="webhook-refused",
                status=error.code,
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            text = mask_secrets(str(reason) or type(error).__name__, hidden)
            raise DeliveryFailed(text, code="webhook-not-reached") from None


def _is_url(text: str) -> bool:
    """Whether it is an http(s) URL with a host, a valid port and printable ASCII only."""
    try:
        parts = urllib.parse.urlsplit(text)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    plain = all("!" <= letter <= "~" for letter in text)
    return named and plain and text.startswith(URL_SCHEMES) and "@" not in parts.netloc


def _is_header_value(text: str) -> bool:
    return all(" " <= letter <= "~" or "\xa0" <= letter <= "\xff" for letter in text)


TLS_MODES = ("starttls", "implicit", "none")
MESSAGE_ID_DOMAIN = "headway.invalid"  # for Message-ID; never resolved


@dataclass(frozen=True, kw_only=True)
class Email:
    """Recipients and an SMTP server; the password must be `env:NAME`."""

    email: list[str]
    sender: str
    host: str
    port: int = 587
    tls: str = "starttls"
    ca: str | None = None  # file with CA certificates
    user: str | None = None
    password: str | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ValueError("'user' and 'password' must be given together")
        if self.user is not None and self.tls == "none":
            raise ValueError('a password cannot be sent with tls = "none"')

    @staticmethod
    def wrong(key: str, value: object) -> str | None:
        """The error of a value of the rules file, or None."""
        if key == "email" and not (
            isinstance(value, list) and value and all(_is_address(address) for address in value)
        ):
            return "must be a list of addresses"
        if key == "sender" and not _is_address(value):
            return "must be an address"
        if key in ("host", "user", "ca") and not is_text(value):
            return "must be a string"
        if key == "port" and not (type(value) is int and 0 < value < 65536):
            return "must be a number from 1 to 65535"
        if key == "tls" and value not in TLS_MODES:
            return f"must be one of {', '.join(TLS_MODES)}"
        if key == "password" and not (is_text(value) and str(value).startswith(ENV_PREFIX)):
            return "must name an environment variable, as env:NAME"
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """Raise UsageError if a variable is not set."""
        resolve_secret(self.password or "")

    def send(self, message: Message) -> str:
        """Send the message. Returns a note if the server refused some of the recipients; they are
        not tried again.
        """
        try:
            with self._connect() as server:
                if self.user is not None:
                    server.login(self.user, resolve_secret(self.password or ""))
                refused = server.send_message(self._mail(message))
        except smtplib.SMTPRecipientsRefused:
            raise DeliveryFailed(
                "the server refused all recipients", code="mail-recipients-refused"
            ) from None
        except smtplib.SMTPResponseException as error:
            raise DeliveryFailed(
                f"the server returned {error.smtp_code}",
                code="mail-refused",
                status=error.smtp_code,
            ) from None
        except (OSError, ValueError) as error:
            text = mask_secrets(
                str(error) or type(error).__name__, (resolve_secret(self.password or ""),)
            )
            raise DeliveryFailed(text, code="mail-not-sent") from None
        return f"the server refused {', '.join(sorted(refused))}" if refused else ""

    def _connect(self) -> smtplib.SMTP:
        if self.tls == "none":
            return smtplib.SMTP(self.host, self.port, timeout=self.timeout_s)
        context = ssl.create_default_context(cafile=self.ca)
        if self.tls == "implicit":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout_s, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=self.timeout_s)
        try:
            server.starttls(context=context)
        except BaseException:
            server.close()
            raise
        return server

    def _mail(self, message: Message) -> EmailMessage:
        alert = message["alert"]
        mail = EmailMessage()
        mail["Subject"] = _one_line(
            f"[{message['event']}] {alert['severity']}: {alert['rule']} ({alert['slice']})"
        )
        mail["From"], mail["To"] = self.sender, ", ".join(self.email)
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = f"<{message['id']}@{MESSAGE_ID_DOMAIN}>"
        # so that mail programs show one thread per alert
        mail["References"] = f"<{alert['id']}@{MESSAGE_ID_DOMAIN}>"
        mail["Auto-Submitted"] = "auto-generated"
        until = f"\nuntil: {alert['until']}" if alert["until"] else ""
        mail.set_content(
            f"{message['text']}\n\nsince: {alert['since']} UTC{until}\nalert: {alert['id']}\n"
        )
        return mail


def _is_address(value: object) -> bool:
    return is_text(value) and str(value).count("@") == 1 and not set(str(value)) & set(" ,;<>")


def _one_line(text: str) -> str:
    return " ".join(text.split())


MAX_STDERR = 200  # characters of standard error in messages


@dataclass(frozen=True, kw_only=True)
class Command:
    """An argument list, or with `shell` a command line for the shell."""

    command: list[str] | str
    shell: bool = False
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.shell != isinstance(self.command, str):
            raise ValueError("a command must be a list of words, or a string with shell = true")

    @staticmethod
    def wrong(key: str, value: object) -> str | None:
        """The error of a value of the rules file, or None."""
        is_word_list = (
            isinstance(value, list) and value and all(isinstance(word, str) for word in value)
        )
        if key == "command" and not (is_word_list or is_text(value)):
            return "must be a list of words, or a string with shell = true"
        if key == "shell" and not isinstance(value, bool):
            return "must be true or false"
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """Commands use no environment variables of the rules file."""

    def send(self, message: Message) -> str:
        """Run the command with the message on standard input; kill its process group on timeout."""
        try:
            process = subprocess.Popen(
                self.command,
                shell=self.shell,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise DeliveryFailed(str(error), code="command-not-started") from None
        try:
            _, stderr = process.communicate(json.dumps(message).encode(), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise DeliveryFailed(
                f"the command took more than {self.timeout_s:g} s", code="command-timeout"
            ) from None
        if process.returncode:
            reason = " ".join(stderr.decode("utf-8", "replace").split())[-MAX_STDERR:]
            raise DeliveryFailed(
                f"the command exited with {process.returncode}" + (f": {reason}" if reason else ""),
                code="command-failed",
                exit_code=process.returncode,
                output=reason,
            )
        return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


Channel = Webhook | Email | Command
CHANNEL_KINDS: dict[str, type[Webhook] | type[Email] | type[Command]] = {
    "webhook": Webhook,
    "email": Email,
    "command": Command,
}


FIRST_RETRY_S, MAX_RETRY_S = 2.0, 600.0  # between two tries


def due_notifications(state: State, now: float, busy: Collection[str]) -> list[Notification]:
    """The next notification of each idle receiver; the order per receiver is kept."""
    heads: dict[str, Notification] = {}
    for notification in state.outbox:
        heads.setdefault(notification.receiver, notification)
    return [
        notification
        for receiver, notification in heads.items()
        if receiver not in busy and notification.due <= now
    ]


def mark_delivered(state: State, notification: Notification) -> State:
    """Remove a delivered notification."""
    return replace(
        state,
        outbox=tuple(
            other
            for other in state.outbox
            if _notification_key(other) != _notification_key(notification)
        ),
    )


def mark_failed(state: State, notification: Notification, error: str, now: float) -> State:
    """Schedule the next try; the delay doubles with each one."""
    wait = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(notification.tries, 20))
    failed = replace(notification, tries=notification.tries + 1, due=now + wait, error=error)
    outbox = tuple(
        failed if _notification_key(other) == _notification_key(notification) else other
        for other in state.outbox
    )
    return replace(state, outbox=outbox)


def drop_unknown_receivers(
    state: State, channels: Collection[str]
) -> tuple[State, list[Notification]]:
    """Remove notifications for receivers that no longer exist, and return them."""
    dropped = [
        notification for notification in state.outbox if notification.receiver not in channels
    ]
    return replace(
        state,
        outbox=tuple(
            notification for notification in state.outbox if notification.receiver in channels
        ),
    ), dropped


def _notification_key(notification: Notification) -> tuple[str, str]:
    return notification.id, notification.receiver
