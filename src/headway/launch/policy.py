"""What to do after an attempt has failed: a pure function of the attempts so far.

A restart costs GPU hours, so it depends on the cause: what would fail again is not retried.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

MAX_IDLE_RETRIES = 3  # attempts in a row without a new durable step, where a retry may help
MAX_IDLE_RETRIES_EXTERNAL = 10  # the same where the cause is outside the job and temporary
BACKOFF_CATEGORIES = frozenset(
    {"network", "storage", "rendezvous", "node_failure", "platform_start"}
)
MAX_BACKOFF_S = 60.0
SWAP_CODE = 75  # EX_TEMPFAIL: `headway run` requests another node with it


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """The outcome of one attempt."""

    category: str
    retry: str  # yes, bounded, resume, no, swap
    fingerprint: str = ""
    step: int | None = None  # the step that it reached
    node: str | None = None
    progressed: bool | None = False  # it added a durable step; None if unknown


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and the reason in words."""

    action: str  # restart, stop, swap
    why: str
    wait_s: float = 0.0


def decide(
    history: Sequence[AttemptSummary], restarts: int, *, nodes: int = 1, seed: int = 0
) -> Decision:
    """The decision after the last attempt of `history`."""
    last = history[-1]
    if last.retry == "no":
        return Decision("stop", f"{last.category} would recur on a retry")
    if last.retry == "resume":
        return Decision("stop", "the time limit was reached; start the job again to resume")
    if last.retry == "swap":
        return Decision("swap", f"{last.category} persists on the node{_node_suffix(last.node)}")
    if nodes > 1 and last.node and _recurrences(history, "node") >= 2:
        return Decision("swap", f"{last.category} recurred on the node {last.node}")
    if last.retry == "bounded" and last.step and _recurrences(history, "step") >= 2:
        return Decision("stop", f"the same failure recurred at step {last.step}: data or code")
    idle = len(list(takewhile(lambda attempt: attempt.progressed is False, reversed(history))))
    limit = MAX_IDLE_RETRIES if last.retry == "bounded" else MAX_IDLE_RETRIES_EXTERNAL
    if idle >= limit:
        return Decision("stop", f"{idle} attempts in a row added no durable step (crash loop)")
    if len(history) > restarts:
        return Decision("stop", f"all {restarts} restarts have been used")
    wait = _backoff(history, seed)
    return Decision("restart", f"restart {len(history)} of {restarts}", wait)


def _recurrences(history: Sequence[AttemptSummary], field: str) -> int:
    """How often the last failure has occurred with the same value of this field."""
    last = history[-1]
    return sum(
        attempt.fingerprint == last.fingerprint and getattr(attempt, field) == getattr(last, field)
        for attempt in history
    )


def _backoff(history: Sequence[AttemptSummary], seed: int) -> float:
    """Zero the first time, then growing; with jitter, so that jobs do not retry all at once."""
    last = history[-1]
    if last.category not in BACKOFF_CATEGORIES:
        return 0.0
    repeats = len(
        list(takewhile(lambda attempt: attempt.category == last.category, reversed(history)))
    )
    if repeats < 2:
        return 0.0
    jitter = random.Random(f"{seed}:{len(history)}").uniform(0.5, 1.5)
    return round(min(2.0 ** (repeats - 2), MAX_BACKOFF_S) * jitter, 3)


def _node_suffix(node: str | None) -> str:
    return f" {node}" if node else ""
