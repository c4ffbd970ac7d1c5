"""Jobs of a real Slurm in a store: one is preempted by QOS, requeued, and runs to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli import main
from headway.fleet.importers.slurm import SACCT_COMMAND
from headway.fleet.store.parquet import Store
from headway.publish.store import SnapshotStore as Snapshots
from tests.integration.slurm import Cluster, missing, running, wait
from tests.unit.fleet.store_rows import content

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(400),
]
# The first attempt waits to be evicted; the second one ends.
LOW = 'if [ -n "$SLURM_RESTART_COUNT" ]; then sleep 3; else sleep 600; fi'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def test_a_preempted_and_requeued_job_is_one_run_with_two_attempts(
    cluster: Cluster, tmp_path: Path
) -> None:
    low = cluster.submit(LOW, "--qos=low", "--requeue", "--job-name=train_low")
    wait(lambda: cluster.states(low) == ["RUNNING"], "the start of the job", cluster)
    high = cluster.submit("sleep 2", "--qos=high", "--job-name=train_high")
    wait(lambda: cluster.states(high) == ["COMPLETED"], "the end of the other", cluster)
    both = {"PREEMPTED", "COMPLETED"}
    wait(lambda: set(cluster.states(low)) == both, "the end of the job", cluster, 240.0)

    url = str(tmp_path / "store")
    json_file, psv_file = tmp_path / "jobs.json", tmp_path / "jobs.psv"
    json_file.write_text(cluster.call("sacct", "-D", "--json"))
    psv_file.write_text(cluster.call(*SACCT_COMMAND.removeprefix("TZ=UTC ").split()))
    for path in (json_file, psv_file):  # the same jobs, so the second replaces the first
        assert main(["ingest", str(path), "--store", url]) == 0
        runs = content(Store(url), "runs", "run", "attempts", "outcome", "accelerators", "team")
        assert runs == [
            (f"train_high-{high}", 1, "completed", 2, "ads"),
            (f"train_low-{low}", 2, "completed", 2, "ads"),
        ]
        rows = content(Store(url), "failures", "attempt", "category", "owner")
        assert rows == [(0, "preemption", "scheduler")]
        outcomes = content(Store(url), "attempts", "attempt", "outcome")
        assert outcomes == [(0, "completed"), (0, "preempted"), (1, "completed")]
        leaves = {leaf for (leaf,) in content(Store(url), "hours", "leaf")}
        assert leaves & {"recover.downtime", "recover.scheduling"}


def test_a_training_hands_its_publish_to_slurm(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.integration.test_published_runs import ended, training  # it imports torch

    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    by = ("--publish-by", "slurm --account=ads --qos=low")
    done = training(tmp_path, "anchor", options=by)
    assert done.returncode == 0, done.stderr
    content = ended(tmp_path)
    assert content["error"] == ""
    (snapshot,) = Snapshots(tmp_path / "store").snapshots()
    assert snapshot.name == content["snapshot"] and snapshot.manifest.anchor["run"] == "t"
    job = cluster.call("sacct", "-X", "-n", "-P", "-o", "JobID,JobName").split()[-1]
    wait(lambda: cluster.states(job.partition("|")[0]) == ["COMPLETED"], "its end", cluster)
