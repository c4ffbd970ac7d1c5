"""Who waits for the anchors of a store of checkpoints, so that none is released too early.

CHECKPOINTS/claims/NAME    a recipe that a worker watches for, or one publish of one anchor
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
CLAIM_EXPIRES_S = 86400.0  # a claim that was not renewed for so long is none
CLAIM_RENEW_S = 3600.0


def claim_recipe(url: str, recipe: str, store: SnapshotStore) -> str:
    """This recipe is watched for; the name of the claim, which stays until it lapses."""
    name = hashlib.sha256(f"{recipe} {store.place.url}".encode()).hexdigest()[:32]
    where = open_place(url)
    form = layout.STEP if where.renames else layout.REMOTE_STEP
    if any(map(form.fullmatch, where.names())) and not _is_recent(where, name):
        _write(where, name, {"recipe": recipe, "store": store.place.url})
    return name


def _is_recent(where: Place, name: str) -> bool:
    try:
        return where.changed(f"{CLAIMS_FOLDER}/{name}") > time.time() - CLAIM_RENEW_S
    except OSError:
        return False


@contextlib.contextmanager
def claim_anchor(one: Anchor) -> Iterator[str]:
    """This anchor is read now; the name of the claim."""
    name = f"{os.getpid()}-{secrets.token_hex(8)}"
    if one.kind != "store":
        yield name
        return
    where = open_place(one.order[0])
    _write(where, name, {**json.loads(process_identity.identify_process()), "anchor": one.id})
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            where.delete(f"{CLAIMS_FOLDER}/{name}")


def release_anchor(one: Anchor, own: str) -> bool:
    """Let retention have an anchor, unless somebody else waits for it; whether that was done."""
    if one.kind != "store" or _is_claimed(open_place(one.order[0]), one, own):
        return False
    cleanup.release(one.order[0], one.chain[-1])
    return True


def _is_claimed(where: Place, one: Anchor, own: str) -> bool:
    for name in where.names(CLAIMS_FOLDER):
        if name == own:
            continue
        try:
            content, changed = (
                where.read(f"{CLAIMS_FOLDER}/{name}"),
                where.changed(f"{CLAIMS_FOLDER}/{name}"),
            )
        except FileNotFoundError:
            continue
        if process_identity.process_ended(content) or changed < time.time() - CLAIM_EXPIRES_S:
            where.delete(f"{CLAIMS_FOLDER}/{name}")
        elif _needs_anchor(content, one):
            return True
    return False


def _needs_anchor(content: bytes, one: Anchor) -> bool:
    try:
        told = json.loads(content)
        if "anchor" in told:
            return bool(told["anchor"] == one.id)
        return not SnapshotStore(told["store"]).settled(one.key(told["recipe"]))
    except (ValueError, KeyError, TypeError, OSError, HeadwayError):
        return True  # nobody can tell


def _write(where: Place, name: str, told: dict[str, Any]) -> None:
    """What can only be read cannot be released either."""
    with contextlib.suppress(OSError):
        where.make(CLAIMS_FOLDER)
        where.write(f"{CLAIMS_FOLDER}/{name}", json.dumps(told).encode())
