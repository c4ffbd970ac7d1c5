"""Import Kueue's Workload objects: `kubectl get workloads -A -o json`, preferably with `--watch`.

A Workload keeps only the last change of each condition, so one version of it describes only the
last attempt. Earlier attempts are known if there are versions of them, as `--watch` writes them.
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
    """A condition that became true; conditions of the same second are sorted by `order`."""

    at: float
    order: int
    condition: str
    reason: str


ORDER = ("QuotaReserved", "Admitted", "PodsReady", "Evicted", "Requeued", "Finished")


def detect(source: Source) -> bool:
    """Whether it contains Workloads of Kueue."""
    return '"kueue.x-k8s.io/' in source.text and any(True for _ in _workloads(source))


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per admitted Workload with accelerators, combined from all its versions."""
    workloads: dict[str, Mapping[str, Any]] = {}
    changes: dict[str, set[ConditionChange]] = {}
    collected_at: dict[str, float] = {}
    for source in sources:
        for workload in _workloads(source):
            uid = workload["metadata"]["uid"]
            changes.setdefault(uid, set()).update(_changes(workload))
            workloads[uid], collected_at[uid] = workload, source.collected_at
    for uid, workload in workloads.items():
        created_at = parse_iso8601(workload["metadata"]["creationTimestamp"])
        accelerators = _accelerators(workload)
        attempts = list(
            _attempt_records(sorted(changes[uid]), created_at, collected_at[uid], accelerators)
        )
        if attempts and accelerators:
            queue = workload["spec"].get("queueName")
            yield RunRecord(
                key=f"kueue {uid}",
                run=workload["metadata"]["name"],
                attempts=tuple(attempts),
                labels={"reader": "kueue", **({"queue": queue} if queue else {})},
            )


def _workloads(source: Source) -> Iterator[Mapping[str, Any]]:
    for content in source.objects():
        for item in content.get("items") or (content,):
            if item.get("kind") == "Workload":
                yield item


def _changes(workload: Mapping[str, Any]) -> Iterator[ConditionChange]:
    for condition in (workload.get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ORDER:
            at = parse_iso8601(condition["lastTransitionTime"])
            yield ConditionChange(
                at, ORDER.index(condition["type"]), condition["type"], condition.get("reason") or ""
            )


def _attempt_records(
    changes: Sequence[ConditionChange], queued_since: float, collected_at: float, accelerators: int
) -> Iterator[AttemptRecord]:
    """Waiting for quota is waiting for capacity; admission checks and pods follow."""
    reserved: float | None = None
    admitted: float | None = None
    ready: float | None = None

    def make_record(end: float, outcome: Outcome, category: str, evidence: str) -> AttemptRecord:
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
            queued=max((reserved if reserved is not None else start) - queued_since, 0.0),
            category=category,
            evidence=evidence,
        )

    for at, _, condition, reason in changes:
        if condition == "QuotaReserved":
            reserved = at
        elif condition == "Admitted":
            admitted, ready = at, None
        elif condition == "PodsReady":
            ready = at
        elif condition == "Requeued":
            queued_since = at
        elif admitted is not None:
            if condition == "Evicted":
                outcome, category = EVICTED.get(reason, ("failed", "unknown"))
            elif reason == "Failed":
                outcome, category = "failed", "unknown"
            else:
                outcome, category = "completed", "unknown"
            yield make_record(at, outcome, category, f"Kueue condition {condition}: {reason}")
            reserved = admitted = ready = None
            queued_since = at
    if admitted is not None:
        yield make_record(collected_at, "running", "unknown", "")


def _accelerators(workload: Mapping[str, Any]) -> int:
    total = 0
    for pods in workload["spec"].get("podSets") or ():
        for container in pods["template"]["spec"].get("containers") or ():
            resources = container.get("resources") or {}
            limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            per_pod = sum(int(limits.get(name, 0)) for name in ACCELERATORS)
            total += per_pod * int(pods.get("count", 1))
    return total
