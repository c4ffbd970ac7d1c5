"""Gather the facts about an attempt's end: journals, exit codes, the kernel, the log, Slurm."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from typing import Any

from headway.journal.writer import now
from headway.launch.failures import Fact, kernel_log, read_log, slurm
from headway.launch.process_watch import ProcessWatch
from headway.launch.stderr_tap import StderrTap
from headway.storage.process_identity import pid_space

# The process that a line of the kernel log is about, by its pid in the initial namespace.
_PROCESS_OF_LINE = re.compile(
    r"\[(\d+)\]: segfault|(?:[Kk]ill(?:ed)?|reaped) process (\d+)|\bpid='?(\d+)"
)
_OOM = re.compile(r"out of memory|\boom[-_]", re.IGNORECASE)
_MACHINE_PIDS = 0xEFFFFFFC  # PROC_PID_INIT_INO: the initial pid namespace


class Evidence:
    """Collects the facts of one attempt on this node."""

    def __init__(self, watch: ProcessWatch, stderr_tap: StderrTap) -> None:
        self.watch = watch
        self.stderr_tap = stderr_tap
        self.node = os.uname().nodename
        self.reported: list[Fact] = []  # by watchers, such as a hang
        self.ended_by_us: int | None = None  # from then on, the launcher itself causes deaths
        self._kernel = kernel_log.snapshot()

    def known_facts(self) -> list[Fact]:
        """What the journals of this host and the watchers know; takes no noticeable time."""
        facts = list(self.reported)
        codes: dict[int, int] = {}
        for process in list(self.watch.processes.values()):
            for failure in process.worker_failures:
                codes.setdefault(failure["pid"], failure["code"])
        ranks = self.watch.ranks()
        single_rank = (
            0 if len(ranks) == 1 else None
        )  # the rank that the ledger assigns to a process without one
        for process in ranks:
            rank = single_rank if process.rank is None else process.rank
            fields: dict[str, Any] = {"rank": rank, "node": process.head.get("host")}
            for error in process.errors:
                text = _exception_text(error)
                facts.append(self.fact("exception", text=text, at=error["t"], **fields))
            code = codes.get(process.pid, process.code)
            if (
                process.died is None
                or not code
                or process.errors
                or self._is_our_doing(process.died)
            ):
                continue
            facts.append(self.fact("exit", code=code, at=process.died, **fields))
        return facts

    def _is_our_doing(self, died: int) -> bool:
        return self.ended_by_us is not None and died >= self.ended_by_us

    def all_facts(self, status: int, stop_signal: int | None, pids: set[int]) -> list[Fact]:
        """All facts after the attempt has ended; `pids` are the processes that belonged to it."""
        facts = self.known_facts()
        own_pids = pids if pid_space() == _MACHINE_PIDS else set()
        facts += [
            fact for fact in kernel_log.since(self._kernel) if _concerns_job(fact.text, own_pids)
        ]
        with self.stderr_tap.text() as log:
            facts += read_log(log, node=self.node)
        if self.ended_by_us is None:
            facts.append(self.fact("exit", code=status, at=now()))
        if stop_signal is not None:
            name = signal.Signals(stop_signal).name
            facts.append(self.fact("signal", text=f"the launcher received {name}"))
        if stop_signal is not None or any(f.code in (-9, -15, 137, 143) for f in facts):
            facts += slurm.ask_slurm()  # the signal may be Slurm's
        return facts

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


def _exception_text(error: Mapping[str, Any]) -> str:
    """The last line of its traceback."""
    message = error.get("message")
    return f"{error.get('type')}: {message}" if message else str(error.get("type"))


def _concerns_job(text: str, pids: set[int]) -> bool:
    """Whether a line of the kernel log is about the job: a shared machine has others.

    A line that names no process may be about the job, except for an OOM kill, for which the
    counters are more precise.
    """
    match = _PROCESS_OF_LINE.search(text)
    if match is None:
        return not _OOM.search(text)
    return int(next(pid for pid in match.groups() if pid)) in pids
