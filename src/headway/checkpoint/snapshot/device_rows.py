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

from headway.checkpoint.snapshot.ages import RowVersions
from headway.checkpoint.snapshot.gpu import gpu_of
from headway.checkpoint.snapshot.lanes import PINNED_BUFFER_BYTES


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
