"""Hung and healthy ranks: observing real processes from outside."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.journal.pulse import Pulse
from headway.launch import processes
from headway.launch.hang import activity, detector, stacks
from headway.launch.hang.detector import Hang, HangDetector
from headway.launch.hang.limits import FLOOR_S, StepTimingStats
from headway.launch.rank_tail import RankTail
from tests.support import wait_until

STUCK = """
import sys, time
from headway.probe import stacks
told = {}
stacks.offer_dump(lambda ev, **fields: told.update(fields))
def stuck():
    print(told["signal"], told["fd"], flush=True); time.sleep(600)
stuck()
"""


@contextmanager
def python(program: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", program], **how) as child:
        try:
            yield child
        finally:
            os.kill(child.pid, signal.SIGKILL)  # Popen treats a traced process as ended


@contextmanager
def stuck_rank(number: int = 0) -> Iterator[RankTail]:
    """A rank that provides its stacks."""
    with python(STUCK, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        rank = RankTail("", child.pid)
        first, second = map(int, child.stdout.readline().split())
        rank.stacks, rank.rank = (first, second), number
        yield rank


def test_a_living_process_tells_where_it_stands() -> None:
    with stuck_rank() as rank:
        stacks_of_rank, rank.stacks = rank.stacks, None
        assert stacks_of_rank is not None
        assert stacks.dump([rank]) == {rank.pid: ""}  # it has not announced its signal
        rank.stacks = stacks_of_rank
        for _ in range(2):
            assert " in stuck" in stacks.main_thread(stacks.dump([rank])[rank.pid])[0]
        rank.stacks = (stacks_of_rank[0], 0)  # the job uses the number for something else
        assert stacks.dump([rank]) == {rank.pid: ""}
        assert os.path.exists(f"/proc/{rank.pid}")


def test_a_rank_that_does_not_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked before the first is waited for, and the wait is shared."""
    with stuck_rank(0) as first, stuck_rank(1) as halted, stuck_rank(2) as last:
        os.kill(halted.pid, signal.SIGSTOP)
        wait_until(lambda: activity.stopped(halted.pid))
        now, requests = 0.0, []
        kill = os.kill
        monkeypatch.setattr(
            stacks.os, "kill", lambda pid, sig: (requests.append(pid), kill(pid, sig))
        )
        real_sleep = time.sleep

        def sleep(seconds: float) -> None:
            nonlocal now
            assert requests == [first.pid, halted.pid, last.pid]
            now += seconds
            real_sleep(seconds)

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now)
        monkeypatch.setattr(stacks, "time", clock)
        texts = stacks.dump([first, halted, last], limit_s=2.0)
        monkeypatch.undo()
    assert now < 2.5
    assert texts[halted.pid] == ""
    assert all(" in stuck" in stacks.main_thread(texts[rank.pid])[0] for rank in (first, last))


def test_a_program_that_takes_the_place_of_a_rank_is_seen(tmp_path: Path) -> None:
    page = str(tmp_path / "x.pulse")
    program = (
        "import os, sys; from headway.journal import pulse\n"
        f"cells = pulse.create({page!r}, os.getpid()); print(1, flush=True); input()\n"
        "os.execvp('sleep', ['sleep', '600'])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with python(program, **pipes) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        assert not activity.replaced(child.pid, page)
        child.stdin.write(b"\n")
        child.stdin.flush()
        wait_until(lambda: activity.replaced(child.pid, page))
        assert not activity.replaced(child.pid, str(tmp_path / "none.pulse"))


@pytest.mark.parametrize("halted", [False, True], ids=["silent", "stopped"])
def test_ranks_that_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halted: bool
) -> None:
    """Both at one line; or one of them stopped by a signal, which is the one behind."""
    hangs: list[Hang] = []
    ns = 0
    monkeypatch.setattr(detector, "now", lambda: ns)
    monkeypatch.setattr(RankTail, "pulse", lambda self: Pulse(steps=100, last_step=1))
    learned = StepTimingStats()
    for _ in range(50):
        learned.add_gap(0.01)
    watch = HangDetector(str(tmp_path), learned, hangs.append)
    with stuck_rank(0) as first, stuck_rank(1) as second:
        if halted:
            os.kill(second.pid, signal.SIGSTOP)
            wait_until(lambda: activity.stopped(second.pid))
        for _ in range(int(2 * FLOOR_S / 0.25)):
            ns += 250_000_000
            watch.round(SimpleNamespace(ranks=lambda: [first, second]))  # type: ignore[arg-type]
    (hang,) = hangs
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert " in stuck" in texts[0]
    if halted:
        assert hang.rank == 1
        assert re.search(r"\bT\b", texts[1])  # its state
    else:
        assert hang.rank is None
        assert " in stuck" in texts[1]


def test_a_debugger_is_seen() -> None:
    program = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)"
    with python(program) as child:
        wait_until(lambda: activity.traced(child.pid))
        assert not activity.stopped(child.pid)


def test_a_prompt_is_seen() -> None:
    master, terminal = pty.openpty()
    with python("input('(Pdb) ')", stdin=terminal, stdout=subprocess.DEVNULL) as child:
        if os.geteuid() == 0 or os.path.exists(f"/proc/{child.pid}/syscall"):
            wait_until(lambda: activity.traced(child.pid))
    os.close(master)
    os.close(terminal)


def test_work_is_seen() -> None:
    with python("while True: pass") as child:
        before = activity.sample(child.pid, 0.0)
        wait_until(lambda: activity.busy(before, activity.sample(child.pid, 0.5)))
        assert not activity.moves(before, activity.sample(child.pid, 0.5))
    with python(
        "while True: open('/proc/self/stat').read(); open('/dev/null', 'wb').write(b'x' * 10**6)"
    ) as child:
        before = activity.sample(child.pid, 0.0)
        wait_until(lambda: activity.moves(before, activity.sample(child.pid, 0.5)))
    with subprocess.Popen(["sleep", "60"]) as child:
        wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        wait_until(lambda: processes.process_info(child.pid).state == "S")
        samples = [activity.sample(child.pid, at) for at in (0.0, 0.3)]
        child.kill()
    assert not activity.busy(*samples)
