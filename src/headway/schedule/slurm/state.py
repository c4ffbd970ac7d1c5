"""What Slurm says of its jobs, nodes and QOS, as plain data.

Jobs come as JSON, since users choose some of the text in them; nodes and QOS as lines, which are
the same in every version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway import slurm
from headway.errors import UsageError
from headway.schedule.slurm.calls import Say

JOBS = ("squeue", "--all", "--json")
STEPS = ("squeue", "--all", "--steps", "--noheader", "--format=%i")
NODES = ("scontrol", "--all", "--oneliner", "show", "node")
QOS = ("sacctmgr", "-nP", "show", "qos", "format=Name,Preempt,PreemptExemptTime")
# A node with anything else beside these takes no jobs: DRAIN, DOWN, RESERVED, NOT_RESPONDING, ...
ABLE = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
# Slurm looks at limits before it looks for room, but only at the first job in line: of those with
# the reason Priority nobody knows yet whether their quota would let them start.
ROOM = "Resources"
_FIELD = re.compile(r"(?:^|\s)(NodeName|State|Partitions|CfgTRES|AllocTRES)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that waits or runs; times are seconds since the epoch."""

    number: int
    state: str
    reason: str
    qos: str
    account: str
    partitions: tuple[str, ...]
    priority: int
    submit: float
    start: float
    nodes: int
    gpus: int  # in all
    cpus: int
    places: tuple[tuple[str, int], ...]  # nodes, and accelerators on each
    restarts: int
    requeues: bool  # a batch job that may be started again
    comment: str
    folder: str  # it was submitted in


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What is free on a node that is up."""

    name: str
    partitions: tuple[str, ...]
    gpus: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """Whom its jobs may evict, and how long slurmctld leaves its own alone."""

    preempts: tuple[str, ...]
    exempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One look at the cluster."""

    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    qos: Mapping[str, Qos]
    stepping: frozenset[int]  # jobs with steps of srun, beside the batch script

    def job(self, number: int) -> Job | None:
        """One that waits or runs."""
        return next((job for job in self.jobs if job.number == number), None)

    def running(self) -> list[Job]:
        """Those that hold accelerators."""
        return [job for job in self.jobs if job.state == "RUNNING" and job.gpus]

    def waiting(self) -> list[Job]:
        """Those that only lack room, the first one first."""
        found = [job for job in self.jobs if job.state == "PENDING" and job.reason == ROOM]
        return sorted(found, key=lambda job: (-job.priority, job.submit, job.number))


def look(ask: Say) -> State:
    """Ask Slurm."""
    steps = (line.partition(".") for line in ask(*STEPS).split())
    return State(
        jobs=jobs(ask(*JOBS)),
        nodes=nodes(ask(*NODES)),
        qos=qos(ask(*QOS)),
        stepping=frozenset(int(job) for job, _, step in steps if step.isdecimal()),
    )


def jobs(text: str) -> tuple[Job, ...]:
    """From `squeue --json`."""
    try:
        return tuple(map(_job, json.loads(text)["jobs"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"`{' '.join(JOBS)}` gave no list of jobs: {error!r}", code="slurm-answer-invalid"
        ) from None


def nodes(text: str) -> tuple[Node, ...]:
    """From `scontrol --oneliner show node`, without those that take no jobs."""
    found = []
    for line in text.splitlines():
        told = dict(_FIELD.findall(line))
        if not told or not set(told.get("State", "").split("+")) <= ABLE:
            continue
        has, used = slurm.tres(told.get("CfgTRES", "")), slurm.tres(told.get("AllocTRES", ""))
        found.append(
            Node(
                name=told["NodeName"],
                partitions=tuple(told.get("Partitions", "").split(",")),
                gpus=slurm.gpus(has) - slurm.gpus(used),
                cpus=has.get("cpu", 0) - used.get("cpu", 0),
            )
        )
    return tuple(found)


def qos(text: str) -> dict[str, Qos]:
    """From `sacctmgr -nP show qos`, by name."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        name: Qos(preempts=tuple(filter(None, preempts.split(","))), exempt=exempt)
        for name, preempts, exempt in rows
    }


def _job(row: Mapping[str, Any]) -> Job:
    state = row["job_state"]
    wanted, held = slurm.tres(row["tres_req_str"]), slurm.tres(row["tres_alloc_str"])
    running = bool(held)
    tres = held or wanted
    return Job(
        number=int(row["job_id"]),
        state=state if isinstance(state, str) else str(state[0]),
        reason=str(row["state_reason"]),
        qos=str(row["qos"]),
        account=str(row["account"]),
        partitions=tuple(str(row["partition"]).split(",")),
        priority=_number(row["priority"]),
        submit=float(_number(row["submit_time"])),
        start=float(_number(row["start_time"])),
        nodes=max(tres.get("node", 1), 1),
        gpus=slurm.gpus(tres),
        cpus=tres.get("cpu", 0),
        places=_places(row) if running else (),
        restarts=_number(row["restart_cnt"]),
        requeues=bool(row["batch_flag"]) and bool(row["requeue"]),
        comment=str(row["comment"]),
        folder=str(row["current_working_directory"]),
    )


def _places(row: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    counts = map(slurm.gres_gpus, row["gres_detail"])
    return tuple((n, c) for n, c in zip(slurm.hosts(row["nodes"]), counts, strict=False) if c)


def _number(value: Any) -> int:
    return int(slurm.number(value) or 0)
