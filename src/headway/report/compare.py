"""Compares two ledgers; gates fail if the second one is worse by more than a threshold."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from headway.errors import UsageError
from headway.ledger.buckets import BUCKETS, group
from headway.ledger.model import FAILURE_OWNERS, Ledger
from headway.units import NS

Unit = Literal["percent", "seconds", "count"]

EXAMPLES: Final = "'ett<-1', 'tts>+10%', 'ttr>+5s' or 'waste.data_stall>+2%'"
_GATE: Final = re.compile(r"([a-z][a-z0-9_.]*)\s*(<|>)\s*([+-]?\d+(?:\.\d+)?)\s*(%|s)?")
_SHARES: Final = ("ett", "idleness", "failure")
_FAILURES: Final = {"infra": "failures", **{o: f"failures_{o}" for o in FAILURE_OWNERS[1:]}}
_COUNTS: Final = (*_FAILURES.values(), "attempts", "steps", "saves", "recompiles")
_GROUPS: Final = ("start", "waste", "recover", "stop")
_NAMES: Final = (*_SHARES, "wall", "tts", "ttr", *_COUNTS, *_GROUPS, *BUCKETS)


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of two runs; None if a run has no such time."""

    name: str
    unit: Unit
    before: float | None
    after: float | None

    @property
    def difference(self) -> float:
        """After minus before; None counts as infinity."""
        if self.before == self.after:
            return 0.0
        return _or_infinity(self.after) - _or_infinity(self.before)

    @property
    def growth(self) -> float:
        """The difference in percent of before; infinite if before is zero."""
        if not self.difference:
            return 0.0
        if not self.before or math.isinf(self.difference):
            return math.copysign(math.inf, self.difference)
        return 100.0 * self.difference / abs(self.before)


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition on a change that fails a comparison, such as `tts>+10%`."""

    text: str
    name: str
    above: bool
    threshold: float
    suffix: str  # "%": relative, "s": seconds, "": the unit of the measure


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate, the change that it checked, and whether it failed."""

    gate: Gate
    change: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measures of two runs, and the verdicts of the gates."""

    before: str
    after: str
    changes: tuple[Change, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def failed(self) -> bool:
        """Whether any gate failed."""
        return any(verdict.failed for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `headway compare --json`."""
        return {
            "schema": 1,
            "before": self.before,
            "after": self.after,
            "failed": self.failed,
            "changes": [
                {
                    "name": change.name,
                    "unit": change.unit,
                    "before": change.before,
                    "after": change.after,
                    "difference": _finite(change.difference),
                    "growth_percent": _finite(change.growth),
                }
                for change in self.changes
            ],
            "gates": [
                {"gate": v.gate.text, "change": _finite(v.change), "failed": v.failed}
                for v in self.verdicts
            ],
        }


def compare(before: Ledger, after: Ledger, gates: Sequence[Gate] = ()) -> Comparison:
    """Compare all measures of two runs, and check the gates on the changes."""
    first, second = measures(before), measures(after)
    changes = tuple(Change(n, unit, first[n][1], second[n][1]) for n, (unit, _) in first.items())
    by_name = {change.name: change for change in changes}
    verdicts = tuple(_judge(gate, by_name[gate.name], before, after) for gate in gates)
    return Comparison(before.run, after.run, changes, verdicts)


def measures(ledger: Ledger) -> dict[str, tuple[Unit, float | None]]:
    """Return all measures by the name that gates use.

    Buckets are in seconds here; a gate without a unit takes them in percent of the wall time.
    The time to recover is 0 for a run without interruptions, and None for a run that did not train
    again after its last interruption.
    """
    started = ledger.time_to_start
    values: dict[str, tuple[Unit, float | None]] = {
        "ett": ("percent", ledger.ett_percent),
        "idleness": ("percent", ledger.idleness_percent),
        "failure": ("percent", ledger.failure_percent),
        "wall": ("seconds", ledger.wall / NS),
        "tts": ("seconds", None if started is None else started / NS),
        "ttr": ("seconds", _recovery(ledger)),
        **{_FAILURES[owner]: ("count", n) for owner, n in ledger.failures_by_owner.items()},
        "attempts": ("count", len(ledger.attempts)),
        "steps": ("count", ledger.steps),
        "saves": ("count", ledger.saves),
        "recompiles": ("count", sum(c.recompile for c in ledger.compiles)),
    }
    for name in _GROUPS:
        total = sum(ns for bucket, ns in ledger.buckets.items() if group(bucket) == name)
        values[name] = ("seconds", total / NS)
    for bucket in BUCKETS:
        values[bucket] = ("seconds", ledger.buckets.get(bucket, 0) / NS)
    return values


def _recovery(ledger: Ledger) -> float | None:
    """Return the mean in seconds; None if the run did not train after the last interruption."""
    times, attempts = ledger.time_to_recover, ledger.attempts
    ends = [i for i, attempt in enumerate(attempts) if attempt.outcome in ("failed", "preempted")]
    if ends and not ledger.running and all(a.last_step is None for a in attempts[ends[-1] + 1 :]):
        return None
    return sum(times) / len(times) / NS if times else 0.0


def parse_gate(text: str) -> Gate:
    """Parse `NAME<CHANGE` or `NAME>CHANGE`."""
    match = _GATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"the gate {text!r} is invalid; write a measure, < or >, and a change, "
            f"such as {EXAMPLES}",
            code="gate-malformed",
        )
    name, sign, number, suffix = match.groups()
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "use ett, tts, ttr, failures or a bucket"
        raise UsageError(
            f"the gate {text!r} has the unknown measure {name!r}; {hint}",
            code="gate-measure-unknown",
            nearest=near[0] if near else None,
        )
    if suffix == "s" and name in (*_SHARES, *_COUNTS):
        kind = "share" if name in _SHARES else "count"
        raise UsageError(
            f"the gate {text!r} gives {name} in seconds, but it is a {kind}; remove the s",
            code="gate-unit-mismatch",
        )
    return Gate(text.strip(), name, sign == ">", float(number), suffix or "")


def _judge(gate: Gate, change: Change, before: Ledger, after: Ledger) -> Verdict:
    if gate.suffix == "%":
        value = change.growth
    elif gate.suffix == "" and (gate.name in BUCKETS or gate.name in _GROUPS):
        value = _points(change.after, after) - _points(change.before, before)
    else:
        value = change.difference
    failed = value > gate.threshold if gate.above else value < gate.threshold
    return Verdict(gate, value, failed)


def _points(seconds: float | None, ledger: Ledger) -> float:
    return 100.0 * (seconds or 0.0) * NS / ledger.wall if ledger.wall else 0.0


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
