"""Clearing up after those who were killed: drafts nobody writes, deletions that were cut short."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from headway.checkpoint.store import disk, given_up, names, owners
from headway.checkpoint.store import manifest as manifests
from headway.checkpoint.store.commit import is_draft_file
from headway.checkpoint.store.place import LocalPlace, Place, open_place, os_errors_as_save_failed
from headway.checkpoint.store.read import Checkpoint, Store

ABANDONED_S = 86400.0  # a draft whose writer cannot be asked is given up after this time


def sweep(
    store: str | os.PathLike[str], *, old_s: float = ABANDONED_S, now: float | None = None
) -> list[str]:
    """Take away what no writer and no checkpoint needs; the names of it."""
    where = open_place(store)
    at = time.time() if now is None else now
    with os_errors_as_save_failed(f"{where.url} cannot be swept"):
        if not where.names():
            return []
        if isinstance(where, LocalPlace):
            return _sweep_folder(where, at - old_s)
        return _sweep_remote(where, at - old_s)


def _sweep_folder(where: LocalPlace, before: float) -> list[str]:
    with where.locked():
        doomed = [name for name in where.names() if names.TRASH.fullmatch(name)]
        for name in where.names():
            if names.DRAFT.fullmatch(name):
                doomed += filter(None, [_trash_if_abandoned(where, name, before)])
            elif names.REPLACEMENT.fullmatch(name):
                where.delete(name)
        given_up.remove_abort_marks(where, before)
        listed, _ = Store(where.url).listed()
        doomed += _finish_replacements(where, listed)
        for one in listed:
            for left in filter(is_draft_file, where.names(one.name)):
                where.delete(f"{one.name}/{left}")
    for name in doomed:
        where.delete_folder(name)
    return doomed


def _trash_if_abandoned(where: LocalPlace, name: str, before: float) -> str | None:
    """Put a draft away that nobody holds, or without locks that nobody has touched for long."""
    try:
        held = disk.lock(f"{where.path(name)}/{names.DRAFT_LOCK}", wait=False)
    except (disk.Busy, FileNotFoundError, NotADirectoryError):
        return None
    except disk.NoLocks:
        return move_to_trash(where, name) if where.changed(name) < before else None
    try:
        return move_to_trash(where, name)
    finally:
        disk.close(held)


def move_to_trash(where: LocalPlace, name: str) -> str:
    """Give it a name under which it counts no more, and is deleted by anybody."""
    digits = "".join(sign for sign in name if sign.isdigit())[:10]
    gone = names.trash_name(int(digits))
    where.rename(name, gone)
    return gone


def _finish_replacements(where: LocalPlace, listed: Sequence[Checkpoint]) -> list[str]:
    """Finish replacements: the old one goes, or is back if the new one never came.

    Where the new one cannot be read any more, the old one stays.
    """
    doomed = []
    needed = {one.manifest.parent for one in listed}
    newest_first = [one.name for one in listed]
    readable = set(newest_first)
    # Of several that were replaced, the newest is the one that comes back.
    for name in [*newest_first, *(name for name in where.names() if name not in newest_first)]:
        match = names.REPLACED.fullmatch(name)
        if match is None:
            continue
        home = names.step_name(int(match[1]))
        if home not in where.names():
            where.rename(name, home)
            readable.add(home)
        elif home in readable and not (match[2] in needed or names.ANCHOR in where.names(name)):
            doomed.append(move_to_trash(where, name))
    return doomed


def _sweep_remote(where: Place, before: float) -> list[str]:
    """What has no manifest is a draft, or was being deleted."""
    doomed = []
    given_up.remove_abort_marks(where, before)
    for name in where.names():
        if names.REMOTE_STEP.fullmatch(name) is None:
            continue
        there = where.names(name)
        if manifests.MANIFEST in there:
            for left in filter(is_draft_file, there):
                where.delete(f"{name}/{left}")
        elif _is_abandoned(where, name, there, before):
            where.delete_folder(name)
            doomed.append(name)
    return doomed


def _is_abandoned(where: Place, name: str, there: list[str], before: float) -> bool:
    told = [one for one in there if one.startswith(names.OWNER_PREFIX)]
    states: list[bool | None] = []
    for owner in told:
        with contextlib.suppress(FileNotFoundError):
            states.append(owners.process_ended(where.read(f"{name}/{owner}")))
    if False in states:
        return False
    if states and all(states):
        return True
    return where.changed(name) < before
