"""What all channels share: the message, secrets out of the environment, and that it failed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from headway.errors import HeadwayError, UsageError

Message = Mapping[str, Any]
ENV_PREFIX = "env:"
TIMEOUT_S = 10.0
MIN_SECRET = 4  # characters of what is masked


class DeliveryFailed(HeadwayError):
    """A channel did not take a notification; says why, and no secret."""


def resolve_secret(value: str) -> str:
    """A value, or what the variable that it names says."""
    if not value.startswith(ENV_PREFIX):
        return value
    name = value.removeprefix(ENV_PREFIX)
    found = os.environ.get(name, "").strip()  # what `$(cat FILE)` or a secret store leaves around
    if not found:
        raise UsageError(
            f"the rules need the environment variable {name}, and it is not set",
            code="environment-variable-not-set",
            variable=name,
        )
    return found


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """A text of a library or a server, which may repeat what it was given."""
    words = {word for one in secrets for word in (one, *one.split()) if len(word) >= MIN_SECRET}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "***")
    return text


def is_text(value: object) -> bool:
    """A text with something in it, on one line."""
    return isinstance(value, str) and value.strip() != "" and value.isprintable()


def is_timeout(value: Any) -> bool:
    """Seconds that a channel may take."""
    return type(value) in (int, float) and 0 < value <= 300
