"""A site's own year: `sacct -D -P -X -a -o JobID,Account,Submit,ElapsedRaw,AllocTRES,ReqTRES`.

Without `-D` a preempted attempt is gone, and with it the submission. The work of a job is all the
time that its attempts ran: what was lost and recovered in it cannot be told apart.
"""

from __future__ import annotations

import csv
from pathlib import Path

from headway import slurm
from headway.errors import UsageError
from headway.schedule.simulate.job import JobSpec
from headway.schedule.traces.trace import Trace, epoch_seconds, make_trace

SACCT_COLUMNS = ("JobID", "Account", "Submit", "ElapsedRaw", "AllocTRES")


def read_sacct(path: Path) -> Trace:
    """Jobs with accelerators that ran at all; accounts are the tenants."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="file-unreadable") from error
    missing = [name for name in SACCT_COLUMNS if not rows or name not in rows[0]]
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
    jobs = [job for lives in attempts.values() if (job := _sacct_job(path, lives)) is not None]
    return make_trace(f"sacct:{path.name}", jobs)


def _sacct_job(path: Path, lives: list[dict[str, str]]) -> JobSpec | None:
    gpus = max(_sacct_gpus(life) for life in lives)
    try:
        work = sum(float(life["ElapsedRaw"] or 0) for life in lives)
        if not gpus or not work:
            return None
        submit = min(epoch_seconds(life["Submit"]) for life in lives)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path} has a row that is no job: {error}", code="trace-row-invalid"
        ) from error
    return JobSpec(submit=submit, work=work, gpus=gpus, tenant=lives[0]["Account"] or "none")


def _sacct_gpus(life: dict[str, str]) -> int:
    return slurm.count_gpus(slurm.parse_tres(life.get("AllocTRES") or life.get("ReqTRES") or ""))
