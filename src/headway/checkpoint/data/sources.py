"""Three ways to track the position of a reader: by global sample order, its own state, or counting.

Each yields batches together with the position reached once they are trained on, and can start from
any such position.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

from torch.utils.data import IterableDataset

from headway.checkpoint.data.sampler import GlobalBatches
from headway.errors import HeadwayWarning, UsageError


class Cursor(NamedTuple):
    """A position between two batches: samples, or batches, of an epoch that are done."""

    epoch: int = 0
    done: int = 0
    inner: Any = None  # the state of the reader itself


class DataSource(Protocol):
    """A way to track the position of a reader."""

    kind: str

    def batches(self, cursor: Cursor) -> Iterator[tuple[Any, Cursor]]:
        """The rest of the epoch from that position."""

    def end(self, cursor: Cursor) -> Cursor:
        """The start of the next epoch."""

    def same(self, cursor: Cursor) -> dict[str, Any]:
        """What must be equal when training continues from that position."""


class SampleSource:
    """A loader whose batches come from `GlobalBatches`."""

    kind = "samples"

    def __init__(self, source: Iterable[Any], sampler: GlobalBatches) -> None:
        self._source, self._sampler = source, sampler

    def batches(self, cursor: Cursor) -> Iterator[tuple[Any, Cursor]]:
        """Count returned batches only: the loader may prefetch."""
        self._sampler.seek(cursor.epoch, cursor.done)
        for number, batch in enumerate(self._source, 1):
            yield batch, Cursor(cursor.epoch, self._sampler.after(cursor.done, number))

    def end(self, cursor: Cursor) -> Cursor:
        """The first sample of the next epoch."""
        return Cursor(epoch=cursor.epoch + 1)

    def same(self, cursor: Cursor) -> dict[str, Any]:
        """The order of the samples; world size and batch size may change."""
        order = {"seed": self._sampler.seed, "shuffle": self._sampler.shuffle}
        return {**order, "order": self._sampler.check(cursor.epoch)}


class StatefulSource:
    """A loader with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader."""

    kind = "stateful"

    def __init__(self, source: Any, rank: int, world: int) -> None:
        self._source, self._rank, self._world = source, rank, world
        self._ended: Cursor | None = None  # the end of an epoch, if the loader itself is there

    def batches(self, cursor: Cursor) -> Iterator[tuple[Any, Cursor]]:
        """Take the state with each batch: later it would include prefetched batches."""
        loaded = cursor.inner is not None and cursor is not self._ended
        if loaded:
            self._source.load_state_dict(copy.deepcopy(cursor.inner))
        iterations = [self._source]
        if loaded and not cursor.done:
            # Some loaders are still at the end of the old epoch and would yield nothing.
            iterations.append(self._source)
        for iteration in iterations:
            any_batch = False
            for number, batch in enumerate(iteration, cursor.done + 1):
                any_batch = True
                yield batch, Cursor(cursor.epoch, number, self._state())
            if any_batch:
                break

    def end(self, cursor: Cursor) -> Cursor:
        """The end according to the loader."""
        self._ended = Cursor(epoch=cursor.epoch + 1, inner=self._state())
        return self._ended

    def same(self, cursor: Cursor) -> dict[str, Any]:
        """Its state belongs to one rank of a world size."""
        return {"rank": self._rank, "world": self._world}

    def _state(self) -> Any:
        return copy.deepcopy(self._source.state_dict())


class CountingSource:
    """Anything that yields the same batches each time; trained batches are skipped."""

    kind = "counted"

    def __init__(self, source: Iterable[Any], world: int) -> None:
        self._source, self._world = source, world
        self._passed = 0  # batches that an iterator, which cannot restart, has passed
        sampler = type(getattr(source, "sampler", None)).__name__
        if sampler in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"):
            raise UsageError(
                f"a {sampler} uses another order after a restart: pass the DataLoader "
                "batch_sampler=headway.checkpoint.data.GlobalBatches(...), or use torchdata's "
                "StatefulDataLoader",
                code="shuffle-not-repeatable",
                sampler=sampler,
            )

    def batches(self, cursor: Cursor) -> Iterator[tuple[Any, Cursor]]:
        """Read and skip earlier batches, with a warning."""
        source = iter(self._source)
        self._skip(source, cursor.done)
        for number, batch in enumerate(source, cursor.done + 1):
            self._passed = number
            yield batch, Cursor(cursor.epoch, number)
        self._passed = 0

    def end(self, cursor: Cursor) -> Cursor:
        """The first batch of the next epoch."""
        return Cursor(epoch=cursor.epoch + 1)

    def same(self, cursor: Cursor) -> dict[str, Any]:
        """What defines a batch, and the order of batches."""
        stream = isinstance(getattr(self._source, "dataset", None), IterableDataset)
        return {
            "world": self._world,
            "batch_size": getattr(self._source, "batch_size", None),
            # Workers share the samples of a dataset; each worker reads a stream on its own.
            "workers": getattr(self._source, "num_workers", None) if stream else None,
        }

    def _skip(self, source: Iterator[Any], done: int) -> None:
        skip = done - (self._passed if source is self._source else 0)
        if skip < 0:
            raise UsageError(
                "the source is an iterator, which cannot go back: pass an iterable",
                code="iterator-cannot-go-back",
            )
        if not skip:
            return
        warnings.warn(
            HeadwayWarning(
                f"headway: {skip} batches are read and skipped to reach the position; "
                "headway.checkpoint.data.GlobalBatches or a reader with state_dict needs no "
                "skipping",
                code="batches-skipped",
            ),
            stacklevel=2,
        )
        count = sum(1 for _ in islice(source, skip))
        if count < skip:
            raise UsageError(
                f"the data ended after {count} batches, but {done} were trained on",
                code="data-too-short",
                batches=count,
                trained=done,
            )
