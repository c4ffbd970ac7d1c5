"""The rules, grouped by subject, and the registry that also finds rules of other packages.

A rule of another package is a module or object with a `proposals` function, named in the
entry-point group `headway.rules`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import NamedTuple, Protocol, cast

from headway.advise.model import Evidence, Proposal

GROUP = "headway.rules"
# Each rule with its module, in the order in which a run comes to what the rules are about.
OWN = {
    "stage_overlap": "startup",
    "fast_batch": "startup",
    "process_groups": "communication",
    "shard_metadata": "communication",
    "compile_cache": "compile",
    "autotune_pruning": "compile",
    "dynamic_sources": "compile",
    "data_workers": "data",
    "async_checkpoint": "checkpoint",
    "interval": "checkpoint",
    "hang_limits": "recovery",
    "requeue_delay": "recovery",
    "restart_warmth": "recovery",
    "lemon_nodes": "recovery",
    "preemption_price": "recovery",
    "publish_off": "publish",
}


class Rule(Protocol):
    """What reads a ledger and proposes changes."""

    def proposals(self, evidence: Evidence) -> Iterable[Proposal]:
        """Each change that would have won time in this run; none where there is nothing to do."""


class _OwnRule(NamedTuple):
    proposals: Callable[[Evidence], Iterable[Proposal]]


def names() -> list[str]:
    """Of all rules."""
    return [*OWN, *sorted({point.name for point in entry_points(group=GROUP)} - set(OWN))]


def rule(name: str) -> Rule:
    """The rule of that name."""
    if name in OWN:
        module = importlib.import_module(f"{__name__}.{OWN[name]}")
        return _OwnRule(getattr(module, f"propose_{name}"))
    (point, *_) = entry_points(group=GROUP, name=name)
    return cast("Rule", point.load())


def ask(evidence: Evidence) -> tuple[list[tuple[str, Proposal]], list[str]]:
    """What all rules propose; one that fails is named, and the others are heard."""
    proposals: list[tuple[str, Proposal]] = []
    notes: list[str] = []
    for name in names():
        try:
            proposals += [(name, proposal) for proposal in rule(name).proposals(evidence)]
        except Exception as error:
            if name in OWN:
                raise
            notes.append(f"the rule {name} has failed: {type(error).__name__}: {error}")
    return proposals, notes
