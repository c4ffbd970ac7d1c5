"""The checkpoint that a job has left behind in a store."""

from __future__ import annotations

from headway.checkpoint.store import names
from headway.checkpoint.store.read import Store
from headway.checkpoint.store.retain import pin


def last_anchor(url: str, since: float) -> str | None:
    """The path of the last anchor that was made since then, or else of the last checkpoint.

    It is an anchor from now on: nobody takes it away before it is published.
    """
    store = Store(url)
    fresh = [one for one in store.checkpoints() if one.manifest.made >= since]
    good = [one for one in fresh if not store.verify(one)]
    pinned = [one for one in good if names.ANCHOR in store.place.names(one.name)]
    if not good:
        return None
    if not pinned:
        pin(url, good[0])
    return (pinned or good)[0].path
