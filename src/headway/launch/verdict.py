"""From all nodes' reports about an attempt's end to one verdict and decision: pure functions."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headway.launch import policy
from headway.launch.failures import Fact, Verdict, classify
from headway.launch.policy import AttemptSummary, Decision
from headway.taxonomy import OWNERS

# Failures that a fork may have caused if the attempt never made a step.
MAYBE_OUR_FAULT = frozenset(
    {"user_code", "native_crash", "environment", "hang", "cuda_fault", "compile", "rendezvous"}
)
SCHEDULER_CAUSES = frozenset({"preemption", "time_limit", "user_cancel", "node_failure"})
JOURNAL_FIELDS = (
    "category",
    "owner",
    "retry",
    "rank",
    "node",
    "evidence",
    "confidence",
    "fingerprint",
)


def judge(facts: Sequence[Fact]) -> Verdict:
    """The verdict over the facts of all nodes; a detected hang needs no classification."""
    hangs = [fact for fact in facts if fact.source == "hang"]
    if not hangs:
        try:
            return classify(facts)
        except Exception as error:  # an internal error must not prevent a restart
            return _unknown(f"the failure could not be classified: {type(error).__name__}: {error}")
    hangs.sort(key=lambda fact: fact.rank is None)
    first = hangs[0]
    return _verdict(
        "hang",
        first.text,
        f"hang_watch:{first.rank}",
        rank=first.rank,
        node=first.node,
        confidence="high",
    )


def _unknown(evidence: str) -> Verdict:
    return _verdict("unknown", evidence, "fault", confidence="low")


def lost_node(node: str) -> Verdict:
    """The verdict for a node whose launcher shows no sign of life; it cannot be retried on."""
    evidence = f"the node {node} has shown no sign of life for a while"
    return _verdict("node_failure", evidence, f"lost_node:{node}", node=node, retry="swap")


def stopped_by_signal(number: int) -> Verdict:
    """The verdict for a stop signal without any other cause."""
    name = signal.Signals(number).name
    category = "user_cancel" if number == signal.SIGINT else "preemption"
    return _verdict(category, f"the launcher received {name}", f"told_to_stop:{name}")


def _verdict(category: str, evidence: str, fingerprint: str, **fields: Any) -> Verdict:
    """A verdict without the classifier; owner and retry are those of its category."""
    owner, retry = OWNERS[category]
    defaults = {"owner": owner, "retry": retry, "rank": None, "node": None, "confidence": "medium"}
    return Verdict(
        category=category,
        evidence=evidence,
        fingerprint=fingerprint,
        signature=fingerprint.partition(":")[0],
        **{**defaults, **fields},
    )


def as_event(verdict: Verdict) -> dict[str, Any]:
    """The fields that the journal stores."""
    return {key: getattr(verdict, key) for key in JOURNAL_FIELDS}


def any_progress(progressed: Sequence[bool | None]) -> bool | None:
    """Whether any of them added a durable step; None if that is unknown."""
    if any(progressed):
        return True
    return None if None in progressed else False


def would_restart(facts: Sequence[Fact], history: Sequence[AttemptSummary], restarts: int) -> bool:
    """Whether the facts known so far will lead to a restart."""
    verdict = judge(facts)
    summary = AttemptSummary(
        category=verdict.category, retry=verdict.retry, fingerprint=verdict.fingerprint
    )
    return policy.decide([*history, summary], restarts).action == "restart"


def decide_for_all(
    reports: Mapping[str, Mapping[str, Any]],
    lost_nodes: Sequence[str],
    history: Sequence[AttemptSummary],
    *,
    restarts: int,
    seed: int,
) -> dict[str, Any]:
    """`reports`: how the attempt ended, by member; `lost_nodes`: nodes without a sign of life."""
    if all(report["done"] for report in reports.values()):
        return {"done": True}
    facts = [Fact(**fact) for report in reports.values() for fact in report["facts"]]
    stop_signals = [report["told"] for report in reports.values() if report["told"] is not None]
    verdict = lost_node(lost_nodes[0]) if lost_nodes and not stop_signals else judge(facts)
    if stop_signals and verdict.category not in SCHEDULER_CAUSES:
        verdict = stopped_by_signal(stop_signals[0])
    steps = [report["step"] for report in reports.values() if report["step"] is not None]
    summary = AttemptSummary(
        category=verdict.category,
        retry=verdict.retry,
        fingerprint=verdict.fingerprint,
        step=max(steps, default=None),
        node=verdict.node,
        progressed=any_progress([report["progressed"] for report in reports.values()]),
    )
    suspects = sorted({name for report in reports.values() for name in report.get("suspects", ())})
    failed_before_first_step = (
        any(report["stillborn"] for report in reports.values())
        and verdict.category in MAYBE_OUR_FAULT
    )
    if stop_signals:
        decision = Decision("stop", f"stop requested by {signal.Signals(stop_signals[0]).name}")
    elif failed_before_first_step and len(history) < restarts:
        decision = Decision(
            "restart", "with a cold start, as the warm start may have caused the failure"
        )
    elif suspects and len(history) < restarts:
        decision = Decision(
            "restart", f"without {', '.join(suspects)}, which may have caused the failure"
        )
    else:
        nodes = len(reports) + len(lost_nodes)
        decision = policy.decide([*history, summary], restarts, nodes=nodes, seed=seed)
    return {
        "verdict": as_event(verdict),
        "past": asdict(summary),
        "decision": asdict(decision),
        "cold": failed_before_first_step,
        "without": suspects,
    }
