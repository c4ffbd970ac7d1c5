"""The hot path by itself, on a fake clock, writing to a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headway.journal import pulse
from headway.probe import pace

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
    made = Clock()
    monkeypatch.setattr(pace, "monotonic_ns", made)
    for name in ("on_first_step", "on_step", "on_wait", "before_flush"):
        monkeypatch.setattr(pace, name, [])
    pace.forget()
    yield made
    pace.forget()


@pytest.fixture
def written(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def emit(ev: str, t: int, **fields: Any) -> None:
        lines.append({"ev": ev, "t": t, **fields})

    monkeypatch.setattr(pace, "_emit", emit)
    monkeypatch.setattr(pace, "_open", lambda: None)
    return lines


def train(clock: Clock, count: int, each: float, optimizer: object = "adam") -> None:
    for _ in range(count):
        clock.pass_(each)
        pace.optimizer_stepped(optimizer)


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
    assert pace.cells[pulse.STEPS] == 5
    assert pace.cells[pulse.LAST_STEP] == clock.now
    assert pace.cells[pulse.WINDOW] == 1
    pace.flush()
    assert pace.cells[pulse.WINDOW] == 5
    assert (written[-1]["first"], written[-1]["last"]) == (2, 5)


def test_short_waits_are_summed_and_long_ones_are_spans(
    clock: Clock, written: list[dict[str, Any]]
) -> None:
    def source() -> Iterator[int]:
        for seconds in (2.0, 0.03, 0.02, 0.5):
            clock.pass_(seconds)
            yield 0

    for _ in pace.track(source()):
        train(clock, 1, 0.1)
    pace.flush()
    spans = [(line["end"] - line["t"]) / SECOND for line in written if line["ev"] == "span"]
    assert spans[:2] == [2.0, 0.5]
    assert sum(line.get("wait", 0) for line in written) == round(0.05 * SECOND)
    assert sum(line.get("batches", 0) for line in written) == 4


def test_a_wait_in_progress_stands_in_the_page(clock: Clock, written: list[Any]) -> None:
    seen = []

    def source() -> Iterator[int]:
        seen.append(pace.cells[pulse.WAITING])
        yield 0

    for _ in pace.track(source()):
        assert pace.cells[pulse.WAITING] == 0
    assert seen == [clock.now]


def test_a_loader_inside_a_loader_is_one_wait(clock: Clock, written: list[dict[str, Any]]) -> None:
    def inner() -> Iterator[int]:
        clock.pass_(1)
        yield 0

    for _ in pace.track(pace.track(inner())):
        pass
    waits = [line for line in written if line["ev"] == "span" and line["end"] > line["t"]]
    assert len(waits) == 1


def test_told_steps_end_the_counting_of_optimizers(clock: Clock, written: list[Any]) -> None:
    train(clock, 2, 0.1)
    pace.told_step()
    train(clock, 50, 0.1)
    assert pace.steps == 3


def test_after_a_fork_the_child_counts_for_itself(clock: Clock, written: list[Any]) -> None:
    train(clock, 3, 0.1)
    parent = pace.cells
    pace.forget()
    train(clock, 1, 0.1)
    assert parent[pulse.STEPS] == 3
    assert pace.cells[pulse.STEPS] == 1
