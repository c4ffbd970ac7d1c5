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
    """Evict the jobs whose attempts started last."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        order = sorted(context.candidates(), key=lambda job: (-job.since, job.number))
        return select_victims(context, order)


@dataclass(frozen=True, kw_only=True)
class MinimumRun:
    """As Newest, but only attempts older than a minimum time."""

    seconds: float = 7200.0
    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        latest = context.now - self.seconds
        old_enough = [job for job in context.candidates() if job.since <= latest]
        return select_victims(context, sorted(old_enough, key=lambda job: (-job.since, job.number)))


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Evict the jobs with the most accelerators; among equals, the newest."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        order = sorted(context.candidates(), key=lambda job: (-job.gpus, -job.since, job.number))
        return select_victims(context, order)


@dataclass(frozen=True, kw_only=True)
class LeastLost:
    """Evict the jobs with the least unsaved training plus time to recover."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        now = context.now
        order = sorted(
            context.candidates(), key=lambda job: (job.unsaved(now) + job.recover, job.number)
        )
        return select_victims(context, order)


@dataclass(frozen=True, kw_only=True)
class LeastCost:
    """Evict the jobs with the least cost per freed accelerator; see headway.schedule.cost."""

    notice: bool = True
    stagger: bool = False
    reserve: float = 0.0  # seconds after which nodes are reserved for a gang; 0: never
    phase: bool = False  # protect jobs until the first durable checkpoint of the attempt
    cap: int = 10  # protect jobs that were preempted this often; 0: no limit
    repeat: float = 60.0  # penalty in seconds for each earlier preemption
    nominal: bool = True  # count only borrowed accelerators as freed: others would be reclaimed
    each: float = 1800.0  # accelerator-seconds added per victim, for fewer and larger victims

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """The cheapest jobs, and protected jobs only if there is no other way."""
        borrowed = [tenant.over for tenant in context.tenants]

        def rate(job: Job) -> tuple[float, int]:
            freed = min(job.gpus, borrowed[job.tenant]) if self.nominal else job.gpus
            return self.cost(job, context) / freed, job.number

        order = sorted(context.candidates(), key=rate)
        exposed = [job for job in order if not self._protected(job, context.now)]
        return select_victims(context, exposed) or select_victims(context, order)

    def cost(self, job: Job, context: PreemptionContext) -> float:
        """In accelerator-seconds."""
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
    """A policy by name, with switches: `least-cost:notice=off:cap=3`."""
    name, *switches = text.split(":")
    policy_class = BUILT_IN.get(name) or _entry_point_policies().get(name)
    if policy_class is None:
        names = ", ".join((*BUILT_IN, *_entry_point_policies()))
        raise UsageError(
            f"there is no policy {name!r}; use one of {names}", code="policy-unknown", policy=name
        )
    try:
        return policy_class(
            **dict(_parse_switch(policy_class, name, switch) for switch in switches)
        )
    except TypeError as error:
        raise UsageError(
            f"cannot create the policy {name}: {error}", code="policy-switch-invalid", policy=name
        ) from error


def _entry_point_policies() -> dict[str, Callable[..., Policy]]:
    return {point.name: point.load() for point in entry_points(group=GROUP)}


def _parse_switch(policy_class: Callable[..., Policy], policy: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    # Policies of other packages may not be dataclasses; their constructor checks the names.
    field_names = (
        [field.name for field in dataclasses.fields(policy_class)]
        if dataclasses.is_dataclass(policy_class)
        else ()
    )
    if field_names and name not in field_names:
        raise UsageError(
            f"the policy {policy} has no switch {name!r}; use one of {', '.join(field_names)}",
            code="policy-switch-unknown",
            switch=name,
        )
    if not equals:
        raise UsageError(
            f"{text!r} has no value; write {name}=on, {name}=off or a number",
            code="policy-switch-invalid",
            switch=name,
        )
    if value in _SWITCH_VALUES:
        return name, _SWITCH_VALUES[value]
    try:
        number = float(value)
    except ValueError:
        raise UsageError(
            f"{value!r} in {text!r} is neither on, off nor a number",
            code="policy-switch-invalid",
            switch=name,
        ) from None
    return name, int(number) if number.is_integer() else number
