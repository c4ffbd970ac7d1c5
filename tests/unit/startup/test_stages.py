"""Stages that run in threads; tests/integration/test_start_stages.py has those in processes."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.startup import Stages
from headway.startup import stages as startup_stages
from headway.startup.stage_graph import StageError, StageFailed, StageLate
from headway.startup.stages import StageRunner
from tests.support import examples, has_code

pytestmark = pytest.mark.timeout(60)


def test_results_go_where_they_are_named() -> None:
    stages = Stages()

    @stages.stage(where="main")
    def device_init() -> str:
        return "gpu"

    @stages.stage()
    def preproc_creation(rows: int) -> list[int]:
        return list(range(rows))

    @stages.stage("model", needs=["preproc_creation"], where="main")
    def build(device_init: str, width: int = 4) -> tuple[str, int]:
        return device_init, width

    @stages.stage()
    def heavy(preproc_creation: list[int]) -> int:
        return sum(preproc_creation)

    results = stages.run(rows=5)
    assert results.model == ("gpu", 4)
    assert results["heavy"] == results.heavy == 10
    assert set(results.seconds) == {"device_init", "preproc_creation", "model", "heavy"}
    assert stages.run(rows=3, overlap=False).heavy == 3  # again, one by one
    with pytest.raises(AttributeError, match="nothing"):
        _ = results.nothing


def test_what_does_not_wait_for_each_other_is_there_at_the_same_time() -> None:
    stages = Stages()
    both = threading.Barrier(3, timeout=20)
    stages.add(lambda: both.wait(), "one")
    stages.add(lambda: both.wait(), "two")
    stages.add(lambda: both.wait(), "three", where="main")
    assert sorted(stages.run().values()) == [0, 1, 2]


def test_the_main_thread_keeps_its_order_whatever_is_ready_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, wait_for = threading.Event(), StageRunner._wait_for

    def run(runner: StageRunner, names: Sequence[str]) -> None:
        waiting.set()  # from now on `second` could begin, if it came first
        wait_for(runner, names)

    monkeypatch.setattr(StageRunner, "_wait_for", run)
    order: list[str] = []
    stages = Stages()
    stages.add(lambda: waiting.wait(20), "slow")

    def first(slow: bool) -> None:
        assert slow and threading.current_thread() is threading.main_thread()
        order.append("first")

    stages.add(first, where="main")
    stages.add(lambda: order.append("second"), "second", where="main")
    stages.run()
    assert order == ["first", "second"]


@pytest.mark.parametrize("where", ["thread", "main"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_stage_that_fails_is_named_and_nothing_new_begins(where: Any, overlap: bool) -> None:
    started: list[str] = []
    stages = Stages()

    @stages.stage(where=where)
    def broken() -> None:
        raise ValueError("no such table")

    stages.add(lambda broken: started.append("after"), "after")
    with pytest.raises(StageFailed) as error:
        stages.run(overlap=overlap)
    assert (error.value.code, error.value.stage) == ("stage-failed", "broken")
    assert "ValueError: no such table" in str(error.value)
    assert not started


@pytest.mark.parametrize("where", ["thread", "main"])
def test_a_stage_that_is_late_is_named(where: Any) -> None:
    stages = Stages()

    @stages.stage(where=where, deadline=0.1)
    def waiting() -> None:
        until, never = time.monotonic() + 30, threading.Event()
        while time.monotonic() < until:
            never.wait(0.01)

    began = time.monotonic()
    with pytest.raises(StageLate) as error:
        stages.run()
    assert (error.value.code, error.value.stage) == ("stage-late", "waiting")
    assert time.monotonic() - began < 20  # it does not wait for the thirty seconds


def test_a_stage_in_time_is_not_late() -> None:
    stages = Stages()
    stages.add(lambda: 1, "quick", deadline=30.0)
    stages.add(lambda quick: quick, "later", where="main")
    assert stages.run().later == 1


def test_interrupts_pass_through() -> None:
    stages = Stages()

    def interrupted() -> None:
        raise KeyboardInterrupt

    stages.add(interrupted, where="main")
    with pytest.raises(KeyboardInterrupt):
        stages.run()


@settings(derandomize=True, deadline=None, max_examples=examples(30))
@given(st.integers(2, 9), st.randoms(use_true_random=False), st.booleans())
def test_random_graphs_run_once_and_in_order(
    count: int, chance: random.Random, overlap: bool
) -> None:
    stages = Stages()
    finished: dict[str, float] = {}
    started: dict[str, float] = {}
    needs: dict[str, list[str]] = {}
    for number in range(count):
        name = f"s{number}"
        needs[name] = [other for other in needs if chance.random() < 0.3]

        def call(name: str = name) -> str:
            assert name not in started
            started[name] = time.monotonic()
            for _ in range(chance.randrange(20)):
                os.sched_yield()
            finished[name] = time.monotonic()
            return name

        stages.add(call, name, needs=needs[name], where=chance.choice(("thread", "main")))  # type: ignore[arg-type]
    assert dict(stages.run(overlap=overlap)) == {name: name for name in needs}
    for name, before in needs.items():
        assert all(finished[other] <= started[name] for other in before)


@pytest.mark.parametrize("differs", [False, True])
def test_ranks_compare_each_run_by_itself(monkeypatch: pytest.MonkeyPatch, differs: bool) -> None:
    stores: dict[str, bytes] = {}
    store = SimpleNamespace(
        set=lambda key, text: stores.update({key: text.encode()}), get=stores.get
    )
    distributed: Any = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: store),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)

    def rank(number: int, *names: str) -> None:
        monkeypatch.setattr(startup_stages, "_agreements", itertools.count(), raising=False)
        distributed.get_rank = lambda: number
        for name in names:
            stages = Stages()
            stages.add(lambda: None, name, where="main")
            stages.run()

    rank(0, "model", "data")
    if not differs:
        rank(1, "model", "data")
        return
    with pytest.raises(StageError, check=has_code("stages-differ-between-ranks")):
        rank(1, "model", "model")


def test_nothing_is_forked_once_cuda_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(_initialized=True, current_device=lambda: 0, set_device=lambda at: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    stages = Stages()
    stages.add(os.getpid, "heavy", where="process")
    with pytest.raises(StageError, check=has_code("stage-process-after-cuda")):
        stages.run()
    assert stages.run(overlap=False).heavy == os.getpid()
