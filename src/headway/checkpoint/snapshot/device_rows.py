"""Tables on a GPU of which a step changes a few rows: those rows are gathered at the save.

Gathering is a part of the training's own stream, so the rows are what they are at that moment. They
go to the host and into the image there, beside the training; the GPU needs no second table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.checkpoint.snapshot.lacking import Lacking


class DeviceRows(Lacking):
    """A table on a GPU, and what its optimizer keeps of each row."""

    def __init__(self, tensors: Sequence[Tensor], images: int) -> None:
        super().__init__(tensors, images)
        self._views: Sequence[Tensor] = ()
        self._gathered: list[Tensor] = []  # ids, and of each tensor the rows
        self._copied: Any = None

    def begin(self, image: int, views: Sequence[Tensor]) -> bool:
        """From now on that image becomes the table as it is now; False if it lacks too much."""
        lacked = self._lacking[image]
        self.holds(image)
        if lacked is None:
            return False
        self._views, self._gathered = views, []
        if lacked:
            ids = torch.cat(lacked)
            self._gathered = [ids, *(tensor.index_select(0, ids) for tensor in self.tensors)]
        if self.tensors[0].is_cuda:
            cuda: Any = torch.cuda  # whose classes have no types
            self._copied = cuda.Event()
            self._copied.record(torch.cuda.current_stream(self.tensors[0].device))
        return True

    def prepare(self) -> None:
        """Everything that is wanted is gathered."""

    def finish(self) -> None:
        """The rows are in the image."""
        if self._gathered:
            ids, *rows = self._to_host(self._gathered)
            for view, found in zip(self._views, rows, strict=True):
                view.index_copy_(0, ids, found)
        self._views, self._gathered = (), []

    def before(self, ids: Tensor) -> None:
        """The optimizer is about to change these rows: what is wanted of them is gathered."""

    def give_up(self) -> bool:
        """What was begun is gathered: nothing can spoil it."""
        return False

    def changes(self) -> list[Tensor] | None:
        """Ids of the rows that have changed since this was last asked; None: all may have."""
        found = super().changes()
        return found and [torch.cat(found)]

    def _to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Of the moment of the save; the training's stream does not wait for it."""
        if self._copied is None:
            return list(tensors)
        cuda: Any = torch.cuda
        stream = cuda.Stream(tensors[0].device)
        stream.wait_event(self._copied)
        with cuda.stream(stream):
            return [tensor.cpu() for tensor in tensors]
