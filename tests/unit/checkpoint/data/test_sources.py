"""Readers with a state of their own, and those that are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from headway.errors import HeadwayWarning, UsageError
from tests.support import has_code, lazy

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")
Position = lazy("headway.checkpoint.data:Position")
Stream = lazy("tests.unit.checkpoint.torch_classes:Stream")

# Said by Python 3.12 and later of the fork below every DataLoader worker.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


class Cursor:
    """A reader that knows where it is, and keeps one state that it changes as it reads.

    At the end of its data it says so; loaded there, it stands at the end again.
    """

    def __init__(self, length: int) -> None:
        self.length, self.at, self.loaded = length, {"row": 0}, False
        self.loads = 0

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.at["row"] = 0
        self.loaded = False
        while self.at["row"] < self.length:
            self.at["row"] += 1
            yield self.at["row"] - 1

    def state_dict(self) -> dict[str, int]:
        return self.at

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.loaded = state, True
        self.loads += 1


def test_the_state_of_a_reader_stays_with_its_batch() -> None:
    position = Position(Cursor(6), ahead=True)
    batches = iter(position)
    assert [next(batches) for _ in range(4)] == [0, 1, 2, 3]
    position.trained()
    position.trained()
    state = json.loads(json.dumps(position.state_dict()))
    assert (state["inner"], state["done"]) == ({"row": 2}, 2)
    later = Position(Cursor(6))
    later.load_state_dict(state)
    assert list(later) == [2, 3, 4, 5]
    assert list(later) == list(range(6)) and later.epoch == 2


@pytest.mark.parametrize("steps", [0, 1, 5, 6])
def test_a_reader_of_its_own_state_from_any_batch(steps: int) -> None:
    position = Position(Cursor(6))
    batches = iter(position)
    for _ in range(steps):
        next(batches)
        position.trained()
    later = Position(Cursor(6))
    later.load_state_dict(position.state_dict())
    assert (list(later), list(later)) == (list(range(steps, 6)), list(range(6)))


def test_a_position_between_epochs_leaves_no_epoch_out() -> None:
    position = Position(Cursor(3))
    assert list(position) == [0, 1, 2]
    later = Position(Cursor(3))
    later.load_state_dict(position.state_dict())
    assert later.epoch == 1
    assert (list(later), list(later)) == ([0, 1, 2], [0, 1, 2])


def test_an_undisturbed_reader_is_left_alone() -> None:
    source = Cursor(3)
    position = Position(source)
    assert [list(position) for _ in range(3)] == [[0, 1, 2]] * 3
    assert source.loads == 0


def test_a_break_goes_on_with_the_next_batch() -> None:
    position = Position(Cursor(5))
    assert [next(iter(position)) for _ in range(3)] == [0, 1, 2]
    assert list(position) == [3, 4]


def refused(position: Any, state: dict[str, Any]) -> tuple[str, Any, Any]:
    """What does not fit: its name, and what it was and is."""
    with pytest.raises(UsageError, check=has_code("position-mismatch")) as raised:
        position.load_state_dict(state)
    fields = raised.value.fields
    return fields["name"], fields["was"], fields["now"]


def test_a_state_is_of_one_rank() -> None:
    state = Position(Cursor(3), rank=1, world=2).state_dict()
    assert refused(Position(Cursor(3), rank=0, world=2), state) == ("rank", 1, 0)
    assert refused(Position(Cursor(3), rank=1, world=4), state) == ("world", 2, 4)


@pytest.mark.timeout(90)
@pytest.mark.filterwarnings("ignore")  # torchdata 0.11 says things of its own
@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (0, 2), (2, 2)])
def test_torchdata(workers: int, ahead: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def position(seed: int) -> Any:
        torch.manual_seed(seed)  # a restarted job has torch in any state
        source = stateful(range(24), batch_size=3, shuffle=True, num_workers=workers)
        return Position(source, ahead=bool(ahead))

    for steps in (1, 5, 8):
        first = position(1)
        batches = iter(first)
        read = [next(batches).tolist() for _ in range(min(steps + ahead, 8))]
        first.trained(*([steps] if ahead else []))
        later = position(2)
        later.load_state_dict(first.state_dict())
        after = []
        for batch in later:
            after.append(batch.tolist())
            later.trained()
        assert sorted(chain(*read[:steps], *after)) == list(range(24))
        assert read[steps:] == after[: len(read) - steps]
        between = position(3)
        between.load_state_dict(later.state_dict())
        assert between.epoch == 1
        assert sorted(chain(*(batch.tolist() for batch in between))) == list(range(24))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_counted_where_nothing_else_is_known(workers: int) -> None:
    def source() -> Any:
        return DataLoader(range(20), batch_size=3, num_workers=workers)  # type: ignore[arg-type]

    position = Position(source())
    batches = iter(position)
    seen = [sample for _ in range(3) for sample in next(batches).tolist()]
    position.trained()
    state = json.loads(json.dumps(position.state_dict()))
    assert (state["kind"], state["done"], state["length"]) == ("counted", 3, 20)
    later = Position(source())
    later.load_state_dict(state)
    with pytest.warns(HeadwayWarning, match=r"\b3\b.*\[batches-skipped\]"):
        seen += [sample for batch in later for sample in batch.tolist()]
    assert seen == list(range(20)) and later.epoch == 1


def test_counted_batches_are_of_one_size_and_world() -> None:
    state = Position(DataLoader(range(8), batch_size=2)).state_dict()
    assert refused(Position(DataLoader(range(8), batch_size=4)), state) == ("batch_size", 2, 4)
    state = Position([1]).state_dict()
    assert refused(Position([1], rank=0, world=2), state) == ("world", 1, 2)


def test_a_stream_is_counted_with_as_many_workers() -> None:
    state = Position(DataLoader(Stream(), batch_size=2)).state_dict()
    Position(DataLoader(Stream(), batch_size=2)).load_state_dict(state)
    other = Position(DataLoader(Stream(), batch_size=2, num_workers=1))
    assert refused(other, state) == ("workers", 0, 1)


def test_an_iterator_is_gone_on_with_and_cannot_go_back() -> None:
    position = Position(iter(range(6)))
    assert [next(iter(position)) for _ in range(3)] == [0, 1, 2]
    start = Position(iter(range(6))).state_dict()
    assert list(position) == [3, 4, 5]
    later = Position(iter(range(6)))
    next(iter(later))
    later.load_state_dict(start)
    with pytest.raises(UsageError, check=has_code("iterator-cannot-go-back")):
        next(iter(later))


def test_data_that_became_shorter_is_found() -> None:
    position = Position(list(range(6)))
    batches = iter(position)
    for _ in range(4):
        next(batches)
    position.trained()
    later = Position(list(range(3)))
    later.load_state_dict(position.state_dict())
    with (
        pytest.warns(HeadwayWarning, match=r"\[batches-skipped\]"),
        pytest.raises(UsageError, check=has_code("data-too-short")) as raised,
    ):
        next(iter(later))
    assert raised.value.fields == {"batches": 3, "trained": 4}


def test_a_shuffle_that_cannot_be_repeated_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code("shuffle-not-repeatable")) as raised:
        Position(DataLoader(range(8), batch_size=2, shuffle=True))
    assert raised.value.fields["sampler"] == "RandomSampler"
