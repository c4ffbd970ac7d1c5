"""A hundred kills in a row, each at a step and of a rank that the seed selects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from headway.run import load
from tests.processes import working_in
from tests.support import BIN, job, quiet_env

KILLS, STEPS = 100, 3600


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_hundred_kills_are_a_hundred_recoveries(tmp_path: Path, warm: bool) -> None:
    kills = KILLS if warm else KILLS // 5
    plan = f"seed=11; kill rank=random between=15..35 times={kills}"
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    options = ["--restarts", str(kills + 1), "--chaos", plan, *(["--warm"] if warm else [])]
    headway = [str(BIN / "headway"), "run", "-o", "run", *options, "--"]
    completed = subprocess.run(
        [*headway, *torchrun, job("resumable"), str(STEPS * kills // KILLS)],
        cwd=tmp_path,
        env={**os.environ, **quiet_env(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1400,
    )
    assert completed.returncode == 0, completed.stdout[-4000:]
    ledger = load(tmp_path / "run").ledger
    assert sum(ledger.buckets.values()) == ledger.wall
    for rank in ledger.ranks:
        assert sum(rank.buckets.values()) == ledger.wall
    assert ledger.steps == STEPS * kills // KILLS
    assert [a.outcome for a in ledger.attempts] == ["failed"] * kills + ["completed"]
    assert len(ledger.time_to_recover) == kills
    planned = [(fault.attempt, fault.who) for fault in ledger.faults]
    reported = [(failure.attempt, f"rank {failure.root_rank}") for failure in ledger.failures]
    assert reported == planned
    assert {(f.category, f.retry) for f in ledger.failures} == {("unknown", "bounded")}
    assert all("SIGKILL" in failure.evidence for failure in ledger.failures)
    assert not left_over(tmp_path)


def left_over(folder: Path) -> list[str]:
    """Processes that still run in the job's folder, and shared memory of dead ones."""
    pids = working_in(folder)
    for name in Path("/dev/shm").glob("torch_*"):
        pid = name.name.split("_")[1]
        if pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            pids.append(str(name))
    return pids
