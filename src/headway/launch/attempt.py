"""One attempt: start the command, watch it, forward signals, end it, and gather why it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import headway
from headway import probe
from headway.journal.writer import Writer, head, now
from headway.launch import child_process, processes, signals
from headway.launch.child_process import ChildProcess
from headway.launch.evidence import Evidence
from headway.launch.failures import Fact, classify
from headway.launch.process_watch import ProcessWatch
from headway.launch.pulse_pages import PulsePages
from headway.launch.rank_tail import RankTail
from headway.launch.run_folder import RunFolder
from headway.launch.stderr_tap import StderrTap

T = TypeVar("T")

BOOT = Path(headway.__file__).parent / "probe" / "boot"
# torchrun's own restarts share one store, in which new ranks find the addresses of dead ranks: with
# gloo, two of three restarts hang or fail in torch 2.13.
DISABLE_SHARED_STORE_ENV = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
DISABLE_SHARED_STORE_NOTE = (
    f"{DISABLE_SHARED_STORE_ENV}=1 was set, so that restarted ranks do not find the addresses of "
    "dead ranks"
)
GRACE_S = 5.0  # for a rank that handles SIGTERM after another rank has died
# For what remains after the ranks have ended: helper processes that nothing waits for.
LEFTOVER_GRACE_S = 0.1
KILLED_S = 60.0  # for a process that got SIGKILL: in state D it may stay until its device answers
MAX_DIGITS = 40  # digits of a time in seconds
HURRIED_S = 5.0  # the same after a stop was requested


@dataclass(kw_only=True)
class AttemptResult:
    """How an attempt ended, and the facts that may explain it."""

    status: int
    facts: list[Fact]
    elastic_restarts: list[list[RankTail]]  # the ranks of each restart that torchrun made itself
    signal: int | None = None  # the first stop signal that the launcher received
    unkillable: list[int] = field(default_factory=list)  # processes that could not be ended

    @property
    def stepped(self) -> bool:
        """Whether any rank made a step."""
        return any(rank.pulse().steps for ranks in self.elastic_restarts for rank in ranks)


class Attempt:
    """One attempt of the command.

    `supervised`: everything that it started is ended before another attempt starts.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        number: int,
        *,
        supervised: bool,
        pages: PulsePages | None = None,
    ) -> None:
        self.run_folder = run_folder
        self.number = number
        self.supervised = supervised
        self.launch = run_folder.launch if number == 0 else f"{run_folder.launch}.{number}"
        name = f"launcher-{self.launch}-{os.uname().nodename}-{os.getpid()}.jsonl"
        memory = "" if pages is None else str(pages.folder)
        self.writer = Writer(str(run_folder.journal / name), os.getpid(), memory)
        first = head("launcher", launch=self.launch, index=run_folder.index + number)
        # The first attempt starts with this process and its allocation, a later one starts now.
        times = _scheduler_times(os.environ) if number == 0 else {"begin": first["t"]}
        self.writer.write({**first, **times, "fs": self.writer.file_clock()})
        self.stderr_tap = StderrTap(through_pipe=supervised)
        self.watch = ProcessWatch(run_folder.journal, self.launch, self.writer, pages)
        self.evidence = Evidence(self.watch, self.stderr_tap)
        self.would_restart: Callable[[list[Fact]], bool] = lambda facts: False
        self.ticks: list[Callable[[], None]] = []  # called about once per second in the main thread
        self.helper_pids: Callable[[], set[int]] = set  # processes that belong to the launcher
        # For this attempt only.
        self.extra_env: dict[str, str] = {probe.ENV_PAGES: memory} if memory else {}
        self.stop_signal: int | None = None  # the first stop signal
        self.child: ChildProcess | None = None  # set when the command has started
        self._end_reason = ""
        self._faults: set[str] = set()
        self._job_pids: set[int] = set()  # every process that was ever seen below the launcher
        self.shared_memory = processes.SharedMemory()

    def run(
        self, command: Sequence[str], spawn: Callable[..., ChildProcess | None]
    ) -> AttemptResult:
        """Run the command to its end. `spawn` may start it in another way; raises OSError if
        neither can.
        """
        started = now()
        env = {**environment(self.run_folder, self.launch), **self.extra_env}
        if DISABLE_SHARED_STORE_ENV not in env and uses_elastic_restarts(command):
            env[DISABLE_SHARED_STORE_ENV] = "1"
            fields = {
                "hook": "torchrun",
                "code": "rendezvous-store-not-shared",
                "text": DISABLE_SHARED_STORE_NOTE,
            }
            self.writer.write({"ev": "note", "t": started, **fields})
        child = None
        if self.poll_signals() is None:
            child = self.guarded(
                spawn, command, env, self.stderr_tap.stdout, self.stderr_tap.stderr
            )
        if child is None:
            if (
                number := self.poll_signals()
            ) is not None:  # received before there was a process to forward it to
                self.writer.write({"ev": "exit", "t": now(), "code": -number})
                return AttemptResult(status=-number, facts=[], elastic_restarts=[[]], signal=number)
            child = child_process.start(
                command, env, self.stderr_tap.stdout, self.stderr_tap.stderr
            )
        self.child = child
        try:
            command_fields = {"pid": child.pid, "command": list(command)}
            self.writer.write({"ev": "spawn", "t": started, **command_fields})
            return self._watch_until_end(child)
        except Exception as error:  # an internal error: the job continues without a record
            self.fault(error)
            status = child_process.wait(
                child, lambda *signal_args: self.guarded(self._record_signal, *signal_args)
            )
            self.guarded(self.writer.write, {"ev": "exit", "t": now(), "code": status})
            fact = self.guarded(lambda: self.evidence.fact("exit", code=status, at=now()))
            facts = [] if fact is None else [fact]
            will_restart = self.supervised and status and self.stop_signal is None
            unkillable = self.guarded(self._reap_leftovers) if will_restart else None
            return AttemptResult(
                status=status,
                facts=facts,
                elastic_restarts=[[]],
                signal=self.stop_signal,
                unkillable=unkillable or [],
            )

    def _watch_until_end(self, child: ChildProcess) -> AttemptResult:
        """Watch the command until it has ended, and collect the facts."""
        self.stderr_tap.child_started()
        if self.supervised:
            self.watch.on_death.append(self._died)
            # Loading the rules takes a moment, which must not delay the handling of a failure.
            threading.Thread(target=classify, args=((),), daemon=True).start()
        self.watch.start()
        status = self._wait(child)
        ended = now()
        self.poll_signals()
        unkillable = [child.pid] if child.poll() is None else []
        if self.supervised and status and self.stop_signal is None:
            unkillable = self._reap_leftovers()
        self.stderr_tap.drain()
        self.watch.finish()
        for process in self.watch.processes.values():
            if process.pid == child.pid:  # only its parent can see how it ended
                process.code, process.died = status, process.died or ended
        self.writer.write({"ev": "exit", "t": ended, "code": status})
        return AttemptResult(
            status=status,
            facts=self.evidence.all_facts(status, self.stop_signal, self._job_pids),
            elastic_restarts=self.watch.elastic_restarts(),
            signal=self.stop_signal,
            unkillable=unkillable,
        )

    def guarded(self, call: Callable[..., T], *args: object) -> T | None:
        """Call an internal function; None if it fails, which must not affect the job."""
        try:
            return call(*args)
        except Exception as error:
            self.fault(error)
            return None

    def fault(self, error: Exception) -> None:
        """Record an internal error, each one once."""
        text = f"{type(error).__name__}: {error}"
        if text not in self._faults:
            self._faults.add(text)
            fields = {"hook": "launcher", "code": "launcher-fault", "text": text}
            self.writer.write({"ev": "note", "t": now(), **fields})

    def request_end(self, reason: str) -> None:
        """End the attempt now; may be called from any thread.

        Ignored after a stop signal: then the job ends by itself, in the time that its scheduler
        grants.
        """
        if not self._end_reason and self.stop_signal is None:
            self._end_reason = reason
            os.kill(os.getpid(), signal.SIGCHLD)  # wakes `_wait`

    def poll_signals(self) -> int | None:
        """Record pending signals; return the first stop signal received so far, if any."""
        while (received := signals.next_signal(0)) is not None:
            self._record_signal(*received[:2])
        return self.stop_signal

    def _record_signal(self, number: signal.Signals, sender: int) -> None:
        if signals.is_stop_signal(number):
            self.stop_signal = self.stop_signal or int(number)
            event = {"ev": "signal", "t": now(), "signal": int(number), "from": sender}
            self.writer.write(event)

    def _died(self, rank: RankTail) -> None:
        if rank.ends_attempt and rank.failed and self.would_restart(self.evidence.known_facts()):
            self.request_end(f"rank {rank.rank} died")

    def _wait(self, child: ChildProcess) -> int:
        """Wait until the command ends; record and forward signals that arrive meanwhile."""
        while True:
            status = child.poll()
            if status is not None:
                return status
            self.guarded(self._reap_orphans, child)
            if self._end_reason:
                return self._end_job(child)
            for call in self.ticks:
                self.guarded(call)
            received = signals.next_signal(child_process.WAKE_S)
            if received is not None:
                number, sender, job_has_it = received
                self._record_signal(number, sender)
                if not job_has_it:
                    recording = self.guarded(self.watch.recording) or set()
                    signals.forward(number, child.pid, recording)

    def _reap_orphans(self, child: ChildProcess) -> None:
        """Reap orphans of the job, or of the whole container where this process is its init."""
        if not (self.supervised or os.getpid() == 1):
            return
        table = processes.process_table()
        pids = processes.descendants(os.getpid(), table)
        self._job_pids |= pids
        self.shared_memory.record_files(pids)
        processes.reap_zombies({child.pid, *self.helper_pids()}, table)

    def _end_job(self, child: ChildProcess) -> int:
        """End the job: ranks may still save, torchrun's agent is killed."""
        self.evidence.ended_by_us = now()
        ranks = self.watch.ranks()
        alive = {rank.pid for rank in ranks if rank.died is None}
        if alive or not ranks:
            processes.end_processes(alive or {child.pid}, GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        until, is_hurried = time.monotonic() + KILLED_S, False
        while (status := child.poll()) is None:
            if not is_hurried and self.poll_signals() is not None:
                until, is_hurried = min(until, time.monotonic() + HURRIED_S), True
            if time.monotonic() > until:
                return -signal.SIGKILL
            time.sleep(0.001)
        return status

    def _reap_leftovers(self) -> list[int]:
        """End everything that the attempt left behind; return the processes that could not be
        ended.
        """
        pids = processes.descendants(os.getpid())
        self._job_pids |= pids
        self.shared_memory.record_files(pids)
        stop = lambda: self.poll_signals() is not None  # noqa: E731
        unkillable = processes.end_descendants(
            self.helper_pids(), grace_s=LEFTOVER_GRACE_S, limit_s=KILLED_S, stop=stop
        )
        self.shared_memory.remove_leftovers()
        return unkillable


def environment(
    run_folder: RunFolder, launch: str, env: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The command's environment: the probe comes first on PYTHONPATH and knows where to record."""
    path = [str(BOOT), *filter(None, [env.get("PYTHONPATH")])]
    return {
        **{name: value for name, value in env.items() if name not in probe.INTERNAL_ENV},
        "PYTHONPATH": os.pathsep.join(path),
        "HEADWAY_RUN": run_folder.run,
        probe.ENV_FOLDER: run_folder.absolute_journal,
        probe.ENV_LAUNCH: launch,
    }


def uses_elastic_restarts(command: Sequence[str]) -> bool:
    """Whether torchrun was asked to restart its workers itself."""
    words = [word.replace("_", "-") for word in command]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name == "--max-restarts":
            return (value or following) not in ("", "0")
    return False


def _scheduler_times(env: Mapping[str, str]) -> dict[str, object]:
    """Facts of the scheduler about this launch: times of queuing and allocation, job, requeues."""
    times: dict[str, object] = {}
    sources = {
        "allocated": ("HEADWAY_ALLOCATED_AT", "SLURM_JOB_START_TIME"),
        "queued": ("HEADWAY_QUEUED_AT",),
    }
    for key, names in sources.items():
        for name in names:
            text = env.get(name, "")
            if text.replace(".", "", 1).isdecimal() and len(text) < MAX_DIGITS:
                times.setdefault(key, int(float(text) * 1e9))
    for key, name in (("scheduler_job", "SLURM_JOB_ID"), ("requeues", "SLURM_RESTART_COUNT")):
        if env.get(name):
            times[key] = env[name]
    return times
