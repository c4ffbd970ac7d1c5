"""A notification by e-mail: SMTP with STARTTLS, one message for all recipients."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

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

TLS_MODES = ("starttls", "implicit", "none")
MESSAGE_ID_DOMAIN = "headway.invalid"  # of Message-ID; never looked up


@dataclass(frozen=True, kw_only=True)
class Email:
    """Recipients, and the server that takes it; the password only by `env:NAME`."""

    email: list[str]
    sender: str
    host: str
    port: int = 587
    tls: str = "starttls"
    ca: str | None = None  # a file of certificates, where the system's are not enough
    user: str | None = None
    password: str | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ValueError("'user' and 'password' come together")
        if self.user is not None and self.tls == "none":
            raise ValueError('no password is sent with tls = "none"')

    @staticmethod
    def wrong(key: str, value: object) -> str | None:
        """What is wrong with a value of the rules file."""
        if key == "email" and not (
            isinstance(value, list) and value and all(_is_address(one) for one in value)
        ):
            return "must be a list of addresses"
        if key == "sender" and not _is_address(value):
            return "must be an address"
        if key in ("host", "user", "ca") and not is_text(value):
            return "must be a text"
        if key == "port" and not (type(value) is int and 0 < value < 65536):
            return "must be a number from 1 to 65535"
        if key == "tls" and value not in TLS_MODES:
            return f"must be one of {', '.join(TLS_MODES)}"
        if key == "password" and not (is_text(value) and str(value).startswith(ENV_PREFIX)):
            return "must name a variable of the environment, as env:NAME"
        if key == "timeout_s" and not is_timeout(value):
            return "must be seconds, above 0 and at most 300"
        return None

    def check(self) -> None:
        """UsageError where a variable is not set."""
        resolve_secret(self.password or "")

    def send(self, message: Message) -> str:
        """Hand it over; who was refused while others were not is noted, and not tried again."""
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
                f"the server answered {error.smtp_code}",
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
        mail["References"] = f"<{alert['id']}@{MESSAGE_ID_DOMAIN}>"  # all of an alert in one thread
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
