"""What is simulated: the cluster, how jobs save and start, and who has which quota."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.errors import UsageError
from headway.schedule.simulate.quotas import QuotaChange


@dataclass(frozen=True, slots=True)
class JobTimings:
    """How long a job takes to start, to recover and to save; seconds."""

    start: float = 0.0  # a trace's durations contain it as a rule
    recover: float = 300.0
    save: float = 15.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster and the habits of its jobs; the same for every policy."""

    gpus: int = 600
    per_node: int = 8
    interval: float = 3600.0
    grace: float = 60.0
    habits: tuple[JobTimings, ...] = (JobTimings(),)  # each job draws one
    silent: float = 0.0  # the share of jobs that tell nothing, and save at no notice
    quota: Mapping[str, int] | None = None  # by tenant; None: by their accelerator-hours
    quota_changes: tuple[QuotaChange, ...] = ()  # by time; only where quotas are given
    shift: bool = False  # each seed moves the tenants' jobs by whole days

    def __post_init__(self) -> None:
        for name in ("gpus", "per_node", "interval"):
            if not getattr(self, name) > 0:
                option = name.replace("_", "-")
                raise UsageError(
                    f"--{option} is {getattr(self, name)}; give a number above 0",
                    code="value-out-of-range",
                    option=f"--{option}",
                )
        if not 0 <= self.silent <= 1:
            raise UsageError(
                f"--silent is a share from 0 to 1, not {self.silent}",
                code="value-out-of-range",
                option="--silent",
            )
        if not self.grace >= 0:
            raise UsageError(
                f"--grace is {self.grace}; give 0 s or more",
                code="value-out-of-range",
                option="--grace",
            )
        for one in self.habits:
            for name in ("start", "recover", "save"):
                if not 0 <= getattr(one, name) < math.inf:
                    raise UsageError(
                        f"--{name} is {getattr(one, name)}; give 0 s or more",
                        code="value-out-of-range",
                        option=f"--{name}",
                    )


def proportional_quotas(hours: Mapping[str, float], gpus: int) -> dict[str, int]:
    """Quotas in proportion to accelerator-hours, by largest remainder: they sum to `gpus`."""
    total = sum(hours.values())
    exact = {name: gpus * part / total for name, part in hours.items()}
    found = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: (found[name] - exact[name], name))
    for name in by_rest[: gpus - sum(found.values())]:
        found[name] += 1
    return found
