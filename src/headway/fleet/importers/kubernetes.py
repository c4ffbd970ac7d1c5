"""Import Kubernetes objects: `kubectl get jobs,pods,events -o json`.

A run is a Job, a JobSet, a gang of another controller, or a standalone pod. Pods that run at the
same time are one attempt; the pods that replace them are the next one. A gang has its machines
when its last pod is scheduled. Without events, waiting for capacity cannot be distinguished from
waiting for the scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source, parse_iso8601
from headway.ledger.model import Outcome

Object = Mapping[str, Any]

KINDS = ("Pod", "Job", "JobSet", "Event", "List", "PodList", "JobList")
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
RESTART = "jobset.sigs.k8s.io/restart-attempt"
# Labels that number the pods of a gang, and the groups within which they are numbered.
INDEX = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
GROUP = (
    "training.kubeflow.org/replica-type",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
)
DISRUPTED = {
    "PreemptionByScheduler": "preemption",
    "EvictionByEvictionAPI": "preemption",
    "DeletionByTaintManager": "node_failure",
    "DeletionByPodGC": "node_failure",
    "TerminationByKubelet": "node_failure",
}


def detect(source: Source) -> bool:
    """Whether it contains Pods or Jobs."""
    return any(item.get("kind") in ("Pod", "Job") for item in _items(source))


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per Job, JobSet or standalone pod that requests accelerators."""
    pods: dict[str, tuple[Object, float]] = {}
    unscheduled: set[tuple[str, str]] = set()
    jobs: dict[tuple[str, str], Object] = {}
    for source in sources:
        for item in _items(source):
            if item.get("kind") == "Pod":
                pods[item["metadata"]["uid"]] = (item, source.collected_at)
            elif item.get("kind") == "Job":
                jobs[_place(item)] = item
            elif item.get("kind") == "Event" and item.get("reason") == "FailedScheduling":
                subject = item.get("involvedObject") or item.get("regarding") or {}
                unscheduled.add((subject.get("namespace", ""), subject.get("name", "")))
    runs: dict[tuple[str, str, str], list[_Pod]] = defaultdict(list)
    for pod, collected_at in pods.values():
        if _accelerators(pod):
            runs[_owner(pod)].append(_pod(pod, collected_at))
    for (space, kind, name), members in runs.items():
        limit = _deadline(jobs.get((space, name)))
        gangs = _attempts(members)
        begins = [
            gang.created_at if gang.scheduled_at is None else gang.scheduled_at
            for gang in gangs[1:]
        ]
        records = [
            _attempt_record(gang, until, unscheduled, limit)
            for gang, until in zip(gangs, [*begins, None], strict=True)
        ]
        attempts = tuple(record for record in records if record is not None)
        if attempts:
            first = min(pod.object["metadata"]["creationTimestamp"] for pod in members)
            yield RunRecord(
                key=f"kubernetes {space} {kind} {name} {first}",
                run=name,
                attempts=attempts,
                job=name,
                labels={"reader": "kubernetes", "namespace": space},
            )


def _items(source: Source) -> Iterator[Object]:
    if '"kind"' not in source.text:
        return
    for content in source.objects():
        if content.get("kind") in KINDS:
            yield from content.get("items") or (content,)


def _place(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _labels(pod: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels


def _owner(pod: Object) -> tuple[str, str, str]:
    space, name = _place(pod)
    labels = _labels(pod)
    if "jobset.sigs.k8s.io/jobset-name" in labels:
        return space, "JobSet", labels["jobset.sigs.k8s.io/jobset-name"]
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return space, owner["kind"], owner["name"]
    return space, "Pod", name


class _Pod(NamedTuple):
    """A pod of a run with its lifetime, in seconds since the epoch."""

    object: Object
    collected_at: float
    created_at: float
    scheduled_at: float | None
    ended_at: float  # infinite if it was still running


class _Gang(NamedTuple):
    """The pods of an attempt: those created for it, and those that kept running."""

    new: list[_Pod]
    old: list[_Pod]

    @property
    def created_at(self) -> float:
        """When the first new pod was created."""
        return min(pod.created_at for pod in self.new)

    @property
    def scheduled_at(self) -> float | None:
        """When the last new pod was scheduled; None if one has not been."""
        placed = [pod.scheduled_at for pod in self.new if pod.scheduled_at is not None]
        return max(placed) if len(placed) == len(self.new) else None


def _pod(pod: Object, collected_at: float) -> _Pod:
    ended = _container(pod, "finishedAt")
    if ended is None:
        ended = _when(pod, "DisruptionTarget")
    made = parse_iso8601(pod["metadata"]["creationTimestamp"])
    return _Pod(
        pod, collected_at, made, _when(pod, "PodScheduled"), inf if ended is None else ended
    )


def _attempts(pods: Sequence[_Pod]) -> list[_Gang]:
    """The attempts in order. JobSet labels pods with the restart of the whole set."""
    restarts: dict[int, list[_Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: (pod.created_at, _place(pod.object))):
        restarts[int(_labels(pod.object).get(RESTART, 0))].append(pod)
    return [gang for number in sorted(restarts) for gang in _gangs(restarts[number])]


def _gangs(pods: Sequence[_Pod]) -> Iterator[_Gang]:
    """Assign pods to seats: a pod replaces one that has ended; the n-th pod of a seat belongs to
    the n-th attempt.

    A pod that is not replaced also belongs to later attempts, until it ends.
    """
    seats: dict[tuple[str, ...] | int, list[_Pod]] = {}
    for pod in pods:
        seats.setdefault(_seat(pod, seats), []).append(pod)
    for number in range(max(map(len, seats.values()))):
        new = [seat[number] for seat in seats.values() if len(seat) > number]
        begin = min(pod.created_at for pod in new)
        last = [seat[-1] for seat in seats.values() if len(seat) <= number]
        yield _Gang(new, [pod for pod in last if pod.ended_at > begin])


def _seat(
    pod: _Pod, seats: Mapping[tuple[str, ...] | int, Sequence[_Pod]]
) -> tuple[str, ...] | int:
    """The index that the controller assigned; otherwise the seat that became free first, or a new
    one.
    """
    labels = _labels(pod.object)
    if any(name in labels for name in INDEX):
        return tuple(labels.get(name, "") for name in (*GROUP, *INDEX))
    free = [
        (occupants[-1].ended_at, seat)
        for seat, occupants in seats.items()
        if isinstance(seat, int) and occupants[-1].ended_at <= pod.created_at
    ]
    return min(free)[1] if free else len(seats)


def _attempt_record(
    gang: _Gang, until: float | None, unscheduled: set[tuple[str, str]], limit: str
) -> AttemptRecord | None:
    """None if a pod has not been scheduled; `until` is the start of the next attempt."""
    start = gang.scheduled_at
    if start is None:
        return None
    pods = [*gang.new, *gang.old]
    ended = [pod for pod in pods if pod.ended_at < inf and (until is None or pod.ended_at <= until)]
    disrupted = any(_when(pod.object, "DisruptionTarget") is not None for pod in ended)
    alive = until is None and len(ended) < len(pods) and not disrupted
    collected_at = max(pod.collected_at for pod in pods)
    end = (
        collected_at
        if alive
        else max((pod.ended_at for pod in ended), default=until or collected_at)
    )
    starts = [at for pod in pods if (at := _container(pod.object, "startedAt")) is not None]
    spans = []
    capacity = any(_place(pod.object) in unscheduled for pod in gang.new)
    if not capacity and start > gang.created_at:
        spans.append(Span(gang.created_at, start, "scheduling"))
    ready = max(starts) if len(starts) == len(pods) else end  # sandbox, image pull, volumes
    if ready > start:
        spans.append(Span(start, min(ready, end), "hardware_setup"))
    outcome, category, evidence = _outcome([pod.object for pod in ended], alive, limit)
    if outcome == "completed" and len(ended) < len(pods):
        outcome, evidence = "failed", "a pod was replaced"
    return AttemptRecord(
        start=start,
        end=max(end, start),
        outcome=outcome,
        accelerators=sum(_accelerators(pod.object) for pod in pods),
        spans=tuple(spans),
        hosts=tuple(dict.fromkeys(pod.object["spec"].get("nodeName") or "" for pod in pods)),
        queued=start - gang.created_at if capacity else 0.0,
        category=category,
        evidence=evidence,
    )


def _outcome(pods: Sequence[Object], alive: bool, limit: str) -> tuple[Outcome, str, str]:
    for pod in pods:
        for condition in _conditions(pod):
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
                category = DISRUPTED.get(condition.get("reason", ""), "unknown")
                outcome: Outcome = "preempted" if category == "preemption" else "failed"
                return outcome, category, f"pod {_place(pod)[1]}: {condition.get('reason')}"
    if alive:
        return "running", "unknown", ""
    if limit:
        return "failed", "time_limit", limit
    for pod in pods:
        for state in _ended(pod):
            if state.get("reason") == "OOMKilled":
                return "failed", "host_oom", f"pod {_place(pod)[1]}: OOMKilled"
    for pod in pods:
        for state in _ended(pod):
            if state.get("exitCode"):
                evidence = f"pod {_place(pod)[1]} exited with {state['exitCode']}"
                return "failed", "unknown", evidence
    return "completed", "unknown", ""


def _deadline(job: Object | None) -> str:
    for condition in _conditions(job or {}):
        if condition["type"] == "Failed" and condition.get("reason") == "DeadlineExceeded":
            return "DeadlineExceeded"
    return ""


def _conditions(item: Object) -> Sequence[Object]:
    return (item.get("status") or {}).get("conditions") or ()


def _when(pod: Object, kind: str) -> float | None:
    for condition in _conditions(pod):
        if condition["type"] == kind and condition["status"] == "True":
            return parse_iso8601(condition["lastTransitionTime"])
    return None


def _ended(pod: Object) -> Iterator[Object]:
    for status in pod["status"].get("containerStatuses") or ():
        if "terminated" in status["state"]:
            yield status["state"]["terminated"]


def _container(pod: Object, field: str) -> float | None:
    """When the last container of a pod started or ended; None if one has not."""
    times = []
    for status in pod["status"].get("containerStatuses") or ():
        state = status["state"].get("terminated") or status["state"].get("running") or {}
        if not state.get(field):
            return None
        times.append(parse_iso8601(state[field]))
    return max(times, default=None)


def _accelerators(pod: Object) -> int:
    total = 0
    for container in pod["spec"].get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        total += sum(int(limits.get(name, 0)) for name in ACCELERATORS)
    return total
