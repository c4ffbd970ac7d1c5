"""Keep the end of the job's standard error, as evidence of why it failed.

A file is read again afterwards; a pipe is passed through a pipe of the launcher; a terminal is left
alone, as programs behave differently on one. Background processes of the job may continue to write
after the launcher has ended: a relay process copies their output.
"""

from __future__ import annotations

import io
import os
import select
import stat
import subprocess
import sys
import threading
from collections import deque
from typing import BinaryIO

TAIL_BYTES = 4 * 1024 * 1024  # the end of a log has the evidence
CHUNK = 65536  # bytes; the capacity of a pipe
RELAY = """
import os, select
while data := os.read(0, 65536):
    while data:
        try:
            data = data[os.write(1, data):]
        except BlockingIOError:
            select.select([], [1], [])
"""


class StderrTap:
    """The standard error of one attempt."""

    def __init__(self, fd: int = 2, *, through_pipe: bool = False) -> None:
        self._fd = fd
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._thread: threading.Thread | None = None
        # Open until all writers have closed it, or the relay reads it.
        self._reader: int | None = None
        self._stopped = self._stop = -1
        self._lock = threading.Lock()
        self.stdout: int | None = None  # for the command, where it differs from the launcher's
        self.stderr: int | None = None
        self._begin: int | None = None
        try:
            status = os.fstat(fd)
        except OSError:  # closed
            return
        if stat.S_ISREG(status.st_mode):
            self._begin = status.st_size
        elif through_pipe and (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
            self._pass_through()

    def _pass_through(self) -> None:
        try:
            self._reader, self.stderr = os.pipe()
            self._stopped, self._stop = os.pipe()
            self._thread = threading.Thread(target=self._copy, name="headway-output", daemon=True)
            self._thread.start()
        except (OSError, RuntimeError):  # no descriptor or thread left: the job keeps its own
            self._thread = self.stderr = None
            return
        try:
            is_same_file = os.path.sameopenfile(1, self._fd)
        except OSError:
            is_same_file = False
        if is_same_file:  # 2>&1: both go through the pipe, so that their lines keep their order
            self.stdout = self.stderr

    def _copy(self) -> None:
        """Copy until all writers have closed the pipe, or it is empty and the launcher ends."""
        assert self._reader is not None
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._stopped, select.POLLIN)
        listening, remaining = True, CHUNK
        while remaining > 0:
            ready = {fd for fd, _ in poll.poll()}
            if self._reader not in ready:
                return
            chunk = os.read(self._reader, CHUNK)
            if not chunk:
                with self._lock:
                    for fd in (self._reader, self._stopped, self._stop):
                        os.close(fd)
                    self._reader = None
                return
            if self._stopped in ready:  # others may write forever
                remaining -= len(chunk)
            self._chunks.append(chunk)
            self._size += len(chunk)
            while self._size - len(self._chunks[0]) > TAIL_BYTES:
                self._size -= len(self._chunks.popleft())
            while listening and chunk:
                try:
                    chunk = chunk[os.write(self._fd, chunk) :]
                except BlockingIOError:
                    select.select([], [self._fd], [])
                except OSError:  # the reader has gone; the job must not block on that
                    listening = False

    def child_started(self) -> None:
        """Close the end of the pipe that the command has inherited."""
        if self.stderr is not None:
            os.close(self.stderr)

    def drain(self, seconds: float = 0.2) -> None:
        """Read what is still in the pipe after the command has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def start_relay(self) -> None:
        """Read all that the job has written, before the launcher ends.

        Later output of its background processes is copied by a relay process, which ends with them.
        """
        if self._thread is None:
            return
        with self._lock:
            if self._reader is not None:
                os.write(self._stop, b"\0")
        self._thread.join()
        if self._reader is None:
            return
        relay_command = [sys.executable, "-I", "-S", "-c", RELAY]
        relay = subprocess.Popen(
            relay_command,
            stdin=self._reader,
            stdout=self._fd,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the processes that write
        )
        relay.returncode = 0  # nothing waits for it
        os.close(self._reader)
        self._reader = None

    def text(self) -> BinaryIO:
        """The captured output, or the end of it."""
        if self._begin is None:
            return io.BytesIO(b"".join(list(self._chunks)))
        try:
            file = open(f"/proc/self/fd/{self._fd}", "rb")  # noqa: SIM115
            size = os.fstat(file.fileno()).st_size
            file.seek(max(self._begin, size - TAIL_BYTES))
        except OSError:
            return io.BytesIO()
        return file
