"""Kueue's Workload objects: `kubectl get workloads -A -o json`, best with `--watch`.

A Workload keeps the last change of each of its conditions only, so one look at it tells its last
life; the attempts before are known where they were looked at, too, or watched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headway.fleet.importers.kubernetes import ACCELERATORS
from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source, parse_iso8601
from headway.ledger.model import Outcome

EVICTED: dict[str, tuple[Outcome, str]] = {
    "Preempted": ("preempted", "preemption"),
    "PodsReadyTimeout": ("failed", "platform_start"),
    "NodeFailures": ("failed", "node_failure"),
    "AdmissionCheck": ("preempted", "preemption"),
    "ClusterQueueStopped": ("preempted", "preemption"),
    "LocalQueueStopped": ("preempted", "preemption"),
    "Deactivated": ("stopped", "user_cancel"),
    "InactiveWorkload": ("stopped", "user_cancel"),
    "MaximumExecutionTimeExceeded": ("failed", "time_limit"),
}


class ConditionChange(NamedTuple):
    """A condition that became true; of one second in the order of a workload's life."""

    at: float
    order: int
    what: str
    reason: str


ORDER = ("QuotaReserved", "Admitted", "PodsReady", "Evicted", "Requeued", "Finished")


def recognises(source: Source) -> bool:
    """Workloads of Kueue."""
    return '"kueue.x-k8s.io/' in source.text and any(True for _ in _workloads(source))


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """One run for each Workload with accelerators that was admitted; all looks at it count."""
    known: dict[str, Mapping[str, Any]] = {}
    changes: dict[str, set[ConditionChange]] = {}
    taken: dict[str, float] = {}
    for source in sources:
        for one in _workloads(source):
            uid = one["metadata"]["uid"]
            changes.setdefault(uid, set()).update(_changes(one))
            known[uid], taken[uid] = one, source.taken
    for uid, one in known.items():
        made = parse_iso8601(one["metadata"]["creationTimestamp"])
        accelerators = _accelerators(one)
        lives = list(_attempt_records(sorted(changes[uid]), made, taken[uid], accelerators))
        if lives and accelerators:
            queue = one["spec"].get("queueName")
            yield RunRecord(
                key=f"kueue {uid}",
                run=one["metadata"]["name"],
                lives=tuple(lives),
                labels={"reader": "kueue", **({"queue": queue} if queue else {})},
            )


def _workloads(source: Source) -> Iterator[Mapping[str, Any]]:
    for found in source.objects():
        for one in found.get("items") or (found,):
            if one.get("kind") == "Workload":
                yield one


def _changes(one: Mapping[str, Any]) -> Iterator[ConditionChange]:
    for told in (one.get("status") or {}).get("conditions") or ():
        if told["status"] == "True" and told["type"] in ORDER:
            at = parse_iso8601(told["lastTransitionTime"])
            yield ConditionChange(
                at, ORDER.index(told["type"]), told["type"], told.get("reason") or ""
            )


def _attempt_records(
    changes: Sequence[ConditionChange], waits: float, taken: float, accelerators: int
) -> Iterator[AttemptRecord]:
    """Waiting for quota is waiting for capacity; then come the checks, and then the pods."""
    reserved: float | None = None
    admitted: float | None = None
    ready: float | None = None

    def life(end: float, outcome: Outcome, category: str, evidence: str) -> AttemptRecord:
        start = admitted if admitted is not None else end
        spans = []
        if reserved is not None and start > reserved:
            spans.append(Span(reserved, start, "scheduling"))
        spans.append(Span(start, ready if ready is not None else end, "hardware_setup"))
        return AttemptRecord(
            start=start,
            end=max(end, start),
            outcome=outcome,
            accelerators=accelerators,
            spans=tuple(spans),
            queued=max((reserved if reserved is not None else start) - waits, 0.0),
            category=category,
            evidence=evidence,
        )

    for at, _, what, reason in changes:
        if what == "QuotaReserved":
            reserved = at
        elif what == "Admitted":
            admitted, ready = at, None
        elif what == "PodsReady":
            ready = at
        elif what == "Requeued":
            waits = at
        elif admitted is not None:
            if what == "Evicted":
                outcome, category = EVICTED.get(reason, ("failed", "unknown"))
            elif reason == "Failed":
                outcome, category = "failed", "unknown"
            else:
                outcome, category = "completed", "unknown"
            yield life(at, outcome, category, f"Kueue says {what}: {reason}")
            reserved = admitted = ready = None
            waits = at
    if admitted is not None:
        yield life(taken, "running", "unknown", "")


def _accelerators(one: Mapping[str, Any]) -> int:
    total = 0
    for pods in one["spec"].get("podSets") or ():
        for container in pods["template"]["spec"].get("containers") or ():
            resources = container.get("resources") or {}
            asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            each = sum(int(asked.get(name, 0)) for name in ACCELERATORS)
            total += each * int(pods.get("count", 1))
    return total
