"""Reads the last eviction cost that the launcher of a run reported, without the whole ledger.

Only the launchers' own journals are read, so a controller can look at many runs often.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.eviction_cost import CostReport
from headway.journal import file_access, pulse, run_files
from headway.units import NS

SILENT_S = 120.0  # a launcher that gave no sign of life for so long is gone
SETTLED_S = 10.0  # so long after an attempt it is decided whether another one follows


@dataclass(frozen=True)
class _LauncherState:
    head: dict[str, Any]
    price: dict[str, Any] | None
    exited: int | None  # on its own clock
    again: float | None  # it was decided to start again, after so many seconds
    alive: int  # the last sign of life, on its own clock

    def wall(self, t: int) -> float:
        """A time of its clock as seconds since the epoch."""
        return float(self.head["wall"] + t - self.head["t"]) / NS

    def over(self, now: float) -> bool:
        """Nothing more is to come."""
        if self.exited is not None and self.again is None:
            return now - self.wall(self.exited) > SETTLED_S
        return now - self.wall(self.alive) > SILENT_S + (self.again or 0.0)


def read_cost_report(path: Path, now: float) -> CostReport | None:
    """At `now`, seconds since the epoch; None where no launcher has written."""
    journal = run_files.find_run(path) / run_files.JOURNAL
    found = list(_launchers(journal))
    if not found:
        return None
    last = max(found, key=_order).head["launch"]
    current = [one for one in found if one.head["launch"] == last]
    speaker = max(current, key=lambda one: one.wall(one.price["t"]) if one.price else 0.0)
    price = speaker.price or {}
    since = price["since"] if price else speaker.head["begin"]
    identity = run_files.read_identity(path)
    return CostReport(
        run=str(identity.get("run") or path.resolve().name),
        host=str(speaker.head.get("host") or ""),
        job=next((str(j) for one in current if (j := one.head.get("scheduler_job"))), None),
        over=all(one.over(now) for one in current),
        accelerators=int(price["accelerators"]) if price else _world(journal, last),
        unsaved=max(now - speaker.wall(since), 0.0),
        saved=price.get("saved") is True,
        save=price.get("save_s"),
        recover=float(price.get("recover_s") or 0.0),
        preemptions=int(price.get("preemptions") or 0),
    )


def _order(one: _LauncherState) -> tuple[int, int]:
    return int(one.head.get("index") or 0), int(one.head["wall"])


def _launchers(journal: Path) -> Iterator[_LauncherState]:
    for path in sorted(journal.glob("launcher-*.jsonl")):
        try:
            found = _launcher(path)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is just being made, or damaged
        yield found


def _launcher(path: Path) -> _LauncherState:
    first, *lines = file_access.read_file(path, file_access.JOURNAL_LIMIT).split(b"\n")
    head = json.loads(first)
    if not all(type(head[key]) is int for key in ("wall", "t", "begin")):
        raise ValueError(first)
    decided = [e for e in _events(lines, "decision") if e.get("action") == "restart"]
    page = pulse.read(str(path.with_suffix(".pulse")))
    return _LauncherState(
        head={**head, "launch": str(head["launch"])},
        price=_price(lines),
        exited=next((int(event["t"]) for event in _events(lines, "exit")), None),
        again=next((float(event["wait_s"]) for event in decided), None),
        alive=max(page.alive if page else 0, head["t"]),
    )


def _events(lines: list[bytes], name: str) -> list[dict[str, Any]]:
    """Of one kind; the last line may be torn."""
    start = f'{{"ev":"{name}"'.encode()
    return [json.loads(line) for line in lines[:-1] if line.startswith(start)]


def _price(lines: list[bytes]) -> dict[str, Any] | None:
    """The last one; a line that is none tells nothing."""
    for line in reversed(lines[:-1]):
        if line.startswith(b'{"ev":"price"'):
            one: dict[str, Any] = json.loads(line)
            if all(type(one.get(key)) is int for key in ("t", "since", "accelerators")):
                return one
    return None


def _world(journal: Path, launch: str) -> int:
    """Before the first price: as many as the ranks are told that they are."""
    for path in journal.glob("*.jsonl"):
        if path.name.startswith("launcher-"):
            continue
        try:
            with file_access.open_file(path) as file:
                head = json.loads(file.readline(file_access.FILE_LIMIT))
        except (OSError, ValueError, RecursionError):
            continue
        same = isinstance(head, dict) and head.get("launch") == launch
        if same and type(head.get("world")) is int:
            return int(head["world"])
    return 1
