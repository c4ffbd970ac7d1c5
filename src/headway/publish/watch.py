"""The standing worker: publishes anchors as they appear. Several may watch the same place."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from headway.errors import (
    CheckpointDamaged,
    PublishFailed,
    RegistryFailed,
    SaveFailed,
    SnapshotDamaged,
)
from headway.publish import claims, job
from headway.publish.after import After, after
from headway.publish.anchor import Anchor, waiting
from headway.publish.examine import Examine, fresh
from headway.publish.job import Outcome
from headway.publish.lease import Taken
from headway.publish.recipe import Recipe
from headway.publish.store import Store


def watch(
    url: str,
    recipe: Recipe,
    store: Store,
    *,
    say: Callable[[str], None],
    every_s: float = 10.0,
    once: bool = False,
    examine: Examine = fresh,
    publish: Callable[..., Outcome] = job.publish,
) -> None:
    """Publish what is there and was not, the oldest first; again and again unless `once`.

    An anchor that was turned down is not tried again; after a full disk the next round tries anew.
    """
    then = after(recipe, store, say)
    while True:
        claim = claims.watching(url, recipe.digest, store)
        for anchor in waiting(url):
            try:
                _one(anchor, then, claim, partial(publish, orderly=True, examine=examine))
            except SaveFailed as error:
                say(f"not yet: {error}")
        _register(then)  # last: a registry that is away holds up nobody
        if once:
            return
        time.sleep(every_s)


def _one(anchor: Anchor, then: After, claim: str, publish: Callable[..., Outcome]) -> None:
    """Publish it if nobody has, and release it if somebody has."""
    recipe, store = then.recipe, then.store
    key = anchor.key(recipe.digest)
    if not store.noted(key):
        try:
            outcome = publish(anchor, recipe, store)
        except Taken:
            return
        except (PublishFailed, CheckpointDamaged) as error:
            store.note(key, {"rejected": str(error)})
            then.say(f"turned down: {error}")
            return
        if outcome.fresh:
            then.say(f"published {anchor.path} as {outcome.snapshot.name}")
    if recipe.release and "snapshot" in store.noted(key):
        then.release(anchor, claim)


def _register(then: After) -> None:
    try:
        then.register()
    except (RegistryFailed, SnapshotDamaged, SaveFailed) as error:
        then.say(f"not registered yet: {error}")
