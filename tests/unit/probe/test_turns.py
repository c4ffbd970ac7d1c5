"""Ranks of a node that compile one program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headway.probe.hooks import turns as room
from headway.probe.hooks.turns import Turns, spare_the_early, worth_waiting


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_COMPILE", str(tmp_path))
    monkeypatch.setenv("HEADWAY_LAUNCH", "a")
    monkeypatch.setattr(room, "worth_waiting", lambda: True)
    monkeypatch.setattr(room.recorder, "begin", lambda *_, **__: 1)
    monkeypatch.setattr(room.recorder, "end", lambda *_, **__: None)
    return tmp_path


def waiting(turns: Turns, trigger: str = "DYNAMO", number: str = "0/0") -> threading.Thread:
    thread = threading.Thread(target=turns.begin, args=(trigger, number), daemon=True)
    thread.start()
    return thread


def test_the_others_wait_until_the_first_is_done() -> None:
    first, second = Turns(), Turns()
    first.begin("DYNAMO", "0/0")
    thread = waiting(second)
    time.sleep(0.1)
    assert thread.is_alive()
    first.end()
    thread.join(5)
    assert not thread.is_alive() and second.waited_s > 0.05
    third = Turns()
    third.begin("DYNAMO", "0/0")  # finds it done
    assert third.waited_s == 0


def test_other_compiles_and_other_lives_are_other_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Turns()
    taken.begin("DYNAMO", "0/0")
    for trigger, number, launch in (
        ("DYNAMO", "1/0", "a"),
        ("LAZY_BACKWARD", "0/0", "a"),
        ("CUDAGRAPH_RECORDING", "0/0", "a"),
        ("DYNAMO", "0/0", "a.1"),
    ):
        monkeypatch.setenv("HEADWAY_LAUNCH", launch)
        free = Turns()
        free.begin(trigger, number)
        assert free.waited_s == 0


def test_nobody_waits_for_the_dead(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    (folder / "turns").mkdir()
    (folder / "turns" / "a-DYNAMO-0.0-0").write_text(str(gone.pid))
    late = Turns()
    late.begin("DYNAMO", "0/0")
    assert late.waited_s < 5


def test_who_gained_nothing_waits_no_more() -> None:
    late = Turns()
    late.waited_s, late.begun = 10.0, time.monotonic() - 9.0
    late.end()
    assert not late.helps
    first = Turns()
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
    gpus["count"] = 8  # each makes code for its own
    assert not worth()
    gpus["count"] = 1  # CUDA_VISIBLE_DEVICES gives each rank one
    assert worth()
    torch._dynamo.config.enable_compiler_collectives = True
    assert not worth()


def test_the_early_rank_gets_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[timedelta] = []
    distributed: Any = ModuleType("torch.distributed")
    distributed.is_available = lambda: True
    distributed.is_initialized = lambda: True
    distributed.distributed_c10d = SimpleNamespace(_add_ephemeral_timeout_for_all_pgs=given.append)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    spare_the_early()
    assert given == [room.GRACE]
    distributed.is_initialized = lambda: False
    spare_the_early()
    assert len(given) == 1
