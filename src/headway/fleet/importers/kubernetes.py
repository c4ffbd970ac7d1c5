"""Kubernetes objects: `kubectl get jobs,pods,events -o json`.

A run is a Job, a JobSet, another controller's gang or a pod without a controller. Pods that live at
the same time are one attempt, those that take their place are the next. A gang has its machines
when its last pod has. Without events a wait for capacity cannot be told from one for the scheduler.
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
# What numbers the pods of a gang, and the groups of them that are numbered on their own.
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


def recognises(source: Source) -> bool:
    """Pods, Jobs, or a list with one of them."""
    return any(one.get("kind") in ("Pod", "Job") for one in _items(source))


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """One run for each Job, JobSet or lone pod that asks for accelerators."""
    pods: dict[str, tuple[Object, float]] = {}
    waited: set[tuple[str, str]] = set()
    jobs: dict[tuple[str, str], Object] = {}
    for source in sources:
        for one in _items(source):
            if one.get("kind") == "Pod":
                pods[one["metadata"]["uid"]] = (one, source.taken)
            elif one.get("kind") == "Job":
                jobs[_place(one)] = one
            elif one.get("kind") == "Event" and one.get("reason") == "FailedScheduling":
                about = one.get("involvedObject") or one.get("regarding") or {}
                waited.add((about.get("namespace", ""), about.get("name", "")))
    runs: dict[tuple[str, str, str], list[_Pod]] = defaultdict(list)
    for pod, taken in pods.values():
        if _accelerators(pod):
            runs[_owner(pod)].append(_pod(pod, taken))
    for (space, kind, name), found in runs.items():
        limit = _deadline(jobs.get((space, name)))
        gangs = _attempts(found)
        begins = [gang.made if gang.placed is None else gang.placed for gang in gangs[1:]]
        lives = [
            _attempt_record(gang, until, waited, limit)
            for gang, until in zip(gangs, [*begins, None], strict=True)
        ]
        lived = tuple(life for life in lives if life is not None)
        if lived:
            first = min(pod.object["metadata"]["creationTimestamp"] for pod in found)
            yield RunRecord(
                key=f"kubernetes {space} {kind} {name} {first}",
                run=name,
                lives=lived,
                job=name,
                labels={"reader": "kubernetes", "namespace": space},
            )


def _items(source: Source) -> Iterator[Object]:
    if '"kind"' not in source.text:
        return
    for found in source.objects():
        if found.get("kind") in KINDS:
            yield from found.get("items") or (found,)


def _place(one: Object) -> tuple[str, str]:
    return one["metadata"].get("namespace", ""), one["metadata"]["name"]


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
    """A pod of a run, and when it was there; seconds since the epoch."""

    object: Object
    taken: float  # when it was looked at
    made: float
    placed: float | None
    ended: float  # endless where it was alive when it was looked at


class _Gang(NamedTuple):
    """The pods of an attempt: those that were made for it, and those that lived on."""

    new: list[_Pod]
    old: list[_Pod]

    @property
    def made(self) -> float:
        """When the first of the new ones was."""
        return min(pod.made for pod in self.new)

    @property
    def placed(self) -> float | None:
        """When the last of the new ones had its node; None while one has not."""
        placed = [pod.placed for pod in self.new if pod.placed is not None]
        return max(placed) if len(placed) == len(self.new) else None


def _pod(pod: Object, taken: float) -> _Pod:
    ended = _container(pod, "finishedAt")
    if ended is None:
        ended = _when(pod, "DisruptionTarget")
    made = parse_iso8601(pod["metadata"]["creationTimestamp"])
    return _Pod(pod, taken, made, _when(pod, "PodScheduled"), inf if ended is None else ended)


def _attempts(pods: Sequence[_Pod]) -> list[_Gang]:
    """In order. JobSet itself says which restart of the whole set a pod is of."""
    restarts: dict[int, list[_Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: (pod.made, _place(pod.object))):
        restarts[int(_labels(pod.object).get(RESTART, 0))].append(pod)
    return [gang for number in sorted(restarts) for gang in _gangs(restarts[number])]


def _gangs(pods: Sequence[_Pod]) -> Iterator[_Gang]:
    """A pod takes the seat of one that has ended; the n-th pod of a seat is of the n-th attempt.

    Who sits where no other one came lives on in the attempts after that, until it ends.
    """
    seats: dict[tuple[str, ...] | int, list[_Pod]] = {}
    for pod in pods:
        seats.setdefault(_seat(pod, seats), []).append(pod)
    for number in range(max(map(len, seats.values()))):
        new = [seat[number] for seat in seats.values() if len(seat) > number]
        begin = min(pod.made for pod in new)
        last = [seat[-1] for seat in seats.values() if len(seat) <= number]
        yield _Gang(new, [pod for pod in last if pod.ended > begin])


def _seat(
    pod: _Pod, seats: Mapping[tuple[str, ...] | int, Sequence[_Pod]]
) -> tuple[str, ...] | int:
    """As its controller numbers it; else the one that was left first, or a new one."""
    labels = _labels(pod.object)
    if any(name in labels for name in INDEX):
        return tuple(labels.get(name, "") for name in (*GROUP, *INDEX))
    left = [
        (there[-1].ended, seat)
        for seat, there in seats.items()
        if isinstance(seat, int) and there[-1].ended <= pod.made
    ]
    return min(left)[1] if left else len(seats)


def _attempt_record(
    gang: _Gang, until: float | None, waited: set[tuple[str, str]], limit: str
) -> AttemptRecord | None:
    """None where a pod has no node yet; `until` is when the next attempt began."""
    start = gang.placed
    if start is None:
        return None
    pods = [*gang.new, *gang.old]
    over = [pod for pod in pods if pod.ended < inf and (until is None or pod.ended <= until)]
    disrupted = any(_when(pod.object, "DisruptionTarget") is not None for pod in over)
    alive = until is None and len(over) < len(pods) and not disrupted
    taken = max(pod.taken for pod in pods)
    end = taken if alive else max((pod.ended for pod in over), default=until or taken)
    begun = [at for pod in pods if (at := _container(pod.object, "startedAt")) is not None]
    spans = []
    capacity = any(_place(pod.object) in waited for pod in gang.new)
    if not capacity and start > gang.made:
        spans.append(Span(gang.made, start, "scheduling"))
    ready = max(begun) if len(begun) == len(pods) else end  # sandbox, image, volumes
    if ready > start:
        spans.append(Span(start, min(ready, end), "hardware_setup"))
    outcome, category, evidence = _why([pod.object for pod in over], alive, limit)
    if outcome == "completed" and len(over) < len(pods):
        outcome, evidence = "failed", "a pod was replaced"
    return AttemptRecord(
        start=start,
        end=max(end, start),
        outcome=outcome,
        accelerators=sum(_accelerators(pod.object) for pod in pods),
        spans=tuple(spans),
        hosts=tuple(dict.fromkeys(pod.object["spec"].get("nodeName") or "" for pod in pods)),
        queued=start - gang.made if capacity else 0.0,
        category=category,
        evidence=evidence,
    )


def _why(pods: Sequence[Object], alive: bool, limit: str) -> tuple[Outcome, str, str]:
    for pod in pods:
        for one in _conditions(pod):
            if one["type"] == "DisruptionTarget" and one["status"] == "True":
                category = DISRUPTED.get(one.get("reason", ""), "unknown")
                outcome: Outcome = "preempted" if category == "preemption" else "failed"
                return outcome, category, f"pod {_place(pod)[1]}: {one.get('reason')}"
    if alive:
        return "running", "unknown", ""
    if limit:
        return "failed", "time_limit", limit
    for pod in pods:
        for ended in _ended(pod):
            if ended.get("reason") == "OOMKilled":
                return "failed", "host_oom", f"pod {_place(pod)[1]}: OOMKilled"
    for pod in pods:
        for ended in _ended(pod):
            if ended.get("exitCode"):
                told = f"pod {_place(pod)[1]} exited with {ended['exitCode']}"
                return "failed", "unknown", told
    return "completed", "unknown", ""


def _deadline(job: Object | None) -> str:
    for one in _conditions(job or {}):
        if one["type"] == "Failed" and one.get("reason") == "DeadlineExceeded":
            return "DeadlineExceeded"
    return ""


def _conditions(one: Object) -> Sequence[Object]:
    return (one.get("status") or {}).get("conditions") or ()


def _when(pod: Object, kind: str) -> float | None:
    for one in _conditions(pod):
        if one["type"] == kind and one["status"] == "True":
            return parse_iso8601(one["lastTransitionTime"])
    return None


def _ended(pod: Object) -> Iterator[Object]:
    for one in pod["status"].get("containerStatuses") or ():
        if "terminated" in one["state"]:
            yield one["state"]["terminated"]


def _container(pod: Object, what: str) -> float | None:
    """When the last container of a pod started or ended; None while one has not."""
    found = []
    for one in pod["status"].get("containerStatuses") or ():
        told = one["state"].get("terminated") or one["state"].get("running") or {}
        if not told.get(what):
            return None
        found.append(parse_iso8601(told[what]))
    return max(found, default=None)


def _accelerators(pod: Object) -> int:
    total = 0
    for container in pod["spec"].get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        total += sum(int(limits.get(name, 0)) for name in ACCELERATORS)
    return total
