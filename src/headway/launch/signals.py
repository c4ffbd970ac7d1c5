"""Signals: held while the job runs, and passed on to it as it would have got them.

On a terminal the job stays in the launcher's process group, so that Ctrl-C, Ctrl-Z, pipes and
`fg` work as without a launcher; elsewhere it has a group of its own. A signal that is sent to the
launcher goes to the whole group of the job, but not to the helpers of a rank (loader workers and
the like): those are the rank's to end, and a rank whose workers are killed cannot save.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from headway.launch import tree

STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
FORWARDED = STOPPING | {signal.SIGUSR1, signal.SIGUSR2}
AWAITED = FORWARDED | {signal.SIGCHLD}
FROM_KERNEL = 128  # si_code of a signal that the terminal has sent to the whole group
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signals wait to be taken by `take`; those that come too late for the job are dropped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit codes along
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    try:
        yield
    finally:
        while signal.sigtimedwait(AWAITED - before, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take(seconds: float) -> tuple[signal.Signals, int, bool] | None:
    """The next signal, who sent it, and whether the job has it already; None after `seconds`."""
    info = signal.sigtimedwait(AWAITED, seconds)
    if info is None or info.si_signo == signal.SIGCHLD:
        return None
    return signal.Signals(info.si_signo), info.si_pid, info.si_code == FROM_KERNEL


def on_terminal() -> bool:
    """Whether a person may be at the other end of standard input."""
    try:
        return os.isatty(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or replaced by something without one
        return False


class Child:
    """What the command does between fork and exec; made ready before the fork."""

    def __init__(self) -> None:
        self.own_group = not on_terminal()
        self.launcher = os.getpid()
        try:
            import ctypes

            self.prctl: Any = ctypes.CDLL(None).prctl
        except (ImportError, OSError, AttributeError):
            self.prctl = None

    def __call__(self) -> None:
        if self.own_group:
            os.setpgid(0, 0)
        if self.prctl is not None:  # a launcher that is killed takes the job along
            self.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != self.launcher:
                os._exit(128 + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())


def pass_on(number: signal.Signals, child: int, recording: set[int]) -> None:
    """Send a signal to the job; `recording` are the processes that keep a journal."""
    for pid in targets(child, recording):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def targets(child: int, recording: set[int]) -> list[int]:
    """The processes of the job's group, without the helpers of those that record."""
    seen = tree.processes()
    group = seen[child].group if child in seen else child
    found = [child]
    for pid, process in seen.items():
        above = tree.above(pid, child, seen)
        if not above or process.group != group:
            continue
        if pid in recording or not recording.intersection(above):
            found.append(pid)
    return found
