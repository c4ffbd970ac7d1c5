"""Sequential file output: through the page cache, with O_DIRECT, or to an object store.

O_DIRECT is used on machines with few cores, where copying into the page cache would take CPU time
from the ranks. The kernel then needs page-aligned memory: large tensors in a staging buffer are
aligned, all other data goes through two aligned buffers, one of which is filled while the other is
written by a thread.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from headway.errors import UsageError
from headway.storage import disk
from headway.storage.codecs import THREADED_MIN_BYTES, ChecksumThread, crc32_combine, crc32_of


class Output(Protocol):
    """A file that is written from front to back."""

    def write(self, data: bytes | memoryview) -> None:
        """Append data."""

    def commit(self, *, sync: bool) -> None:
        """Complete the file."""

    def discard(self) -> None:
        """Drop the incomplete file."""


WRITEBACK_BYTES = 64 << 20  # bytes after which writeback is started


class PageCacheFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0
        self._writeback_from = 0  # bytes for which writeback was started

    def write(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), WRITEBACK_BYTES):
            with memoryview(data)[start : start + WRITEBACK_BYTES] as piece:
                disk.write_at(self._fd, piece, self._at)
                self._at += len(piece)
            if self._at - self._writeback_from >= WRITEBACK_BYTES:
                disk.start_writeback(
                    self._fd, self._writeback_from, self._at - self._writeback_from
                )
                self._writeback_from = self._at

    def commit(self, *, sync: bool) -> None:
        try:
            if sync:
                disk.sync(self._fd)
        finally:
            self.discard()

    def discard(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            disk.close(fd)


class ObjectFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), disk.PIECE):
            with memoryview(data)[start : start + disk.PIECE] as piece:
                self._file.write(piece)

    def commit(self, *, sync: bool) -> None:
        self._file.close()

    def discard(self) -> None:
        discard = getattr(self._file, "discard", None)
        with contextlib.suppress(Exception):  # the rest has no manifest
            if discard is not None:
                discard()


# on machines with more cores the page cache is faster
USE_PAGE_CACHE = len(os.sched_getaffinity(0)) > 2
PAGE = 4096
DIRECT_MIN_BYTES = 1 << 20  # bytes; the data of larger tensors is page-aligned in the file
DIRECT_BUFFER_BYTES = 8 << 20


class DirectFile:
    """An open file with `disk.set_direct_io`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0  # file offset of the buffer
        self._fill = 0
        self._buffer, self._spare_buffer = (
            mmap.mmap(-1, DIRECT_BUFFER_BYTES),
            mmap.mmap(-1, DIRECT_BUFFER_BYTES),
        )
        self._thread = ThreadPoolExecutor(1, "headway-disk")
        self._written: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Append data; an error of the disk may be raised by a later call.

        Until then large data must not change.
        """
        with memoryview(data) as view:
            done = 0
            if (
                len(view) >= DIRECT_MIN_BYTES
                and self._end % PAGE == 0
                and _address(view) % PAGE == 0
            ):
                done = len(view) - len(view) % PAGE
                self._submit_buffer()
                self._submit(view, done)
            while done < len(view):
                size = min(len(view) - done, DIRECT_BUFFER_BYTES - self._fill)
                self._buffer[self._fill : self._fill + size] = view[done : done + size]
                done += size
                self._fill += size
                if self._fill == DIRECT_BUFFER_BYTES:
                    self._submit_buffer()

    def commit(self, *, sync: bool) -> None:
        """Complete the file."""
        try:
            self._wait_written()
            disk.set_direct_io(self._fd, False)  # the rest is not a full block
            with memoryview(self._buffer) as view, view[: self._fill] as rest:
                disk.write_at(self._fd, rest, self._at)
            if sync:
                disk.sync(self._fd)
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop the incomplete file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(Exception):  # reported before, or no longer relevant
                self._wait_written()
            self._thread.shutdown()
            disk.close(fd)

    @property
    def _end(self) -> int:
        return self._at + self._fill

    def _submit_buffer(self) -> None:
        if self._fill:
            with memoryview(self._buffer) as view:
                self._submit(view, self._fill)
            self._buffer, self._spare_buffer = self._spare_buffer, self._buffer
            self._fill = 0

    def _submit(self, view: memoryview, size: int) -> None:
        self._wait_written()
        self._written = self._thread.submit(self._write_pages, view[:size], self._at)
        self._at += size

    def _write_pages(self, pages: memoryview, at: int) -> None:
        with pages:
            try:
                disk.write_at(self._fd, pages, at)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                disk.set_direct_io(self._fd, False)  # O_DIRECT was accepted, but does not work
                disk.write_at(self._fd, pages, at)

    def _wait_written(self) -> None:
        """Wait until the submitted data is written."""
        written, self._written = self._written, None
        if written is not None:
            written.result()


def _address(view: memoryview) -> int:
    try:
        import numpy
    except ImportError:
        return 1  # unknown
    address: int = numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0]
    return address


SMALL_BUFFER_BYTES = 1 << 20  # small items are written together
CHECKSUM_BLOCK_BYTES = 4 << 20  # bytes summed and written at once
RATE_LIMIT_BYTES = 4 << 20  # bytes between two checks of the clock, with a rate limit
PROGRESS_BYTES = 64 << 20  # bytes between two reports of progress


class ByteChunks(Protocol):
    """Bytes in chunks; each chunk is valid until the next one."""

    def __len__(self) -> int:
        """Total bytes."""

    def __iter__(self) -> Iterator[memoryview]: ...


class ChecksumWriter:
    """Writes data and computes checksums."""

    def __init__(
        self, out: Output, rate_limit: RateLimit | None, on_progress: Callable[[], None]
    ) -> None:
        self.at = 0
        self.crc32 = 0
        self._out = out
        self._rate_limit = rate_limit
        self._on_progress = on_progress
        self._small = bytearray()
        self._checksum_thread: ChecksumThread | None = None

    def put(self, data: bytes | memoryview) -> None:
        """Write small data."""
        self.crc32 = self.add([data], self.crc32)

    def add(self, pieces: Iterable[bytes | memoryview], crc32: int) -> int:
        """Write small chunks of something with its own checksum; return the checksum with them."""
        for data in pieces:
            crc32 = crc32_of(data, crc32)
            self.at += len(data)
            self._small += data
            if len(self._small) >= SMALL_BUFFER_BYTES:
                self.flush()
        return crc32

    def put_data(self, data: ByteChunks) -> int:
        """Write the bytes of an item; return their checksum."""
        crc32 = 0
        if len(data) <= THREADED_MIN_BYTES:
            for piece in data:
                self.put(piece)
                crc32 = crc32_of(piece, crc32)
            return crc32
        self.flush()
        write = self._write_with_thread if USE_PAGE_CACHE else self._write_in_turn
        for piece in data:
            crc32 = write(piece, crc32)
        self.crc32 = crc32_combine(self.crc32, crc32, len(data))
        self.at += len(data)
        return crc32

    def _write_with_thread(self, data: memoryview, previous: int) -> int:
        """Write while another thread computes the checksum, which continues `previous`."""
        if self._checksum_thread is None:
            self._checksum_thread = ChecksumThread()
        self._checksum_thread.start(data)
        try:
            for piece in self._limited(data):
                with piece:
                    self._out.write(piece)
        finally:
            crc32 = self._checksum_thread.result()
        return crc32_combine(previous, crc32, len(data)) if previous else crc32

    def _write_in_turn(self, data: memoryview, crc32: int) -> int:
        """In this thread: sum a block, then write it while it is in the cache."""
        for piece in self._limited(data):
            with piece:
                for start in range(0, len(piece), CHECKSUM_BLOCK_BYTES):
                    with piece[start : start + CHECKSUM_BLOCK_BYTES] as block:
                        crc32 = crc32_of(block, crc32)
                        self._out.write(block)
        return crc32

    def flush(self) -> None:
        """Write buffered small data."""
        for piece in self._limited(memoryview(bytes(self._small))):
            self._out.write(piece)
        self._small.clear()

    def _limited(self, data: memoryview) -> Iterator[memoryview]:
        size = PROGRESS_BYTES if self._rate_limit is None else RATE_LIMIT_BYTES
        for start in range(0, len(data), size):
            yield data[start : start + size]
            self._on_progress()
            if self._rate_limit is not None:
                self._rate_limit.wait(min(size, len(data) - start))

    def close(self) -> None:
        """Stop the checksum thread."""
        if self._checksum_thread is not None:
            self._checksum_thread.close()


class RateLimit:
    """Limits the average rate in bytes per second from the start."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate <= 0:
            raise UsageError(f"a rate is above 0, not {rate}", code="rate-invalid")
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._writeback_from = clock()
        self._bytes = 0

    def wait(self, size: int) -> None:
        """Wait as the rate requires after that many more bytes."""
        self._bytes += size
        wait_s = self._writeback_from + self._bytes / self._rate - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
