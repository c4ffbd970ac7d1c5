"""A file that is written past the page cache: where cores are few, its copying is in a rank's way.

The disk takes whole blocks from memory that is a block's multiple itself, so that the bytes go
through two such stretches: one is filled while a thread hands the other to the disk.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor

from headway.checkpoint.store import disk

SPARE_CORES = len(os.sched_getaffinity(0)) > 2  # then the page cache is the faster way
ROOM = 8 << 20


class Past:
    """Of a file that is open, and that `disk.past_cache` has said yes to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0  # in the file, of the room that is filled
        self._filled = 0
        self._room, self._other = mmap.mmap(-1, ROOM), mmap.mmap(-1, ROOM)
        self._thread = ThreadPoolExecutor(1, "headway-disk")
        self._written: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Put it at the end; that the disk has failed may be told by a later call."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                size = min(len(view) - done, ROOM - self._filled)
                self._room[self._filled : self._filled + size] = view[done : done + size]
                done += size
                self._filled += size
                if self._filled == ROOM:
                    self._hand_over()

    def finish(self, *, sync: bool) -> None:
        """It is whole."""
        try:
            self._settle()
            disk.past_cache(self._fd, False)  # what is left is no whole block
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

    def _hand_over(self) -> None:
        self._settle()
        full = memoryview(self._room)
        self._written = self._thread.submit(self._put, full, self._at)
        self._room, self._other = self._other, self._room
        self._at += ROOM
        self._filled = 0

    def _put(self, data: memoryview, at: int) -> None:
        try:
            disk.write_at(self._fd, data, at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            disk.past_cache(self._fd, False)  # it was said to work, and does not
            disk.write_at(self._fd, data, at)

    def _settle(self) -> None:
        """Until the disk has what it was given."""
        written, self._written = self._written, None
        if written is not None:
            written.result()
