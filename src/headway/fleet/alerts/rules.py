"""Rules: what is watched, in which slices, for how long, and who is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.fleet.alerts.channels import Channel
from headway.fleet.alerts.figures import ALERT_METRICS, AlertMetric
from headway.units import format_duration

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What, slice, condition, for how long, severity, where to; times are seconds."""

    name: str
    kind: str
    where: tuple[tuple[str, str], ...] = ()
    by: tuple[str, ...] = ()
    hold: float = 0.0  # `for`: so long it must be bad before anybody is told
    clear: float  # and so long good before it is over
    over: float  # what the figures are of; of a change: how long ago it may be
    severity: str = "warning"
    to: tuple[str, ...] = ()
    renotify: float | None = None
    metric: str = ""
    above: float | None = None
    below: float | None = None
    least_jobs: int = 1
    of: tuple[str, ...] = ("slices", "running")
    points: float = 0.5
    level: float = 0.05
    history: float = 90 * DAY

    @property
    def figure(self) -> AlertMetric:
        """Of a threshold or a burn."""
        return ALERT_METRICS[self.metric]

    def bad(self, value: float) -> bool:
        """Whether a value is beyond the limit."""
        return (self.above is not None and value > self.above) or (
            self.below is not None and value < self.below
        )

    @property
    def limit(self) -> str:
        """`above 5min`, in words."""
        side, value = ("above", self.above) if self.above is not None else ("below", self.below)
        return f"{side} {self.figure.text(value or 0.0)}"

    def words(self) -> str:
        """The rule in a line."""
        what = (
            f"{self.figure.words} {self.limit}"
            if self.metric
            else f"change of {join_names(self.of)}"
        )
        where = " ".join(f"{name}={value}" for name, value in self.where)
        split = f" by {','.join(self.by)}" if self.by else ""
        held = f" for {format_duration(self.hold)}" if self.hold else ""
        to = join_names(self.to) if self.to else "nobody"
        return (
            f"{self.name}: {self.kind}, {what} of {where or 'all'}{split}{held} "
            f"over {format_duration(self.over)}; {self.severity}, to {to}"
        )


@dataclass(frozen=True)
class Rules:
    """All of a file."""

    rules: tuple[Rule, ...] = ()
    channels: Mapping[str, Channel] = field(default_factory=dict)


def join_names(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    return ", ".join(names)
