"""Look at the cluster, choose who goes, and see it through; again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headway.errors import SlurmRefused, UsageError, with_code
from headway.schedule.policies.policy import Policy
from headway.schedule.slurm.calls import RunCommand
from headway.schedule.slurm.choose import VictimChoice, candidates, choose_victims
from headway.schedule.slurm.evict import Eviction, Victim, responds_to_signal
from headway.schedule.slurm.runs import RunIndex, RunStatus
from headway.schedule.slurm.state import ClusterState, SlurmJob, read_cluster

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
