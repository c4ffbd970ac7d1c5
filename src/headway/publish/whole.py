"""Whether a file of a snapshot is what the snapshot says of it, and which is not."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from headway.checkpoint.store.place import LocalPlace, Place
from headway.errors import FINE, Reason, SnapshotDamaged
from headway.publish.snapshot import Snapshot, SnapshotFile


def fetch_verified(where: Place, at: str, file: SnapshotFile, name: str, folder: Path) -> Path:
    """A file on this machine, every byte of it looked at; behind a URL it is fetched."""
    digest = hashlib.sha256()
    local = isinstance(where, LocalPlace)
    path = Path(where.path(at)) if local else folder / name
    try:
        with contextlib.ExitStack() as stack:
            out = None if local else stack.enter_context(path.open("wb"))
            for piece in where.pieces(at):
                digest.update(piece)
                if out is not None:
                    out.write(piece)
    except FileNotFoundError:
        raise SnapshotDamaged(
            f"{name} is missing in {where.url}", code="file-missing", file=name
        ) from None
    if digest.hexdigest() != file.sha256:
        raise SnapshotDamaged(
            f"{name} was changed in {where.url}: {at}", code="checksum-mismatch", file=name
        )
    return path


def is_present(where: Place, file: SnapshotFile) -> bool:
    """Whether a store has it, by its size."""
    try:
        return where.size(file.stored) == file.size
    except FileNotFoundError:
        return False


def verified(where: Place, file: SnapshotFile) -> bool:
    """Whether a store has it, by every byte."""
    if not is_present(where, file):
        return False
    digest = hashlib.sha256()
    for piece in where.pieces(file.stored):
        digest.update(piece)
    return digest.hexdigest() == file.sha256


def damage_reason(where: Place, one: Snapshot, *, every_byte: bool) -> Reason:
    """Why a snapshot cannot serve, as one clause; empty if it can."""
    for name, file in one.manifest.files.items():
        if not is_present(where, file):
            return Reason(f"{name} is missing or cut short", code="file-missing")
        if every_byte and not verified(where, file):
            return Reason(f"{name} was changed", code="checksum-mismatch")
    return FINE
