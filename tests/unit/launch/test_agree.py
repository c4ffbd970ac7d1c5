"""Supervisors of several nodes decide as one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from headway.launch.agree import Agreement


def test_alone_it_decides_at_once(tmp_path: Path) -> None:
    alone = Agreement(tmp_path, "abc", "node-a", 1)
    asked: list[Any] = []

    def decide(said: Any, gone: Any) -> dict[str, Any]:
        asked.append((said, gone))
        return {"action": "restart"}

    assert alone.attempt() == 0
    assert alone.conclude(0, {"done": False, "x": 1}, decide) == {"action": "restart"}
    assert asked == [({"node-a-1": {"done": False, "x": 1}}, set())]
    assert alone.attempt() == 1
    alone.leave()
    assert list(tmp_path.iterdir()) == []


def test_many_follow_one_decision(tmp_path: Path) -> None:
    members = [Agreement(tmp_path, "abc", f"node-{n}", n) for n in range(8)]
    decided: list[int] = []
    followed: dict[int, Any] = {}

    def conclude(n: int) -> None:
        def decide(said: Any, gone: Any) -> dict[str, Any]:
            decided.append(n)
            assert len(said) == 8
            assert not gone
            return {"by": n}

        followed[n] = members[n].conclude(0, {"done": n % 2 == 0, "n": n}, decide)

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
    here, there = (Agreement(tmp_path, "abc", host, 1) for host in ("here", "there"))
    names = lambda: os.listdir(tmp_path)  # noqa: E731
    assert not here.over_elsewhere(0, names())
    there._write(there._path("ended", 0, there.me), {"done": True})
    assert not here.over_elsewhere(0, names())
    there._write(there._path("ended", 0, there.me), {"done": False})
    assert here.over_elsewhere(0, names())
    assert not here.over_elsewhere(1, names())
    assert not there.over_elsewhere(0, names())


def test_all_nodes_must_be_late(tmp_path: Path) -> None:
    here, there = (Agreement(tmp_path, "abc", host, 1) for host in ("here", "there"))
    names = lambda: os.listdir(tmp_path)  # noqa: E731
    assert not here.all_late(0, True, names())
    assert there.all_late(0, True, names())
    assert here.all_late(0, True, names())
    assert not there.all_late(0, False, names())
    assert not here.all_late(0, True, names())
    assert not here.all_late(1, True, names())
    os.utime(there._member, (1, 1))  # gone: not waited for
    assert here.all_late(0, True, names())
    here.leave()
    there.leave()
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    here, there = (Agreement(tmp_path, "abc", host, 1) for host in ("here", "there"))
    os.utime(there._member, (1, 1))
    seen: list[Any] = []

    def decide(said: Any, gone: Any) -> dict[str, Any]:
        seen.append((set(said), gone))
        return {"action": "swap"}

    here.conclude(0, {"done": False}, decide)
    assert seen == [({"here-1"}, {"there-1"})]


def test_launches_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    old = Agreement(tmp_path, "old", "node", 1)
    old.conclude(0, {"done": False}, lambda said, gone: {"action": "stop"})
    new = Agreement(tmp_path, "new", "node", 2)
    assert new.attempt() == 0
    assert new.members(os.listdir(tmp_path)) == {"node-2"}
