"""Watch a Slurm cluster, evict jobs for those that wait, and follow each eviction to its end.

The run of a job is found by the job comment (`sbatch --comment=headway=FOLDER`), below `headway`
in the folder where the job was submitted, or below a folder given by the administrator: it is the
run whose launcher recorded the job id.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.errors import HeadwayError, SlurmRefused, UsageError, with_code
from headway.run import load
from headway.schedule import cost
from headway.schedule.preemption import Policy
from headway.schedule.slurm.cluster import ClusterState, SlurmJob, read_cluster
from headway.schedule.slurm.eviction import Eviction, Victim, responds_to_signal
from headway.schedule.slurm.victims import RunStatus, VictimChoice, candidates, choose_victims
from headway.slurm import RunCommand
from headway.units import NS

LAUNCHER_JOURNALS = "journal/launcher-*.jsonl"  # the first line is the header: docs/journal.md
_COMMENT = re.compile(r"(?:^|[\s;,])headway=([^\s;,]+)")
POLL_S = 1.0  # while evictions are active


class RunIndex:
    """Finds the runs of jobs and caches their folders."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._known: dict[int, Path] = {}

    def folder(self, job: SlurmJob) -> Path | None:
        """The folder of a job's run, or None."""
        folder = self._known.get(job.number)
        if folder is None:
            folder = next(
                (path for path in self._likely(job) if _belongs_to_job(path, job.number)), None
            )
            if folder is not None:
                self._known[job.number] = folder
        return folder

    def status(self, job: SlurmJob) -> RunStatus | None:
        """The status of a job's run; None without a readable run."""
        folder = self.folder(job)
        return None if folder is None else read_run_status(folder)

    def _likely(self, job: SlurmJob) -> Iterator[Path]:
        named = _COMMENT.search(job.comment)
        if named is not None:
            yield Path(job.folder, named[1])
        for folder in (Path(job.folder, "headway"), *self._folders):
            with contextlib.suppress(OSError):
                yield from sorted(folder.iterdir())


def read_run_status(folder: Path) -> RunStatus | None:
    try:
        ledger = load(folder).ledger
    except (HeadwayError, OSError):
        return None
    if not ledger.attempts:
        return None
    eviction_cost, last = cost.from_ledger(ledger), ledger.attempts[-1]
    saved_at = ledger.wall - round(eviction_cost.unsaved * NS)
    has_checkpointer = any(save.level == "disk" for save in ledger.outcomes)
    return RunStatus(
        unsaved=eviction_cost.unsaved,
        saved_at=ledger.clock(saved_at, end=True) / NS if saved_at > last.start else None,
        save=eviction_cost.save if has_checkpointer else None,
        recover=eviction_cost.recover,
        preemptions=eviction_cost.preemptions,
        outcome=last.outcome,
    )


def _belongs_to_job(folder: Path, number: int) -> bool:
    """Whether a launcher of this run was started by that job."""
    with contextlib.suppress(OSError):
        for path in folder.glob(LAUNCHER_JOURNALS):
            if _scheduler_job(path) == str(number):
                return True
    return False


def _scheduler_job(path: Path) -> str:
    if not path.is_file():  # opening a pipe would block
        return ""
    with contextlib.suppress(OSError, ValueError, AttributeError), path.open("rb") as file:
        return str(json.loads(file.readline(1 << 16)).get("scheduler_job", ""))
    return ""


@dataclass(slots=True, kw_only=True)
class PreemptionController:
    """Watches one cluster and evicts jobs."""

    run_command: RunCommand
    log: Callable[[str], None]
    policy: Policy
    runs: RunIndex
    grace: float
    quotas: Mapping[str, int] = field(default_factory=dict)
    only_qos: frozenset[str] = frozenset()  # QOS of waiting jobs; empty: all that preempt
    dry_run: bool = False
    clock: Callable[[], float] = time.time
    evictions: list[Eviction] = field(default_factory=list)
    _unsatisfied: set[int] = field(
        default_factory=set
    )  # waiting jobs that an eviction did not start
    _reported: dict[int, str] = field(default_factory=dict)

    def loop(self, interval: float, *, once: bool, stopped: Callable[[float], bool]) -> None:
        """Poll the cluster; at the end, complete the evictions that have begun.

        `stopped` waits so many seconds and returns whether to stop.
        """
        self.poll()
        ending = once
        while not ending or self.evictions:
            ending = stopped(min(POLL_S, interval) if self.evictions else interval) or ending
            try:
                self.poll(new=not ending)
            except SlurmRefused as error:  # slurmctld may be restarting
                self.log(with_code(str(error), code=error.code))

    def poll(self, *, new: bool = True) -> None:
        """Advance active evictions and, if `new`, begin others."""
        state = read_cluster(self.run_command)
        self._check_qos(state)
        for eviction in self.evictions:
            eviction.advance(self.clock(), state, self.runs.status, self.run_command, self.log)
        for eviction in [
            eviction for eviction in self.evictions if eviction.over(self.clock(), state)
        ]:
            self.evictions.remove(eviction)
            if eviction.reserved(state):
                self._unsatisfied.add(eviction.waiter.number)
                text = f"job {eviction.waiter.number}: still waiting; no more evictions for it"
                self.log(with_code(text, code="eviction-in-vain"))
        for waiter in self._waiters(state) if new else ():
            self._serve(waiter, state)

    def _check_qos(self, state: ClusterState) -> None:
        for name in sorted(self.only_qos - state.qos.keys()):
            known = ", ".join(state.qos)
            raise UsageError(
                f"there is no QOS {name!r}; use one of {known}", code="qos-unknown", qos=name
            )

    def _waiters(self, state: ClusterState) -> list[SlurmJob]:
        """Waiting jobs that may preempt and have no eviction yet."""
        served = {eviction.waiter.number for eviction in self.evictions} | self._unsatisfied
        return [
            job
            for job in state.waiting()
            if job.gpus and job.number not in served and self._preempts(job, state)
        ]

    def _preempts(self, job: SlurmJob, state: ClusterState) -> bool:
        qos = state.qos.get(job.qos)
        return (
            qos is not None
            and bool(qos.preempts)
            and (not self.only_qos or job.qos in self.only_qos)
        )

    def _serve(self, waiter: SlurmJob, state: ClusterState) -> None:
        victims = {number for eviction in self.evictions for number in eviction.numbers()}
        statuses = self._statuses(waiter, state, victims)
        choice = choose_victims(
            waiter,
            state,
            statuses,
            self.policy,
            now=self.clock(),
            grace=self.grace,
            quotas=self.quotas,
            reserved=self._reserved(state),
        )
        if not choice.victims:
            if self._reported.get(waiter.number) != choice.reason:
                self._reported[waiter.number] = choice.reason
                self.log(f"job {waiter.number} ({waiter.qos}): no eviction: {choice.reason}")
            return
        self._evict(waiter, choice, state, statuses)

    def _statuses(
        self, waiter: SlurmJob, state: ClusterState, victims: set[int]
    ) -> dict[int, RunStatus | None]:
        """The status of each candidate; its save time counts only if it responds to the signal."""
        statuses: dict[int, RunStatus | None] = {}
        for job in candidates(waiter, state):
            if job.number in victims:
                continue
            status = self.runs.status(job)
            if status is not None and not responds_to_signal(
                job, status, state.jobs_with_steps, self.run_command
            ):
                status = replace(status, save=None)
            statuses[job.number] = status
        return statuses

    def _reserved(self, state: ClusterState) -> dict[str, int]:
        total: dict[str, int] = {}
        for eviction in self.evictions:
            for name, count in eviction.reserved(state).items():
                total[name] = total.get(name, 0) + count
        return total

    def _evict(
        self,
        waiter: SlurmJob,
        choice: VictimChoice,
        state: ClusterState,
        statuses: Mapping[int, RunStatus | None],
    ) -> None:
        names = ", ".join(_describe_victim(job, statuses[job.number]) for job in choice.victims)
        action = "would evict" if self.dry_run else "evicting"
        self.log(f"job {waiter.number} ({waiter.qos}, {waiter.gpus} GPU): {action} {names}")
        if self.dry_run:
            return
        notice = self.policy.notice
        eviction = Eviction(
            waiter=waiter,
            victims=[
                Victim(job=job, signaled=notice and _can_save(statuses[job.number]))
                for job in choice.victims
            ],
            placement=choice.placement,
            at=self.clock(),
            grace=self.grace,
        )
        eviction.begin(self.run_command, self.log, state.jobs_with_steps)
        self.evictions.append(eviction)


def _can_save(status: RunStatus | None) -> bool:
    return status is not None and status.save is not None


def _describe_victim(job: SlurmJob, status: RunStatus | None) -> str:
    if status is None:
        return f"job {job.number} (no eviction cost reported)"
    save = "cannot save on a signal" if status.save is None else f"a save takes {status.save:.1f} s"
    words = f"{status.unsaved:.1f} s unsaved, {save}, {status.recover:.1f} s to recover"
    return f"job {job.number} ({words})"
