"""Parse the `steps` lines of a journal into columns: 100,000 lines take 5 MB and 0.1 s."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import le, lt
from typing import NamedTuple

from headway.journal.pulse import LIMIT

PREFIX = b'{"ev":"steps"'
_SHAPE = b'{"ev":"steps","t":,"end":,"first":,"last":,"wait":,"batches":}\n'
_AT_ONCE = 10_000  # lines; limits the memory
_DIGITS = b"0123456789"
_ALL_BUT_NUMBERS = bytes(set(range(256)) - set(_DIGITS + b","))


class Window(NamedTuple):
    """About a second of steps: `first` to `last`, made between `start` and `end`.

    A start of 0 means unknown, as for the first step.
    """

    start: int
    end: int
    first: int
    last: int
    wait: int
    batches: int


class Windows:
    """Windows, ordered by time and step."""

    __slots__ = Window._fields

    start: array[int]
    end: array[int]
    first: array[int]
    last: array[int]
    wait: array[int]
    batches: array[int]

    def __init__(self, rows: Iterable[Window] = ()) -> None:
        """`rows` may be damaged: a row that does not follow the previous one is skipped."""
        for name in Window._fields:
            setattr(self, name, array("q"))
        end = last = 0
        for row in rows:
            if row.end < end or row.last <= last or row.end < row.start or row.last < row.first:
                continue
            self.append(row._replace(start=max(row.start, end), first=last + 1))
            end, last = row.end, row.last

    def append(self, row: Window) -> None:
        for name, value in zip(Window._fields, row, strict=True):
            getattr(self, name).append(value)

    def __len__(self) -> int:
        return len(self.end)

    def __getitem__(self, index: int) -> Window:
        return Window(*(getattr(self, name)[index] for name in Window._fields))

    def __iter__(self) -> Iterator[Window]:
        return map(Window, *(getattr(self, name) for name in Window._fields))


def parse_all(lines: Sequence[bytes]) -> Windows | None:
    """Parse all lines at once; None if one does not have the format of `Writer`."""
    windows = Windows()
    for position in range(0, len(lines), _AT_ONCE):
        chunk = lines[position : position + _AT_ONCE]
        block = b"\n".join(chunk) + b"\n"
        if block.translate(None, _DIGITS) != _SHAPE * len(chunk):
            return None
        try:
            numbers = array("q", json.loads(b"[%b]" % block.translate(None, _ALL_BUT_NUMBERS)[1:]))
        except (ValueError, OverflowError):  # a number is missing or too long
            return None
        for index, name in enumerate(Window._fields):
            getattr(windows, name).extend(numbers[index :: len(Window._fields)])
    return windows if _in_order(windows) else None


def _in_order(windows: Windows) -> bool:
    first, last = windows.first, windows.last
    steps_between = sum(first) - first[0] - sum(last) + last[-1]
    return (
        max(windows.end[-1], last[-1], max(windows.wait), max(windows.batches)) < LIMIT
        and first[0] == 1
        and steps_between == len(windows) - 1
        and all(map(le, windows.start, windows.end))
        and all(map(le, windows.end, islice(windows.start, 1, None)))
        and all(map(le, first, last))
        and all(map(lt, last, islice(first, 1, None)))
    )
