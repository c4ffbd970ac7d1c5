"""Signals of the launcher: blocked while the job runs, forwarded as the job would have got them.

They stay blocked and are taken one at a time; `run_with_deadline` bounds the work that follows the
job. On a terminal the job stays in the launcher's process group, so that Ctrl-C, Ctrl-Z, pipes and
`fg` work as without a launcher; elsewhere it has a group of its own. A signal sent to the launcher
goes to the whole group of the job, but not to the helpers of a rank (data loader workers and the
like): the rank ends those, and a rank whose workers are killed cannot save.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from headway.launch import processes

STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
FORWARDED = STOP_SIGNALS | {signal.SIGUSR1, signal.SIGUSR2}
AWAITED = FORWARDED | {signal.SIGCHLD}
FROM_KERNEL = 128  # si_code of a signal that the terminal has sent to the whole group


POLL_S = 0.05  # between two looks where the kernel offers no signalfd
OVERDUE_AGAIN_S = 1.0  # between two `DeadlineExceeded`, should the first one get lost in a callback

_pending_fd: int | None = None  # a signalfd, readable while one of AWAITED is pending
_ignored: set[int] = set()  # signals to stop that this process ignored from its start (nohup)


class DeadlineExceeded(BaseException):
    """The time for the work that follows the job is over."""


@contextlib.contextmanager
def blocked(*, to_the_end: bool = False) -> Iterator[None]:
    """Signals wait to be taken by `next_signal`; those that come too late for the job are dropped.

    Threads that begin in it inherit the mask, and leave signals to this one. `to_the_end`: of this
    process, which has nothing left to do after that: a signal would only cost the job's exit code.
    """
    global _pending_fd, _ignored
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit codes along
    _ignored = {number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    _pending_fd = _signalfd(AWAITED)
    try:
        yield
    finally:
        if _pending_fd is not None:
            os.close(_pending_fd)
            _pending_fd = None
        while signal.sigtimedwait(AWAITED - before, 0) is not None:
            pass
        if not to_the_end:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_of_signal(number: signal.Signals) -> None:
    """End this process by a signal, so that a script which runs it stops as without it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def next_signal(seconds: float) -> tuple[signal.Signals, int, bool] | None:
    """The next signal, who sent it, and whether the job has it already; None after `seconds`."""
    _wait(seconds)
    # Never with a timeout: when SIGCONT or a debugger interrupts it, CPython up to 3.14 returns an
    # uninitialized result once the time has passed. A call that cannot wait is not interrupted.
    info = signal.sigtimedwait(AWAITED, 0)
    if info is None or info.si_signo == signal.SIGCHLD:
        return None
    return signal.Signals(info.si_signo), info.si_pid, info.si_code == FROM_KERNEL


def _wait(seconds: float) -> None:
    """Until one of AWAITED is pending, at most that long."""
    if _pending_fd is not None:
        poll = select.poll()
        poll.register(_pending_fd, select.POLLIN)
        poll.poll(max(seconds, 0) * 1000)
        return
    until = time.monotonic() + seconds
    while not AWAITED & signal.sigpending() and (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, POLL_S))


def _signalfd(numbers: Iterable[int]) -> int | None:
    """A descriptor that tells of pending signals; None where there is none."""
    try:
        import ctypes

        mask = (ctypes.c_uint64 * 16)(sum(1 << number - 1 for number in numbers))
        fd = int(ctypes.CDLL(None).signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
    except (ImportError, OSError, AttributeError):
        return None
    return fd if fd >= 0 else None


def is_stop_signal(number: int) -> bool:
    """Whether it is meant to stop the job; one that was ignored from the start is not."""
    return number in STOP_SIGNALS and number not in _ignored


def run_with_deadline(
    work: Callable[[Callable[[], bool]], object], seconds: float, hurried_s: float
) -> bool:
    """Do work inside `blocked` that may take that long; whether it came to its end.

    The first signal to stop leaves it `hurried_s`, the second one nothing: then `DeadlineExceeded`
    is raised in it. It gets a function that tells whether there was a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        work(lambda: False)
        return True
    until = time.monotonic() + seconds
    count, working = 0, True

    def stop(*_: object) -> None:
        nonlocal count
        count += 1
        remaining = min(until - time.monotonic(), hurried_s) if count == 1 else 0.0
        if working:
            signal.setitimer(signal.ITIMER_REAL, max(remaining, 1e-6), OVERDUE_AGAIN_S)

    def expire(*_: object) -> None:
        if working:
            raise DeadlineExceeded

    stopping = STOP_SIGNALS - _ignored
    before = {number: signal.signal(number, stop) for number in stopping}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, expire)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, before)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6), OVERDUE_AGAIN_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
        work(lambda: count > 0)
        # No function is called between the work and this, nor below: handlers run after calls.
        working = False
        return True
    except DeadlineExceeded:
        working = False
        return False
    finally:
        working = False
        signal.pthread_sigmask(signal.SIG_BLOCK, before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        while signal.sigtimedwait({signal.SIGALRM}, 0) is not None:
            pass
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def has_terminal() -> bool:
    """Whether a person may be at the other end of standard input."""
    try:
        return os.isatty(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or replaced by something without one
        return False


def forward(number: signal.Signals, child: int, recording: set[int]) -> None:
    """Send a signal to the job; `recording` are the processes that keep a journal."""
    try:
        pids = forward_targets(child, recording)
    except OSError:  # /proc cannot be read, or no descriptor is left
        pids = [child]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def forward_targets(child: int, recording: set[int]) -> list[int]:
    """The processes of the job's group, without the helpers of those that record."""
    table = processes.process_table()
    group = table[child].group if child in table else child
    pids = [child]
    for pid, process in table.items():
        chain = processes.ancestors(pid, child, table)
        if not chain or process.group != group:
            continue
        if pid in recording or not recording.intersection(chain):
            pids.append(pid)
    return pids
