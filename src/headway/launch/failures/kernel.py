"""What the kernel of this machine says about an end: out-of-memory kills, Xids, machine checks."""

from __future__ import annotations

from dataclasses import dataclass

from headway.launch.failures.verdict import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Where the kernel's counters and its log stood."""


def snapshot() -> Snapshot:
    """Where they stand now; taken before the job starts."""
    return Snapshot()


def since(before: Snapshot) -> list[Fact]:
    """What the kernel has said since then."""
    return []
