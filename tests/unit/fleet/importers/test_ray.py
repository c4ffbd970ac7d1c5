"""Ray's state API.

The format: ray-project/ray, python/ray/dashboard/modules/job/pydantic_models.py (JobDetails) and
python/ray/util/state/common.py (TaskState; the CLI writes times of events as text, the API as ms).
"""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import UsageError
from tests.support import has_code
from tests.unit.fleet.importers.ledgers import categories, import_ledgers, outcomes, seconds, source

pytestmark = pytest.mark.timeout(60)

T = 1_794_805_200  # 2026-11-16T05:00:00Z


def job(status: str = "SUCCEEDED", **told: Any) -> dict[str, Any]:
    return {
        "type": "SUBMISSION",
        "job_id": "01000000",
        "submission_id": "raysubmit_1",
        "status": status,
        "entrypoint": "python train.py --lr 0.1",
        "message": "",
        "start_time": T * 1000,
        "end_time": (T + 300) * 1000,
        "metadata": {"job_name": "night-7"},
        "driver_exit_code": 0,
        **told,
    }


def actor(number: int, asked: Any, given: Any, runs: Any, **told: Any) -> dict[str, Any]:
    states = ("PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING")
    return {
        "task_id": f"t{number}",
        "attempt_number": 0,
        "name": "RayTrainWorker.__init__",
        "func_or_class_name": "RayTrainWorker.__init__",
        "type": "ACTOR_CREATION_TASK",
        "job_id": "01000000",
        "required_resources": {"GPU": 1.0, "CPU": 1.0},
        "events": [
            {"state": state, "created_ms": when}
            for state, when in zip(states, (asked, given, runs), strict=True)
        ],
        **told,
    }


def test_the_gang_waits_for_its_last_actor() -> None:
    tasks = [
        actor(0, (T + 10) * 1000, (T + 15) * 1000, (T + 20) * 1000),
        actor(1, "2026-11-16 05:00:10", "2026-11-16 05:00:40.500000", "2026-11-16 05:00:50"),
    ]
    (run,) = import_ledgers("ray", source([job()]), source(tasks, "tasks.json")).values()
    assert run.run == "night-7" and run.attempts[0].world == 2 and outcomes(run) == ["completed"]
    assert run.command == ("python", "train.py", "--lr", "0.1")
    told = {"start.scheduling": 30.5, "start.hardware_setup": 9.5, "unknown": 260.0}
    assert seconds(run) == told


@pytest.mark.parametrize("grouped", [True, False])
def test_a_group_of_workers_that_follows_another_one_is_an_attempt(grouped: bool) -> None:
    tasks = []
    for restart in range(3):
        asked = T + 100 * restart
        own = {"placement_group_id": f"g{restart}"} if grouped else {}
        tasks += [
            actor(8 * restart + n, asked * 1000, (asked + 1) * 1000, (asked + 2) * 1000, **own)
            for n in range(8)
        ]
    tasks[9]["error_type"] = "NODE_DIED"
    (run,) = import_ledgers("ray", source([job()]), source(tasks, "tasks.json")).values()
    assert [attempt.world for attempt in run.attempts] == [8, 8, 8]
    assert outcomes(run) == ["failed", "failed", "completed"]
    assert categories(run) == [(0, "unknown"), (1, "node_failure")]
    assert run.buckets["start.scheduling"] == 1e9 and run.buckets["recover.scheduling"] == 2e9
    assert run.wall == 300 * 10**9


def test_actors_that_live_at_the_same_time_are_one_attempt() -> None:
    """Trials of a search, each in its own group: as many accelerators as were held at once."""
    tasks = []
    for number, (begin, end) in enumerate(((0, 90), (10, 150), (100, 200))):
        own = {"actor_id": f"a{number}", "placement_group_id": f"g{number}"}
        times = [(T + begin + n) * 1000 for n in range(3)]
        tasks.append(actor(number, *times, **own))
        last = {"task_id": f"m{number}", "func_or_class_name": "f", "job_id": "01000000"}
        tasks.append({**last, **own, "end_time_ms": (T + end) * 1000})
    (run,) = import_ledgers("ray", source([job()]), source(tasks, "tasks.json")).values()
    assert [attempt.world for attempt in run.attempts] == [2]


def test_an_actor_that_is_started_again_holds_its_accelerator_once() -> None:
    times = [T * 1000, (T + 1) * 1000, (T + 2) * 1000]
    tasks = [actor(0, *times), actor(0, *times, attempt_number=1)]
    (run,) = import_ledgers("ray", source([job()]), source(tasks, "tasks.json")).values()
    assert [attempt.world for attempt in run.attempts] == [1]


def test_failures() -> None:
    tasks = [actor(0, T * 1000, T * 1000, T * 1000, error_type="NODE_DIED")]
    (run,) = import_ledgers("ray", source([job("FAILED")]), source(tasks)).values()
    assert categories(run) == [(0, "node_failure")]
    (run,) = import_ledgers("ray", source([job("FAILED", message="boom")])).values()
    assert categories(run) == [(0, "unknown")] and run.failures[0].evidence == "boom"


def test_jobs_that_run_or_wait() -> None:
    (run,) = import_ledgers(
        "ray", source([job("RUNNING", end_time=None)], collected_at=T + 60.0)
    ).values()
    assert run.running and run.wall == 60 * 10**9
    assert import_ledgers("ray", source([job("PENDING", start_time=None)])) == {}


def test_tasks_alone_are_a_sentence() -> None:
    with pytest.raises(UsageError, check=has_code("record-empty")):
        import_ledgers("ray", source([actor(0, 1, 2, 3)]))
