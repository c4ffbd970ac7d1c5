"""Records of other tools: each reader is one file, Headway's own or one of the user's packages.

A reader is a module, or any object, with the two functions of `Reader`. A package of yours names
it in the entry-point group `headway.readers`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Protocol, cast

from headway.errors import UsageError
from headway.fleet.readers.record import Record
from headway.fleet.readers.source import Source

GROUP = "headway.readers"
# In the order in which they are asked whether they know a file.
OWN = (
    "slurm",
    "kueue",
    "kubernetes",
    "ray",
    "torchelastic",
    "torchtitan",
    "nvrx",
    "one_logger",
    "ml_goodput",
)


class Reader(Protocol):
    """What turns files of one format into runs."""

    def recognises(self, source: Source) -> bool:
        """Whether a file has this format."""

    def read(self, sources: Sequence[Source]) -> Iterable[Record]:
        """The runs in all files together; UsageError for a file that is not what it should be."""


def names() -> list[str]:
    """Of all readers."""
    return [*OWN, *sorted({point.name for point in entry_points(group=GROUP)} - set(OWN))]


def reader(name: str) -> Reader:
    """The reader of that name; UsageError if there is none."""
    if name in OWN:
        return cast("Reader", importlib.import_module(f"{__name__}.{name}"))
    for point in entry_points(group=GROUP, name=name):
        return cast("Reader", point.load())
    raise UsageError(f"there is no reader {name!r}; there are {', '.join(names())}")


def recognise(source: Source) -> str:
    """The name of the reader that knows a file; UsageError if none does."""
    for name in names():
        if reader(name).recognises(source):
            return name
    raise UsageError(
        f"{source.name} is neither a run nor a record that a reader knows; "
        f"name one with --reader: {', '.join(names())}"
    )


def runs(name: str, sources: Sequence[Source]) -> list[Record]:
    """All runs in files of one kind; UsageError where they are not what they should be."""
    found = reader(name)
    try:
        return list(found.read(sources))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        files = ", ".join(source.name for source in sources[:3])
        raise UsageError(f"{files}: this is not what {name} writes: {error!r}") from error
