"""Import records of other tools into a store; each importer is one module.

An importer is a module, or any object, with the two functions of `Importer`. Other packages can
register one in the entry-point group `headway.readers`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from headway.errors import HeadwayError, UsageError
from headway.fleet.importers.record import RunRecord, build_ledger
from headway.fleet.importers.source import Source, read_source, source_names
from headway.fleet.rows import as_of, to_rows

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import Database


GROUP = "headway.readers"
MAX_ERROR_LENGTH = 200  # characters of the error of an importer
# In the order of detection.
BUILT_IN = (
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


class Importer(Protocol):
    """Converts files of one format to runs."""

    def detect(self, source: Source) -> bool:
        """Whether a file has this format."""

    def read(self, sources: Sequence[Source]) -> Iterable[RunRecord]:
        """The runs in all files together; UsageError for an invalid file."""


def importer_names() -> list[str]:
    """The names of all importers."""
    return [*BUILT_IN, *sorted({point.name for point in entry_points(group=GROUP)} - set(BUILT_IN))]


def load_importer(name: str) -> Importer:
    """The importer of that name; UsageError if there is none."""
    if name in BUILT_IN:
        return cast("Importer", importlib.import_module(f"{__name__}.{name}"))
    for point in entry_points(group=GROUP, name=name):
        return cast("Importer", point.load())
    raise UsageError(
        f"unknown reader {name!r}; available are {', '.join(importer_names())}",
        code="reader-unknown",
    )


def detect(source: Source) -> str:
    """The name of the importer that recognizes a file; UsageError if none does."""
    for name in importer_names():
        with _usage_errors(name, [source]):
            if load_importer(name).detect(source):
                return name
    raise UsageError(
        f"{source.name} is neither a run nor a file that a reader recognizes; "
        f"name one with --reader: {', '.join(importer_names())}",
        code="record-not-recognized",
        file=source.name,
    )


def read_runs(name: str, sources: Sequence[Source]) -> list[RunRecord]:
    """The runs in files of one format; UsageError if a file is invalid."""
    with _usage_errors(name, sources):
        records = list(load_importer(name).read(sources))
        for record in records:
            record.check()
        return records


@contextlib.contextmanager
def _usage_errors(name: str, sources: Sequence[Source]) -> Iterator[None]:
    """Convert errors of an importer about invalid files to UsageError."""
    try:
        yield
    except (HeadwayError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:MAX_ERROR_LENGTH]
        raise UsageError(
            f"{source_names(sources)}: not a valid file of {name}: {reason}",
            code="record-invalid",
            reader=name,
        ) from error


def read_sources(paths: Sequence[str]) -> list[Source]:
    """Read files, and all files directly inside folders."""
    sources: list[Source] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(f"no such file: {path}", code="file-not-found")
        files = (
            sorted(entry for entry in path.iterdir() if entry.is_file())
            if path.is_dir()
            else [path]
        )
        sources += map(read_source, files)
    return sources


def import_files(
    files: Sequence[Source], name: str | None, store: Store | Database, labels: Mapping[str, str]
) -> tuple[int, int]:
    """Write all runs of the files; return the numbers of runs and attempts. Files of one format are
    read together.
    """
    by_importer: dict[str, list[Source]] = defaultdict(list)
    for source in files:
        by_importer[name or detect(source)].append(source)
    runs = attempts = 0
    for importer, sources in by_importer.items():
        for record in read_runs(importer, sources):
            ledger = build_ledger(record)
            store.write(to_rows(ledger, job=record.job, labels=labels), as_of=as_of(ledger))
            runs += 1
            attempts += len(ledger.attempts)
    return runs, attempts
