"""Rules for interruptions: hangs, restarts, bad nodes and preemptions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.format import count, duration
from headway.launch.hang.detector import CONFIRM_S
from headway.launch.hang.limits import OVER_GAPS, OVER_LONGEST
from headway.ledger.buckets import DETECTION, DOWNTIME, EFFECTIVE, HANG, LOST
from headway.ledger.failures import is_restartable, restart_flags
from headway.ledger.model import Failure, Ledger
from headway.ledger.segments import Intervals, length, subtract, take_first, take_last, union
from headway.schedule.cost import from_ledger
from headway.taxonomy import START_STAGES
from headway.units import NS

MIN_HANG_LIMIT_S = 10.0  # longer pauses may occur than those observed so far
GAP_BUCKETS = (DOWNTIME, "recover.scheduling", "recover.hardware_setup")
LAUNCH_BUCKETS = ("recover.launcher_init",)
FAILURE_BUCKETS = (LOST, HANG, DETECTION)
RECOVER_BUCKETS = (DOWNTIME, *(f"recover.{stage}" for stage in START_STAGES))
MIN_FAILURES = 2  # on one of several nodes of a run
NOTICE_S = 30  # default of Slurm; a longer save needs more


def propose_hang_limits(evidence: Evidence) -> Iterator[Proposal]:
    """Stop every hang that is longer than any normal pause."""
    ledger = evidence.ledger
    hangs = time_in(ledger, (HANG,))
    limit = math.ceil(max(MIN_HANG_LIMIT_S, _longest_normal_pause(ledger) / NS))
    limit_ns = round((limit + CONFIRM_S) * NS)
    beyond = subtract(hangs, union(*(take_first((hang,), limit_ns) for hang in hangs)))
    if not beyond:
        return
    yield Proposal(
        title=f"Stop hung jobs after {limit} s",
        savings=(Saving(intervals=beyond),),
        confidence="medium",
        why=f"{count(len(hangs), 'hang')} of {duration(length(hangs))} in all; this limit is above "
        "the longest normal pause between steps and the length of a step. A rank that is busy gets "
        "more time",
        flags=(*restart_flags(ledger), "--hang-after", str(limit)),
        see="docs/recover.md#hangs",
    )


def _longest_normal_pause(ledger: Ledger) -> float:
    """The longest pause that hang detection accepts, by the steps and pauses in the ledger."""
    training = time_in(ledger, (EFFECTIVE, LOST))
    step = length(training) / max(ledger.steps, 1)
    pauses = [0]
    for attempt in ledger.attempts:
        inside = time_in(ledger, (EFFECTIVE, LOST), attempt.index)
        pauses += [after[0] - before[1] for before, after in pairwise(inside)]
    return max(OVER_GAPS * step, OVER_LONGEST * max(pauses))


def propose_requeue_delay(evidence: Evidence) -> Iterator[Proposal]:
    """Shorten the gap after each restartable failure to that of restarts by Headway."""
    ledger = evidence.ledger
    not_restarted = [
        failure
        for failure in ledger.failures
        if is_restartable(failure) and not _by_headway(failure)
    ]
    gaps = [gap for failure in not_restarted if (gap := gap_after(ledger, failure))]
    if not gaps:
        return
    measured = [
        length(gap_after(run.ledger, failure))
        for run in evidence.all_runs
        for failure in run.ledger.failures
        if _by_headway(failure) and failure.attempt + 1 < len(run.ledger.attempts)
    ]
    remaining = round(statistics.median(measured)) if measured else 0
    text = f"{count(len(gaps), 'gap')} of {duration(sum(map(length, gaps)))} in all between a "
    text += "failure and the next attempt; "
    yield Proposal(
        title="Restart failed jobs in place",
        savings=tuple(Saving(intervals=take_last(gap, length(gap) - remaining)) for gap in gaps),
        confidence="high" if measured else "low",
        why=text
        + (
            f"restarts by Headway took {duration(remaining)} in this job"
            if measured
            else "upper bound: no restart by Headway is measured in this job"
        ),
        flags=restart_flags(ledger),
        see="docs/recover.md",
    )


def gap_after(ledger: Ledger, failure: Failure) -> Intervals:
    """From a failure to the next attempt."""
    after = failure.attempt + 1
    if after >= len(ledger.attempts):
        return ()
    return union(
        time_in(ledger, (DETECTION, DOWNTIME), failure.attempt), time_in(ledger, GAP_BUCKETS, after)
    )


def _by_headway(failure: Failure) -> bool:
    return (failure.decision or "").startswith("restart")


def propose_restart_warmth(evidence: Evidence) -> Iterator[Proposal]:
    """Shorten the launch of each recovery to that of warm restarts."""
    ledger = evidence.ledger
    if evidence.warm:
        return
    ready_at = _imports_ready_at(ledger)
    launches = [
        launching
        for attempt in _restarted_attempts(ledger)
        if ledger.attempts[attempt - 1].end >= ready_at
        and (launching := time_in(ledger, LAUNCH_BUCKETS, attempt))
    ]
    if not launches:
        return
    measured = [
        length(time_in(run.ledger, LAUNCH_BUCKETS, attempt))
        for run in evidence.others
        if run.warm
        for attempt in _restarted_attempts(run.ledger)
    ]
    remaining = round(statistics.median(measured)) if measured else 0
    text = f"{count(len(launches), 'restart')} spent {duration(_total_length(launches))} on "
    text += "launch and imports; "
    yield Proposal(
        title="Fork restarted processes with all imports done",
        savings=tuple(
            Saving(intervals=take_last(launching, length(launching) - remaining))
            for launching in launches
        ),
        confidence="high" if measured else "low",
        why=text
        + (
            f"warm restarts of this job took {duration(remaining)} each"
            if measured
            else "upper bound: no warm restart is measured in this job"
        ),
        flags=(*restart_flags(ledger), "--warm"),
        see="docs/warm.md",
    )


def _imports_ready_at(ledger: Ledger) -> int:
    """When a second process could have finished its imports, in parallel with training."""
    training = time_in(ledger, (EFFECTIVE, LOST))
    imports = length(time_in(ledger, ("start.launcher_init",)))
    return training[0][0] + imports if training else ledger.wall


def _restarted_attempts(ledger: Ledger) -> list[int]:
    """Attempts after a failure that can be restarted in place."""
    after = {failure.attempt + 1 for failure in ledger.failures if is_restartable(failure)}
    return [index for index in range(1, len(ledger.attempts)) if index in after]


def _total_length(parts: list[tuple[tuple[int, int], ...]]) -> int:
    return sum(map(length, parts))


def propose_lemon_nodes(evidence: Evidence) -> Iterator[Proposal]:
    """The cost of a node's failures, without the expected number of failures."""
    ledger = evidence.ledger
    by_node: dict[str, list[Failure]] = {}
    for failure in ledger.failures:
        node = _node(ledger, failure)
        if node and failure.owner in ("infra", "ambiguous"):
            by_node.setdefault(node, []).append(failure)
    nodes = {host for rank in ledger.ranks for host in rank.hosts}
    for node, failures in by_node.items():
        excess_share = evidence.lemons.get(node)
        expected = len(failures) / len(nodes) if nodes else len(failures)
        excess = excess_share if excess_share is not None else 1 - expected / len(failures)
        if excess_share is None and (len(nodes) < 2 or len(failures) < MIN_FAILURES):
            continue
        costs = [_failure_cost(ledger, failure) for failure in failures]
        total = sum(map(length, costs))
        yield Proposal(
            title=f"Exclude the node {node}",
            savings=tuple(
                Saving(intervals=take_last(cost, round(length(cost) * excess))) for cost in costs
            ),
            confidence="high" if excess_share is not None else "low",
            why=f"{count(len(failures), 'failure')} began on it and cost {duration(total)}; "
            + (
                f"by the store {100 * excess:.0f} % of its failures exceed the expected number"
                if excess_share is not None
                else "one run is weak evidence: query a store with `headway fleet nodes`"
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
    """Lost training and the recovery after it."""
    after = failure.attempt + 1
    recovery = time_in(ledger, RECOVER_BUCKETS, after) if after < len(ledger.attempts) else ()
    return union(time_in(ledger, FAILURE_BUCKETS, failure.attempt), recovery)


def propose_preemption_price(evidence: Evidence) -> Iterator[Proposal]:
    """Limit the loss of each preempted attempt to the time of a save."""
    ledger = evidence.ledger
    cost = from_ledger(ledger)
    rolled_back = [
        lost for attempt in _evicted_attempts(ledger) if (lost := time_in(ledger, (LOST,), attempt))
    ]
    if not rolled_back:
        return
    remaining = round((cost.save or 0.0) * NS)
    grace = max(NOTICE_S, math.ceil(cost.save or 0.0))
    total = sum(map(length, rolled_back))
    text = f"{count(len(rolled_back), 'eviction')} rolled back {duration(total)}; "
    text += f"another one now would cost {cost.lost:,.0f} accelerator-seconds; "
    yield Proposal(
        title="Save when an eviction is announced",
        savings=tuple(
            Saving(intervals=take_last(lost, length(lost) - remaining)) for lost in rolled_back
        ),
        confidence="medium" if cost.save is not None else "low",
        why=text
        + (
            f"95 % of this run's saves were durable within {duration(remaining)}"
            if cost.save is not None
            else "upper bound: the time of a save is not measured in this run"
        ),
        code=(
            f"checkpointer = Checkpointer(store, state, interval=600, grace_s={grace})",
            "if checkpointer.preempted: break  # in the loop, after due() and save()",
        ),
        see="docs/checkpoint.md#preemption",
    )


def _evicted_attempts(ledger: Ledger) -> set[int]:
    by_scheduler = {failure.attempt for failure in ledger.failures if failure.owner == "scheduler"}
    return by_scheduler | {
        attempt.index for attempt in ledger.attempts if attempt.outcome == "preempted"
    }
