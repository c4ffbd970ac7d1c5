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

MEMORY_DIVISOR = 2  # copies may use this fraction of the available memory
MAX_FREE_PIECES = 8  # free pieces to keep
CGROUPS = "/sys/fs/cgroup"


class MemoryPool:
    """Memory whose pages are already allocated."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap | None:
        """Memory of at least that size; None if the machine has too little available."""
        for piece in [piece for piece in self._free if size <= len(piece) <= 2 * size]:
            with contextlib.suppress(ValueError):  # another thread or a signal handler was faster
                self._free.remove(piece)
                return piece
        if not fits_in_memory(size):
            self._free.clear()
            if not fits_in_memory(size):
                return None
        return mmap.mmap(-1, max(size, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def put_back(self, piece: mmap.mmap) -> None:
        """Return memory to the pool."""
        self._free.append(piece)
        del self._free[:-MAX_FREE_PIECES]


def fits_in_memory(size: int) -> bool:
    """Whether that many bytes may be allocated."""
    return size * MEMORY_DIVISOR <= available_memory()


def available_memory() -> int:
    """Bytes available to this process: of the machine, or of its container."""
    limits = [int(_field("/proc/meminfo", "MemAvailable:") or 0) * 1024]
    for folder in _cgroups():
        limit = _read_text(os.path.join(folder, "memory.max"))
        if limit.isdecimal():
            used = int(_read_text(os.path.join(folder, "memory.current")) or 0)
            cached = int(_field(os.path.join(folder, "memory.stat"), "inactive_file") or 0)
            limits.append(max(int(limit) - used + cached, 0))
    return min(limits)


def _cgroups() -> list[str]:
    """The control group of this process and its parents."""
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
    """One captured state of a rank, or free memory for it."""

    descriptor: int
    size: int
    state: str = EMPTY
    step: int = -1
    contents: dict[str, Any] = field(default_factory=dict)  # description by the rank: what is where

    @cached_property
    def view(self) -> memoryview:
        """The content, mapped once because page faults are expensive."""
        return map_memory(os.dup(self.descriptor))

    def public(self) -> dict[str, Any]:
        """What a reconnecting rank needs to read it."""
        return {"state": self.state, "step": self.step, **self.contents}


class BufferSet:
    """The staging buffers of a rank, all of one size."""

    def __init__(self) -> None:
        self.buffers: list[StagingBuffer] = []

    def reserve(self, count: int, size: int) -> None:
        """Allocate that many; existing ones are kept if they fit."""
        if [buffer.size for buffer in self.buffers] == [size] * count:
            return
        self.close()
        self.buffers = [StagingBuffer(_create_memory(size), size) for _ in range(count)]

    def close(self) -> None:
        """Release them; a write in progress keeps its view."""
        for buffer in self.buffers:
            os.close(buffer.descriptor)
        self.buffers = []


def map_memory(descriptor: int) -> memoryview:
    """Map a descriptor, which is closed; unmapped when unreferenced."""
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
