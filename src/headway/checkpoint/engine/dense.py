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

DEFERRED_MIN_BYTES = 1 << 16  # bytes; smaller tensors are copied at once


class HostTensors:
    """Captures the host tensors of one rank."""

    def __init__(self) -> None:
        self._copied = threading.Event()
        self._copied.set()
        self._pairs: list[tuple[Tensor, Tensor, int]] = []  # target, source, version of the source

    def begin(
        self, tensors: dict[int, Tensor], views: Sequence[Tensor], step_only: set[int]
    ) -> None:
        """Capture the tensors as they are now into the views.

        `step_only` are the indices of tensors that nothing changes before the next optimizer step.
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
        """Copy the rest; False if a tensor was changed meanwhile outside its optimizer."""
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
        """Drop the capture."""
        self._pairs = []
        self._copied.set()

    def fence(self) -> None:
        """Before an optimizer step: wait until the tensors it changes are copied."""
        self._copied.wait()


FREE_MEMORY_FACTOR = 1.1  # free GPU memory required, as a factor of the size of the copies


class DeviceTensors:
    """Captures the tensors of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = gpu_of(device)
        self._gpu_copies: dict[int, Tensor] = {}  # by index of the tensor; reused
        self._may_copy = True
        self._copied: Any = None
        self._drained = threading.Event()  # set once tensors that are read directly were copied
        self._drained.set()
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._direct: list[tuple[Tensor, int]] = []  # tensors read directly, and their versions

    def begin(
        self,
        tensors: dict[int, Tensor],
        views: Sequence[Tensor],
        step_only: Set[int],
        *,
        copies: bool = True,
    ) -> None:
        """Capture the tensors at this point of the stream into the views.

        `step_only` are the indices of tensors that nothing changes without a fence before.
        `copies`: the memory needs of the training are known, so that copies may use the rest of the
        GPU.
        """
        self._may_copy = copies
        for number in self._gpu_copies.keys() - tensors.keys():
            del self._gpu_copies[number]  # its rows are captured by `DeviceRows`
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
        """Whether each tensor has a copy on the GPU, allocated now if necessary."""
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
        except torch.OutOfMemoryError:  # fragmented memory
            return False
        return True

    def _copy(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Copy to the host now."""
        self._gpu.transfer.to_host(
            [p for p in pairs if p[1].is_contiguous()], self._gpu.record_event()
        )
        for view, tensor in pairs:
            if not tensor.is_contiguous():
                view.copy_(tensor)

    def drain(self) -> bool:
        """Copy to the host; False if a tensor was changed meanwhile outside its optimizer."""
        try:
            self._gpu.transfer.to_host(self._pairs, self._copied)
            return all(tensor._version == version for tensor, version in self._direct)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop the capture."""
        self._pairs, self._direct = [], []
        self._drained.set()

    def fence(self) -> None:
        """Before a change: wait until the tensors are copied."""
        self._drained.wait()
