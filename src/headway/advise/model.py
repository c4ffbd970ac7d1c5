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
    """Time that a change would have saved.

    If it is `hidden_behind` other time, no more can be gained than there is of the other time.
    """

    intervals: Intervals
    hidden_behind: Intervals | None = None

    @property
    def max_gain(self) -> int:
        """All that it can gain, in ns."""
        whole = length(self.intervals)
        return whole if self.hidden_behind is None else min(whole, length(self.hidden_behind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One change: what to do, which time it would have saved, and with what confidence."""

    title: str
    savings: tuple[Saving, ...]
    confidence: Confidence
    why: str  # the basis of the gain and its confidence
    flags: tuple[str, ...] = ()  # of `headway run`
    code: tuple[str, ...] = ()  # lines for the job, or commands
    see: str = ""  # page of the documentation


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Autotuning of a run's kernels in the busiest process, in seconds."""

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
    """A run, and what else is known about its job."""

    ledger: Ledger
    where: str = "RUN"  # the path as given by the user
    warm: bool = False
    others: tuple[OtherRun, ...] = ()
    tuning: Tuning | None = None
    lemons: Mapping[str, float] = field(
        default_factory=dict
    )  # share of unexpected failures by node

    @property
    def all_runs(self) -> tuple[OtherRun, ...]:
        """This run and the others."""
        return (OtherRun(ledger=self.ledger, warm=self.warm), *self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A proposal with its gain next to the others."""

    rule: str
    proposal: Proposal
    standalone: int  # ns gained if it is applied alone
    marginal: int  # ns gained in addition to the other advice
    points: float  # of ETT, in addition to the advice before it
    accelerator_ns: int
    intervals: Intervals = ()
    superseded_by: str = ""  # the rule that gains most of its time, if it gains none


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceReport:
    """All advice for a run, largest gain first, and the run with all of it applied."""

    ledger: Ledger
    advice: tuple[Advice, ...]
    superseded: tuple[Advice, ...]  # gains nothing in addition to `advice`
    ett_percent: float  # with all advice
    wall: int
    lost: int  # time not spent training on new data
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> int:
        """The gain of all advice together, in ns."""
        return sum(item.marginal for item in self.advice)
