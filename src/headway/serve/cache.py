"""Query results of a store, cached until the store changes; each is computed once."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.errors import HeadwayError
from headway.fleet.store.reader import QueryFn, run_query

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from headway.fleet.store.parquet import LiveFiles, Store
    from headway.fleet.store.view import View

VERSION_CHECK_S = 10.0  # between two checks whether the store has changed
MAX_ANSWERS = 500
MAX_VIEWS = 20  # time ranges with open tables, per engine
MAX_ENGINES = 4  # concurrent queries, so that a slow one does not block the others
Row = dict[str, Any]


class AnswerCache:
    """The newest `max_answers` results by key. A slow computation blocks only its own key."""

    def __init__(self, max_answers: int) -> None:
        self._max_answers = max_answers
        self._answers: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`; a failure is raised for all that wait, and not cached."""
        with self._lock:
            answer = self._answers.get(key)
            is_first = answer is None
            if answer is None:
                answer = Future()
                while len(self._answers) >= self._max_answers:
                    self._answers.popitem(last=False)
                self._answers[key] = answer
            self._answers.move_to_end(key)
        if is_first:
            try:
                answer.set_result(compute())
            except BaseException as error:
                with self._lock:
                    if self._answers.get(key) is answer:
                        del self._answers[key]
                answer.set_exception(error)
        return answer.result()


class StoreSummary(NamedTuple):
    """Time range and number of runs of a store."""

    first: datetime | None
    last: datetime | None
    runs: int
    running: int


class StoreCache:
    """Results of one store, shared by threads; an engine runs one query at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._version, self._checked_at = "", float("-inf")
        self._version_lock = threading.Lock()
        self._slots = threading.Semaphore(MAX_ENGINES)
        self._idle_engines: list[_Engine] = []
        self._closed = False
        self._answers = AnswerCache(MAX_ANSWERS)

    def version(self) -> str:
        """A hash that changes when the store changes."""
        with self._version_lock:
            if time.monotonic() - self._checked_at > VERSION_CHECK_S:
                manifest = self.store.read_manifest()
                names = sorted((*manifest.writes, *manifest.compactions, *manifest.finalized))
                self._version = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
                self._checked_at = time.monotonic()
            return self._version

    def get_or_compute(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, called once for each version of the store."""
        return self._answers.get((self.version(), key), compute)

    def rows(
        self, query: QueryFn, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[Row]:
        """Run a query on an engine that stays open while the store is unchanged."""
        import duckdb

        with self._slots:
            if self._closed:
                raise HeadwayError("the server is stopping", code="server-stopping")
            try:
                with self._engine() as engine:
                    return engine.rows(query, since, until)
            except (duckdb.Error, OSError):  # damaged or deleted files: run_query handles both
                result = run_query(self.store, query, since=since, until=until)
                rows: list[Row] = result.rows.to_pylist()
                return rows

    @contextmanager
    def _engine(self) -> Iterator[_Engine]:
        """An engine on the current version; kept open unless it fails."""
        version = self.version()
        while self._idle_engines:
            engine = self._idle_engines.pop()
            if engine.version == version:
                break
            engine.close()
        else:
            engine = _Engine(self.store, self.store.live_files(), version)
        try:
            yield engine
        except BaseException:
            engine.close()
            raise
        self._idle_engines.append(engine)

    def close(self) -> None:
        """Wait for running queries, then close all engines."""
        self._closed = True
        for _ in range(MAX_ENGINES):
            self._slots.acquire()
        while self._idle_engines:
            self._idle_engines.pop().close()
        self._slots.release(MAX_ENGINES)

    def summary(self) -> StoreSummary:
        summary: StoreSummary = self.get_or_compute(
            "about", lambda: StoreSummary(**self.rows(_summary_query)[0])
        )
        return summary


class _Engine:
    """An engine on one version of a store."""

    def __init__(self, store: Store, snapshot: LiveFiles, version: str) -> None:
        from headway.fleet.store.view import open_view

        self.version = version
        self._stack = ExitStack()
        self._view: View = self._stack.enter_context(open_view(store, snapshot))
        self._tables: OrderedDict[Hashable, Any] = OrderedDict()

    def rows(self, query: QueryFn, since: datetime | None, until: datetime | None) -> list[Row]:
        days = (since and since.date(), until and until.date())
        if days not in self._tables:
            if len(self._tables) >= MAX_VIEWS:
                self._tables.popitem(last=False)
            self._tables[days] = self._view.tables(since, until)
        rows: list[Row] = self._view.get(query(self._tables[days])).to_pylist()
        return rows

    def close(self) -> None:
        self._stack.close()


def _summary_query(tables: Any) -> ir.Table:
    runs = tables["runs"]
    return runs.agg(
        first=runs.started_at.min(),
        last=runs.ended_at.max(),
        runs=runs.count(),
        running=runs.running.sum().fill_null(0),
    )
