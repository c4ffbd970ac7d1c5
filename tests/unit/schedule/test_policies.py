"""Victims of each policy in clusters that are small enough to check by hand."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from headway.errors import UsageError
from headway.schedule import policies
from headway.schedule.model import Cluster, Job, JobSpec, Tenant
from headway.schedule.policies import LeastCost, Newest
from headway.schedule.preemption import PreemptionContext
from tests.support import has_code

NOW = 10_000.0


def running(number: int, gpus: int, node: int, since: float, **more: Any) -> Job:
    job = Job(number, JobSpec(since, 1e6, gpus, "a"), 0)
    job.placement, job.since, job.attempts = ((node, gpus),), since, 1
    job.recover, job.interval, job.phase, job.save = 100.0, 1000.0, 1000.0, 10.0
    for name, value in more.items():
        setattr(job, name, value)
    return job


def scene(
    need: int, *jobs: Job, quota: int = 0, grace: float = 0.0, nodes: int = 2
) -> PreemptionContext:
    cluster = Cluster(8 * nodes, 8)
    borrower, owner = Tenant("a", quota), Tenant("b", 8 * nodes - quota)
    for job in jobs:
        cluster.allocate(job.placement)
        borrower.running[job.number] = job
        borrower.used += job.gpus
    filler = [(node, free) for node, free in enumerate(cluster.free) if free]
    cluster.allocate(tuple(filler))
    return PreemptionContext(
        NOW, Job(99, JobSpec(NOW, 10, need, "b"), 1), cluster, [borrower, owner], grace
    )


def chosen(name: str, *args: Any, **more: Any) -> list[int]:
    return sorted(job.number for job in policies.parse_policy(name).victims(scene(*args, **more)))


OLD_SAVED = {"since": NOW - 1015}  # a save ended 5 s ago
NEW = {"since": NOW - 300}  # 300 s that are in no checkpoint


def test_the_victim_of_each_policy() -> None:
    jobs = (
        running(0, 2, 0, **NEW),
        running(1, 2, 0, **OLD_SAVED),
        running(2, 4, 1, since=NOW - 900),
        running(3, 2, 1, since=NOW - 9_000),
    )
    assert chosen("newest", 2, *jobs) == [0]
    assert chosen("newest-2h", 2, *jobs) == [3]
    assert chosen("largest", 2, *jobs) == [2]
    assert chosen("least-lost", 2, *jobs) == [1]


def test_no_victims_if_the_waiting_job_cannot_start() -> None:
    jobs = (running(0, 2, 0, **NEW), running(1, 2, 1, **NEW))
    for name in policies.BUILT_IN:
        assert chosen(name, 4, *jobs) == [], "two on each node are no gang of four"


def test_no_unnecessary_victims() -> None:
    jobs = (running(0, 1, 0, since=NOW - 1), running(1, 4, 1, since=NOW - 2))
    assert chosen("newest", 4, *jobs) == [1]


def test_a_gang_needs_whole_nodes() -> None:
    jobs = [running(n, 4, n // 2, since=NOW - 100 - n) for n in range(6)]
    assert chosen("newest", 16, *jobs, nodes=3) == [0, 1, 2, 3]


def test_a_tenant_loses_only_what_it_borrows() -> None:
    jobs = (running(0, 2, 0, **NEW), running(1, 2, 0, **NEW))
    for name in ("newest", "largest", "least-lost", "least-cost"):
        assert chosen(name, 4, *jobs, quota=2) == [], "2 are borrowed, 4 are needed"
        assert len(chosen(name, 2, *jobs, quota=2)) == 1
        assert chosen(name, 2, *jobs, quota=4) == []


def test_a_run_that_saves_in_time_is_cheap_with_notice() -> None:
    slow, fast = running(0, 2, 0, **NEW, save=60.0), running(1, 2, 1, **NEW, save=5.0)
    assert chosen("least-cost:each=0", 2, slow, fast, grace=30.0) == [1]
    assert chosen("least-cost:each=0:notice=off", 2, slow, fast, grace=30.0) == [0], "all alike"


def test_a_run_without_reports_is_not_protected() -> None:
    reporting, silent = (
        running(0, 2, 0, **OLD_SAVED),
        running(1, 2, 1, **OLD_SAVED, reports_cost=False),
    )
    # A silent one is charged from the start of its attempt, and so is dear; it is not exempt.
    assert chosen("least-cost", 2, reporting, silent) == [0]
    assert chosen("least-cost", 2, silent) == [1]


def test_earlier_preemptions_cost_and_the_cap_protects() -> None:
    often, never = running(0, 2, 0, **NEW, preemptions=4), running(1, 2, 1, **NEW)
    assert chosen("least-cost", 2, often, never) == [1]
    assert chosen("least-cost:repeat=0:cap=0", 2, often, never) == [0]
    assert chosen("least-cost:repeat=0:cap=4", 2, often, never) == [1]
    assert chosen("least-cost:repeat=0:cap=4", 2, often) == [0], "quota comes first"


def test_the_phase_protects_until_the_first_durable_checkpoint() -> None:
    young = running(0, 2, 0, since=NOW - 50)
    saved = running(1, 2, 1, since=NOW - 1900)
    assert chosen("least-cost", 2, young, saved) == [0]
    assert chosen("least-cost:phase=on", 2, young, saved) == [1]
    assert chosen("least-cost:phase=on", 2, young) == [0]


def test_large_victims_are_preferred_unless_their_tenant_reclaims() -> None:
    small, large = running(0, 2, 0, **NEW), running(1, 8, 1, **NEW)
    assert chosen("least-cost", 2, small, large) == [1]
    assert chosen("least-cost", 2, small, large, quota=8) == [0]
    assert chosen("least-cost:nominal=off", 2, small, large, quota=8) == [1]


def test_switches() -> None:
    assert policies.parse_policy("least-cost:notice=off:cap=3:each=0.5") == LeastCost(
        notice=False, cap=3, each=0.5
    )


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("oldest", "policy-unknown", {"policy": "oldest"}),
        ("newest:cap=3", "policy-switch-unknown", {"switch": "cap"}),
        ("newest:notice", "policy-switch-invalid", {"switch": "notice"}),
        ("newest:notice=maybe", "policy-switch-invalid", {"switch": "notice"}),
    ],
)
def test_wrong_names(text: str, code: str, fields: dict[str, str]) -> None:
    with pytest.raises(UsageError, check=has_code(code)) as error:
        policies.parse_policy(text)
    assert error.value.fields == fields


def test_policies_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "headway.schedule.policies:Newest", policies.GROUP)
    monkeypatch.setattr(policies, "entry_points", lambda group: [point])
    assert policies.parse_policy("mine:notice=on") == Newest(notice=True)
