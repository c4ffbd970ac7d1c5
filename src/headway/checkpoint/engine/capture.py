"""Capture a state: copy some tensors at once, the others in a thread while training continues."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.checkpoint.engine.dense import DeviceTensors, HostTensors
from headway.checkpoint.engine.gpu_transfer import gpu_of, is_capturing
from headway.checkpoint.engine.tracking import RowTracker, Table
from headway.errors import HeadwayWarning
from headway.torch_threads import TorchThread

PATIENCE_S = 30.0  # wait for a capture in progress when the process ends
PRE_HOOKS = "_optimizer_step_pre_hooks"  # exists on every optimizer initialized by torch
MAX_CHANGED_SHARE = 0.3  # share of rows; if more have changed, the whole table is saved


@dataclass(frozen=True)
class ChangedRows:
    """The rows of a table that have changed since the previous save."""

    tensors: list[int]  # indices of the table and of the optimizer state of its rows
    ids: Tensor


# Called when the capture has ended: whether it is valid, and which rows differ from the last one.
OnCaptured = Callable[[bool, list[ChangedRows]], None]


class StateCapture:
    """Captures of one rank's tensors, one at a time."""

    def __init__(
        self, optimizers: Sequence[Optimizer], buffers: int, modules: Sequence[nn.Module] = ()
    ) -> None:
        self._devices: dict[torch.device, DeviceTensors] = {}
        inner = dict.fromkeys(map(_innermost, optimizers))
        optimizers = [
            optimizer for optimizer in inner if hasattr(optimizer, PRE_HOOKS)
        ]  # the steps of other optimizers cannot be observed
        self._optimizers = [optimizer for optimizer in optimizers if not _is_fused(optimizer)]
        # Whether hooks have reported a step since the last capture, or ever, or a step in a CUDA
        # graph.
        self._stepped = self._ever_stepped = self._in_graph = False
        self._modified_outside_optimizer = (
            False  # optimizer tensors were changed by something else before
        )
        self._host = HostTensors()
        self._fences = [o.register_step_pre_hook(self._fence) for o in self._optimizers]
        self.tracker = RowTracker(optimizers, buffers, modules, self._fence_devices)
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._ending = False
        self._tasks.put(self._prepare)
        self._thread = TorchThread(
            self._work, name="headway-checkpoint", patience_s=PATIENCE_S, on_stop=self._end
        )
        self._thread.start()

    def capture(
        self,
        buffer: int,
        tensors: Sequence[Tensor],
        views: Sequence[Tensor],
        on_captured: OnCaptured,
        written: bool = True,
        by_rows: bool = True,
    ) -> None:
        """Start copying the tensors as they are now into the views; `on_captured` is called later.

        `written`: later changes are relative to this capture. `by_rows`: report the rows that
        differ from the last one.
        """
        self.wait()
        try:
            with torch.inference_mode(False):  # optimizer state is used outside of it, too
                task = self._start(buffer, tensors, views, on_captured, written, by_rows)
        except BaseException as error:
            self._invalidate(self.tracker.tables.values(), self._devices.values())
            on_captured(False, [])
            if not isinstance(error, Exception):
                raise
            _warn(error)
        else:
            self._idle.clear()
            if self._ending:  # the process ends with another save
                self._do(task)
            else:
                self._tasks.put(task)

    def _start(
        self,
        buffer: int,
        tensors: Sequence[Tensor],
        views: Sequence[Tensor],
        on_captured: OnCaptured,
        written: bool,
        by_rows: bool,
    ) -> Callable[[], None]:
        """Do what must happen now; return the rest as a task for the thread."""
        tracked = self.tracker.find(dict(enumerate(tensors)))
        places: dict[Table, dict[int, Tensor]] = {rows: {} for rows in tracked.values()}
        numbers: dict[Table, list[int]] = {rows: [] for rows in tracked.values()}
        on_host: dict[int, Tensor] = {}
        on_devices: dict[torch.device, dict[int, Tensor]] = {}
        for number, (tensor, view) in enumerate(zip(tensors, views, strict=True)):
            if number in tracked:
                places[tracked[number]][tensor.data_ptr()] = view
                numbers[tracked[number]].append(number)
            elif tensor.is_cuda:
                on_devices.setdefault(tensor.device, {})[number] = tensor
            else:
                on_host[number] = tensor
        lists = {rows: rows.take_changes() if written else None for rows in places}
        for rows, part_views in places.items():
            if not rows.start_copy(buffer, [part_views[part.data_ptr()] for part in rows.tensors]):
                for number in numbers[rows]:
                    on_devices.setdefault(tensors[number].device, {})[number] = tensors[number]
        can_defer = self._stepped and not self._in_graph and not self._modified_outside_optimizer
        owned = self._changed_by_step_only(tensors) if can_defer else set()
        self._host.begin(on_host, views, owned)
        fixed = tracked.keys() | owned
        # the memory needs of a step are known
        can_copy = self._ever_stepped or not self._optimizers
        self._stepped = False
        for device in on_devices.keys() - self._devices.keys():
            self._devices[device] = DeviceTensors(device)
        for device, device_tensors in self._devices.items():
            device_tensors.begin(on_devices.get(device, {}), views, fixed, copies=can_copy)
        changes = [(rows, numbers[rows], lists[rows] if by_rows else None) for rows in places]
        return partial(self._finish, changes, list(self._devices.values()), on_captured)

    def invalidate_buffers(self) -> None:
        """The buffers were replaced: they contain nothing."""
        for rows in self.tracker.tables.values():
            rows.mark_all_changed()

    @property
    def idle(self) -> bool:
        """Whether no capture is in progress."""
        return self._idle.is_set()

    def wait(self) -> None:
        """Wait until the capture in progress has ended."""
        self._idle.wait()

    def close(self) -> None:
        """Stop tracking."""
        self.wait()
        self._thread.stop()
        self.tracker.close()
        for hook in self._fences:
            hook.remove()

    def _end(self) -> None:
        """Stop the thread after the capture in progress."""
        self._ending = True
        self._tasks.put(None)

    def _fence(self, *_: Any) -> None:
        self._stepped = self._ever_stepped = True
        self._in_graph = self._in_graph or is_capturing()
        self._host.fence()
        self._fence_devices()

    def _fence_devices(self) -> None:
        for device in self._devices.values():
            device.fence()

    def _prepare(self) -> None:
        """Allocate what the first capture would wait for."""
        for device in {tensor.device for tensor in self._optimizer_tensors() if tensor.is_cuda}:
            _ = gpu_of(device).transfer

    def _changed_by_step_only(self, tensors: Sequence[Tensor]) -> set[int]:
        """The indices of tensors that only an optimizer step changes."""
        owned = {tensor.data_ptr() for tensor in self._optimizer_tensors()}
        return {number for number, tensor in enumerate(tensors) if tensor.data_ptr() in owned}

    def _optimizer_tensors(self) -> list[Tensor]:
        tensors: list[Tensor] = []
        for optimizer in self._optimizers:
            tensors += [p for group in optimizer.param_groups for p in group["params"]]
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, Tensor)]
        tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
        return [tensor for tensor in tensors if tensor.layout is torch.strided]

    def _finish(
        self,
        tables: list[tuple[Table, list[int], list[Tensor] | None]],
        devices: list[DeviceTensors],
        on_captured: OnCaptured,
    ) -> None:
        good, changed = False, []
        try:
            for rows, _, _ in tables:
                rows.prepare()
            consistent = self._host.drain()
            for device in devices:
                consistent = device.drain() and consistent
            self._modified_outside_optimizer = self._modified_outside_optimizer or not consistent
            for rows, numbers, lists in tables:
                rows.finish_copy()
                ids = None if lists is None else rows.ids(lists)
                if ids is not None and ids.numel() <= MAX_CHANGED_SHARE * rows.count:
                    changed.append(ChangedRows(numbers, ids))
            consistent = self.tracker.is_consistent() and consistent
            good, self.tracker.invalidated = consistent and not self.tracker.invalidated, False
        finally:
            if not good:
                self._invalidate([rows for rows, _, _ in tables], devices)
            on_captured(good, changed)

    def _invalidate(self, tables: Iterable[Table], devices: Iterable[DeviceTensors]) -> None:
        """Mark the content of the buffer as unknown, and release waiting optimizers."""
        for rows in tables:
            rows.abandon()
            rows.clear()
            rows.mark_all_changed()
        self._host.abandon()
        for device in devices:
            device.abandon()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            self._do(task)

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # this capture was reported as invalid; the next may be valid
            _warn(error)
        finally:
            self._idle.set()


def _warn(error: Exception) -> None:
    text = f"the state could not be captured: {error}"
    warnings.warn(HeadwayWarning(text, code="image-failed"), stacklevel=2)


def _innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper without hooks of its own, such as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    if hasattr(optimizer, PRE_HOOKS) or not isinstance(inner, Optimizer):
        return optimizer
    return _innermost(inner)


def _is_fused(optimizer: Optimizer) -> bool:
    """Whether the backward pass may update its parameters unobserved, as with TorchRec."""
    return any(base.__module__.partition(".")[0] == "torchrec" for base in type(optimizer).__mro__)
