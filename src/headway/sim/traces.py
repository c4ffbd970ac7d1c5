"""Job traces: Philly, a site's own `sacct` output, and synthetic jobs.

Philly is the trace of Microsoft's cluster of 2017, 82,247 jobs of 15 tenants; see data/NOTICE.md.

A site's own trace is written by
`sacct -D -P -X -a -o JobID,Account,Submit,ElapsedRaw,AllocTRES,ReqTRES`. Without `-D` a preempted
attempt is missing, and with it the submission time. The work of a job is the total run time of its
attempts: lost and recovery time in it cannot be separated.

Synthetic jobs arrive at random; most need one accelerator, with a tail of gangs, durations are
lognormal and tenants have unequal shares.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headway import slurm
from headway.errors import UsageError
from headway.schedule.model import JobSpec
from headway.schedule.quotas import DAY


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of submission; the trace starts at second 0."""

    name: str
    jobs: tuple[JobSpec, ...]
    days: float

    @property
    def gpu_hours(self) -> float:
        """Accelerator-hours of all jobs."""
        return sum(job.work * job.gpus for job in self.jobs) / 3600

    def tenants(self) -> dict[str, float]:
        """Accelerator-hours by tenant, sorted by name."""
        hours: dict[str, float] = {}
        for job in self.jobs:
            hours[job.tenant] = hours.get(job.tenant, 0.0) + job.work * job.gpus / 3600
        return dict(sorted(hours.items()))

    def shifted(self, seed: int) -> Trace:
        """Shift each tenant's jobs by a random number of whole days, cyclically: a different month.

        Weekdays of tenants no longer agree; the order of each tenant's jobs and their hours of day
        are kept.
        """
        span = int(self.days)
        if span < 2:
            raise UsageError(
                f"a trace of {self.days:.1f} days cannot be shifted; use a longer one",
                code="trace-too-short",
            )
        random_ = random.Random(seed)
        offset = {name: random_.randrange(span) * DAY for name in self.tenants()}
        moved = (
            replace(job, submit=(job.submit + offset[job.tenant]) % (span * DAY))
            for job in self.jobs
        )
        return Trace(self.name, by_submission(moved), self.days)


def by_submission(jobs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """Sort by submission; jobs submitted at the same time keep their order."""
    return tuple(sorted(jobs, key=lambda job: job.submit))


def epoch_seconds(text: str) -> float:
    """Parse a date and time without a zone as UTC, without gaps or repeated hours."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def make_trace(name: str, jobs: Sequence[JobSpec]) -> Trace:
    """A trace of jobs in any order, on any clock."""
    if not jobs:
        raise UsageError(
            f"the trace {name} has no job with accelerators; give another trace",
            code="trace-empty",
        )
    first = min(job.submit for job in jobs)
    ordered = by_submission(replace(job, submit=job.submit - first) for job in jobs)
    return Trace(name, ordered, max(ordered[-1].submit / DAY, 1.0))


PHILLY_FILE = Path(__file__).parent / "data" / "philly_jobs.csv.gz"
MAX_DAYS = 36_500


def read_philly(path: Path = PHILLY_FILE, *, begin: str = "", days: float = 0.0) -> Trace:
    """The whole trace, or the jobs submitted within `days` from `begin` or from the first job."""
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
            f"{path} is not a Philly trace: unexpected header",
            code="trace-invalid",
        )
    first = min((row[0] for row in rows[1:] if row), default="")
    since, until = _philly_window(begin or (first if days else ""), days)
    selected = [row for row in rows[1:] if row and since <= row[0] < until]
    try:
        jobs = [_philly_job(row) for row in selected]
    except (ValueError, IndexError) as error:
        raise UsageError(f"{path} has an invalid row: {error}", code="trace-row-invalid") from error
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
    """The window as text, which sorts like the dates."""
    if not begin:
        return "", "9"
    try:
        first = datetime.fromisoformat(begin)
    except ValueError:
        raise UsageError(
            f"{begin!r} is not a date; use the form 2017-10-10", code="date-invalid"
        ) from None
    last = str(first + timedelta(days=days)) if days else "9"
    return str(first), last


SACCT_COLUMNS = ("JobID", "Account", "Submit", "ElapsedRaw", "AllocTRES")


def read_sacct(path: Path) -> Trace:
    """The jobs with accelerators that have run; accounts are tenants."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="file-unreadable") from error
    missing = [name for name in SACCT_COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise UsageError(
            f"{path} has no column {', '.join(missing)}; create it with "
            "`sacct -D -P -X -a -o JobID,Account,Submit,ElapsedRaw,AllocTRES,ReqTRES`",
            code="trace-column-missing",
            columns=missing,
        )
    attempts: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if "." not in row["JobID"]:  # IDs of steps contain a dot
            attempts.setdefault(row["JobID"], []).append(row)
    jobs = [
        job
        for attempt_rows in attempts.values()
        if (job := _sacct_job(path, attempt_rows)) is not None
    ]
    return make_trace(f"sacct:{path.name}", jobs)


def _sacct_job(path: Path, rows: list[dict[str, str]]) -> JobSpec | None:
    gpus = max(_sacct_gpus(row) for row in rows)
    try:
        work = sum(float(row["ElapsedRaw"] or 0) for row in rows)
        if not gpus or not work:
            return None
        submit = min(epoch_seconds(row["Submit"]) for row in rows)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} has an invalid row: {error}", code="trace-row-invalid") from error
    return JobSpec(submit=submit, work=work, gpus=gpus, tenant=rows[0]["Account"] or "none")


def _sacct_gpus(row: dict[str, str]) -> int:
    return slurm.count_gpus(slurm.parse_tres(row.get("AllocTRES") or row.get("ReqTRES") or ""))


SYNTHETIC_SIZES = (1, 2, 4, 8, 16, 32)
SYNTHETIC_WEIGHTS = (64, 12, 10, 10, 3, 1)
MEDIAN_DURATION_S, DURATION_SIGMA = (
    1200.0,
    1.6,
)  # of durations: seconds, and the standard deviation of their logarithm
SYNTHETIC_TENANTS = 10


def make_synthetic(jobs: int, gpus: int, *, load: float = 0.9, seed: int = 0) -> Trace:
    """Random jobs that use a mean share `load` of the accelerators."""
    if jobs < 1:
        raise UsageError(
            f"a synthetic trace needs at least 1 job, not {jobs}",
            code="value-out-of-range",
            field="jobs",
        )
    if not load > 0:
        raise UsageError(
            f"load must be above 0, not {load}", code="value-out-of-range", field="load"
        )
    random_ = random.Random(seed)
    names = [f"t{number}" for number in range(SYNTHETIC_TENANTS)]
    shares = [1.0 / (number + 1) for number in range(SYNTHETIC_TENANTS)]
    sizes = random_.choices(
        [size for size in SYNTHETIC_SIZES if size <= gpus],
        SYNTHETIC_WEIGHTS[: _sizes_that_fit(gpus)],
        k=jobs,
    )
    works = [MEDIAN_DURATION_S * random_.lognormvariate(0.0, DURATION_SIGMA) for _ in range(jobs)]
    tenants = random_.choices(names, shares, k=jobs)
    span = sum(size * work for size, work in zip(sizes, works, strict=True)) / (load * gpus)
    submits = sorted(random_.random() * span for _ in range(jobs))
    specs = tuple(map(JobSpec, submits, works, sizes, tenants))
    return Trace(f"synthetic:{jobs}", specs, max(span / DAY, 1.0))


def _sizes_that_fit(gpus: int) -> int:
    return sum(size <= gpus for size in SYNTHETIC_SIZES)


def read_trace(
    text: str, *, gpus: int, begin: str = "", days: float = 0.0, load: float = 0.9
) -> Trace:
    """Read `philly`, `philly:PATH` or `sacct:PATH`, or create `synthetic:JOBS`."""
    kind, _, rest = text.partition(":")
    if kind != "philly" and (begin or days):
        raise UsageError(
            f"--from and --days are only for the trace philly, not for {text}",
            code="option-not-allowed",
        )
    if kind == "philly":
        return read_philly(Path(rest) if rest else PHILLY_FILE, begin=begin, days=days)
    if kind == "sacct" and rest:
        return read_sacct(Path(rest))
    if kind == "synthetic" and rest.isdecimal():
        return make_synthetic(int(rest), gpus, load=load)
    raise UsageError(
        f"unknown trace {text!r}; give philly, philly:PATH, sacct:PATH or synthetic:JOBS",
        code="trace-unknown",
    )
