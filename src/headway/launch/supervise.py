"""Starts the command, passes signals on, waits for its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import headway
from headway import probe
from headway.errors import UsageError
from headway.journal.writer import Writer, head, now
from headway.launch import together
from headway.launch.target import Target
from headway.launch.watch import Watch

FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
BOOT = Path(headway.__file__).parent / "probe" / "boot"


def check(command: Sequence[str]) -> None:
    """One sentence for a command that cannot be started, before anything is made for it."""
    if shutil.which(command[0]):
        return
    if os.path.exists(command[0]):
        raise UsageError(f"{command[0]} cannot be executed; try `python {command[0]}`")
    raise UsageError(f"the command {command[0]} was not found; check its name and your PATH")


def supervise(command: Sequence[str], target: Target) -> int:
    """Run the command to its end; returns its exit code as a shell would give it."""
    name = f"launcher-{target.launch}-{os.uname().nodename}-{os.getpid()}.jsonl"
    writer = Writer(str(target.journal / name), os.getpid())
    first = head("launcher", launch=target.launch, index=target.index)
    first |= {**_scheduler(os.environ), "fs": writer.file_clock()}
    writer.write(first)
    with _signals_held():
        child = _spawn(command, target, writer)
        watch = Watch(target.journal, writer)
        watch.start()
        status = _wait(child, writer)
        ended = now()
        watch.finish()
    code = 128 - status if status < 0 else status
    writer.write({"ev": "exit", "t": ended, "code": status})
    writer.close()
    together.leave(target.journal, target.launch)
    return code


def environment(target: Target, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the command gets: ours first on PYTHONPATH, and where to write."""
    path = [str(BOOT), *filter(None, [env.get("PYTHONPATH")])]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(path),
        "HEADWAY_RUN": target.run,
        probe.ENV_FOLDER: str(target.journal.resolve()),
        probe.ENV_LAUNCH: target.launch,
    }


def _spawn(command: Sequence[str], target: Target, writer: Writer) -> subprocess.Popen[bytes]:
    """In a process group of its own, which gets the terminal if there is one."""
    terminal = _terminal()

    def in_child() -> None:
        os.setpgid(0, 0)
        if terminal is not None:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(terminal, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())

    started = now()
    child = subprocess.Popen(command, env=environment(target), preexec_fn=in_child, close_fds=False)
    writer.write({"ev": "spawn", "t": started, "pid": child.pid, "command": list(command)})
    return child


def _terminal() -> int | None:
    """The terminal, if this is its foreground job."""
    fd = _stdin_terminal()
    return fd if fd is not None and os.tcgetpgrp(fd) == os.getpgrp() else None


def _stdin_terminal() -> int | None:
    try:
        fd = sys.stdin.fileno()
        return fd if os.isatty(fd) else None
    except (OSError, ValueError, AttributeError):  # closed, or replaced by something without one
        return None


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait for `_wait` to take them; outside a main thread there are none to take."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal = _terminal()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    try:
        yield
    finally:
        if terminal is not None:
            with _ignoring(signal.SIGTTOU):
                os.tcsetpgrp(terminal, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _ignoring(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def _wait(child: subprocess.Popen[bytes], writer: Writer) -> int:
    """Until the command ends; every signal that comes goes to its whole process group."""
    terminal = _stdin_terminal()
    while True:
        status = _poll(child, terminal)
        if status is not None:
            return status
        info = signal.sigtimedwait(FORWARDED | {signal.SIGCHLD}, 1.0)
        if info is None or info.si_signo == signal.SIGCHLD:
            continue
        number = signal.Signals(info.si_signo)
        if number in STOPPING:
            writer.write({"ev": "signal", "t": now(), "signal": int(number), "from": info.si_pid})
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            continue


def _poll(child: subprocess.Popen[bytes], terminal: int | None) -> int | None:
    """The exit status if the command ended; if it was stopped (Ctrl-Z), stop along with it."""
    pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        return None
    if os.WIFSTOPPED(status):
        if terminal is not None:
            with _ignoring(signal.SIGTTOU):
                os.tcsetpgrp(terminal, os.getpgrp())
                os.kill(os.getpid(), signal.SIGSTOP)  # until `fg`
                os.tcsetpgrp(terminal, child.pid)
            os.killpg(child.pid, signal.SIGCONT)
        return None
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode


def _scheduler(env: Mapping[str, str]) -> dict[str, object]:
    """What a scheduler tells of this launch: when the resources came, when they were asked for."""
    found: dict[str, object] = {}
    sources = {
        "allocated": ("HEADWAY_ALLOCATED_AT", "SLURM_JOB_START_TIME"),
        "queued": ("HEADWAY_QUEUED_AT",),
    }
    for key, names in sources.items():
        for name in names:
            text = env.get(name, "")
            if text.replace(".", "", 1).isdecimal():
                found.setdefault(key, int(float(text) * 1e9))
    for key, name in (("scheduler_job", "SLURM_JOB_ID"), ("requeues", "SLURM_RESTART_COUNT")):
        if env.get(name):
            found[key] = env[name]
    return found
