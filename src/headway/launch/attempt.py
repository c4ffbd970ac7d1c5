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
from typing import Any, Protocol

import headway
from headway import probe
from headway.journal.writer import Writer, head, now
from headway.launch import reap, signals, tree
from headway.launch.failures import Fact, classify, kernel, read_log
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
    ranks: list[Followed]
    signal: int | None = None  # the first signal to stop that the launcher was sent
    left: list[int] = field(default_factory=list)  # processes that could not be ended


class Attempt:
    """One life of the command. `supervised`: it ends for good before another one begins."""

    def __init__(self, target: Target, number: int, *, supervised: bool) -> None:
        self.target = target
        self.number = number
        self.supervised = supervised
        self.launch = target.launch if number == 0 else f"{target.launch}.{number}"
        self.node = os.uname().nodename
        name = f"launcher-{self.launch}-{self.node}-{os.getpid()}.jsonl"
        self.writer = Writer(str(target.journal / name), os.getpid())
        first = head("launcher", launch=self.launch, index=target.index + number)
        # The first attempt begins with this process and its allocation, a later one now.
        told = _scheduler(os.environ) if number == 0 else {"begin": first["t"]}
        self.writer.write({**first, **told, "fs": self.writer.file_clock()})
        self.watch = Watch(target.journal, self.launch, self.writer)
        self.facts: list[Fact] = []  # told by those that watch: a hang, a fault
        self.would_restart: Callable[[list[Fact]], bool] = lambda facts: False
        self.on_wake: list[Callable[[], None]] = []  # about once a second, in the main thread
        self.spare: Callable[[], set[int]] = set  # processes that belong to the launcher
        self.env_extra: dict[str, str] = {}  # for this attempt alone
        self._doomed = ""
        self._signal: int | None = None
        self._began = time.time()
        self._kernel = kernel.snapshot()
        self._output = Output(through_pipe=supervised)

    def run(self, command: Sequence[str], spawn: Callable[..., Process | None]) -> Ended:
        """Run it to its end; `spawn` may start it in its own way."""
        started = now()
        env = {**environment(self.target, self.launch), **self.env_extra}
        child = spawn(command, env, self._output.stdout, self._output.stderr)
        if child is None:
            child = start(command, env, self._output.stdout, self._output.stderr)
        self._output.started()
        if STORE not in os.environ and any("max-restarts" in w.replace("_", "-") for w in command):
            self.writer.write({"ev": "note", "t": started, "hook": "torchrun", "text": STORE_NOTE})
        words = {"pid": child.pid, "command": list(command)}
        self.writer.write({"ev": "spawn", "t": started, **words})
        if self.supervised:
            self.watch.on_death.append(self._died)
            # The rules take a moment to load; a failure should not wait for that.
            threading.Thread(target=classify, args=((),), daemon=True).start()
        self.watch.start()
        status = self._wait(child)
        ended = now()
        left: list[int] = []
        if self.supervised:
            left = reap.clear(self.spare(), grace_s=0.5)
            reap.sweep_shared_memory(self._began)
        self._output.finish()
        self.watch.finish()
        self.writer.write({"ev": "exit", "t": ended, "code": status})
        return Ended(
            status=status,
            facts=self._all_facts(status),
            ranks=self.watch.ranks(),
            signal=self._signal,
            left=left,
        )

    def doom(self, why: str) -> None:
        """The attempt is lost: end it now. May be called from any thread."""
        if not self._doomed:
            self._doomed = why
            os.kill(os.getpid(), signal.SIGCHLD)  # wakes `_wait`

    def _died(self, process: Followed) -> None:
        if (
            process.fatal
            and not process.clean
            and self._signal is None
            and self.would_restart(self._known())
        ):
            self.doom(f"rank {process.rank} died")

    def _wait(self, child: Process) -> int:
        """Until the command ends; signals that come meanwhile are noted and passed on."""
        while True:
            status = child.poll()
            if status is not None:
                return status
            if self.supervised:
                reap.collect({child.pid, *self.spare()})
            if self._doomed:
                return self._end(child)
            for call in self.on_wake:
                call()
            taken = signals.take(1.0)
            if taken is None:
                continue
            number, sender, has_it = taken
            if number in signals.STOPPING:
                self._signal = self._signal or int(number)
                event = {"ev": "signal", "t": now(), "signal": int(number), "from": sender}
                self.writer.write(event)
            if not has_it:
                signals.pass_on(number, child.pid, self.watch.recording())

    def _end(self, child: Process) -> int:
        """Its ranks may save what they can, its agent has nothing left to do."""
        ranks = {rank.pid for rank in self.watch.ranks() if rank.died is None}
        reap.end(ranks, GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        tree.wait_gone([child.pid], 60.0)
        while (status := child.poll()) is None:
            time.sleep(0.001)
        return status

    def _all_facts(self, status: int) -> list[Fact]:
        facts = self._known()
        facts += kernel.since(self._kernel)
        with self._output.text() as log:
            facts += read_log(log, node=self.node)
        if not self._doomed:
            facts.append(self.fact("exit", code=status, at=now()))
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            facts.append(self.fact("signal", text=f"the launcher was sent {name}"))
        return facts

    def _known(self) -> list[Fact]:
        """What the journals of this host and the watch tell, in a moment."""
        found = list(self.facts)
        codes: dict[int, int] = {}
        for process in list(self.watch.processes.values()):
            for failure in process.failed:
                codes.setdefault(failure["pid"], failure["code"])
        ranks = self.watch.ranks()
        alone = 0 if len(ranks) == 1 else None  # what the ledger calls a rank without a number
        for process in ranks:
            rank = alone if process.rank is None else process.rank
            about: dict[str, Any] = {"rank": rank, "node": process.head.get("host")}
            for error in process.errors:
                text = f"{error.get('type')}: {error.get('message')}"
                found.append(self.fact("exception", text=text, at=error["t"], **about))
            code = codes.get(process.pid, process.code)
            if process.died is not None and code and not process.errors:
                found.append(self.fact("exit", code=code, at=process.died, **about))
        return found

    def fact(
        self,
        source: str,
        *,
        text: str = "",
        code: int | None = None,
        rank: int | None = None,
        node: str | None = None,
        at: int | None = None,
    ) -> Fact:
        """A fact of this node unless another is named; `at` is a time of this journal's clock."""
        node = node or self.node
        seconds = None if at is None or node != self.node else time.time() - (now() - at) / 1e9
        return Fact(source=source, text=text, code=code, rank=rank, node=node, at=seconds)


def environment(target: Target, launch: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the command gets: ours first on PYTHONPATH, and where to write."""
    path = [str(BOOT), *filter(None, [env.get("PYTHONPATH")])]
    return {
        STORE: "1",
        **env,
        "PYTHONPATH": os.pathsep.join(path),
        "HEADWAY_RUN": target.run,
        probe.ENV_FOLDER: str(target.journal.resolve()),
        probe.ENV_LAUNCH: launch,
    }


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
