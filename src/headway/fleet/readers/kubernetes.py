"""Kubernetes objects: `kubectl get jobs,pods,events -o json`.

A run is a Job, a JobSet or a pod of nobody; the pods that were tried one after the other are its
lives. A gang has its machines when its last pod has. Without events a wait for capacity cannot be
told from one for the scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.fleet.readers.record import Life, Record, Span
from headway.fleet.readers.source import Source, instant
from headway.ledger.model import Outcome

Object = Mapping[str, Any]

KINDS = ("Pod", "Job", "JobSet", "Event", "List", "PodList", "JobList")
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
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


def read(sources: Sequence[Source]) -> Iterator[Record]:
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
    runs: dict[tuple[str, str, str], list[tuple[Object, float]]] = defaultdict(list)
    for pod, taken in pods.values():
        if _accelerators(pod):
            runs[_owner(pod)].append((pod, taken))
    for (space, kind, name), found in runs.items():
        limit = _deadline(jobs.get((space, name)))
        lives = [_life(group, waited, limit) for group in _lives(found)]
        lived = tuple(life for life in lives if life is not None)
        if lived:
            first = min(pod["metadata"]["creationTimestamp"] for pod, _ in found)
            yield Record(
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


def _owner(pod: Object) -> tuple[str, str, str]:
    space, name = _place(pod)
    labels = pod["metadata"].get("labels") or {}
    if "jobset.sigs.k8s.io/jobset-name" in labels:
        return space, "JobSet", labels["jobset.sigs.k8s.io/jobset-name"]
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return space, owner["kind"], owner["name"]
    return space, "Pod", name


def _lives(pods: Sequence[tuple[Object, float]]) -> list[list[tuple[Object, float]]]:
    """Pods by attempt: JobSet says it; else they are the first, the second, ... of their index."""
    lives: dict[int, list[tuple[Object, float]]] = defaultdict(list)
    tried: dict[str, int] = defaultdict(int)
    for pod, taken in sorted(pods, key=lambda one: one[0]["metadata"]["creationTimestamp"]):
        labels = pod["metadata"].get("labels") or {}
        index = str(labels.get("batch.kubernetes.io/job-completion-index"))
        said = labels.get("jobset.sigs.k8s.io/restart-attempt")
        lives[int(said) if said is not None else tried[index]].append((pod, taken))
        tried[index] += 1
    return [lives[number] for number in sorted(lives)]


def _life(
    pods: Sequence[tuple[Object, float]], waited: set[tuple[str, str]], limit: str
) -> Life | None:
    """None where a pod has no node yet."""
    made = min(instant(pod["metadata"]["creationTimestamp"]) for pod, _ in pods)
    placed = [_when(pod, "PodScheduled") for pod, _ in pods]
    if None in placed:
        return None
    start = max(at for at in placed if at is not None)
    begun = [at for pod, _ in pods if (at := _container(pod, "startedAt")) is not None]
    ended = [at for pod, _ in pods if (at := _container(pod, "finishedAt")) is not None]
    alive = len(ended) < len(pods)
    disrupted = [at for pod, _ in pods if (at := _when(pod, "DisruptionTarget")) is not None]
    taken = max(taken for _, taken in pods)
    end = max((*ended, *disrupted), default=taken) if not alive or disrupted else taken
    spans = []
    capacity = any(_place(pod) in waited for pod, _ in pods)
    if not capacity and start > made:
        spans.append(Span(made, start, "scheduling"))
    ready = max(begun) if len(begun) == len(pods) else end  # sandbox, image, volumes
    if ready > start:
        spans.append(Span(start, min(ready, end), "hardware_setup"))
    outcome, category, evidence = _why(pods, alive and not disrupted, limit)
    return Life(
        start=start,
        end=max(end, start),
        outcome=outcome,
        accelerators=sum(_accelerators(pod) for pod, _ in pods),
        spans=tuple(spans),
        hosts=tuple(dict.fromkeys(pod["spec"].get("nodeName") or "" for pod, _ in pods)),
        queued=start - made if capacity else 0.0,
        category=category,
        evidence=evidence,
    )


def _why(pods: Sequence[tuple[Object, float]], alive: bool, limit: str) -> tuple[Outcome, str, str]:
    for pod, _ in pods:
        for one in _conditions(pod):
            if one["type"] == "DisruptionTarget" and one["status"] == "True":
                category = DISRUPTED.get(one.get("reason", ""), "unknown")
                outcome: Outcome = "preempted" if category == "preemption" else "failed"
                return outcome, category, f"pod {_place(pod)[1]}: {one.get('reason')}"
    if alive:
        return "running", "unknown", ""
    if limit:
        return "failed", "time_limit", limit
    for pod, _ in pods:
        for ended in _ended(pod):
            if ended.get("reason") == "OOMKilled":
                return "failed", "host_oom", f"pod {_place(pod)[1]}: OOMKilled"
    for pod, _ in pods:
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
            return instant(one["lastTransitionTime"])
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
        found.append(instant(told[what]))
    return max(found, default=None)


def _accelerators(pod: Object) -> int:
    total = 0
    for container in pod["spec"].get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        total += sum(int(limits.get(name, 0)) for name in ACCELERATORS)
    return total
