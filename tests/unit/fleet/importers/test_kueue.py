"""Kueue's Workloads.

The format: kubernetes-sigs/kueue, apis/kueue/v1beta1/workload_types.go (conditions and reasons).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.errors import UsageError
from headway.units import NS
from tests.support import has_code
from tests.unit.fleet.importers.ledgers import categories, import_ledgers, outcomes, seconds, source
from tests.unit.fleet.importers.test_kubernetes import at

pytestmark = pytest.mark.timeout(60)


def workload(**conditions: tuple[int, str]) -> dict[str, Any]:
    """One that was made at 0 s, for two pods of four GPUs; conditions that are true."""
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "4"}}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "job-train-1", "uid": "u1", "creationTimestamp": at(0)},
        "spec": {
            "queueName": "ads",
            "podSets": [
                {"name": "main", "count": 2, "template": {"spec": {"containers": [container]}}}
            ],
        },
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": at(when), "reason": reason}
                for kind, (when, reason) in conditions.items()
            ]
        },
    }


ADMITTED = {
    "QuotaReserved": (100, "QuotaReserved"),
    "Admitted": (105, "Admitted"),
    "PodsReady": (165, "PodsReady"),
}


def test_quota_checks_and_pods_are_told_apart() -> None:
    one = workload(**ADMITTED, Finished=(600, "Succeeded"))
    (run,) = import_ledgers("kueue", source(one)).values()
    assert run.queue_capacity == 100 * NS and run.attempts[0].world == 8
    told = {"start.scheduling": 5.0, "start.hardware_setup": 60.0, "unknown": 435.0}
    assert seconds(run) == told
    assert outcomes(run) == ["completed"]


def test_a_watched_workload_shows_its_attempts() -> None:
    looks = [
        workload(),
        workload(**ADMITTED),
        workload(Evicted=(300, "Preempted"), Preempted=(300, "InClusterQueue")),
        workload(Requeued=(310, "Preempted")),
        workload(
            QuotaReserved=(400, "QuotaReserved"),
            Admitted=(400, "Admitted"),
            PodsReady=(420, "PodsReady"),
            Finished=(500, "Succeeded"),
        ),
    ]
    text = "\n".join(json.dumps(look, indent=2) for look in looks)  # as --watch writes them
    (run,) = import_ledgers("kueue", source(text)).values()
    assert outcomes(run) == ["preempted", "completed"]
    assert categories(run) == [(0, "preemption")]
    assert run.queue_capacity == (100 + 90) * NS
    assert seconds(run) == {
        "start.scheduling": 5.0,
        "start.hardware_setup": 60.0,
        "recover.downtime": 100.0,
        "recover.hardware_setup": 20.0,
        "unknown": 215.0,
    }


def test_one_that_waits_or_runs() -> None:
    assert import_ledgers("kueue", source(workload())) == {}
    (run,) = import_ledgers(
        "kueue", source(workload(**ADMITTED), collected_at=1_794_805_200.0 + 200)
    ).values()
    assert run.running and run.wall == 100 * NS


def test_one_without_accelerators_is_left_out() -> None:
    one = workload(**ADMITTED)
    one["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] = {}
    assert import_ledgers("kueue", source(one)) == {}


def test_pods_that_never_got_ready() -> None:
    one = workload(
        QuotaReserved=(10, "QuotaReserved"),
        Admitted=(10, "Admitted"),
        Evicted=(310, "PodsReadyTimeout"),
    )
    (run,) = import_ledgers("kueue", source(one)).values()
    assert categories(run) == [(0, "platform_start")]
    assert seconds(run) == {"start.hardware_setup": 300.0}


def test_bad_input_is_a_sentence() -> None:
    one = workload(**ADMITTED)
    del one["metadata"]["uid"]
    with pytest.raises(UsageError, check=has_code("record-invalid")):
        import_ledgers("kueue", source(one))
