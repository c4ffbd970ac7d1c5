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
from headway.schedule.slurm.calls import RunCommand

JOBS_COMMAND = ("squeue", "--all", "--json")
STEPS_COMMAND = ("squeue", "--all", "--steps", "--noheader", "--format=%i")
NODES_COMMAND = ("scontrol", "--all", "--oneliner", "show", "node")
QOS_COMMAND = ("sacctmgr", "-nP", "show", "qos", "format=Name,Preempt,PreemptExemptTime")
# A node with anything else beside these takes no jobs: DRAIN, DOWN, RESERVED, NOT_RESPONDING, ...
USABLE_STATES = frozenset(
    {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"}
)
# Slurm looks at limits before it looks for room, but only at the first job in line: of those with
# the reason Priority nobody knows yet whether their quota would let them start.
WAITS_FOR_RESOURCES = "Resources"
_FIELD = re.compile(r"(?:^|\s)(NodeName|State|Partitions|CfgTRES|AllocTRES)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
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
class SlurmNode:
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
class ClusterState:
    """One look at the cluster."""

    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    qos: Mapping[str, Qos]
    stepping: frozenset[int]  # jobs with steps of srun, beside the batch script

    def job(self, number: int) -> SlurmJob | None:
        """One that waits or runs."""
        return next((job for job in self.jobs if job.number == number), None)

    def running(self) -> list[SlurmJob]:
        """Those that hold accelerators."""
        return [job for job in self.jobs if job.state == "RUNNING" and job.gpus]

    def waiting(self) -> list[SlurmJob]:
        """Those that only lack room, the first one first."""
        found = [
            job for job in self.jobs if job.state == "PENDING" and job.reason == WAITS_FOR_RESOURCES
        ]
        return sorted(found, key=lambda job: (-job.priority, job.submit, job.number))


def read_cluster(ask: RunCommand) -> ClusterState:
    """Ask Slurm."""
    steps = (line.partition(".") for line in ask(*STEPS_COMMAND).split())
    return ClusterState(
        jobs=parse_jobs(ask(*JOBS_COMMAND)),
        nodes=parse_nodes(ask(*NODES_COMMAND)),
        qos=parse_qos(ask(*QOS_COMMAND)),
        stepping=frozenset(int(job) for job, _, step in steps if step.isdecimal()),
    )


def parse_jobs(text: str) -> tuple[SlurmJob, ...]:
    """From `squeue --json`."""
    try:
        return tuple(map(_parse_job, json.loads(text)["jobs"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"`{' '.join(JOBS_COMMAND)}` gave no list of jobs: {error!r}",
            code="slurm-answer-invalid",
        ) from None


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """From `scontrol --oneliner show node`, without those that take no jobs."""
    found = []
    for line in text.splitlines():
        told = dict(_FIELD.findall(line))
        if not told or not set(told.get("State", "").split("+")) <= USABLE_STATES:
            continue
        has, used = (
            slurm.parse_tres(told.get("CfgTRES", "")),
            slurm.parse_tres(told.get("AllocTRES", "")),
        )
        found.append(
            SlurmNode(
                name=told["NodeName"],
                partitions=tuple(told.get("Partitions", "").split(",")),
                gpus=slurm.count_gpus(has) - slurm.count_gpus(used),
                cpus=has.get("cpu", 0) - used.get("cpu", 0),
            )
        )
    return tuple(found)


def parse_qos(text: str) -> dict[str, Qos]:
    """From `sacctmgr -nP show qos`, by name."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        name: Qos(preempts=tuple(filter(None, preempts.split(","))), exempt=exempt)
        for name, preempts, exempt in rows
    }


def _parse_job(row: Mapping[str, Any]) -> SlurmJob:
    state = row["job_state"]
    wanted, held = slurm.parse_tres(row["tres_req_str"]), slurm.parse_tres(row["tres_alloc_str"])
    running = bool(held)
    tres = held or wanted
    return SlurmJob(
        number=int(row["job_id"]),
        state=state if isinstance(state, str) else str(state[0]),
        reason=str(row["state_reason"]),
        qos=str(row["qos"]),
        account=str(row["account"]),
        partitions=tuple(str(row["partition"]).split(",")),
        priority=_integer(row["priority"]),
        submit=float(_integer(row["submit_time"])),
        start=float(_integer(row["start_time"])),
        nodes=max(tres.get("node", 1), 1),
        gpus=slurm.count_gpus(tres),
        cpus=tres.get("cpu", 0),
        places=_placement(row) if running else (),
        restarts=_integer(row["restart_cnt"]),
        requeues=bool(row["batch_flag"]) and bool(row["requeue"]),
        comment=str(row["comment"]),
        folder=str(row["current_working_directory"]),
    )


def _placement(row: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    counts = map(slurm.count_gres_gpus, row["gres_detail"])
    return tuple(
        (n, c) for n, c in zip(slurm.expand_hosts(row["nodes"]), counts, strict=False) if c
    )


def _integer(value: Any) -> int:
    return int(slurm.json_number(value) or 0)
