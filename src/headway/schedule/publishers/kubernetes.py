"""Publish the eviction cost to Kubernetes: annotations, and Kueue's priority boost of a Workload.

Kueue adds `kueue.x-k8s.io/priority-boost` to the priority of a Workload if its feature gate
PriorityBoost is enabled, and leaves it to other components to set the annotation (KEP-7990).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from headway.errors import SchedulerUpdateFailed, UsageError
from headway.eviction_cost import EvictionCost
from headway.schedule.publishers.api import TRIES, Api, Conflict
from headway.schedule.publishers.base import PerJobPublisher, PriorityAdjustment, RunCost

KINDS = {
    "pod": ("/api/v1", "pods"),
    "job": ("/apis/batch/v1", "jobs"),
    "jobset": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "pytorchjob": ("/apis/kubeflow.org/v1", "pytorchjobs"),
    "rayjob": ("/apis/ray.io/v1", "rayjobs"),
}
KUEUE = "/apis/kueue.x-k8s.io"
OWNER = "kueue.x-k8s.io/job-uid"  # label of each Workload
BOOST = "kueue.x-k8s.io/priority-boost"
COST, UNSAVED = "headway/eviction-cost-accelerator-seconds", "headway/unsaved-seconds"
HELD, AT = "headway/accelerators", "headway/eviction-cost-at"
OURS = "headway/priority-boost"  # the boost set by Headway; other values are not changed
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

Annotations = dict[str, str | None]


class KubernetesPublisher(PerJobPublisher):
    """Updates objects through the API server; without `target`, the pod of the launcher."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        target: str | None = None,
        workload: str | None = None,
        adjustment: PriorityAdjustment | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        super().__init__()
        self.api, self.adjustment, self.dry_run = api, adjustment, dry_run
        self.kind, _, self.name = (target or "pod/").partition("/")
        if self.kind not in KINDS or (target and not self.name):
            raise UsageError(
                f"--object must be KIND/NAME with one of the kinds {', '.join(KINDS)}, "
                f"not {target!r}",
                code="kubernetes-object-invalid",
            )
        self.namespace, self.workload = namespace, workload
        for name in filter(None, (namespace, self.name, workload)):
            _check_name(name)

    def key(self, cost: RunCost) -> str | None:
        """The given name, or the pod of the launcher."""
        return self.name or cost.host.lower()

    def publish_one(self, name: str | None, cost: RunCost) -> Iterator[str]:
        """Set the annotations, and the boost if limits are given."""
        if name is None or not _NAME.fullmatch(name):
            if cost.price is None:
                return
            raise SchedulerUpdateFailed(
                f"{name!r} of the run {cost.run} is not a pod; give the object with "
                "--object KIND/NAME",
                code="run-not-in-pod",
            )
        base, plural = KINDS[self.kind]
        path = f"{base}/namespaces/{self.namespace}/{plural}/{name}"
        annotations = _annotations(cost)
        if self.dry_run:
            boost = self.adjustment and cost.price and self.adjustment.priority(cost.price)
            yield f"would patch {path}: {annotations}{f' and {BOOST}={boost}' if boost else ''}"
            return
        result = self._change(path, annotations)
        if result is None:
            if cost.price is None:
                return  # the object and its annotations are gone
            raise SchedulerUpdateFailed(
                f"there is no {self.kind} {name} in the namespace {self.namespace}; "
                "give the object with --object KIND/NAME",
                code="kubernetes-object-not-found",
                name=name,
            )
        if result[1]:
            yield f"{self.kind} {name}: {_describe_change(result[1])}"
        if self.adjustment is not None:
            yield from self._boost(result[0], cost, self.adjustment)

    def _change(
        self, path: str, annotations: Mapping[str, str | None]
    ) -> tuple[dict[str, Any], Annotations] | None:
        """The object before the change, and the changed annotations; None if it does not exist."""
        for _ in range(TRIES):
            resource = self.api.get(path)
            if resource is None:
                return None
            current = _annotations_of(resource)
            change = {key: value for key, value in annotations.items() if current.get(key) != value}
            try:
                if change and self.api.patch(path, _patch(change)) is None:
                    return None
            except Conflict:
                continue
            return resource, change
        raise SchedulerUpdateFailed(
            f"{path} was changed by other clients in each of {TRIES} tries",
            code="kubernetes-conflict",
        )

    def _boost(
        self, owner: dict[str, Any], cost: RunCost, adjustment: PriorityAdjustment
    ) -> Iterator[str]:
        path = self._workload(owner)
        if path is None:
            if cost.price is None:
                return
            raise SchedulerUpdateFailed(
                f"Kueue has no Workload for this {self.kind}; give it with --workload NAME, or "
                "omit --nudge-max",
                code="workload-not-found",
            )
        workload = self.api.get(path)
        if workload is None:
            if cost.price is None:
                return
            raise SchedulerUpdateFailed(
                f"there is no Workload {path.rpartition('/')[2]}; check --workload",
                code="workload-not-found",
            )
        current = _annotations_of(workload)
        if current.get(BOOST) != current.get(OURS):
            raise SchedulerUpdateFailed(
                f"the Workload {path.rpartition('/')[2]} has a boost of "
                f"{current.get(BOOST, 'nothing')}, set by another client; not changed",
                code="workload-boosted-by-other",
            )
        boost = adjustment.priority(cost.price) if cost.price is not None else 0
        value = str(boost) if boost else None
        result = self._change(path, {BOOST: value, OURS: value})
        if result is not None and result[1]:
            yield f"workload {path.rpartition('/')[2]}: {_describe_change(result[1])}"

    def _workload(self, owner: dict[str, Any]) -> str | None:
        """The path of the given Workload, or of the one owned by this pod or job."""
        group = self.api.get(KUEUE)
        if group is None:
            raise SchedulerUpdateFailed(
                "there is no Kueue in this cluster; omit --nudge-max",
                code="kueue-not-found",
            )
        version = group["preferredVersion"]["version"]
        base = f"{KUEUE}/{version}/namespaces/{self.namespace}/workloads"
        if self.workload:
            return f"{base}/{self.workload}"
        label = quote(f"{OWNER}={owner['metadata'].get('uid', '')}")
        items = (self.api.get(f"{base}?labelSelector={label}") or {}).get("items") or []
        names = sorted(str(item["metadata"]["name"]) for item in items)
        return f"{base}/{names[0]}" if names else None


def _annotations(run_cost: RunCost) -> Annotations:
    if run_cost.price is None:
        return dict.fromkeys((COST, UNSAVED, HELD, AT))
    cost: EvictionCost = run_cost.price
    at = datetime.fromtimestamp(run_cost.at, UTC)
    return {
        COST: f"{cost.lost:.0f}",
        UNSAVED: f"{cost.unsaved:.0f}",
        HELD: str(cost.accelerators),
        AT: at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _annotations_of(resource: dict[str, Any]) -> dict[str, str]:
    return dict(resource["metadata"].get("annotations") or {})


def _patch(change: Mapping[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(change)}}


def _describe_change(change: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"no {key}" if value is None else f"{key}={value}" for key, value in change.items()
    )


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid Kubernetes name: use lower-case letters, digits, - and .",
            code="kubernetes-name-invalid",
        )
    return name
