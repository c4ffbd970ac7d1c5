"""From what every node saw of an attempt's end to what all of them do: pure functions."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headway.launch import policy
from headway.launch.failures import Fact, Verdict, classify
from headway.launch.policy import Decision, Past

# What a forked interpreter could be to blame for, if it never made a step.
DOUBTFUL = frozenset(
    {"user_code", "native_crash", "environment", "hang", "cuda_fault", "compile", "rendezvous"}
)
FROM_ABOVE = frozenset({"preemption", "time_limit", "user_cancel", "node_failure"})
KEPT = ("category", "owner", "retry", "rank", "node", "evidence", "confidence", "fingerprint")


def judge(facts: Sequence[Fact]) -> Verdict:
    """The verdict over the facts of all nodes; a hang that was watched needs no guess."""
    hung = [fact for fact in facts if fact.source == "hang"]
    if not hung:
        try:
            return classify(facts)
        except Exception as error:  # a fault of ours must not cost the job its restart
            return _unknown(f"it could not be classified: {type(error).__name__}: {error}")
    hung.sort(key=lambda fact: fact.rank is None)
    return Verdict(
        category="hang",
        owner="ambiguous",
        retry="bounded",
        rank=hung[0].rank,
        node=hung[0].node,
        evidence=hung[0].text,
        signature="hang_watch",
        confidence="high",
        fingerprint=f"hang_watch:{hung[0].rank}",
    )


def _unknown(evidence: str) -> Verdict:
    return Verdict(
        category="unknown",
        owner="ambiguous",
        retry="bounded",
        rank=None,
        node=None,
        evidence=evidence,
        signature="fault",
        confidence="low",
        fingerprint="fault",
    )


def lost(node: str) -> Verdict:
    """A node whose launcher is not heard of any more."""
    return Verdict(
        category="node_failure",
        owner="infra",
        retry="swap",
        rank=None,
        node=node,
        evidence=f"the node {node} has not been heard of for a while",
        signature="lost_node",
        confidence="medium",
        fingerprint=f"lost_node:{node}",
    )


def stopped(number: int) -> Verdict:
    """The launcher was told to stop, and nobody says why."""
    name = signal.Signals(number).name
    by_user = number == signal.SIGINT
    return Verdict(
        category="user_cancel" if by_user else "preemption",
        owner="user" if by_user else "scheduler",
        retry="no" if by_user else "yes",
        rank=None,
        node=None,
        evidence=f"the launcher was sent {name}",
        signature="told_to_stop",
        confidence="medium",
        fingerprint=f"told_to_stop:{name}",
    )


def as_event(verdict: Verdict) -> dict[str, Any]:
    """What the journal keeps of it."""
    return {key: getattr(verdict, key) for key in KEPT}


def _any(progressed: Sequence[bool | None]) -> bool | None:
    if any(progressed):
        return True
    return None if None in progressed else False


def likely(facts: Sequence[Fact], history: Sequence[Past], restarts: int) -> bool:
    """Whether what is known already will lead to a restart."""
    verdict = judge(facts)
    past = Past(category=verdict.category, retry=verdict.retry, fingerprint=verdict.fingerprint)
    return policy.decide([*history, past], restarts).action == "restart"


def conclude(
    said: Mapping[str, Mapping[str, Any]],
    gone: Sequence[str],
    history: Sequence[Past],
    *,
    restarts: int,
    seed: int,
) -> dict[str, Any]:
    """`said`: by member, how the attempt ended there; `gone`: nodes that say nothing any more."""
    if all(one["done"] for one in said.values()):
        return {"done": True}
    facts = [Fact(**fact) for one in said.values() for fact in one["facts"]]
    told = [one["told"] for one in said.values() if one["told"] is not None]
    verdict = lost(gone[0]) if gone and not told else judge(facts)
    if told and verdict.category not in FROM_ABOVE:
        verdict = stopped(told[0])
    steps = [one["step"] for one in said.values() if one["step"] is not None]
    past = Past(
        category=verdict.category,
        retry=verdict.retry,
        fingerprint=verdict.fingerprint,
        step=max(steps, default=None),
        node=verdict.node,
        progressed=_any([one["progressed"] for one in said.values()]),
    )
    stillborn = any(one["stillborn"] for one in said.values()) and verdict.category in DOUBTFUL
    if told:
        decision = Decision("stop", f"it was told to stop by {signal.Signals(told[0]).name}")
    elif stillborn and len(history) < restarts:
        decision = Decision("restart", "cold, as the warm start may be to blame")
    else:
        nodes = len(said) + len(gone)
        decision = policy.decide([*history, past], restarts, nodes=nodes, seed=seed)
    return {
        "verdict": as_event(verdict),
        "past": asdict(past),
        "decision": asdict(decision),
        "cold": stillborn,
    }
