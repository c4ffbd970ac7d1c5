"""A store that is asked again and again: answers are kept until the store has changed."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.errors import HeadwayError
from headway.fleet.engine import Question, ask

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from headway.fleet.store import Snapshot, Store
    from headway.fleet.view import View

LOOK_S = 10.0  # how old a look at what the store has may be
KEPT = 500  # answers
VIEWS = 20  # stretches of time whose tables are kept

Row = dict[str, Any]


class About(NamedTuple):
    """What a store has: from when, up to when, and how many runs."""

    first: datetime | None
    last: datetime | None
    runs: int
    running: int


class Reading:
    """Asked by many threads; one question at a time goes to the engine."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._version, self._looked = "", float("-inf")
        self._looking = threading.Lock()
        self._asking = threading.Lock()
        self._open: _Open | None = None
        self._closed = False
        self._answers: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._keeping = threading.Lock()

    def version(self) -> str:
        """Another one once the store has changed."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_S:
                told = self.store.read_log()
                names = sorted((*told.writes, *told.compactions, *told.settled))
                self._version = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
                self._looked = time.monotonic()
            return self._version

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives; made once for each version of the store, however many ask."""
        whole = (self.version(), key)
        found, mine = self._future(whole)
        if mine:
            try:
                found.set_result(make())
            except BaseException as error:
                with self._keeping:
                    self._answers.pop(whole, None)
                found.set_exception(error)
        return found.result()

    def _future(self, key: Hashable) -> tuple[Future[Any], bool]:
        with self._keeping:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key], False
            if len(self._answers) >= KEPT:
                self._answers.popitem(last=False)
            self._answers[key] = Future()
            return self._answers[key], True

    def rows(
        self, question: Question, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[Row]:
        """The answer to a question, on an engine that stays open while the store is the same."""
        import duckdb

        with self._asking:
            if self._closed:
                raise HeadwayError("the server is being stopped")
            try:
                return self._view().get(question, since, until)
            except (duckdb.Error, OSError):  # damaged or gone: `ask` knows what to do, or to say
                self._close()
                found: list[Row] = ask(
                    self.store, question, since=since, until=until
                ).rows.to_pylist()
                return found

    def _view(self) -> _Open:
        version = self.version()
        if self._open is None or self._open.version != version:
            self._close()
            self._open = _Open(self.store, self.store.snapshot(), version)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def close(self) -> None:
        """End the engine, once it has answered; there is no other one after it."""
        with self._asking:
            self._closed = True
            self._close()

    def about(self) -> About:
        """What the store has."""
        found: About = self.kept("about", lambda: About(**self.rows(_about)[0]))
        return found


class _Open:
    """An engine on one version of a store."""

    def __init__(self, store: Store, snapshot: Snapshot, version: str) -> None:
        from headway.fleet.view import view

        self.version = version
        self._stack = ExitStack()
        self._view: View = self._stack.enter_context(view(store, snapshot))
        self._tables: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, question: Question, since: datetime | None, until: datetime | None) -> list[Row]:
        days = (since and since.date(), until and until.date())
        if days not in self._tables:
            if len(self._tables) >= VIEWS:
                self._tables.popitem(last=False)
            self._tables[days] = self._view.tables(since, until)
        found: list[Row] = self._view.get(question(self._tables[days])).to_pylist()
        return found

    def close(self) -> None:
        self._stack.close()


def _about(tables: Any) -> ir.Table:
    runs = tables["runs"]
    return runs.agg(
        first=runs.started_at.min(),
        last=runs.ended_at.max(),
        runs=runs.count(),
        running=runs.running.sum().fill_null(0),
    )
