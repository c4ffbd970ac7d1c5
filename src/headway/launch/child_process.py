"""The command as a child of the launcher: set-up between fork and exec, start, poll and wait."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.launch import signals
from headway.launch.signals import has_terminal

PR_SET_PDEATHSIG = 1


class ChildSetup:
    """What the command does between fork and exec; prepared before the fork."""

    def __init__(self) -> None:
        self.own_group = not has_terminal()
        self.launcher = os.getpid()
        try:
            import ctypes

            self.prctl: Any = ctypes.CDLL(None).prctl
        except (ImportError, OSError, AttributeError):
            self.prctl = None

    def __call__(self) -> None:
        if self.own_group:
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.setpgid(0, 0)
        if self.prctl is not None:  # the job ends with a launcher that is killed
            self.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() not in (self.launcher, 0):  # 0: the parent is in another pid namespace
                os._exit(128 + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())


# Returned when something in this process has already reaped the job, so its status is unknown.
UNKNOWN_STATUS = 70
# Errors of a start that may be caused by what the launcher adds to the environment or opens.
LAUNCHER_ERRNOS = {errno.E2BIG, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
WAKE_S = 1.0  # between two polls of a child; SIGCHLD wakes at once


class ChildProcess:
    """A child of this process, independent of how it was started."""

    def __init__(
        self, pid: int, args: Sequence[str], popen: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = pid
        self.args = list(args)
        self.returncode: int | None = None
        self._popen = popen

    def poll(self) -> int | None:
        """The exit status, None while it runs; negative for a death by signal."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # something else has reaped it: that is not a success
                self.returncode = UNKNOWN_STATUS
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            if self._popen is not None:
                self._popen.returncode = self.returncode  # or Popen would wait for it too
        return self.returncode


def start(
    command: Sequence[str],
    env: Mapping[str, str],
    stdout: int | None = None,
    stderr: int | None = None,
) -> ChildProcess:
    """Start the command as a shell would."""

    def popen(words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            env=env,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=ChildSetup(),
            close_fds=False,
        )

    try:
        child = popen(command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a shebang line: the shell itself would run it so.
        child = popen(["/bin/sh", *command])
    return ChildProcess(child.pid, command, child)


def wait(
    child: ChildProcess, note: Callable[[signal.Signals, int], object] = lambda number, sender: None
) -> int:
    """Wait for the child and forward signals; the fallback when everything else has failed.

    `note` gets each signal and its sender.
    """
    while (status := child.poll()) is None:
        try:
            received = signals.next_signal(WAKE_S)
            if received is not None:
                number, sender, job_has_it = received
                note(number, sender)
                if not job_has_it:
                    signals.forward(number, child.pid, set())
        except Exception:  # no error is a reason to abandon a running child
            time.sleep(signals.POLL_S)
    return status


def run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run the command as without Headway; 127 if it cannot be started."""
    try:
        return wait(_start_without_pipe(command, env))
    except OSError:
        return 127


def _start_without_pipe(command: Sequence[str], env: Mapping[str, str]) -> ChildProcess:
    """Start without a pipe if no descriptor is left: the job may not need one either."""
    try:
        return start(command, env)
    except (OSError, subprocess.SubprocessError) as error:
        if isinstance(error, OSError) and error.errno not in LAUNCHER_ERRNOS:
            raise
    prepared = ChildSetup()
    # As an error, the warning about threads would be raised after the fork.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            prepared()
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as subprocess does
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], list(command), env)
        finally:
            os._exit(127)
    return ChildProcess(pid, command)
