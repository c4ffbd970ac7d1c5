"""Jobs that fail, and restart or stop, below a real `headway run --restarts`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from headway.launch import processes
from headway.run import Run, load
from tests.support import BIN, JOBS, quiet_env, wait_until

# As jobs/faulty.py without torch, for what does not depend on it.
PLAIN = """
import os, signal, sys, time, headway
kind, who, at, often = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rank = int(os.environ.get("RANK", 0))
done = int(open("last").read()) if os.path.exists("last") else 0
headway.progress(step=done)
for step in range(done + 1, 61):
    headway.step()
    time.sleep(0.01)
    if step % 10 == 0 and rank == 0:
        with headway.span("checkpoint_save"):
            open("new", "w").write(str(step)); os.replace("new", "last")
    if (rank, step) == (who, at) and not (often == "once" and os.path.exists("done")):
        open("done", "w").close()
        if kind == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if kind == "bug": raise KeyError("no such column")
        if kind == "reset": raise ConnectionResetError(104, "Connection reset by peer")
        if kind == "ecc": raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "job.py")
PYTHON = (str(BIN / "python"), "job.py")
PLAIN_TORCHRUN = (*TORCHRUN[:-1], "plain.py")
PLAIN_PYTHON = (str(BIN / "python"), "plain.py")


class Job:
    """A job in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(JOBS / "faulty.py", folder / "job.py")
        (folder / "plain.py").write_text(PLAIN)

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

    @property
    def decisions(self) -> list[str]:
        return [decision for _, _, decision in self.failures]


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
    assert job.output.count((failure.decision or "").partition(": ")[2]) == 1
    balanced(job)


@pytest.mark.slow
def test_a_killed_agent_comes_back(job: Job) -> None:
    assert job.run(*TORCHRUN, "killagent", "1", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    assert job.decisions == ["restart"]
    balanced(job)


def test_a_plain_python_comes_back(job: Job) -> None:
    assert job.run(*PLAIN_PYTHON, "kill", "0", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    assert job.failures == [("unknown", 0, "restart")], job.output
    balanced(job)


@pytest.mark.slow
def test_a_shell_script_comes_back(job: Job) -> None:
    script = f"{BIN / 'python'} job.py kill 0 25 once; exit $?"
    assert job.run("sh", "-c", script) == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]


def test_a_bug_is_not_retried(job: Job) -> None:
    assert job.run(*PLAIN_TORCHRUN, "bug", "1", "25", "always") == 1, job.output
    assert job.outcomes == [("failed", None)]
    assert job.failures == [("user_code", 1, "stop")], job.output
    assert "ChildFailedError" in job.output  # torchrun ended by itself
    balanced(job)


@pytest.mark.slow
def test_the_same_step_again_is_data_or_code(job: Job) -> None:
    assert job.run(*TORCHRUN, "kill", "1", "25", "always") != 0
    assert [outcome for outcome, _ in job.outcomes] == ["failed", "failed"]
    assert job.decisions == ["restart", "stop"]
    balanced(job)


@pytest.mark.slow
def test_a_crash_loop_stops(job: Job) -> None:
    assert job.run(*PYTHON, "loop", "0", "25", "always", restarts=20) == 137
    assert job.decisions == ["restart"] * 3 + ["stop"]
    assert job.outcomes == [("failed", None)] + [("failed", 10)] * 3
    balanced(job)


@pytest.mark.slow
def test_restarts_are_used_up(job: Job) -> None:
    assert job.run(*PLAIN_PYTHON, "reset", "0", "25", "always", restarts=1) == 1
    assert job.decisions == ["restart", "stop"]


def test_a_broken_node_is_asked_to_be_swapped(job: Job) -> None:
    assert job.run(*PLAIN_PYTHON, "ecc", "0", "25", "always") == 75, job.output
    assert [(c, d) for c, _, d in job.failures] == [("gpu_hardware", "swap")]
    assert (job.folder / "run" / "swap.json").exists()


@pytest.mark.slow
def test_nothing_of_a_dead_attempt_lives_on(job: Job) -> None:
    assert job.run(*TORCHRUN, "daemon", "1", "25", "once") == 0, job.output
    assert job.outcomes == [("failed", None), ("completed", 20)]
    folder_name = str(job.folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert os.readlink(process / "cwd") != folder_name, (process / "cmdline").read_text()
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
    wait_until((job.folder / "last.pt").exists)
    job.process.send_signal(number)
    assert job.finish() != 0
    outcome = "preempted" if number == signal.SIGTERM else "stopped"
    assert job.outcomes == [(outcome, None)], job.output
    balanced(job)


@pytest.mark.slow
def test_a_rank_may_save_as_long_as_the_scheduler_lets_it(job: Job) -> None:
    """The other rank dies of the signal at once; that does not end the attempt."""
    job.start(*TORCHRUN, "grace", "0", "0", "once")
    wait_until((job.folder / "last.pt").exists)
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
    wait_until((job.folder / "last.pt").exists)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 0
    assert job.outcomes == [("preempted", None)], job.output
    assert "SIGTERM" in job.output


@pytest.mark.slow
def test_what_outlives_a_good_end_is_left_alone(job: Job) -> None:
    assert job.run("sh", "-c", "(sleep 2; touch uploaded) & exit 0") == 0
    wait_until((job.folder / "uploaded").exists)


@pytest.mark.slow
def test_a_run_folder_that_vanishes_costs_neither_exit_code_nor_restart(job: Job) -> None:
    assert job.run(*PYTHON, "vanish", "0", "25", "always", restarts=1) == 7, job.output
    assert "[internal-fault]" not in job.output


@pytest.mark.slow
def test_a_killed_launcher_leaves_a_run_that_can_go_on(job: Job) -> None:
    """A new launch ends what remains, joins the run and does not request another node."""
    env = {**os.environ, **quiet_env(job.folder), "HEADWAY_RUN": "night"}
    script = "trap '' TERM; touch trapped; while [ ! -e end ]; do sleep 0.1; done"
    command = [str(BIN / "headway"), "run", "--restarts", "2", "--", "sh", "-c", script]
    first = subprocess.Popen(command, cwd=job.folder, env=env, stderr=subprocess.DEVNULL)
    wait_until((job.folder / "trapped").exists)
    processes_left = spawned(job.folder / "headway/night/journal")
    first.kill()
    first.wait()
    assert processes.still_running(processes_left)
    second = subprocess.Popen(
        command,
        cwd=job.folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: len(spawned(job.folder / "headway/night/journal")) == 2)
    assert not processes.still_running(processes_left)
    (job.folder / "end").touch()
    output = second.communicate(timeout=60)[0]
    assert second.returncode == 0, output
    assert "[processes-left-behind]" in output
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
    completed = subprocess.run(
        [str(BIN / "headway"), "run", "--restarts", restarts, "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 2
    assert len(completed.stderr.splitlines()) == 1
    assert restarts in completed.stderr
    assert completed.stderr.endswith(("[setting-invalid]\n", "[wrong-usage]\n"))
