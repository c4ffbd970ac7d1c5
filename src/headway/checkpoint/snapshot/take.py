"""Takes images: some is copied at once, and a thread brings the rest while training goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.checkpoint.snapshot.device import DeviceImages
from headway.checkpoint.snapshot.rows import Rows, marked
from headway.checkpoint.snapshot.tracking import Tracker

FEW = 0.3  # of a table's rows: with more than that changed, the table is saved as a whole


@dataclass(frozen=True)
class Changed:
    """Rows of a table that have changed since the save before."""

    tensors: list[int]  # the table and what is kept of its rows, by their numbers
    ids: Tensor


# Is told when the image is there, whether it is good, and in what it differs from the last one.
Whole = Callable[[bool, list[Changed]], None]


class Taker:
    """Of one rank's tensors; one image at a time."""

    def __init__(self, optimizers: Sequence[Optimizer], images: int) -> None:
        self.tracker = Tracker(optimizers, images)
        self._optimizers = list(optimizers)
        self._devices: dict[torch.device, DeviceImages] = {}
        self._fences: list[Any] = []
        self._asked: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._work, name="headway-checkpoint", daemon=True).start()

    def take(
        self, image: int, tensors: Sequence[Tensor], views: Sequence[Tensor], whole: Whole
    ) -> None:
        """The views become the tensors as they are now; returns at once, `whole` comes later."""
        self.wait()
        tracked = self.tracker.find(dict(enumerate(tensors)))
        places: dict[Rows, dict[int, Tensor]] = {rows: {} for rows in tracked.values()}
        numbers: dict[Rows, list[int]] = {rows: [] for rows in tracked.values()}
        on_devices: dict[torch.device, dict[int, Tensor]] = {}
        for number, (tensor, view) in enumerate(zip(tensors, views, strict=True)):
            if number in tracked:
                places[tracked[number]][tensor.data_ptr()] = view
                numbers[tracked[number]].append(number)
            elif tensor.is_cuda:
                on_devices.setdefault(tensor.device, {})[number] = tensor
            else:
                view.copy_(tensor)
        for rows, found in places.items():
            rows.begin(image, [found[part.data_ptr()] for part in rows.tensors])
        devices = [self._begin(device, found, views) for device, found in on_devices.items()]
        changes = [(rows, numbers[rows], rows.changes()) for rows in places]
        self._idle.clear()
        self._asked.put(lambda: self._bring(changes, devices, whole))

    def forget_images(self) -> None:
        """There is other memory from now on: every image lacks everything."""
        for rows in self.tracker.tables.values():
            rows.all_changed()

    def wait(self) -> None:
        """Until the image that is under way is whole."""
        self._idle.wait()

    def close(self) -> None:
        """Nothing is tracked any more."""
        self.wait()
        self._asked.put(None)
        self.tracker.close()
        for hook in self._fences:
            hook.remove()

    def _begin(
        self, device: torch.device, tensors: dict[int, Tensor], views: Sequence[Tensor]
    ) -> DeviceImages:
        if device not in self._devices:
            found = self._devices[device] = DeviceImages(device)
            for optimizer in self._optimizers:
                hook = optimizer.register_step_pre_hook(lambda *_: found.fence())
                self._fences.append(hook)
        fixed = {tensor.data_ptr() for tensor in self._of_optimizers()}
        numbers = {number for number, tensor in tensors.items() if tensor.data_ptr() in fixed}
        self._devices[device].begin(tensors, views, numbers)
        return self._devices[device]

    def _of_optimizers(self) -> list[Tensor]:
        """What nothing but a step of theirs changes."""
        found: list[Tensor] = []
        for optimizer in self._optimizers:
            found += [p for group in optimizer.param_groups for p in group["params"]]
            for state in optimizer.state.values():
                found += [value for value in state.values() if isinstance(value, Tensor)]
        return [getattr(tensor, "_local_tensor", tensor) for tensor in found]

    def _bring(
        self,
        tables: list[tuple[Rows, list[int], list[Tensor] | None]],
        devices: list[DeviceImages],
        whole: Whole,
    ) -> None:
        good, changed = False, []
        try:
            for rows, numbers, ids in tables:
                rows.finish()
                found = None if ids is None else marked(ids, rows.count).nonzero().squeeze(1)
                if found is not None and found.numel() <= FEW * rows.count:
                    changed.append(Changed(numbers, found))
            for device in devices:
                device.drain()
            good, self.tracker.torn = not self.tracker.torn, False
        finally:
            whole(good, changed)

    def _work(self) -> None:
        while True:
            asked = self._asked.get()
            if asked is None:
                return
            try:
                asked()
            finally:
                self._idle.set()
