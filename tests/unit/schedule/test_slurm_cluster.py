"""Parsing the output of Slurm, as recorded from a real one."""

from __future__ import annotations

import json

import pytest

from headway.errors import UsageError
from headway.schedule.slurm import cluster
from tests.support import has_code
from tests.unit.schedule.recorded_slurm import FOLDER, RecordedSlurm


def test_jobs_nodes_and_qos_as_recorded() -> None:
    state = cluster.read_cluster(RecordedSlurm())
    assert [(job.number, job.account, job.qos, job.gpus) for job in state.running()] == [
        (1, "ads", "low", 1),
        (2, "ads", "low", 1),
        (3, "feed", "low", 2),
    ]
    assert [job.placement for job in state.running()] == [
        (("gpu01", 1),),
        (("gpu01", 1),),
        (("gpu01", 2),),
    ]
    assert state.jobs_with_steps == {2}
    (waiter,) = state.waiting()
    assert (waiter.number, waiter.qos, waiter.gpus, waiter.nodes) == (4, "high", 1, 1)
    assert waiter.requeues and waiter.placement == ()
    assert state.nodes == (cluster.SlurmNode(name="gpu01", partitions=("train",), gpus=0, cpus=5),)
    assert state.qos["high"].preempts == ("low",)
    assert state.qos["low"] == cluster.Qos(preempts=(), exempt="7-00:00:00")


def test_a_job_that_waits_for_its_quota_does_not_wait_for_resources() -> None:
    slurm = RecordedSlurm()
    slurm.becomes(4, state_reason="QOSGrpGRES")
    assert cluster.read_cluster(slurm).waiting() == []


@pytest.mark.parametrize("word", ["DRAIN", "NOT_RESPONDING", "POWERED_DOWN"])
def test_unusable_nodes_are_left_out(word: str) -> None:
    line = (FOLDER / "nodes.txt").read_text().replace("State=MIXED", f"State=MIXED+{word}")
    assert cluster.parse_nodes(line) == ()


def test_numbers_of_newer_versions() -> None:
    slurm = RecordedSlurm()
    number = {"set": True, "infinite": False, "number": 7}
    slurm.becomes(4, priority=number, job_state=["PENDING"])
    (waiter,) = cluster.read_cluster(slurm).waiting()
    assert waiter.priority == 7


def test_typed_accelerators_on_several_nodes() -> None:
    slurm = RecordedSlurm()
    detail = ["gpu:a100:2(IDX:0-1)", "gpu:a100:1(IDX:0),gpu:h200:1(IDX:3)", "gpu:1g.5gb:3"]
    slurm.becomes(3, gres_detail=detail, nodes="a1,rack[2]n[10-11]")
    state = cluster.read_cluster(slurm)
    job = state.job(3)
    assert job is not None and job.placement == (("a1", 2), ("rack2n10", 2), ("rack2n11", 3))
    assert slurm.done == [], "no process for each job"


def test_a_site_that_tracks_accelerator_types_only() -> None:
    slurm = RecordedSlurm()
    slurm.becomes(3, tres_alloc_str="cpu=8,node=1,gres/gpu:a100=4,gres/gpu:h100=4")
    job = cluster.read_cluster(slurm).job(3)
    assert job is not None and job.gpus == 8
    line = (FOLDER / "nodes.txt").read_text()
    typed = line.replace("gres/gpu=4", "gres/gpu:a100=3,gres/gpu:h100=3", 1)
    assert typed != line
    (node,) = cluster.parse_nodes(typed)
    assert node.gpus == 6 - 4


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"jobs": [{}]}', '{"jobs": null}'])
def test_an_invalid_list_of_jobs_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, check=has_code("slurm-answer-invalid")):
        cluster.parse_jobs(text)


def test_a_name_cannot_inject_a_field() -> None:
    row = json.loads((FOLDER / "jobs.json").read_text())
    row["jobs"][0]["name"] = 'x QOS=high","qos":"high'
    assert cluster.parse_jobs(json.dumps(row))[0].qos == "low"
