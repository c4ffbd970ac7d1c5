"""Supervisors of several nodes decide together."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from headway.launch import coordination
from headway.launch.coordination import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, Heartbeat, NodeCoordinator
from headway.launch.run_folder import prepare
from headway.launch.supervisor import Options, Supervisor
from tests.support import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_alone_it_decides_at_once(tmp_path: Path) -> None:
    alone = NodeCoordinator(tmp_path, "abc", "node-a", 1)
    decide_calls: list[Any] = []

    def decide(reports: Any, lost: Any) -> dict[str, Any]:
        decide_calls.append((reports, lost))
        return {"action": "restart"}

    assert alone.attempt() == 0
    assert alone.decide_together(0, {"done": False, "x": 1}, decide) == {"action": "restart"}
    assert decide_calls == [({"node-a-1": {"done": False, "x": 1}}, set())]
    assert alone.attempt() == 1
    alone.leave()
    assert list(tmp_path.iterdir()) == []


def test_many_follow_one_decision(tmp_path: Path) -> None:
    members = [NodeCoordinator(tmp_path, "abc", f"node-{n}", n) for n in range(8)]
    decided: list[int] = []
    followed: dict[int, Any] = {}

    def conclude(n: int) -> None:
        def decide(reports: Any, lost: Any) -> dict[str, Any]:
            decided.append(n)
            assert len(reports) == 8
            assert not lost
            return {"by": n}

        followed[n] = members[n].decide_together(0, {"done": n % 2 == 0, "n": n}, decide)

    threads = [threading.Thread(target=conclude, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({str(agreed) for agreed in followed.values()}) == 1
    assert len(followed) == 8
    assert followed[0]["by"] in decided
    for member in members:
        member.leave()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_elsewhere_is_seen(tmp_path: Path) -> None:
    here, there = (NodeCoordinator(tmp_path, "abc", host, 1) for host in ("here", "there"))
    names = lambda: os.listdir(tmp_path)  # noqa: E731
    assert not here.failed_on_other_node(0, names())
    there._write(there._path("ended", 0, there.me), {"done": True})
    assert not here.failed_on_other_node(0, names())
    there._write(there._path("ended", 0, there.me), {"done": False})
    assert here.failed_on_other_node(0, names())
    assert not here.failed_on_other_node(1, names())
    assert not there.failed_on_other_node(0, names())


def test_all_nodes_must_be_late(tmp_path: Path) -> None:
    clock = Clock()
    here, there = (NodeCoordinator(tmp_path, "abc", host, 1, clock) for host in ("here", "there"))
    names = lambda: os.listdir(tmp_path)  # noqa: E731
    assert not here.vote_hang(0, True, names())
    assert there.vote_hang(0, True, names())
    assert here.vote_hang(0, True, names())
    assert not there.vote_hang(0, False, names())
    assert not here.vote_hang(0, True, names())
    assert not here.vote_hang(1, True, names())
    for _ in range(int(HEARTBEAT_TIMEOUT_S / HEARTBEAT_S)):  # the file's age counts as silence too
        assert not here.vote_hang(0, True, names())
        clock.now += HEARTBEAT_S
    clock.now += HEARTBEAT_S
    assert here.vote_hang(0, True, names())  # it has ended, and is not waited for
    here.leave()
    there.leave()
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    here, there = (NodeCoordinator(tmp_path, "abc", host, 1) for host in ("here", "there"))
    os.utime(there._member, (1, 1))
    outcomes: list[Any] = []

    def decide(reports: Any, lost: Any) -> dict[str, Any]:
        outcomes.append((set(reports), lost))
        return {"action": "swap"}

    here.decide_together(0, {"done": False}, decide)
    assert outcomes == [({"here-1"}, {"there-1"})]


def test_silence_is_what_this_node_has_seen(tmp_path: Path) -> None:
    """Neither a clock that is set nor a pause of all nodes makes a member look lost."""
    clock = Clock()
    here, there = (NodeCoordinator(tmp_path, "abc", host, 1, clock) for host in ("here", "there"))
    names = os.listdir(tmp_path)
    assert not here.lost_neighbor(names)
    os.utime(there._member, (1, 1))  # the file system's clock was set back
    assert not here.lost_neighbor(names)
    clock.now += 3600  # all nodes were paused for an hour
    assert not here.lost_neighbor(names)
    there.beat()
    clock.now += HEARTBEAT_S
    assert not here.lost_neighbor(names)
    round_number = 0
    while not here.lost_neighbor(names):
        clock.now += HEARTBEAT_S
        round_number += 1
    assert round_number == int(HEARTBEAT_TIMEOUT_S / HEARTBEAT_S) + 1


def test_each_node_looks_after_one_other(tmp_path: Path) -> None:
    members = [NodeCoordinator(tmp_path, "abc", f"node-{n}", n) for n in range(5)]
    names = os.listdir(tmp_path)
    for lost in ([1], [1, 2], [0, 4], [0, 1, 2, 3]):
        for member in members:
            member.beat()
            member._sightings.clear()
        for n in lost:
            os.utime(members[n]._member, (1, 1))
        well = [member for n, member in enumerate(members) if n not in lost]
        outcomes = set().union(*(member.lost_neighbor(names) for member in well))
        assert outcomes and outcomes <= {members[n].me for n in lost}
        assert [len(member._sightings) for member in well] == [1] * len(well)


def test_a_launcher_beats_from_its_begin_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while nothing is watched: before the command is started, and between two attempts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(coordination, "HEARTBEAT_S", 0.001)
    target = prepare(["false"], output="run", name=None)
    beaten = []

    def waits(self: Supervisor, *_: Any) -> None:
        assert self.coordinator is not None
        for path in (self.coordinator._member, target.journal / coordination.MARKER):
            os.utime(path, (1, 1))
            wait_until(lambda path=path: path.stat().st_mtime > 1)
            beaten.append(path.name)

    monkeypatch.setattr(Supervisor, "_spawn", waits)
    monkeypatch.setattr(Supervisor, "_backoff", lambda self, *_: bool(waits(self)))
    supervisor = Supervisor(["false"], target, Options(restarts=1))
    assert supervisor.run() == 1
    for _, part in supervisor.closing_steps(lambda: False):
        part()
    assert len(beaten) == 8


def test_a_heart_stops() -> None:
    beats = [0]

    def beat() -> None:
        beats[0] += 1

    heart = Heartbeat([beat], every_s=0.001)
    wait_until(lambda: beats[0] > 2)
    heart.stop()
    heart._thread.join(10)
    assert not heart._thread.is_alive()


def test_launches_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    old = NodeCoordinator(tmp_path, "old", "node", 1)
    old.decide_together(0, {"done": False}, lambda reports, lost: {"action": "stop"})
    new = NodeCoordinator(tmp_path, "new", "node", 2)
    assert new.attempt() == 0
    assert new.members(os.listdir(tmp_path)) == {"node-2"}


def test_a_node_that_was_told_to_stop_does_not_wait_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "STOPPING_S", 0.0)
    here, _ = (NodeCoordinator(tmp_path, "abc", host, 1) for host in ("here", "there"))
    outcomes: list[Any] = []

    def decide(reports: Any, lost: Any) -> dict[str, Any]:
        outcomes.append((reports["here-1"]["told"], set(reports), lost))
        return {"action": "stop"}

    here.decide_together(0, {"told": None}, decide, stop_signal=lambda: 15)
    assert outcomes == [(15, {"here-1"}, set())]


def test_a_launch_that_is_done_has_no_past(tmp_path: Path) -> None:
    """A launcher may join while the others are about to leave."""
    coordinator = NodeCoordinator(tmp_path, "abc", "node", 1)
    coordinator.decide_together(0, {"done": True}, lambda reports, lost: {"done": True})
    assert coordinator.decisions() == []


def test_without_a_folder_a_node_is_on_its_own(tmp_path: Path) -> None:
    alone = NodeCoordinator(tmp_path / "gone", "abc", "node", 1)
    assert (alone.attempt(), alone.decisions()) == (0, [])
