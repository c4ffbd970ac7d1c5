"""What a snapshot says of itself. Its name holds the checksum of that, so neither can change."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import NewerSchema, SnapshotDamaged

SCHEMA = 1
NAME = re.compile(r"(\d{8})-([0-9a-f]{32})")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """One file of a snapshot; `suffix` is what loaders know it by."""

    sha256: str
    size: int
    suffix: str = ""

    @property
    def stored(self) -> str:
        """Where it lies in a store."""
        return f"files/{self.sha256}{self.suffix}"


@dataclass(frozen=True)
class Made:
    """One target: its files, and what was measured of it."""

    files: tuple[str, ...]
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A snapshot, apart from its bytes."""

    number: int
    made: float
    current: bool  # whether it was to serve when it was made
    anchor: Mapping[str, Any]  # id, path, step, run, metrics
    recipe: str  # its digest
    files: Mapping[str, File]
    targets: Mapping[str, Made]
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum({file.sha256: file.size for file in self.files.values()}.values())


@dataclass(frozen=True)
class Snapshot:
    """One that is in a store."""

    name: str
    manifest: Manifest


def named(manifest: Manifest) -> tuple[str, bytes]:
    """Its name, and its manifest as it lies in a store."""
    plain = {"schema": SCHEMA, **vars(manifest)}
    plain["files"] = {name: vars(file) for name, file in manifest.files.items()}
    plain["targets"] = {name: vars(made) for name, made in manifest.targets.items()}
    content = json.dumps(plain, indent=1).encode()
    return f"{manifest.number:08}-{hashlib.sha256(content).hexdigest()[:32]}", content


def from_bytes(name: str, content: bytes) -> Snapshot:
    """Read one; SnapshotDamaged says what is wrong."""
    match = NAME.fullmatch(name)
    if match is None or hashlib.sha256(content).hexdigest()[:32] != match[2]:
        raise SnapshotDamaged(f"the manifest of the snapshot {name} was changed")
    found = json.loads(content)
    if found.pop("schema") != SCHEMA:
        raise NewerSchema(f"the snapshot {name} was made by another version of Headway")
    try:
        files = {one: _file(told) for one, told in found.pop("files").items()}
        targets = {
            one: Made(tuple(map(str, told["files"])), told["metrics"])
            for one, told in found.pop("targets").items()
        }
        manifest = Manifest(**found, files=files, targets=targets)
        fine = manifest.number == int(match[1])
        fine &= all(file in files for made in targets.values() for file in made.files)
        fine &= not any("/" in one or one in ("", ".", "..") for one in files)
    except (KeyError, TypeError, ValueError, AttributeError):
        fine = False
    if not fine:
        raise SnapshotDamaged(f"the manifest of the snapshot {name} makes no sense")
    return Snapshot(name, manifest)


def _file(told: Mapping[str, Any]) -> File:
    file = File(**told)
    if not SHA256.fullmatch(file.sha256) or type(file.size) is not int or "/" in file.suffix:
        raise ValueError(told)
    return file
