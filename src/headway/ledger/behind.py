"""Saves that `--async-save` has written behind the training, and those it could not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headway.ledger.attempts import AttemptRecord
from headway.ledger.model import AsyncSave


def async_saves(drafts: Sequence[AttemptRecord]) -> AsyncSave | None:
    """Over all ranks and attempts; None where nothing was saved so."""
    events = [e for d in drafts for life in d.lives for e in life.journal.named("behind")]
    if not events:
        return None
    written = [event for event in events if "bytes" in event]
    return AsyncSave(
        saves=sum("error" not in event for event in written),
        blocked=sum(_number(event.get("blocked")) for event in written),
        written=sum(map(_duration, written)),
        waited=sum(_duration(event) for event in events if "waited" in event),
        failed=sum("error" in event for event in written),
        plain=Counter(str(event["why"])[:200] for event in events if "why" in event),
    )


def _duration(event: dict[str, Any]) -> int:
    return max(_number(event.get("end")) - _number(event.get("t")), 0)


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
