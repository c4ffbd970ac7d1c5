"""Checksums and compression of stored data: CRC-32 (incremental, combined, threaded) and zstd."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from headway.errors import HeadwayError, MissingExtra

try:  # ten times faster
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

crc32_of = crc32

POLYNOMIAL = 0xEDB88320
THREADED_MIN_BYTES = 1 << 16  # bytes below which waking a thread is slower


def crc32_combine(first: int, second: int, size: int) -> int:
    """Checksum of two byte sequences from their checksums; `size`: length of the second."""
    power = 0
    while size:
        if size & 1:
            first = _apply(_zeros_matrix(power), first)
        size >>= 1
        power += 1
    return first ^ second


_ZEROS: list[tuple[int, ...]] = []  # effect of 2**n zero bytes on a checksum


def _zeros_matrix(power: int) -> tuple[int, ...]:
    while len(_ZEROS) <= power:
        if _ZEROS:
            _ZEROS.append(_square(_ZEROS[-1]))
        else:
            bit = (POLYNOMIAL, *(1 << at for at in range(31)))
            _ZEROS.append(_square(_square(_square(bit))))
    return _ZEROS[power]


def _apply(matrix: tuple[int, ...], vector: int) -> int:
    total, at = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[at]
        vector >>= 1
        at += 1
    return total


def _square(matrix: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_apply(matrix, row) for row in matrix)


class ChecksumThread:
    """Computes checksums in a separate thread, while others write the same bytes."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="headway-sums", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (view := self._todo.get()) is not None:
            self._done.put(crc32_of(view))

    def start(self, data: memoryview) -> None:
        """Start with these bytes, which must not change until the result is read."""
        self._todo.put(data)

    def result(self) -> int:
        """The checksum of the oldest unread start."""
        return self._done.get()

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()


class UnreadableData(HeadwayError):
    """A clause that says why: "it ..."."""


ZSTD_LEVEL = 3  # default level of zstd, and of torch
ZSTD_CHUNK_BYTES = 1 << 20  # bytes of a frame per chunk
ZSTD_THREADS = 4  # maximum compression threads: the training needs cores too


class ZstdFrame:
    """A frame that is being compressed."""

    def __init__(self, chunker: Any) -> None:
        self._chunker = chunker

    def compress(self, data: bytes | memoryview) -> list[bytes]:
        """Compressed chunks after these bytes, which are not needed afterwards."""
        return list(self._chunker.compress(data))

    def finish(self) -> Iterator[bytes]:
        """The rest of the frame."""
        chunks: Iterator[bytes] = self._chunker.finish()
        return chunks


class ZstdCompressor:
    """Compresses frames, one after another."""

    def __init__(self) -> None:
        threads = min(len(os.sched_getaffinity(0)), ZSTD_THREADS)
        self._compressor = require_zstd().ZstdCompressor(level=ZSTD_LEVEL, threads=threads)

    def start_frame(self, size: int) -> ZstdFrame:
        """Start a frame with that many bytes of content."""
        return ZstdFrame(self._compressor.chunker(size=size, chunk_size=ZSTD_CHUNK_BYTES))


def decompress_into(data: memoryview, at: int, buffer: memoryview) -> None:
    """Fill the buffer with content of the frame from offset `at`, without other memory."""
    zstd = require_zstd()
    done = 0
    try:
        with zstd.ZstdDecompressor().stream_reader(data) as reader:
            reader.read(at)
            while done < len(buffer) and (count := reader.readinto(buffer[done:])):
                done += count
    except zstd.ZstdError:
        raise UnreadableData("it cannot be decompressed", code="not-decompressible") from None
    if done != len(buffer):
        raise UnreadableData("it ends too early", code="truncated")


def require_zstd() -> Any:
    """The zstandard module, or MissingExtra."""
    try:
        import zstandard
    except ImportError:
        needs = "a compressed checkpoint needs zstandard"
        raise MissingExtra(needs, package="zstandard", extra="zstd") from None
    return zstandard
