"""Worker that publishes anchors as they appear; several workers may watch the same store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headway.errors import (
    CheckpointDamaged,
    CheckpointUntrusted,
    HeadwayError,
    PublishDeferred,
    PublishFailed,
    RegistryFailed,
    SaveFailed,
    SnapshotDamaged,
    with_code,
)
from headway.publish import claims, job
from headway.publish.anchor import Anchor, pending_anchors
from headway.publish.job import AfterPublish, Outcome, after_publish
from headway.publish.recipe import Recipe
from headway.publish.store import SnapshotStore
from headway.publish.validate import TargetChecker, check_in_subprocess
from headway.storage.lease import AlreadyPublishing

FIRST_RETRY_S = 60.0  # after the first try; doubles with each try
MAX_RETRY_S = 3600.0
MAX_TRIES = 10  # about five hours


def watch(
    url: str,
    recipe: Recipe,
    store: SnapshotStore,
    *,
    log: Callable[[str], None],
    every_s: float = 10.0,
    once: bool = False,
    check_target: TargetChecker = check_in_subprocess,
    publish: Callable[..., Outcome] = job.publish,
) -> None:
    """Publish new anchors, the oldest first; repeat unless `once`.

    Rejected anchors are not tried again. Deferred anchors are, at increasing intervals and up to
    MAX_TRIES times. After a full disk, the next round tries again.
    """
    after = after_publish(recipe, store, log)
    while True:
        claim = claims.claim_recipe(url, recipe.digest, store)
        for anchor in pending_anchors(url):
            try:
                _publish_if_due(
                    anchor, after, claim, partial(publish, orderly=True, check_target=check_target)
                )
            except SaveFailed as error:
                log(with_code(f"deferred: {error}", code=error.code))
        _register(after)  # last, so that an unavailable registry does not delay publishing
        if once:
            return
        time.sleep(every_s)


def _publish_if_due(
    anchor: Anchor, after: AfterPublish, claim: str, publish: Callable[..., Outcome]
) -> None:
    """Publish an anchor unless it is published, and release it once it is."""
    recipe, store = after.recipe, after.store
    key = anchor.key(recipe.digest)
    if _is_due(store.outcome_of(key), time.time()):
        try:
            outcome = publish(anchor, recipe, store)
        except AlreadyPublishing:
            return
        except (PublishDeferred, CheckpointUntrusted) as error:
            _defer(after, key, error, time.time())
            return
        except (PublishFailed, CheckpointDamaged) as error:
            store.record_outcome(key, {"rejected": str(error)})
            after.log(with_code(f"rejected: {error}", code=error.code))
            return
        if outcome.fresh:
            after.log(f"published {anchor.path} as {outcome.snapshot.name}")
    if recipe.release and "snapshot" in store.outcome_of(key):
        after.release(anchor, claim)


def _is_due(note: Mapping[str, Any], now: float) -> bool:
    """Whether to try an anchor now: not tried yet, or its retry time has passed."""
    again = note.get("again")
    if "deferred" not in note or not isinstance(again, (int, float)):
        return not note
    return not now < again <= now + MAX_RETRY_S  # or a clock was wrong


def _defer(after: AfterPublish, key: str, error: HeadwayError, now: float) -> None:
    """Schedule another try; reject the anchor after MAX_TRIES."""
    tries = after.store.outcome_of(key).get("tries")
    tries = tries + 1 if isinstance(tries, int) else 1
    if tries >= MAX_TRIES:
        after.store.record_outcome(key, {"rejected": f"{error} ({tries} times)"})
        after.log(with_code(f"rejected: {error}", code=error.code))
        return
    wait_s = min(FIRST_RETRY_S * 2 ** (tries - 1), MAX_RETRY_S)
    after.store.record_outcome(key, {"deferred": str(error), "tries": tries, "again": now + wait_s})
    after.log(with_code(f"deferred: {error}", code=error.code))


def _register(after: AfterPublish) -> None:
    try:
        after.register()
    except (RegistryFailed, SnapshotDamaged, SaveFailed) as error:
        after.log(with_code(f"not registered yet: {error}", code=error.code))
