"""Read the last eviction cost that the launcher of a run reported, without the whole ledger.

Only the launchers' own journals are read, so a controller can check many runs often.
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

SILENT_S = 120.0  # a launcher without a sign of life for this long is considered dead
SETTLED_S = 10.0  # by then the launcher has decided whether another attempt follows


@dataclass(frozen=True)
class _LauncherState:
    head: dict[str, Any]
    price: dict[str, Any] | None
    exited_at: int | None  # by its own clock
    restart_after_s: float | None  # delay of the restart that it has decided on
    last_sign: int  # last sign of life, by its own clock

    def wall(self, t: int) -> float:
        """A time of this launcher's clock as seconds since the epoch."""
        return float(self.head["wall"] + t - self.head["t"]) / NS

    def over(self, now: float) -> bool:
        """Whether no more reports will follow."""
        if self.exited_at is not None and self.restart_after_s is None:
            return now - self.wall(self.exited_at) > SETTLED_S
        return now - self.wall(self.last_sign) > SILENT_S + (self.restart_after_s or 0.0)


def read_cost_report(path: Path, now: float) -> CostReport | None:
    """The report at `now`, in seconds since the epoch; None without a launcher."""
    journal = run_files.find_run(path) / run_files.JOURNAL
    launchers = list(_launchers(journal))
    if not launchers:
        return None
    last = max(launchers, key=_order).head["launch"]
    current = [state for state in launchers if state.head["launch"] == last]
    newest = max(current, key=lambda state: state.wall(state.price["t"]) if state.price else 0.0)
    price = newest.price or {}
    since = price["since"] if price else newest.head["begin"]
    identity = run_files.read_identity(path)
    return CostReport(
        run=str(identity.get("run") or path.resolve().name),
        host=str(newest.head.get("host") or ""),
        job=next((str(job) for state in current if (job := state.head.get("scheduler_job"))), None),
        over=all(state.over(now) for state in current),
        accelerators=int(price["accelerators"]) if price else _world(journal, last),
        unsaved=max(now - newest.wall(since), 0.0),
        saved=price.get("saved") is True,
        save=price.get("save_s"),
        recover=float(price.get("recover_s") or 0.0),
        preemptions=int(price.get("preemptions") or 0),
    )


def _order(state: _LauncherState) -> tuple[int, int]:
    return int(state.head.get("index") or 0), int(state.head["wall"])


def _launchers(journal: Path) -> Iterator[_LauncherState]:
    for path in sorted(journal.glob("launcher-*.jsonl")):
        try:
            state = _launcher(path)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # incomplete or damaged
        yield state


def _launcher(path: Path) -> _LauncherState:
    first, *lines = file_access.read_file(path, file_access.JOURNAL_LIMIT).split(b"\n")
    head = json.loads(first)
    if not all(type(head[key]) is int for key in ("wall", "t", "begin")):
        raise ValueError(first)
    restarts = [e for e in _events(lines, "decision") if e.get("action") == "restart"]
    page = pulse.read(str(path.with_suffix(".pulse")))
    return _LauncherState(
        head={**head, "launch": str(head["launch"])},
        price=_price(lines),
        exited_at=next((int(event["t"]) for event in _events(lines, "exit")), None),
        restart_after_s=next((float(event["wait_s"]) for event in restarts), None),
        last_sign=max(page.alive if page else 0, head["t"]),
    )


def _events(lines: list[bytes], name: str) -> list[dict[str, Any]]:
    """Events of one kind; the last line may be incomplete."""
    start = f'{{"ev":"{name}"'.encode()
    return [json.loads(line) for line in lines[:-1] if line.startswith(start)]


def _price(lines: list[bytes]) -> dict[str, Any] | None:
    """The last valid price event."""
    for line in reversed(lines[:-1]):
        if line.startswith(b'{"ev":"price"'):
            event: dict[str, Any] = json.loads(line)
            if all(type(event.get(key)) is int for key in ("t", "since", "accelerators")):
                return event
    return None


def _world(journal: Path, launch: str) -> int:
    """The world size according to the ranks, before the first price event."""
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
