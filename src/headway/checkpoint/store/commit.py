"""Commit a draft as a checkpoint, or mark it as aborted.

A commit takes all parts or none, and keeps a valid checkpoint of the same step until the new one
has its name. The mark of an aborted save is stored next to the draft, because a rank may look for
it after the draft was removed. It is needed until all ranks have read it; the next checkpoint of
the job is committed only after that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from headway.checkpoint.store import layout
from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.layout import METADATA, File, Manifest, RankPart
from headway.checkpoint.store.store import Checkpoint, Store
from headway.errors import SaveFailed, UsageError
from headway.storage import disk, process_identity
from headway.storage.codecs import UnreadableData
from headway.storage.place import LocalPlace, Place, open_place, os_errors_as_save_failed

MetadataBuilder = Callable[[Sequence[RankPart]], bytes]  # returns the content of .metadata


class Draft:
    """A save in progress. Every process that writes a part of it holds it open."""

    def __init__(self, store: str | os.PathLike[str], step: int, save_id: str, world: int) -> None:
        if world < 1:
            raise UsageError(f"world must be at least 1, not {world}", code="world-size-invalid")
        self.step, self.save_id, self.world = step, save_id, world
        self.place: Place = open_place(store)
        named = layout.draft_name if self.place.can_rename else layout.remote_step_name
        self.name = named(step, save_id)
        self._lock: int | None = None
        self._read: dict[int, RankPart] = {}  # parts read so far, by rank

    @property
    def failure(self) -> str:
        """The beginning of a message that says why it did not become a checkpoint."""
        return f"the checkpoint of step {self.step} cannot be saved to {self.place.url}"

    @property
    def folder(self) -> str:
        """Where parts are written."""
        return self.place.path(self.name)

    def __enter__(self) -> Draft:
        """Create the folder and mark it as in use."""
        with os_errors_as_save_failed(self.failure):
            self.place.make_folder()
            if self.place.can_rename:
                self._acquire_lock()
            else:
                self.place.write(
                    f"{self.name}/{layout.owner_file_name()}", process_identity.identify_process()
                )
        return self

    def _acquire_lock(self) -> None:
        """Create the folder again if a sweep removes it before it is locked."""
        while self._lock is None:
            self.place.make_folder(self.name)
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._lock = disk.lock(f"{self.folder}/{layout.DRAFT_LOCK}", shared=True)
                except disk.NoLocks:
                    return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the draft; if it was not committed, a sweep removes it."""
        if self._lock is not None:
            disk.close(self._lock)
            self._lock = None
        elif not self.place.can_rename:
            self.place.delete(f"{self.name}/{layout.owner_file_name()}")

    def parts(self) -> list[RankPart]:
        """The complete parts by rank, each read once. An unreadable part is not complete."""
        files = set(self.place.list_names(self.name))
        known, self._read = self._read, {}
        for rank in range(self.world):
            name = manifests.part_name(rank)
            if name not in files:
                continue
            with contextlib.suppress(UnreadableData):
                if rank not in known:
                    known[rank] = manifests.part_from_bytes(self.place.read(f"{self.name}/{name}"))
                self._read[rank] = known[rank]
        return list(self._read.values())


def commit(
    draft: Draft,
    metadata: MetadataBuilder,
    *,
    kind: str = "full",
    parent: str | None = None,
    extra: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.time,
) -> Checkpoint:
    """Commit a draft that all ranks have written; the checkpoint exists once this returns."""
    if kind not in manifests.KINDS or (kind == "delta") != (parent is not None):
        raise UsageError(
            f"a checkpoint is 'full', or 'delta' with a parent, not {kind!r} with parent "
            f"{parent!r}",
            code="checkpoint-kind-invalid",
        )
    extra_json = _json_copy(extra or {})
    with os_errors_as_save_failed(draft.failure):
        parts = _checked_parts(draft)
        described = _write_metadata(draft, metadata(parts))
        with draft.place.lock():
            others = [other.manifest for other in Store(draft.place.url).scan()[0]]
            if parent is not None and parent not in {other.save_id for other in others}:
                raise SaveFailed(
                    f"{draft.failure}: the save {parent} that it builds on is gone",
                    code="parent-missing",
                    parent=parent,
                )
            manifest = Manifest(
                step=draft.step,
                save_id=draft.save_id,
                world=draft.world,
                made=clock(),
                sequence=max((other.sequence for other in others), default=0) + 1,
                kind=kind,
                parent=parent,
                files=(described, *(part.file for part in parts)),
                extra=extra_json,
            )
            name = _make_visible(draft, manifest)
            draft.place.write(layout.LATEST, f"{name}\n".encode())
            _remove_draft_files(draft.place, name)
    return Checkpoint(name, draft.place.path(name), manifest)


def _json_copy(extra: Mapping[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(extra)))
        return copy
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"`extra` must be JSON-serializable: {error}", code="extra-not-json"
        ) from None


def _checked_parts(draft: Draft) -> list[RankPart]:
    """The parts of all ranks, with files of the recorded size."""
    parts = draft.parts()
    missing = sorted(set(range(draft.world)) - {part.rank for part in parts})
    if missing:
        who = ", ".join(map(str, missing))
        raise SaveFailed(
            f"{draft.failure}: the part of rank {who} is missing",
            code="parts-missing",
            ranks=missing,
        )
    for part in parts:
        try:
            size = draft.place.size(f"{draft.name}/{part.file.name}")
        except FileNotFoundError:
            size = -1
        if size != part.file.size:
            actual = f"{max(size, 0)} bytes instead of {part.file.size}"
            raise SaveFailed(
                f"{draft.failure}: the file of rank {part.rank} has {actual}",
                code="size-mismatch",
                rank=part.rank,
                size=max(size, 0),
            )
    return parts


def _write_metadata(draft: Draft, content: bytes) -> File:
    draft.place.write(f"{draft.name}/{METADATA}", content)
    digest = hashlib.sha256(content).hexdigest()
    return File(name=METADATA, size=len(content), crc32=zlib.crc32(content), sha256=digest)


def _make_visible(draft: Draft, manifest: Manifest) -> str:
    """The point at which the checkpoint exists."""
    draft.place.write(f"{draft.name}/{manifests.MANIFEST}", manifests.manifest_to_bytes(manifest))
    if not isinstance(draft.place, LocalPlace):
        return draft.name
    name = layout.step_name(draft.step)
    _rename_existing(draft.place, name)
    draft.place.rename(draft.name, name)
    return name


def _rename_existing(where: LocalPlace, name: str) -> None:
    """Rename a checkpoint of the same step; it stays valid until the new one has its name."""
    if name not in where.list_names():
        return
    if manifests.MANIFEST not in where.list_names(name):
        raise SaveFailed(
            f"{where.path(name)} already exists and is not a checkpoint of Headway; move "
            "it elsewhere",
            code="name-taken",
            path=where.path(name),
        )
    try:
        old = manifests.manifest_from_bytes(where.read(f"{name}/{manifests.MANIFEST}")).save_id
    except UnreadableData:
        old = secrets.token_hex(8)
    where.rename(name, layout.replaced_name(int(name.removeprefix("step-")), old))


def _remove_draft_files(where: Place, name: str) -> None:
    """Remove files that only a draft needs; remaining ones are harmless and swept later."""
    with contextlib.suppress(OSError):
        for leftover in where.list_names(name):
            if is_draft_file(leftover):
                where.delete(f"{name}/{leftover}")


def is_draft_file(name: str) -> bool:
    """Whether a file belongs to a draft, not to a checkpoint."""
    return (
        name == layout.DRAFT_LOCK
        or name.startswith((layout.OWNER_PREFIX, "part-"))
        or layout.REPLACEMENT.fullmatch(name) is not None
    )


@dataclass(frozen=True)
class AbortMark:
    """The content of an abort mark."""

    rank: int
    why: str
    code: str = ""  # of the problem


def write_abort_mark(draft: Draft, mark: AbortMark) -> bool:
    """Write the mark, replacing an existing one; return False if the store fails."""
    owner = json.loads(process_identity.identify_process())
    content = json.dumps({**asdict(mark), "owner": owner}).encode()
    where = draft.place
    try:
        where.make_folder()
        with where.lock():  # a sweep could remove the file while it is written
            where.write(layout.abort_mark_name(draft.step, draft.save_id), content)
    except Exception:  # any error of the store
        return False
    return True


def find_abort_mark(draft: Draft) -> AbortMark | None:
    """The abort mark of a draft; None if no rank has aborted it."""
    try:
        content = json.loads(draft.place.read(layout.abort_mark_name(draft.step, draft.save_id)))
        return AbortMark(int(content["rank"]), str(content["why"]), str(content.get("code", "")))
    except Exception:  # any error of the store: checked again later
        return None


def remove_abort_marks(where: Place, before: float) -> None:
    """After a commit, remove marks of this process, of ended processes, and very old ones."""
    for name in where.list_names():
        if layout.ABORT_MARK.fullmatch(name) is None:
            continue
        with contextlib.suppress(FileNotFoundError):
            if _is_expired(where, name, before):
                where.delete(name)


def _is_expired(where: Place, name: str, before: float) -> bool:
    try:
        owner = json.dumps(json.loads(where.read(name))["owner"]).encode()
    except (ValueError, KeyError, TypeError):
        owner = b""
    if owner == process_identity.identify_process():
        return True
    ended = process_identity.process_ended(owner)
    return where.modified_at(name) < before if ended is None else ended
