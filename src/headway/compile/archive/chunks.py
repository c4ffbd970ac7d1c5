"""Bytes of many files as chunks with a name of their own, so that equal parts are kept once.

The files are laid end to end in the order of their names. A chunk ends where a file ends whose
content says so, never at a fixed distance: a file that comes or goes changes one chunk.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from headway.errors import MissingExtra

WHOLE = 1 << 20  # a chunk that is this large ends with its file
PIECE = 4 << 20  # a file that is larger is cut
LARGEST = max(PIECE, 2 * WHOLE)  # no chunk is larger
ONE_IN = 8  # files after which a chunk ends, whatever its size
LEVEL = 3

RAW, ZLIB, ZSTD = b"r", b"d", b"z"


class Corrupt(Exception):
    """Bytes that are not what their name says."""


def split(files: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks of files that are laid end to end."""
    kept: list[bytes] = []
    size = 0
    for content in files:
        if len(content) > WHOLE:
            if kept:
                yield b"".join(kept)
            yield from (content[at : at + PIECE] for at in range(0, len(content), PIECE))
            kept, size = [], 0
            continue
        kept.append(content)
        size += len(content)
        if size and (size >= WHOLE or hashlib.sha256(content).digest()[0] % ONE_IN == 0):
            yield b"".join(kept)
            kept, size = [], 0
    if size:
        yield b"".join(kept)


def name(content: bytes) -> str:
    """What a chunk is called: it cannot be changed and keep its name."""
    return hashlib.sha256(content).hexdigest()


def pack(content: bytes) -> bytes:
    """Compressed, with a first byte that says how."""
    zstd = _zstd()
    packed = ZSTD + zstd.compress(content) if zstd else ZLIB + zlib.compress(content, LEVEL)
    return packed if len(packed) <= len(content) else RAW + content


def unpack(packed: bytes, size: int) -> bytes:
    """The content, which is of a known size: no more than that is ever made of it."""
    how, body = packed[:1], packed[1:]
    if how == RAW:
        content = body
    elif how == ZLIB:
        content = _inflate(body, size)
    elif how == ZSTD:
        content = _need_zstd().decompress(body, size)
    else:
        raise Corrupt("it is not compressed in a way that is known")
    if len(content) != size:
        raise Corrupt(f"it has {len(content)} bytes where {size} were written")
    return content


def _inflate(body: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(body, size + 1)
    except zlib.error as error:
        raise Corrupt(str(error)) from None


class _Zstandard:
    """The package of that name, or Python's own from 3.14 on, in one manner."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._own = module.__name__ != "zstandard"

    def compress(self, content: bytes) -> bytes:
        if self._own:
            packed: bytes = self._module.compress(content, level=LEVEL)
        else:
            packed = self._module.ZstdCompressor(level=LEVEL).compress(content)
        return packed

    def decompress(self, body: bytes, size: int) -> bytes:
        errors = self._module.ZstdError
        try:
            if self._own:
                content: bytes = self._module.ZstdDecompressor().decompress(body, size + 1)
            else:
                reader = self._module.ZstdDecompressor().stream_reader(body)
                content = reader.read(size + 1)
        except (errors, EOFError) as error:
            raise Corrupt(str(error)) from None
        return content


@functools.cache
def _zstd() -> _Zstandard | None:
    for module in ("compression.zstd", "zstandard"):
        try:
            return _Zstandard(importlib.import_module(module))
        except ImportError:
            continue
    return None


def _need_zstd() -> _Zstandard:
    found = _zstd()
    if found is None:
        raise MissingExtra("this archive needs zstandard; type: pip install zstandard")
    return found
