"""Memory that images are copied into: used again when its file is written, and bounded."""

from __future__ import annotations

import contextlib
import mmap
import os

MEMORY_DIVISOR = 2  # images may take one part in so many of the memory that is left
MAX_FREE_PIECES = 8  # pieces that wait to be used again
CGROUPS = "/sys/fs/cgroup"


class MemoryPool:
    """Pieces of memory whose pages are there already."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap | None:
        """A piece of at least so many bytes; None where the machine has too little left."""
        for piece in [piece for piece in self._free if size <= len(piece) <= 2 * size]:
            with contextlib.suppress(ValueError):  # another thread, or a signal, was faster
                self._free.remove(piece)
                return piece
        if not fits_in_memory(size):
            self._free.clear()
            if not fits_in_memory(size):
                return None
        return mmap.mmap(-1, max(size, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give(self, piece: mmap.mmap) -> None:
        """It may be filled again."""
        self._free.append(piece)
        del self._free[:-MAX_FREE_PIECES]


def fits_in_memory(size: int) -> bool:
    """Whether so many bytes may be taken."""
    return size * MEMORY_DIVISOR <= available_memory()


def available_memory() -> int:
    """Bytes that are left to this process: of the machine, or of the container around it."""
    found = [int(_field("/proc/meminfo", "MemAvailable:") or 0) * 1024]
    for folder in _cgroups():
        limit = _read_text(os.path.join(folder, "memory.max"))
        if limit.isdecimal():
            used = int(_read_text(os.path.join(folder, "memory.current")) or 0)
            cached = int(_field(os.path.join(folder, "memory.stat"), "inactive_file") or 0)
            found.append(max(int(limit) - used + cached, 0))
    return min(found)


def _cgroups() -> list[str]:
    """The control group of this process and those above it."""
    own = next(
        (one for one in _read_text("/proc/self/cgroup").split("\n") if one[:3] == "0::"), "0::/"
    )
    parts = own[3:].strip("/").split("/")
    return [os.path.join(CGROUPS, *parts[:depth]) for depth in range(len(parts) + 1)]


def _field(path: str, name: str) -> str:
    for line in _read_text(path).splitlines():
        if line.startswith(name):
            return line.split()[1]
    return ""


def _read_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
