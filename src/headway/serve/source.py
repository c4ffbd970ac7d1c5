"""All that the panels draw from: the store, folders of runs, alerts, what was looked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.fleet.engine import QueryFn
from headway.fleet.queries import build_query
from headway.fleet.queries.slices import Filter
from headway.serve import questions
from headway.serve.folders import RunFolders
from headway.serve.reading import StoreCache
from headway.serve.search import Regressions, Search
from headway.serve.wanted import FILTERS, PageQuery

if TYPE_CHECKING:
    from headway.fleet.store import Store

ALERTS_FILE = "alerts.json"  # in the store
MAX_CHOICES = 200  # values of a field that are offered


class NotFound(HeadwayError):
    """Nothing of that name."""


class Source:
    """Shared by all requests."""

    def __init__(self, store: Store, folders: Sequence[Path] = ()) -> None:
        self.reading = StoreCache(store)
        self.folders = RunFolders(folders)
        self.search = Search(store.url)

    # -- the store ----------------------------------------------------------------------------

    def ask(
        self, of: QueryFn, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """The answer to a question, whatever the page is about."""
        return self.reading.rows(of, since=since, until=until)

    def rows(self, of: QueryFn, wanted: PageQuery) -> list[dict[str, Any]]:
        """The answer for the stretch of time that a page is about."""
        since, until = wanted.between(self.reading.about())
        return self.ask(of, since=since, until=until)

    def one(self, name: str, wanted: PageQuery, *by: str, whole: bool = False) -> dict[str, Any]:
        """A question of the fleet that has one row; with `whole` counts of many rows are added."""
        rows = self.kept(
            (name, by, wanted),
            lambda: self.rows(build_query(name, self.asked(wanted, *by)), wanted),
        )
        if not whole:
            return dict(rows[0]) if rows else {}
        counts = {key for row in rows for key, value in row.items() if isinstance(value, int)}
        return {key: sum(row[key] for row in rows) for key in counts}

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Made once for each version of the store."""
        return self.reading.kept(key, make)

    def asked(self, wanted: PageQuery, *by: str) -> Filter:
        """As the questions of a fleet take it."""
        return wanted.asked(self.reading.about(), *by)

    def period(self, wanted: PageQuery) -> str:
        """How finely time is told."""
        return wanted.period(self.reading.about())

    def choices(self) -> dict[str, list[str]]:
        """What can be chosen from in the filters; fields that no run has are left out."""
        found: dict[str, list[str]] = self.kept("choices", self._choices)
        return found

    def _choices(self) -> dict[str, list[str]]:
        found = {}
        for name in FILTERS:
            rows = self.ask(questions.field_values(name, MAX_CHOICES))
            found[name] = [row[name] for row in rows]
        return {name: values for name, values in found.items() if values}

    def alerts(self) -> list[dict[str, Any]] | None:
        """What stands in the alerts file, the newest first; None if there is none."""
        try:
            told = json.loads(self.reading.store.place.get(ALERTS_FILE))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        except OSError as error:  # it is its watcher's, who may be another user
            raise HeadwayError(
                f"{ALERTS_FILE} cannot be read: {error}", code="alerts-unreadable"
            ) from None
        rows = told.get("alerts") if isinstance(told, dict) else told
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return sorted(rows, key=lambda row: str(row.get("since", "")), reverse=True)

    # -- what takes long ----------------------------------------------------------------------

    def searched(self) -> Regressions | None:
        """Changes, bad hosts and running jobs; None while they are looked for the first time."""
        return self.search.found(self.reading.version())

    def warm(self) -> None:
        """What the first page needs; a store that cannot be read is told of when it is asked."""
        from headway.serve.panels import OVERVIEW_PAGE

        with contextlib.suppress(HeadwayError):
            for panel in OVERVIEW_PAGE.panels:
                self.kept((panel.name, PageQuery()), partial(panel.ask, self, PageQuery()))
            self.choices()
            self.searched()

    def close(self) -> None:
        """End all that is at work: nothing may be inside of the engine when Python ends."""
        self.search.close()
        self.reading.close()
