"""What all images of one GPU share: buffers for the bus, and a stream beside the training's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from headway.checkpoint.snapshot.lanes import PinnedTransfer

SPARE_SHARE = 0.05  # of a GPU's memory, that is left: it may be in pieces that are too small


class Gpu:
    """One of them; without CUDA everything happens in its order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._lanes: PinnedTransfer | None = None
        self._cuda: Any = torch.cuda if device.type == "cuda" else None  # it has no types
        # Before others: what is gathered there is waited for by an optimizer.
        self._stream = self._cuda and self._cuda.Stream(device, priority=-1)

    @property
    def lanes(self) -> PinnedTransfer:
        """Made once, as memory that a GPU knows takes long to get."""
        with self._lock:
            if self._lanes is None:
                self._lanes = PinnedTransfer(self.device)
            return self._lanes

    def moment(self) -> Any:
        """This point of the stream that is used here; to be waited for on others."""
        if self._cuda is None:
            return None
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self.device))
        return event

    def after(self, moment: Any) -> None:
        """What comes next on the stream that is used here comes after that; nobody waits for it."""
        if moment is not None:
            self._cuda.current_stream(self.device).wait_event(moment)

    @contextlib.contextmanager
    def beside(self, moment: Any) -> Iterator[None]:
        """On a stream of its own, after that moment."""
        with torch.no_grad():
            if self._cuda is None:
                yield
                return
            with self._cuda.device(self.device), self._cuda.stream(self._stream):
                self.after(moment)
                yield

    def free(self) -> int:
        """Bytes that can still be had when the job needs again what it once needed."""
        free, total = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_reserved(self.device)
        peak = torch.cuda.max_memory_allocated(self.device)
        return int(free + held - peak - total * SPARE_SHARE)


def is_capturing() -> bool:
    """Whether what is done now is recorded for a CUDA graph, whose replays run no hooks."""
    cuda: Any = torch.cuda
    return cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether its memory is a GPU's."""
    return tensor.is_cuda


_GPUS: dict[torch.device, Gpu] = {}
_LOCK = threading.Lock()


def gpu_of(device: torch.device) -> Gpu:
    """The one of this process."""
    with _LOCK:
        if device not in _GPUS:
            _GPUS[device] = Gpu(device)
        return _GPUS[device]
