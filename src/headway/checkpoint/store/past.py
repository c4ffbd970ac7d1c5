"""A file that is written past the page cache: where cores are few, its copying is in a rank's way.

The disk takes whole pages from memory that begins at one, which a large tensor of an image does.
All else goes through two such stretches: one is filled while a thread hands the other to the disk.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor

from headway.checkpoint.store import disk

USE_PAGE_CACHE = len(os.sched_getaffinity(0)) > 2  # then the page cache is the faster way
PAGE = 4096
DIRECT_MIN_BYTES = 1 << 20  # bytes: from there on the data of a tensor begins at a page of its file
DIRECT_BUFFER_BYTES = 8 << 20


class DirectFile:
    """Of a file that is open, and that `disk.past_cache` has said yes to."""

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
