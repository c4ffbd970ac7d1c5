"""How far a price may move a priority: between two limits that an administrator sets."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import UsageError
from headway.schedule.cost import EvictionCost

PRIORITY_LEVELS = (
    10  # between the limits: a priority that moves with every second makes queues flap
)
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class PriorityAdjustment:
    """From `least` for a run that loses nothing to `most` for one that loses `full` seconds."""

    least: int
    most: int
    full: float = 3600.0  # seconds of each accelerator

    def __post_init__(self) -> None:
        if not -MAX_PRIORITY <= self.least < self.most <= MAX_PRIORITY:
            raise UsageError(
                f"a nudge goes from --nudge-min up to --nudge-max, and {self.least} to {self.most} "
                "does not",
                code="value-out-of-range",
                option="--nudge-max",
            )
        if not self.full > 0:
            raise UsageError(
                f"--nudge-full is above 0 s, not {self.full:g}",
                code="value-out-of-range",
                option="--nudge-full",
            )

    def of(self, price: EvictionCost) -> int:
        """By what is lost for each accelerator that would be freed."""
        each = price.lost / max(price.accelerators, 1)
        level = round(min(each / self.full, 1.0) * PRIORITY_LEVELS)
        return self.least + round((self.most - self.least) * level / PRIORITY_LEVELS)
