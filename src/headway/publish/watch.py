"""The standing worker: publishes anchors as they appear. Several may watch the same place."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.errors import CheckpointDamaged, PublishFailed, SaveFailed
from headway.publish.anchor import waiting
from headway.publish.examine import Examine, fresh
from headway.publish.job import publish
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
) -> None:
    """Publish what is there and was not, the oldest first; again and again unless `once`.

    An anchor that was turned down is not tried again; after a full disk the next round tries anew.
    """
    while True:
        for anchor in waiting(url):
            key = anchor.key(recipe.digest)
            if store.noted(key):
                continue
            try:
                outcome = publish(anchor, recipe, store, orderly=True, examine=examine)
            except Taken:
                continue
            except (PublishFailed, CheckpointDamaged) as error:
                store.note(key, {"rejected": str(error)})
                say(f"turned down: {error}")
            except SaveFailed as error:
                say(f"not yet: {error}")
            else:
                if outcome.fresh:
                    say(f"published {anchor.path} as {outcome.snapshot.name}")
        if once:
            return
        time.sleep(every_s)
