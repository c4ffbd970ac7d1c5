"""Host memory for captured state: anonymous memory of this process, memfd buffers of the writer.

This module must not import torch: the writer process uses it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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

    def put_back(self, piece: mmap.mmap) -> None:
        """It may be filled again."""
        self._free.append(piece)
        del self._free[:-MAX_FREE_PIECES]


def fits_in_memory(size: int) -> bool:
    """Whether so many bytes may be taken."""
    return size * MEMORY_DIVISOR <= available_memory()


def available_memory() -> int:
    """Bytes that are left to this process: of the machine, or of the container around it."""
    limits = [int(_field("/proc/meminfo", "MemAvailable:") or 0) * 1024]
    for folder in _cgroups():
        limit = _read_text(os.path.join(folder, "memory.max"))
        if limit.isdecimal():
            used = int(_read_text(os.path.join(folder, "memory.current")) or 0)
            cached = int(_field(os.path.join(folder, "memory.stat"), "inactive_file") or 0)
            limits.append(max(int(limit) - used + cached, 0))
    return min(limits)


def _cgroups() -> list[str]:
    """The control group of this process and those above it."""
    line = next(
        (entry for entry in _read_text("/proc/self/cgroup").split("\n") if entry[:3] == "0::"),
        "0::/",
    )
    parts = line[3:].strip("/").split("/")
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


EMPTY, FILLING, READY = "empty", "filling", "whole"


@dataclass
class StagingBuffer:
    """One moment of one rank, or room for it."""

    descriptor: int
    size: int
    state: str = EMPTY
    step: int = -1
    contents: dict[str, Any] = field(default_factory=dict)  # by the rank: where what is in it

    @cached_property
    def view(self) -> memoryview:
        """What is in it: mapped once, as each page costs the first who looks at it."""
        return map_memory(os.dup(self.descriptor))

    def public(self) -> dict[str, Any]:
        """What a rank that comes back needs to read it."""
        return {"state": self.state, "step": self.step, **self.contents}


class BufferSet:
    """All of a rank's, of one size."""

    def __init__(self) -> None:
        self.buffers: list[StagingBuffer] = []

    def reserve(self, count: int, size: int) -> None:
        """Room for that many; what is there stays if it fits."""
        if [buffer.size for buffer in self.buffers] == [size] * count:
            return
        self.close()
        self.buffers = [StagingBuffer(_create_memory(size), size) for _ in range(count)]

    def close(self) -> None:
        """Let go of them; a write that is under way has its view."""
        for buffer in self.buffers:
            os.close(buffer.descriptor)
        self.buffers = []


def map_memory(descriptor: int) -> memoryview:
    """Gone when nothing refers to it any more; the descriptor is closed."""
    with open(descriptor, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _create_memory(size: int) -> int:
    descriptor = os.memfd_create("headway-checkpoint", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
