"""Data of the panels: the store, run folders, alerts and the regression search."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.fleet.queries import pages
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import build_query
from headway.fleet.rows import run_id
from headway.fleet.store.reader import QueryFn
from headway.journal.run_files import JOURNAL, RUN_JSON, read_identity
from headway.ledger.build import build_ledger
from headway.report.html import page
from headway.run import load
from headway.serve.cache import AnswerCache, StoreCache
from headway.serve.query import FILTERS, PageQuery
from headway.serve.search import Regressions, Search

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store


RESCAN_S = 10.0  # between two scans of the folders
MAX_REPORTS = 8
ALERTS_FILE = "alerts.json"  # in the store
MAX_CHOICES = 200  # values of a filter


class RunFolders:
    """Folders of runs. From outside, only a run can be addressed, by its id."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)
        self._folders: dict[str, Path] = {}
        self._run_ids: dict[Path, tuple[int, str]] = {}
        self._scanned_at = float("-inf")
        self._lock = threading.Lock()
        self._reports = AnswerCache(MAX_REPORTS)

    def find(self, id_: str) -> Path | None:
        """The folder of a run, or None."""
        with self._lock:
            if time.monotonic() - self._scanned_at > RESCAN_S:
                self._scan()
                self._scanned_at = time.monotonic()
            return self._folders.get(id_)

    def _scan(self) -> None:
        folders = {}
        for root in self._roots:
            for folder in sorted(root.iterdir()) if root.is_dir() else ():
                try:
                    changed = (folder / RUN_JSON).stat().st_mtime_ns
                except OSError:
                    continue
                cached = self._run_ids.get(folder)
                id_ = cached[1] if cached and cached[0] == changed else _run_id(folder)
                self._run_ids[folder] = (changed, id_)
                if id_:
                    folders[id_] = folder
        self._folders = folders

    def report(self, id_: str) -> str | None:
        """The report of a run in its current state; None without a folder."""
        folder = self.find(id_)
        journal_state = None if folder is None else _journal_state(folder)
        if folder is None or journal_state is None:
            return None
        html: str = self._reports.get((id_, journal_state), lambda: page(load(folder).ledger))
        return html


def _run_id(folder: Path) -> str:
    """The id that `headway ingest` assigns; empty if the run has no creation time."""
    identity = read_identity(folder)
    if not identity.get("created"):
        return ""
    name = str(identity.get("run") or folder.resolve().name)
    return run_id(build_ledger([], run=name, problems=[], metadata=identity))


def _journal_state(folder: Path) -> Hashable | None:
    """Names, sizes and times of the journals; None if the folder was removed."""
    files = []
    try:
        for path in sorted((folder / JOURNAL).iterdir()):
            stat = path.stat()
            files.append((path.name, stat.st_size, stat.st_mtime_ns))
    except OSError:
        return None
    return tuple(files)


class NotFound(HeadwayError):
    """The requested page, panel, file or run does not exist."""


class Source:
    """All data of the pages, shared by all requests."""

    def __init__(self, store: Store, folders: Sequence[Path] = ()) -> None:
        self.store_cache = StoreCache(store)
        self.folders = RunFolders(folders)
        self.search = Search(store.url)

    # -- the store ----------------------------------------------------------------------------

    def query(
        self, query_fn: QueryFn, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Run a query without the filters of a page."""
        return self.store_cache.rows(query_fn, since=since, until=until)

    def rows(self, query_fn: QueryFn, query: PageQuery) -> list[dict[str, Any]]:
        """Run a query for the time range of a page."""
        since, until = query.time_range(self.store_cache.summary())
        return self.query(query_fn, since=since, until=until)

    def single_row(
        self, name: str, query: PageQuery, *by: str, whole: bool = False
    ) -> dict[str, Any]:
        """The row of a fleet query; with `whole`, the counts of all rows are added up."""
        rows = self.get_or_compute(
            (name, by, query),
            lambda: self.rows(build_query(name, self.filter_for(query, *by)), query),
        )
        if not whole:
            return dict(rows[0]) if rows else {}
        counts = {key for row in rows for key, value in row.items() if isinstance(value, int)}
        return {key: sum(row[key] for row in rows) for key in counts}

    def get_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """See StoreCache.get_or_compute."""
        return self.store_cache.get_or_compute(key, compute)

    def filter_for(self, query: PageQuery, *by: str) -> Filter:
        """The filter of a page, for fleet queries."""
        return query.to_filter(self.store_cache.summary(), *by)

    def period(self, query: PageQuery) -> str:
        """The time unit of a page's charts."""
        return query.period(self.store_cache.summary())

    def choices(self) -> dict[str, list[str]]:
        """The values of each filter; fields that no run has are left out."""
        choices: dict[str, list[str]] = self.get_or_compute("choices", self._choices)
        return choices

    def _choices(self) -> dict[str, list[str]]:
        choices = {}
        for name in FILTERS:
            rows = self.query(pages.field_values(name, MAX_CHOICES))
            choices[name] = [row[name] for row in rows]
        return {name: values for name, values in choices.items() if values}

    def alerts(self) -> list[dict[str, Any]] | None:
        """Entries of the alerts file, newest first; None without such a file."""
        try:
            content = json.loads(self.store_cache.store.files.get(ALERTS_FILE))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        except OSError as error:  # the file may belong to another user
            raise HeadwayError(
                f"{ALERTS_FILE} cannot be read: {error}", code="alerts-unreadable"
            ) from None
        rows = content.get("alerts") if isinstance(content, dict) else content
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return sorted(rows, key=lambda row: str(row.get("since", "")), reverse=True)

    # -- slow searches ------------------------------------------------------------------------

    def regressions(self) -> Regressions | None:
        """Changes, bad hosts and slow jobs; None until the first search has finished."""
        return self.search.result(self.store_cache.version())

    def warm(self) -> None:
        """Compute what the first page needs; errors are reported when a page asks."""
        from headway.serve.pages.overview import OVERVIEW_PAGE

        with contextlib.suppress(HeadwayError):
            for panel in OVERVIEW_PAGE.panels:
                self.get_or_compute(
                    (panel.name, PageQuery()), partial(panel.load, self, PageQuery())
                )
            self.choices()
            self.regressions()

    def close(self) -> None:
        """Stop all engines: no query may be running when Python exits."""
        self.search.close()
        self.store_cache.close()
