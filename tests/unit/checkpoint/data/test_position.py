"""Positions of real loaders: what is trained over the surviving history."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from tests.support import examples, has_code, lazy

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")
GlobalBatches = lazy("headway.checkpoint.data:GlobalBatches")
Position = lazy("headway.checkpoint.data:Position")

# Said by Python 3.12 and later of the fork below every DataLoader worker.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def loader(samples: int, batch: int, workers: int = 0, **options: Any) -> Any:
    persistent = options.pop("persistent", False)
    return DataLoader(
        range(samples),
        batch_sampler=GlobalBatches(range(samples), batch, **options),
        num_workers=workers,
        persistent_workers=persistent,
    )


def prefetched(source: Iterable[Any], depth: int) -> Iterator[Any]:
    """As many do it, to copy to the device early."""
    waiting: deque[Any] = deque()
    for item in source:
        waiting.append(item)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def rest(position: Position) -> list[int]:
    return [sample for batch in position for sample in batch.tolist()]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_killed_epoch_is_gone_on_with(workers: int, persistent: bool) -> None:
    position = Position(loader(40, 3, workers, persistent=persistent))
    seen = []
    for step, batch in enumerate(position):
        seen += batch.tolist()
        position.trained()
        if step == 4:
            break
    state = json.loads(json.dumps(position.state_dict()))
    assert (state["epoch"], state["done"]) == (0, 15)
    later = Position(loader(40, 3, workers, persistent=persistent))
    later.load_state_dict(state)
    seen += rest(later)
    assert seen == GlobalBatches(range(40), 3).order(0).tolist()
    assert later.epoch == 1
    assert rest(later) == GlobalBatches(range(40), 3).order(1).tolist()
    later.load_state_dict(state)  # with workers that live already
    assert rest(later) == seen[15:]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_were_read_ahead_are_not_trained(workers: int) -> None:
    position = Position(loader(40, 4, workers), ahead=True)
    reader = prefetched(position, 3)
    seen = next(reader).tolist() + next(reader).tolist()
    position.trained()
    assert position.state_dict()["done"] == 4
    position.trained()
    assert position.state_dict()["done"] == 8
    again = prefetched(position, 3)  # what the old one had read ahead comes once more
    for batch in again:
        seen += batch.tolist()
        position.trained()
    assert seen == GlobalBatches(range(40), 4).order(0).tolist()
    assert position.epoch == 1
    with pytest.raises(UsageError, check=has_code("batches-not-read")) as raised:
        position.trained()
    assert raised.value.fields["read"] == 0
    with pytest.raises(UsageError, check=has_code("position-moved")):
        next(reader)


@pytest.mark.timeout(60)
def test_a_thread_may_read_ahead() -> None:
    position = Position(loader(30, 2), ahead=True)
    read: Queue[Any] = Queue(3)

    def put() -> None:
        for batch in position:
            read.put(batch)
        read.put(None)

    thread = Thread(target=put)
    thread.start()
    done = []
    while read.get() is not None:
        position.trained()
        state = position.state_dict()
        done.append(30 * state["epoch"] + state["done"])
    thread.join()
    assert done == list(range(2, 31, 2)) and position.epoch == 1


def test_several_batches_read_ahead_are_told_at_once() -> None:
    position = Position(loader(12, 2), ahead=True)
    assert len(list(prefetched(position, 6))) == 6
    position.trained(4)
    assert position.state_dict()["done"] == 8 and position.epoch == 0
    position.trained(2)
    assert (position.epoch, position.state_dict()["done"]) == (1, 0)


def test_accumulated_batches_wait_for_their_step() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    position = Position(loader(20, 2), optimizer=optimizer)
    done = []
    for number, batch in enumerate(position, 1):
        (weight * batch.sum()).sum().backward()
        if number % 4 == 0:
            optimizer.step()
        done.append(position.state_dict()["done"])
    assert done == [0, 0, 0, 8, 8, 8, 8, 16, 16, 16]
    assert position.epoch == 0  # its last two batches are in no step yet
    next(iter(position))
    optimizer.step()
    assert (position.epoch, position.state_dict()["done"]) == (1, 2)


def test_asking_for_the_next_batch_means_that_the_last_was_trained() -> None:
    position = Position(loader(6, 2))
    batches = iter(position)
    next(batches)
    with pytest.raises(UsageError, check=has_code("batch-in-hand")):
        position.state_dict()
    for _ in batches:
        pass
    assert (position.epoch, position.state_dict()["done"]) == (1, 0)


def test_a_break_goes_on_with_the_next_batch() -> None:
    position = Position(loader(12, 2))
    seen = [next(iter(position)).tolist() for _ in range(6)]
    assert list(chain(*seen)) == GlobalBatches(range(12), 2).order(0).tolist()
    assert rest(position) == []  # the end of that epoch
    assert len(rest(position)) == 12


class Killed(Exception):
    """In the middle of everything."""


class Job:
    """Ranks in step; its weights are the list of what it was trained on."""

    def __init__(self, length: int, epochs: int, tail: str, marking: str) -> None:
        self.length, self.epochs, self.tail, self.marking = length, epochs, tail, marking
        self.durable: tuple[dict[str, Any] | None, list[tuple[int, int]]] = (None, [])

    def attempt(self, world: int, batch: int, save_every: int, kill_at: int | None) -> None:
        state, trained = self.durable[0], list(self.durable[1])
        ranks = [self._rank(rank, world, batch) for rank in range(world)]
        for position, _ in ranks:
            if state is not None:
                position.load_state_dict(json.loads(json.dumps(state)))
        steps = 0
        for epoch in range(ranks[0][0].epoch, self.epochs):
            readers = [prefetched(p, 2) if self.marking == "ahead" else iter(p) for p, _ in ranks]
            while batches := [
                (r, b) for r, it in enumerate(readers) if (b := next(it, None)) is not None
            ]:
                for rank, samples in batches:
                    if steps == kill_at and rank == world - 1:
                        raise Killed
                    trained += [(epoch, sample) for sample in samples.tolist()]
                    position, optimizer = ranks[rank]
                    optimizer.step() if self.marking == "optimizer" else position.trained()
                steps += 1
                if steps % save_every == 0:
                    self.durable = ranks[0][0].state_dict(), list(trained)
        self.durable = ranks[0][0].state_dict(), trained

    def _rank(self, rank: int, world: int, batch: int) -> tuple[Position, Any]:
        source = loader(self.length, batch, tail=self.tail, rank=rank, world=world, seed=3)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        given_to = optimizer if self.marking == "optimizer" else None
        return Position(source, optimizer=given_to, ahead=self.marking == "ahead"), optimizer


LIVES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 12))


@pytest.mark.timeout(120)
@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(
    st.integers(1, 40),
    st.lists(LIVES, max_size=5),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.sampled_from(["pad", "short", "drop"]),
    st.sampled_from(["call", "optimizer", "ahead"]),
)
def test_every_sample_once_over_kills_and_other_worlds(
    length: int,
    lives: list[tuple[int, int, int, int]],
    last: tuple[int, int],
    tail: str,
    marking: str,
) -> None:
    job = Job(length, 2, tail, marking)
    for world, batch, save_every, kill_at in lives:
        try:
            job.attempt(world, batch, save_every, kill_at)
        except Killed:
            continue
        break
    else:
        job.attempt(*last, save_every=1000, kill_at=None)
    widest = max([last[0] * last[1], *(world * batch for world, batch, _, _ in lives)])
    for epoch in range(2):
        counts = Counter(sample for at, sample in job.durable[1] if at == epoch)
        if tail == "short":
            assert counts == Counter(range(length))
        elif tail == "drop":
            assert set(counts.values()) <= {1} and length - len(counts) < widest
        else:
            assert counts.keys() == set(range(length)) and counts.total() - length < 4


def test_other_data_is_refused() -> None:
    state = Position(loader(10, 2), name="clicks").state_dict()
    for other, named, fields in (
        (loader(11, 2), "clicks", {"name": "length", "was": 10, "now": 11}),
        (loader(10, 2), "views", {"name": "name", "was": "clicks", "now": "views"}),
        (loader(10, 2, seed=1), "clicks", {"name": "seed", "was": 0, "now": 1}),
        (loader(10, 2, shuffle=False), "clicks", {"name": "shuffle", "was": True, "now": False}),
        ([1, 2], "clicks", {"name": "kind", "was": "samples", "now": "counted"}),
    ):
        with pytest.raises(UsageError, check=has_code("position-mismatch")) as raised:
            Position(other, name=named).load_state_dict(state)
        assert raised.value.fields == fields
    with pytest.raises(UsageError, check=has_code("position-mismatch")) as raised:
        Position(loader(10, 2), name="clicks").load_state_dict({**state, "order": 1})
    assert (raised.value.fields["name"], raised.value.fields["was"]) == ("order", 1)
    with pytest.raises(UsageError, check=has_code("position-incomplete")) as raised:
        Position(loader(10, 2)).load_state_dict({"epoch": 3})
    assert raised.value.fields["name"] == "version"


def test_a_sampler_may_be_out_of_sight() -> None:
    behind = loader(10, 2)
    position = Position(map(torch.Tensor.neg, behind), sampler=behind.batch_sampler)
    assert position.state_dict()["kind"] == "samples"


def test_an_optimizer_cannot_tell_what_was_read_ahead() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(UsageError, check=has_code("optimizer-with-ahead")):
        Position([1], optimizer=optimizer, ahead=True)


def test_the_step_of_a_compiled_function_counts() -> None:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    position = Position(loader(6, 2), optimizer=optimizer)

    @torch.compile(backend="eager")
    def train(batch: Any) -> None:
        (weight * batch.sum()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    done = []
    for batch in position:
        train(batch)
        done.append(position.state_dict()["done"])
    assert done == [2, 4, 6]
