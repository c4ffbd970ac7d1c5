"""Whom a waiting job of Slurm evicts: the simulator's policy over recorded answers."""

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
SEEN = cluster.read_cluster(RecordedSlurm())
NOW = max(job.start for job in SEEN.running()) + 3600


def chosen(
    said: dict[int, RunStatus | None],
    policy: str = LEAST,
    seen: cluster.ClusterState = SEEN,
    waiter: int = 4,
    **more: Any,
) -> VictimChoice:
    job = seen.job(waiter)
    assert job is not None
    return choose_victims(job, seen, said, parse_policy(policy), now=NOW, grace=30.0, **more)


def numbers(choice: VictimChoice) -> list[int]:
    return [job.number for job in choice.victims]


def test_only_those_that_the_qos_may_evict_and_that_come_back() -> None:
    waiter = SEEN.job(4)
    assert waiter is not None
    assert [job.number for job in candidates(waiter, SEEN)] == [1, 2, 3]
    stays = tuple(replace(job, requeues=job.number != 2) for job in SEEN.jobs)
    assert [job.number for job in candidates(waiter, replace(SEEN, jobs=stays))] == [1, 3]
    low = replace(waiter, qos="low")
    assert candidates(low, SEEN) == []


def test_the_cheapest_goes_and_no_more_than_are_needed() -> None:
    said: dict[int, RunStatus | None] = {
        1: run_status(unsaved=900, save=None),
        2: run_status(unsaved=900, save=5.0),
        3: run_status(unsaved=900, save=25.0),
    }
    choice = chosen(said, "least-cost:each=0")
    assert numbers(choice) == [2] and choice.placement == (("gpu01", 1),)
    said[2] = run_status(unsaved=900, save=40.0)  # longer than the grace
    assert numbers(chosen(said, "least-cost:each=0")) == [3]


def test_nobody_goes_before_its_first_save_unless_nobody_else_can() -> None:
    said: dict[int, RunStatus | None] = {
        1: run_status(saved_at=None, unsaved=5),
        2: run_status(unsaved=500),
    }
    assert numbers(chosen(said)) == [2]
    assert numbers(chosen({1: said[1]})) == [1]


def test_whoever_was_evicted_often_is_left_alone() -> None:
    said: dict[int, RunStatus | None] = {1: run_status(preemptions=3), 2: run_status(recover=900)}
    assert numbers(chosen(said)) == [1]
    assert numbers(chosen(said, "least-cost:cap=3")) == [2]


def test_silence_is_charged_from_the_start() -> None:
    assert numbers(chosen({1: None, 2: run_status(unsaved=3000, save=None)})) == [2]


def test_an_account_keeps_its_quota() -> None:
    said: dict[int, RunStatus | None] = {1: run_status(), 3: run_status(recover=9000)}
    assert numbers(chosen(said)) == [1]
    assert numbers(chosen(said, quotas={"ads": 2})) == [3]
    assert numbers(chosen(said, quotas={"ads": 2, "feed": 2})) == []


def test_nobody_goes_where_that_starts_nothing() -> None:
    said: dict[int, RunStatus | None] = {1: run_status(), 2: run_status()}
    assert numbers(chosen(said, waiter=5)) == [1, 2]
    wide = tuple(replace(job, gpus=3) if job.number == 4 else job for job in SEEN.jobs)
    choice = chosen(said, seen=replace(SEEN, jobs=wide))
    assert not choice.victims and codes(choice.reason) == ["no-victims"]
    busy = tuple(replace(job, cpus=9) if job.number == 4 else job for job in SEEN.jobs)
    choice = chosen(said, seen=replace(SEEN, jobs=busy))
    assert not choice.victims and codes(choice.reason) == ["too-few-cpus"]
    assert "gpu01" in choice.reason


def test_what_is_free_or_being_left_needs_no_victim() -> None:
    said: dict[int, RunStatus | None] = {1: run_status()}
    roomy = tuple(replace(node, gpus=1) for node in SEEN.nodes)
    assert codes(chosen(said, seen=replace(SEEN, nodes=roomy)).reason) == ["room-is-free"]
    assert numbers(chosen(said, seen=replace(SEEN, nodes=roomy), reserved={"gpu01": 1})) == [1]
    left = tuple(replace(j, state="COMPLETING") if j.number == 2 else j for j in SEEN.jobs)
    assert codes(chosen(said, seen=replace(SEEN, jobs=left)).reason) == ["room-is-free"]


@pytest.mark.parametrize(
    ("free", "extra", "gpus", "places"),
    [
        ([4, 0, 1], {}, 8, None),
        ([4, 0, 1], {1: 4}, 8, ((0, 4), (1, 4))),
        ([4, 0, 4], {1: 4}, 8, ((0, 4), (2, 4))),  # nodes that are free come first
        ([2, 2], {}, 8, None),
    ],
)
def test_a_gang_wants_as_much_on_each_node(
    free: list[int], extra: dict[int, int], gpus: int, places: object
) -> None:
    assert NodePool(free, 4).place_with(gpus, extra) == places
