"""Tables of which a step changes a few rows: an image is brought up to date by those rows alone.

The image of the last save is still in memory. The rows that have changed since are copied by a
thread, block by block, while training goes on; a row that the optimizer is about to change is
copied before it does. So the image is the table at the moment of the save, bit for bit, and what a
save costs does not grow with the table.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

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
