"""Signals of the launcher: blocked while the job runs, forwarded as the job would have got them.

They stay blocked and are taken one at a time; `run_with_deadline` bounds the work that follows the
job. On a terminal the job stays in the launcher's process group, so that Ctrl-C, Ctrl-Z, pipes and
`fg` work as without a launcher; elsewhere it has a group of its own. A signal sent to the launcher
goes to the whole group of the job, but not to the helpers of a rank (such as data loader workers):
the rank ends those, and a rank whose workers are killed cannot save.
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
FROM_KERNEL = 128  # si_code of a signal that the terminal sent to the whole group


POLL_S = 0.05  # between two checks where the kernel has no signalfd
# The exception is raised again after this time, in case a callback has swallowed the first.
OVERDUE_AGAIN_S = 1.0

_pending_fd: int | None = None  # a signalfd, readable while one of AWAITED is pending
_ignored: set[int] = set()  # stop signals that this process ignored from its start (nohup)


class DeadlineExceeded(BaseException):
    """The time for the work that follows the job is over."""


@contextlib.contextmanager
def blocked(*, to_the_end: bool = False) -> Iterator[None]:
    """Block signals for `next_signal`; those that arrive too late for the job are dropped.

    Threads that start inside inherit the mask and leave signals to this one. `to_the_end` keeps the
    mask until the process ends: a signal after that would only change the job's exit code.
    """
    global _pending_fd, _ignored
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, exit codes would be lost
    _ignored = {number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    _pending_fd = _signalfd(AWAITED)
    try:
        yield
    finally:
        if _pending_fd is not None:
            os.close(_pending_fd)
            _pending_fd = None
        while signal.sigtimedwait(AWAITED - previous, 0) is not None:
            pass
        if not to_the_end:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def die_of_signal(number: signal.Signals) -> None:
    """End this process by a signal, so that a script which runs it stops as without Headway."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def next_signal(seconds: float) -> tuple[signal.Signals, int, bool] | None:
    """The next signal, its sender, and whether the job got it already; None after `seconds`."""
    _wait(seconds)
    # Never with a timeout: when SIGCONT or a debugger interrupts it, CPython up to 3.14 returns an
    # uninitialized result after the timeout. A call that does not wait is not interrupted.
    info = signal.sigtimedwait(AWAITED, 0)
    if info is None or info.si_signo == signal.SIGCHLD:
        return None
    return signal.Signals(info.si_signo), info.si_pid, info.si_code == FROM_KERNEL


def _wait(seconds: float) -> None:
    """Wait until one of AWAITED is pending, at most that long."""
    if _pending_fd is not None:
        poll = select.poll()
        poll.register(_pending_fd, select.POLLIN)
        poll.poll(max(seconds, 0) * 1000)
        return
    until = time.monotonic() + seconds
    while not AWAITED & signal.sigpending() and (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, POLL_S))


def _signalfd(numbers: Iterable[int]) -> int | None:
    """A descriptor that is readable while a signal is pending; None if unsupported."""
    try:
        import ctypes

        mask = (ctypes.c_uint64 * 16)(sum(1 << number - 1 for number in numbers))
        fd = int(ctypes.CDLL(None).signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
    except (ImportError, OSError, AttributeError):
        return None
    return fd if fd >= 0 else None


def is_stop_signal(number: int) -> bool:
    """Whether it is meant to stop the job; a signal that was ignored from the start is not."""
    return number in STOP_SIGNALS and number not in _ignored


def run_with_deadline(
    work: Callable[[Callable[[], bool]], object], seconds: float, hurried_s: float
) -> bool:
    """Run work with a time limit inside `blocked`; return whether it was completed.

    The first stop signal leaves it `hurried_s`, the second one nothing: then `DeadlineExceeded` is
    raised in it. The work gets a function that tells whether there was a signal.
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
    previous = {number: signal.signal(number, stop) for number in stopping}
    previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, expire)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, previous)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6), OVERDUE_AGAIN_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, previous)
        work(lambda: count > 0)
        # No call between the work and this line, nor below: signal handlers run after calls.
        working = False
        return True
    except DeadlineExceeded:
        working = False
        return False
    finally:
        working = False
        signal.pthread_sigmask(signal.SIG_BLOCK, previous)
        signal.setitimer(signal.ITIMER_REAL, 0)
        while signal.sigtimedwait({signal.SIGALRM}, 0) is not None:
            pass
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def has_terminal() -> bool:
    """Whether standard input is a terminal."""
    try:
        return os.isatty(sys.stdin.fileno())
    # Closed, or replaced by an object without a descriptor.
    except (OSError, ValueError, AttributeError):
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
    """The processes of the job's group, without the helpers of recording processes."""
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
