"""What Slurm prints, on files that a real one wrote."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headway.launch.failures import classify, read_log, scheduler
from tests.support import Golden

REAL = Path(__file__).parent / "slurm"


def test_sacct_tells_why_each_job_ended(golden: Golden) -> None:
    facts = scheduler.from_sacct((REAL / "sacct.psv").read_text())
    assert [(fact.source, classify([fact]).category, fact.node) for fact in facts] == [
        ("exit", "unknown", "vm"),
        ("scheduler", "user_cancel", None),
        ("scheduler", "time_limit", "vm"),
        ("scheduler", "user_cancel", None),
        ("scheduler", "node_failure", "vm"),
    ]
    assert facts[0].code == 3
    golden("sacct.txt", "".join(f"{fact.text}\n" for fact in facts))


@pytest.mark.parametrize(
    ("job", "category"),
    [("7", "time_limit"), ("8", "user_cancel"), ("9", "node_failure"), ("3", "unknown")],
)
def test_one_job(job: str, category: str) -> None:
    text = (REAL / "sacct_D.psv").read_text()
    assert classify(scheduler.from_sacct(text, job)).category == category


def test_the_last_life_of_a_job_that_was_preempted() -> None:
    text = (REAL / "sacct_D.psv").read_text()
    first = "\n".join(text.splitlines()[:3])
    assert classify(scheduler.from_sacct(first, "1")).category == "preemption"
    assert scheduler.from_sacct(text, "1") == []


def test_scontrol() -> None:
    facts = scheduler.from_scontrol((REAL / "scontrol_job9.txt").read_text())
    assert [(fact.source, classify([fact]).category) for fact in facts] == [
        ("scheduler", "user_cancel")
    ]
    text = "JobId=4 JobState={0} PreemptTime={1} RunTime={2} TimeLimit=1-00:00:00 ExitCode=0:0"
    running = text.format("RUNNING", "None", "00:10:00")
    assert scheduler.from_scontrol(running) == []
    taken = text.format("RUNNING", "2026-11-15T08:54:05", "00:10:00")
    assert classify(scheduler.from_scontrol(taken)).category == "preemption"
    over = text.format("COMPLETING", "None", "1-00:00:05")
    assert classify(scheduler.from_scontrol(over)).category == "time_limit"


def test_what_a_preempted_job_itself_wrote() -> None:
    text = (REAL / "job_signals.txt").read_bytes()
    assert classify(read_log(io.BytesIO(text))).category == "preemption"


def fake(folder: Path, script: str) -> dict[str, str]:
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"SLURM_JOB_ID": "9", "PATH": f"{folder}:/usr/bin:/bin"}


def test_asking(tmp_path: Path) -> None:
    env = fake(tmp_path, 'echo "JobId=$3 JobState=NODE_FAIL"')
    (fact,) = scheduler.ask_slurm(env)
    assert "NODE_FAIL" in fact.text and classify([fact]).category == "node_failure"
    assert scheduler.ask_slurm(fake(tmp_path, "exit 1")) == []
    assert scheduler.ask_slurm({"PATH": str(tmp_path)}) == []
    assert scheduler.ask_slurm({"SLURM_JOB_ID": "9", "PATH": str(tmp_path / "no")}) == []


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SCONTROL_LIMIT_S", 0.2)
    assert scheduler.ask_slurm(fake(tmp_path, "exec sleep 60")) == []
