"""Claims on the anchors of a checkpoint store, so that none is released too early.

CHECKPOINTS/claims/NAME    the recipe of a watching worker, or one publish of one anchor
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

from headway.checkpoint.store import cleanup, layout
from headway.errors import HeadwayError
from headway.publish.anchor import Anchor
from headway.publish.store import SnapshotStore
from headway.storage import process_identity
from headway.storage.place import Place, open_place

CLAIMS_FOLDER = "claims"
CLAIM_EXPIRES_S = 86400.0  # without renewal
CLAIM_RENEW_S = 3600.0


def claim_recipe(url: str, recipe: str, store: SnapshotStore) -> str:
    """Claim the anchors for a watched recipe; returns the name of the claim, which expires."""
    name = hashlib.sha256(f"{recipe} {store.place.url}".encode()).hexdigest()[:32]
    place = open_place(url)
    form = layout.STEP if place.can_rename else layout.REMOTE_STEP
    if any(map(form.fullmatch, place.list_names())) and not _is_recent(place, name):
        _write(place, name, {"recipe": recipe, "store": store.place.url})
    return name


def _is_recent(place: Place, name: str) -> bool:
    try:
        return place.modified_at(f"{CLAIMS_FOLDER}/{name}") > time.time() - CLAIM_RENEW_S
    except OSError:
        return False


@contextlib.contextmanager
def claim_anchor(anchor: Anchor) -> Iterator[str]:
    """Claim an anchor while it is published; yields the name of the claim."""
    name = f"{os.getpid()}-{secrets.token_hex(8)}"
    if anchor.kind != "store":
        yield name
        return
    place = open_place(anchor.order[0])
    _write(place, name, {**json.loads(process_identity.identify_process()), "anchor": anchor.id})
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            place.delete(f"{CLAIMS_FOLDER}/{name}")


def release_anchor(anchor: Anchor, own_claim: str) -> bool:
    """Release an anchor to retention unless it has other claims; returns whether it did."""
    if anchor.kind != "store" or _is_claimed(open_place(anchor.order[0]), anchor, own_claim):
        return False
    cleanup.release(anchor.order[0], anchor.chain[-1])
    return True


def _is_claimed(place: Place, anchor: Anchor, own_claim: str) -> bool:
    for name in place.list_names(CLAIMS_FOLDER):
        if name == own_claim:
            continue
        try:
            content, changed = (
                place.read(f"{CLAIMS_FOLDER}/{name}"),
                place.modified_at(f"{CLAIMS_FOLDER}/{name}"),
            )
        except FileNotFoundError:
            continue
        if process_identity.process_ended(content) or changed < time.time() - CLAIM_EXPIRES_S:
            place.delete(f"{CLAIMS_FOLDER}/{name}")
        elif _needs_anchor(content, anchor):
            return True
    return False


def _needs_anchor(content: bytes, anchor: Anchor) -> bool:
    try:
        claim = json.loads(content)
        if "anchor" in claim:
            return bool(claim["anchor"] == anchor.id)
        return not SnapshotStore(claim["store"]).is_settled(anchor.key(claim["recipe"]))
    except (ValueError, KeyError, TypeError, OSError, HeadwayError):
        return True  # unknown: assume it does


def _write(place: Place, name: str, claim: dict[str, Any]) -> None:
    """Write a claim; in a read-only store it is not needed, as nothing can be released."""
    with contextlib.suppress(OSError):
        place.make_folder(CLAIMS_FOLDER)
        place.write(f"{CLAIMS_FOLDER}/{name}", json.dumps(claim).encode())
