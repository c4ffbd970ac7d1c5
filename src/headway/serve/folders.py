"""Folders of runs on this machine, found by the ids that the store knows them by."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from pathlib import Path

from headway.fleet.rows import run_id
from headway.journal.folder import JOURNAL, RUN_JSON, read_identity
from headway.ledger.account import build_ledger
from headway.ledger.run import load
from headway.report.html import page
from headway.serve.answers import AnswerCache

LOOK_S = 10.0  # how old the list of folders may be
MAX_REPORTS = 8  # reports


class RunFolders:
    """Nothing below them can be named from outside but a run, by its id."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)
        self._ids: dict[str, Path] = {}
        self._known: dict[Path, tuple[int, str]] = {}
        self._looked = float("-inf")
        self._looking = threading.Lock()
        self._reports = AnswerCache(MAX_REPORTS)

    def find(self, wanted: str) -> Path | None:
        """The folder of a run."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_S:
                self._look()
                self._looked = time.monotonic()
            return self._ids.get(wanted)

    def _look(self) -> None:
        found = {}
        for root in self._roots:
            for folder in sorted(root.iterdir()) if root.is_dir() else ():
                try:
                    changed = (folder / RUN_JSON).stat().st_mtime_ns
                except OSError:
                    continue
                known = self._known.get(folder)
                name = known[1] if known and known[0] == changed else _run_id(folder)
                self._known[folder] = (changed, name)
                if name:
                    found[name] = folder
        self._ids = found

    def report(self, wanted: str) -> str | None:
        """The report of a run as it is now; None if its folder is not at hand."""
        folder = self.find(wanted)
        state = None if folder is None else _journal_state(folder)
        if folder is None or state is None:
            return None
        made: str = self._reports.get((wanted, state), lambda: page(load(folder).ledger))
        return made


def _run_id(folder: Path) -> str:
    """As `headway ingest` gives it; empty for a run that does not say when it was made."""
    identity = read_identity(folder)
    if not identity.get("created"):
        return ""
    name = str(identity.get("run") or folder.resolve().name)
    return run_id(build_ledger([], run=name, problems=[], facts=identity))


def _journal_state(folder: Path) -> Hashable | None:
    """Another one once a journal has been written to; None where it was removed."""
    found = []
    try:
        for path in sorted((folder / JOURNAL).iterdir()):
            told = path.stat()
            found.append((path.name, told.st_size, told.st_mtime_ns))
    except OSError:
        return None
    return tuple(found)
