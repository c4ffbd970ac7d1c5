"""`headway schedule slurm` with a real Slurm: the cheapest job is evicted after it has saved."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.cli.schedule import DEFAULT_POLICY
from headway.schedule.cost_report import read_cost_report as price_told
from headway.schedule.model import Cluster as Rows
from headway.schedule.model import Job, JobSpec, Tenant
from headway.schedule.policies import parse_policy
from headway.schedule.slurm.cluster import read_cluster
from headway.schedule.slurm.controller import read_run_status
from headway.schedule.slurm.victims import RunStatus
from headway.sim.cluster.engine import Engine
from tests.integration.jobs import JOB
from tests.integration.slurm import Cluster, free_port, missing, running, wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(500),
]
# As docs/scheduling.md tells administrators.
CONF = ("PriorityType=priority/multifactor", "PriorityWeightQOS=1000")
ACCOUNTS = (
    "add cluster headway",
    "add qos low preemptexempttime=7-00:00:00 gracetime=60",
    "add qos high preempt=low priority=1000",
    "add account ads",
    "add account feed",
    "add user root account=ads qos=low,high,normal defaultqos=low",
    "add user root account=feed qos=low,high,normal defaultqos=low",
)
QUOTA = "modify qos high set grptres=gres/gpu=1"  # once slurmctld has told what gres there is
GRACE_S = 45  # a first save also starts the writer: 12 s where others keep the cores busy
TRAINING = ("--steps", "4000", "--pause", "0.05", "--interval", "600", "--grace", str(GRACE_S))
FAR_S = 30.0
SLOW = 5_000  # bytes a second: a save of this state takes longer than the grace
LONG_S = 1e6
HEADWAY = (sys.executable, "-m", "headway")


@contextmanager
def made(tmp_path: Path, gpus: int, nodes: Sequence[str] = ()) -> Iterator[Cluster]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with running(folder, gpus=gpus, nodes=nodes, accounts=ACCOUNTS, more=CONF) as cluster:
        yield cluster
        cluster.call("scancel", "--user=root")
        wait(lambda: not cluster.call("squeue", "-h"), "an empty queue", cluster)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with made(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Cluster]:
    with made(tmp_path, 2, ("a", "b")) as cluster:
        yield cluster


def submit(cluster: Cluster, folder: Path, script: str, qos: str, *options: str) -> str:
    folder.mkdir(exist_ok=True)
    more = ("--gres=gpu:1", "--requeue", f"--chdir={folder}", f"--output={folder}/log")
    return cluster.submit(script, f"--qos={qos}", *more, "--open-mode=append", *options)


def train(cluster: Cluster, folder: Path, *words: str, by: str = "exec") -> str:
    """A training with one accelerator that records each step."""
    command = (by, *HEADWAY, "run", "--", sys.executable, JOB, "store", "out", *TRAINING, *words)
    return submit(cluster, folder, " ".join(map(str, command)), "low")


SCHEDULE = (*HEADWAY, "schedule", "slurm", f"--grace={GRACE_S}", "--interval=1")


@contextmanager
def scheduling(cluster: Cluster, log: Path) -> Iterator[None]:
    """Run the controller and stop it at the end."""
    with log.open("w") as file:
        process = subprocess.Popen(SCHEDULE, env=cluster.env, stdout=file, stderr=file)
        try:
            yield
            process.terminate()
            assert process.wait(timeout=60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def lines(text: str, *jobs: str) -> list[str]:
    """Lines that name all of these jobs, without warnings (they end with a code)."""
    patterns = [re.compile(rf"\bjob {job}\b") for job in jobs]
    plain = [line for line in text.splitlines() if not line.endswith("]")]
    return [line for line in plain if all(one.search(line) for one in patterns)]


def run_of(folder: Path, job: str) -> Path:
    return folder / "headway" / f"slurm-{job}"


def said(folder: Path, job: str) -> RunStatus:
    found = read_run_status(run_of(folder, job))
    assert found is not None
    return found


def steps(folder: Path, rank: int = 0) -> list[int]:
    path = folder / f"out.{rank}.steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[0]) for line in lines]


def report(folder: Path, job: str, *options: str) -> str:
    words = (*HEADWAY, "report", str(run_of(folder, job)), *options)
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_cheapest_one_goes_having_saved(cluster: Cluster, tmp_path: Path) -> None:
    cluster.call("sacctmgr", "-i", *QUOTA.split())
    slow, fast, fresh = (tmp_path / name for name in ("slow", "fast", "fresh"))
    jobs = {
        slow: train(cluster, slow, "--ready", "ready", "--rate", str(SLOW)),
        fast: train(cluster, fast, "--ready", "ready"),
        fresh: train(cluster, fresh),
    }
    ready = [slow / "ready.0", fast / "ready.0", fresh / "out.0.steps"]
    wait(lambda: all(path.exists() for path in ready), "three trainings", cluster, 240.0)
    takes = said(slow, jobs[slow]).save
    assert takes is not None and takes > GRACE_S
    # In the simulator a save stops the training: only what comes after it can be lost there.
    far = takes + FAR_S
    wait(lambda: said(slow, jobs[slow]).unsaved > far, "a save that is long ago", cluster)
    assert said(fresh, jobs[fresh]).saved_at is None

    preemptor = submit(cluster, tmp_path / "high", "sleep 20", "high")
    other = submit(cluster, tmp_path / "high", "sleep 1", "high")
    wait(lambda: reason(cluster, preemptor) == "Resources", "a job that waits", cluster)
    before = len(steps(fast))
    dry = cluster.call(*SCHEDULE, "--once", "--dry-run")
    assert len(lines(dry, preemptor, jobs[fast])) == 1
    assert states(cluster, jobs.values()) == ["RUNNING"] * 3  # slurmctld itself leaves them alone

    expected = simulated(cluster, jobs, preemptor)
    log = tmp_path / "schedule.log"
    with scheduling(cluster, log):
        wait(lambda: cluster.states(preemptor) == ["RUNNING"], "the preemptor's start", cluster)
        # The other one waits for its own quota, which no eviction would cure.
        wait(lambda: reason(cluster, other).startswith("QOSGrp"), "a quota that is full", cluster)
        saved = len(steps(fast))
        assert saved > before
        wait(lambda: len(steps(fast)) > saved + 5, "the second life", cluster, 120.0)
    told = log.read_text()
    # It is evicted, asked to save, and requeued.
    assert len(lines(told, preemptor, jobs[fast])) == 2 and len(lines(told, jobs[fast])) == 3
    assert restarts(cluster, jobs[fast]) == "1"
    assert states(cluster, (jobs[slow], jobs[fresh])) == ["RUNNING"] * 2
    assert restarts(cluster, jobs[slow]) == restarts(cluster, jobs[fresh]) == "0"
    (victim,) = expected  # the simulator evicts the same one, and loses as little
    assert (str(victim.number), victim.lost_s) == (jobs[fast], 0.0)

    made = steps(fast)
    assert made == list(range(1, len(made) + 1))  # each step once: nothing was lost
    ledger: dict[str, Any] = json.loads(report(fast, jobs[fast], "--json"))
    first, second = ledger["attempts"]
    assert (first["outcome"], first["last_step"]) == ("preempted", saved)
    assert (second["outcome"], second["resumed_from"]) == ("running", saved)
    assert said(fast, jobs[fast]).preemptions == 1
    price = price_told(run_of(fast, jobs[fast]), time.time())
    assert price is not None and price.preemptions == 1
    assert "failure.lost_training" not in ledger["buckets"]
    (notice,) = ledger["notices"]
    assert (notice["answer"], notice["saved_steps"]) == ("saved", saved - 15)
    assert (notice["lost_s"], notice["lost_steps"]) == (0.0, 0)
    assert [one["category"] for one in ledger["failures"]] == ["preemption"]
    shown = report(fast, jobs[fast])
    assert "preempted" in shown and f"{saved:,}" in shown
    assert cluster.states(preemptor) == ["COMPLETED"] == cluster.states(other)


def test_a_gang_takes_two_and_a_step_of_srun_hears_of_it(cluster: Cluster, tmp_path: Path) -> None:
    jobs = {
        tmp_path / by: train(cluster, tmp_path / by, "--ready", "ready", by=by)
        for by in ("exec", "srun")
    }
    wait(lambda: all((path / "ready.0").exists() for path in jobs), "trainings", cluster, 240.0)
    gang = submit(cluster, tmp_path / "high", "sleep 1", "high", "--gres=gpu:3")
    log = tmp_path / "schedule.log"
    with scheduling(cluster, log):
        wait(lambda: cluster.states(gang) == ["COMPLETED"], "the gang's end", cluster, 120.0)
        saved = {path: len(steps(path)) for path in jobs}
        wait(
            lambda: all(len(steps(path)) > saved[path] + 5 for path in jobs),
            "both second lives",
            cluster,
            180.0,
        )
    assert [restarts(cluster, job) for job in jobs.values()] == ["1", "1"], log.read_text()
    for path, job in jobs.items():
        assert steps(path) == list(range(1, len(steps(path)) + 1))
        ledger = json.loads(report(path, job, "--json"))
        first, second = ledger["attempts"]
        assert first["outcome"] == "preempted"
        assert second["resumed_from"] == first["last_step"] == saved[path]


def test_a_quota_is_left_to_its_account(cluster: Cluster, tmp_path: Path) -> None:
    jobs = {
        name: submit(cluster, tmp_path / name, "sleep 600", "low", f"--account={name[:-1]}")
        for name in ("ads1", "ads2")
    }
    wait(lambda: states(cluster, jobs.values()) == ["RUNNING"] * 2, "two jobs", cluster)
    later = time.time() + 2.0  # Slurm tells starts in whole seconds
    wait(lambda: time.time() > later, "a later second", cluster)
    jobs["feed1"] = submit(cluster, tmp_path / "feed1", "sleep 600", "low", "--account=feed")
    wait(lambda: states(cluster, [jobs["feed1"]]) == ["RUNNING"], "the newest", cluster)
    waiter = submit(cluster, tmp_path / "high", "sleep 5", "high")
    wait(lambda: reason(cluster, waiter) == "Resources", "a job that waits", cluster)
    newest = (*SCHEDULE, "--once", "--policy=newest")
    dry = (*newest, "--dry-run")
    assert lines(cluster.call(*dry), waiter, jobs["feed1"])

    full, over = tmp_path / "full.csv", tmp_path / "over.csv"
    full.write_text("account,gpus\nads,2\nfeed,1\n")
    over.write_text("ads,1\nfeed,1\n")
    assert "[no-victims]" in cluster.call(*dry, f"--quota={full}")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("adz,1\n")
    with pytest.raises(AssertionError, match=r"\[account-unknown\]"):
        cluster.call(*dry, f"--quota={wrong}")
    told = cluster.call(*newest, f"--quota={over}")
    assert lines(told, waiter) and not lines(told, jobs["feed1"])
    wait(lambda: cluster.states(waiter) == ["COMPLETED"], "the waiter's end", cluster)
    assert restarts(cluster, jobs["feed1"]) == "0"
    assert sorted(restarts(cluster, jobs[name]) for name in ("ads1", "ads2")) == ["0", "1"]


def test_a_gang_on_two_nodes_takes_the_place_of_another(two_nodes: Cluster, tmp_path: Path) -> None:
    cluster, folder = two_nodes, tmp_path / "gang"
    words = ("--steps", "4000", "--pause", "0.1", "--interval", "600", "--grace", str(GRACE_S))
    torchrun = (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=gang"),
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        *(str(JOB), "store", "out", *words, "--ready", "ready"),
    )
    on_both = ("--nodes=2", "--ntasks-per-node=1")
    script = " ".join(map(str, ("srun", *HEADWAY, "run", "--", *torchrun)))
    gang = submit(cluster, folder, script, "low", *on_both)
    others = [
        submit(cluster, tmp_path / node, "sleep 900", "low", f"--nodelist={node}") for node in "ab"
    ]
    ready = [folder / "ready.0", folder / "ready.1"]
    wait(lambda: all(path.exists() for path in ready), "a training of two", cluster, 240.0)
    waiter = submit(cluster, tmp_path / "high", "srun printenv SLURMD_NODENAME", "high", *on_both)
    log = tmp_path / "schedule.log"
    with scheduling(cluster, log):
        wait(lambda: cluster.states(waiter) == ["COMPLETED"], "the waiter's end", cluster, 120.0)
        saved = len(steps(folder))
        wait(lambda: len(steps(folder)) > saved + 5, "the second life", cluster, 180.0)
    told = log.read_text()
    assert len(lines(told, waiter, gang)) == 2 and len(lines(told, gang)) == 3
    assert restarts(cluster, gang) == "1"
    assert sorted((tmp_path / "high" / "log").read_text().split()) == ["a", "b"]
    assert [restarts(cluster, job) for job in others] == ["0", "0"]
    for rank in range(2):
        made = steps(folder, rank)
        assert made == list(range(1, len(made) + 1))
    ledger = json.loads(report(folder, gang, "--json"))
    first, second = ledger["attempts"]
    assert (first["outcome"], first["ranks"]) == ("preempted", 2)
    assert second["resumed_from"] == first["last_step"] == saved
    (notice,) = ledger["notices"]
    assert (notice["answer"], notice["saved_steps"]) == ("saved", saved - 15)
    assert (notice["accelerators"], notice["lost_s"]) == (2, 0.0)


def simulated(cluster: Cluster, jobs: Mapping[Path, str], preemptor: str) -> list[Job]:
    """The jobs that the simulator evicts, given the same start, save and recovery times."""
    seen = read_cluster(cluster.call)
    begin = min(job.start for job in seen.running())
    found = []
    for folder, number in jobs.items():
        job, told = seen.job(int(number)), said(folder, number)
        assert job is not None
        one = Job(job.number, JobSpec(job.start - begin, LONG_S, 1, "low"), 0)
        one.start = one.recover = told.recover
        one.save, one.interval = told.save or 0.0, LONG_S
        if told.saved_at is not None:
            one.phase = max(told.saved_at - job.start - told.recover, 0.0)
        found.append(one)
    found.sort(key=lambda one: one.submit)
    waiter = Job(int(preemptor), JobSpec(time.time() - begin, 20.0, 1, "high"), 1)
    tenants = [Tenant("low", 0), Tenant("high", 1)]
    Engine(Rows(3, 3), tenants, parse_policy(DEFAULT_POLICY), grace=GRACE_S).run([*found, waiter])
    return [job for job in found if job.preemptions]


def reason(cluster: Cluster, job: str) -> str:
    return cluster.call("squeue", "-h", "-j", job, "-o", "%r").strip()


def restarts(cluster: Cluster, job: str) -> str:
    return cluster.call("squeue", "-h", "-j", job, "-O", "RestartCnt").strip()


def states(cluster: Cluster, jobs: Iterable[str]) -> list[str]:
    return [cluster.call("squeue", "-h", "-j", job, "-o", "%T").strip() for job in jobs]
