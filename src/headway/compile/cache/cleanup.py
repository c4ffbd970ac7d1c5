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

GRACE_S = DAY  # a newer chunk may belong to an archive that is still being written


@dataclass(frozen=True)
class StoredArchive:
    """An archive as listed in the store."""

    name: str
    size: int  # bytes of the manifest
    manifest: Manifest | None
    reason: Reason = FINE  # why it cannot be used

    @property
    def id(self) -> str:
        """The last part of its name, made printable: the name comes from the store."""
        last = self.name.rpartition("/")[2]
        return "".join(sign if sign.isprintable() else "?" for sign in last)


@dataclass(frozen=True, kw_only=True)
class CleanupResult:
    """What was deleted, or would be in a dry run."""

    archives: int
    chunks: int
    bytes: int
    unreadable: int  # unreadable archives; while there are any, no chunk is deleted


def list_archives(store: ArchiveStore) -> Iterator[StoredArchive]:
    """Yield every archive, oldest first."""
    entries = sorted(store.place.entries("archives"), key=lambda entry: entry[0].rpartition("/")[2])
    for name, size, _ in entries:
        try:
            yield StoredArchive(name, size, store.read_manifest(name))
        except ObjectMissing:
            continue
        except (chunks.DamagedData, signing.Untrusted) as error:
            yield StoredArchive(name, size, None, Reason(str(error), code=error.code))


def chunk_sizes(store: ArchiveStore) -> dict[str, int]:
    """Stored bytes of each chunk."""
    return {name.rpartition("/")[2]: size for name, size, _ in store.place.entries("chunks")}


def verify_archive(store: ArchiveStore, archive: StoredArchive) -> Reason:
    """Verify every byte of an archive; returns what is wrong, or an empty reason."""
    if archive.manifest is None:
        return archive.reason
    try:
        for _ in store.fetch(archive.manifest):
            pass
    except chunks.DamagedData as error:
        return Reason(str(error), code=error.code)
    return FINE


def collect_garbage(
    store: ArchiveStore,
    *,
    max_size: int | None = None,
    max_age_s: float | None = None,
    dry_run: bool = False,
    now: float | None = None,
) -> CleanupResult:
    """Delete expired archives, then the oldest until the rest fits, then unreferenced chunks.

    Unreadable archives are kept: a newer Headway or another key may be able to read them.
    """
    current = time.time() if now is None else now
    archives = list(list_archives(store))
    readable = [archive for archive in archives if archive.manifest is not None]
    expired = [
        archive
        for archive in readable
        if max_age_s is not None and current - _made_at(archive) > max_age_s
    ]
    remaining = [archive for archive in readable if archive not in expired]
    sizes = chunk_sizes(store)
    while max_size is not None and remaining and _stored_bytes(remaining, sizes) > max_size:
        expired.append(remaining.pop(0))
    unreferenced = _unreferenced(store, {archive.name for archive in expired}, current)
    freed = sum(archive.size for archive in expired) + sum(size for _, size in unreferenced)
    if not dry_run:
        for name in (*(archive.name for archive in expired), *(name for name, _ in unreferenced)):
            store.place.delete(name)
    unreadable = len(archives) - len(readable)
    return CleanupResult(
        archives=len(expired), chunks=len(unreferenced), bytes=freed, unreadable=unreadable
    )


def _unreferenced(store: ArchiveStore, removed: set[str], current: float) -> list[tuple[str, int]]:
    """Chunks that no archive needs, and drafts of processes that were killed.

    The archives are listed last: one that was just saved may need an old chunk.
    """
    candidates = [
        (name, size)
        for prefix in ("chunks", DRAFTS)
        for name, size, modified in store.place.entries(prefix)
        if current - modified > GRACE_S
    ]
    needed = set()
    for archive in list_archives(store):
        if archive.manifest is None:  # the chunks it needs are unknown
            return []
        if archive.name not in removed:
            needed |= {chunk.name for chunk in archive.manifest.chunks}
    return [(name, size) for name, size in candidates if name.rpartition("/")[2] not in needed]


def _made_at(archive: StoredArchive) -> float:
    return archive.manifest.made if archive.manifest else 0.0


def _stored_bytes(archives: list[StoredArchive], sizes: dict[str, int]) -> int:
    names = {
        chunk.name for archive in archives if archive.manifest for chunk in archive.manifest.chunks
    }
    return sum(sizes.get(name, 0) for name in names) + sum(archive.size for archive in archives)
