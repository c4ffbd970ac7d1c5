"""Tables of a fleet store, column by column. Times are UTC without zone, durations seconds."""

from __future__ import annotations

from typing import NamedTuple

from headway.errors import HeadwayError
from headway.ledger.model import FAILURE_OWNERS

SCHEMA = 2

# How a column is kept: the word of Arrow, DuckDB, Spark and PostgreSQL follows from it.
TYPES = ("string", "int64", "float64", "bool", "timestamp")


class RowsInvalid(HeadwayError, ValueError):
    """Rows that do not fit the tables of a store."""


class Column(NamedTuple):
    """One column; what is not `required` may be null."""

    name: str
    type: str
    meaning: str
    required: bool = False


class Table(NamedTuple):
    """One table; `day` is the column whose day names the partition that a row lies in."""

    name: str
    day: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all columns, in order."""
        return tuple(column.name for column in self.columns)


_RUN = Column("run_id", "string", "the run: 12 letters and digits, the same at each ingest", True)
_ATTEMPT = Column("attempt", "int64", "number of the attempt, from 0", True)
# The store writes it: the write that a row came with. Of two, the larger one is newer.
VERSION = Column("version", "string", "the write that it came with; the newest one counts", True)

# What runs can be told apart by; each is a label of the run, or null.
LABELS = (
    Column("team", "string", "who it belongs to"),
    Column("model", "string", "what is trained"),
    Column("project", "string", "what for"),
    Column("cluster", "string", "where it ran"),
    Column("host_type", "string", "kind of machine"),
    Column("accelerator", "string", "kind of accelerator"),
    Column("image", "string", "container image"),
    Column("code", "string", "version of the code; by default a digest of the job's scripts"),
    Column("config", "string", "its configuration; by default a digest of the command's words"),
)

# The number of failures is that of infra, as published; the others stand beside it.
FAILURE_COLUMNS = {
    owner: "failures" if owner == "infra" else f"failures_{owner}" for owner in FAILURE_OWNERS
}

RUNS = Table(
    "runs",
    "started_at",
    "one row for each run",
    (
        _RUN,
        Column("run", "string", "its name", True),
        Column("job", "string", "what the command trains: the same for every run of it"),
        *LABELS,
        Column("user", "string", "who started it"),
        Column("torch", "string", "version of torch"),
        Column("python", "string", "version of Python"),
        Column("headway", "string", "version of Headway that recorded it"),
        Column("command", "string", "as it was typed"),
        Column("labels", "string", "all labels, those without a column too: a JSON object"),
        Column("started_at", "timestamp", "when its clock started", True),
        Column("ended_at", "timestamp", "when it ended, or up to when it is known", True),
        Column("running", "bool", "whether it goes on", True),
        Column("outcome", "string", "of its last attempt"),
        Column("exit_code", "int64", "of its last launch"),
        Column("accelerators", "int64", "most that an attempt had: its ranks", True),
        Column("attempts", "int64", "how many", True),
        Column("failures", "int64", "of infra; of all owners where the next three are null", True),
        Column("failures_user", "int64", "of the user; null: written with schema 1"),
        Column("failures_scheduler", "int64", "of the scheduler"),
        Column("failures_ambiguous", "int64", "of which the owner is not known"),
        Column("steps", "int64", "on new data"),
        Column("wall_s", "float64", "its wall time", True),
        Column("effective_s", "float64", "of which it trained on new data", True),
        Column("time_to_start_s", "float64", "allocation to the first training; null: never"),
        Column("queue_capacity_s", "float64", "waited for capacity, beside the wall time"),
        VERSION,
    ),
)

ATTEMPTS = Table(
    "attempts",
    "started_at",
    "one row for each life of a run",
    (
        _RUN,
        _ATTEMPT,
        Column("started_at", "timestamp", "when it began", True),
        Column("ended_at", "timestamp", "when it ended, or up to when it is known", True),
        Column("outcome", "string", "completed, failed, preempted, stopped or running", True),
        Column("accelerators", "int64", "its ranks", True),
        Column("wall_s", "float64", "with the time since the attempt before it ended", True),
        Column("effective_s", "float64", "of which it trained on new data", True),
        Column("lost_s", "float64", "of which it trained, but was rolled back", True),
        Column("time_to_recover_s", "float64", "of the interruption that it ended; null: none"),
        Column("first_step", "int64", "first step that it made"),
        Column("last_step", "int64", "last step that it made"),
        Column("resumed_from", "int64", "the step of the checkpoint that it loaded"),
        Column("resumed_by", "string", "memory or disk, where that is known"),
        VERSION,
    ),
)

HOURS = Table(
    "hours",
    "hour",
    "the account of the run itself: where its seconds went, by hour",
    (
        _RUN,
        _ATTEMPT,
        Column("hour", "timestamp", "the hour in which they fall", True),
        Column("leaf", "string", "the leaf of the ledger: `train.effective`, ...", True),
        Column("seconds", "float64", "of the run's wall time", True),
        Column("accelerator_s", "float64", "the same times the accelerators of the attempt", True),
        VERSION,
    ),
)

BUCKETS = Table(
    "buckets",
    "hour",
    "the same account for each rank",
    (
        _RUN,
        _ATTEMPT,
        Column("rank", "int64", "the rank", True),
        Column("host", "string", "where it ran"),
        Column("hour", "timestamp", "the hour in which they fall", True),
        Column("leaf", "string", "the leaf of the ledger", True),
        Column("seconds", "float64", "of this rank", True),
        VERSION,
    ),
)

FAILURES = Table(
    "failures",
    "at",
    "one row for each attempt that ended before its time",
    (
        _RUN,
        _ATTEMPT,
        Column("at", "timestamp", "when", True),
        Column("category", "string", "what it was", True),
        Column("owner", "string", "infra, user, scheduler or ambiguous", True),
        Column("retry", "string", "what it asks for", True),
        Column("root_rank", "int64", "where it began"),
        Column("host", "string", "and on which node"),
        Column("evidence", "string", "why it is thought to be that"),
        Column("confidence", "string", "how sure that is"),
        Column("fingerprint", "string", "the same when the same thing happens again"),
        Column("decision", "string", "what was done about it"),
        Column("accelerators", "int64", "of the attempt", True),
        Column("lost_s", "float64", "training that was rolled back", True),
        Column("time_to_recover_s", "float64", "until it trained again; null: never"),
        VERSION,
    ),
)

CHECKPOINTS = Table(
    "checkpoints",
    "at",
    "one row for each save",
    (
        _RUN,
        _ATTEMPT,
        Column("at", "timestamp", "when it began, or was known of", True),
        Column("step", "int64", "at which step", True),
        Column("level", "string", "memory or disk", True),
        Column("blocked_s", "float64", "the training stood, on the rank where it stood longest"),
        Column("slower_s", "float64", "the steps meanwhile took longer by that, all together"),
        Column("durable_s", "float64", "until it could be restored; null: not known"),
        Column("bytes", "int64", "over all ranks; null: not known"),
        Column("error", "string", "why it failed; null: it did not"),
        Column("accelerators", "int64", "of the attempt", True),
        VERSION,
    ),
)

COMPILES = Table(
    "compiles",
    "at",
    "one row for each place, reason and kind of compile of an attempt",
    (
        _RUN,
        _ATTEMPT,
        Column("at", "timestamp", "the first of them", True),
        Column("place", "string", "where in the code", True),
        Column("reason", "string", "why it was compiled again; null: it was the first time"),
        Column("recompile", "bool", "whether it was compiled before", True),
        Column("cached", "bool", "whether a cache had it", True),
        Column("ranks", "int64", "that compiled it", True),
        Column("times", "int64", "over all ranks", True),
        Column("seconds", "float64", "on the rank that took longest", True),
        Column("accelerators", "int64", "of the attempt", True),
        VERSION,
    ),
)

NODES = Table(
    "nodes",
    "started_at",
    "one row for each host of an attempt",
    (
        _RUN,
        _ATTEMPT,
        Column("host", "string", "its name", True),
        Column("started_at", "timestamp", "when the attempt began", True),
        Column("ended_at", "timestamp", "when it ended", True),
        Column("accelerators", "int64", "ranks that ran on it", True),
        Column("wall_s", "float64", "of the attempt", True),
        Column("accelerator_s", "float64", "of its ranks", True),
        Column("effective_s", "float64", "of which they trained on new data", True),
        Column("failures", "int64", "of which it was the root: 0 or 1", True),
        VERSION,
    ),
)

TABLES = {
    table.name: table
    for table in (RUNS, ATTEMPTS, HOURS, BUCKETS, FAILURES, CHECKPOINTS, COMPILES, NODES)
}
