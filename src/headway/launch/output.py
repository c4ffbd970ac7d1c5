"""What the job says on standard error, kept for the question why it failed.

A file is read again afterwards, a pipe is passed through a pipe of ours; a terminal is left alone,
as programs behave differently on one.
"""

from __future__ import annotations

import io
import os
import select
import stat
import threading
from collections import deque
from typing import BinaryIO

KEPT = 4 * 1024 * 1024  # bytes; the end of a log is what tells


class Output:
    """Standard error of one attempt."""

    def __init__(self, fd: int = 2, *, through_pipe: bool = False) -> None:
        self._fd = fd
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._thread: threading.Thread | None = None
        self.stdout: int | None = None  # what the command gets, where that is not ours
        self.stderr: int | None = None
        self._begin: int | None = None
        try:
            found = os.fstat(fd)
        except OSError:  # closed
            return
        if stat.S_ISREG(found.st_mode):
            self._begin = found.st_size
        elif through_pipe and (stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
            self._pass_through()

    def _pass_through(self) -> None:
        reader, self.stderr = os.pipe()
        try:
            same = os.path.sameopenfile(1, self._fd)
        except OSError:
            same = False
        if same:  # 2>&1: both through ours, so that their lines keep their order
            self.stdout = self.stderr
        self._thread = threading.Thread(
            target=self._copy, args=(reader,), name="headway-output", daemon=True
        )
        self._thread.start()

    def _copy(self, reader: int) -> None:
        listening = True
        while True:
            chunk = os.read(reader, 65536)
            if not chunk:
                os.close(reader)
                return
            self._chunks.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._chunks[0]) > KEPT:
                self._size -= len(self._chunks.popleft())
            while listening and chunk:
                try:
                    chunk = chunk[os.write(self._fd, chunk) :]
                except BlockingIOError:
                    select.select([], [self._fd], [])
                except OSError:  # nobody listens any more; the job must not block on that
                    listening = False

    def started(self) -> None:
        """The command has its ends of the pipe."""
        if self.stderr is not None:
            os.close(self.stderr)

    def finish(self, seconds: float | None = 0.2) -> None:
        """The command is gone: take what is still in the pipe; None: however long that takes."""
        if self._thread is not None:
            self._thread.join(seconds)

    def text(self) -> BinaryIO:
        """What was said, or its end if that was much."""
        if self._begin is None:
            return io.BytesIO(b"".join(list(self._chunks)))
        try:
            file = open(f"/proc/self/fd/{self._fd}", "rb")  # noqa: SIM115
            size = os.fstat(file.fileno()).st_size
            file.seek(max(self._begin, size - KEPT))
        except OSError:
            return io.BytesIO()
        return file
