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
    """A file that is being written, from front to back."""

    def write(self, data: bytes | memoryview) -> None:
        """Put it at the end."""

    def finish(self, *, sync: bool) -> None:
        """It is whole."""

    def drop(self) -> None:
        """It will not be."""


WRITEBACK_BYTES = 64 << 20  # bytes after which the disk is told to begin


class PageCacheFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0
        self._begun = 0  # bytes that the disk was told of

    def write(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), WRITEBACK_BYTES):
            with memoryview(data)[start : start + WRITEBACK_BYTES] as piece:
                disk.write_at(self._fd, piece, self._at)
                self._at += len(piece)
            if self._at - self._begun >= WRITEBACK_BYTES:
                disk.start_writeback(self._fd, self._begun, self._at - self._begun)
                self._begun = self._at

    def finish(self, *, sync: bool) -> None:
        try:
            if sync:
                disk.sync(self._fd)
        finally:
            self.drop()

    def drop(self) -> None:
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

    def finish(self, *, sync: bool) -> None:
        self._file.close()

    def drop(self) -> None:
        discard = getattr(self._file, "discard", None)
        with contextlib.suppress(Exception):  # what is left of it has no manifest
            if discard is not None:
                discard()


USE_PAGE_CACHE = len(os.sched_getaffinity(0)) > 2  # then the page cache is the faster way
PAGE = 4096
DIRECT_MIN_BYTES = 1 << 20  # bytes: from there on the data of a tensor begins at a page of its file
DIRECT_BUFFER_BYTES = 8 << 20


class DirectFile:
    """Of a file that is open, and that `disk.set_direct_io` has said yes to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0  # in the file, of the room that is filled
        self._filled = 0
        self._room, self._other = (
            mmap.mmap(-1, DIRECT_BUFFER_BYTES),
            mmap.mmap(-1, DIRECT_BUFFER_BYTES),
        )
        self._thread = ThreadPoolExecutor(1, "headway-disk")
        self._written: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Put it at the end; that the disk has failed may be told by a later call.

        Until then what is large must stay as it is.
        """
        with memoryview(data) as view:
            done = 0
            if (
                len(view) >= DIRECT_MIN_BYTES
                and self._end % PAGE == 0
                and _address(view) % PAGE == 0
            ):
                done = len(view) - len(view) % PAGE
                self._hand_over_room()
                self._hand_over(view, done)
            while done < len(view):
                size = min(len(view) - done, DIRECT_BUFFER_BYTES - self._filled)
                self._room[self._filled : self._filled + size] = view[done : done + size]
                done += size
                self._filled += size
                if self._filled == DIRECT_BUFFER_BYTES:
                    self._hand_over_room()

    def finish(self, *, sync: bool) -> None:
        """It is whole."""
        try:
            self._settle()
            disk.set_direct_io(self._fd, False)  # what is left is no whole block
            with memoryview(self._room) as view, view[: self._filled] as rest:
                disk.write_at(self._fd, rest, self._at)
            if sync:
                disk.sync(self._fd)
        finally:
            self.drop()

    def drop(self) -> None:
        """It will not be."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(Exception):  # told before, or of no interest any more
                self._settle()
            self._thread.shutdown()
            disk.close(fd)

    @property
    def _end(self) -> int:
        return self._at + self._filled

    def _hand_over_room(self) -> None:
        if self._filled:
            with memoryview(self._room) as view:
                self._hand_over(view, self._filled)
            self._room, self._other = self._other, self._room
            self._filled = 0

    def _hand_over(self, view: memoryview, size: int) -> None:
        self._settle()
        self._written = self._thread.submit(self._put, view[:size], self._at)
        self._at += size

    def _put(self, pages: memoryview, at: int) -> None:
        with pages:
            try:
                disk.write_at(self._fd, pages, at)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                disk.set_direct_io(self._fd, False)  # it was said to work, and does not
                disk.write_at(self._fd, pages, at)

    def _settle(self) -> None:
        """Until the disk has what it was given."""
        written, self._written = self._written, None
        if written is not None:
            written.result()


def _address(view: memoryview) -> int:
    try:
        import numpy
    except ImportError:
        return 1  # nobody knows
    address: int = numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0]
    return address


SMALL_BUFFER_BYTES = 1 << 20  # small items are written together
CHECKSUM_BLOCK_BYTES = 4 << 20  # bytes that are summed and written at once
RATE_LIMIT_BYTES = 4 << 20  # bytes between two looks at the clock, where a rate is asked for
PROGRESS_BYTES = 64 << 20  # bytes between two looks whether a store takes anything


class ByteChunks(Protocol):
    """Bytes that come piece by piece; a piece is good until the next one is asked for."""

    def __len__(self) -> int:
        """Of all pieces together."""

    def __iter__(self) -> Iterator[memoryview]:
        """The pieces."""


class ChecksumWriter:
    """What was written so far, and its checksum."""

    def __init__(self, out: Output, pace: RateLimit | None, moved: Callable[[], None]) -> None:
        self.at = 0
        self.crc32 = 0
        self._out = out
        self._pace = pace
        self._moved = moved
        self._small = bytearray()
        self._beside: ChecksumThread | None = None

    def put(self, data: bytes | memoryview) -> None:
        """A small piece."""
        self.crc32 = self.add([data], self.crc32)

    def add(self, pieces: Iterable[bytes | memoryview], crc32: int) -> int:
        """Small pieces of something with a checksum of its own, which goes on with them."""
        for data in pieces:
            crc32 = crc32_of(data, crc32)
            self.at += len(data)
            self._small += data
            if len(self._small) >= SMALL_BUFFER_BYTES:
                self.flush()
        return crc32

    def put_data(self, data: ByteChunks) -> int:
        """The bytes of an item, and their own checksum."""
        crc32 = 0
        if len(data) <= THREADED_MIN_BYTES:
            for piece in data:
                self.put(piece)
                crc32 = crc32_of(piece, crc32)
            return crc32
        self.flush()
        write = self._write_beside if USE_PAGE_CACHE else self._write_along
        for piece in data:
            crc32 = write(piece, crc32)
        self.crc32 = crc32_combine(self.crc32, crc32, len(data))
        self.at += len(data)
        return crc32

    def _write_beside(self, data: memoryview, before: int) -> int:
        """While another thread sums; `before` is the sum of the pieces until then."""
        if self._beside is None:
            self._beside = ChecksumThread()
        self._beside.start(data)
        try:
            for piece in self._paced(data):
                with piece:
                    self._out.write(piece)
        finally:
            crc32 = self._beside.result()
        return crc32_combine(before, crc32, len(data)) if before else crc32

    def _write_along(self, data: memoryview, crc32: int) -> int:
        """By this thread alone: a bit is summed, and written while the cache still has it."""
        for piece in self._paced(data):
            with piece:
                for start in range(0, len(piece), CHECKSUM_BLOCK_BYTES):
                    with piece[start : start + CHECKSUM_BLOCK_BYTES] as part:
                        crc32 = crc32_of(part, crc32)
                        self._out.write(part)
        return crc32

    def flush(self) -> None:
        """Hand on what was gathered."""
        for piece in self._paced(memoryview(bytes(self._small))):
            self._out.write(piece)
        self._small.clear()

    def _paced(self, data: memoryview) -> Iterator[memoryview]:
        size = PROGRESS_BYTES if self._pace is None else RATE_LIMIT_BYTES
        for start in range(0, len(data), size):
            yield data[start : start + size]
            self._moved()
            if self._pace is not None:
                self._pace.wait(min(size, len(data) - start))

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._beside is not None:
            self._beside.close()


class RateLimit:
    """No more bytes in a second than allowed, counted from the first one."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate <= 0:
            raise UsageError(f"a rate is above 0, not {rate}", code="rate-invalid")
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._begun = clock()
        self._bytes = 0

    def wait(self, size: int) -> None:
        """After so many more bytes."""
        self._bytes += size
        early = self._begun + self._bytes / self._rate - self._clock()
        if early > 0:
            self._sleep(early)
