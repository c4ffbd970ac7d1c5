"""Policies: who is evicted when a job within its quota finds no room. One file each.

Others come by entry points of the group `headway.policies`: a class as in newest.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from headway.errors import UsageError
from headway.schedule.policies.largest import Largest
from headway.schedule.policies.least_cost import LeastCost
from headway.schedule.policies.least_lost import LeastLost
from headway.schedule.policies.minimum_run import MinimumRun
from headway.schedule.policies.newest import Newest
from headway.schedule.policies.policy import Policy

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
