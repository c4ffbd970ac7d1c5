"""The processes of this machine as /proc shows them: parents, groups, states."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import NamedTuple


class ProcInfo(NamedTuple):
    """One process at the moment of a look."""

    parent: int
    group: int
    state: str


def process_table() -> dict[int, ProcInfo]:
    """Every process that may be looked at."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
                found[int(name)] = process_info(int(name))
    return found


def process_info(pid: int) -> ProcInfo:
    """One process; OSError if there is none."""
    fields = stat_fields(pid)
    return ProcInfo(int(fields[1]), int(fields[2]), fields[0].decode())


def zombie_exit_code(pid: int) -> int | None:
    """How a process ended that nobody has waited for yet; negative for a death by signal."""
    try:
        fields = stat_fields(pid)
        if fields[0] not in (b"Z", b"X"):
            return None
        return os.waitstatus_to_exitcode(int(fields[49]))
    except (OSError, ValueError, IndexError):
        return None


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on, after the name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def process_name(pid: int) -> bytes:
    """Its name as the kernel knows it, of 15 bytes at most; empty if there is none."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def descendants(root: int, seen: dict[int, ProcInfo] | None = None) -> set[int]:
    """Every process below `root`."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in (process_table() if seen is None else seen).items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(new)
        waiting += new
    return found


def ancestors(pid: int, root: int, seen: dict[int, ProcInfo]) -> list[int]:
    """From the parent of `pid` up to `root`; nothing if it is not below `root`."""
    found: list[int] = []
    # Not for ever: where numbers were used again during the look, parents may form a ring.
    while pid in seen and pid != root and len(found) <= len(seen):
        pid = seen[pid].parent
        found.append(pid)
    return found if found and found[-1] == root else []


def still_running(pids: Iterable[int]) -> set[int]:
    """Those that have not ended; a zombie has."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if process_info(pid).state not in ("Z", "X"):
                found.add(pid)
    return found


def wait_gone(pids: Iterable[int], seconds: float) -> bool:
    """Whether all have ended within that time."""
    left, until = still_running(pids), time.monotonic() + seconds
    while left and time.monotonic() < until:
        time.sleep(0.002)
        left = still_running(left)
    return not left
