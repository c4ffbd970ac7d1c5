"""When silence is a hang, and when it is not, with a clock set by the test.

With real processes: tests/integration/test_hang.py.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from headway.journal.pulse import Pulse
from headway.launch import processes
from headway.launch.hang import activity, detector, stacks
from headway.launch.hang.detector import Hang, HangDetector
from headway.launch.hang.limits import FLOOR_S, STOPPED_S, UNSEEN_S, StepTimingStats
from headway.launch.rank_tail import RankTail
from tests.support import NO_PROCESS

STUCK = 'Current thread 0x1 (most recent call first):\n  File "t.py", line 5 in stuck'


class Rank(RankTail):
    """A rank without a process, so that its activity is unknown."""

    def __init__(self, number: int) -> None:
        super().__init__("", NO_PROCESS + number)
        self.rank, self.steps = number, 100

    def pulse(self) -> Pulse:
        return Pulse(steps=self.steps, last_step=1)


class Scene:
    """Two ranks that are watched, and a clock set by the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.members = [Rank(0), Rank(1)]
        self.learned = StepTimingStats()
        for _ in range(50):
            self.learned.add_gap(0.01)
        self.found: list[Hang] = []
        self.watch = HangDetector(str(folder), self.learned, self.found.append)
        self.time = 1_000_000_000
        monkeypatch.setattr(detector, "now", lambda: self.time)
        self.texts = lambda process: STUCK
        monkeypatch.setattr(
            stacks, "dump", lambda processes: {p.pid: self.texts(p) for p in processes}
        )
        table = {rank.pid: processes.ProcInfo(1, 1, "S") for rank in self.members}
        monkeypatch.setattr(processes, "process_table", lambda: table)

    def ranks(self) -> list[RankTail]:
        return list(self.members)

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(int(seconds / step)):
            self.time += int(step * 1e9)
            self.watch.round(self)  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_silence_is_told_once_with_all_stacks(scene: Scene) -> None:
    scene.pass_time(FLOOR_S - 1)
    assert not scene.found
    scene.pass_time(90)
    (hang,) = scene.found
    assert hang.rank is None  # both are at the same place
    assert "t.py:5 in stuck" in hang.evidence
    assert hang.silent_s < FLOOR_S + 5
    assert [path.read_text() for path in scene.folder.iterdir()] == [STUCK, STUCK]


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
        rank.open_spans[1] = {"name": kind, "t": 0}
    scene.pass_time(UNSEEN_S - 5, step=0.5)
    assert not scene.found
    scene.pass_time(30, step=0.5)
    assert len(scene.found) == 1


def test_waiting_for_data_is_given_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rank, "pulse", lambda self: Pulse(steps=self.steps, waiting=5))
    scene.pass_time(UNSEEN_S - 5, step=0.5)
    assert not scene.found


def test_ranks_that_wait_for_a_save_of_another_are_well(scene: Scene) -> None:
    scene.members[0].open_spans[1] = {"name": "checkpoint_save", "t": 0}
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
    votes: list[bool] = []
    others_late = False

    def all_late(late: bool) -> bool:
        votes.append(late)
        return late and others_late

    scene.watch.vote_hang = all_late
    scene.pass_time(FLOOR_S + 30)
    assert not scene.found
    assert votes[-1]
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
    scene.pass_time(detector.BUSY_FACTOR * FLOOR_S - 3, step=0.5)
    assert not scene.found
    scene.pass_time(10)
    assert len(scene.found) == 1


@pytest.mark.parametrize("moves", [False, True])
def test_with_a_gpu_only_bytes_are_work(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """A wait for the device takes CPU time; an upload moves bytes, and may be one line of code."""
    monkeypatch.setattr(activity, "on_device", lambda pid: True)
    monkeypatch.setattr(activity, "busy", lambda earlier, later: True)
    monkeypatch.setattr(activity, "moves", lambda earlier, later: moves)
    factor = detector.BUSY_FACTOR if moves else detector.DEVICE_FACTOR
    scene.pass_time(factor * FLOOR_S - 3, step=0.5)
    assert not scene.found
    scene.pass_time(10)
    assert len(scene.found) == 1


def test_a_rank_that_has_run_another_program_is_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.members[1].steps = 200
    monkeypatch.setattr(activity, "replaced", lambda pid, page: pid == scene.members[0].pid)
    scene.pass_time(FLOOR_S + 30)
    assert [hang.rank for hang in scene.found] == [1]


def test_who_moves_is_given_longer(scene: Scene) -> None:
    lines = count()
    scene.texts = lambda process: STUCK.replace("line 5", f"line {next(lines)}")
    scene.pass_time(5 * FLOOR_S, step=0.5)
    assert not scene.found


def test_a_stopped_rank_is_told_at_the_limit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    halted = scene.members[1].pid
    monkeypatch.setattr(activity, "stopped", lambda pid: pid == halted)
    scene.pass_time(STOPPED_S + 1)
    (hang,) = scene.found
    assert hang.rank == 1
    assert "SIGSTOP" in hang.evidence
    texts = [path.read_text() for path in sorted(scene.folder.iterdir())]
    assert texts[0] == STUCK != texts[1]


def test_a_rank_that_died_is_another_matter(scene: Scene) -> None:
    scene.members[1].died, scene.members[1].code = 5, -9
    scene.pass_time(2 * FLOOR_S)
    assert not scene.found


def test_ranks_that_are_done_do_not_end_the_watch(scene: Scene) -> None:
    scene.members[0].exited_cleanly, scene.members[0].died, scene.members[0].code = True, 5, 0
    scene.pass_time(FLOOR_S + 30)
    assert [hang.rank for hang in scene.found] == [1]


def test_a_rank_that_never_steps_is_no_trainer(scene: Scene) -> None:
    scene.members[1].steps = 0
    for _ in range(10):
        scene.members[0].steps += 1
        scene.pass_time(60)
    assert not scene.found


def test_a_person_at_a_prompt_is_left_alone(scene: Scene) -> None:
    scene.texts = lambda process: STUCK.replace("t.py", "/lib/pdb.py")
    scene.pass_time(10 * FLOOR_S, step=0.5)
    assert not scene.found


def test_time_that_the_launcher_slept_does_not_count(scene: Scene) -> None:
    scene.pass_time(1)
    scene.time += int(3600e9)
    scene.pass_time(FLOOR_S - 3)
    assert not scene.found
