"""When silence is a hang, and when it is not: real processes, made-up time."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.journal.pulse import Pulse
from headway.launch.follow import Followed
from headway.launch.hang import Hang, HangWatch, Learned, activity, notice, stacks
from headway.launch.hang.limits import FLOOR_S, STOPPED_S, UNSEEN_S

SLEEPER = """
import sys, time
from headway.probe import stacks
stacks.install(lambda ev, **told: print(told["signal"], told["fd"], flush=True))
def stuck(): time.sleep(600)
stuck()
"""


class Rank(Followed):
    """A rank in a real process that sleeps; its pulse is made up."""

    def __init__(self, number: int) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
        super().__init__("", self.child.pid)
        assert self.child.stdout is not None
        told = self.child.stdout.readline().split()
        self.stacks = (int(told[0]), int(told[1]))
        self.rank, self.steps = number, 100

    def pulse(self) -> Pulse:
        return Pulse(steps=self.steps, last_step=1)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


class Scene:
    """Two ranks under the watch, and a clock that runs as fast as we like."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.members = [Rank(0), Rank(1)]
        self.learned = Learned()
        for _ in range(50):
            self.learned.gap(0.01)
        self.found: list[Hang] = []
        self.watch = HangWatch(str(folder), self.learned, self.found.append)
        self.time = 1_000_000_000
        monkeypatch.setattr(notice, "now", lambda: self.time)

    def ranks(self) -> list[Followed]:
        return list(self.members)

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(int(seconds / step)):
            self.time += int(step * 1e9)
            self.watch.round(self)  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    for rank in made.members:
        rank.end()


def test_silence_is_told_once_with_all_stacks(scene: Scene) -> None:
    scene.pass_time(FLOOR_S - 1)
    assert not scene.found
    scene.pass_time(90)
    (hang,) = scene.found
    assert hang.rank is None  # both stand at the same place
    assert "no step for" in hang.evidence
    assert hang.quiet_s < FLOOR_S + 5
    texts = [path.read_text() for path in sorted(scene.folder.iterdir())]
    assert len(texts) == 2
    assert all(" in stuck" in text for text in texts)


def test_the_rank_with_fewer_steps_is_behind(scene: Scene) -> None:
    scene.members[1].steps = 99
    scene.pass_time(FLOOR_S + 30)
    assert [hang.rank for hang in scene.found] == [1]


def test_a_job_that_steps_is_well(scene: Scene) -> None:
    for _ in range(10):
        for rank in scene.members:
            rank.steps += 1
        scene.pass_time(FLOOR_S / 2)
    assert not scene.found


@pytest.mark.parametrize("kind", ["checkpoint_save", "compile", "evaluation", "publish"])
def test_the_first_of_a_long_thing_is_given_time(scene: Scene, kind: str) -> None:
    for rank in scene.members:
        rank.open[1] = {"name": kind, "t": 0}
    scene.pass_time(UNSEEN_S - 5, step=0.5)
    assert not scene.found
    scene.pass_time(30, step=0.5)
    assert len(scene.found) == 1


def test_waiting_for_data_is_given_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rank, "pulse", lambda self: Pulse(steps=self.steps, waiting=5))
    scene.pass_time(UNSEEN_S - 5, step=0.5)
    assert not scene.found


def test_ranks_that_wait_for_a_save_of_another_are_well(scene: Scene) -> None:
    scene.members[0].open[1] = {"name": "checkpoint_save", "t": 0}
    scene.pass_time(UNSEEN_S - 5, step=0.5)
    assert not scene.found
    scene.pass_time(30, step=0.5)
    assert len(scene.found) == 1


def test_a_rank_that_nobody_waits_for_is_told_alone(scene: Scene) -> None:
    for _ in range(int(FLOOR_S) + 30):
        scene.members[0].steps += 1
        scene.pass_time(1)
    assert [hang.rank for hang in scene.found] == [1]


def test_a_node_that_is_well_keeps_the_others_waiting(scene: Scene) -> None:
    asked: list[bool] = []
    others_late = False

    def all_late(late: bool) -> bool:
        asked.append(late)
        return late and others_late

    scene.watch.all_late = all_late
    scene.pass_time(FLOOR_S + 30)
    assert not scene.found
    assert asked[-1]
    others_late = True
    scene.pass_time(10)
    assert len(scene.found) == 1


def test_before_the_first_step_nothing_is_known(scene: Scene) -> None:
    for rank in scene.members:
        rank.steps = 0
    scene.pass_time(290, step=0.5)
    assert not scene.found
    scene.pass_time(30, step=0.5)
    assert len(scene.found) == 1


def test_who_works_is_given_longer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "busy", lambda earlier, later: True)
    scene.pass_time(notice.BUSY_FACTOR * FLOOR_S - 3, step=0.5)
    assert not scene.found
    scene.pass_time(10)
    assert len(scene.found) == 1


def test_who_moves_is_given_longer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(range(10_000))

    def moving(process: Any, limit_s: float = 1.0) -> str:
        return (
            f'Current thread 0x1 (most recent call first):\n  File "t.py", line {next(lines)} in f'
        )

    monkeypatch.setattr(stacks, "dump", moving)
    scene.pass_time(5 * FLOOR_S, step=0.5)
    assert not scene.found


def test_a_stopped_rank_is_told_at_the_limit(scene: Scene) -> None:
    os.kill(scene.members[1].pid, signal.SIGSTOP)
    while not activity.stopped(scene.members[1].pid):
        time.sleep(0.01)
    scene.pass_time(STOPPED_S + 1)
    (hang,) = scene.found
    assert hang.rank == 1
    assert "SIGSTOP" in hang.evidence
    texts = [path.read_text() for path in sorted(scene.folder.iterdir())]
    assert " in stuck" in texts[0]
    assert "state T" in texts[1]


def test_a_rank_that_died_is_another_matter(scene: Scene) -> None:
    scene.members[1].died, scene.members[1].code = 5, -9
    scene.pass_time(2 * FLOOR_S)
    assert not scene.found


def test_ranks_that_are_done_do_not_end_the_watch(scene: Scene) -> None:
    scene.members[0].left, scene.members[0].died, scene.members[0].code = True, 5, 0
    scene.pass_time(FLOOR_S + 30)
    assert [hang.rank for hang in scene.found] == [1]


def test_a_rank_that_never_steps_is_no_trainer(scene: Scene) -> None:
    scene.members[1].steps = 0
    for _ in range(10):
        scene.members[0].steps += 1
        scene.pass_time(60)
    assert not scene.found


def test_a_person_at_a_prompt_is_left_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'Current thread 0x1 (most recent call first):\n  File "/lib/pdb.py", line 5 in cmdloop'
    monkeypatch.setattr(stacks, "dump", lambda process, limit_s=1.0: text)
    scene.pass_time(10 * FLOOR_S, step=0.5)
    assert not scene.found


def test_time_that_the_launcher_slept_does_not_count(scene: Scene) -> None:
    scene.pass_time(1)
    scene.time += int(3600e9)
    scene.pass_time(FLOOR_S - 3)
    assert not scene.found


def test_a_debugger_is_seen() -> None:
    program = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        until = time.monotonic() + 20
        while not activity.traced(child.pid) and time.monotonic() < until:
            time.sleep(0.01)
        assert activity.traced(child.pid)
        assert not activity.stopped(child.pid)
        child.kill()


def test_a_prompt_is_seen() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", "input('(Pdb) ')"], stdin=theirs) as child:
        until = time.monotonic() + 20
        while not activity.traced(child.pid) and time.monotonic() < until:
            time.sleep(0.01)
        if os.geteuid() == 0 or os.path.exists(f"/proc/{child.pid}/syscall"):
            assert activity.traced(child.pid)
        child.kill()
    os.close(ours)
    os.close(theirs)


def test_work_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        before = activity.sample(child.pid, 0.0)
        time.sleep(0.5)
        after = activity.sample(child.pid, 0.5)
        child.kill()
    assert activity.busy(before, after)
    with subprocess.Popen(["sleep", "60"]) as child:
        time.sleep(0.2)
        before = activity.sample(child.pid, 0.0)
        time.sleep(0.3)
        after = activity.sample(child.pid, 0.3)
        child.kill()
    assert not activity.busy(before, after)
