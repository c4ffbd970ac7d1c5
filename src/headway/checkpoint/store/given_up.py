"""The mark of a save that will never be a checkpoint: who gave it up, and why.

It lies beside the draft, as a rank may come to it only after the draft was taken away. It is needed
until all ranks have looked: the next checkpoint of that job is there only after they have.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass

from headway.checkpoint.store import names, owners
from headway.checkpoint.store.commit import Draft
from headway.checkpoint.store.place import Place


@dataclass(frozen=True)
class GivenUp:
    """What the mark says."""

    rank: int
    why: str
    code: str = ""  # of the problem


def mark(draft: Draft, given: GivenUp) -> bool:
    """Leave it, in the place of one that is there; False if the store does not take it."""
    owner = json.loads(owners.describe())
    content = json.dumps({**asdict(given), "owner": owner}).encode()
    where = draft.place
    try:
        where.make()
        with where.locked():  # or a sweep takes away what is half written
            where.write(names.given_up(draft.step, draft.save_id), content)
    except Exception:  # of whatever the store is
        return False
    return True


def marked(draft: Draft) -> GivenUp | None:
    """What was left; None if nobody has given it up."""
    try:
        found = json.loads(draft.place.read(names.given_up(draft.step, draft.save_id)))
        return GivenUp(int(found["rank"]), str(found["why"]), str(found.get("code", "")))
    except Exception:  # of whatever the store is: looked for again
        return None


def clear(where: Place, before: float) -> None:
    """After a checkpoint: take marks of this process and of dead ones away, and very old ones."""
    for name in where.names():
        if names.GIVEN_UP.fullmatch(name) is None:
            continue
        with contextlib.suppress(FileNotFoundError):
            if _over(where, name, before):
                where.delete(name)


def _over(where: Place, name: str, before: float) -> bool:
    try:
        owner = json.dumps(json.loads(where.read(name))["owner"]).encode()
    except (ValueError, KeyError, TypeError):
        owner = b""
    if owner == owners.describe():
        return True
    gone = owners.gone(owner)
    return where.changed(name) < before if gone is None else gone
