"""What the kernel of this machine reports about an end: OOM kills, Xids, machine checks.

The counters of OOM kills require no privilege; the kernel log is read where that is permitted.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from headway.launch.failures.model import Fact

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
LOG = Path("/dev/kmsg")
MACHINE = "vmstat"  # the counter of the whole machine
NO_OOM = "the kernel counted no OOM kill in this job"
CLOCK_TOLERANCE_S = 1.0  # seconds by which the clock of the log may differ
MAX_RECORD_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The kernel's counters and its clock: the job's own group first, then its parents."""

    kills: tuple[tuple[str, int], ...]
    clock: float


def snapshot(cgroups: Path = CGROUPS, proc: Path = PROC) -> Snapshot:
    """Taken before the job starts."""
    return Snapshot(kills=tuple(_kills(cgroups, proc)), clock=_clock())


def since(
    before: Snapshot, cgroups: Path = CGROUPS, proc: Path = PROC, log: Path = LOG
) -> list[Fact]:
    """What the kernel has reported since then."""
    return [*_counted(before, dict(_kills(cgroups, proc))), *_logged(before, log)]


def _counted(before: Snapshot, now: dict[str, int]) -> list[Fact]:
    """The count of the nearest readable group; its parents and the machine include other jobs."""
    growth = [(name, now[name] - count) for name, count in before.kills if name in now]
    if not growth:
        return []
    nearest, count = growth[0]
    if count > 0 and nearest != MACHINE:
        return [_fact(f"the kernel counted {count} OOM kill(s) in this job")]
    return [_fact(NO_OOM)] if not any(count for _, count in growth) else []


def _kills(cgroups: Path, proc: Path) -> list[tuple[str, int]]:
    """The counters from this process's own group upwards, and the whole machine's last."""
    counters = []
    for folder, name in _groups(cgroups, proc):
        for path in (folder / name, *(above / name for above in folder.parents)):
            if cgroups in path.parents and (count := _count(path)) is not None:
                counters.append((str(path), count))
    count = _count(proc / "vmstat")
    return counters if count is None else [*counters, (MACHINE, count)]


def _groups(cgroups: Path, proc: Path) -> list[tuple[Path, str]]:
    """The folder of this process's memory group and the file with its counter, v2 before v1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in sorted(lines):
        number, kinds, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not kinds:
            groups.append((cgroups / path.lstrip("/"), "memory.events"))
        elif "memory" in kinds.split(","):
            groups.append((cgroups / "memory" / path.lstrip("/"), "memory.oom_control"))
    return groups


def _count(path: Path) -> int | None:
    """The number after `oom_kill` in a file of names and numbers."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def _logged(before: Snapshot, log: Path) -> list[Fact]:
    from headway.launch.failures.classifier import find_meaning

    facts = []
    for moment, text in _records(log):
        fact = _fact(text, at=time.time() - (_clock() - moment))
        if moment >= before.clock - CLOCK_TOLERANCE_S and find_meaning(fact) is not None:
            facts.append(fact)
    return facts


def _records(log: Path) -> list[tuple[float, str]]:
    """Time and text of each record of the kernel log; empty where that is not permitted."""
    records: list[tuple[float, str]] = []
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return records
    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)) as file:
        while True:
            try:
                record = file.read(MAX_RECORD_BYTES)
            except BrokenPipeError:  # overwritten while it was read: the next record follows
                continue
            except OSError:
                return records
            if not record:
                return records
            for line in record.decode("utf-8", "replace").splitlines():
                head, separator, text = line.partition(";")
                fields = head.split(",")
                if separator and len(fields) > 2 and fields[2].isdecimal():
                    records.append((int(fields[2]) / 1e6, text))


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _fact(text: str, at: float | None = None) -> Fact:
    return Fact(source="kernel", text=text, node=os.uname().nodename, at=at)
