"""Where the time of a planned job goes: the same few parts, by whatever way they are found."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("effective", "start", "saves", "lost", "recover")


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Seconds of the wall time by part."""

    effective: float  # training that was kept
    start: float  # the first start
    saves: float  # training stood for a save
    lost: float  # trained, then rolled back
    recover: float  # from failures to training again

    @property
    def wall(self) -> float:
        """All of it."""
        return self.effective + self.start + self.saves + self.lost + self.recover

    @property
    def ett_percent(self) -> float:
        """Effective training as a share of the wall time."""
        return self.percent("effective")

    def percent(self, part: str) -> float:
        """A part as a share of the wall time."""
        seconds: float = getattr(self, part)
        return 100.0 * seconds / self.wall
