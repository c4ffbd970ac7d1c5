"""Carry out one eviction: ask the victims to save, then run `scontrol requeue`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from headway.errors import SlurmRefused, with_code
from headway.schedule.slurm.cluster import ClusterState, SlurmJob
from headway.schedule.slurm.victims import RunStatus
from headway.slurm import RunCommand

ReadStatus = Callable[[SlurmJob], RunStatus | None]
Log = Callable[[str], None]
SIGNAL = "USR1"  # see headway.checkpoint.preemption
GIVE_UP_S = 300.0  # after the grace period; slurmctld purges ended jobs (MinJobAge)
FINAL_STATE_COMMAND = ("squeue", "--states=all", "--noheader", "--format=%T", "--jobs")
# Of a job that handled the signal, or was killed by it.
STATES_AFTER_SIGNAL = ("COMPLETED", "FAILED")
SETTLE_S = 120.0  # after the grace period, for victims to end and the waiting job to start
# The signal kills a shell that waits for its command, and with it the job. `exec 2>&1` starts
# no command, and `trap '' USR1` ignores the signal.
_FORWARDS_SIGNAL = re.compile(
    r"""^\s*exec\s+[^\s<>&\d]|\btrap\s+(?!''|""|-)\S.*\b(?:SIG)?USR1\b""", re.MULTILINE
)


@dataclass(slots=True, kw_only=True)
class Victim:
    """A job to evict."""

    job: SlurmJob
    signaled: bool  # it can save, and is asked to
    done: bool = False
    reason: str = ""  # why it can be requeued now


@dataclass(slots=True, kw_only=True)
class Eviction:
    """The victims of one waiting job; times are seconds since the epoch."""

    waiter: SlurmJob
    victims: list[Victim]
    placement: tuple[tuple[str, int], ...]
    at: float
    grace: float
    logged: set[str] = field(default_factory=set)

    def over(self, now: float, state: ClusterState) -> bool:
        """Whether all victims are requeued, and the waiting job has started or had time to."""
        if not all(victim.done for victim in self.victims):
            return False
        return not _is_waiting(self.waiter, state) or now - self.at > self.grace + SETTLE_S

    def numbers(self) -> set[int]:
        return {victim.job.number for victim in self.victims}

    def reserved(self, state: ClusterState) -> dict[str, int]:
        """Free accelerators that the waiting job will use, by node."""
        if not _is_waiting(self.waiter, state):
            return {}
        wanted = dict(self.placement)
        for victim in self.victims:
            job = state.job(victim.job.number)
            for name, count in job.placement if job is not None and job.state == "RUNNING" else ():
                wanted[name] = wanted.get(name, 0) - count
        return {name: count for name, count in wanted.items() if count > 0}

    def begin(self, run: RunCommand, log: Log, jobs_with_steps: frozenset[int]) -> None:
        """Signal the victims that can save."""
        for victim in self.victims:
            if not victim.signaled:
                continue
            number = str(victim.job.number)
            target = () if victim.job.number in jobs_with_steps else ("--batch",)
            try:
                run("scancel", f"--signal={SIGNAL}", *target, number)
                log(f"job {number}: signaled to save, for job {self.waiter.number}")
            except SlurmRefused as error:  # it may just have ended
                text = f"job {number}: could not be signaled: {error}"
                log(with_code(text, code="job-not-asked"))

    def advance(
        self, now: float, state: ClusterState, read: ReadStatus, run: RunCommand, log: Log
    ) -> None:
        """Requeue victims that have saved or used up the grace period, then the others."""
        waiting = [victim for victim in self.victims if victim.signaled and not victim.done]
        for victim in waiting:
            victim.reason = victim.reason or self._ready(victim, now, state, read)
        ready = [victim for victim in waiting if victim.reason]
        if not waiting:
            ready = [victim for victim in self.victims if not victim.done]
        for victim in ready:
            self._requeue(victim, now, state, read, run, log)

    def _ready(self, victim: Victim, now: float, state: ClusterState, read: ReadStatus) -> str:
        job = state.job(victim.job.number)
        if job is None or job.state not in ("RUNNING", "COMPLETING"):
            return "has ended"
        status = read(victim.job)
        if status is not None and status.saved_at is not None and status.saved_at >= self.at:
            return "has saved"
        return f"has not saved within {self.grace:g} s" if now - self.at >= self.grace else ""

    def _requeue(
        self,
        victim: Victim,
        now: float,
        state: ClusterState,
        read: ReadStatus,
        run: RunCommand,
        log: Log,
    ) -> None:
        number = str(victim.job.number)
        job = state.job(victim.job.number)
        if job is not None and job.state == "PENDING":
            victim.done = True
            return
        try:
            if _ended_by_itself(victim, job, read, run):
                log(f"job {number}: ended by itself, not requeued")
                victim.done = True
                return
            run("scontrol", "requeue", number)
        except SlurmRefused as error:  # while it is completing; retried at the next poll
            victim.done = now - self.at > self.grace + GIVE_UP_S
            text = f"job {number}: could not be requeued: {error}"
            self._log_once(log, with_code(text, code="job-not-requeued"))
            return
        victim.done = True
        log(f"job {number}: {victim.reason or 'cannot save on a signal'}, requeued")

    def _log_once(self, log: Log, text: str) -> None:
        if text not in self.logged:
            self.logged.add(text)
            log(text)


def _ended_by_itself(
    victim: Victim, job: SlurmJob | None, read: ReadStatus, run: RunCommand
) -> bool:
    """Whether the job ended for a reason of its own or was cancelled: do not requeue it."""
    if job is not None and job.state == "RUNNING":
        return False
    status = read(victim.job)
    if not victim.signaled or (status is not None and status.outcome == "completed"):
        return True
    return (
        job is None
        and run(*FINAL_STATE_COMMAND, str(victim.job.number)).strip() not in STATES_AFTER_SIGNAL
    )


def _is_waiting(job: SlurmJob, state: ClusterState) -> bool:
    now = state.job(job.number)
    return now is not None and now.state == "PENDING"


def responds_to_signal(
    job: SlurmJob, status: RunStatus | None, jobs_with_steps: frozenset[int], run: RunCommand
) -> bool:
    """Whether the signal reaches a run that saves, without killing anything on the way."""
    if status is None or status.save is None:
        return False
    if job.number in jobs_with_steps:
        return True
    try:
        script = run("scontrol", "write", "batch_script", str(job.number), "-")
    except SlurmRefused:
        return False
    return _FORWARDS_SIGNAL.search(script) is not None
