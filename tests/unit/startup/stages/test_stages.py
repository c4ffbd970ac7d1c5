"""Stages that run."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.startup import Stages
from headway.startup.stages import StageError, StageFailed, StageLate

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

    @stages.stage(where="process")
    def heavy(preproc_creation: list[int]) -> tuple[int, int]:
        return sum(preproc_creation), os.getpid()

    results = stages.run(rows=5)
    assert results.model == ("gpu", 4)
    assert results["heavy"][0] == 10 and results.heavy[1] != os.getpid()
    assert set(results.seconds) == {"device_init", "preproc_creation", "model", "heavy"}
    assert stages.run(rows=3, overlap=False).heavy == (3, os.getpid())  # again, one by one
    with pytest.raises(AttributeError, match="there is no stage nothing"):
        _ = results.nothing


def test_what_does_not_wait_for_each_other_is_there_at_the_same_time() -> None:
    stages = Stages()
    both = threading.Barrier(3, timeout=20)
    stages.add(lambda: both.wait(), "one")
    stages.add(lambda: both.wait(), "two")
    stages.add(lambda: both.wait(), "three", where="main")
    assert sorted(stages.run().values()) == [0, 1, 2]


def test_the_main_thread_keeps_its_order_whatever_is_ready_first() -> None:
    seen: list[str] = []
    stages = Stages()
    stages.add(lambda: time.sleep(0.2), "slow")

    def first(slow: None) -> None:
        seen.append("first")
        assert threading.current_thread() is threading.main_thread()

    stages.add(first, where="main")
    stages.add(lambda: seen.append("second"), "second", where="main")
    stages.run()
    assert seen == ["first", "second"]


@pytest.mark.parametrize("where", ["thread", "process", "main"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_stage_that_fails_is_named_and_nothing_new_begins(where: Any, overlap: bool) -> None:
    begun: list[str] = []
    stages = Stages()

    @stages.stage(where=where)
    def broken() -> None:
        raise ValueError("no such table")

    stages.add(lambda broken: begun.append("after"), "after")
    with pytest.raises(StageFailed, match=r"the stage broken failed: ValueError: no such table"):
        stages.run(overlap=overlap)
    assert not begun


@pytest.mark.parametrize("where", ["thread", "process", "main"])
def test_a_stage_that_is_late_is_named(where: Any) -> None:
    stages = Stages()

    @stages.stage(where=where, deadline=0.2)
    def waiting() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.01)

    began = time.monotonic()
    with pytest.raises(StageLate, match=r"the stage waiting was not done in 0\.2 s"):
        stages.run()
    assert time.monotonic() - began < 20  # it does not wait for the thirty seconds


def test_a_stage_in_time_is_not_late() -> None:
    stages = Stages()
    stages.add(lambda: 1, "quick", deadline=30.0)
    stages.add(lambda quick: time.sleep(0.1), "later", where="main")
    assert stages.run().quick == 1


def test_a_process_that_is_killed() -> None:
    stages = Stages()
    stages.add(lambda: os.kill(os.getpid(), signal.SIGKILL), "killed", where="process")
    with pytest.raises(StageFailed, match="the stage killed failed: Lost: its process died"):
        stages.run()


def test_what_cannot_leave_a_process() -> None:
    stages = Stages()
    stages.add(lambda: threading.Lock(), "lock", where="process")
    with pytest.raises(StageFailed, match="cannot be handed over from a process"):
        stages.run()


def test_processes_are_gone_afterwards() -> None:
    stages = Stages()
    stages.add(lambda: os.getpid(), "one", where="process")
    stages.add(lambda one: 1 / 0, "two")
    stages.add(lambda two: None, "never", where="process")
    pids: list[int] = []
    stages.add(lambda one: pids.append(one), "seen")
    with pytest.raises(StageError):
        stages.run()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_ends_with_its_rank(tmp_path: Path) -> None:
    def heavy() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    def killed() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def rank() -> None:
        stages = Stages()
        stages.add(heavy, where="process")
        stages.add(killed)
        stages.run()

    process = multiprocessing.get_context("fork").Process(target=rank)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    worker = Path("/proc", (tmp_path / "pid").read_text(), "cmdline")
    until = time.monotonic() + 20
    while time.monotonic() < until and _read(worker):
        time.sleep(0.05)
    assert not _read(worker)


def _read(path: Path) -> bytes:
    """Nothing if it is not there, or of a process that is dead."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_interrupts_pass_through() -> None:
    stages = Stages()

    def interrupted() -> None:
        raise KeyboardInterrupt

    stages.add(interrupted, where="main")
    with pytest.raises(KeyboardInterrupt):
        stages.run()


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(2, 9), st.randoms(use_true_random=False), st.booleans())
def test_random_graphs_run_once_and_in_order(
    count: int, chance: random.Random, overlap: bool
) -> None:
    stages = Stages()
    ended: dict[str, float] = {}
    begun: dict[str, float] = {}
    needs: dict[str, list[str]] = {}
    for number in range(count):
        name = f"s{number}"
        needs[name] = [other for other in needs if chance.random() < 0.3]

        def call(name: str = name) -> str:
            assert name not in begun
            begun[name] = time.monotonic()
            time.sleep(chance.random() / 200)
            ended[name] = time.monotonic()
            return name

        stages.add(call, name, needs=needs[name], where=chance.choice(("thread", "main")))  # type: ignore[arg-type]
    assert dict(stages.run(overlap=overlap)) == {name: name for name in needs}
    for name, before in needs.items():
        assert all(ended[other] <= begun[name] for other in before)
