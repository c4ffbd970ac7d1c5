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

MAX_LISTS = 64  # of ids, that are noted at once: for each alone a GPU would be asked too often
MAX_IDS = 4 << 20  # in them, at most
VERSION_DTYPE = torch.int16  # of an age: two bytes a row; after 32,767 saves it begins again


class RowVersions:
    """Of the rows of one table, or of several whose changes are told together."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._ages: Tensor | None = None  # nobody has asked yet
        self._time, self._first = 1, 0
        self._held = False  # whether an image is of this time
        self._lists: list[Tensor] = []
        self._noted = 0
        self._last: Tensor | None = None  # of the lists
        self._younger: dict[int, Tensor] = {}  # than a time: asked once, for all tables
        self._full = False  # there was no room for it at this save

    def changed(self, ids: Tensor) -> None:
        """These rows, now. Tables that are told of the same ids need not all pass them on."""
        self._full = False
        if self._ages is None or self._last is ids:
            return
        if self._held:
            self._time, self._held = self._time + 1, False
        self._last = ids
        self._younger.clear()
        self._lists.append(ids)
        self._noted += ids.numel()
        if len(self._lists) >= MAX_LISTS or self._noted > MAX_IDS:
            self._up_to_date()

    def now(self) -> int | None:
        """What changes after this is younger; None: there is no room to tell."""
        if self._up_to_date() is None:
            return None
        self._held, self._last = True, None
        return self._time

    def younger(self, time: int, start: int, count: int) -> Tensor | None:
        """Of so many rows, whether each was changed after that; None: nobody knows any more."""
        ages = self._up_to_date()
        if ages is None or time < self._first:
            return None
        try:
            if time not in self._younger:
                self._younger[time] = ages > time - self._first
        except torch.OutOfMemoryError:
            return None
        return self._younger[time][start : start + count]

    def _up_to_date(self) -> Tensor | None:
        try:
            if self._ages is None and not self._full:
                self._ages = torch.zeros(self._count, dtype=VERSION_DTYPE, device=self._device)
            if self._lists and self._ages is not None:
                self._note(self._ages)
        except torch.OutOfMemoryError:  # the training has all: what was known is not any more
            self._ages, self._lists, self._noted, self._full = None, [], 0, True
            self._first = self._time = self._time + 1
        return self._ages

    def _note(self, ages: Tensor) -> None:
        if self._time - self._first > torch.iinfo(VERSION_DTYPE).max:
            ages.zero_()
            self._first = self._time - 1  # an image of that time lacks what is noted now
        ids = self._lists[0] if len(self._lists) == 1 else torch.cat(self._lists)
        ages.index_fill_(0, ids, self._time - self._first)
        if ids.is_cuda:
            for one in self._lists:  # whose memory may be another stream's
                one.record_stream(torch.cuda.current_stream(self._device))
        self._lists, self._noted = [], 0


BLOCK_BYTES = 1 << 22  # bytes of a table that are copied under one lock: a millisecond
SCATTERED_FACTOR = 8  # times as long takes a row here and a row there


class HostRows:
    """A table in the host's memory, and what its optimizer keeps of each row."""

    def __init__(self, tensors: Sequence[Tensor], images: int) -> None:
        self.tensors = list(tensors)
        self.count = len(tensors[0])
        # None: everything. The last list is of no image: what has changed since the last save.
        self._lacking: list[list[Tensor] | None] = [None] * (images + 1)
        self._noted = [0] * (images + 1)  # ids in each list; some are there twice
        self.row_bytes = sum(tensor[:1].nbytes for tensor in tensors)
        self.block = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        self._lock = threading.Lock()
        self._image: Sequence[Tensor] = ()  # the one that is brought up to date at the moment
        self._which = 0
        self._lacked: list[Tensor] | None = []
        self._pending: Tensor | None = None  # of each row, whether it is still to be copied
        self._ids: Tensor | None = None  # of those rows; None: nearly all
        self._at = 0

    def changed(self, ids: Tensor) -> None:
        """These rows are not in any image as they are now."""
        for image, lacking in enumerate(self._lacking):
            if lacking is not None:
                lacking.append(ids)
                self._noted[image] += ids.numel()
                if self._noted[image] > self.count:
                    self._shorten(image, lacking)

    def all_changed(self) -> None:
        """Nobody knows which rows: every image lacks everything."""
        self._lacking = [None] * len(self._lacking)

    def holds(self, image: int) -> None:
        """That image is the table as it is now."""
        self._lacking[image], self._noted[image] = [], 0

    def changes(self) -> list[Tensor] | None:
        """The rows that have changed since this was last asked; None: all may have."""
        found = self._lacking[-1]
        self.holds(-1)
        return found

    def ids(self, lists: Sequence[Tensor]) -> Tensor:
        """Those in the lists in order, each once, in the host's memory."""
        return _row_mask(lists, self.count).nonzero().squeeze(1)

    def begin(self, image: int, views: Sequence[Tensor]) -> bool:
        """From now on that image becomes the table as it is at this moment."""
        with self._lock:
            self._image, self._which, self._at = views, image, 0
            self._lacked, self._pending, self._ids = self._lacking[image], None, None
            self.holds(image)
        return True

    def prepare(self) -> None:
        """Find out which rows are wanted, before the optimizer asks."""
        with self._lock:
            if self._image:
                self._wanted()

    def before(self, ids: Tensor) -> None:
        """The optimizer is about to change these rows: those that are wanted are copied first."""
        if not self._image:
            return
        with self._lock:
            if not self._image:
                return
            wanted = self._wanted()
            rows = ids[wanted[ids]]
            if rows.numel():
                self._copy(rows)
                wanted[rows] = False

    def advance(self) -> int:
        """Copy the next block; returns its bytes, or 0 when the image is whole."""
        with self._lock:
            if self._image:
                wanted = self._wanted()
                end = self.count if self._ids is None else len(self._ids)
                block = self.block if self._ids is None else max(1, self.block // SCATTERED_FACTOR)
                while self._at < end:
                    first, self._at = self._at, min(self._at + block, end)
                    copied = self._copy_block(first, self._at, wanted)
                    if copied:
                        return copied * self.row_bytes
            self._clear()
            return 0

    def finish(self) -> None:
        """All of it now."""
        while self.advance():
            pass

    def release(self) -> None:
        """All of the table may change after this."""
        self.finish()

    def give_up(self) -> bool:
        """The image that was begun will not be whole, if it is not yet: whether that is so."""
        with self._lock:
            given_up = bool(self._image)
            if given_up:
                self._lacking[self._which] = None
            self._clear()
            return given_up

    def drop(self) -> None:
        """There is nothing more to do for that image."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._image, self._pending, self._ids = (), None, None

    def _shorten(self, image: int, lacking: list[Tensor]) -> None:
        ids = self.ids(lacking)
        self._lacking[image] = None if ids.numel() > self.count // 2 else [ids]
        self._noted[image] = ids.numel()

    def _wanted(self) -> Tensor:
        if self._pending is None:
            lacked, self._lacked = self._lacked, []
            if lacked is None:
                self._pending = torch.ones(self.count, dtype=torch.bool)
            else:
                self._pending = _row_mask(lacked, self.count)
                self._ids = self._pending.nonzero().squeeze(1)
        return self._pending

    def _copy_block(self, first: int, last: int, wanted: Tensor) -> int:
        if self._ids is not None:
            ids = self._ids[first:last]
            ids = ids[wanted[ids]]
        else:
            count = int(torch.count_nonzero(wanted[first:last]))
            if count == last - first:
                for tensor, image in zip(self.tensors, self._image, strict=True):
                    image[first:last].copy_(tensor[first:last])
                wanted[first:last] = False
                return count
            ids = wanted[first:last].nonzero().squeeze(1).add_(first)
        if ids.numel():
            self._copy(ids)
            wanted[ids] = False
        return ids.numel()

    def _copy(self, ids: Tensor) -> None:
        for tensor, image in zip(self.tensors, self._image, strict=True):
            image.index_copy_(0, ids, tensor.index_select(0, ids))


def _row_mask(lists: Sequence[Tensor], count: int) -> Tensor:
    """Of so many rows, whether each is in one of the lists of ids."""
    found = torch.zeros(count, dtype=torch.bool)
    if lists:
        found.index_fill_(0, torch.cat(list(lists)), True)
    return found


class DeviceRows:
    """A table on a GPU, and what its optimizer keeps of each row.

    `ages`: those of several tables, of which the rows of this one begin at `start`.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        images: int,
        ages: RowVersions | None = None,
        start: int = 0,
    ) -> None:
        self.tensors = list(tensors)
        self.count = len(tensors[0])
        self._gpu = gpu_of(tensors[0].device)
        self._ages = ages or RowVersions(self.count, tensors[0].device)
        self._start = start
        # Of what time it is; None: it lacks everything. The last is of no image: the last save.
        self._of: list[int | None] = [None] * (images + 1)
        self._small = max(tensor[:1].nbytes for tensor in tensors) <= PINNED_BUFFER_BYTES
        self._views: Sequence[Tensor] = ()  # of the image that is brought up to date at the moment
        self._which = 0
        self._lacked: Tensor | None = None  # of each row, whether it is wanted
        self._saved: Any = None  # the moment of the save
        self._gathered: list[Tensor] = []  # ids, and of each tensor the rows
        self._read: Any = None  # the moment from which on the table may change
        self._asked = threading.Event()  # whether the GPU has been asked for that
        self._asked.set()

    def changed(self, ids: Tensor) -> None:
        """These rows are not in any image as they are now."""
        self._ages.changed(ids)

    def all_changed(self) -> None:
        """Nobody knows which rows: every image lacks everything."""
        self._of = [None] * len(self._of)

    def changes(self) -> list[Tensor] | None:
        """The rows that have changed since this was last asked; None: all may have.

        It is asked before an image is begun.
        """
        found = self._younger(-1)
        return None if found is None else [found]

    def begin(self, image: int, views: Sequence[Tensor]) -> bool:
        """From now on that image becomes the table as it is now; False if it lacks too much."""
        lacked, self._saved = self._younger(image), self._gpu.moment()
        if lacked is None or not self._small:
            return False
        self._views, self._which, self._lacked = views, image, lacked
        self._asked.clear()
        return True

    def prepare(self) -> None:
        """Have what is wanted gathered, before the optimizer asks."""
        if self._asked.is_set():
            return
        try:
            self._gather()
        except torch.OutOfMemoryError:
            whole = zip(self._views, self.tensors, strict=True)
            self._gpu.lanes.to_host(list(whole), self._saved)
        finally:
            self._asked.set()

    def finish(self) -> None:
        """The rows are in the image."""
        try:
            self.prepare()
            if self._gathered:
                ids, *rows = self._gathered
                here = self._to_host(ids, self._read)
                parts = zip(self._views, [here] * len(rows), rows, strict=True)
                self._gpu.lanes.to_rows(list(parts), self._read)
        finally:
            self.drop()

    def before(self, ids: Tensor) -> None:
        """The optimizer is about to change these rows: after what is wanted has been gathered."""
        self.release()

    def release(self) -> None:
        """All of the table may change after this."""
        self._asked.wait()
        self._gpu.after(self._read)

    def give_up(self) -> bool:
        """The image that was begun may not be right, if it is not whole yet: whether that is so."""
        given_up = bool(self._views)
        if given_up:
            self._of[self._which] = None
        self._asked.set()
        return given_up

    def drop(self) -> None:
        """There is nothing more to do for that image."""
        self._views, self._lacked, self._gathered, self._read = (), None, [], None

    def ids(self, changes: Sequence[Tensor]) -> Tensor | None:
        """Of those rows, in order, in the host's memory; None: there is no room to tell."""
        (marks,) = changes
        try:
            with self._gpu.beside(self._saved):
                return self._to_host(_marked_ids(marks), self._gpu.moment())
        except torch.OutOfMemoryError:
            return None

    def _gather(self) -> None:
        assert self._lacked is not None
        with self._gpu.beside(self._saved):
            ids = _marked_ids(self._lacked)
            self._gathered = [ids, *(tensor.index_select(0, ids) for tensor in self.tensors)]
            self._read = self._gpu.moment()

    def _younger(self, image: int) -> Tensor | None:
        """Of each row, whether that image lacked it until now."""
        time, self._of[image] = self._of[image], self._ages.now()
        return None if time is None else self._ages.younger(time, self._start, self.count)

    def _to_host(self, ids: Tensor, after: Any) -> Tensor:
        here = torch.empty(ids.shape, dtype=ids.dtype)
        self._gpu.lanes.to_host([(here, ids)], after)
        return here


def _marked_ids(marks: Tensor) -> Tensor:
    return marks.nonzero().squeeze(1)
