"""Advice for real jobs: it matches what was done to them, and following it helps the next run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.run import load
from tests.journals.recorded import unpack
from tests.support import BIN, job, python, quiet_env

pytestmark = pytest.mark.timeout(300)
PYTHON = python(job("waiting"))
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2")


def record(folder: Path, name: str, *flags: str, command: tuple[str, ...]) -> Path:
    (folder / "last.pt").unlink(missing_ok=True)
    done = subprocess.run(
        [str(BIN / "headway"), "run", "-o", name, "--no-report", *flags, "--", *command],
        cwd=folder,
        env={**os.environ, **quiet_env(folder)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return folder / name


def advised(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Advice by rule; checks the sums."""
    assert main(["advise", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert sum(advice["seconds"] for advice in content["advice"]) <= content["lost_s"] + 1e-6
    assert content["with_all"]["ett_percent"] >= content["ett_percent"]
    return {advice["rule"]: advice for advice in content["advice"]}


def test_a_job_that_waits_for_data_and_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unpack("data_stall", tmp_path)
    advice_by_rule = advised(run, capsys)
    ledger = load(run).ledger
    for rule, leaf in (
        ("data_workers", "waste.data_stall"),
        ("async_checkpoint", "waste.checkpoint_block"),
    ):
        assert advice_by_rule[rule]["seconds"] == pytest.approx(ledger.buckets[leaf] / 1e9)
    assert advice_by_rule["async_checkpoint"]["command"].startswith("headway run --async-save -- ")
    assert (
        not {"compile_cache", "requeue_delay", "restart_warmth", "hang_limits"}
        & advice_by_rule.keys()
    )


@pytest.mark.slow
def test_what_was_advised_is_known_once_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = record(tmp_path, "plain", command=PYTHON)
    assert advised(plain, capsys)["async_checkpoint"]["confidence"] == "low"
    behind = record(tmp_path, "behind", "--async-save", command=PYTHON)
    assert "async_checkpoint" not in advised(behind, capsys)
    known = advised(plain, capsys).get("async_checkpoint")
    assert known is None or known["confidence"] == "high"


@pytest.mark.slow
def test_a_killed_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill = ("--chaos", "kill rank=1 step=35")
    agent = (*TORCHRUN, "--max-restarts", "1", job("waiting"))
    by_torchrun = record(tmp_path, "agent", *kill, command=agent)
    advice_by_rule = advised(by_torchrun, capsys)
    assert advice_by_rule["requeue_delay"]["confidence"] == "low"
    assert "--restarts 5" in advice_by_rule["requeue_delay"]["command"]
    assert "lemon_nodes" not in advice_by_rule
    restarts = (*kill, "--restarts", "1")
    by_headway = record(tmp_path, "own", *restarts, command=(*TORCHRUN, job("waiting")))
    assert "requeue_delay" not in advised(by_headway, capsys)
    assert main(["advise", str(by_torchrun), "--with", str(by_headway), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    again = [advice for advice in content["advice"] if advice["rule"] == "requeue_delay"]
    assert all(one["confidence"] == "high" for one in again)
