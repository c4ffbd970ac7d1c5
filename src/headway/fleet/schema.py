"""Tables of a fleet store, column by column. Times are UTC without zone, durations seconds."""

from __future__ import annotations

from typing import NamedTuple

from headway.errors import HeadwayError
from headway.ledger.model import FAILURE_OWNERS

SCHEMA = 2

# Types that Arrow, DuckDB, Spark and PostgreSQL have in common.
TYPES = ("string", "int64", "float64", "bool", "timestamp")


class RowsInvalid(HeadwayError, ValueError):
    """Rows that do not fit the tables of a store."""


class Column(NamedTuple):
    """A column; unless it is `required`, values may be null."""

    name: str
    type: str
    meaning: str
    required: bool = False


class Table(NamedTuple):
    """A table; `day` is the timestamp column that selects the partition of a row."""

    name: str
    day: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return tuple(column.name for column in self.columns)


_RUN = Column(
    "run_id", "string", "ID of the run: 12 letters and digits, the same at each ingest", True
)
_ATTEMPT = Column("attempt", "int64", "number of the attempt, from 0", True)
# Set by the store: the ID of the write. The larger one is newer.
VERSION = Column("version", "string", "ID of the write; the newest one counts", True)

# Dimensions of runs; each is a label of the run, or null.
LABELS = (
    Column("team", "string", "team that owns the run"),
    Column("model", "string", "model that is trained"),
    Column("project", "string", "project"),
    Column("cluster", "string", "cluster"),
    Column("host_type", "string", "machine type"),
    Column("accelerator", "string", "accelerator type"),
    Column("image", "string", "container image"),
    Column("code", "string", "code version; by default a digest of the job's scripts"),
    Column("config", "string", "configuration; by default a digest of the command's words"),
)

# As published, the number of failures counts infrastructure failures only.
FAILURE_COLUMNS = {
    owner: "failures" if owner == "infra" else f"failures_{owner}" for owner in FAILURE_OWNERS
}

RUNS = Table(
    "runs",
    "started_at",
    "one row per run",
    (
        _RUN,
        Column("run", "string", "name of the run", True),
        Column("job", "string", "name of the job: the same for every run of it"),
        *LABELS,
        Column("user", "string", "user who started the run"),
        Column("torch", "string", "torch version"),
        Column("python", "string", "Python version"),
        Column("headway", "string", "version of Headway that recorded the run"),
        Column("command", "string", "command line"),
        Column(
            "labels", "string", "all labels, including those without a column, as a JSON object"
        ),
        Column("started_at", "timestamp", "start", True),
        Column("ended_at", "timestamp", "end, or the time up to which it is known", True),
        Column("running", "bool", "whether it is still running", True),
        Column("outcome", "string", "outcome of the last attempt"),
        Column("exit_code", "int64", "exit code of the last launch"),
        Column("accelerators", "int64", "maximum over the attempts, counted as ranks", True),
        Column("attempts", "int64", "number of attempts", True),
        Column(
            "failures",
            "int64",
            "infrastructure failures; failures of all owners where the next three columns are null",
            True,
        ),
        Column("failures_user", "int64", "user failures; null if written with schema 1"),
        Column("failures_scheduler", "int64", "scheduler failures"),
        Column("failures_ambiguous", "int64", "failures with an ambiguous owner"),
        Column("steps", "int64", "steps on new data"),
        Column("wall_s", "float64", "wall time", True),
        Column("effective_s", "float64", "time that trained on new data", True),
        Column(
            "time_to_start_s",
            "float64",
            "time from allocation to the start of training; null: never trained",
        ),
        Column("queue_capacity_s", "float64", "time waiting for capacity, outside the wall time"),
        VERSION,
    ),
)

ATTEMPTS = Table(
    "attempts",
    "started_at",
    "one row per attempt",
    (
        _RUN,
        _ATTEMPT,
        Column("started_at", "timestamp", "start", True),
        Column("ended_at", "timestamp", "end, or the time up to which it is known", True),
        Column("outcome", "string", "completed, failed, preempted, stopped or running", True),
        Column("accelerators", "int64", "number of ranks", True),
        Column(
            "wall_s",
            "float64",
            "wall time, including the time since the previous attempt ended",
            True,
        ),
        Column("effective_s", "float64", "time that trained on new data", True),
        Column("lost_s", "float64", "time of training that was rolled back", True),
        Column(
            "time_to_recover_s",
            "float64",
            "Time to Recover of the interruption that it ended; null: none",
        ),
        Column("first_step", "int64", "first step"),
        Column("last_step", "int64", "last step"),
        Column("resumed_from", "int64", "step of the loaded checkpoint"),
        Column("resumed_by", "string", "level of the loaded checkpoint, memory or disk, if known"),
        VERSION,
    ),
)

HOURS = Table(
    "hours",
    "hour",
    "seconds of the run by bucket and hour",
    (
        _RUN,
        _ATTEMPT,
        Column("hour", "timestamp", "start of the hour", True),
        Column("leaf", "string", "bucket of the ledger, such as `train.effective`", True),
        Column("seconds", "float64", "seconds of the run's wall time", True),
        Column("accelerator_s", "float64", "seconds times the accelerators of the attempt", True),
        VERSION,
    ),
)

BUCKETS = Table(
    "buckets",
    "hour",
    "seconds of each rank by bucket and hour",
    (
        _RUN,
        _ATTEMPT,
        Column("rank", "int64", "rank", True),
        Column("host", "string", "host of the rank"),
        Column("hour", "timestamp", "start of the hour", True),
        Column("leaf", "string", "bucket of the ledger", True),
        Column("seconds", "float64", "seconds of the rank", True),
        VERSION,
    ),
)

FAILURES = Table(
    "failures",
    "at",
    "one row per failed or preempted attempt",
    (
        _RUN,
        _ATTEMPT,
        Column("at", "timestamp", "time of the failure", True),
        Column("category", "string", "category", True),
        Column("owner", "string", "infra, user, scheduler or ambiguous", True),
        Column("retry", "string", "retry class of the category", True),
        Column("root_rank", "int64", "rank where the failure began"),
        Column("host", "string", "host where the failure began"),
        Column("evidence", "string", "evidence for the category"),
        Column("confidence", "string", "confidence of the classification"),
        Column("fingerprint", "string", "equal for failures with the same cause"),
        Column("decision", "string", "what Headway did"),
        Column("accelerators", "int64", "accelerators of the attempt", True),
        Column("lost_s", "float64", "time of training that was rolled back", True),
        Column("time_to_recover_s", "float64", "time until training resumed; null: never"),
        VERSION,
    ),
)

CHECKPOINTS = Table(
    "checkpoints",
    "at",
    "one row per save",
    (
        _RUN,
        _ATTEMPT,
        Column("at", "timestamp", "start, or the first time that it was known", True),
        Column("step", "int64", "step", True),
        Column("level", "string", "level, memory or disk", True),
        Column(
            "blocked_s",
            "float64",
            "time that training was blocked, on the rank that was blocked longest",
        ),
        Column("slower_s", "float64", "total slowdown of the steps during the save"),
        Column("durable_s", "float64", "time until it could be restored; null: unknown"),
        Column("bytes", "int64", "size over all ranks; null: unknown"),
        Column("error", "string", "error; null: the save succeeded"),
        Column("accelerators", "int64", "accelerators of the attempt", True),
        VERSION,
    ),
)

COMPILES = Table(
    "compiles",
    "at",
    "one row per place, reason and kind of compile of an attempt",
    (
        _RUN,
        _ATTEMPT,
        Column("at", "timestamp", "start of the first compile", True),
        Column("place", "string", "location in the code", True),
        Column("reason", "string", "reason of a recompile; null: first compile"),
        Column("recompile", "bool", "whether it is a recompile", True),
        Column("cached", "bool", "whether a cache provided it", True),
        Column("ranks", "int64", "number of ranks that compiled it", True),
        Column("times", "int64", "number of compiles over all ranks", True),
        Column("seconds", "float64", "time on the rank that took longest", True),
        Column("accelerators", "int64", "accelerators of the attempt", True),
        VERSION,
    ),
)

NODES = Table(
    "nodes",
    "started_at",
    "one row per host of an attempt",
    (
        _RUN,
        _ATTEMPT,
        Column("host", "string", "name of the host", True),
        Column("started_at", "timestamp", "start of the attempt", True),
        Column("ended_at", "timestamp", "end of the attempt", True),
        Column("accelerators", "int64", "number of ranks on the host", True),
        Column("wall_s", "float64", "wall time of the attempt", True),
        Column("accelerator_s", "float64", "accelerator-seconds of its ranks", True),
        Column("effective_s", "float64", "accelerator-seconds that trained on new data", True),
        Column("failures", "int64", "number of failures that began on the host: 0 or 1", True),
        VERSION,
    ),
)

TABLES = {
    table.name: table
    for table in (RUNS, ATTEMPTS, HOURS, BUCKETS, FAILURES, CHECKPOINTS, COMPILES, NODES)
}
