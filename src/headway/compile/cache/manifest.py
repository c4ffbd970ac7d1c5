"""Manifest of an archive: its maker, machine and job, and every file in it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.storage import chunks
from headway.storage.chunks import DamagedData, pack_chunk, unpack_chunk

SCHEMA = 1
MAX_MANIFEST_BYTES = 256 << 20
SAFE_NAME = re.compile(r"(?!\.+$)[\w.-]{1,100}")  # a name that can be part of a path
LONGEST_PATH, LONGEST_NAME = 1024, 255  # bytes
CHUNK_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    path: str
    size: int
    executable: bool
    used: int  # day of the last use, counted from 1970


@dataclass(frozen=True)
class Chunk:
    """A part of the concatenated files."""

    name: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about an archive except its bytes."""

    id: str
    made: float
    job: str
    code: str
    facts: Mapping[str, Any]
    cold_s: float  # seconds of compiling without an archive
    files: tuple[File, ...]
    chunks: tuple[Chunk, ...]
    supersedes: tuple[str, ...] = ()
    maker: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Total bytes of the files."""
        return sum(file.size for file in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest in the form that is signed and stored."""
    fields = {
        "schema": SCHEMA,
        **{key: value for key, value in vars(manifest).items() if key not in ("files", "chunks")},
        "files": [[file.path, file.size, file.executable, file.used] for file in manifest.files],
        "chunks": [[chunk.name, chunk.size] for chunk in manifest.chunks],
    }
    body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return len(body).to_bytes(8, "big") + pack_chunk(body)


def decode_manifest(data: bytes) -> Manifest:
    """Decode and validate a manifest; raises DamagedData before any of it is used."""
    size = int.from_bytes(data[:8], "big")
    if size > MAX_MANIFEST_BYTES:
        raise DamagedData("the file list is too long", code="archive-too-large")
    body = unpack_chunk(data[8:], size)
    try:
        fields = json.loads(body)
        if fields.pop("schema") != SCHEMA:
            raise DamagedData(
                "made by an incompatible version of Headway", code="archive-other-version"
            )
        manifest = Manifest(
            **{
                **fields,
                "files": tuple(File(*row) for row in fields["files"]),
                "chunks": tuple(Chunk(*row) for row in fields["chunks"]),
                "supersedes": tuple(fields["supersedes"]),
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedData("the file list cannot be read", code="archive-not-readable") from None
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    if not _well_typed(manifest):
        raise DamagedData("the file list cannot be read", code="archive-not-readable")
    if not all(
        SAFE_NAME.fullmatch(name) for name in (manifest.job, manifest.id, *manifest.supersedes)
    ):
        raise DamagedData("it contains an invalid name", code="archive-name-malformed")
    for chunk in manifest.chunks:
        if not CHUNK_NAME.fullmatch(chunk.name):
            raise DamagedData(
                f"it contains a chunk with the invalid name {chunk.name!r}",
                code="chunk-name-malformed",
            )
        if not 0 < chunk.size <= chunks.MAX_CHUNK_BYTES:
            raise DamagedData("it contains a chunk of an invalid size", code="chunk-size-malformed")
    if manifest.size != sum(chunk.size for chunk in manifest.chunks):
        raise DamagedData("the total sizes of its files and chunks differ", code="size-mismatch")
    for file in manifest.files:
        if not _inside(file.path):
            raise DamagedData(
                f"it contains the file {file.path!r} outside its folder", code="file-outside-folder"
            )
    _check_tree([file.path for file in manifest.files])


def _well_typed(manifest: Manifest) -> bool:
    strings = (manifest.id, manifest.job, manifest.code, *manifest.supersedes)
    strings += tuple(file.path for file in manifest.files)
    strings += tuple(chunk.name for chunk in manifest.chunks)
    counts = [file.size for file in manifest.files] + [file.used for file in manifest.files]
    counts += [chunk.size for chunk in manifest.chunks]
    return (
        all(type(string) is str for string in strings)
        and all(type(count) is int and count >= 0 for count in counts)
        and all(type(file.executable) is bool for file in manifest.files)
        and all(
            type(number) in (int, float) and math.isfinite(number) and number >= 0
            for number in (manifest.made, manifest.cold_s)
        )
        and all(type(mapping) is dict for mapping in (manifest.facts, manifest.maker))
    )


def _inside(path: str) -> bool:
    """Whether a path is valid and relative to the folder."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    parts = path.split("/")
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b"/"))) > LONGEST_NAME:
        return False
    return b"\0" not in encoded and not any(part in ("", ".", "..") for part in parts)


def _check_tree(paths: list[str]) -> None:
    files = set(paths)
    folders = {
        path[:index] for path in paths for index, character in enumerate(path) if character == "/"
    }
    if len(files) != len(paths) or files & folders:
        raise DamagedData("it contains two files with the same name", code="file-twice")
