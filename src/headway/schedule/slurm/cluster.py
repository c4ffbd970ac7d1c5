"""Jobs, nodes and QOS of a Slurm cluster, and checks of its set-up.

Jobs are read as JSON, because users control some of the text; nodes and QOS are read as lines,
whose format is the same in every version.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway import slurm
from headway.errors import UsageError, with_code
from headway.slurm import RunCommand

JOBS_COMMAND = ("squeue", "--all", "--json")
STEPS_COMMAND = ("squeue", "--all", "--steps", "--noheader", "--format=%i")
NODES_COMMAND = ("scontrol", "--all", "--oneliner", "show", "node")
QOS_COMMAND = ("sacctmgr", "-nP", "show", "qos", "format=Name,Preempt,PreemptExemptTime")
# A node with any other flag accepts no jobs: DRAIN, DOWN, RESERVED, NOT_RESPONDING, ...
USABLE_STATES = frozenset(
    {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"}
)
# Slurm checks limits before resources, but only for the first job in line: for jobs with the reason
# Priority it is not known yet whether their limits would let them start.
WAITS_FOR_RESOURCES = "Resources"
_FIELD = re.compile(r"(?:^|\s)(NodeName|State|Partitions|CfgTRES|AllocTRES)=(\S*)")
PROGRAMS = ("squeue", "scontrol", "sacctmgr", "scancel")
ADMIN_LEVELS = ("Administrator", "Operator")
MAX_NAMES = 20  # in an error message
NOT_EXEMPT = ("", "00:00:00", "-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A waiting or running job; times are seconds since the epoch."""

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
    gpus: int  # in total
    cpus: int
    placement: tuple[tuple[str, int], ...]  # nodes, and accelerators on each
    restarts: int
    requeues: bool  # a batch job that can be requeued
    comment: str
    folder: str  # working directory at submission


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """Free resources of a node that is up."""

    name: str
    partitions: tuple[str, ...]
    gpus: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """The QOS that its jobs may evict, and how long slurmctld exempts its own jobs."""

    preempts: tuple[str, ...]
    exempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A snapshot of the cluster."""

    jobs: tuple[SlurmJob, ...]
    nodes: tuple[SlurmNode, ...]
    qos: Mapping[str, Qos]
    jobs_with_steps: frozenset[int]  # jobs with srun steps in addition to the batch script

    def job(self, number: int) -> SlurmJob | None:
        """The waiting or running job with this number."""
        return next((job for job in self.jobs if job.number == number), None)

    def running(self) -> list[SlurmJob]:
        """Running jobs with accelerators."""
        return [job for job in self.jobs if job.state == "RUNNING" and job.gpus]

    def waiting(self) -> list[SlurmJob]:
        """Jobs that wait for resources only, highest priority first."""
        waiting = [
            job for job in self.jobs if job.state == "PENDING" and job.reason == WAITS_FOR_RESOURCES
        ]
        return sorted(waiting, key=lambda job: (-job.priority, job.submit, job.number))


def read_cluster(run: RunCommand) -> ClusterState:
    steps = (line.partition(".") for line in run(*STEPS_COMMAND).split())
    return ClusterState(
        jobs=parse_jobs(run(*JOBS_COMMAND)),
        nodes=parse_nodes(run(*NODES_COMMAND)),
        qos=parse_qos(run(*QOS_COMMAND)),
        jobs_with_steps=frozenset(int(job) for job, _, step in steps if step.isdecimal()),
    )


def parse_jobs(text: str) -> tuple[SlurmJob, ...]:
    """Parse `squeue --json`."""
    try:
        return tuple(map(_parse_job, json.loads(text)["jobs"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"`{' '.join(JOBS_COMMAND)}` did not print a list of jobs: {error!r}",
            code="slurm-answer-invalid",
        ) from None


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Parse `scontrol --oneliner show node`, without nodes that accept no jobs."""
    nodes = []
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if not fields or not set(fields.get("State", "").split("+")) <= USABLE_STATES:
            continue
        configured, allocated = (
            slurm.parse_tres(fields.get("CfgTRES", "")),
            slurm.parse_tres(fields.get("AllocTRES", "")),
        )
        nodes.append(
            SlurmNode(
                name=fields["NodeName"],
                partitions=tuple(fields.get("Partitions", "").split(",")),
                gpus=slurm.count_gpus(configured) - slurm.count_gpus(allocated),
                cpus=configured.get("cpu", 0) - allocated.get("cpu", 0),
            )
        )
    return tuple(nodes)


def parse_qos(text: str) -> dict[str, Qos]:
    """Parse `sacctmgr -nP show qos`, by name."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        name: Qos(preempts=tuple(filter(None, preempts.split(","))), exempt=exempt)
        for name, preempts, exempt in rows
    }


def _parse_job(row: Mapping[str, Any]) -> SlurmJob:
    state = row["job_state"]
    requested, allocated = (
        slurm.parse_tres(row["tres_req_str"]),
        slurm.parse_tres(row["tres_alloc_str"]),
    )
    running = bool(allocated)
    tres = allocated or requested
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
        placement=_placement(row) if running else (),
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


def check_programs(path: str | None = None) -> None:
    """Raise UsageError if programs of Slurm are missing."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not found; run this on the host of slurmctld, "
            "with the programs of Slurm in PATH",
            code="slurm-not-installed",
            programs=missing,
        )


def check_rights(run: RunCommand, config: str, user: str | None = None) -> None:
    """Raise UsageError if this user may not requeue jobs of other users."""
    name = user or getpass.getuser()
    match = re.search(r"^SlurmUser\s*=\s*([^\s(]+)", config, re.MULTILINE)
    if (user is None and os.geteuid() == 0) or (match is not None and match[1] == name):
        return
    level = run("sacctmgr", "-nP", "show", "user", name, "format=AdminLevel").strip()
    if level not in ADMIN_LEVELS:
        raise UsageError(
            f"{name} may not requeue jobs of other users; run this as root or SlurmUser, or run: "
            f"sacctmgr modify user {name} set AdminLevel=Operator",
            code="slurm-no-rights",
            user=name,
        )


def check_accounts(run: RunCommand, names: Iterable[str]) -> None:
    """Raise UsageError for a quota of an unknown account."""
    known = run("sacctmgr", "-nP", "show", "account", "format=Account").split()
    for name in names:
        if name not in known:
            raise UsageError(
                f"--quota has an unknown account {name!r}; accounts are {_join_names(known)}",
                code="account-unknown",
                account=name,
            )


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(sorted(names)[:MAX_NAMES]) + more


def exemption_warnings(run: RunCommand, config: str) -> Iterator[str]:
    """A warning for each QOS whose jobs slurmctld evicts itself."""
    settings = dict(re.findall(r"^(\w+)\s*=\s*(\S*)", config, re.MULTILINE))
    if (
        settings.get("PreemptType") != "preempt/qos"
        or settings.get("PreemptExemptTime") not in NOT_EXEMPT
    ):
        return
    qos_by_name = parse_qos(run(*QOS_COMMAND))
    for name in sorted({name for qos in qos_by_name.values() for name in qos.preempts}):
        if name in qos_by_name and qos_by_name[name].exempt in NOT_EXEMPT:
            yield with_code(
                f"slurmctld evicts jobs of the QOS {name} itself, without waiting for a save; run: "
                f"sacctmgr modify qos {name} set PreemptExemptTime=7-00:00:00",
                code="qos-not-exempt",
            )
