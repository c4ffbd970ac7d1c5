"""The hot path alone, on a fake clock, writing to a list."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway.journal import pulse
from headway.probe import step_clock

SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(step_clock, "monotonic_ns", clock)
    lists = ("on_first_step", "on_step", "on_read", "on_wait", "on_evaluation", "before_flush")
    for name in lists:
        monkeypatch.setattr(step_clock, name, [])
    step_clock.reset_after_fork()
    yield clock
    step_clock.reset_after_fork()


@pytest.fixture
def written(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def emit(ev: str, t: int, **fields: Any) -> None:
        lines.append({"ev": ev, "t": t, **fields})

    monkeypatch.setattr(step_clock, "_emit", emit)
    monkeypatch.setattr(step_clock, "_open", lambda: None)
    return lines


def train(clock: Clock, count: int, each: float, optimizer: object = "adam") -> None:
    for _ in range(count):
        clock.pass_(each)
        step_clock.optimizer_stepped(optimizer)


def test_the_first_step_is_written_at_once_and_then_one_line_a_second(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    train(clock, 1, 0.1)
    assert [(line["first"], line["last"], line["t"]) for line in written] == [(1, 1, 0)]
    train(clock, 35, 0.1)
    assert [(line["first"], line["last"]) for line in written[1:]] == [(2, 11), (12, 21), (22, 31)]
    assert all(line["end"] - line["t"] == SECOND for line in written[1:])


def test_the_page_has_every_step(clock: Clock, written: list[dict[str, Any]]) -> None:
    train(clock, 5, 0.1)
    assert step_clock.cells[pulse.STEPS] == 5
    assert step_clock.cells[pulse.LAST_STEP] == clock.now
    assert step_clock.cells[pulse.WINDOW] == 1
    step_clock.flush()
    assert step_clock.cells[pulse.WINDOW] == 5
    assert (written[-1]["first"], written[-1]["last"]) == (2, 5)


def test_short_waits_are_summed_and_long_ones_are_spans(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    def source() -> Iterator[int]:
        for seconds in (2.0, 0.03, 0.02, 0.5):
            clock.pass_(seconds)
            yield 0

    for _ in step_clock.track(source()):
        train(clock, 1, 0.1)
    step_clock.flush()
    spans = [(line["end"] - line["t"]) / SECOND for line in written if line["ev"] == "span"]
    assert spans[:2] == [2.0, 0.5]
    assert sum(line.get("wait", 0) for line in written) == round(0.05 * SECOND)
    assert sum(line.get("batches", 0) for line in written) == 4


def test_a_wait_in_progress_stands_in_the_page(clock: Clock, written: list[Any]) -> None:
    waiting_since = []

    def source() -> Iterator[int]:
        waiting_since.append(step_clock.cells[pulse.WAITING])
        yield 0

    for _ in step_clock.track(source()):
        assert step_clock.cells[pulse.WAITING] == 0
    assert waiting_since == [clock.now]


def test_a_loader_inside_a_loader_is_one_wait(clock: Clock, written: list[dict[str, Any]]) -> None:
    def inner() -> Iterator[int]:
        clock.pass_(1)
        yield 0

    for _ in step_clock.track(step_clock.track(inner())):
        pass
    waits = [line for line in written if line["ev"] == "span" and line["end"] > line["t"]]
    assert len(waits) == 1


def test_a_read_that_fails_is_no_batch(clock: Clock, written: list[dict[str, Any]]) -> None:
    """Neither for training nor for an evaluation, whose batches are subtracted again."""
    train(clock, 1, 0.1)

    def evaluated(start: int, end: int, tail: Any, ended: bool) -> bool:
        if not ended:
            step_clock.not_for_training()
        return True

    step_clock.on_read.append(evaluated)
    step_clock.force_slow_path()
    source = iter([1, None, 2])
    fetch = step_clock.timed_fetch(lambda source: next(source) / 1)
    for _ in range(3):
        with contextlib.suppress(TypeError):
            fetch(source)
    train(clock, 1, 0.1)
    assert [line["batches"] for line in written] == [0, 0]


def test_told_steps_end_the_counting_of_optimizers(clock: Clock, written: list[Any]) -> None:
    train(clock, 2, 0.1)
    step_clock.count_step()
    train(clock, 50, 0.1)
    assert step_clock.steps == 3


def test_after_a_fork_the_child_counts_for_itself(clock: Clock, written: list[Any]) -> None:
    train(clock, 3, 0.1)
    parent = step_clock.cells
    step_clock.reset_after_fork()
    train(clock, 1, 0.1)
    assert parent[pulse.STEPS] == 3
    assert step_clock.cells[pulse.STEPS] == 1


def read(clock: Clock, count: int, each: float, steps: bool = False) -> None:
    """A whole loader, with or without a step after each batch."""

    def source() -> Iterator[int]:
        for _ in range(count):
            clock.pass_(each)
            yield 0

    for _ in step_clock.track(source()):
        if steps:
            train(clock, 1, 0.01)


def spans(written: list[dict[str, Any]], name: str) -> list[float]:
    """The durations of the spans of a name, in seconds."""
    return [
        (line["end"] - line["t"]) / SECOND
        for line in written
        if line["ev"] == "span" and line["name"] == name
    ]


def waited(written: list[dict[str, Any]]) -> float:
    """All short waits, in seconds."""
    return float(sum(line.get("wait", 0) for line in written)) / SECOND


def test_what_is_read_after_the_last_step_is_in_no_line(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    def source() -> Iterator[int]:
        while True:
            clock.pass_(0.02)
            yield 0

    loader = step_clock.track(source())
    for _ in range(3):
        next(loader)
        train(clock, 1, 0.01)
    for _ in range(50):
        next(loader)
    step_clock.flush()
    last = written[-1]
    assert last["wait"] <= last["end"] - last["t"]
    assert (last["wait"], last["batches"]) == (round(0.04 * SECOND), 2)
    train(clock, 1, 0.01)
    step_clock.flush()
    assert (written[-1]["wait"], written[-1]["batches"]) == (SECOND, 50)


def test_a_loader_that_is_read_between_two_steps_is_an_evaluation(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    """An evaluation that neither calls `eval()` nor disables gradients."""

    def source() -> Iterator[int]:
        for _ in range(6):
            clock.pass_(0.02)
            yield 0

    for number, _ in enumerate(step_clock.track(source())):
        train(clock, 1, 0.01)
        if number == 2:
            read(clock, 50, 0.02)
            read(clock, 2, 0.3)  # an evaluation with waits of 0.3 s
    step_clock.flush()
    assert spans(written, "evaluation") == [pytest.approx(1.0), pytest.approx(0.6)]
    assert spans(written, "data_wait") == [0.02]  # before the first step
    assert waited(written) == pytest.approx(0.1)
    assert sum(line.get("batches", 0) for line in written) == 6


def test_a_loader_that_is_read_after_the_last_step_is_an_evaluation(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    read(clock, 5, 0.02, steps=True)
    read(clock, 50, 0.02)
    step_clock.flush()
    assert spans(written, "evaluation") == [pytest.approx(1.0)]
    assert waited(written) == pytest.approx(0.08)


def test_gradients_may_be_accumulated_over_all_of_a_loader(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    for _ in range(3):
        read(clock, 10, 0.02)
        train(clock, 1, 0.01)
    step_clock.flush()
    assert spans(written, "evaluation") == []
    assert waited(written) == pytest.approx(0.4)  # the first ten were before the first step
    assert sum(line.get("batches", 0) for line in written) == 30


def test_gradients_may_be_accumulated_over_several_loaders(
    clock: Clock, written: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = 0

    def gradients() -> Callable[[], bool]:
        before = backwards
        return lambda: backwards > before

    monkeypatch.setattr(step_clock, "gradients", gradients)

    def source(count: int) -> Iterator[int]:
        for _ in range(count):
            clock.pass_(0.02)
            yield 0

    train(clock, 1, 0.01)
    for count in (1, 3, 2):
        for _ in step_clock.track(source(count)):
            clock.pass_(0.05)
            backwards += 1
    next(step_clock.track(source(1)))
    backwards += 1
    read(clock, 5, 0.02)  # an evaluation
    next(step_clock.track(source(1)))
    train(clock, 1, 0.01)
    step_clock.flush()
    assert spans(written, "evaluation") == [pytest.approx(0.1)]
    assert waited(written) == pytest.approx(8 * 0.02)
    assert sum(line.get("batches", 0) for line in written) == 8


def test_a_loop_without_a_loader_evaluates_what_it_reads(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    train(clock, 3, 0.01)
    read(clock, 5, 0.02)
    read(clock, 3, 0.02)
    train(clock, 3, 0.01)
    read(clock, 5, 0.02)
    train(clock, 1, 0.01)
    step_clock.flush()
    assert spans(written, "evaluation") == pytest.approx([0.1, 0.06, 0.1])
    assert waited(written) == 0
    assert sum(line.get("batches", 0) for line in written) == 0


def test_two_loaders_that_are_read_in_turn_are_both_for_training(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    def source() -> Iterator[int]:
        for _ in range(5):
            clock.pass_(0.02)
            yield 0

    for _ in zip(step_clock.track(source()), step_clock.track(source()), strict=True):
        train(clock, 1, 0.01)
    step_clock.flush()
    assert spans(written, "evaluation") == []
    assert waited(written) == pytest.approx(8 * 0.02)


def test_a_known_loader_stays_on_the_fast_path(
    clock: Clock, written: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: list[Any] = []
    monkeypatch.setattr(step_clock, "_slow_wait", lambda *wait: slow.append(wait))
    steps = step_clock._slow_step
    monkeypatch.setattr(step_clock, "_slow_step", lambda t: (slow.append(t), steps(t)))

    def source() -> Iterator[int]:
        yield from range(10)

    loader = step_clock.track(source())
    for _ in range(3):
        next(loader)
        train(clock, 1, 0.01)
    assert len(slow) == 4  # three reads, as no gradients are written here, and the first step
