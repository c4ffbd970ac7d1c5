"""Capture dense tensors, in host memory and on GPUs.

Host tensors that only an optimizer step changes are copied by a thread during forward and backward;
the optimizer step waits for it. Tensors on a GPU are first copied on the GPU, in stream order, then
to the host. Without room for that on the GPU at the peak of a step, what only an optimizer changes
is copied straight to the host, and the first change waits for it; the rest is copied at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor

from headway.checkpoint.engine.gpu_transfer import gpu_of

DEFERRED_MIN_BYTES = 1 << 16  # bytes: what is smaller is copied at once


class HostTensors:
    """The tensors of one rank in the host's memory, on their way into images."""

    def __init__(self) -> None:
        self._copied = threading.Event()
        self._copied.set()
        self._pairs: list[tuple[Tensor, Tensor, int]] = []  # to, from, and the changes it has seen

    def begin(
        self, tensors: dict[int, Tensor], views: Sequence[Tensor], step_only: set[int]
    ) -> None:
        """From now on the views become what the tensors are at this moment.

        `fixed`: those that nothing changes before the next optimizer step.
        """
        deferred = {
            n
            for n, tensor in tensors.items()
            if n in step_only and tensor.nbytes >= DEFERRED_MIN_BYTES
        }
        immediate = [n for n in tensors if n not in deferred]
        if immediate:
            torch._foreach_copy_([views[n] for n in immediate], [tensors[n] for n in immediate])
        self._pairs = [(views[n], tensors[n], tensors[n]._version) for n in sorted(deferred)]
        if self._pairs:
            self._copied.clear()

    def drain(self) -> bool:
        """Copy what is left; False if something was changed meanwhile, past its optimizer."""
        pairs, self._pairs = self._pairs, []
        try:
            if pairs:
                torch._foreach_copy_(
                    [target for target, _, _ in pairs], [source for _, source, _ in pairs]
                )
            return all(source._version == version for _, source, version in pairs)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Nobody wants it any more."""
        self._pairs = []
        self._copied.set()

    def fence(self) -> None:
        """Before an optimizer step: what it will change must have been copied."""
        self._copied.wait()


FREE_MEMORY_FACTOR = 1.1  # of the copy's bytes that must be free on the GPU


class DeviceTensors:
    """The tensors of one GPU, on their way into images."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = gpu_of(device)
        self._gpu_copies: dict[int, Tensor] = {}  # by the number of the tensor; used again
        self._may_copy = True
        self._copied: Any = None
        self._drained = threading.Event()  # what is read from the tensors themselves
        self._drained.set()
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._direct: list[tuple[Tensor, int]] = []  # those, and the changes they have seen

    def begin(
        self,
        tensors: dict[int, Tensor],
        views: Sequence[Tensor],
        step_only: Set[int],
        *,
        copies: bool = True,
    ) -> None:
        """From now on the views become what the tensors are at this point of the stream.

        `fixed`: those that nothing changes without a fence before. `copies`: whether it is known
        what memory the training needs, so that copies on the GPU may have the rest.
        """
        self._may_copy = copies
        for number in self._gpu_copies.keys() - tensors.keys():
            del self._gpu_copies[number]  # its rows are gathered by now
        direct = set() if self._has_room(tensors) else step_only & tensors.keys()
        direct = {number for number in direct if tensors[number].is_contiguous()}
        copied = {n: t for n, t in tensors.items() if n not in direct}
        if not self._has_room(copied):
            self._copy([(views[n], tensor) for n, tensor in copied.items()])
            copied = {}
        if copied:
            torch._foreach_copy_([self._gpu_copies[n] for n in copied], list(copied.values()))
        self._copied = self._gpu.record_event()
        self._pairs = [(views[n], tensors[n]) for n in direct]
        self._pairs += [(views[n], self._gpu_copies[n]) for n in copied]
        self._direct = [(tensors[n], tensors[n]._version) for n in direct]
        if direct:
            self._drained.clear()

    def _has_room(self, tensors: dict[int, Tensor]) -> bool:
        """Whether there is memory aside for each from now on."""
        missing = {n: tensor for n, tensor in tensors.items() if n not in self._gpu_copies}
        if not missing:
            return True
        needed = sum(tensor.nbytes for tensor in missing.values()) * FREE_MEMORY_FACTOR
        if not self._may_copy or needed > self._gpu.free_bytes():
            return False
        try:
            self._gpu_copies |= {
                n: torch.empty_like(tensor, memory_format=torch.contiguous_format)
                for n, tensor in missing.items()
            }
        except torch.OutOfMemoryError:  # in pieces that are too small
            return False
        return True

    def _copy(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Now, to the host."""
        self._gpu.transfer.to_host(
            [p for p in pairs if p[1].is_contiguous()], self._gpu.record_event()
        )
        for view, tensor in pairs:
            if not tensor.is_contiguous():
                view.copy_(tensor)

    def drain(self) -> bool:
        """To the host; False if something was changed meanwhile, past its optimizer."""
        try:
            self._gpu.transfer.to_host(self._pairs, self._copied)
            return all(tensor._version == version for tensor, version in self._direct)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Nobody wants it any more."""
        self._pairs, self._direct = [], []
        self._drained.set()

    def fence(self) -> None:
        """Before a change: what it changes must have been read."""
        self._drained.wait()
