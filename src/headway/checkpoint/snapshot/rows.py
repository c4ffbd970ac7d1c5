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

BLOCK = 1 << 22  # bytes of a table that are copied under one lock: a fraction of a millisecond


class Rows:
    """A table and what its optimizer keeps of each row; knows what each image of it lacks."""

    def __init__(self, tensors: Sequence[Tensor], images: int) -> None:
        self.tensors = list(tensors)
        self.count = len(tensors[0])
        self.row_bytes = sum(tensor[:1].nbytes for tensor in tensors)
        self.block = max(1, BLOCK // max(1, self.row_bytes))
        # None: everything. The last list is of no image: what has changed since the last save.
        self._lacking: list[list[Tensor] | None] = [None] * (images + 1)
        self._noted = [0] * (images + 1)  # ids in each list; some are there twice
        self._lock = threading.Lock()
        self._image: Sequence[Tensor] = ()  # the one that is brought up to date at the moment
        self._which = 0
        self._lacked: list[Tensor] | None = []
        self._pending: Tensor | None = None  # of each row, whether it is still to be copied
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
        """Ids of the rows that have changed since this was last asked; None: all may have."""
        found = self._lacking[-1]
        self.holds(-1)
        return found

    def begin(self, image: int, tensors: Sequence[Tensor]) -> None:
        """From now on that image becomes the table as it is at this moment."""
        with self._lock:
            self._image, self._which, self._at = tensors, image, 0
            self._lacked, self._pending = self._lacking[image], None
            self.holds(image)

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
            while self._image and self._at < self.count:
                first, self._at = self._at, min(self._at + self.block, self.count)
                copied = self._copy_block(first, self._at, self._wanted()[first : self._at])
                if copied:
                    return copied * self.row_bytes
            self._image, self._pending = (), None
            return 0

    def finish(self) -> None:
        """All of it now."""
        while self.advance():
            pass

    def give_up(self) -> bool:
        """The image that was begun will not be whole, if it is not yet: whether that is so."""
        with self._lock:
            given_up = bool(self._image)
            if given_up:
                self._lacking[self._which] = None
            self._image, self._pending = (), None
            return given_up

    def _shorten(self, image: int, lacking: list[Tensor]) -> None:
        ids = marked(lacking, self.count).nonzero().squeeze(1)
        self._lacking[image] = None if ids.numel() > self.count // 2 else [ids]
        self._noted[image] = ids.numel()

    def _wanted(self) -> Tensor:
        if self._pending is None:
            lacked, self._lacked = self._lacked, []
            everything = torch.ones(self.count, dtype=torch.bool)
            self._pending = everything if lacked is None else marked(lacked, self.count)
        return self._pending

    def _copy_block(self, first: int, last: int, wanted: Tensor) -> int:
        count = int(torch.count_nonzero(wanted))
        if count == last - first:
            for tensor, image in zip(self.tensors, self._image, strict=True):
                image[first:last].copy_(tensor[first:last])
        elif count:
            self._copy(wanted.nonzero().squeeze(1).add_(first))
        wanted.fill_(False)
        return count

    def _copy(self, ids: Tensor) -> None:
        for tensor, image in zip(self.tensors, self._image, strict=True):
            image.index_copy_(0, ids, tensor.index_select(0, ids))


def marked(lists: Sequence[Tensor], count: int) -> Tensor:
    """Of so many rows, whether each is in one of the lists."""
    found = torch.zeros(count, dtype=torch.bool)
    for ids in lists:
        found[ids] = True
    return found
