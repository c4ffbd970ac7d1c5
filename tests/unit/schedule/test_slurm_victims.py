"""Victims of a waiting Slurm job: the policies applied to recorded output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.schedule.policies import parse_policy
from headway.schedule.slurm import cluster
from headway.schedule.slurm.victims import (
    NodePool,
    RunStatus,
    VictimChoice,
    candidates,
    choose_victims,
)
from tests.support import codes
from tests.unit.schedule.recorded_slurm import RecordedSlurm, run_status

LEAST = "least-cost:phase=on"
STATE = cluster.read_cluster(RecordedSlurm())
NOW = max(job.start for job in STATE.running()) + 3600


def chosen(
    statuses: dict[int, RunStatus | None],
    policy: str = LEAST,
    state: cluster.ClusterState = STATE,
    waiter: int = 4,
    **more: Any,
) -> VictimChoice:
    job = state.job(waiter)
    assert job is not None
    return choose_victims(job, state, statuses, parse_policy(policy), now=NOW, grace=30.0, **more)


def numbers(choice: VictimChoice) -> list[int]:
    return [job.number for job in choice.victims]


def test_candidates_are_preemptible_and_requeueable() -> None:
    waiter = STATE.job(4)
    assert waiter is not None
    assert [job.number for job in candidates(waiter, STATE)] == [1, 2, 3]
    stays = tuple(replace(job, requeues=job.number != 2) for job in STATE.jobs)
    assert [job.number for job in candidates(waiter, replace(STATE, jobs=stays))] == [1, 3]
    low = replace(waiter, qos="low")
    assert candidates(low, STATE) == []


def test_the_cheapest_and_no_more_victims_than_needed() -> None:
    statuses: dict[int, RunStatus | None] = {
        1: run_status(unsaved=900, save=None),
        2: run_status(unsaved=900, save=5.0),
        3: run_status(unsaved=900, save=25.0),
    }
    choice = chosen(statuses, "least-cost:each=0")
    assert numbers(choice) == [2] and choice.placement == (("gpu01", 1),)
    statuses[2] = run_status(unsaved=900, save=40.0)  # longer than the grace
    assert numbers(chosen(statuses, "least-cost:each=0")) == [3]


def test_jobs_are_protected_until_their_first_save() -> None:
    statuses: dict[int, RunStatus | None] = {
        1: run_status(saved_at=None, unsaved=5),
        2: run_status(unsaved=500),
    }
    assert numbers(chosen(statuses)) == [2]
    assert numbers(chosen({1: statuses[1]})) == [1]


def test_often_evicted_jobs_are_protected() -> None:
    statuses: dict[int, RunStatus | None] = {
        1: run_status(preemptions=3),
        2: run_status(recover=900),
    }
    assert numbers(chosen(statuses)) == [1]
    assert numbers(chosen(statuses, "least-cost:cap=3")) == [2]


def test_a_job_without_reports_is_charged_from_its_start() -> None:
    assert numbers(chosen({1: None, 2: run_status(unsaved=3000, save=None)})) == [2]


def test_an_account_keeps_its_quota() -> None:
    statuses: dict[int, RunStatus | None] = {1: run_status(), 3: run_status(recover=9000)}
    assert numbers(chosen(statuses)) == [1]
    assert numbers(chosen(statuses, quotas={"ads": 2})) == [3]
    assert numbers(chosen(statuses, quotas={"ads": 2, "feed": 2})) == []


def test_no_victims_if_the_waiting_job_cannot_start() -> None:
    statuses: dict[int, RunStatus | None] = {1: run_status(), 2: run_status()}
    assert numbers(chosen(statuses, waiter=5)) == [1, 2]
    wide = tuple(replace(job, gpus=3) if job.number == 4 else job for job in STATE.jobs)
    choice = chosen(statuses, state=replace(STATE, jobs=wide))
    assert not choice.victims and codes(choice.reason) == ["no-victims"]
    busy = tuple(replace(job, cpus=9) if job.number == 4 else job for job in STATE.jobs)
    choice = chosen(statuses, state=replace(STATE, jobs=busy))
    assert not choice.victims and codes(choice.reason) == ["too-few-cpus"]
    assert "gpu01" in choice.reason


def test_no_victims_for_free_or_completing_nodes() -> None:
    statuses: dict[int, RunStatus | None] = {1: run_status()}
    roomy = tuple(replace(node, gpus=1) for node in STATE.nodes)
    assert codes(chosen(statuses, state=replace(STATE, nodes=roomy)).reason) == ["room-is-free"]
    assert numbers(chosen(statuses, state=replace(STATE, nodes=roomy), reserved={"gpu01": 1})) == [
        1
    ]
    completing = tuple(replace(j, state="COMPLETING") if j.number == 2 else j for j in STATE.jobs)
    assert codes(chosen(statuses, state=replace(STATE, jobs=completing)).reason) == ["room-is-free"]


@pytest.mark.parametrize(
    ("free", "extra", "gpus", "places"),
    [
        ([4, 0, 1], {}, 8, None),
        ([4, 0, 1], {1: 4}, 8, ((0, 4), (1, 4))),
        ([4, 0, 4], {1: 4}, 8, ((0, 4), (2, 4))),  # nodes that are free come first
        ([2, 2], {}, 8, None),
    ],
)
def test_a_gang_needs_the_same_number_on_each_node(
    free: list[int], extra: dict[int, int], gpus: int, places: object
) -> None:
    assert NodePool(free, 4).place_with(gpus, extra) == places
