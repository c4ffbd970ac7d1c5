"""The built-in preemption policies: who is evicted when a job within its quota does not fit.

Other packages add policies through the entry-point group `headway.policies`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from headway.errors import UsageError
from headway.eviction_cost import eviction_cost
from headway.schedule.model import Job
from headway.schedule.preemption import Policy, PreemptionContext, select_victims


@dataclass(frozen=True, kw_only=True)
class Newest:
    """By the start of the attempt."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The newest ones."""
        order = sorted(scene.candidates(), key=lambda job: (-job.since, job.number))
        return select_victims(scene, order)


@dataclass(frozen=True, kw_only=True)
class MinimumRun:
    """A time by the clock that every attempt is left alone."""

    seconds: float = 7200.0
    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The newest ones that are old enough."""
        latest = scene.now - self.seconds
        found = [job for job in scene.candidates() if job.since <= latest]
        return select_victims(scene, sorted(found, key=lambda job: (-job.since, job.number)))


@dataclass(frozen=True, kw_only=True)
class Largest:
    """By accelerators; of equals, the newest."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The largest ones."""
        order = sorted(scene.candidates(), key=lambda job: (-job.gpus, -job.since, job.number))
        return select_victims(scene, order)


@dataclass(frozen=True, kw_only=True)
class LeastLost:
    """By the time since the newest durable checkpoint, and the time to recover."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """Those that lose least."""
        now = scene.now
        order = sorted(
            scene.candidates(), key=lambda job: (job.unsaved(now) + job.recover, job.number)
        )
        return select_victims(scene, order)


@dataclass(frozen=True, kw_only=True)
class LeastCost:
    """By the price of an eviction: see headway.schedule.cost."""

    notice: bool = True
    stagger: bool = False
    reserve: float = 0.0  # seconds after which nodes are held back for a gang; 0: never
    phase: bool = False  # nobody goes before the first durable checkpoint of its attempt
    cap: int = 10  # nobody goes more often
    repeat: float = 60.0  # seconds, for each earlier preemption
    nominal: bool = True  # below its tenant's quota nothing is freed: that would be reclaimed
    each: float = 1800.0  # accelerator-seconds, for each victim: fewer and larger ones

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The cheapest ones without a protected job; only if there are none, with some."""
        over = [tenant.over for tenant in scene.tenants]

        def rate(job: Job) -> tuple[float, int]:
            freed = min(job.gpus, over[job.tenant]) if self.nominal else job.gpus
            return self.price(job, scene) / freed, job.number

        order = sorted(scene.candidates(), key=rate)
        exposed = [job for job in order if not self._protected(job, scene.now)]
        return select_victims(scene, exposed) or select_victims(scene, order)

    def price(self, job: Job, scene: PreemptionContext) -> float:
        """Accelerator-seconds."""
        return self.each + eviction_cost(
            job.gpus,
            job.unsaved(scene.now),
            job.recover,
            save=job.save if job.listens else None,
            grace=scene.grace if self.notice else 0.0,
            preemptions=job.preemptions,
            repeat=self.repeat,
        )

    def _protected(self, job: Job, now: float) -> bool:
        if self.cap and job.preemptions >= self.cap:
            return True
        return self.phase and job.listens and not job.progress(now)[1]


GROUP = "headway.policies"
BUILT_IN: dict[str, Callable[..., Policy]] = {
    "newest": Newest,
    "newest-2h": MinimumRun,
    "largest": Largest,
    "least-lost": LeastLost,
    "least-cost": LeastCost,
}
_SWITCH_VALUES = {"on": True, "off": False}


def parse_policy(text: str) -> Policy:
    """A policy by its name, with switches: `least-cost:notice=off:cap=3`."""
    name, *switches = text.split(":")
    make = BUILT_IN.get(name) or _entry_point_policies().get(name)
    if make is None:
        known = ", ".join((*BUILT_IN, *_entry_point_policies()))
        raise UsageError(
            f"there is no policy {name!r}; there are {known}", code="policy-unknown", policy=name
        )
    try:
        return make(**dict(_parse_switch(make, name, switch) for switch in switches))
    except TypeError as error:
        raise UsageError(
            f"the policy {name} cannot be made: {error}", code="policy-switch-invalid", policy=name
        ) from error


def _entry_point_policies() -> dict[str, Callable[..., Policy]]:
    return {point.name: point.load() for point in entry_points(group=GROUP)}


def _parse_switch(make: Callable[..., Policy], policy: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    # Policies of others need not be dataclasses; what theirs take is said when they are made.
    known = [one.name for one in dataclasses.fields(make)] if dataclasses.is_dataclass(make) else ()
    if known and name not in known:
        raise UsageError(
            f"the policy {policy} has no {name!r}; it has {', '.join(known)}",
            code="policy-switch-unknown",
            switch=name,
        )
    if not equals:
        raise UsageError(
            f"{text!r} says no value; write {name}=on, {name}=off or a number",
            code="policy-switch-invalid",
            switch=name,
        )
    if value in _SWITCH_VALUES:
        return name, _SWITCH_VALUES[value]
    try:
        number = float(value)
    except ValueError:
        raise UsageError(
            f"{value!r} is neither on, off nor a number; in {text!r}",
            code="policy-switch-invalid",
            switch=name,
        ) from None
    return name, int(number) if number.is_integer() else number
