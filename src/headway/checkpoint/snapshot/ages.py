"""When rows on a GPU were changed, counted in saves: an image lacks those that are younger."""

from __future__ import annotations

import torch
from torch import Tensor

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
