"""Images of tensors on a GPU: copied aside on the GPU itself, then to the host beside the training.

The first copy is a part of the training's own stream and takes milliseconds; nobody waits for it.
Where the GPU has no room for it, what only an optimizer changes goes straight to the host while
forward and backward run, and the next optimizer step waits until it is there; the rest, which is
little, is copied aside all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.checkpoint.snapshot.gpu import gpu

ROOM = 1.1  # of the copy's bytes that must be free on the GPU


class DeviceImages:
    """The tensors of one GPU, on their way into images."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = gpu(device)
        self._aside: dict[int, Tensor] = {}  # by the number of the tensor; used again
        self._copied: Any = None
        self._drained = threading.Event()  # what is read from the tensors themselves
        self._drained.set()
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._direct: list[tuple[Tensor, int]] = []  # those, and the changes they have seen

    def begin(self, tensors: dict[int, Tensor], views: Sequence[Tensor], fixed: set[int]) -> None:
        """From now on the views become what the tensors are at this point of the stream.

        `fixed`: those that nothing changes before the next optimizer step.
        """
        direct = set() if self._has_room(tensors) else fixed & tensors.keys()
        direct = {number for number in direct if tensors[number].is_contiguous()}
        aside = {n: t for n, t in tensors.items() if n not in direct}
        for number in self._aside.keys() - tensors.keys():
            del self._aside[number]  # its rows are gathered by now
        for number, tensor in aside.items():
            if number not in self._aside:
                self._aside[number] = torch.empty_like(
                    tensor, memory_format=torch.contiguous_format
                )
        if aside:
            torch._foreach_copy_([self._aside[n] for n in aside], list(aside.values()))
        self._copied = self._gpu.moment()
        self._pairs = [(views[n], tensors[n] if n in direct else self._aside[n]) for n in tensors]
        self._direct = [(tensors[n], tensors[n]._version) for n in direct]
        if direct:
            self._drained.clear()

    def _has_room(self, tensors: dict[int, Tensor]) -> bool:
        new = sum(t.nbytes for n, t in tensors.items() if n not in self._aside)
        return new * ROOM <= self._gpu.free()

    def drain(self) -> bool:
        """To the host; False if something was changed meanwhile, past its optimizer."""
        try:
            self._gpu.lanes.to_host(self._pairs, self._copied)
            return all(tensor._version == version for tensor, version in self._direct)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self._pairs, self._direct = [], []
        self._drained.set()

    def fence(self) -> None:
        """Before an optimizer step: what it will change must have been read."""
        self._drained.wait()
