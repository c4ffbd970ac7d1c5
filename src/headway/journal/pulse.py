"""The pulse page: one small mmap per process that takes every step.

A store into a shared mapping is in the kernel's page cache at once, so the page is whole after
`kill -9` without any flush. It is an array of signed 64-bit cells, little-endian; times are
CLOCK_MONOTONIC nanoseconds, 0 means never.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from dataclasses import dataclass

from headway.journal import file_access

MAGIC = int.from_bytes(b"HWPULSE1", "little")
SIZE = 4096
LIMIT = 1 << 62  # larger numbers are damage, here and in journals

# Cell numbers. docs/journal.md describes them; append, never renumber.
MAGIC_CELL = 0
PID = 1
STEPS = 2  # steps completed by this process; this and the next three are one store
LAST_STEP = 3  # end of the last of them
BATCHES = 4  # batches fetched by then
WAIT = 5  # ns waited for data within the current window, in short waits
ALIVE = 6  # last sign of life of any kind
WINDOW = 7  # STEPS when the current summary window began
WINDOW_AT = 8  # when it began
WINDOW_BATCHES = 9  # BATCHES when it began
WAITING = 10  # since when it is waiting for a batch now
SAMPLES = 11  # progress told by the user
CELLS = 12


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the page said when it was read."""

    steps: int = 0
    last_step: int = 0
    alive: int = 0
    window: int = 0
    window_at: int = 0
    batches: int = 0
    wait: int = 0
    waiting: int = 0
    samples: int = 0
    window_batches: int = 0


def create(path: str, pid: int) -> memoryview:
    """Make the page; returns its cells, writable, for the life of the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Written, not truncated to size: a sparse page on a full disk is a SIGBUS in the job.
        if os.write(fd, bytes(SIZE)) < SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        page = mmap.mmap(fd, SIZE)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    cells = memoryview(page).cast("q")
    cells[PID] = pid
    cells[MAGIC_CELL] = MAGIC
    return cells


def anonymous() -> memoryview:
    """Cells that go nowhere: the stand-in when the page cannot be made."""
    return memoryview(bytearray(SIZE)).cast("q")


def read(path: str) -> Pulse | None:
    """The page at `path`; None where there is none or it is no pulse page."""
    try:
        with file_access.open_file(path) as file:
            return parse(file.read(CELLS * 8))
    except OSError:
        return None


def parse(data: bytes) -> Pulse | None:
    """The page from its first bytes; None for what is no pulse page."""
    if len(data) < CELLS * 8:
        return None
    cells = struct.unpack(f"<{CELLS}q", data[: CELLS * 8])
    if cells[MAGIC_CELL] != MAGIC or any(value < 0 for value in cells):
        return None
    return Pulse(
        steps=cells[STEPS],
        last_step=cells[LAST_STEP],
        alive=cells[ALIVE],
        window=cells[WINDOW],
        window_at=cells[WINDOW_AT],
        batches=cells[BATCHES],
        wait=cells[WAIT],
        waiting=cells[WAITING],
        samples=cells[SAMPLES],
        window_batches=cells[WINDOW_BATCHES],
    )
