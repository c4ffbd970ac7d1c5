"""What is known of the rows of tables on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import examples, lazy

if TYPE_CHECKING:
    from headway.checkpoint.engine.rows import RowVersions


torch = lazy("torch")
ages_module = lazy("headway.checkpoint.engine.rows")

pytestmark = pytest.mark.timeout(60)
ROWS = 12


def made_ages() -> RowVersions:
    return ages_module.RowVersions(ROWS, torch.device("cpu"))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, ROWS - 1), max_size=5)), max_size=60))
def test_an_image_lacks_what_has_changed_since(happens: list[list[int] | None]) -> None:
    """None: an image is made; a list: these rows change."""
    ages = made_ages()
    made: list[tuple[int, set[int]]] = []  # of what time it is, and what has changed since
    for ids in happens:
        if ids is None:
            time = ages.new_version()
            assert time is not None
            made.append((time, set()))
        else:
            ages.mark_changed(torch.tensor(ids, dtype=torch.long))
            for _, changed in made:
                changed.update(ids)
    for time, changed in made:
        lacked = ages.changed_since(time, 2, 6)
        assert lacked is not None
        wanted = {row - 2 for row in changed if 2 <= row < 8}
        assert set(lacked.nonzero().squeeze(1).tolist()) == wanted


def test_after_many_saves_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages_module, "VERSION_DTYPE", torch.int8)
    ages, times = made_ages(), []
    for number in range(300):
        times.append(ages.new_version() or 0)
        ages.mark_changed(torch.tensor([number % ROWS]))
        last = ages.changed_since(times[-1], 0, ROWS)
        assert last is not None and last.nonzero().tolist() == [[number % ROWS]]
    assert ages.changed_since(times[0], 0, ROWS) is None
    known = [time for time in times if ages.changed_since(time, 0, ROWS) is not None]
    assert known == times[-len(known) :] and len(known) > 10
    for back, time in enumerate(reversed(known), 1):
        lacked = ages.changed_since(time, 0, ROWS)
        assert lacked is not None and int(lacked.sum()) == min(back, ROWS)


@pytest.mark.parametrize("fails", ["zeros", "cat"])
def test_without_room_nothing_is_known(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ages = made_ages()
    time = ages.new_version() if fails == "cat" else 1

    def none_left(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as full:
        full.setattr(torch, fails, none_left)
        if fails == "zeros":
            assert ages.new_version() is None
        for _ in range(ages_module.MAX_LISTS):  # more than wait to be noted
            ages.mark_changed(torch.tensor([1]))
    assert time is not None and ages.changed_since(time, 0, ROWS) is None
    ages.mark_changed(torch.tensor([1]))
    again = ages.new_version()
    assert again is not None
    ages.mark_changed(torch.tensor([3]))
    lacked = ages.changed_since(again, 0, ROWS)
    assert lacked is not None and lacked.nonzero().tolist() == [[3]]


def test_room_is_asked_for_once_and_not_for_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def none_left(*_: Any, **__: Any) -> Any:
        asked.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "zeros", none_left)
    ages = made_ages()
    for save in range(3):
        assert [ages.new_version() for _ in range(5)] == [None] * 5
        assert len(asked) == save + 1
        ages.mark_changed(torch.tensor([1]))


def test_without_room_to_tell_which_it_may_be_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    ages = made_ages()
    time = ages.new_version()
    assert time is not None
    ages.mark_changed(torch.tensor([3]))
    with monkeypatch.context() as full:
        full.setattr(torch.Tensor, "__gt__", none_left)
        assert ages.changed_since(time, 0, ROWS) is None
    lacked = ages.changed_since(time, 0, ROWS)
    assert lacked is not None and lacked.nonzero().tolist() == [[3]]


def test_many_ids_are_noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages_module, "MAX_IDS", 4)
    ages = made_ages()
    time = ages.new_version()
    same = torch.tensor([1, 2, 3])
    for _ in range(3):  # tables that are told of the same
        ages.mark_changed(same)
    assert ages._pending_lists == [same]
    many = torch.tensor([5, 6])
    ages.mark_changed(many)
    assert not ages._pending_lists
    ages.mark_changed(many)
    assert not ages._pending_lists
    assert time is not None
    lacked = ages.changed_since(time, 0, ROWS)
    assert lacked is not None and lacked.nonzero().squeeze(1).tolist() == [1, 2, 3, 5, 6]
