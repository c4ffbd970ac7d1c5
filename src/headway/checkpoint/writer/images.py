"""The images that a writer holds: memory without a name, which is gone when its last user is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

EMPTY, FILLING, WHOLE = "empty", "filling", "whole"


@dataclass
class Image:
    """One moment of one rank, or room for it."""

    descriptor: int
    size: int
    state: str = EMPTY
    step: int = -1
    told: dict[str, Any] = field(default_factory=dict)  # by the rank: where what is in it

    def public(self) -> dict[str, Any]:
        """What a rank that comes back needs to read it."""
        return {"state": self.state, "step": self.step, **self.told}


class Images:
    """All of a rank's, of one size."""

    def __init__(self) -> None:
        self.all: list[Image] = []

    def reserve(self, count: int, size: int) -> None:
        """Room for that many; what is there stays if it fits."""
        if [image.size for image in self.all] == [size] * count:
            return
        self.close()
        self.all = [Image(_memory(size), size) for _ in range(count)]

    def close(self) -> None:
        """Let go of them; a write that is under way has a descriptor of its own."""
        for image in self.all:
            os.close(image.descriptor)
        self.all = []


def _memory(size: int) -> int:
    descriptor = os.memfd_create("headway-checkpoint", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
