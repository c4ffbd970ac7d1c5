"""The position in the data that training has reached, saved with the weights."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from headway.checkpoint.coordinator import rank_and_world
from headway.checkpoint.data.sampler import GlobalBatches
from headway.checkpoint.data.sources import (
    CountingSource,
    Cursor,
    DataSource,
    SampleSource,
    StatefulSource,
)
from headway.errors import UsageError

VERSION = 1
FIELD_MEANINGS = {
    "version": "the version of the position",
    "kind": "how the data is read",
    "length": "the number of samples",
    "name": "the name of the dataset",
    "order": "how torch shuffles (a checksum)",
    "rank": "the rank",
    "world": "the number of ranks",
    "batch_size": "the batch size",
    "workers": "the number of workers",
}


class Position:
    """The batches of `source`, and the position after the last batch that was trained on.

    A batch counts as trained on when

    - `optimizer`, if given, has stepped since the batch was returned (accumulated batches wait);
    - else `trained()` was called, or the next batch is requested, whichever comes first;
    - with `ahead`, if batches are prefetched, only by `trained()`, oldest first.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        optimizer: Any = None,
        ahead: bool = False,
        sampler: GlobalBatches | None = None,
        name: str = "",
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """`name` identifies the dataset; pass `sampler` if the source does not expose it."""
        if ahead and optimizer is not None:
            raise UsageError(
                "a step of the optimizer does not tell which prefetched batches it "
                "trained on: leave optimizer out and call trained()",
                code="optimizer-with-ahead",
            )
        self.source = source
        self._source = _source_for(source, sampler, *rank_and_world(rank, world))
        self._data = {"length": _length(source, sampler), "name": name}
        self._trained = self._returned = Cursor()
        self._pending: deque[tuple[Cursor, bool]] = deque()  # cursor, and whether it ends an epoch
        self._lock = threading.Lock()  # prefetching may happen in a thread
        self._ahead, self._stepped, self._trained_called = ahead, optimizer is not None, False
        self._passes = 0
        if optimizer is not None:
            optimizer.register_step_post_hook(lambda *_: self._mark_all())

    @property
    def epoch(self) -> int:
        """The current epoch; after its last batch, the next one."""
        return self._trained.epoch

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch; after a break, from the next batch on."""
        if self._ahead:
            with self._lock:  # prefetched batches that were not trained on are read again
                self._pending.clear()
                self._returned = self._trained
        self._passes += 1
        return self._read(self._passes)

    def trained(self, batches: int = 1) -> None:
        """The current batch was trained on; with `ahead`, the oldest `batches`."""
        self._trained_called = True
        if not self._ahead:
            self._mark_all()
            return
        with self._lock:
            waiting = sum(not end for _, end in self._pending)
            if batches > waiting:
                raise UsageError(
                    f"{batches} batches trained on, but only {waiting} were read",
                    code="batches-not-read",
                    read=waiting,
                )
            for _ in range(batches):
                self._trained, _ = self._pending.popleft()
                self._pass_end()

    def state_dict(self) -> dict[str, Any]:
        """Small, and JSON-serializable unless the state of the source is not."""
        if self._pending and not (self._ahead or self._stepped or self._trained_called):
            raise UsageError(
                "it is unknown whether the current batch was trained on: call trained() "
                "after each optimizer step, or give Position the optimizer",
                code="batch-in-hand",
            )
        cursor = self._trained
        state = {"version": VERSION, "kind": self._source.kind, "epoch": cursor.epoch}
        state |= {"done": cursor.done, **self._data, **self._source.same(cursor)}
        return state if cursor.inner is None else {**state, "inner": cursor.inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from that state; UsageError if data, order or ranks do not match."""
        expected: dict[str, Any] = {"version": VERSION, "kind": self._source.kind, **self._data}
        _check_equal(state, expected)
        cursor = Cursor(epoch=state["epoch"], done=state["done"], inner=state.get("inner"))
        _check_equal(state, self._source.same(cursor))
        with self._lock:
            self._pending.clear()
            self._trained = self._returned = cursor
            self._passes += 1

    def _read(self, number: int) -> Iterator[Any]:
        start = self._returned
        for batch, cursor in self._source.batches(start):
            self._add(number, cursor, end=False)
            yield batch
            if number == self._passes and not (self._ahead or self._stepped):
                self._mark_all()
        self._add(number, self._source.end(start), end=True)

    def _add(self, number: int, cursor: Cursor, *, end: bool) -> None:
        if number != self._passes:
            raise UsageError(
                "this iterator is no longer valid: the position was moved",
                code="position-moved",
            )
        with self._lock:
            self._returned = cursor
            self._pending.append((cursor, end))
            self._pass_end()

    def _pass_end(self) -> None:
        """Advance past the end of an epoch once its last batch was trained on."""
        if self._pending and self._pending[0][1]:
            self._trained, _ = self._pending.popleft()

    def _mark_all(self) -> None:
        with self._lock:
            if self._pending:
                self._trained, _ = self._pending[-1]
                self._pending.clear()


def _source_for(source: Any, sampler: GlobalBatches | None, rank: int, world: int) -> DataSource:
    sampler = sampler or _sampler(source)
    if sampler is not None:
        return SampleSource(source, sampler)
    if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        return StatefulSource(source, rank, world)
    return CountingSource(source, world)


def _sampler(source: Any) -> GlobalBatches | None:
    sampler = getattr(source, "batch_sampler", None)
    return sampler if isinstance(sampler, GlobalBatches) else None


def _length(source: Any, sampler: GlobalBatches | None) -> int | None:
    """Number of samples of the dataset; None if unknown."""
    sampler = sampler or _sampler(source)
    if sampler is not None:
        return sampler.length
    try:
        return len(source.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def _check_equal(state: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if name not in state:
            raise UsageError(
                f"the state is not a data position: it has no {name!r}",
                code="position-incomplete",
                name=name,
            )
        if state[name] != value:
            raise UsageError(
                f"the position does not match this data: {FIELD_MEANINGS.get(name, name)} was "
                f"{state[name]!r} and is {value!r} now",
                code="position-mismatch",
                name=name,
                was=state[name],
                now=value,
            )
