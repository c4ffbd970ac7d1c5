"""Import Slurm accounting: `sacct -D --json`, or `sacct -D --parsable2 --format=...` with a header.

Without `-D` preempted and requeued attempts are missing, and Submit is that of the last one. Times
without a zone, as `--parsable2` writes them, are read as UTC: set TZ=UTC for sacct.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headway import slurm
from headway.errors import UsageError
from headway.fleet.importers.record import AttemptRecord, RunRecord, Span
from headway.fleet.importers.source import Source, parse_iso8601
from headway.ledger.model import Outcome

REQUIRED_COLUMNS = ("JobID", "State", "Submit", "Eligible", "Start", "End", "AllocTRES")
SACCT_COMMAND = (
    "TZ=UTC sacct -D --parsable2 -o JobID,JobName,User,Account,Cluster,State,ExitCode,"
    "Submit,Eligible,Start,End,Reason,AllocTRES,NodeList"
)
# Reasons of waiting for capacity; sacct keeps the last reason other than Priority and Resources.
CAPACITY = re.compile(
    r"None|Priority|Resources|QOS.*|Assoc.*|Max.*|.*Limit|Licenses|Reservation|BeginTime|Dependency"
)
STATES: dict[str, tuple[Outcome, str]] = {
    "COMPLETED": ("completed", ""),
    "PREEMPTED": ("preempted", "preemption"),
    "NODE_FAIL": ("failed", "node_failure"),
    "BOOT_FAIL": ("failed", "node_failure"),
    "TIMEOUT": ("failed", "time_limit"),
    "DEADLINE": ("failed", "time_limit"),
    "OUT_OF_MEMORY": ("failed", "host_oom"),
    "CANCELLED": ("stopped", ""),
    "REVOKED": ("stopped", ""),
    "FAILED": ("failed", "unknown"),
    "REQUEUED": ("failed", "unknown"),
}
# States of unfinished jobs; any other state is final.
ACTIVE_STATES = (
    *("PENDING", "CONFIGURING", "POWER_UP_NODE", "EXPEDITING", "RUNNING", "SUSPENDED", "STOPPED"),
    *("RESIZING", "SIGNALING", "COMPLETING", "STAGE_OUT"),
)


class JobRow(NamedTuple):
    """One attempt of a job."""

    job: str
    cluster: str
    name: str
    user: str
    account: str
    state: str
    reason: str
    code: int | None
    submit: float | None
    eligible: float | None
    start: float | None
    end: float | None
    gpus: int
    nodes: str
    steps: tuple[float, ...] = ()


def detect(source: Source) -> bool:
    """Whether it has the header of sacct, or is the JSON output of Slurm."""
    head = source.text[:4000]
    first = head.partition("\n")[0].split("|")
    return {"JobID", "State", "Submit"} <= set(first) or (
        head.lstrip().startswith("{")
        and '"meta"' in head
        and re.search('"[Ss]lurm"', head) is not None
    )


def read(sources: Sequence[Source]) -> Iterator[RunRecord]:
    """Yield a run per started job with accelerators; requeued attempts belong to the same run."""
    jobs: dict[tuple[str, str], dict[float | None, tuple[JobRow, float]]] = {}
    for source in sources:
        rows_ = _json(source) if source.text.lstrip().startswith("{") else _psv(source)
        for row in rows_:
            if row.start is not None and row.gpus:
                jobs.setdefault((row.cluster, row.job), {})[row.start] = (row, source.collected_at)
    for (cluster, job), by_start in jobs.items():
        attempts = sorted(by_start.values(), key=lambda entry: entry[0].start or 0.0)
        last = attempts[-1][0]
        yield RunRecord(
            key=f"slurm {cluster} {job}",
            run=f"{last.name or 'job'}-{job}",
            attempts=tuple(
                _attempt_record(row, collected_at, index)
                for index, (row, collected_at) in enumerate(attempts)
            ),
            job=last.name or None,
            labels=_labels(team=last.account, cluster=last.cluster),
            user=last.user or None,
            exit_code=last.code,
        )


def _attempt_record(row: JobRow, collected_at: float, index: int) -> AttemptRecord:
    start = row.start or 0.0
    outcome, category = _outcome(row)
    end = row.end if row.end is not None and outcome != "running" else max(collected_at, start)
    wait = max(start - row.eligible, 0.0) if row.eligible is not None else None
    is_capacity = wait is not None and CAPACITY.fullmatch(row.reason or "None") is not None
    spans = []
    # held before it becomes eligible
    if index and row.submit is not None and row.eligible is not None:
        spans.append(Span(row.submit, min(row.eligible, start), "scheduling"))
    if wait and row.eligible is not None and not is_capacity:
        spans.append(Span(row.eligible, start, "scheduling"))
    if row.steps:  # prolog, and booting of nodes
        spans.append(Span(start, min(row.steps), "hardware_setup"))
    return AttemptRecord(
        start=start,
        end=end,
        outcome=outcome,
        accelerators=row.gpus,
        spans=tuple(span for span in spans if span.end > span.start),
        hosts=tuple(slurm.expand_hosts(row.nodes)),
        queued=(wait if is_capacity else 0.0) if wait is not None else None,
        category=category or "unknown",
        evidence=f"Slurm state {row.state}",
    )


def _outcome(row: JobRow) -> tuple[Outcome, str]:
    """An unknown final state, such as one of a newer Slurm, is a failure."""
    state = row.state.partition(" ")[0]
    if state in STATES:
        return STATES[state]
    over = state not in ACTIVE_STATES and row.end is not None
    return ("failed", "unknown") if over else ("running", "")


def _psv(source: Source) -> Iterator[JobRow]:
    rows = list(csv.DictReader(source.text.splitlines(), delimiter="|", quoting=csv.QUOTE_NONE))
    missing = [name for name in REQUIRED_COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise UsageError(
            f"{source.name} has no column {', '.join(missing)}; create it with `{SACCT_COMMAND}`",
            code="record-column-missing",
            columns=missing,
        )
    steps: dict[tuple[str, str], list[float]] = {}
    jobs = []
    for row in rows:
        job, dot, step = row["JobID"].partition(".")
        if not dot:
            jobs.append(row)
        elif step != "extern" and (start := _parse_time(row["Start"])) is not None:
            steps.setdefault((row.get("Cluster") or "", job), []).append(start)
    for row in jobs:
        cluster = row.get("Cluster") or ""
        start, end = (_parse_time(row[name]) for name in ("Start", "End"))
        step_starts = steps.get((cluster, row["JobID"]), ())
        yield JobRow(
            job=row["JobID"],
            cluster=cluster,
            name=row.get("JobName") or "",
            user=row.get("User") or "",
            account=row.get("Account") or "",
            state=row["State"],
            reason=row.get("Reason") or "None",
            code=_code(row.get("ExitCode") or ""),
            submit=_parse_time(row["Submit"]),
            eligible=_parse_time(row["Eligible"]),
            start=start,
            end=end,
            gpus=slurm.count_gpus(slurm.parse_tres(row["AllocTRES"] or "")),
            nodes=row.get("NodeList") or "",
            steps=tuple(
                at for at in step_starts if start is not None and start <= at <= (end or at)
            ),
        )


def _parse_time(text: str) -> float | None:
    """`Unknown` and `None` mean that the event has not happened yet."""
    if text in ("", "Unknown", "None", "N/A"):
        return None
    return parse_iso8601(text)


def _code(text: str) -> int | None:
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return None
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)


def _json(source: Source) -> Iterator[JobRow]:
    documents = [document for document in source.objects() if "jobs" in document]
    if not documents:
        raise UsageError(
            f"{source.name} is incomplete: it has no list of jobs", code="record-incomplete"
        )
    for document in documents:
        yield from map(_job, document["jobs"])


def _job(job: dict[str, Any]) -> JobRow:
    times, state = job["time"], job["state"]
    current = state["current"]
    code = job["exit_code"]
    steps = [
        slurm.json_number(step["time"].get("start"))
        for step in job["steps"]
        if str(step["step"]["id"]).rpartition(".")[2] != "extern"
    ]
    return JobRow(
        job=str(job["job_id"]),
        cluster=job.get("cluster") or "",
        name=job.get("name") or "",
        user=job.get("user") or "",
        account=job.get("account") or "",
        state=current[0] if isinstance(current, list) else current,
        reason=state.get("reason") or "None",
        code=None
        if (number := slurm.json_number(code.get("return_code"))) is None
        else int(number),
        submit=slurm.json_number(times["submission"]) or None,
        eligible=slurm.json_number(times["eligible"]) or None,
        start=slurm.json_number(times["start"]) or None,
        end=slurm.json_number(times["end"]) or None,
        gpus=slurm.count_gpus(slurm.json_tres(job["tres"]["allocated"])),
        nodes=job.get("nodes") or "",
        steps=tuple(start for start in steps if start),
    )


def _labels(**labels: str) -> dict[str, str]:
    return {"reader": "slurm", **{name: value for name, value in labels.items() if value}}
