"""A site's own year: `sacct -D -P -X -a -o JobID,Account,Submit,ElapsedRaw,AllocTRES,ReqTRES`.

Without `-D` a preempted attempt is gone, and with it the submission. The work of a job is all the
time that its attempts ran: what was lost and recovered in it cannot be told apart.
"""

from __future__ import annotations

import csv
from pathlib import Path

from headway import slurm
from headway.errors import UsageError
from headway.schedule.simulate.job import Spec
from headway.schedule.traces.trace import Trace, clock, make

NEEDED = ("JobID", "Account", "Submit", "ElapsedRaw", "AllocTRES")


def read(path: Path) -> Trace:
    """Jobs with accelerators that ran at all; accounts are the tenants."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="file-unreadable") from error
    missing = [name for name in NEEDED if not rows or name not in rows[0]]
    if missing:
        raise UsageError(
            f"{path} has no column {', '.join(missing)}; write it by "
            "`sacct -D -P -X -a -o JobID,Account,Submit,ElapsedRaw,AllocTRES,ReqTRES`",
            code="trace-column-missing",
            columns=missing,
        )
    attempts: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if "." not in row["JobID"]:  # steps have one
            attempts.setdefault(row["JobID"], []).append(row)
    jobs = [job for lives in attempts.values() if (job := _job(path, lives)) is not None]
    return make(f"sacct:{path.name}", jobs)


def _job(path: Path, lives: list[dict[str, str]]) -> Spec | None:
    gpus = max(_gpus(life) for life in lives)
    try:
        work = sum(float(life["ElapsedRaw"] or 0) for life in lives)
        if not gpus or not work:
            return None
        submit = min(clock(life["Submit"]) for life in lives)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path} has a row that is no job: {error}", code="trace-row-invalid"
        ) from error
    return Spec(submit=submit, work=work, gpus=gpus, tenant=lives[0]["Account"] or "none")


def _gpus(life: dict[str, str]) -> int:
    return slurm.gpus(slurm.tres(life.get("AllocTRES") or life.get("ReqTRES") or ""))
