"""Kubernetes objects, with the fields of the Pod and Job APIs (`kubectl explain`).

The format: kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle (conditions, container states),
.../pods/disruptions (DisruptionTarget and its reasons), .../controllers/job (labels, conditions).
"""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import UsageError
from headway.units import NS
from tests.support import has_code
from tests.unit.fleet.importers.ledgers import categories, import_ledgers, outcomes, seconds, source

pytestmark = pytest.mark.timeout(60)


def at(second: int) -> str:
    return f"2026-11-16T05:{second // 60:02d}:{second % 60:02d}Z"


def pod(
    name: str,
    made: int,
    placed: int | None,
    started: int | None = None,
    ended: int | None = None,
    *,
    code: int = 0,
    index: int = 0,
    disrupted: tuple[int, str] | None = None,
    **told: Any,
) -> dict[str, Any]:
    """A pod of the Job `train` with four GPUs, at its times in seconds."""
    conditions = []
    if placed is not None:
        conditions.append(
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(placed)}
        )
    if disrupted is not None:
        when, reason = disrupted
        conditions.append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "lastTransitionTime": at(when),
                "reason": reason,
            }
        )
    state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
    if started is not None:
        state = {"running": {"startedAt": at(started)}}
    if ended is not None and started is not None:
        times = {"startedAt": at(started), "finishedAt": at(ended)}
        state = {"terminated": {**times, "exitCode": code, **told}}
    gpus = {"limits": {"cpu": "8", "nvidia.com/gpu": "4"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ads",
            "uid": f"uid-{name}",
            "creationTimestamp": at(made),
            "labels": {
                "batch.kubernetes.io/job-name": "train",
                "batch.kubernetes.io/job-completion-index": str(index),
            },
            "ownerReferences": [{"kind": "Job", "name": "train", "controller": True}],
        },
        "spec": {"nodeName": f"node-{name}", "containers": [{"name": "main", "resources": gpus}]},
        "status": {
            "conditions": conditions,
            "containerStatuses": [{"name": "main", "state": state}],
        },
    }


def listed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def test_a_gang_has_its_machines_when_its_last_pod_has() -> None:
    pods = (pod("a", 0, 2, 30, 600, index=0), pod("b", 0, 10, 70, 601, index=1))
    (run,) = import_ledgers("kubernetes", source(listed(*pods))).values()
    assert run.run == "train" and run.attempts[0].world == 8
    told = {"start.scheduling": 10.0, "start.hardware_setup": 60.0, "unknown": 531.0}
    assert seconds(run) == told and run.queue_capacity == 0
    assert outcomes(run) == ["completed"]
    assert {rank.hosts for rank in run.ranks} == {("node-a",), ("node-b",)}


def test_a_pod_that_did_not_fit_waited_for_capacity() -> None:
    event = {
        "kind": "Event",
        "reason": "FailedScheduling",
        "involvedObject": {"kind": "Pod", "namespace": "ads", "name": "a"},
    }
    (run,) = import_ledgers(
        "kubernetes", source(listed(pod("a", 0, 120, 130, 300), event))
    ).values()
    assert run.queue_capacity == 120 * NS
    assert seconds(run) == {"start.hardware_setup": 10.0, "unknown": 170.0}


def test_pods_tried_one_after_the_other_are_attempts() -> None:
    pods = (
        pod("a", 0, 1, 10, 100, code=137, disrupted=(95, "PreemptionByScheduler")),
        pod("b", 160, 170, 180, 300, code=137, reason="OOMKilled"),
        pod("c", 310, 311, 320, 400),
    )
    (run,) = import_ledgers("kubernetes", source(listed(*pods))).values()
    assert outcomes(run) == ["preempted", "failed", "completed"]
    assert categories(run) == [(0, "preemption"), (1, "host_oom")]
    assert seconds(run) == {
        "start.scheduling": 1.0,
        "start.hardware_setup": 9.0,
        "recover.downtime": 70.0,
        "recover.scheduling": 11.0,
        "recover.hardware_setup": 19.0,
        "unknown": 290.0,
    }


def unnumbered(*args: Any, labels: dict[str, str] | None = None, **told: Any) -> dict[str, Any]:
    """A pod of a gang whose controller numbers its pods differently, or not at all."""
    found = pod(*args, **told)
    found["metadata"]["labels"] = labels or {}
    return found


def test_pods_of_a_gang_without_numbers_are_one_attempt() -> None:
    """A parallel Job: pods that live at the same time."""
    pods = [unnumbered(name, 0, 5 + n, 20, 600 + n) for n, name in enumerate("abcd")]
    (run,) = import_ledgers("kubernetes", source(listed(*pods))).values()
    assert outcomes(run) == ["completed"] and run.attempts[0].world == 16
    again = [
        unnumbered(name, 603 + n, 606 + n, 620, 900) for n, name in enumerate(("e", "f", "g", "h"))
    ]
    pods[2] = unnumbered("c", 0, 7, 20, 602, code=1)
    (run,) = import_ledgers("kubernetes", source(listed(*pods, *again))).values()
    assert outcomes(run) == ["failed", "completed"]
    assert [attempt.world for attempt in run.attempts] == [16, 16]


def test_replicas_of_a_training_operator_are_one_attempt() -> None:
    """PyTorchJob: the master and the first worker have the same number."""
    pods = [
        unnumbered(
            f"{kind}-{number}",
            0,
            5,
            20,
            600,
            labels={
                "training.kubeflow.org/replica-type": kind,
                "training.kubeflow.org/replica-index": str(number),
            },
        )
        for kind, number in (("master", 0), ("worker", 0), ("worker", 1))
    ]
    (run,) = import_ledgers("kubernetes", source(listed(*pods))).values()
    assert outcomes(run) == ["completed"] and run.attempts[0].world == 12


@pytest.mark.parametrize("numbered", [True, False])
def test_a_replaced_pod_begins_an_attempt_in_which_the_others_live_on(numbered: bool) -> None:
    make = pod if numbered else unnumbered
    pods = [
        make("a", 0, 5, 20, 300, index=0, code=137, reason="OOMKilled"),
        make("b", 0, 5, 20, 900, index=1),
        make("c", 310, 315, 330, 900, index=0),
    ]
    (run,) = import_ledgers("kubernetes", source(listed(*pods))).values()
    assert outcomes(run) == ["failed", "completed"] and categories(run) == [(0, "host_oom")]
    assert [attempt.world for attempt in run.attempts] == [8, 8]
    assert [attempt.end // NS for attempt in run.attempts] == [300, 900]


def test_a_jobset_says_its_restarts_itself() -> None:
    pods = []
    for restart, begin in ((0, 0), (1, 100)):
        for group in ("driver", "workers"):
            one = pod(f"{group}{restart}", begin, begin + 5, begin + 9, begin + 90)
            one["metadata"]["labels"] |= {
                "jobset.sigs.k8s.io/jobset-name": "train",
                "jobset.sigs.k8s.io/replicatedjob-name": group,
                "jobset.sigs.k8s.io/restart-attempt": str(restart),
            }
            pods.append(one)
    (run,) = import_ledgers("kubernetes", source(listed(*pods))).values()
    assert [attempt.world for attempt in run.attempts] == [8, 8]


def test_a_job_that_took_too_long() -> None:
    job = {
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "ads"},
        "status": {
            "conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
        },
    }
    (run,) = import_ledgers(
        "kubernetes", source(listed(job, pod("a", 0, 1, 2, 60, code=143)))
    ).values()
    assert categories(run) == [(0, "time_limit")]


def test_what_runs_and_what_waits() -> None:
    collected_at = 1_794_805_200.0  # 05:00:00
    (run,) = import_ledgers(
        "kubernetes", source(listed(pod("a", 0, 1, 2)), collected_at=collected_at + 50)
    ).values()
    assert run.running and run.wall == 50 * NS
    waits = source(listed(pod("a", 0, None)))
    assert import_ledgers("kubernetes", waits) == {}


def test_bad_input_is_a_sentence() -> None:
    broken = pod("a", 0, 1, 2, 60)
    broken["status"]["conditions"][0]["lastTransitionTime"] = "noon"
    with pytest.raises(UsageError, check=has_code("record-invalid")):
        import_ledgers("kubernetes", source(listed(broken)))
