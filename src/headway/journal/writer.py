"""Writes one journal: a line per event, each one whole in a single append."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any

from headway.journal import pulse

SCHEMA = 1
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
START_LIMIT = 1_000_000_000  # ns that an interpreter may take to come up


class Writer:
    """Appends lines to one journal and keeps its pulse page.

    Never raises on I/O: the job goes on. The first error is kept in `fault`, lines that did not
    fit are counted in `lost`, and both are told by the first line that can be written again.
    """

    def __init__(self, path: str, pid: int) -> None:
        self.path = path
        self.lost = 0
        self.fault = ""
        self._fd = -1
        self._file = (0, 0)
        self.cells = pulse.anonymous()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._fd = os.open(path, APPEND, 0o644)
            opened = os.fstat(self._fd)
            self._file = (opened.st_dev, opened.st_ino)
            self.cells = pulse.create(path.removesuffix(".jsonl") + ".pulse", pid)
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
        """Close the file; the pulse page lives on until the process ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: bytes) -> bool:
        try:
            if not self._is_ours():
                self._fd = os.open(self.path, APPEND, 0o644)
            written = os.write(self._fd, line)
        except OSError as error:
            self._note(error)
            return False
        if written < len(line):
            self._note(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            return False
        return True

    def _is_ours(self) -> bool:
        """Jobs that close every descriptor get the same numbers again, for files of their own."""
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def _note(self, error: OSError) -> None:
        self.fault = self.fault or f"{error.strerror or error}"


def encode(record: dict[str, Any]) -> bytes:
    """One line. Anything that JSON does not know is written as its text."""
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"


def now() -> int:
    """The clock of every journal: nanoseconds of CLOCK_MONOTONIC, one per boot of a host."""
    return time.monotonic_ns()


def boot_id() -> str:
    """Which boot of which machine this is: journals of one boot share the monotonic clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        import socket

        return f"host:{socket.gethostname()}"


def pid_space() -> int | None:
    """In which space of process numbers this process lives: containers have their own."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def process_begin(entered: int | None = None) -> int:
    """When the kernel started this process, on the journal's clock: to 10 ms, and never early.

    `entered` is when its Python came up. A shell that turns into Python (`exec`) was started long
    before that; then its Python counts.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        since_boot = (ticks + 1) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        begin = min(since_boot - asleep, now())
    except (OSError, ValueError, IndexError, AttributeError):
        return now() if entered is None else entered
    if entered is not None and entered - begin > START_LIMIT:
        return entered
    return begin


def head(role: str, entered: int | None = None, **fields: Any) -> dict[str, Any]:
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
        "begin": process_begin(entered),
        "python": sys.version.split()[0],
        "argv": getattr(sys, "orig_argv", sys.argv)[:64],
        **fields,
    }
