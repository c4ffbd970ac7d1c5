"""Images of tensors on a GPU: copied aside on the GPU itself, then to the host beside the training.

The first copy is a part of the training's own stream and takes milliseconds; nobody waits for it.
Where the GPU has no room for it, what only an optimizer changes goes straight to the host, and the
next optimizer step waits, on the GPU, until it is there; the rest, which is little, is copied aside
all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ROOM = 1.1  # of the copy's bytes that must be free on the GPU


class DeviceImages:
    """The tensors of one GPU, on their way into images."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cuda: Any = torch.cuda  # whose classes have no types
        self._stream = cuda.Stream(device)
        self._aside: dict[int, Tensor] = {}  # by the number of the tensor; used again
        self._copied, self._read = cuda.Event(), cuda.Event()
        self._issued = threading.Event()  # every copy of the image that is under way
        self._issued.set()
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self.fenced = False

    def begin(self, tensors: dict[int, Tensor], views: Sequence[Tensor], fixed: set[int]) -> None:
        """From now on the views become what the tensors are at this point of the stream.

        `fixed`: those that nothing changes before the next optimizer step.
        """
        new = sum(t.nbytes for n, t in tensors.items() if n not in self._aside)
        free, _ = torch.cuda.mem_get_info(self.device)
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        self.fenced = new * ROOM > free
        direct = fixed & tensors.keys() if self.fenced else set()
        aside = {n: t for n, t in tensors.items() if n not in direct}
        for number, tensor in aside.items():
            if number not in self._aside:
                self._aside[number] = torch.empty_like(
                    tensor, memory_format=torch.contiguous_format
                )
        torch._foreach_copy_([self._aside[n] for n in aside], list(aside.values()))
        self._copied.record(torch.cuda.current_stream(self.device))
        sources = {**self._aside, **{n: tensors[n] for n in direct}}
        self._pairs = [(views[n], sources[n]) for n in tensors]
        self._issued.clear()

    def drain(self) -> None:
        """To the host; returns when it is there."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._copied)
            for view, source in self._pairs:
                view.copy_(source, non_blocking=True)
            self._read.record(self._stream)
        self._issued.set()
        self._read.synchronize()
        self._pairs = []

    def fence(self) -> None:
        """Before an optimizer step: what it will change must have been read."""
        if self.fenced:
            self._issued.wait()
            torch.cuda.current_stream(self.device).wait_event(self._read)


def register(address: int, size: int) -> None:
    """Have the GPU know this memory, so that copies to it run beside the rest; takes long."""
    runtime: Any = torch.cuda.cudart
    runtime().cudaHostRegister(address, size, 0)
