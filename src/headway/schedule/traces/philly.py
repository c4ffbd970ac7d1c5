"""The trace of Microsoft's Philly cluster, 2017: 82,247 jobs of 15 tenants; see data/NOTICE.md."""

from __future__ import annotations

import csv
import gzip
from datetime import datetime, timedelta
from pathlib import Path

from headway.errors import UsageError
from headway.schedule.simulate.job import JobSpec
from headway.schedule.traces.trace import Trace, epoch_seconds, make_trace

PHILLY_FILE = Path(__file__).parent / "data" / "philly_jobs.csv.gz"
MAX_DAYS = 36_500


def read_philly(path: Path = PHILLY_FILE, *, begin: str = "", days: float = 0.0) -> Trace:
    """All of it, or the jobs submitted in so many days from a date on, or from the first one."""
    if not 0.0 <= days < MAX_DAYS:
        raise UsageError(
            f"--days is {days:g}; give one above 0 and below {MAX_DAYS:,}",
            code="value-out-of-range",
            option="--days",
        )
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open() as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the trace {path}: {error}", code="file-unreadable"
        ) from error
    if not rows or rows[0] != ["timestamp", "duration", "num_gpus", "gpu_time", "cluster"]:
        raise UsageError(
            f"{path} is no trace of Philly: its first line is not the one expected",
            code="trace-invalid",
        )
    first = min((row[0] for row in rows[1:] if row), default="")
    since, until = _philly_window(begin or (first if days else ""), days)
    chosen = [row for row in rows[1:] if row and since <= row[0] < until]
    try:
        jobs = [_philly_job(row) for row in chosen]
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"{path} has a row that is no job: {error}", code="trace-row-invalid"
        ) from error
    trace = make_trace("philly", jobs)
    return Trace(trace.name, trace.jobs, days) if days else trace


def _philly_job(row: list[str]) -> JobSpec:
    return JobSpec(
        submit=epoch_seconds(row[0]),
        work=float(row[1]),
        gpus=int(row[2]),
        tenant=row[4],
    )


def _philly_window(begin: str, days: float) -> tuple[str, str]:
    """As text, which sorts as the dates do."""
    if not begin:
        return "", "9"
    try:
        first = datetime.fromisoformat(begin)
    except ValueError:
        raise UsageError(
            f"{begin!r} is no date; write it like 2017-10-10", code="date-invalid"
        ) from None
    last = str(first + timedelta(days=days)) if days else "9"
    return str(first), last
