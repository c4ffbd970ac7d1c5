"""Nodes that fail more often than chance would have them fail."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import Intervals, length, take_last, union
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.ledger.leaves import DETECTION, DOWNTIME, HANG, LOST, START_STAGES
from headway.ledger.model import Failure, Ledger
from headway.report.words import count, duration

FAILURE_BUCKETS = (LOST, HANG, DETECTION)
RECOVER_BUCKETS = (DOWNTIME, *(f"recover.{stage}" for stage in START_STAGES))
MIN_FAILURES = 2  # failures on one of several nodes of a run that are worth a look


def propose_lemon_nodes(evidence: Evidence) -> Iterator[Proposal]:
    """What the failures of such a node cost, but for those that chance would give it."""
    ledger = evidence.ledger
    by_node: dict[str, list[Failure]] = {}
    for failure in ledger.failures:
        node = _node(ledger, failure)
        if node and failure.owner in ("infra", "ambiguous"):
            by_node.setdefault(node, []).append(failure)
    nodes = {host for rank in ledger.ranks for host in rank.hosts}
    for node, failures in by_node.items():
        known = evidence.lemons.get(node)
        expected = len(failures) / len(nodes) if nodes else len(failures)
        excess = known if known is not None else 1 - expected / len(failures)
        if known is None and (len(nodes) < 2 or len(failures) < MIN_FAILURES):
            continue
        costs = [_failure_cost(ledger, failure) for failure in failures]
        total = sum(map(length, costs))
        yield Proposal(
            title=f"Leave out the node {node}",
            cuts=tuple(
                Saving(take=take_last(cost, round(length(cost) * excess))) for cost in costs
            ),
            confidence="high" if known is not None else "low",
            why=f"{count(len(failures), 'failure')} began there and cost {duration(total)}; "
            + (
                f"by the store {100 * excess:.0f} % of its failures are beyond chance"
                if known is not None
                else "one run is little to judge a node by: ask a store with `headway fleet nodes`"
            ),
            code=(f"scontrol update NodeName={node} State=DRAIN Reason=headway",),
            see="docs/regressions.md",
        )


def _node(ledger: Ledger, failure: Failure) -> str | None:
    if failure.node:
        return failure.node
    for rank in ledger.ranks:
        if rank.rank == failure.root_rank:
            return rank.host_of.get(failure.attempt)
    return None


def _failure_cost(ledger: Ledger, failure: Failure) -> Intervals:
    """Training that was lost by it, and the way back."""
    after = failure.attempt + 1
    back = time_in(ledger, RECOVER_BUCKETS, after) if after < len(ledger.attempts) else ()
    return union(time_in(ledger, FAILURE_BUCKETS, failure.attempt), back)
