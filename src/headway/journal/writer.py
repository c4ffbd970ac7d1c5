"""Append events to the journal of a process: one line per event, one append per line."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any

from headway import redact
from headway.journal import file_access, pulse
from headway.storage.process_identity import boot_id, pid_space

SCHEMA = 1
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
START_LIMIT = 1_000_000_000  # ns that an interpreter may take to start
PLAIN = (int, str, bool, type(None))


class Writer:
    """Appends lines to a journal and updates its pulse page.

    Never raises on I/O, so that the job continues. The first error is stored in `fault`, lines that
    were not written are counted in `lost`, and the next line that can be written records both.
    """

    def __init__(self, path: str, pid: int, pages: str = "") -> None:
        """`pages`: a folder in memory for the page, from which the launcher copies it."""
        self.path = path
        self.lost = 0
        self.fault = ""
        self._fd = -1
        self._file = (0, 0)
        self._head = b""  # without it, readers skip the file
        self._has_head = False  # whether the file has it
        self.cells = pulse.anonymous()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with file_access.above_standard_fds():
                self._open()
                self.cells = _page(path.removesuffix(".jsonl") + ".pulse", pid, pages)
        except OSError as error:
            self._note(error)

    def write(self, record: dict[str, Any]) -> None:
        """Append an event, and update the sign of life."""
        self.cells[pulse.ALIVE] = now()
        if self._fd < 0:
            self.lost += 1
            return
        if self.lost:
            # Starts with a newline: the failed write may have left an incomplete line.
            gap = {"ev": "lost", "t": record.get("t", 0), "lines": self.lost, "why": self.fault}
            if not self._append(b"\n" + encode(gap)):
                self.lost += 1
                return
            self.lost = 0
        if not self._append(encode(record)):
            self.lost += 1

    def file_clock(self) -> int | None:
        """The time of the file system, a clock that all hosts share."""
        try:
            return os.fstat(self._fd).st_mtime_ns if self._fd >= 0 else None
        except OSError:
            return None

    def close(self) -> None:
        """Close the file and the page; a mapping has its own descriptor."""
        self.cells = pulse.anonymous()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: bytes) -> bool:
        try:
            if not self._is_own_file():
                with file_access.above_standard_fds():
                    self._open()
            self._head = self._head or line
            if not self._has_head:
                self._put(line if line is self._head else b"\n" + self._head)
                self._has_head = True
            if line is not self._head:
                self._put(line)
        except OSError as error:
            self._note(error)
            return False
        return True

    def _open(self) -> None:
        """Open the file at the path: the same as before, or a new one."""
        self._fd = os.open(self.path, APPEND, 0o644)
        status = os.fstat(self._fd)
        file = (status.st_dev, status.st_ino)
        # A new file may have the inode number of the removed one.
        self._has_head = self._has_head and file == self._file and status.st_size > 0
        self._file = file

    def _put(self, line: bytes) -> None:
        if os.write(self._fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_own_file(self) -> bool:
        """False if the job has closed the descriptor and reused its number for another file."""
        try:
            status = os.fstat(self._fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _note(self, error: OSError) -> None:
        self.fault = self.fault or f"{error.strerror or error}"


def _page(path: str, pid: int, pages: str) -> memoryview:
    """Create the page in the folder `pages`, or at the path if that is not possible."""
    if pages:
        try:
            return pulse.create(os.path.join(pages, os.path.basename(path)), pid)
        except OSError:
            pass
    return pulse.create(path, pid)


def encode(record: dict[str, Any]) -> bytes:
    """Encode a line, without secrets. Values that JSON does not support are written as text."""
    try:
        text = json.dumps(redact.data(record), separators=(",", ":"), default=_text)
    except (TypeError, ValueError, RecursionError):  # keys that are not text, or a cycle
        simple = {
            key: value if type(value) in PLAIN else type(value).__name__
            for key, value in record.items()
        }
        text = json.dumps(redact.data(simple), separators=(",", ":"))
    return text.encode() + b"\n"


def _text(value: object) -> str:
    try:
        return redact.text(str(value))
    # No other exceptions: a signal handler of the job may raise here.
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return type(value).__name__


def now() -> int:
    """The clock of every journal: nanoseconds of CLOCK_MONOTONIC, one per boot of a host."""
    return time.monotonic_ns()


def _stat(pid: int | str) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on: the name before it may contain anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _started(stat: list[bytes]) -> int:
    since_boot = (int(stat[19]) + 1) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return since_boot - asleep


def started_at(pid: int) -> int | None:
    """When a process of this machine was started, on the journal's clock; None if it has ended."""
    try:
        stat = _stat(pid)
        return None if stat[0] in (b"Z", b"X") else _started(stat)
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return 0  # it exists, but may not be inspected


def process_begin(python_started: int | None = None) -> int:
    """When the kernel started this process, on the journal's clock: to 10 ms, never too early.

    `python_started` is when its interpreter was ready. If a shell became this process by `exec`, it
    was started long before; then `python_started` counts.
    """
    try:
        begin = max(min(_started(_stat("self")), now()), 0)
    except (OSError, ValueError, IndexError, AttributeError):
        return now() if python_started is None else python_started
    if python_started is not None and python_started - begin > START_LIMIT:
        return python_started
    return begin


def head(role: str, python_started: int | None = None, **fields: Any) -> dict[str, Any]:
    """The first line of every journal: the process and its clocks."""
    import sys

    return {
        "ev": "head",
        "schema": SCHEMA,
        "role": role,
        "t": now(),
        "wall": time.time_ns(),
        "boot": boot_id(),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "pids": pid_space(),
        "ppid": os.getppid(),
        "begin": process_begin(python_started),
        "python": sys.version.split()[0],
        "argv": getattr(sys, "orig_argv", sys.argv)[:64],
        **fields,
    }
