"""Capture tables of which a step changes a few rows: copy the rows changed since the last capture.

`HostRows` copies block by block in a thread; a row that the optimizer is about to change is copied
first. `DeviceRows` gathers the rows on the GPU before the next optimizer step, then copies them to
the host. `RowVersions` records on the GPU at which save each row was last changed. The result is
the table at the time of the save, and the cost does not grow with the table.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.checkpoint.engine.gpu_transfer import PINNED_BUFFER_BYTES, gpu_of

MAX_LISTS = 64  # lists of ids noted in one GPU operation
MAX_IDS = 4 << 20  # maximum ids in these lists
VERSION_DTYPE = torch.int16  # two bytes per row; versions restart after 32,767 saves


class RowVersions:
    """At which save each row was last changed, for one table or several with common row ids."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._versions: Tensor | None = None  # allocated at the first use
        self._version, self._oldest = 1, 0
        self._captured = False  # whether a capture has this version
        self._pending_lists: list[Tensor] = []
        self._noted_ids = 0
        self._last: Tensor | None = None  # last list of ids
        self._changed_cache: dict[int, Tensor] = {}  # by version: computed once for all tables
        self._full = False  # no memory for it at this save

    def mark_changed(self, ids: Tensor) -> None:
        """Mark these rows as changed now.

        Tables with the same list of ids may pass it only once.
        """
        self._full = False
        if self._versions is None or self._last is ids:
            return
        if self._captured:
            self._version, self._captured = self._version + 1, False
        self._last = ids
        self._changed_cache.clear()
        self._pending_lists.append(ids)
        self._noted_ids += ids.numel()
        if len(self._pending_lists) >= MAX_LISTS or self._noted_ids > MAX_IDS:
            self._update()

    def new_version(self) -> int | None:
        """A version older than all later changes; None without memory to track them."""
        if self._update() is None:
            return None
        self._captured, self._last = True, None
        return self._version

    def changed_since(self, version: int, start: int, count: int) -> Tensor | None:
        """Whether each row was changed since that version; None if unknown."""
        versions = self._update()
        if versions is None or version < self._oldest:
            return None
        try:
            if version not in self._changed_cache:
                self._changed_cache[version] = versions > version - self._oldest
        except torch.OutOfMemoryError:
            return None
        return self._changed_cache[version][start : start + count]

    def _update(self) -> Tensor | None:
        try:
            if self._versions is None and not self._full:
                self._versions = torch.zeros(self._count, dtype=VERSION_DTYPE, device=self._device)
            if self._pending_lists and self._versions is not None:
                self._apply(self._versions)
        except torch.OutOfMemoryError:  # out of memory: earlier changes are lost
            self._versions, self._pending_lists, self._noted_ids, self._full = None, [], 0, True
            self._oldest = self._version = self._version + 1
        return self._versions

    def _apply(self, versions: Tensor) -> None:
        if self._version - self._oldest > torch.iinfo(VERSION_DTYPE).max:
            versions.zero_()
            self._oldest = self._version - 1  # a capture of that version lacks these changes
        ids = (
            self._pending_lists[0]
            if len(self._pending_lists) == 1
            else torch.cat(self._pending_lists)
        )
        versions.index_fill_(0, ids, self._version - self._oldest)
        if ids.is_cuda:
            for list_ in self._pending_lists:  # allocated on another stream
                list_.record_stream(torch.cuda.current_stream(self._device))
        self._pending_lists, self._noted_ids = [], 0


BLOCK_BYTES = 1 << 22  # bytes copied per lock: about a millisecond
SCATTERED_FACTOR = 8  # scattered rows take this much longer


class HostRows:
    """A table in host memory, with its optimizer state per row."""

    def __init__(self, tensors: Sequence[Tensor], buffers: int) -> None:
        self.tensors = list(tensors)
        self.count = len(tensors[0])
        # None: everything. The last list is for no buffer: the rows changed since the last save.
        self._missing: list[list[Tensor] | None] = [None] * (buffers + 1)
        self._noted_ids = [0] * (buffers + 1)  # ids in each list, with duplicates
        self.row_bytes = sum(tensor[:1].nbytes for tensor in tensors)
        self.block = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        self._lock = threading.Lock()
        self._views: Sequence[Tensor] = ()  # views of the buffer being updated
        self._buffer = 0
        self._missing_lists: list[Tensor] | None = []
        self._pending: Tensor | None = None  # by row: whether it must still be copied
        self._ids: Tensor | None = None  # ids of those rows; None: nearly all
        self._at = 0

    def mark_changed(self, ids: Tensor) -> None:
        """Mark these rows as outdated in all buffers."""
        for buffer, missing in enumerate(self._missing):
            if missing is not None:
                missing.append(ids)
                self._noted_ids[buffer] += ids.numel()
                if self._noted_ids[buffer] > self.count:
                    self._shorten(buffer, missing)

    def mark_all_changed(self) -> None:
        """Mark all rows as outdated in all buffers."""
        self._missing = [None] * len(self._missing)

    def mark_current(self, buffer: int) -> None:
        """Mark the buffer as identical to the table."""
        self._missing[buffer], self._noted_ids[buffer] = [], 0

    def take_changes(self) -> list[Tensor] | None:
        """The rows changed since the last call; None: any may have changed."""
        changes = self._missing[-1]
        self.mark_current(-1)
        return changes

    def ids(self, lists: Sequence[Tensor]) -> Tensor:
        """The sorted unique ids in the lists, in host memory."""
        return _row_mask(lists, self.count).nonzero().squeeze(1)

    def start_copy(self, buffer: int, views: Sequence[Tensor]) -> bool:
        """Capture the table as it is now into that buffer."""
        with self._lock:
            self._views, self._buffer, self._at = views, buffer, 0
            self._missing_lists, self._pending, self._ids = self._missing[buffer], None, None
            self.mark_current(buffer)
        return True

    def prepare(self) -> None:
        """Compute the rows to copy, before the optimizer asks."""
        with self._lock:
            if self._views:
                self._pending_rows()

    def copy_before_update(self, ids: Tensor) -> None:
        """Copy rows that are still needed before the optimizer changes them."""
        if not self._views:
            return
        with self._lock:
            if not self._views:
                return
            pending = self._pending_rows()
            rows = ids[pending[ids]]
            if rows.numel():
                self._copy(rows)
                pending[rows] = False

    def copy_block(self) -> int:
        """Copy the next block; return its bytes, or 0 when the buffer is complete."""
        with self._lock:
            if self._views:
                pending = self._pending_rows()
                end = self.count if self._ids is None else len(self._ids)
                block = self.block if self._ids is None else max(1, self.block // SCATTERED_FACTOR)
                while self._at < end:
                    first, self._at = self._at, min(self._at + block, end)
                    copied = self._copy_range(first, self._at, pending)
                    if copied:
                        return copied * self.row_bytes
            self._clear()
            return 0

    def finish_copy(self) -> None:
        """Copy all remaining blocks."""
        while self.copy_block():
            pass

    def allow_any_change(self) -> None:
        """Return once any row of the table may change."""
        self.finish_copy()

    def abandon(self) -> bool:
        """Drop an incomplete capture; return whether there was one."""
        with self._lock:
            abandoned = bool(self._views)
            if abandoned:
                self._missing[self._buffer] = None
            self._clear()
            return abandoned

    def clear(self) -> None:
        """Forget the buffer."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._views, self._pending, self._ids = (), None, None

    def _shorten(self, buffer: int, missing: list[Tensor]) -> None:
        ids = self.ids(missing)
        self._missing[buffer] = None if ids.numel() > self.count // 2 else [ids]
        self._noted_ids[buffer] = ids.numel()

    def _pending_rows(self) -> Tensor:
        if self._pending is None:
            missing, self._missing_lists = self._missing_lists, []
            if missing is None:
                self._pending = torch.ones(self.count, dtype=torch.bool)
            else:
                self._pending = _row_mask(missing, self.count)
                self._ids = self._pending.nonzero().squeeze(1)
        return self._pending

    def _copy_range(self, first: int, last: int, pending: Tensor) -> int:
        if self._ids is not None:
            ids = self._ids[first:last]
            ids = ids[pending[ids]]
        else:
            count = int(torch.count_nonzero(pending[first:last]))
            if count == last - first:
                for tensor, view in zip(self.tensors, self._views, strict=True):
                    view[first:last].copy_(tensor[first:last])
                pending[first:last] = False
                return count
            ids = pending[first:last].nonzero().squeeze(1).add_(first)
        if ids.numel():
            self._copy(ids)
            pending[ids] = False
        return ids.numel()

    def _copy(self, ids: Tensor) -> None:
        for tensor, view in zip(self.tensors, self._views, strict=True):
            view.index_copy_(0, ids, tensor.index_select(0, ids))


def _row_mask(lists: Sequence[Tensor], count: int) -> Tensor:
    """Whether each row is in one of the lists of ids."""
    mask = torch.zeros(count, dtype=torch.bool)
    if lists:
        mask.index_fill_(0, torch.cat(list(lists)), True)
    return mask


class DeviceRows:
    """A table on a GPU, with its optimizer state per row.

    `versions` may be shared by several tables; the rows of this one begin at `start`.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        buffers: int,
        versions: RowVersions | None = None,
        start: int = 0,
    ) -> None:
        self.tensors = list(tensors)
        self.count = len(tensors[0])
        self._gpu = gpu_of(tensors[0].device)
        self._versions = versions or RowVersions(self.count, tensors[0].device)
        self._start = start
        # Version of each buffer; None: it lacks everything. The last is for no buffer: the last
        # save.
        self._captured_version: list[int | None] = [None] * (buffers + 1)
        self._small = max(tensor[:1].nbytes for tensor in tensors) <= PINNED_BUFFER_BYTES
        self._views: Sequence[Tensor] = ()  # views of the buffer being updated
        self._buffer = 0
        self._missing_lists: Tensor | None = None  # by row: whether it must be copied
        self._captured_event: Any = None  # the point of the save
        self._gathered_rows: list[Tensor] = []  # ids, and the rows of each tensor
        self._read_event: Any = None  # the point from which on the table may change
        self._gather_submitted = threading.Event()  # set once the gather was submitted to the GPU
        self._gather_submitted.set()

    def mark_changed(self, ids: Tensor) -> None:
        """Mark these rows as outdated in all buffers."""
        self._versions.mark_changed(ids)

    def mark_all_changed(self) -> None:
        """Mark all rows as outdated in all buffers."""
        self._captured_version = [None] * len(self._captured_version)

    def take_changes(self) -> list[Tensor] | None:
        """The rows changed since the last call; None: any may have changed.

        Call it before `start_copy`.
        """
        changes = self._take_changed(-1)
        return None if changes is None else [changes]

    def start_copy(self, buffer: int, views: Sequence[Tensor]) -> bool:
        """Capture the table as it is now into that buffer; False if too much is outdated."""
        missing, self._captured_event = self._take_changed(buffer), self._gpu.record_event()
        if missing is None or not self._small:
            return False
        self._views, self._buffer, self._missing_lists = views, buffer, missing
        self._gather_submitted.clear()
        return True

    def prepare(self) -> None:
        """Submit the gather of the rows, before the optimizer asks."""
        if self._gather_submitted.is_set():
            return
        try:
            self._gather()
        except torch.OutOfMemoryError:
            pairs = zip(self._views, self.tensors, strict=True)
            self._gpu.transfer.to_host(list(pairs), self._captured_event)
        finally:
            self._gather_submitted.set()

    def finish_copy(self) -> None:
        """Copy the rows into the buffer."""
        try:
            self.prepare()
            if self._gathered_rows:
                ids, *rows = self._gathered_rows
                host_ids = self._to_host(ids, self._read_event)
                parts = zip(self._views, [host_ids] * len(rows), rows, strict=True)
                self._gpu.transfer.to_rows(list(parts), self._read_event)
        finally:
            self.clear()

    def copy_before_update(self, ids: Tensor) -> None:
        """Make the update wait for the gather."""
        self.allow_any_change()

    def allow_any_change(self) -> None:
        """Return once any row of the table may change."""
        self._gather_submitted.wait()
        self._gpu.wait_event(self._read_event)

    def abandon(self) -> bool:
        """Drop an incomplete capture, whose content is unknown; return whether there was one."""
        abandoned = bool(self._views)
        if abandoned:
            self._captured_version[self._buffer] = None
        self._gather_submitted.set()
        return abandoned

    def clear(self) -> None:
        """Forget the buffer."""
        self._views, self._missing_lists, self._gathered_rows, self._read_event = (), None, [], None

    def ids(self, changes: Sequence[Tensor]) -> Tensor | None:
        """Sorted ids of the changed rows, in host memory; None without memory to compute them."""
        (marks,) = changes
        try:
            with self._gpu.side_stream(self._captured_event):
                return self._to_host(_marked_ids(marks), self._gpu.record_event())
        except torch.OutOfMemoryError:
            return None

    def _gather(self) -> None:
        assert self._missing_lists is not None
        with self._gpu.side_stream(self._captured_event):
            ids = _marked_ids(self._missing_lists)
            self._gathered_rows = [ids, *(tensor.index_select(0, ids) for tensor in self.tensors)]
            self._read_event = self._gpu.record_event()

    def _take_changed(self, buffer: int) -> Tensor | None:
        """By row: whether the buffer lacked it until now."""
        version, self._captured_version[buffer] = (
            self._captured_version[buffer],
            self._versions.new_version(),
        )
        return (
            None
            if version is None
            else self._versions.changed_since(version, self._start, self.count)
        )

    def _to_host(self, ids: Tensor, event: Any) -> Tensor:
        host_ids = torch.empty(ids.shape, dtype=ids.dtype)
        self._gpu.transfer.to_host([(host_ids, ids)], event)
        return host_ids


def _marked_ids(marks: Tensor) -> Tensor:
    return marks.nonzero().squeeze(1)
