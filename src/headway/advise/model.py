"""Input and output of the rules: frozen dataclasses, times in ns since the start of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway.ledger.model import Ledger
from headway.ledger.segments import Intervals, length

Confidence = Literal["high", "medium", "low"]
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Time that would not have been lost.

    Where it is hidden `behind` other time, no more of it can be won than there is of that.
    """

    intervals: Intervals
    hidden_behind: Intervals | None = None

    @property
    def max_gain(self) -> int:
        """All that can be won by it, in ns."""
        whole = length(self.intervals)
        return whole if self.hidden_behind is None else min(whole, length(self.hidden_behind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One change: what to do, which time it would have won, and how sure that is."""

    title: str
    savings: tuple[Saving, ...]
    confidence: Confidence
    why: str  # what the figure and its confidence rest on
    flags: tuple[str, ...] = ()  # of `headway run`
    code: tuple[str, ...] = ()  # lines for the job, or commands
    see: str = ""  # the page of the docs


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the kernels of a run took to tune in the busiest process, and what would be left; s."""

    kernels: int
    time_s: float
    remaining_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """Another run of the same job."""

    ledger: Ledger
    warm: bool = False  # its restarts were warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run, and what else is known of its job."""

    ledger: Ledger
    where: str = "RUN"  # as the user named it
    warm: bool = False
    others: tuple[OtherRun, ...] = ()
    tuning: Tuning | None = None
    lemons: Mapping[str, float] = field(default_factory=dict)  # share of failures beyond chance

    @property
    def all_runs(self) -> tuple[OtherRun, ...]:
        """This run and the others."""
        return (OtherRun(ledger=self.ledger, warm=self.warm), *self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A proposal with what it is worth beside the others."""

    rule: str
    proposal: Proposal
    standalone: int  # ns, if nothing else is done
    marginal: int  # ns that no other one wins
    points: float  # of ETT, on top of those before it
    accelerator_ns: int
    intervals: Intervals = ()
    superseded_by: str = ""  # the rule that wins most of its time, where it wins none


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceReport:
    """All advice for a run, the most worth first, and the run with all of it."""

    ledger: Ledger
    advice: tuple[Advice, ...]
    superseded: tuple[Advice, ...]  # would win nothing beside the others
    ett_percent: float  # with all of it
    wall: int
    lost: int  # what was not training
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> int:
        """Of all of it together."""
        return sum(item.marginal for item in self.advice)
