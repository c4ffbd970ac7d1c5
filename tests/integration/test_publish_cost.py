"""The eviction cost in the comment and the nice value of a job of a real Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli import main
from tests.integration.slurm import Cluster, missing, running, wait
from tests.support import codes
from tests.unit.schedule.launcher_journal import write_active_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def shown(cluster: Cluster, job: str, name: str) -> str:
    match = re.search(rf"^\s*(?:.* )?{name}=(.*?)(?: \w+=.*)?$", _job(cluster, job), re.M)
    return match[1].strip() if match else ""


def _job(cluster: Cluster, job: str) -> str:
    return cluster.call("scontrol", "show", "job", job)


def test_a_running_job_is_told_its_price(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    job = cluster.submit("sleep 600", "--qos=low", "--comment=ask anna first", "--nice=3")
    wait(lambda: cluster.states(job) == ["RUNNING"], "the start of the job", cluster)
    write_active_run(tmp_path / "runs" / "night", scheduler_job=job)
    words = ["schedule", "publish-cost", str(tmp_path / "runs"), "--to", "slurm", "--once"]

    assert main([*words, "--dry-run"]) == 0
    assert f"scontrol update JobId={job} Comment=ask anna first headway:cost=" in (
        capsys.readouterr().out
    )
    assert shown(cluster, job, "Comment") == "ask anna first"

    assert main(words) == 0
    match = re.fullmatch(
        r"ask anna first headway:cost=(\d+),unsaved=(\d+),accelerators=8,at=\d+",
        shown(cluster, job, "Comment"),
    )
    assert match is not None, _job(cluster, job)
    assert int(match[1]) == pytest.approx(8 * (int(match[2]) + 100), abs=8)
    assert shown(cluster, job, "Nice") == "3", "no nudge without limits"

    limits = ("--nudge-max", "40", "--nudge-full", "300")
    for _ in range(2):
        assert main([*words, *limits]) == 0
        assert shown(cluster, job, "Nice") == "-37", "as it was, less the nudge"
        assert ",nice=3" in shown(cluster, job, "Comment")

    write_active_run(tmp_path / "after" / "night", scheduler_job=job, over=True)
    words[2] = str(tmp_path / "after")
    for _ in range(2):
        assert main([*words, *limits]) == 0
        assert shown(cluster, job, "Comment") == "ask anna first"
        assert shown(cluster, job, "Nice") == "3"

    words[2] = str(tmp_path / "runs")
    assert main([*words, "--job", "999999"]) == 1
    error = capsys.readouterr().err
    assert codes(error) == ["job-not-found"] and "999999" in error
    assert main([*words, *limits]) == 0
    cluster.call("scancel", job)
    wait(lambda: "CANCELLED" in cluster.states(job)[0], "the end of the job", cluster)
    words[2] = str(tmp_path / "after")
    assert main([*words, *limits]) == 0, "nobody is left who could be told"
