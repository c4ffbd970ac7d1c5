"""Items that are compressed: one zstd frame each, as DCP's extension `stream.zstd/1` reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from headway.checkpoint.store.manifest import Item, UnreadableData
from headway.errors import MissingExtra

ZSTD_DESCRIPTOR = "stream.zstd/1"
ZSTD_LEVEL = 3  # of zstd, and of torch
ZSTD_CHUNK_BYTES = 1 << 20  # bytes of a frame that are handed on at once
ZSTD_THREADS = 4  # that compress at once, if there are so many cores: the training needs some too


class ZstdFrame:
    """A frame that is being made."""

    def __init__(self, chunker: Any) -> None:
        self._chunker = chunker

    def more(self, data: bytes | memoryview) -> list[bytes]:
        """What there is of it after these bytes; they are not looked at any more."""
        return list(self._chunker.compress(data))

    def end(self) -> Iterator[bytes]:
        """The rest of it."""
        chunks: Iterator[bytes] = self._chunker.finish()
        return chunks


class ZstdCompressor:
    """Makes frames, one after the other."""

    def __init__(self) -> None:
        threads = min(len(os.sched_getaffinity(0)), ZSTD_THREADS)
        self._compressor = require_zstd().ZstdCompressor(level=ZSTD_LEVEL, threads=threads)

    def begin(self, size: int) -> ZstdFrame:
        """One of so many bytes."""
        return ZstdFrame(self._compressor.chunker(size=size, chunk_size=ZSTD_CHUNK_BYTES))


def decompress_into(data: memoryview, at: int, room: memoryview) -> None:
    """Fill the room from the frame, from that byte of its content on, and need no other memory."""
    zstd = require_zstd()
    done = 0
    try:
        with zstd.ZstdDecompressor().stream_reader(data) as reader:
            reader.read(at)
            while done < len(room) and (got := reader.readinto(room[done:])):
                done += got
    except zstd.ZstdError:
        raise UnreadableData("it cannot be decompressed", code="not-decompressible") from None
    if done != len(room):
        raise UnreadableData("it ends too early", code="truncated")


def item_content(data: memoryview, item: Item) -> memoryview:
    """The raw bytes of an item, from those that are in the file."""
    if item.unpacked is None:
        return data
    at, size = item.unpacked
    room = memoryview(bytearray(size))
    decompress_into(data, at, room)
    return room


def require_zstd() -> Any:
    """The package, or one sentence."""
    try:
        import zstandard
    except ImportError:
        needs = "a compressed checkpoint needs zstandard"
        raise MissingExtra(needs, package="zstandard", extra="zstd") from None
    return zstandard
