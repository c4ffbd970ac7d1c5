"""What Slurm reports about the job that this process is part of, from `scontrol show job`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from headway.launch.failures.model import Fact

SCONTROL_LIMIT_S = 2.0  # limit for scontrol
# States that say why a job ended; FAILED does not.
CAUSE_STATES = frozenset(
    {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "DEADLINE", "CANCELLED", "OUT_OF_MEMORY"}
)
_FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(\S*)")
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def ask_slurm(env: Mapping[str, str] = os.environ) -> list[Fact]:
    """What Slurm reports about the job of this process; empty outside of Slurm."""
    job, scontrol = env.get("SLURM_JOB_ID"), shutil.which("scontrol", path=env.get("PATH"))
    if not job or scontrol is None:
        return []
    command = [scontrol, "show", "job", job]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=SCONTROL_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return from_scontrol(completed.stdout) if completed.returncode == 0 else []


def from_scontrol(text: str) -> list[Fact]:
    """The facts of one job as `scontrol show job` prints it."""
    fields = dict(_FIELD.findall(text))
    state, job = fields.get("JobState", ""), fields.get("JobId", "?")
    if fields.get("PreemptTime", "None") not in ("None", "Unknown", "N/A"):
        state = "PREEMPTED"
    elif state in ("RUNNING", "COMPLETING") and _time_is_up(fields):
        state = "TIMEOUT"
    return _facts(job, state, fields.get("ExitCode", ""), fields.get("NodeList", ""))


def _facts(job: str, state: str, code: str, node: str) -> list[Fact]:
    node_name = node if node and not node.startswith(("(null)", "None")) else None
    if state in CAUSE_STATES:
        text = f"Slurm job {job} ended as {state}"
        return [Fact(source="scheduler", text=text, node=node_name)]
    if state == "FAILED":
        status, _, number = code.partition(":")
        exit_code = -int(number) if number.isdecimal() and int(number) else int(status or 0)
        text = f"Slurm job {job} ended as FAILED, exit code {code}"
        return [Fact(source="exit", text=text, code=exit_code, node=node_name)]
    return []


def _time_is_up(fields: Mapping[str, str]) -> bool:
    """Whether the time limit of the job has been reached."""
    run, limit = _seconds(fields.get("RunTime", "")), _seconds(fields.get("TimeLimit", ""))
    return run is not None and limit is not None and run >= limit


def _seconds(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
