"""One life of the command: started, watched, passed signals, ended, and why it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import headway
from headway import probe
from headway.journal.writer import Writer, head, now
from headway.launch import reap, signals, tree
from headway.launch.evidence import Evidence
from headway.launch.failures import Fact, classify
from headway.launch.follow import Followed
from headway.launch.output import Output
from headway.launch.target import Target
from headway.launch.watch import Watch

BOOT = Path(headway.__file__).parent / "probe" / "boot"
# torchrun's own restarts use one store for all of them, in which the new ranks meet the addresses
# of the dead: with gloo two of three restarts hang or fail in torch 2.13.
STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
STORE_NOTE = f"{STORE}=1 was set, so that its restarts do not meet the dead ranks' addresses"
GRACE_S = 5.0  # for a rank that handles SIGTERM, once another one has died
CLEAR_S = 0.1  # for what is left when the ranks are gone: helpers that nobody waits for


class Process(Protocol):
    """The command as it runs."""

    pid: int

    def poll(self) -> int | None:
        """Its status once it has ended; negative for a death by signal."""


@dataclass(kw_only=True)
class Ended:
    """How it ended, and everything that may tell why."""

    status: int
    facts: list[Fact]
    lives: list[list[Followed]]  # the ranks, by torchrun's own restarts
    signal: int | None = None  # the first signal to stop that the launcher was sent
    left: list[int] = field(default_factory=list)  # processes that could not be ended

    @property
    def stepped(self) -> bool:
        """Whether a step was made."""
        return any(rank.pulse().steps for ranks in self.lives for rank in ranks)


class Attempt:
    """One life of the command. `supervised`: it ends for good before another one begins."""

    def __init__(self, target: Target, number: int, *, supervised: bool) -> None:
        self.target = target
        self.number = number
        self.supervised = supervised
        self.launch = target.launch if number == 0 else f"{target.launch}.{number}"
        name = f"launcher-{self.launch}-{os.uname().nodename}-{os.getpid()}.jsonl"
        self.writer = Writer(str(target.journal / name), os.getpid())
        first = head("launcher", launch=self.launch, index=target.index + number)
        # The first attempt begins with this process and its allocation, a later one now.
        told = _scheduler(os.environ) if number == 0 else {"begin": first["t"]}
        self.writer.write({**first, **told, "fs": self.writer.file_clock()})
        self.output = Output(through_pipe=supervised)
        self.watch = Watch(target.journal, self.launch, self.writer)
        self.evidence = Evidence(self.watch, self.output)
        self.would_restart: Callable[[list[Fact]], bool] = lambda facts: False
        self.on_wake: list[Callable[[], None]] = []  # about once a second, in the main thread
        self.spare: Callable[[], set[int]] = set  # processes that belong to the launcher
        self.env_extra: dict[str, str] = {}  # for this attempt alone
        self.told_to_stop: int | None = None  # the first signal of that kind
        self._doomed = ""
        self._pids: set[int] = set()  # everything that was seen below the launcher
        self._began = time.time()

    def run(self, command: Sequence[str], spawn: Callable[..., Process | None]) -> Ended:
        """Run it to its end; `spawn` may start it in its own way."""
        started = now()
        env = {**environment(self.target, self.launch), **self.env_extra}
        if STORE not in env and restarts_itself(command):
            env[STORE] = "1"
            self.writer.write({"ev": "note", "t": started, "hook": "torchrun", "text": STORE_NOTE})
        child = spawn(command, env, self.output.stdout, self.output.stderr)
        if child is None:
            child = start(command, env, self.output.stdout, self.output.stderr)
        self.output.started()
        words = {"pid": child.pid, "command": list(command)}
        self.writer.write({"ev": "spawn", "t": started, **words})
        if self.supervised:
            self.watch.on_death.append(self._died)
            # The rules take a moment to load; a failure should not wait for that.
            threading.Thread(target=classify, args=((),), daemon=True).start()
        self.watch.start()
        status = self._wait(child)
        ended = now()
        self.hear()
        left: list[int] = []
        if self.supervised and status and self.told_to_stop is None:
            left = self._clear()
        self.output.finish()
        self.watch.finish()
        for process in self.watch.processes.values():
            if process.pid == child.pid:  # nobody but its parent could see how it ended
                process.code, process.died = status, process.died or ended
        self.writer.write({"ev": "exit", "t": ended, "code": status})
        return Ended(
            status=status,
            facts=self.evidence.all(status, self.told_to_stop, self._pids),
            lives=self.watch.lives(),
            signal=self.told_to_stop,
            left=left,
        )

    def doom(self, why: str) -> None:
        """The attempt is lost: end it now. May be called from any thread.

        Not once it was told to stop: then it ends by itself, in the time its scheduler gives it.
        """
        if not self._doomed and self.told_to_stop is None:
            self._doomed = why
            os.kill(os.getpid(), signal.SIGCHLD)  # wakes `_wait`

    def hear(self) -> int | None:
        """Signals that came while nobody waited for them; the first one to stop, if any."""
        while (taken := signals.take(0)) is not None:
            self._note(*taken[:2])
        return self.told_to_stop

    def _note(self, number: signal.Signals, sender: int) -> None:
        if number in signals.STOPPING:
            self.told_to_stop = self.told_to_stop or int(number)
            event = {"ev": "signal", "t": now(), "signal": int(number), "from": sender}
            self.writer.write(event)

    def _died(self, process: Followed) -> None:
        if process.fatal and process.failing and self.would_restart(self.evidence.known()):
            self.doom(f"rank {process.rank} died")

    def _wait(self, child: Process) -> int:
        """Until the command ends; signals that come meanwhile are noted and passed on."""
        while True:
            status = child.poll()
            if status is not None:
                return status
            if self.supervised:
                seen = tree.processes()
                self._pids |= tree.below(os.getpid(), seen)
                reap.collect({child.pid, *self.spare()}, seen)
            if self._doomed:
                return self._end(child)
            for call in self.on_wake:
                call()
            taken = signals.take(1.0)
            if taken is not None:
                number, sender, has_it = taken
                self._note(number, sender)
                if not has_it:
                    signals.pass_on(number, child.pid, self.watch.recording())

    def _end(self, child: Process) -> int:
        """Its ranks may save what they can, its agent has nothing left to do."""
        self.evidence.ended_by_us = now()
        ranks = self.watch.ranks()
        alive = {rank.pid for rank in ranks if rank.died is None}
        if alive or not ranks:
            reap.end(alive or {child.pid}, GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        while (status := child.poll()) is None:
            time.sleep(0.001)
        return status

    def _clear(self) -> list[int]:
        """Everything that the dead attempt leaves behind; the processes that would not go."""
        self._pids |= tree.below(os.getpid())
        left = reap.clear(self.spare(), grace_s=CLEAR_S)
        reap.sweep_shared_memory(self._pids, self._began)
        return left


def environment(target: Target, launch: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the command gets: ours first on PYTHONPATH, and where to write."""
    path = [str(BOOT), *filter(None, [env.get("PYTHONPATH")])]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(path),
        "HEADWAY_RUN": target.run,
        probe.ENV_FOLDER: target.absolute_journal,
        probe.ENV_LAUNCH: launch,
    }


def restarts_itself(command: Sequence[str]) -> bool:
    """Whether torchrun is told to restart its workers by itself."""
    words = [word.replace("_", "-") for word in command]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name == "--max-restarts":
            return (value or following) not in ("", "0")
    return False


def start(
    command: Sequence[str], env: Mapping[str, str], stdout: int | None, stderr: int | None
) -> subprocess.Popen[bytes]:
    """Start it as a shell would."""

    def popen(words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            env=env,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=signals.Child(),
            close_fds=False,
        )

    try:
        return popen(command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its shell: the shell itself would run it so.
        return popen(["/bin/sh", *command])


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
