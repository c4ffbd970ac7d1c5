"""Records of other tools: each reader is one file, Headway's own or one of the user's packages.

A reader is a module, or any object, with the two functions of `Reader`. A package of yours names
it in the entry-point group `headway.readers`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Protocol, cast

from headway.errors import HeadwayError, UsageError
from headway.fleet.readers.record import Record
from headway.fleet.readers.source import Source, named

GROUP = "headway.readers"
LONGEST = 200  # characters of what a reader says
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
        return cast("Importer", importlib.import_module(f"{__name__}.{name}"))
    for point in entry_points(group=GROUP, name=name):
        return cast("Importer", point.load())
    raise UsageError(
        f"there is no reader {name!r}; there are {', '.join(names())}", code="reader-unknown"
    )


def recognise(source: Source) -> str:
    """The name of the reader that knows a file; UsageError if none does."""
    for name in names():
        with _refused(name, [source]):
            if reader(name).recognises(source):
                return name
    raise UsageError(
        f"{source.name} is neither a run nor a record that a reader knows; "
        f"name one with --reader: {', '.join(names())}",
        code="record-not-recognized",
        file=source.name,
    )


def runs(name: str, sources: Sequence[Source]) -> list[Record]:
    """All runs in files of one kind; UsageError where they are not what they should be."""
    with _refused(name, sources):
        found = list(reader(name).read(sources))
        for record in found:
            record.check()
        return found


@contextlib.contextmanager
def _refused(name: str, sources: Sequence[Source]) -> Iterator[None]:
    """Whatever a reader raises at a file that is not what it should be, in one sentence."""
    try:
        yield
    except (HeadwayError, OSError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST]
        raise UsageError(
            f"{named(sources)}: this is not what {name} writes: {why}",
            code="record-invalid",
            reader=name,
        ) from error
