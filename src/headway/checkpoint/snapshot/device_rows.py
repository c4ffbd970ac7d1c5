"""Tables on a GPU of which a step changes a few rows: those rows are gathered after the save.

A thread finds out which they are and has them gathered, on a stream of its own, while forward and
backward run; the next optimizer step comes after that. So the rows are what they were at the save.
They go to the host and into the image there, and the GPU needs no second table.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.checkpoint.snapshot.gpu import gpu
from headway.checkpoint.snapshot.lacking import Lacking, marked
from headway.checkpoint.snapshot.lanes import PIECE

LISTS = 64  # of ids, that are put together at once: for each alone a GPU would be asked too often
IDS = 4 << 20  # in them, at most: there may be many such tables


class DeviceRows(Lacking):
    """A table on a GPU, and what its optimizer keeps of each row."""

    def __init__(self, tensors: Sequence[Tensor], images: int, start: int | None = None) -> None:
        super().__init__(tensors, images)
        self._gpu = gpu(tensors[0].device)
        self._start = start  # of its rows, where ids of several tables are told together
        self._small = max(tensor[:1].nbytes for tensor in tensors) <= PIECE
        self._views: Sequence[Tensor] = ()  # of the image that is brought up to date at the moment
        self._which = 0
        self._lacked: list[Tensor] = []
        self._saved: Any = None  # the moment of the save
        self._gathered: list[Tensor] = []  # ids, and of each tensor the rows
        self._read: Any = None  # the moment from which on the table may change
        self._asked = threading.Event()  # whether the GPU has been asked for that
        self._asked.set()

    def begin(self, image: int, views: Sequence[Tensor]) -> bool:
        """From now on that image becomes the table as it is now; False if it lacks too much."""
        lacked = self._lacking[image]
        self.holds(image)
        if lacked is None or not self._small:
            return False
        self._views, self._which, self._lacked = views, image, lacked
        self._saved, self._read, self._gathered = self._gpu.moment(), None, []
        self._asked.clear()
        return True

    def prepare(self) -> None:
        """Have what is wanted gathered, before the optimizer asks."""
        if self._asked.is_set():
            return
        try:
            with self._gpu.beside(self._saved):
                ids = self._found(self._lacked)
                self._gathered = [ids, *(tensor.index_select(0, ids) for tensor in self.tensors)]
                self._read = self._gpu.moment()
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
            self._views, self._lacked, self._gathered = (), [], []

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
            self._lacking[self._which] = None
        self._asked.set()
        return given_up

    def ids(self, lists: Sequence[Tensor]) -> Tensor:
        """Those in the lists in order, each once, in the host's memory."""
        with self._gpu.beside(self._saved):
            found = self._found(lists)
            return self._to_host(found, self._gpu.moment())

    def _found(self, lists: Sequence[Tensor]) -> Tensor:
        return self._marked(lists).nonzero().squeeze(1)

    def _to_host(self, ids: Tensor, after: Any) -> Tensor:
        here = torch.empty(ids.shape, dtype=ids.dtype)
        self._gpu.lanes.to_host([(here, ids)], after)
        return here

    def _shorten(self, image: int, lacking: list[Tensor]) -> None:
        """Marks instead of a list: to ask how many there are, one would have to wait."""
        if len(lacking) >= LISTS or self._noted[image] > IDS:
            self._lacking[image] = [self._marked(lacking)]
            self._noted[image] = 0

    def _marked(self, lists: Sequence[Tensor]) -> Tensor:
        return marked(lists, self.count, self.tensors[0].device, self._start)
