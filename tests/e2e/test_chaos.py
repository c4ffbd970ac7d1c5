"""Every planned fault on a real job: detected, classified, and recovered or stopped by policy."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from headway.ledger.model import Ledger
from headway.run import load
from tests.e2e.namespaces import missing, two_nodes
from tests.support import BIN, HEADWAY, Done, Golden, job, python, quiet_env

pytestmark = pytest.mark.timeout(110)
OURS = ("[fault-not-done]", "[hook-off]", "[launcher-fault]")
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]


def rehearse(
    folder: Path, plan: str, *words: str, env: dict[str, str] | None = None, steps: int = 60
) -> Done:
    """A resumable job of two ranks with a checkpoint every ten steps and up to three restarts."""
    command = words or (*TORCHRUN, job("resumable"), str(steps))
    completed = subprocess.run(
        [HEADWAY, "run", "-o", "run", "--restarts", "3", "--chaos", plan, "--", *command],
        cwd=folder,
        env={**os.environ, **quiet_env(folder), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    return Done(completed.returncode, load(folder / "run"), {}, completed.stdout)


def attempts(ledger: Ledger) -> list[tuple[str, int | None, int | None]]:
    return [(a.outcome, a.resumed_from, a.last_step) for a in ledger.attempts]


def decisions(ledger: Ledger) -> list[str]:
    return [(failure.decision or "").partition(":")[0] for failure in ledger.failures]


def balanced(ledger: Ledger) -> None:
    assert sum(ledger.buckets.values()) == ledger.wall
    assert not [note for note in ledger.notes if note.endswith(OURS)]


@pytest.mark.slow
def test_kills_of_a_rank_of_the_agent_and_of_everything(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        """
        [[fault]]
        kind = "kill"
        who = 1
        at_step = 15
        [[fault]]
        kind = "kill"
        who = "agent"
        at_step = 12
        attempt = 1
        [[fault]]
        kind = "kill"
        who = "all"
        at_step = 14
        attempt = [2, 7]
        """
    )
    completed = rehearse(tmp_path, "plan.toml")
    ledger = completed.run.ledger
    balanced(ledger)
    assert completed.code == 0, completed.output
    first, second, third, last = attempts(ledger)
    assert first == ("failed", None, 15)
    assert second[:2] == ("failed", 10) and second[2] is not None and second[2] >= 22
    saved = second[2] // 10 * 10  # 20, or 30 where the agent was killed late
    assert third == ("failed", saved, saved + 14)
    assert last == ("completed", saved + 10, 60)
    assert [f.who for f in ledger.faults] == ["rank 1", "agent", "all"]
    assert [f.step for f in ledger.faults] == [15, 12, 14]
    assert [f.failure for f in ledger.faults] == [0, 1, 2]
    assert all(f.detected_after is not None and f.detected_after >= 0 for f in ledger.faults)
    assert ledger.failures[0].root_rank == 1
    assert "SIGKILL" in ledger.failures[0].evidence and "SIGKILL" in ledger.failures[2].evidence
    assert decisions(ledger) == ["restart"] * 3
    assert ledger.faults[0].planned in completed.output


@pytest.mark.slow
def test_preemption_with_a_grace_that_is_not_enough(tmp_path: Path) -> None:
    plan = "terminate step=20 grace=1"
    completed = rehearse(tmp_path, plan, steps=100_000, env={"IGNORE_TERM": "1"})
    ledger = completed.run.ledger
    balanced(ledger)
    assert completed.code != 0
    assert [a.outcome for a in ledger.attempts] == ["preempted"], completed.output
    (failure,) = ledger.failures
    assert (failure.category, failure.owner) == ("preemption", "scheduler")
    assert decisions(ledger) == ["stop"]
    signalled, killed = ledger.faults
    assert (signalled.kind, signalled.who, signalled.step) == ("terminate", "launcher", 20)
    assert killed.kind == "kill" and killed.planned.startswith(signalled.planned)
    assert killed.at - signalled.at >= 1_000_000_000


@pytest.mark.slow
def test_a_stopped_rank_is_a_hang(tmp_path: Path) -> None:
    pytest.importorskip("headway.launch.hang", reason="hang watch is not there")
    completed = rehearse(tmp_path, "stop rank=1 step=25")
    ledger = completed.run.ledger
    balanced(ledger)
    assert completed.code == 0, completed.output
    assert attempts(ledger) == [("failed", None, 25), ("completed", 20, 60)]
    (failure,), (fault,) = ledger.failures, ledger.faults
    assert (failure.category, failure.root_rank) == ("hang", 1)
    assert decisions(ledger) == ["restart"]
    assert (fault.who, fault.detected, fault.step) == ("rank 1", "hang", 25)


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_a_while_goes_on(tmp_path: Path) -> None:
    completed = rehearse(tmp_path, "stop rank=1 step=25 for=1; raise rank=1 step=40", steps=60)
    ledger = completed.run.ledger
    balanced(ledger)
    stopped, raised = ledger.faults
    assert (stopped.kind, stopped.failure) == ("stop", None)
    assert raised.at - stopped.at >= 1_000_000_000
    # The exception is the program's own: it would recur, so there is no retry.
    assert completed.code != 0
    assert attempts(ledger) == [("failed", None, 40)]
    (failure,) = ledger.failures
    assert (failure.category, failure.root_rank) == ("user_code", 1), completed.output
    assert "RuntimeError: a planned fault" in failure.evidence
    assert decisions(ledger) == ["stop"]
    assert raised.failure == 0


@pytest.mark.slow
def test_a_slow_disk_and_late_batches(tmp_path: Path) -> None:
    plan = "disk path=checkpoints mode=slow delay=0.2 step=15; data delay=0.05 step=40"
    completed = rehearse(tmp_path, plan, env={"SAVE_BY": "path"})
    ledger = completed.run.ledger
    balanced(ledger)
    assert completed.code == 0, completed.output
    assert attempts(ledger) == [("completed", None, 60)]
    # Five slow saves and twenty late batches; the last save is after the last step, and while rank
    # 0 saves, the wait of rank 1 delays no other rank.
    assert completed.seconds("waste.checkpoint_block") >= 3 * 0.2
    assert completed.seconds("waste.data_stall") >= 16 * 0.05
    disk, data = ledger.faults
    assert (disk.kind, disk.who, disk.step, disk.failure) == ("disk", "rank 0, 1", 15, None)
    assert (data.kind, data.who, data.step, data.failure) == ("data", "rank 0, 1", 40, None)


@pytest.mark.slow
def test_a_failing_disk_is_tried_again_and_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path,
) -> None:
    plan = "disk path=checkpoints step=25; corrupt path=checkpoints how=truncate when=restart"
    completed = rehearse(tmp_path, plan)
    ledger = completed.run.ledger
    balanced(ledger)
    assert completed.code == 0, completed.output
    assert attempts(ledger) == [("failed", None, 30), ("completed", 10, 60)]
    (failure,) = ledger.failures
    assert (failure.category, failure.root_rank) == ("storage", 0), completed.output
    assert "Input/output error" in failure.evidence
    assert decisions(ledger) == ["restart"]
    disk, corrupt = ledger.faults
    assert (disk.failure, disk.detected) == (0, "storage")
    assert (corrupt.attempt, corrupt.failure) == (1, None)
    assert corrupt.who.endswith("checkpoints/step-000020.pt")
    assert "step-000020.pt is damaged" in completed.output


def test_a_full_disk_is_not_tried_again(tmp_path: Path) -> None:
    completed = rehearse(tmp_path, "disk path=checkpoints mode=full step=15")
    ledger = completed.run.ledger
    balanced(ledger)
    assert completed.code != 0
    assert attempts(ledger) == [("failed", None, 20)]
    (failure,) = ledger.failures
    assert (failure.category, failure.root_rank) == ("disk_full", 0), completed.output
    assert decisions(ledger) == ["stop"]
    assert ledger.faults[0].detected == "disk_full"
    assert "ChildFailedError" in completed.output  # torchrun ended by itself


def test_every_way_to_write_meets_the_disk(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    plan = "disk path=failing mode=fail step=1; disk path=full mode=full step=1"
    completed = rehearse(tmp_path, plan, *python("-W", "ignore", job("writers"), "failing", "full"))
    assert completed.code == 0, completed.output
    balanced(completed.run.ledger)
    for folder, words in (("failing", "Input/output error"), ("full", "No space left on device")):
        own = [line for line in completed.output.splitlines() if line.startswith(f"{folder} ")]
        errors = [line.removeprefix(f"{folder} ").split(": ", 1) for line in own]
        before, after = ({k[2:]: v for k, v in errors if k[0] == step} for step in "12")
        assert set(before.values()) == {"done"} and len(before) == 11
        spared = ["elsewhere", "read", *(["rename"] if folder == "full" else [])]
        assert [after[way] for way in spared] == ["done"] * len(spared)
        hit = {way: text for way, text in after.items() if way not in spared}
        assert hit.pop("file").startswith("RuntimeError")  # torch does not report the reason there
        assert hit.keys() == before.keys() - {*spared, "file"}
        assert all(words in text for text in hit.values()), hit


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_a_cut_network_between_two_nodes(tmp_path: Path) -> None:
    env = {**os.environ, **quiet_env(tmp_path), "HEADWAY_RUN": "both", "GROUP_TIMEOUT": "5"}
    plan = "network device=cable node=node-1 step=25 for=8"
    headway = [HEADWAY, "run", "--name", "both", "--restarts", "3", "--chaos", plan]
    torchrun = [str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1"]
    with two_nodes() as nodes:
        where = ["--master-addr", nodes[0].address, "--master-port", "29512"]
        launchers = [
            node.start(
                [*headway, "--", *torchrun, *where, "--node-rank", str(i), job("resumable"), "60"],
                env,
                cwd=tmp_path,
            )
            for i, node in enumerate(nodes)
        ]
        outputs = [launcher.communicate(timeout=95)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    ledger = load(tmp_path / "headway" / "both").ledger
    balanced(ledger)
    assert attempts(ledger)[0][0] == "failed"
    assert attempts(ledger)[-1] == ("completed", 20, 60), outputs
    (fault,) = ledger.faults
    assert (fault.kind, fault.who, fault.step, fault.failure) == ("network", "cable", 25, 0)
    assert ledger.failures[0].category in ("comm_timeout", "network", "hang"), outputs
    assert decisions(ledger)[0] == "restart"


def test_an_exception_comes_out_of_the_very_step(tmp_path: Path) -> None:
    """From a plain loop, from compiled training, and from `headway.step()`."""
    plan = "raise rank=0 between=7..7 exception='ValueError: planned'"
    completed = rehearse(tmp_path, plan, *python(job("raising")))
    assert completed.code == 0, completed.output
    balanced(completed.run.ledger)
    lines = [line for line in completed.output.splitlines() if line.startswith("planned in step")]
    assert lines == ["planned in step 7"] * 3, completed.output
    assert [f.step for f in completed.run.ledger.faults] == [7, 14, 21]
    assert [f.failure for f in completed.run.ledger.faults] == [None] * 3


def test_a_wrong_plan_stops_nothing_but_itself(tmp_path: Path) -> None:
    words = ["chaos", "--plan", "kill rank=1 step=soon", "--", "touch", "started"]
    completed = subprocess.run(
        [HEADWAY, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.endswith("[fault-value-invalid]\n") and "'soon'" in completed.stderr
    assert completed.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_dry_run_tells_the_schedule(tmp_path: Path, golden: Golden) -> None:
    words = [HEADWAY, "chaos", "--dry-run", "--plan"]
    plan = "seed=7; kill who=random every=60 times=2; stop rank=0 step=9 for=3"
    completed = subprocess.run(
        [*words, plan], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    golden("dry_run.txt", completed.stdout)
    assert not list(tmp_path.iterdir())
