"""The images that a writer holds: memory without a name, which is gone when its last user is."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

EMPTY, FILLING, READY = "empty", "filling", "whole"


@dataclass
class StagingBuffer:
    """One moment of one rank, or room for it."""

    descriptor: int
    size: int
    state: str = EMPTY
    step: int = -1
    told: dict[str, Any] = field(default_factory=dict)  # by the rank: where what is in it

    @cached_property
    def view(self) -> memoryview:
        """What is in it: mapped once, as each page costs the first who looks at it."""
        return map_memory(os.dup(self.descriptor))

    def public(self) -> dict[str, Any]:
        """What a rank that comes back needs to read it."""
        return {"state": self.state, "step": self.step, **self.told}


class BufferSet:
    """All of a rank's, of one size."""

    def __init__(self) -> None:
        self.all: list[StagingBuffer] = []

    def reserve(self, count: int, size: int) -> None:
        """Room for that many; what is there stays if it fits."""
        if [image.size for image in self.all] == [size] * count:
            return
        self.close()
        self.all = [StagingBuffer(_create_memory(size), size) for _ in range(count)]

    def close(self) -> None:
        """Let go of them; a write that is under way has its view."""
        for image in self.all:
            os.close(image.descriptor)
        self.all = []


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
