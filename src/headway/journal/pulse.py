"""The pulse page: a small mmap per process that is updated by every step.

A store into a shared mapping reaches the kernel's page cache at once, so the page is complete after
`kill -9` without a flush. It is an array of signed 64-bit cells, little-endian; times are
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
LIMIT = 1 << 62  # larger numbers are damaged, here and in journals

# Cell numbers. docs/journal.md describes them; append, never renumber.
MAGIC_CELL = 0
PID = 1
STEPS = 2  # steps completed by this process; these four cells are stored together
LAST_STEP = 3  # end of the last of them
BATCHES = 4  # batches fetched by then
WAIT = 5  # ns waited for data within the current window, in short waits
ALIVE = 6  # last sign of life of any kind
WINDOW = 7  # STEPS when the current summary window began
WINDOW_AT = 8  # when that window began
WINDOW_BATCHES = 9  # BATCHES when that window began
WAITING = 10  # start of the current wait for a batch
SAMPLES = 11  # progress reported by the job
CELLS = 12


@dataclass(frozen=True, slots=True)
class Pulse:
    """The content of a pulse page."""

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
    """Create the page; return its cells, which stay writable."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Written, not truncated to size: on a full disk, a sparse page causes SIGBUS in the job.
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
    """Cells without a file, if the page cannot be created."""
    return memoryview(bytearray(SIZE)).cast("q")


def read(path: str) -> Pulse | None:
    """Read a page; None if there is none, or it is not a pulse page."""
    try:
        with file_access.open_file(path) as file:
            return parse(file.read(CELLS * 8))
    except OSError:
        return None


def parse(data: bytes) -> Pulse | None:
    """Parse the first bytes of a page; None if it is not a pulse page."""
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
