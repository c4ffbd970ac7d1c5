"""How much memory a process and all below it use, looked at while they run."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.1
PROC = Path("/proc")


@dataclass(frozen=True)
class Sample:
    """Bytes at a moment; what several processes share is counted once."""

    at: float  # time.monotonic()
    own: int
    helpers: int
    shared: int

    @property
    def total(self) -> int:
        return self.own + self.helpers + self.shared


class Memory(threading.Thread):
    """Of a process, until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            at, each = time.monotonic(), {pid: _used(pid) for pid in family(self.pid)}
            if self.pid in each:
                own = each[self.pid][0]
                helpers = sum(private for private, _ in each.values()) - own
                shared = max(shared for _, shared in each.values())
                self.samples.append(Sample(at, own, helpers, shared))

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def beside(self, begun: float, ended: float) -> dict[str, float]:
        """The most that was used between two moments, beyond what the process had at the first."""
        before = [one for one in self.samples if one.at <= begun]
        during = [one for one in self.samples if begun < one.at <= ended]
        if not before or not during:
            return {}
        peak = max(during, key=lambda one: one.total)
        base = before[-1].own
        return {
            "memory_mb": (peak.total - base) / 1e6,
            "of_that_helpers_mb": peak.helpers / 1e6,
            "of_that_shared_mb": peak.shared / 1e6,
            "peak_mb": peak.total / 1e6,
        }


def family(pid: int) -> list[int]:
    """A process and all that it and its children have started."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(PROC):
        if entry.isdecimal():
            children.setdefault(_parent(int(entry)), []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it has ended
        return -1


def _used(pid: int) -> tuple[int, int]:
    """Bytes of its own, and of memory that others may have too."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0, 0
    told = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    own, shared = (int(told.get(key, ["0"])[0]) * 1024 for key in ("RssAnon", "RssShmem"))
    return own, shared
