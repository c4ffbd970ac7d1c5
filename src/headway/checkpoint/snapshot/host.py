"""Images of tensors in the host's memory: what only an optimizer changes is copied beside the step.

Forward and backward leave it as it is, so a thread copies it meanwhile, and the optimizer waits for
that before it steps. Whatever else changes it first is seen by the tensor's own count of changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

DEFERRED_MIN_BYTES = 1 << 16  # bytes: what is smaller is copied at once


class HostTensors:
    """The tensors of one rank in the host's memory, on their way into images."""

    def __init__(self) -> None:
        self._copied = threading.Event()
        self._copied.set()
        self._pairs: list[tuple[Tensor, Tensor, int]] = []  # to, from, and the changes it has seen

    def begin(self, tensors: dict[int, Tensor], views: Sequence[Tensor], fixed: set[int]) -> None:
        """From now on the views become what the tensors are at this moment.

        `fixed`: those that nothing changes before the next optimizer step.
        """
        later = {
            n for n, tensor in tensors.items() if n in fixed and tensor.nbytes >= DEFERRED_MIN_BYTES
        }
        now = [n for n in tensors if n not in later]
        if now:
            torch._foreach_copy_([views[n] for n in now], [tensors[n] for n in now])
        self._pairs = [(views[n], tensors[n], tensors[n]._version) for n in sorted(later)]
        if self._pairs:
            self._copied.clear()

    def drain(self) -> bool:
        """Copy what is left; False if something was changed meanwhile, past its optimizer."""
        pairs, self._pairs = self._pairs, []
        try:
            if pairs:
                torch._foreach_copy_([to for to, _, _ in pairs], [source for _, source, _ in pairs])
            return all(source._version == version for _, source, version in pairs)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self._pairs = []
        self._copied.set()

    def fence(self) -> None:
        """Before an optimizer step: what it will change must have been copied."""
        self._copied.wait()
