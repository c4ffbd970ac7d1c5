"""The output of Slurm, from files of a real one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headway.launch.failures import classify, read_log, slurm

REAL = Path(__file__).parent / "slurm"


def test_scontrol() -> None:
    facts = slurm.from_scontrol((REAL / "scontrol_job9.txt").read_text())
    assert [(fact.source, classify([fact]).category) for fact in facts] == [
        ("scheduler", "user_cancel")
    ]
    text = "JobId=4 JobState={0} PreemptTime={1} RunTime={2} TimeLimit=1-00:00:00 ExitCode=0:0"
    running = text.format("RUNNING", "None", "00:10:00")
    assert slurm.from_scontrol(running) == []
    taken = text.format("RUNNING", "2026-11-15T08:54:05", "00:10:00")
    assert classify(slurm.from_scontrol(taken)).category == "preemption"
    over = text.format("COMPLETING", "None", "1-00:00:05")
    assert classify(slurm.from_scontrol(over)).category == "time_limit"


@pytest.mark.parametrize(
    ("fields", "source", "category", "code", "node"),
    [
        ("JobState=FAILED ExitCode=3:0 NodeList=vm", "exit", "unknown", 3, "vm"),
        ("JobState=FAILED ExitCode=0:9 NodeList=(null)", "exit", "host_oom", -9, None),
        ("JobState=TIMEOUT ExitCode=0:0 NodeList=vm", "scheduler", "time_limit", None, "vm"),
        ("JobState=CANCELLED ExitCode=0:0 NodeList=None", "scheduler", "user_cancel", None, None),
        ("JobState=NODE_FAIL ExitCode=0:0 NodeList=vm", "scheduler", "node_failure", None, "vm"),
        ("JobState=PREEMPTED ExitCode=0:15 NodeList=vm", "scheduler", "preemption", None, "vm"),
    ],
)
def test_each_state(
    fields: str, source: str, category: str, code: int | None, node: str | None
) -> None:
    (fact,) = slurm.from_scontrol(f"JobId=3 {fields}")
    assert (fact.source, classify([fact]).category) == (source, category)
    assert (fact.code, fact.node) == (code, node)


def test_a_state_that_tells_nothing() -> None:
    assert slurm.from_scontrol("JobId=3 JobState=COMPLETED ExitCode=0:0 NodeList=vm") == []


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
    (fact,) = slurm.ask_slurm(env)
    assert "NODE_FAIL" in fact.text and classify([fact]).category == "node_failure"
    assert slurm.ask_slurm(fake(tmp_path, "exit 1")) == []
    assert slurm.ask_slurm({"PATH": str(tmp_path)}) == []
    assert slurm.ask_slurm({"SLURM_JOB_ID": "9", "PATH": str(tmp_path / "no")}) == []


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SCONTROL_LIMIT_S", 0.2)
    assert slurm.ask_slurm(fake(tmp_path, "exec sleep 60")) == []
