"""A ledger without secrets: journals of older versions, and of others, may hold some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from headway import redact
from headway.ledger.model import Ledger

# By the name a run is known everywhere; the others hold times, and there are very many of them.
_UNMASKED_FIELDS = frozenset({"run", "segments", "ranks", "buckets"})


def mask_secrets(ledger: Ledger) -> Ledger:
    """Every text in it but the run's name."""
    made: Ledger = _mask_fields(ledger, _UNMASKED_FIELDS)
    return made


def _mask_fields(value: Any, kept: frozenset[str] = frozenset()) -> Any:
    changed = {}
    for field in fields(value):
        old = getattr(value, field.name)
        if field.name not in kept and (new := _mask_value(old)) != old:
            changed[field.name] = new
    return replace(value, **changed) if changed else value


def _mask_value(value: Any) -> Any:
    if isinstance(value, (str, Mapping)):
        return redact.data(value)
    if isinstance(value, tuple):
        if value and all(isinstance(item, str) for item in value):
            return tuple(redact.words(value))
        return tuple(_mask_value(item) for item in value)
    return _mask_fields(value) if is_dataclass(value) else value
