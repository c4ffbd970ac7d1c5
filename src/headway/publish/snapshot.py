"""Manifest of a snapshot, and verification of its files.

The name of a snapshot contains the checksum of its manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import FINE, NewerSchema, Reason, SnapshotDamaged
from headway.storage.place import LocalPlace, Place

SCHEMA = 1
SNAPSHOT_NAME = re.compile(r"(\d{8})-([0-9a-f]{32})")
SHA256 = re.compile(r"[0-9a-f]{64}")
ANCHOR_KEY = re.compile(r"(?!\.+$)[\w.-]{1,100}")  # used as a file name
MAX_TIME_S = 1e11  # seconds since the epoch


@dataclass(frozen=True)
class SnapshotFile:
    """One file of a snapshot; loaders need the `suffix`."""

    sha256: str
    size: int
    suffix: str = ""

    @property
    def stored(self) -> str:
        """Its path in a store."""
        return f"files/{self.sha256}{self.suffix}"


@dataclass(frozen=True)
class TargetRecord:
    """Files and metrics of a target."""

    files: tuple[str, ...]
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a snapshot."""

    number: int
    made: float
    current: bool  # whether it became the serving one when it was committed
    anchor: Mapping[str, Any]  # id, path, step, run, metrics
    recipe: str  # digest of the recipe
    files: Mapping[str, SnapshotFile]
    targets: Mapping[str, TargetRecord]
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Total bytes of its files."""
        return sum({file.sha256: file.size for file in self.files.values()}.values())


@dataclass(frozen=True)
class Snapshot:
    """A snapshot in a store."""

    name: str
    manifest: Manifest


def encode(manifest: Manifest) -> tuple[str, bytes]:
    """Name of a snapshot, and its manifest as bytes."""
    plain = {"schema": SCHEMA, **vars(manifest)}
    plain["files"] = {name: vars(file) for name, file in manifest.files.items()}
    plain["targets"] = {name: vars(target) for name, target in manifest.targets.items()}
    content = json.dumps(plain, indent=1).encode()
    return f"{manifest.number:08}-{hashlib.sha256(content).hexdigest()[:32]}", content


def decode(name: str, content: bytes) -> Snapshot:
    """Parse a manifest; raises SnapshotDamaged."""
    match = SNAPSHOT_NAME.fullmatch(name)
    if match is None or hashlib.sha256(content).hexdigest()[:32] != match[2]:
        raise SnapshotDamaged(
            f"the manifest of the snapshot {name} was changed", code="snapshot-manifest-changed"
        )
    try:
        fields = json.loads(content)
        schema = fields.pop("schema")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _invalid_manifest(name) from None
    if schema != SCHEMA:
        raise NewerSchema(f"the snapshot {name} was made by another version of Headway")
    try:
        files = {path: decode_file(file) for path, file in fields.pop("files").items()}
        targets = {
            target: TargetRecord(tuple(record["files"]), record["metrics"])
            for target, record in fields.pop("targets").items()
        }
        manifest = Manifest(**fields, files=files, targets=targets)
        valid = manifest.number == int(match[1]) and _is_well_typed(manifest)
    except (LookupError, TypeError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise _invalid_manifest(name)
    return Snapshot(name, manifest)


def _invalid_manifest(name: str) -> SnapshotDamaged:
    return SnapshotDamaged(
        f"the manifest of the snapshot {name} is invalid", code="snapshot-manifest-invalid"
    )


def decode_file(fields: Mapping[str, Any]) -> SnapshotFile:
    """Parse the entry of a file; raises ValueError or TypeError."""
    file = SnapshotFile(**fields)
    valid = SHA256.fullmatch(file.sha256) and type(file.size) is int and file.size >= 0
    if not (valid and _is_name(f"x{file.suffix}")):
        raise ValueError(fields)
    return file


def _is_well_typed(manifest: Manifest) -> bool:
    """Whether all fields have valid types and values; the manifest may be from anyone."""
    anchor, order = manifest.anchor, manifest.anchor.get("order", ["", 0])
    texts = [anchor["path"], manifest.recipe, *manifest.versions.values()]
    counts = [0 if anchor["step"] is None else anchor["step"], order[1]]
    numbers = [manifest.made, *manifest.seconds.values()]
    metrics = [value for target in manifest.targets.values() for value in target.metrics.values()]
    return (
        ANCHOR_KEY.fullmatch(anchor["key"]) is not None
        and len(order) == 2
        and all(
            type(text) is str for text in (*texts, order[0], *manifest.versions, *manifest.seconds)
        )
        and all(type(count) is int for count in counts)
        and all(type(number) in (int, float) and 0 <= number < MAX_TIME_S for number in numbers)
        and all(type(value) in (int, float, bool) for value in metrics)
        and type(anchor.get("metrics") or {}) is dict
        and type(manifest.current) is bool
        and all(map(_is_name, (*manifest.files, *manifest.targets)))
        and all(
            file in manifest.files for target in manifest.targets.values() for file in target.files
        )
        and bool(manifest.targets)
    )


def _is_name(name: str) -> bool:
    """Whether the text is a valid and printable file name."""
    return (
        name.isprintable() and "/" not in name and name not in ("", ".", "..") and len(name) < 200
    )


def fetch_verified(place: Place, stored: str, file: SnapshotFile, name: str, folder: Path) -> Path:
    """Path of a verified file on this machine; files behind a URL are downloaded."""
    digest = hashlib.sha256()
    local = isinstance(place, LocalPlace)
    path = Path(place.path(stored)) if local else folder / name
    try:
        with contextlib.ExitStack() as stack:
            out = None if local else stack.enter_context(path.open("wb"))
            for piece in place.read_blocks(stored):
                digest.update(piece)
                if out is not None:
                    out.write(piece)
    except FileNotFoundError:
        raise SnapshotDamaged(
            f"{name} is missing in {place.url}", code="file-missing", file=name
        ) from None
    if digest.hexdigest() != file.sha256:
        raise SnapshotDamaged(
            f"{name} was changed in {place.url}: {stored}", code="checksum-mismatch", file=name
        )
    return path


def is_present(place: Place, file: SnapshotFile) -> bool:
    """Whether the store has the file, with the right size."""
    try:
        return place.size(file.stored) == file.size
    except FileNotFoundError:
        return False


def verified(place: Place, file: SnapshotFile) -> bool:
    """Whether the store has the file, with the right checksum."""
    if not is_present(place, file):
        return False
    digest = hashlib.sha256()
    for piece in place.read_blocks(file.stored):
        digest.update(piece)
    return digest.hexdigest() == file.sha256


def damage_reason(place: Place, snapshot: Snapshot, *, every_byte: bool) -> Reason:
    """Why a snapshot cannot be served, as one clause; empty if it can."""
    for name, file in snapshot.manifest.files.items():
        if not is_present(place, file):
            return Reason(f"{name} is missing or truncated", code="file-missing")
        if every_byte and not verified(place, file):
            return Reason(f"{name} was changed", code="checksum-mismatch")
    return FINE
