"""Slurm's accounting, as a real one-node Slurm 22.05.8 wrote it: QOS preemption with REQUEUE.

The format: `man sacct` (fields, REASON, --json), slurm's doc/html/rest_api.shtml (v0.0.38_job;
numbers as `{"set", "infinite", "number"}` since v0.0.40).
"""

from __future__ import annotations

import json

import pytest

from headway.errors import UsageError
from headway.units import NS
from tests.support import has_code
from tests.unit.fleet.importers.ledgers import (
    SAMPLES,
    categories,
    import_ledgers,
    outcomes,
    sample,
    seconds,
    source,
)

pytestmark = pytest.mark.timeout(60)

HEAD = (
    "JobID|JobName|Account|Cluster|State|Submit|Eligible|Start|End|"
    "Reason|AllocTRES|NodeList|ExitCode"
)
DAY = "2026-11-15T"


def row(job: str, *cells: str) -> str:
    return f"{job}|train|ads|c1|" + "|".join(cells)


@pytest.mark.parametrize("name", ["sacct_D.psv", "sacct_D.json"])
def test_a_preempted_and_requeued_job_is_one_run_with_two_attempts(name: str) -> None:
    run = import_ledgers("slurm", *sample(name))["train_low-1"]
    assert outcomes(run) == ["preempted", "completed"]
    assert categories(run) == [(0, "preemption")]
    # 3 s until it was in the queue again, and Slurm's own delay of a requeue.
    told = {"unknown": 81.0, "recover.downtime": 3.0, "recover.scheduling": 121.0}
    assert seconds(run) == told
    assert run.attempts[0].world == 2 and run.ranks[0].hosts == ("vm",)
    assert run.metadata["labels"]["team"] == "team_a"


def test_without_d_the_preempted_attempt_is_gone() -> None:
    assert outcomes(import_ledgers("slurm", *sample("sacct.psv"))["train_low-1"]) == ["completed"]


def test_states_and_waits() -> None:
    runs = import_ledgers("slurm", *sample("sacct_D.psv"))
    assert {name: categories(run) for name, run in runs.items() if run.failures} == {
        "train_low-1": [(0, "preemption")],
        "bad_exit-3": [(0, "unknown")],
        "low_srun-5": [(0, "preemption")],
        "will_timeout-7": [(0, "time_limit")],
        "node_lost-9": [(0, "node_failure")],
    }
    assert "will_cancel-8" not in runs  # it never had a node
    assert runs["train_high-2"].queue_capacity == 18 * NS
    # It asked for a later start: that time is nobody's.
    assert runs["held_dep-4"].queue_capacity == 1 * NS and runs["held_dep-4"].wall == 15 * NS
    # Of failures that are not of the machine no host is the root.
    assert runs["train_low-1"].failures[0].node is None
    assert runs["node_lost-9"].failures[0].node == "vm"


def test_capacity_scheduling_and_hardware_setup_are_told_apart() -> None:
    times = [f"{DAY}10:00:00", f"{DAY}10:01:00", f"{DAY}10:11:00", f"{DAY}11:00:00"]
    text = "\n".join(
        [
            HEAD,
            row(
                "1",
                "COMPLETED",
                *times,
                "Priority",
                "gres/gpu=8,gres/gpu:h100=8",
                "n[01-02]",
                "0:0",
            ),
            row("1.extern", "COMPLETED", "", "", times[2], times[3], "", "", "", "0:0"),
            row("1.batch", "COMPLETED", "", "", f"{DAY}10:13:30", times[3], "", "", "", "0:0"),
            row("2", "COMPLETED", *times, "ReqNodeNotAvail", "gres/gpu=1", "n03", "0:0"),
            row("3", "COMPLETED", *times, "None", "cpu=4", "n03", "0:0"),
        ]
    )
    runs = import_ledgers("slurm", source(text))
    assert runs.keys() == {"train-1", "train-2"}  # the third had no accelerator
    assert runs["train-1"].queue_capacity == 600 * NS
    assert seconds(runs["train-1"]) == {"start.hardware_setup": 150.0, "unknown": 2790.0}
    assert runs["train-1"].attempts[0].world == 8
    assert [rank.hosts for rank in runs["train-1"].ranks] == [("n01",)] * 4 + [("n02",)] * 4
    assert runs["train-2"].queue_capacity == 0
    assert seconds(runs["train-2"]) == {"start.scheduling": 600.0, "unknown": 2940.0}


def test_a_running_job_is_known_until_the_file_was_written() -> None:
    cells = [f"{DAY}10:00:00"] * 3
    text = "\n".join(
        [HEAD, row("4", "RUNNING", *cells, "Unknown", "None", "gres/gpu=1", "n1", "0:0")]
    )
    (run,) = import_ledgers("slurm", source(text, collected_at=1_794_737_000.0)).values()
    assert run.running and run.wall == 1_794_737_000 * NS - run.started_at


def test_numbers_of_newer_parsers() -> None:
    told = json.loads((SAMPLES / "sacct_D.json").read_text())
    for job in told["jobs"]:
        code = job["exit_code"]["return_code"]
        job["exit_code"]["return_code"] = {"set": True, "infinite": False, "number": code}
        job["state"]["current"] = [job["state"]["current"]]
    new = import_ledgers("slurm", source(told))["train_low-1"]
    old = import_ledgers("slurm", *sample("sacct_D.json"))["train_low-1"]
    assert new == old


def ended(job: str, state: str, gpus: str = "gres/gpu=1", nodes: str = "n1") -> str:
    times = [f"{DAY}10:00:00"] * 3
    end = "Unknown" if state in ("RUNNING", "SOMETHING_NEW") else f"{DAY}11:00:00"
    return row(job, state.removesuffix("!"), *times, end, "None", gpus, nodes, "0:0")


def test_lists_of_hosts_with_several_ranges() -> None:
    line = ended("1", "COMPLETED", "gres/gpu=4", "rack[1-2]node[01-02]")
    (run,) = import_ledgers("slurm", source(f"{HEAD}\n{line}")).values()
    names = ["rack1node01", "rack1node02", "rack2node01", "rack2node02"]
    assert [rank.hosts for rank in run.ranks] == [(name,) for name in names]


def test_accelerators_of_several_types_are_added() -> None:
    typed = "gres/gpu:a100=4,gres/gpu:h100=4"
    lines = [ended("1", "COMPLETED", typed), ended("2", "COMPLETED", f"{typed},gres/gpu=8")]
    runs = import_ledgers("slurm", source("\n".join([HEAD, *lines])))
    assert [run.attempts[0].world for run in runs.values()] == [8, 8]
    told = json.loads((SAMPLES / "sacct_D.json").read_text())
    for job in told["jobs"]:
        job["tres"]["allocated"] = [
            {"type": "gres", "name": name, "count": 4} for name in ("gpu:a100", "gpu:h100")
        ]
    assert import_ledgers("slurm", source(told))["train_low-1"].attempts[0].world == 8


def test_a_state_of_a_newer_slurm_is_an_end_once_the_job_is_over() -> None:
    states = ("SOMETHING_NEW!", "SOMETHING_NEW", "RUNNING", "LAUNCH_FAILED!")
    lines = [ended(str(number), state) for number, state in enumerate(states)]
    runs = import_ledgers("slurm", source("\n".join([HEAD, *lines])))
    assert [run.running for run in runs.values()] == [False, True, True, False]
    assert categories(runs["train-0"]) == categories(runs["train-3"]) == [(0, "unknown")]
    assert runs["train-0"].wall == 3600 * NS


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        (
            "JobID|State|Submit\n1|RUNNING|x",
            "record-column-missing",
            {"columns": ["Eligible", "Start", "End", "AllocTRES"]},
        ),
        (
            f"{HEAD}\n" + row("1", "RUNNING", "noon", *["None"] * 6, "0:0"),
            "record-invalid",
            {"reader": "slurm"},
        ),
        ('{"meta": {"Slurm": {}},\n "jobs": [\n  {"job_id": 1', "record-incomplete", {}),
        (
            '{"meta": {"Slurm": {}}, "jobs": [{"job_id": 1}]}',
            "record-invalid",
            {"reader": "slurm"},
        ),
    ],
)
def test_bad_input_is_a_sentence(text: str, code: str, fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, check=has_code(code)) as error:
        import_ledgers("slurm", source(text))
    assert error.value.fields == fields
