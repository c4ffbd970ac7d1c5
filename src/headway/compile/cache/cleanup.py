"""List, verify and garbage-collect the archives of a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.folder import DAY
from headway.compile.cache.manifest import Manifest
from headway.errors import FINE, Reason
from headway.storage import chunks, signing
from headway.storage.object_places import DRAFTS, ObjectMissing

GRACE_S = DAY  # a chunk may belong to an archive that is just being made


@dataclass(frozen=True)
class StoredArchive:
    """An archive as it lies in the store."""

    name: str
    size: int  # bytes of the manifest
    manifest: Manifest | None
    why: Reason = FINE  # it cannot be used

    @property
    def id(self) -> str:
        """Its name without the place; somebody else may have named it."""
        last = self.name.rpartition("/")[2]
        return "".join(sign if sign.isprintable() else "?" for sign in last)


@dataclass(frozen=True, kw_only=True)
class CleanupResult:
    """What was taken away, or would be."""

    archives: int
    chunks: int
    bytes: int
    unread: int  # archives that cannot be read; as long as there are any, all chunks stay


def list_archives(store: ArchiveStore) -> Iterator[StoredArchive]:
    """Every archive, the newest last."""
    entries = sorted(store.place.entries("archives"), key=lambda e: e[0].rpartition("/")[2])
    for name, size, _ in entries:
        try:
            yield StoredArchive(name, size, store.manifest(name))
        except ObjectMissing:
            continue
        except (chunks.DamagedData, signing.Untrusted) as error:
            yield StoredArchive(name, size, None, Reason(str(error), code=error.code))


def chunk_sizes(store: ArchiveStore) -> dict[str, int]:
    """Bytes of each chunk, as stored."""
    return {name.rpartition("/")[2]: size for name, size, _ in store.place.entries("chunks")}


def verify_archive(store: ArchiveStore, shelved: StoredArchive) -> Reason:
    """Empty if every byte of it is there and right, else what is wrong."""
    if shelved.manifest is None:
        return shelved.why
    try:
        for _ in store.fetch(shelved.manifest):
            pass
    except chunks.DamagedData as error:
        return Reason(str(error), code=error.code)
    return FINE


def collect_garbage(
    store: ArchiveStore,
    *,
    max_size: int | None = None,
    max_age_s: float | None = None,
    dry: bool = False,
    now: float | None = None,
) -> CleanupResult:
    """Take away old archives, then the oldest until the rest fits, then what no archive needs.

    Archives that cannot be read stay: a newer Headway or another key may be able to.
    """
    at = time.time() if now is None else now
    shelved = list(list_archives(store))
    live = [one for one in shelved if one.manifest is not None]
    gone = [s for s in live if max_age_s is not None and at - _made_at(s) > max_age_s]
    kept = [one for one in live if one not in gone]
    stored = chunk_sizes(store)
    while max_size is not None and kept and _stored_bytes(kept, stored) > max_size:
        gone.append(kept.pop(0))
    loose = _unreferenced(store, {one.name for one in gone}, at)
    freed = sum(one.size for one in gone) + sum(size for _, size in loose)
    if not dry:
        for name in (*(one.name for one in gone), *(name for name, _ in loose)):
            store.place.delete(name)
    unread = len(shelved) - len(live)
    return CleanupResult(archives=len(gone), chunks=len(loose), bytes=freed, unread=unread)


def _unreferenced(store: ArchiveStore, gone: set[str], at: float) -> list[tuple[str, int]]:
    """Chunks that no archive needs, and drafts of somebody who was killed.

    The archives are asked last: one that was saved meanwhile may need an old chunk.
    """
    old = [
        (name, size)
        for below in ("chunks", DRAFTS)
        for name, size, changed in store.place.entries(below)
        if at - changed > GRACE_S
    ]
    needed = set()
    for one in list_archives(store):
        if one.manifest is None:  # nobody can say what it needs
            return []
        if one.name not in gone:
            needed |= {chunk.name for chunk in one.manifest.chunks}
    return [(name, size) for name, size in old if name.rpartition("/")[2] not in needed]


def _made_at(shelved: StoredArchive) -> float:
    return shelved.manifest.made if shelved.manifest else 0.0


def _stored_bytes(kept: list[StoredArchive], stored: dict[str, int]) -> int:
    names = {chunk.name for one in kept if one.manifest for chunk in one.manifest.chunks}
    return sum(stored.get(name, 0) for name in names) + sum(one.size for one in kept)
