"""From a job to the store, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import build_query
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query
from tests.support import BIN, HEADWAY, codes, quiet_env

pytestmark = pytest.mark.timeout(300)
PYTHON = str(BIN / "python")
# Makes steps without torch, and is killed once.
JOB = """
import headway, os, signal, time
for step in range(30):
    time.sleep(0.01)
    headway.step()
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


def query(folder: Path, name: str, *by: str) -> list[dict[str, object]]:
    """In this process: starting one for every question takes longer than the answers."""
    rows = run_query(Store(str(folder / "store")), build_query(name, Filter(by))).rows
    result: list[dict[str, object]] = rows.to_pylist()
    return result


def test_a_run_and_its_restart_are_in_the_store(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    words = ["--no-report", "--restarts", "1", "--label", "team=ads,model=dlrm,shift=night"]
    done = call(tmp_path, "run", "-o", "r", *words, "--store", "store", "--", PYTHON, "job.py")
    assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "r" / "ledger.json").read_text())
    (row,) = query(tmp_path, "ett", "team", "model", "job")
    assert (row["team"], row["model"], row["job"], row["jobs"]) == ("ads", "dlrm", "job", 1)
    assert row["ett_percent"] == pytest.approx(ledger["ett_percent"])
    assert row["accelerator_hours"] == pytest.approx(ledger["wall_s"] / 3600)
    (recovered,) = query(tmp_path, "ttr")
    assert recovered["interruptions"] == 1
    assert recovered["ttr_s"] == pytest.approx(ledger["time_to_recover_s"][0])
    (failed,) = query(tmp_path, "failures", "host")
    # Nobody can tell who sent a SIGKILL, so its owner is ambiguous.
    assert (failed["failures"], failed["failures_ambiguous"]) == (0, 1)
    assert failed["host"] == os.uname().nodename
    labels = json.loads((tmp_path / "r" / "run.json").read_text())["labels"]
    assert labels["shift"] == "night" and labels["code"] and labels["config"]

    done = call(tmp_path, "ingest", "r", "none", "job.py", "r", "--store", "store")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 2  # the run, each time
    assert codes(done.stderr) == ["run-not-found", "record-not-recognized"]
    assert query(tmp_path, "ett", "team", "model", "job") == [row]

    done = call(tmp_path, "fleet", "compact", "--store", "store")
    assert done.returncode == 0, done.stderr
    assert len(Store(str(tmp_path / "store")).read_manifest().compactions) == 1
    done = call(tmp_path, "fleet", "ett", "--by", "team,model,job", "--json", "--store", "store")
    assert done.returncode == 0 and json.loads(done.stdout) == [row]
    assert query(tmp_path, "ett", "team", "model", "job") == [row]


def test_a_store_that_cannot_be_written_costs_the_job_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    done = call(
        tmp_path, "run", "-o", "r", "--no-report", "--store", "store", "--", "sh", "-c", "exit 7"
    )
    assert done.returncode == 7
    (line,) = done.stderr.splitlines()[2:]
    assert "[not-a-store]" in line and "headway ingest r --store store" in line
    assert (tmp_path / "r" / "ledger.json").exists()
