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

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """The newest ones."""
        order = sorted(context.candidates(), key=lambda job: (-job.since, job.number))
        return select_victims(context, order)


@dataclass(frozen=True, kw_only=True)
class MinimumRun:
    """A time by the clock that every attempt is left alone."""

    seconds: float = 7200.0
    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """The newest ones that are old enough."""
        latest = context.now - self.seconds
        old_enough = [job for job in context.candidates() if job.since <= latest]
        return select_victims(context, sorted(old_enough, key=lambda job: (-job.since, job.number)))


@dataclass(frozen=True, kw_only=True)
class Largest:
    """By accelerators; of equals, the newest."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """The largest ones."""
        order = sorted(context.candidates(), key=lambda job: (-job.gpus, -job.since, job.number))
        return select_victims(context, order)


@dataclass(frozen=True, kw_only=True)
class LeastLost:
    """By the time since the newest durable checkpoint, and the time to recover."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """Those that lose least."""
        now = context.now
        order = sorted(
            context.candidates(), key=lambda job: (job.unsaved(now) + job.recover, job.number)
        )
        return select_victims(context, order)


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

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """The cheapest ones without a protected job; only if there are none, with some."""
        borrowed = [tenant.over for tenant in context.tenants]

        def rate(job: Job) -> tuple[float, int]:
            freed = min(job.gpus, borrowed[job.tenant]) if self.nominal else job.gpus
            return self.cost(job, context) / freed, job.number

        order = sorted(context.candidates(), key=rate)
        exposed = [job for job in order if not self._protected(job, context.now)]
        return select_victims(context, exposed) or select_victims(context, order)

    def cost(self, job: Job, context: PreemptionContext) -> float:
        """Accelerator-seconds."""
        return self.each + eviction_cost(
            job.gpus,
            job.unsaved(context.now),
            job.recover,
            save=job.save if job.reports_cost else None,
            grace=context.grace if self.notice else 0.0,
            preemptions=job.preemptions,
            repeat_penalty_s=self.repeat,
        )

    def _protected(self, job: Job, now: float) -> bool:
        if self.cap and job.preemptions >= self.cap:
            return True
        return self.phase and job.reports_cost and not job.progress(now)[1]


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
    policy_class = BUILT_IN.get(name) or _entry_point_policies().get(name)
    if policy_class is None:
        names = ", ".join((*BUILT_IN, *_entry_point_policies()))
        raise UsageError(
            f"there is no policy {name!r}; there are {names}", code="policy-unknown", policy=name
        )
    try:
        return policy_class(
            **dict(_parse_switch(policy_class, name, switch) for switch in switches)
        )
    except TypeError as error:
        raise UsageError(
            f"the policy {name} cannot be made: {error}", code="policy-switch-invalid", policy=name
        ) from error


def _entry_point_policies() -> dict[str, Callable[..., Policy]]:
    return {point.name: point.load() for point in entry_points(group=GROUP)}


def _parse_switch(policy_class: Callable[..., Policy], policy: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    # Policies of others need not be dataclasses; what theirs take is said when they are made.
    field_names = (
        [field.name for field in dataclasses.fields(policy_class)]
        if dataclasses.is_dataclass(policy_class)
        else ()
    )
    if field_names and name not in field_names:
        raise UsageError(
            f"the policy {policy} has no {name!r}; it has {', '.join(field_names)}",
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
