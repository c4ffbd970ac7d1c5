"""Whether a process and its children are active: CPU time, bytes, completed waits."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass

from headway.launch import processes

BUSY_CORES = 0.1  # share of a core; less may be a watchdog
BUSY_BYTES = 100_000  # per second by `read` and `write`: files, pipes and TLS
BUSY_WAITS = 200  # completed waits per second: network traffic that is not counted as bytes
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU seconds, bytes and waits of every process of a tree at one time."""

    at: float
    used: dict[int, tuple[float, int, int]]


def sample(pid: int, at: float, table: dict[int, processes.ProcInfo] | None = None) -> Sample:
    """Measure a process and all its descendants."""
    used = {}
    for member in {pid, *processes.descendants(pid, table)}:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = processes.stat_fields(member)
            cpu = (int(fields[11]) + int(fields[12])) / _TICK
            used[member] = (cpu, _bytes(member), _waits(member))
    return Sample(at, used)


def _bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            lines = dict(line.split(b":") for line in file)
        return int(lines[b"rchar"]) + int(lines[b"wchar"])
    except (OSError, KeyError, ValueError):
        return 0


def _waits(pid: int) -> int:
    """Voluntary context switches of all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                text = file.read()
            total += int(text.partition(b"\nvoluntary_ctxt_switches:")[2].split(None, 1)[0])
    return total


def busy(earlier: Sample, later: Sample) -> bool:
    """Whether any process of that tree worked between two samples."""
    cpu, moved, waits = _rates(earlier, later)
    return cpu >= BUSY_CORES or moved >= BUSY_BYTES or waits >= BUSY_WAITS


def moves(earlier: Sample, later: Sample) -> bool:
    """Whether it read, wrote or started processes, which a wait for a device does not."""
    return _rates(earlier, later)[1] >= BUSY_BYTES


def _rates(earlier: Sample, later: Sample) -> tuple[float, float, float]:
    """CPU seconds, bytes and waits per second; infinite if it started processes."""
    seconds = later.at - earlier.at
    if seconds <= 0 or later.used.keys() - earlier.used.keys():
        return math.inf, math.inf, math.inf
    pids = later.used.keys() & earlier.used.keys()
    cpu, moved, waits = (
        sum(later.used[pid][i] - earlier.used[pid][i] for pid in pids) / seconds for i in range(3)
    )
    return cpu, moved, waits


def stopped(pid: int) -> bool:
    """Whether a signal has stopped it, and not a debugger."""
    try:
        return processes.process_info(pid).state == "T" and not traced(pid)
    except (OSError, ValueError, IndexError):
        return False


def traced(pid: int) -> bool:
    """Whether a debugger is attached, or it waits for input at a terminal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"TracerPid:"):
                    if int(line.split()[1]):
                        return True
                    break
        with open(f"/proc/{pid}/syscall", "rb") as file:
            words = file.read().split()
        read = {"x86_64": b"0", "aarch64": b"63"}.get(os.uname().machine)
        terminal = os.readlink(f"/proc/{pid}/fd/0").startswith(("/dev/pts/", "/dev/tty"))
        return terminal and words[:2] == [read, b"0x0"]
    except (OSError, ValueError, IndexError):
        return False


def replaced(pid: int, page: str) -> bool:
    """Whether it has executed another program: the page that it recorded to is no longer mapped."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            maps = file.read()
    except OSError:  # not permitted
        return False
    # A process that is ending has no maps.
    return bool(maps) and os.path.exists(page) and os.path.basename(page).encode() not in maps


def on_device(pid: int) -> bool:
    """Whether it has a GPU open: then a wait for the device looks like work."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(("/dev/nvidia", "/dev/kfd")):
                    return True
    return False
