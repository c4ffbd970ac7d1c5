"""`headway.load(path)`: a run folder as an object."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.journal import reader, run_files
from headway.ledger import boosters, publish
from headway.ledger.build import build_ledger
from headway.ledger.encode import mask_secrets
from headway.ledger.model import Ledger

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Run:
    """One run on disk and its ledger."""

    path: Path
    name: str
    ledger: Ledger

    @property
    def ett_percent(self) -> float:
        """Effective training time as a share of the wall time."""
        return self.ledger.ett_percent

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `headway report --json`."""
        return self.ledger.to_dict()

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per segment of the run and of each rank; needs pandas."""
        try:
            import pandas
        except ImportError:
            from headway.errors import MissingExtra

            raise MissingExtra("to_pandas() needs pandas", extra="pandas") from None
        rows = [("run", s.start / 1e9, s.end / 1e9, s.bucket) for s in self.ledger.segments]
        rows += [
            (str(rank.rank), s.start / 1e9, s.end / 1e9, s.bucket)
            for rank in self.ledger.ranks
            for s in rank.segments
        ]
        frame: pandas.DataFrame
        frame = pandas.DataFrame(rows, columns=["rank", "start_s", "end_s", "leaf"])
        frame["seconds"] = frame["end_s"] - frame["start_s"]
        return frame

    def _repr_html_(self) -> str:
        from headway.report.html import fragment

        return fragment(self.ledger)

    def __repr__(self) -> str:
        return f"<Run {self.name}: ETT {self.ett_percent:.1f} % of {self.ledger.wall / 1e9:.1f} s>"


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run from a folder or a URL and compute its ledger; the run may still be running.

    >>> headway.load("headway/train").ett_percent
    71.4
    """
    if "://" in str(path):
        with tempfile.TemporaryDirectory() as copy:
            run_files.fetch_run(str(path), Path(copy))
            return _load(Path(copy), str(path).rstrip("/").rpartition("/")[2])
    folder = run_files.find_run(path)
    return _load(folder, folder.resolve().name)


def _load(folder: Path, default: str) -> Run:
    identity = run_files.read_identity(folder)
    journals, problems = reader.read_journals(str(folder / run_files.JOURNAL))
    for journal in journals:
        journal.ended = reader.has_ended(journal, time.time_ns())
    name = str(identity.get("run") or default)
    if not identity:
        problems.append(f"{run_files.RUN_JSON} is missing or damaged")
    ledger = build_ledger(journals, run=name, problems=problems, metadata=identity)
    ledger = replace(
        ledger, published_by=publish.publish_from_note(run_files.read_publish_note(folder))
    )
    ledger = replace(ledger, auto=boosters.auto_run(ledger, journals))
    return Run(path=folder, name=name, ledger=mask_secrets(ledger))
