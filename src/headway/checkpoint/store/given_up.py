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
class AbortMark:
    """What the mark says."""

    rank: int
    why: str
    code: str = ""  # of the problem


def write_abort_mark(draft: Draft, given: AbortMark) -> bool:
    """Leave it, in the place of one that is there; False if the store does not take it."""
    owner = json.loads(owners.identify_process())
    content = json.dumps({**asdict(given), "owner": owner}).encode()
    where = draft.place
    try:
        where.make()
        with where.locked():  # or a sweep takes away what is half written
            where.write(names.abort_mark_name(draft.step, draft.save_id), content)
    except Exception:  # of whatever the store is
        return False
    return True


def find_abort_mark(draft: Draft) -> AbortMark | None:
    """What was left; None if nobody has given it up."""
    try:
        found = json.loads(draft.place.read(names.abort_mark_name(draft.step, draft.save_id)))
        return AbortMark(int(found["rank"]), str(found["why"]), str(found.get("code", "")))
    except Exception:  # of whatever the store is: looked for again
        return None


def remove_abort_marks(where: Place, before: float) -> None:
    """After a checkpoint: take marks of this process and of dead ones away, and very old ones."""
    for name in where.names():
        if names.ABORT_MARK.fullmatch(name) is None:
            continue
        with contextlib.suppress(FileNotFoundError):
            if _is_expired(where, name, before):
                where.delete(name)


def _is_expired(where: Place, name: str, before: float) -> bool:
    try:
        owner = json.dumps(json.loads(where.read(name))["owner"]).encode()
    except (ValueError, KeyError, TypeError):
        owner = b""
    if owner == owners.identify_process():
        return True
    gone = owners.process_ended(owner)
    return where.changed(name) < before if gone is None else gone
