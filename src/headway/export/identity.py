"""The identity of an exported run: a stable key and its labels."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from headway.ledger.model import Ledger


def identity_text(ledger: Ledger) -> str:
    """Return what identifies a run, equal for its copies: keys and IDs are digests of it."""
    created = ledger.metadata.get("created") or ledger.started_at
    return json.dumps([ledger.run, created, ledger.metadata.get("host")])


def run_key(ledger: Ledger) -> str:
    """Return a key that is the same in every export of a run."""
    return hashlib.sha256(identity_text(ledger).encode()).hexdigest()[:16]


def run_labels(ledger: Ledger) -> dict[str, Any]:
    """Return the labels of the run, checked because other programs may write run.json."""
    labels = ledger.metadata.get("labels")
    return {str(name): value for name, value in labels.items()} if isinstance(labels, dict) else {}
