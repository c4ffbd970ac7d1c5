"""Ranks of a node that compile the same program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headway.probe import recorder as room
from headway.probe import step_clock
from headway.probe.hooks import compile_turns
from headway.probe.hooks.compile_turns import CompileQueue, worth_waiting
from tests.support import NO_PROCESS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_COMPILE", str(tmp_path))
    monkeypatch.setenv("HEADWAY_LAUNCH", "a")
    monkeypatch.setattr(compile_turns, "worth_waiting", lambda: True)
    monkeypatch.setattr(room.recorder, "begin", lambda *_, **__: 1)
    monkeypatch.setattr(room.recorder, "end", lambda *_, **__: None)
    return tmp_path


class Clock:
    """Replaces `time`: sleeping advances the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.at: dict[int, Callable[[], None]] = {}  # callbacks by the number of the sleep
        self.sleeps = 0
        monkeypatch.setattr(compile_turns, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self.at.get(self.sleeps, lambda: None)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_others_wait_until_the_first_is_done(clock: Clock) -> None:
    first, second = CompileQueue(), CompileQueue()
    first.begin("DYNAMO", "0/0")
    clock.at[10] = first.end
    second.begin("DYNAMO", "0/0")
    assert clock.sleeps == 10
    assert second.waited_s == pytest.approx(10 * compile_turns.POLL_S)
    third = CompileQueue()
    third.begin("DYNAMO", "0/0")  # already finished
    assert third.waited_s == 0


def test_other_compiles_and_other_lives_are_other_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = CompileQueue()
    queue.begin("DYNAMO", "0/0")
    for trigger, number, launch in (
        ("DYNAMO", "1/0", "a"),
        ("LAZY_BACKWARD", "0/0", "a"),
        ("CUDAGRAPH_RECORDING", "0/0", "a"),
        ("DYNAMO", "0/0", "a.1"),
    ):
        monkeypatch.setenv("HEADWAY_LAUNCH", launch)
        free = CompileQueue()
        free.begin(trigger, number)
        assert free.waited_s == 0


def test_nobody_waits_for_the_dead(folder: Path, clock: Clock) -> None:
    (folder / "turns").mkdir()
    (folder / "turns" / "a-DYNAMO-0.0-0").write_text(str(NO_PROCESS))
    late = CompileQueue()
    late.begin("DYNAMO", "0/0")
    assert late.waited_s == 0


def test_who_gained_nothing_waits_no_more(clock: Clock) -> None:
    late = CompileQueue()
    late.waited_s, late.compile_started = 10.0, clock.now - 9.0
    late.end()
    assert not late.waiting_helps
    first = CompileQueue()
    first.begin("DYNAMO", "0/0")
    late.begin("DYNAMO", "0/0")
    assert late.waited_s == 0


def test_where_waiting_is_worth_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = ModuleType("torch")
    torch._dynamo = SimpleNamespace(config=SimpleNamespace(enable_compiler_collectives=False))
    gpus = {"count": 0}
    torch.cuda = SimpleNamespace(
        is_available=lambda: gpus["count"] > 0, device_count=lambda: gpus["count"]
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    worth = worth_waiting
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert not worth()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # two cores each
    assert not worth()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert worth()
    gpus["count"] = 8  # each rank compiles for its own GPU
    assert not worth()
    gpus["count"] = 1  # CUDA_VISIBLE_DEVICES has one GPU per rank
    assert worth()
    torch._dynamo.config.enable_compiler_collectives = True
    assert not worth()


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Extensions of the timeouts of collectives, in seconds."""
    seconds: list[float] = []
    distributed: Any = ModuleType("torch.distributed")
    distributed.is_available = lambda: True
    distributed.is_initialized = lambda: True

    def add(timeout: timedelta) -> None:
        seconds.append(timeout.total_seconds())

    distributed.distributed_c10d = SimpleNamespace(_add_ephemeral_timeout_for_all_pgs=add)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(compile_turns, "worth_waiting", lambda: False)
    return seconds


def compiles(turns: CompileQueue, clock: Clock, seconds: float) -> None:
    turns.begin("DYNAMO", "0/0")
    clock.now += seconds
    turns.end()


def test_the_early_rank_gets_as_much_time_as_compiles_take(
    clock: Clock, extensions: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = CompileQueue()
    compiles(turns, clock, 10.0)
    assert extensions == [pytest.approx(40.0)]  # the four ranks of the node, one after the other
    for _ in range(1000):  # recompiles with a cache hit
        compiles(turns, clock, 0.01)
    assert len(extensions) == 1
    compiles(turns, clock, 1000.0)
    compiles(turns, clock, 1000.0)
    assert sum(extensions) == pytest.approx(compile_turns.MAX_GRANT_S)
    monkeypatch.setattr(step_clock, "steps", 7)
    compiles(turns, clock, 5.0)
    assert sum(extensions) == pytest.approx(compile_turns.MAX_GRANT_S + 20.0)


def test_without_a_process_group_there_is_no_timeout(clock: Clock, extensions: list[float]) -> None:
    sys.modules["torch.distributed"].is_initialized = lambda: False  # type: ignore[attr-defined]
    compiles(CompileQueue(), clock, 10.0)
    assert extensions == []
