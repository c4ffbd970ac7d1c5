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

LAUNCHER_JOURNALS = "journal/launcher-*.jsonl"  # their first line is the head: docs/journal.md
_COMMENT = re.compile(r"(?:^|[\s;,])headway=([^\s;,]+)")


class RunIndex:
    """Finds the runs of jobs, and keeps what it has found."""

    def __init__(self, places: Sequence[Path] = ()) -> None:
        self._places = tuple(places)
        self._found: dict[int, Path] = {}

    def folder(self, job: SlurmJob) -> Path | None:
        """Of the run that the job is."""
        known = self._found.get(job.number)
        if known is None:
            known = next(
                (path for path in self._likely(job) if _belongs_to_job(path, job.number)), None
            )
            if known is not None:
                self._found[job.number] = known
        return known

    def told(self, job: SlurmJob) -> RunStatus | None:
        """What its run says; None: it has none that can be read."""
        folder = self.folder(job)
        return None if folder is None else read_run_status(folder)

    def _likely(self, job: SlurmJob) -> Iterator[Path]:
        named = _COMMENT.search(job.comment)
        if named is not None:
            yield Path(job.folder, named[1])
        for place in (Path(job.folder, "headway"), *self._places):
            with contextlib.suppress(OSError):
                yield from sorted(place.iterdir())


def read_run_status(folder: Path) -> RunStatus | None:
    """What a run says of itself by now."""
    try:
        ledger = load(folder).ledger
    except (HeadwayError, OSError):
        return None
    if not ledger.attempts:
        return None
    price, last = cost.from_ledger(ledger), ledger.attempts[-1]
    taken = ledger.wall - round(price.unsaved * NS)
    heeds = any(one.level == "disk" for one in ledger.saved)  # a Checkpointer
    return RunStatus(
        unsaved=price.unsaved,
        saved_at=ledger.clock(taken, end=True) / NS if taken > last.start else None,
        save=price.save if heeds else None,
        recover=price.recover,
        preemptions=price.preemptions,
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
    if not path.is_file():  # opening a pipe would wait for its writer
        return ""
    with contextlib.suppress(OSError, ValueError, AttributeError), path.open("rb") as file:
        return str(json.loads(file.readline(1 << 16)).get("scheduler_job", ""))
    return ""


POLL_S = 1.0  # while somebody is asked to save


@dataclass(slots=True, kw_only=True)
class PreemptionController:
    """The watch over one cluster."""

    ask: RunCommand
    tell: Callable[[str], None]
    policy: Policy
    runs: RunIndex
    grace: float
    quotas: Mapping[str, int] = field(default_factory=dict)
    only: frozenset[str] = frozenset()  # preempting QOS; none: all that preempt
    dry: bool = False
    clock: Callable[[], float] = time.time
    evictions: list[Eviction] = field(default_factory=list)
    _in_vain: set[int] = field(default_factory=set)  # waiters that an eviction did not start
    _said: dict[int, str] = field(default_factory=dict)

    def loop(self, interval: float, *, once: bool, stopped: Callable[[float], bool]) -> None:
        """One look after the other; evictions that were begun are seen through at the end.

        `stopped` waits so many seconds, and says whether it is time to end.
        """
        self.look()
        ending = once
        while not ending or self.evictions:
            ending = stopped(min(POLL_S, interval) if self.evictions else interval) or ending
            try:
                self.look(new=not ending)
            except SlurmRefused as error:  # slurmctld may be starting again
                self.tell(with_code(str(error), code=error.code))

    def look(self, *, new: bool = True) -> None:
        """Once: go on with what is under way, and see who waits."""
        state = read_cluster(self.ask)
        self._known(state)
        for eviction in self.evictions:
            eviction.advance(self.clock(), state, self.runs.told, self.ask, self.tell)
        for one in [one for one in self.evictions if one.over(self.clock(), state)]:
            self.evictions.remove(one)
            if one.promised(state):
                self._in_vain.add(one.waiter.number)
                text = f"job {one.waiter.number} still waits; nobody else is evicted for it"
                self.tell(with_code(text, code="eviction-in-vain"))
        for waiter in self._waiters(state) if new else ():
            self._serve(waiter, state)

    def _known(self, state: ClusterState) -> None:
        for name in sorted(self.only - state.qos.keys()):
            known = ", ".join(state.qos)
            raise UsageError(
                f"there is no QOS {name!r}; there are {known}", code="qos-unknown", qos=name
            )

    def _waiters(self, state: ClusterState) -> list[SlurmJob]:
        """Preempting ones that are first in line in their partition, and not served yet."""
        served = {one.waiter.number for one in self.evictions} | self._in_vain
        return [
            job
            for job in state.waiting()
            if job.gpus and job.number not in served and self._preempts(job, state)
        ]

    def _preempts(self, job: SlurmJob, state: ClusterState) -> bool:
        qos = state.qos.get(job.qos)
        return qos is not None and bool(qos.preempts) and (not self.only or job.qos in self.only)

    def _serve(self, waiter: SlurmJob, state: ClusterState) -> None:
        gone = {number for one in self.evictions for number in one.numbers()}
        told = self._told(waiter, state, gone)
        choice = choose_victims(
            waiter,
            state,
            told,
            self.policy,
            now=self.clock(),
            grace=self.grace,
            quotas=self.quotas,
            promised=self._promised(state),
        )
        if not choice.victims:
            if self._said.get(waiter.number) != choice.why:
                self._said[waiter.number] = choice.why
                self.tell(f"job {waiter.number} ({waiter.qos}) waits: {choice.why}")
            return
        self._evict(waiter, choice, state, told)

    def _told(
        self, waiter: SlurmJob, state: ClusterState, gone: set[int]
    ) -> dict[int, RunStatus | None]:
        """What each candidate's run says; a save counts only where a signal reaches it."""
        found: dict[int, RunStatus | None] = {}
        for job in candidates(waiter, state):
            if job.number in gone:
                continue
            told = self.runs.told(job)
            if told is not None and not responds_to_signal(job, told, state.stepping, self.ask):
                told = replace(told, save=None)
            found[job.number] = told
        return found

    def _promised(self, state: ClusterState) -> dict[str, int]:
        total: dict[str, int] = {}
        for one in self.evictions:
            for name, count in one.promised(state).items():
                total[name] = total.get(name, 0) + count
        return total

    def _evict(
        self,
        waiter: SlurmJob,
        choice: VictimChoice,
        state: ClusterState,
        told: Mapping[int, RunStatus | None],
    ) -> None:
        names = ", ".join(_describe_victim(job, told[job.number]) for job in choice.victims)
        would = "would evict" if self.dry else "evicts"
        self.tell(f"job {waiter.number} ({waiter.qos}, {waiter.gpus} GPU) {would} {names}")
        if self.dry:
            return
        notice = self.policy.notice
        eviction = Eviction(
            waiter=waiter,
            victims=[
                Victim(job=job, asked=notice and _can_save(told[job.number]))
                for job in choice.victims
            ],
            places=choice.places,
            at=self.clock(),
            grace=self.grace,
        )
        eviction.begin(self.ask, self.tell, state.stepping)
        self.evictions.append(eviction)


def _can_save(told: RunStatus | None) -> bool:
    return told is not None and told.save is not None


def _describe_victim(job: SlurmJob, told: RunStatus | None) -> str:
    if told is None:
        return f"job {job.number} (tells nothing)"
    save = "no save at a signal" if told.save is None else f"a save takes {told.save:.1f} s"
    words = f"{told.unsaved:.1f} s unsaved, {save}, {told.recover:.1f} s to recover"
    return f"job {job.number} ({words})"
