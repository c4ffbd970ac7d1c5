"""The notice of a preemption: what signals do, and when all ranks heed them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from headway import sdk
from headway.checkpoint import preemption
from headway.checkpoint.preemption import SAME_NOTICE_S, Notice, Preemption
from headway.errors import UsageError
from tests.support import has_code

pytestmark = pytest.mark.timeout(30)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signals that came to the handler of the job itself."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_signal_is_a_notice_once_and_the_jobs_own_handler_is_called(heard: list[int]) -> None:
    clock = Clock()
    notice = Notice(clock)
    calls: list[float] = []
    notice.add_callback(lambda: calls.append(clock.now))
    os.kill(os.getpid(), signal.SIGTERM)
    clock.now += SAME_NOTICE_S / 2
    os.kill(os.getpid(), signal.SIGTERM)
    assert (notice.at, calls, heard) == (100.0, [100.0], [signal.SIGTERM] * 2)
    notice.add_callback(lambda: calls.append(-1.0))
    assert calls == [100.0, -1.0]
    clock.now += SAME_NOTICE_S
    os.kill(os.getpid(), signal.SIGTERM)  # ends it as usual: the job's own handler alone
    assert len(heard) == 3 and signal.getsignal(signal.SIGTERM) != notice._on_signal
    notice.uninstall()
    notice.uninstall()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL and notice.at is None


def test_handlers_are_back_when_nobody_listens(heard: list[int]) -> None:
    notice = Notice()
    own = signal.getsignal(signal.SIGTERM)
    notice.install()
    notice.install()
    notice.uninstall()
    assert signal.getsignal(signal.SIGTERM) == notice._on_signal
    notice.uninstall()
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_second_signal_ends_the_process_and_a_child_is_not_spared() -> None:
    script = textwrap.dedent("""
        import os, signal
        from headway.checkpoint import preemption
        preemption.SAME_NOTICE_S = 0.0
        preemption.notice.install()
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")  # Python drops what comes before it has forked
            while True:
                signal.pause()
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.notice.at is not None
        os.kill(os.getpid(), signal.SIGUSR1)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=20)
    assert done.returncode == -signal.SIGUSR1, done.stderr


def test_the_sdk_calls_back(heard: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "notice", Notice())
    calls: list[int] = []
    sdk.on_preempt(lambda: calls.append(1))
    os.kill(os.getpid(), signal.SIGTERM)
    preemption.notice.uninstall()
    assert calls == [1]


class Told(Notice):
    """One that is told by the test."""

    def listen(self) -> None:
        pass

    def leave(self) -> None:
        pass


class Ranks:
    """Rank 0 as the preemption sees it; what it says is kept."""

    def __init__(self, world: int = 1) -> None:
        self.rank, self.world, self.flag = 0, world, False
        self.words: list[Any] = []

    def from_rank0(self, mine: Any) -> Any:
        self.words.append(mine)
        return mine

    def raise_flag(self) -> None:
        self.flag = True

    def flag_raised(self) -> bool:
        return self.flag


def test_ranks_look_once_a_second_and_stop_where_rank_0_says() -> None:
    clock, ranks = Clock(), Ranks(2)
    look = Preemption(ranks, 30.0, Told(clock), clock).should_stop
    stops: list[bool] = []
    for step in range(1, 31):
        ranks.flag = step >= 15
        stops.append(look(step, lambda: 0.1, lambda: 5.0))
        if stops[-1]:
            break
    assert (step, len(ranks.words)) == (21, 3)


def test_while_steps_are_not_known_each_one_is_looked_at() -> None:
    clock, ranks = Clock(), Ranks(2)
    look = Preemption(ranks, 30.0, Told(clock), clock).should_stop
    assert [look(step, lambda: 0.0, lambda: 5.0) for step in range(4)] == [False] * 4
    assert len(ranks.words) == 4


@pytest.mark.parametrize(("takes", "in_time"), [(26.9, True), (27.1, False)])
def test_a_save_that_takes_too_long_is_not_begun(takes: float, in_time: bool) -> None:
    clock = Clock()
    heard = Told(clock)
    heard.at = 98.0
    one = Preemption(Ranks(), 30.0, heard, clock)
    assert one.should_stop(7, lambda: 0.1, lambda: takes)
    assert one.in_time is in_time and one.left_s == pytest.approx(27.0)
    clock.now += 40.0
    assert one.left_s < 0


def test_a_grace_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code("grace-invalid")):
        Preemption(Ranks(), 0.0, Told())
