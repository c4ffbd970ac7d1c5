"""Append events to the journal of one process: one line per event, one append per line."""

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
START_LIMIT = 1_000_000_000  # ns that an interpreter may take to come up
PLAIN = (int, str, bool, type(None))


class Writer:
    """Appends lines to one journal and keeps its pulse page.

    Never raises on I/O: the job goes on. The first error is kept in `fault`, lines that did not
    fit are counted in `lost`, and both are told by the first line that can be written again.
    """

    def __init__(self, path: str, pid: int, pages: str = "") -> None:
        """`pages`: a folder in memory for the page, where a launcher copies it from."""
        self.path = path
        self.lost = 0
        self.fault = ""
        self._fd = -1
        self._file = (0, 0)
        self._head = b""  # without it readers leave the file out
        self._has_head = False  # the file has it
        self.cells = pulse.anonymous()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with file_access.above_standard_fds():
                self._open()
                self.cells = _page(path.removesuffix(".jsonl") + ".pulse", pid, pages)
        except OSError as error:
            self._note(error)

    def write(self, record: dict[str, Any]) -> None:
        """Append one event; that it could be written is a sign of life."""
        self.cells[pulse.ALIVE] = now()
        if self._fd < 0:
            self.lost += 1
            return
        if self.lost:
            # On a line of its own: what failed may have left half a line.
            gap = {"ev": "lost", "t": record.get("t", 0), "lines": self.lost, "why": self.fault}
            if not self._append(b"\n" + encode(gap)):
                self.lost += 1
                return
            self.lost = 0
        if not self._append(encode(record)):
            self.lost += 1

    def file_clock(self) -> int | None:
        """What the file system says the time is: hosts that share it share this clock."""
        try:
            return os.fstat(self._fd).st_mtime_ns if self._fd >= 0 else None
        except OSError:
            return None

    def close(self) -> None:
        """Close the file and the page: a mapping keeps a descriptor of its own."""
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
        """The file at the path: the one of before, or one that has taken its place."""
        self._fd = os.open(self.path, APPEND, 0o644)
        status = os.fstat(self._fd)
        file = (status.st_dev, status.st_ino)
        # A new file may have the number of the one that was removed.
        self._has_head = self._has_head and file == self._file and status.st_size > 0
        self._file = file

    def _put(self, line: bytes) -> None:
        if os.write(self._fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_own_file(self) -> bool:
        """Jobs that close every descriptor get the same numbers again, for files of their own."""
        try:
            status = os.fstat(self._fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _note(self, error: OSError) -> None:
        self.fault = self.fault or f"{error.strerror or error}"


def _page(path: str, pid: int, pages: str) -> memoryview:
    """A page at the path, or rather in the folder `pages` if it is on this host and has room."""
    if pages:
        try:
            return pulse.create(os.path.join(pages, os.path.basename(path)), pid)
        except OSError:
            pass
    return pulse.create(path, pid)


def encode(record: dict[str, Any]) -> bytes:
    """One line, without secrets. Anything that JSON does not know is written as its text."""
    try:
        text = json.dumps(redact.data(record), separators=(",", ":"), default=_text)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or no end
        simple = {
            key: value if type(value) in PLAIN else type(value).__name__
            for key, value in record.items()
        }
        text = json.dumps(redact.data(simple), separators=(",", ":"))
    return text.encode() + b"\n"


def _text(value: object) -> str:
    try:
        return redact.text(str(value))
    # Not more: a signal handler of the job may raise here, and that is the job's.
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
    """When a process of this machine was started, on the journal's clock; None if it is gone."""
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
    return 0  # it is there, and may not be looked at


def process_begin(python_started: int | None = None) -> int:
    """When the kernel started this process, on the journal's clock: to 10 ms, and never early.

    `entered` is when its Python came up. A shell that turns into Python (`exec`) was started long
    before that; then its Python counts.
    """
    try:
        begin = max(min(_started(_stat("self")), now()), 0)
    except (OSError, ValueError, IndexError, AttributeError):
        return now() if python_started is None else python_started
    if python_started is not None and python_started - begin > START_LIMIT:
        return python_started
    return begin


def head(role: str, python_started: int | None = None, **fields: Any) -> dict[str, Any]:
    """The first line of every journal: who writes, and how its clocks stand."""
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
