"""Slurm's accounting: `sacct -D --json`, or `sacct -D --parsable2 --format=...` with a head line.

Without `-D` a preempted or requeued attempt is gone, and Submit is that of the last one. Times
without a zone, as `--parsable2` has them, are taken as UTC: set TZ=UTC for sacct.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headway import slurm
from headway.errors import UsageError
from headway.fleet.readers.record import Life, Record, Span
from headway.fleet.readers.source import Source, instant
from headway.ledger.model import Outcome

NEEDED = ("JobID", "State", "Submit", "Eligible", "Start", "End", "AllocTRES")
TYPE = (
    "TZ=UTC sacct -D --parsable2 -o JobID,JobName,User,Account,Cluster,State,ExitCode,"
    "Submit,Eligible,Start,End,Reason,AllocTRES,NodeList"
)
# Why a job waited; sacct keeps the last reason that was neither Priority nor Resources.
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
# Of a job that is not over; any other state is an end.
ALIVE = (
    *("PENDING", "CONFIGURING", "POWER_UP_NODE", "EXPEDITING", "RUNNING", "SUSPENDED", "STOPPED"),
    *("RESIZING", "SIGNALING", "COMPLETING", "STAGE_OUT"),
)


class Row(NamedTuple):
    """One attempt of a job, or the start of a step of it."""

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


def recognises(source: Source) -> bool:
    """A head line of sacct, or the JSON of its plugin."""
    head = source.text[:4000]
    first = head.partition("\n")[0].split("|")
    return {"JobID", "State", "Submit"} <= set(first) or (
        head.lstrip().startswith("{")
        and '"meta"' in head
        and re.search('"[Ss]lurm"', head) is not None
    )


def read(sources: Sequence[Source]) -> Iterator[Record]:
    """One run for each job with accelerators that ran at all; requeued attempts are its lives."""
    jobs: dict[tuple[str, str], dict[float | None, tuple[Row, float]]] = {}
    for source in sources:
        found = _json(source) if source.text.lstrip().startswith("{") else _psv(source)
        for row in found:
            if row.start is not None and row.gpus:
                jobs.setdefault((row.cluster, row.job), {})[row.start] = (row, source.taken)
    for (cluster, job), rows in jobs.items():
        lives = sorted(rows.values(), key=lambda one: one[0].start or 0.0)
        last = lives[-1][0]
        yield Record(
            key=f"slurm {cluster} {job}",
            run=f"{last.name or 'job'}-{job}",
            lives=tuple(_life(row, taken, index) for index, (row, taken) in enumerate(lives)),
            job=last.name or None,
            labels=_labels(team=last.account, cluster=last.cluster),
            user=last.user or None,
            exit_code=last.code,
        )


def _life(row: Row, taken: float, index: int) -> Life:
    start = row.start or 0.0
    outcome, category = _outcome(row)
    end = row.end if row.end is not None and outcome != "running" else max(taken, start)
    waited = max(start - row.eligible, 0.0) if row.eligible is not None else None
    capacity = waited is not None and CAPACITY.fullmatch(row.reason or "None") is not None
    spans = []
    if index and row.submit is not None and row.eligible is not None:  # held before it may start
        spans.append(Span(row.submit, min(row.eligible, start), "scheduling"))
    if waited and row.eligible is not None and not capacity:
        spans.append(Span(row.eligible, start, "scheduling"))
    if row.steps:  # the prolog, and nodes that are booted for it
        spans.append(Span(start, min(row.steps), "hardware_setup"))
    return Life(
        start=start,
        end=end,
        outcome=outcome,
        accelerators=row.gpus,
        spans=tuple(span for span in spans if span.end > span.start),
        hosts=tuple(slurm.hosts(row.nodes)),
        queued=(waited if capacity else 0.0) if waited is not None else None,
        category=category or "unknown",
        evidence=f"Slurm says {row.state}",
    )


def _outcome(row: Row) -> tuple[Outcome, str]:
    """A state that is not known here, such as one of a newer Slurm, is a failure if it is over."""
    state = row.state.partition(" ")[0]
    if state in STATES:
        return STATES[state]
    over = state not in ALIVE and row.end is not None
    return ("failed", "unknown") if over else ("running", "")


def _psv(source: Source) -> Iterator[Row]:
    rows = list(csv.DictReader(source.text.splitlines(), delimiter="|", quoting=csv.QUOTE_NONE))
    missing = [name for name in NEEDED if not rows or name not in rows[0]]
    if missing:
        raise UsageError(
            f"{source.name} has no column {', '.join(missing)}; write it by `{TYPE}`",
            code="record-column-missing",
            columns=missing,
        )
    steps: dict[tuple[str, str], list[float]] = {}
    jobs = []
    for row in rows:
        job, dot, step = row["JobID"].partition(".")
        if not dot:
            jobs.append(row)
        elif step != "extern" and (start := _instant(row["Start"])) is not None:
            steps.setdefault((row.get("Cluster") or "", job), []).append(start)
    for row in jobs:
        cluster = row.get("Cluster") or ""
        start, end = (_instant(row[name]) for name in ("Start", "End"))
        within = steps.get((cluster, row["JobID"]), ())
        yield Row(
            job=row["JobID"],
            cluster=cluster,
            name=row.get("JobName") or "",
            user=row.get("User") or "",
            account=row.get("Account") or "",
            state=row["State"],
            reason=row.get("Reason") or "None",
            code=_code(row.get("ExitCode") or ""),
            submit=_instant(row["Submit"]),
            eligible=_instant(row["Eligible"]),
            start=start,
            end=end,
            gpus=slurm.gpus(slurm.tres(row["AllocTRES"] or "")),
            nodes=row.get("NodeList") or "",
            steps=tuple(at for at in within if start is not None and start <= at <= (end or at)),
        )


def _instant(text: str) -> float | None:
    """`Unknown` and `None` stand where nothing has happened yet."""
    if text in ("", "Unknown", "None", "N/A"):
        return None
    return instant(text)


def _code(text: str) -> int | None:
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return None
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)


def _json(source: Source) -> Iterator[Row]:
    documents = [told for told in source.objects() if "jobs" in told]
    if not documents:
        raise UsageError(
            f"{source.name} is not whole: it has no list of jobs", code="record-incomplete"
        )
    for told in documents:
        yield from map(_job, told["jobs"])


def _job(job: dict[str, Any]) -> Row:
    times, state = job["time"], job["state"]
    current = state["current"]
    code = job["exit_code"]
    steps = [
        slurm.number(step["time"].get("start"))
        for step in job["steps"]
        if str(step["step"]["id"]).rpartition(".")[2] != "extern"
    ]
    return Row(
        job=str(job["job_id"]),
        cluster=job.get("cluster") or "",
        name=job.get("name") or "",
        user=job.get("user") or "",
        account=job.get("account") or "",
        state=current[0] if isinstance(current, list) else current,
        reason=state.get("reason") or "None",
        code=None if (found := slurm.number(code.get("return_code"))) is None else int(found),
        submit=slurm.number(times["submission"]) or None,
        eligible=slurm.number(times["eligible"]) or None,
        start=slurm.number(times["start"]) or None,
        end=slurm.number(times["end"]) or None,
        gpus=slurm.gpus(slurm.json_tres(job["tres"]["allocated"])),
        nodes=job.get("nodes") or "",
        steps=tuple(one for one in steps if one),
    )


def _labels(**labels: str) -> dict[str, str]:
    return {"reader": "slurm", **{name: value for name, value in labels.items() if value}}
