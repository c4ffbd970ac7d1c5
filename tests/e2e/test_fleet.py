"""From a job to the store, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from headway.fleet.engine import ask
from headway.fleet.queries import question
from headway.fleet.queries.slices import Asked
from headway.fleet.store import Store

from .conftest import BIN, quiet_env

pytestmark = pytest.mark.timeout(300)
HEADWAY = str(BIN / "headway")
PYTHON = str(BIN / "python")
# Trains, and is killed once.
JOB = """
import os, signal, torch
w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.zeros(1)
o = torch.optim.SGD([w], lr=0.1)
for step in range(30):
    o.step()
    if step == 20 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADWAY, *words],
        cwd=folder,
        env={**os.environ, **quiet_env(folder)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def asked(folder: Path, name: str, *by: str) -> list[dict[str, object]]:
    """In this process: starting one for every question takes longer than the answers."""
    rows = ask(Store(str(folder / "store")), question(name, Asked(by))).rows
    found: list[dict[str, object]] = rows.to_pylist()
    return found


def test_a_run_and_its_restart_are_in_the_store(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    words = ["--no-report", "--restarts", "1", "--label", "team=ads,model=dlrm,shift=night"]
    done = call(tmp_path, "run", "-o", "r", *words, "--store", "store", "--", PYTHON, "job.py")
    assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "r" / "ledger.json").read_text())
    (row,) = asked(tmp_path, "ett", "team", "model", "job")
    assert (row["team"], row["model"], row["job"], row["jobs"]) == ("ads", "dlrm", "job", 1)
    assert row["ett_percent"] == pytest.approx(ledger["ett_percent"])
    assert row["accelerator_hours"] == pytest.approx(ledger["wall_s"] / 3600)
    (recovered,) = asked(tmp_path, "ttr")
    assert recovered["interruptions"] == 1
    assert recovered["ttr_s"] == pytest.approx(ledger["time_to_recover_s"][0])
    (failed,) = asked(tmp_path, "failures", "host")
    assert (failed["failures"], failed["host"]) == (1, os.uname().nodename)
    labels = json.loads((tmp_path / "r" / "run.json").read_text())["labels"]
    assert labels["shift"] == "night" and labels["code"] and labels["config"]

    done = call(tmp_path, "ingest", "r", "none", "job.py", "r", "--store", "store")
    assert done.returncode == 2
    assert done.stdout.count(" 2 attempt(s), ") == 2
    told = done.stderr.splitlines()
    assert len(told) == 2 and "there is no run at none" in told[0]
    assert "job.py is neither a run nor a record that a reader knows" in told[1]
    assert asked(tmp_path, "ett", "team", "model", "job") == [row]

    done = call(tmp_path, "fleet", "compact", "--store", "store")
    assert done.returncode == 0 and "writes are now" in done.stdout
    done = call(tmp_path, "fleet", "ett", "--by", "team,model,job", "--json", "--store", "store")
    assert done.returncode == 0 and json.loads(done.stdout) == [row]
    assert asked(tmp_path, "ett", "team", "model", "job") == [row]


def test_a_store_that_cannot_be_written_costs_the_job_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    done = call(
        tmp_path, "run", "-o", "r", "--no-report", "--store", "store", "--", "sh", "-c", "exit 7"
    )
    assert done.returncode == 7
    assert done.stderr.splitlines()[2:] == [
        "headway: the run is not in the store: store is a file; a store is a folder or a URL; "
        "later: headway ingest r --store store"
    ]
    assert (tmp_path / "r" / "ledger.json").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "--label", "team", "--", "true"], "the label 'team' is not NAME=VALUE"),
        (["ingest", "r"], "no store is named; give it with --store, or set HEADWAY_STORE"),
        (["ingest", "r", "--store", "s", "--label", "a b=c"], "the label 'a b=c' is not NAME="),
        (["ingest", "--store", "s"], "the following arguments are required: RUN"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, words: list[str], why: str) -> None:
    done = call(tmp_path, *words)
    assert done.returncode == 2
    assert why in done.stderr and done.stderr.count("\n") == 1
