"""Which rows of a table each image of it lacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Lacking:
    """Of a table and what its optimizer keeps of each row."""

    def __init__(self, tensors: Sequence[Tensor], images: int) -> None:
        self.tensors = list(tensors)
        self.count = len(tensors[0])
        # None: everything. The last list is of no image: what has changed since the last save.
        self._lacking: list[list[Tensor] | None] = [None] * (images + 1)
        self._noted = [0] * (images + 1)  # ids in each list; some are there twice

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
        return marked(lists, self.count).nonzero().squeeze(1)

    def _shorten(self, image: int, lacking: list[Tensor]) -> None:
        """The list has become longer than the table."""
        self._lacking[image] = None


def marked(lists: Sequence[Tensor], count: int) -> Tensor:
    """Of so many rows, whether each is in one of the lists of ids."""
    found = torch.zeros(count, dtype=torch.bool)
    if lists:
        found.index_fill_(0, torch.cat(list(lists)), True)
    return found
