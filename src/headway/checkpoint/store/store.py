"""The checkpoints of a store: list, verify, and choose the latest valid one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.layout import METADATA, File, Manifest
from headway.errors import with_code
from headway.storage.codecs import UnreadableData, crc32_of
from headway.storage.place import Place, open_place

MAX_SCANS = 5  # scans of a listing from which something disappears meanwhile

Depth = Literal["quick", "full"]  # sizes and checksums of small files, or of every byte


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    name: str
    path: str  # path of its folder, or its URL
    manifest: Manifest

    @property
    def step(self) -> int:
        """The training step of the checkpoint."""
        return self.manifest.step


@dataclass(frozen=True)
class UnreadableCheckpoint:
    """A folder that is named like a checkpoint and cannot be read as one."""

    name: str
    step: int
    why: str  # ends with a code


@dataclass(frozen=True)
class RestorePoint:
    """The checkpoint to continue from, and a note with a code for each newer invalid one."""

    checkpoint: Checkpoint | None
    notes: tuple[str, ...] = ()
    chain: tuple[Checkpoint, ...] = ()  # the checkpoint, preceded by those it builds on


class Store:
    """The checkpoints in a place."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.place: Place = open_place(url)

    def checkpoints(self) -> list[Checkpoint]:
        """All committed checkpoints, the latest first; only the last save of each step."""
        return without_replaced(self.scan()[0])

    def scan(self) -> tuple[list[Checkpoint], list[UnreadableCheckpoint]]:
        """All committed checkpoints, including replaced ones, and those that cannot be read."""
        for _ in range(MAX_SCANS):
            good: list[Checkpoint] = []
            bad: list[UnreadableCheckpoint] = []
            before = self.place.list_names()
            for name in before:
                match = self._matched(name)
                if match is None:
                    continue
                entry = self._look(name, int(match))
                if isinstance(entry, Checkpoint):
                    good.append(entry)
                elif entry is not None:
                    bad.append(entry)
            if not bad or {unreadable.name for unreadable in bad} <= set(self.place.list_names()):
                break
        return sorted(good, key=_commit_order, reverse=True), bad

    def _matched(self, name: str) -> str | None:
        """The step in the name of a checkpoint; None for other names."""
        forms = (
            (manifests.STEP, manifests.REPLACED)
            if self.place.can_rename
            else (manifests.REMOTE_STEP,)
        )
        for form in forms:
            if match := form.fullmatch(name):
                return match[1]
        return None

    def _look(self, name: str, step: int) -> Checkpoint | UnreadableCheckpoint | None:
        try:
            content = self.place.read(f"{name}/{manifests.MANIFEST}")
        except (FileNotFoundError, NotADirectoryError):
            if not self.place.can_rename:  # still being written
                return None
            reason = with_code(f"it has no {manifests.MANIFEST}", code="manifest-missing")
            return UnreadableCheckpoint(name, step, reason)
        except OSError as error:
            reason = f"its manifest cannot be read: {error.strerror or error}"
            return UnreadableCheckpoint(name, step, with_code(reason, code="manifest-not-readable"))
        try:
            manifest = manifests.manifest_from_bytes(content)
        except UnreadableData as error:
            reason = f"its manifest cannot be used: {error}"
            return UnreadableCheckpoint(name, step, with_code(reason, code=error.code))
        if manifest.step != step or (
            not self.place.can_rename and not name.endswith(f"-{manifest.save_id}")
        ):
            reason = with_code(
                f"its manifest is that of step {manifest.step}", code="manifest-of-other-step"
            )
            return UnreadableCheckpoint(name, step, reason)
        return Checkpoint(name, self.place.path(name), manifest)

    def latest_valid(
        self, verify: Depth = "quick", damaged: Mapping[str, str] | None = None
    ) -> RestorePoint:
        """The latest checkpoint that is valid with all it builds on, and why newer ones are not.

        `damaged` lists checkpoints that could not be read, by save id.
        """
        good, bad = self.scan()
        notes: list[str] = []
        valid: Checkpoint | None = None
        for candidate in without_replaced(good):
            reason = self.verify(candidate, verify, good, damaged)
            if not reason:
                valid = candidate
                break
            notes.append(f"{candidate.name} was skipped: {reason}")
        reached = valid.step if valid else -1
        notes += [
            f"{candidate.name} was skipped: {candidate.why}"
            for candidate in bad
            if candidate.step >= reached
        ]
        return RestorePoint(valid, tuple(notes), tuple(self.chain(valid, good)) if valid else ())

    def verify(
        self,
        checkpoint: Checkpoint,
        depth: Depth = "quick",
        known: Iterable[Checkpoint] | None = None,
        damaged: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
    ) -> str:
        """Why a checkpoint, or one it builds on, cannot be used, with a code; empty if it can.

        `fresh`: its manifest was read just now and cannot have been replaced since.
        """
        chain = self.chain(checkpoint, known)
        missing = chain[0].manifest.parent
        if missing is not None:
            reason = f"it builds on the save {missing}, which does not exist"
            return with_code(reason, code="parent-missing")
        for link in reversed(chain):
            reason = (damaged or {}).get(link.manifest.save_id) or self._verify_alone(
                link, depth, fresh
            )
            if reason:
                return reason if link is checkpoint else f"it builds on {link.name}, and {reason}"
        return ""

    def chain(
        self, checkpoint: Checkpoint, known: Iterable[Checkpoint] | None = None
    ) -> list[Checkpoint]:
        """The checkpoint preceded by all that it builds on, the full one first."""
        everything = self.scan()[0] if known is None else known
        by_id = {other.manifest.save_id: other for other in everything}
        chain = [checkpoint]
        while chain[-1].manifest.parent in by_id:
            parent = by_id.pop(chain[-1].manifest.parent)
            chain.append(parent)
        return chain[::-1]

    def _verify_alone(self, checkpoint: Checkpoint, depth: Depth, fresh: bool) -> str:
        try:
            if not fresh and self.place.read(
                f"{checkpoint.name}/{manifests.MANIFEST}"
            ) != manifests.manifest_to_bytes(checkpoint.manifest):
                return with_code("its manifest was replaced", code="manifest-replaced")
            for file in checkpoint.manifest.files:
                reason = self._verify_file(f"{checkpoint.name}/{file.name}", file, depth)
                if reason:
                    return reason
        except FileNotFoundError as error:
            name = os.path.basename(str(error.filename or error))
            return with_code(f"{name} is missing", code="file-missing")
        except OSError as error:
            return with_code(f"it cannot be read: {error.strerror or error}", code="not-readable")
        if METADATA not in {file.name for file in checkpoint.manifest.files}:
            return with_code(f"its manifest does not list {METADATA}", code="metadata-missing")
        return ""

    def _verify_file(self, name: str, file: File, depth: Depth) -> str:
        size = self.place.size(name)
        if size != file.size:
            reason = f"{file.name} has {size} bytes instead of {file.size}"
            return with_code(reason, code="size-mismatch")
        if file.sha256 is not None:
            content = self.place.read(name)
            changed = hashlib.sha256(content).hexdigest() != file.sha256
        elif depth == "full":
            crc32 = 0
            for piece in self.place.read_blocks(name):
                crc32 = crc32_of(piece, crc32)
            changed = crc32 != file.crc32
        else:
            changed = False
        reason = f"{file.name} was modified: its checksum differs"
        return with_code(reason, code="checksum-mismatch") if changed else ""


def without_replaced(good: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Drop replaced checkpoints: keep the last save of each step, in order."""
    steps: set[int] = set()
    latest = []
    for checkpoint in sorted(
        good, key=lambda checkpoint: manifests.REPLACED.fullmatch(checkpoint.name) is not None
    ):
        if checkpoint.step not in steps:
            steps.add(checkpoint.step)
            latest.append(checkpoint)
    return sorted(latest, key=_commit_order, reverse=True)


def _commit_order(checkpoint: Checkpoint) -> tuple[int, float, int]:
    """By the commit count; time and step decide between equal counts of two jobs."""
    return checkpoint.manifest.sequence, checkpoint.manifest.made, checkpoint.step
