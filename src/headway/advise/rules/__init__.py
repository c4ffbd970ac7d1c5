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
# Rules with their modules, in the order of the phases of a run.
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
    """Reads a ledger and proposes changes."""

    def proposals(self, evidence: Evidence) -> Iterable[Proposal]:
        """Each change that would have saved time in this run."""


class _OwnRule(NamedTuple):
    proposals: Callable[[Evidence], Iterable[Proposal]]


def names() -> list[str]:
    """Names of all rules."""
    return [*OWN, *sorted({point.name for point in entry_points(group=GROUP)} - set(OWN))]


def rule(name: str) -> Rule:
    if name in OWN:
        module = importlib.import_module(f"{__name__}.{OWN[name]}")
        return _OwnRule(getattr(module, f"propose_{name}"))
    (point, *_) = entry_points(group=GROUP, name=name)
    return cast("Rule", point.load())


def ask(evidence: Evidence) -> tuple[list[tuple[str, Proposal]], list[str]]:
    """Proposals of all rules, and notes about rules of other packages that failed."""
    proposals: list[tuple[str, Proposal]] = []
    notes: list[str] = []
    for name in names():
        try:
            proposals += [(name, proposal) for proposal in rule(name).proposals(evidence)]
        except Exception as error:
            if name in OWN:
                raise
            notes.append(f"rule {name} failed: {type(error).__name__}: {error}")
    return proposals, notes
