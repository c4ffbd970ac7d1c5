"""Jobs that fail, and come back or stop, below a real `headway run --restarts`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from headway.launch import tree
from headway.ledger.run import Run, load

from .conftest import BIN, quiet_env

# Ten steps between saves; what goes wrong, and when, is in its arguments: kind, rank, step, once.
JOB = """
import os, shutil, signal, subprocess, sys, time, torch, torch.distributed as dist
kind, who, at, often = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ranked = "RANK" in os.environ
if ranked:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ranked else 0
if kind == "grace" and rank == 0:
    def last(*_):
        time.sleep(7); open("saved", "w").close(); os._exit(0)
    signal.signal(signal.SIGTERM, last)
net = torch.nn.Linear(4, 1)
if ranked:
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
done = torch.load("last.pt") if os.path.exists("last.pt") else 0
open("tries", "a").write("x")
def fault():
    if often == "once" and os.path.exists("done"):
        return
    open("done", "w").close()
    if kind in ("kill", "loop"): os.kill(os.getpid(), signal.SIGKILL)
    if kind == "killagent": os.kill(os.getppid(), signal.SIGKILL)
    if kind == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "bug": raise KeyError("no such column")
    if kind == "reset": raise ConnectionResetError(104, "Connection reset by peer")
    if kind == "vanish": shutil.rmtree("run"); sys.exit(7)
    if kind == "ecc": raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if kind == "daemon":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("/dev/shm/torch_%d_1_0" % os.getpid(), "w").write("x")
        os.kill(os.getpid(), signal.SIGKILL)
for step in range(done + 1, 61):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if step % 10 == 0 and (kind != "loop" or step <= 10):
        if rank == 0:
            torch.save(step, "new.pt"); os.replace("new.pt", "last.pt")
        if ranked:
            dist.barrier()
    if rank == who and step == at + (os.path.getsize("tries") if kind == "loop" else 0):
        fault()
if kind == "early" and rank == who:
    os._exit(0)
if kind == "early":
    time.sleep(3)
elif ranked:
    dist.destroy_process_group()
"""
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "job.py")
PYTHON = (str(BIN / "python"), "job.py")


class Job:
    """A job in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job.py").write_text(JOB)

    def start(self, *command: str, restarts: int = 3, options: tuple[str, ...] = ()) -> None:
        env = {**os.environ, **quiet_env(self.folder)}
        headway = [str(BIN / "headway"), "run", "-o", "run", "--restarts", str(restarts), *options]
        self.process = subprocess.Popen(
            [*headway, "--", *command],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> int:
        self.output = self.process.communicate(timeout=100)[0]
        return self.process.returncode

    def run(self, *command: str, restarts: int = 3) -> int:
        self.start(*command, restarts=restarts)
        return self.finish()

    @property
    def ledger(self) -> Run:
        return load(self.folder / "run")

    @property
    def outcomes(self) -> list[tuple[str, int | None]]:
        return [(a.outcome, a.resumed_from) for a in self.ledger.ledger.attempts]

    @property
    def failures(self) -> list[tuple[str, int | None, str]]:
        return [
            (f.category, f.root_rank, (f.decision or "").partition(":")[0])
            for f in self.ledger.ledger.failures
        ]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def balanced(job: Job) -> None:
    ledger = job.ledger.ledger
    assert sum(ledger.buckets.values()) == ledger.wall
    for rank in ledger.ranks:
        assert sum(rank.buckets.values()) == ledger.wall


def test_a_killed_rank_comes_back(job: Job) -> None:
    assert job.run(*TORCHRUN, "kill", "1", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    assert job.failures == [("unknown", 1, "restart")], job.output
    (failure,) = job.ledger.ledger.failures
    assert "SIGKILL" in failure.evidence
    assert job.ledger.ledger.steps == 60
    assert job.output.count("restart 1 of 3") == 1
    balanced(job)


@pytest.mark.slow
def test_a_killed_agent_comes_back(job: Job) -> None:
    assert job.run(*TORCHRUN, "killagent", "1", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    assert [decision for _, _, decision in job.failures] == ["restart"]
    balanced(job)


def test_a_plain_python_comes_back(job: Job) -> None:
    assert job.run(*PYTHON, "kill", "0", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    assert job.failures == [("unknown", 0, "restart")], job.output
    balanced(job)


@pytest.mark.slow
def test_a_shell_script_comes_back(job: Job) -> None:
    script = f"{BIN / 'python'} job.py kill 0 25 once; exit $?"
    assert job.run("sh", "-c", script) == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]


def test_a_bug_is_not_retried(job: Job) -> None:
    assert job.run(*TORCHRUN, "bug", "1", "25", "always") == 1, job.output
    assert job.outcomes == [("failed", None)]
    assert job.failures == [("user_code", 1, "stop")], job.output
    assert "ChildFailedError" in job.output  # torchrun came to its own end
    balanced(job)


@pytest.mark.slow
def test_the_same_step_again_is_data_or_code(job: Job) -> None:
    assert job.run(*TORCHRUN, "kill", "1", "25", "always") != 0
    assert [outcome for outcome, _ in job.outcomes] == ["failed", "failed"]
    assert "same failure at step 25 again" in job.output
    balanced(job)


@pytest.mark.slow
def test_a_crash_loop_stops(job: Job) -> None:
    assert job.run(*PYTHON, "loop", "0", "25", "always", restarts=20) == 137
    assert "3 attempts in a row added no durable step" in job.output
    assert job.outcomes == [("failed", None)] + [("failed", 10)] * 3
    balanced(job)


@pytest.mark.slow
def test_restarts_are_used_up(job: Job) -> None:
    assert job.run(*PYTHON, "reset", "0", "25", "always", restarts=1) == 1
    assert "all 1 restarts are used" in job.output
    assert len(job.outcomes) == 2


def test_a_broken_node_is_asked_to_be_swapped(job: Job) -> None:
    assert job.run(*PYTHON, "ecc", "0", "25", "always") == 75, job.output
    assert [(c, d) for c, _, d in job.failures] == [("gpu_hardware", "swap")]
    assert (job.folder / "run" / "swap.json").exists()


@pytest.mark.slow
def test_nothing_of_a_dead_attempt_lives_on(job: Job) -> None:
    assert job.run(*TORCHRUN, "daemon", "1", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    mine = str(job.folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert os.readlink(process / "cwd") != mine, (process / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    assert not list(Path("/dev/shm").glob("torch_*_1_0"))


@pytest.mark.slow
def test_a_stopped_rank_hangs_and_comes_back(job: Job) -> None:
    assert job.run(*TORCHRUN, "stop", "1", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    assert job.failures == [("hang", 1, "restart")], job.output
    assert len(list((job.folder / "run" / "stacks").rglob("rank*.txt"))) == 2
    assert job.ledger.ledger.buckets["failure.hang"] > 0
    balanced(job)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_is_not_restarted(job: Job, number: signal.Signals) -> None:
    job.start(*TORCHRUN, "none", "0", "0", "once")
    until = time.monotonic() + 60
    while not (job.folder / "last.pt").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    job.process.send_signal(number)
    assert job.finish() != 0
    outcome = "preempted" if number == signal.SIGTERM else "stopped"
    assert job.outcomes == [(outcome, None)], job.output
    balanced(job)


@pytest.mark.slow
def test_a_rank_may_save_as_long_as_the_scheduler_lets_it(job: Job) -> None:
    """The other one dies of the signal at once; that is no reason to end the attempt."""
    job.start(*TORCHRUN, "grace", "0", "0", "once")
    until = time.monotonic() + 60
    while not (job.folder / "last.pt").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    job.process.send_signal(signal.SIGTERM)
    job.finish()
    assert (job.folder / "saved").exists(), job.output
    assert job.outcomes == [("preempted", None)], job.output


@pytest.mark.slow
def test_a_rank_that_leaves_early_is_no_death(job: Job) -> None:
    assert job.run(*TORCHRUN, "early", "1", "0", "once") == 0, job.output
    assert job.outcomes == [("completed", None)]


def test_a_save_and_exit_0_when_told_is_a_preemption(job: Job) -> None:
    job.start(
        "sh", "-c", "trap 'sleep 1; exit 0' TERM; touch last.pt; while true; do sleep 0.1; done"
    )
    until = time.monotonic() + 60
    while not (job.folder / "last.pt").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 0
    assert job.outcomes == [("preempted", None)], job.output
    assert "preemption, the launcher was sent SIGTERM; stopped" in job.output


@pytest.mark.slow
def test_what_outlives_a_good_end_is_left_alone(job: Job) -> None:
    assert job.run("sh", "-c", "(sleep 2; touch uploaded) & exit 0") == 0
    until = time.monotonic() + 20
    while not (job.folder / "uploaded").exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_folder_that_vanishes_costs_neither_exit_code_nor_restart(job: Job) -> None:
    assert job.run(*PYTHON, "vanish", "0", "25", "always", restarts=1) == 7, job.output
    assert "internal fault" not in job.output


@pytest.mark.slow
def test_a_killed_launcher_leaves_a_run_that_can_go_on(job: Job) -> None:
    """Started again at once, it ends what was left, joins the run and asks for no other node."""
    env = {**os.environ, **quiet_env(job.folder), "HEADWAY_RUN": "night"}
    script = "trap '' TERM; while [ ! -e end ]; do sleep 0.1; done"
    command = [str(BIN / "headway"), "run", "--restarts", "2", "--", "sh", "-c", script]
    first = subprocess.Popen(command, cwd=job.folder, env=env, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (left := spawned(job.folder / "headway/night/journal")):
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.3)  # the shell has set its trap
    first.kill()
    first.wait()
    assert tree.alive(left)
    second = subprocess.Popen(
        command,
        cwd=job.folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while len(spawned(job.folder / "headway/night/journal")) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not tree.alive(left)
    (job.folder / "end").touch()
    output = second.communicate(timeout=60)[0]
    assert second.returncode == 0, output
    assert "a killed launcher left behind" in output
    assert len(load(job.folder / "headway" / "night").ledger.attempts) == 2


def spawned(journal: Path) -> list[int]:
    """The processes that launchers have started, in order."""
    texts = [path.read_text() for path in sorted(journal.glob("launcher-*.jsonl"))]
    events = [json.loads(line) for text in texts for line in text.splitlines()]
    return [event["pid"] for event in events if event["ev"] == "spawn"]


@pytest.mark.slow
def test_a_job_that_is_well_is_left_alone(job: Job) -> None:
    assert job.run(*TORCHRUN, "none", "0", "0", "once") == 0, job.output
    assert job.outcomes == [("completed", None)]
    assert job.failures == []
    assert not (job.folder / "run" / "stacks").exists()
    hidden = [p.name for p in (job.folder / "run" / "journal").iterdir() if p.name[0] == "."]
    assert hidden == []


@pytest.mark.parametrize("restarts", ["-1", "two"])
def test_bad_numbers_are_one_sentence(tmp_path: Path, restarts: str) -> None:
    done = subprocess.run(
        [str(BIN / "headway"), "run", "--restarts", restarts, "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert restarts in done.stderr
