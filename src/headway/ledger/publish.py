"""A training run and the publish of its last checkpoint: two runs that refer to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway.ledger.buckets import EFFECTIVE
from headway.ledger.model import Ledger, Publish
from headway.ledger.record import AttemptRecord
from headway.units import NS


def publish_from_note(note: Mapping[str, Any]) -> Publish | None:
    """Read the publish from the folder of a training run: see headway/journal/run_files.py."""
    return _publish(note, str(note.get("folder") or "")) if note else None


def publish_from_events(attempts: Sequence[AttemptRecord]) -> Publish | None:
    """Read the publish from its own events, whose run is the training run."""
    journals = [j for d in attempts for j in (*(rank.journal for rank in d.ranks), *d.others)]
    events = [event for journal in journals for event in journal.named("published")]
    return _publish(events[-1], str(events[-1].get("ledger") or "")) if events else None


def _publish(fields: Mapping[str, Any], folder: str) -> Publish:
    texts = ("run", "anchor", "store", "snapshot", "error", "log")
    seconds: Any = fields.get("seconds")
    known = type(seconds) in (int, float) and math.isfinite(seconds) and 0 <= seconds < 1e9
    return Publish(
        folder=folder,
        took=round(seconds * NS) if known else None,
        **{name: str(fields.get(name) or "") for name in texts},
    )


def accelerators_held(ledger: Ledger) -> int:
    """Return the accelerators that the training held to its end, one per rank."""
    if not ledger.attempts:
        return 0
    last = ledger.attempts[-1]
    return last.world or len(last.ranks)


def time_after_training(ledger: Ledger) -> int:
    """Return all time from the last step to the release of the accelerators."""
    trained = [segment.end for segment in ledger.segments if segment.bucket == EFFECTIVE]
    return ledger.wall - max(trained, default=ledger.wall)
