"""Fleet stores: runs of several days, of every outcome, by `headway ingest`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from headway.fleet.store import manifest
from headway.fleet.store.compaction import compact
from headway.fleet.store.parquet import Store
from headway.storage.fleet_files import LocalFleetFiles
from headway.testing import FakeRun
from tests.golden.cases import command
from tests.golden.recorders import run as runs

NEEDS = ("duckdb", "ibis", "pyarrow")
# By name: the run, the day on which it begins, and its labels.
RUNS: dict[str, tuple[Callable[[float], FakeRun], float, dict[str, str]]] = {
    "everything": (runs.everything, 0.0, {"team": "ads", "model": "dlrm"}),
    "failed": (runs.failed, 1.0, {"team": "ads", "model": "dlrm", "image": "v2"}),
    "preempted": (runs.preempted, 1.25, {"team": "feed", "model": "llm"}),
    "publishing": (runs.publishing, 2.0, {"team": "ads", "model": "dlrm"}),
    "running": (runs.running, 8.0, {"team": "feed", "model": "llm", "cluster": "east"}),
}


def _ingest(store: Path, *names: str, team: str = "") -> None:
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            make, day, labels = RUNS[name]
            created = {"created": 1_790_000_000.0 + day * runs.DAY, "labels": labels}
            folder = runs.write(make(day * runs.DAY), Path(place) / name, name, **created)
            label = ["--label", f"team={team}"] if team else []
            code, _ = command("ingest", str(folder), "--store", str(store), "--quiet", *label)
            assert code == 0


def _written(files: Path) -> None:
    """The newest write of a run counts."""
    store = files / "store"
    _ingest(store, "everything", team="old")
    _ingest(store, *RUNS)


def _compacted(files: Path) -> None:
    """And one write after it."""
    store = files / "store"
    _ingest(store, "everything", team="old")
    _ingest(store, "everything", "failed", "preempted")
    for _ in range(2):  # the second one deletes what the first one has replaced
        compact(Store(str(store)), grace_s=0.0)
    _ingest(store, "publishing", "running")


class Killed(Exception):
    """At this instant."""


@contextlib.contextmanager
def _killed_before(marker: str) -> Iterator[None]:
    """Ended instead of writing the object that makes all before it count."""
    put = LocalFleetFiles.put

    def putting(
        place: LocalFleetFiles, name: str, content: bytes, *, private: bool = False
    ) -> None:
        if name.startswith(marker):
            raise Killed
        put(place, name, content, private=private)

    with mock.patch.object(LocalFleetFiles, "put", putting):
        yield


def _interrupted(files: Path) -> None:
    """A writer and a compaction that were killed before their last file, and one that was not."""
    store = files / "store"
    _ingest(store, "everything", "failed")
    compact(Store(str(store)))  # what it has replaced is still there
    _ingest(store, "preempted", "publishing", "running")
    with _killed_before(manifest.COMPACTIONS), contextlib.suppress(Killed):
        compact(Store(str(store)))
    with _killed_before(manifest.COMMITS), tempfile.TemporaryDirectory() as place:
        lost = runs.write(runs.failed(3 * runs.DAY), Path(place) / "lost", "lost")
        assert command("ingest", str(lost), "--store", str(store))[0] == 70


RECORDERS = {
    "written": (_written, "a store with runs of several days, never compacted", NEEDS),
    "compacted": (_compacted, "a store that was compacted, and written to after that", NEEDS),
    "second": (_compacted, "a store of schema 2, compacted, and written to after that", NEEDS),
    "interrupted": (_interrupted, "a store of which a compaction and a write were killed", NEEDS),
}
