"""Every bucket within 0.1 s + 2 % of what the job itself measured."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.run import load
from tests.support import BIN, Done, Runner, close, job, python, quiet_env


def agree(done: Done, expected: dict[str, float]) -> None:
    got = {leaf: round(done.seconds(leaf), 3) for leaf in expected}
    wrong = {k: (got[k], round(v, 3)) for k, v in expected.items() if not close(got[k], v)}
    assert not wrong, f"(ledger, job): {wrong}; all: {done.run.to_dict()['buckets']}\n{done.output}"


def balanced(done: Done) -> None:
    ledger = done.run.ledger
    assert sum(ledger.buckets.values()) == ledger.wall
    for rank in ledger.ranks:
        assert sum(rank.buckets.values()) == ledger.wall
    assert not [note for note in ledger.notes if "hook-off" in note], ledger.notes


def test_plain_loop(run_job: Runner) -> None:
    done = run_job(*python(job("plain")))
    assert done.code == 0, done.output
    balanced(done)
    agree(done, done.truth["0-0"]["seconds"])
    assert done.run.ledger.steps == 40
    assert done.run.ledger.saves == 1
    assert done.run.ledger.batches_per_step == 1.0
    assert done.seconds("stop.shutdown") >= 0.5
    assert "ETT" in done.output
    # One process has nobody to talk to.
    assert not (done.run.ledger.process_groups or done.run.ledger.pre_step_collectives)
    assert not [one for one in done.journals if any(one.named("communication"))]


@pytest.mark.slow
def test_torchrun_ddp_with_a_killed_rank(run_job: Runner) -> None:
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    done = run_job(*torchrun, "--max-restarts", "2", job("ddp"))
    assert done.code == 0, done.output
    balanced(done)
    ledger = done.run.ledger
    first, second = done.truth["0-1"]["marks"], done.truth["1-0"]["marks"]
    saves = sum(done.truth[key]["seconds"]["checkpoint_block"] for key in ("0-0", "1-0"))
    started = [max(done.truth[f"{a}-{r}"]["marks"]["started"] for r in (0, 1)) for a in (0, 1)]
    kept = max(done.truth[f"0-{r}"]["marks"]["step_30"] for r in (0, 1)) - started[0]
    lost = first["step_35"] - max(done.truth[f"0-{r}"]["marks"]["step_30"] for r in (0, 1))
    again = second["last_step"] - started[1]
    agree(
        done,
        {
            "train.effective": kept + again - saves,
            "failure.lost_training": lost,
            "waste.checkpoint_block": saves,
        },
    )
    assert [(a.outcome, a.resumed_from) for a in ledger.attempts] == [
        ("failed", None),
        ("completed", 30),
    ]
    assert ledger.steps == 60
    assert len(ledger.time_to_recover) == 1
    assert close(ledger.time_to_recover[0] / 1e9, started[1] - first["step_35"])
    (failure,) = ledger.failures
    assert failure.root_rank == 1
    assert "SIGKILL" in failure.evidence


@pytest.mark.slow
def test_mp_spawn(run_job: Runner) -> None:
    done = run_job(*python(job("spawn")))
    assert done.code == 0, done.output
    balanced(done)
    ledger = done.run.ledger
    assert [rank.rank for rank in ledger.ranks] == [0, 1]
    assert ledger.steps == 30
    marks = [done.truth[f"0-{rank}"]["marks"] for rank in (0, 1)]
    save = done.truth["0-1"]["seconds"]["waste.checkpoint_block"]
    trained = max(m["last_step"] for m in marks) - max(m["started"] for m in marks)
    agree(done, {"waste.checkpoint_block": save, "train.effective": trained - save})


@pytest.mark.slow
def test_hang_until_killed(run_job: Runner) -> None:
    done = run_job(*python(job("hang")))
    assert done.code == 128 + signal.SIGKILL
    balanced(done)
    marks = done.truth["0-0"]["marks"]
    agree(
        done,
        {
            "failure.hang": marks["killed"] - marks["last_step"],
            "train.effective": marks["last_step"] - marks["started"],
        },
    )
    (failure,) = done.run.ledger.failures
    assert failure.category == "hang"


@pytest.mark.slow
def test_lightning(run_job: Runner) -> None:
    pytest.importorskip("lightning")
    done = run_job(*python(job("lightning_job")))
    assert done.code == 0, done.output
    balanced(done)
    truth = done.truth["0-0"]
    expected = dict(truth["seconds"])
    trained = truth["marks"]["last_step"] - truth["marks"]["started"]
    expected["train.effective"] = trained - sum(_before_last(truth))
    agree(done, expected)
    assert done.run.ledger.steps == 30


def _before_last(truth: dict[str, Any]) -> list[float]:
    """Two of three validations and the save lie between the first and the last step."""
    evaluation = truth["seconds"]["waste.evaluation"]
    return [evaluation * 2 / 3, truth["seconds"]["waste.checkpoint_block"]]


@pytest.mark.slow
def test_transformers_killed_and_resumed(run_job: Runner) -> None:
    pytest.importorskip("transformers")
    done = run_job(
        "bash",
        "-c",
        f"{BIN}/python {job('transformers_job')} 0; {BIN}/python {job('transformers_job')} 1",
    )
    assert done.code == 0, done.output
    balanced(done)
    ledger = done.run.ledger
    expected: dict[str, float] = {}
    for truth in done.truth.values():
        for leaf, seconds in truth["seconds"].items():
            expected[leaf] = expected.get(leaf, 0.0) + seconds
    agree(done, expected)
    assert [(a.outcome, a.resumed_from, a.last_step) for a in ledger.attempts] == [
        ("failed", None, 15),
        ("completed", 10, 20),
    ]
    assert ledger.steps == 20
    assert ledger.batches_per_step is not None
    assert round(ledger.batches_per_step) == 2  # it reads one batch ahead


# Counts steps without torch: what is tested is that two launchers find each other.
STEPS = """
import os, pathlib, time, headway
pathlib.Path("rank-" + os.environ["RANK"]).touch()
while not all(os.path.exists(f"rank-{rank}") for rank in (0, 1)):
    time.sleep(0.01)
for _ in range(20):
    time.sleep(0.03)
    headway.step()
"""


def test_one_launcher_on_each_node_is_one_run(tmp_path: Path) -> None:
    """`srun headway run -- python train.py`: two launchers, one launch, one attempt."""
    env = {**os.environ, **quiet_env(tmp_path), "HEADWAY_RUN": "both", "WORLD_SIZE": "2"}
    (tmp_path / "job.py").write_text(STEPS)
    headway = [str(BIN / "headway"), "run", "--name", "both", "--"]
    nodes = [
        subprocess.Popen(
            [*headway, *python("job.py")],
            cwd=tmp_path,
            env={**env, "RANK": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in (0, 1)
    ]
    outputs = [node.communicate(timeout=100)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    ledger = load(tmp_path / "headway" / "both").ledger
    assert len(list((tmp_path / "headway" / "both" / "journal").glob("launcher-*.jsonl"))) == 2
    assert [(a.outcome, a.ranks) for a in ledger.attempts] == [("completed", (0, 1))]
    assert ledger.steps == 20
    assert sum(ledger.buckets.values()) == ledger.wall
