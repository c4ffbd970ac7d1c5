"""Reads the journals of this host's processes as they grow: what the launcher knows of the job."""

from __future__ import annotations

import json
from typing import Any

from headway.journal import pulse
from headway.journal.pulse import Pulse

SAVE, LOAD = "checkpoint_save", "checkpoint_load"


class Followed:
    """One recording process of this host: its journal up to now, and its pulse."""

    def __init__(self, path: str, pid: int) -> None:
        self.path = path
        self.pid = pid
        self.head: dict[str, Any] = {}
        self.rank: int | None = None
        self.world: int | None = None
        self.open: dict[int, dict[str, Any]] = {}  # spans that are going on
        self.longest: dict[str, int] = {}  # ns, of the spans that are over, by name
        self.errors: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []  # what an agent says of its workers
        self.saves: list[dict[str, Any]] = []  # durable ones
        self.outcomes: list[dict[str, Any]] = []  # what Checkpointers say of theirs
        self.preempted: dict[str, Any] = {}  # it leaves its loop, as it was told to
        self._behind: dict[tuple[Any, Any], int] = {}  # saves that are not durable yet: begun when
        self.told_base: int | None = None  # the step that the loop says it starts from
        self.loads: list[dict[str, Any]] = []
        self.imported = False
        self.stacks: tuple[int, int] | None = None  # signal to ask for them, descriptor they go to
        self.agent = False
        self.left = False  # it wrote its own end
        self.died: int | None = None
        self.code: int | None = None
        self._file: Any = None
        self._rest = b""

    def catch_up(self) -> None:
        """Read what was written since the last time."""
        try:
            if self._file is None:
                self._file = open(self.path, "rb")  # noqa: SIM115
            data = self._rest + self._file.read()
        except OSError:  # somebody has removed the run folder
            return
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            if line.startswith(b'{"ev":"steps"'):
                continue  # the pulse says it sooner
            try:
                record = json.loads(line)
                self._take(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the reader counts damage; the launcher lives with it

    def close(self) -> None:
        """No more is to come."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def pulse(self) -> Pulse:
        """Its pulse page as it stands now."""
        return pulse.read(self.path.removesuffix(".jsonl") + ".pulse") or Pulse()

    @property
    def restart(self) -> int:
        """Which of torchrun's own restarts it belongs to."""
        return int(self.head.get("restart") or 0)

    @property
    def helper(self) -> bool:
        """It works for a rank."""
        return self.head.get("helper") is True

    @property
    def fatal(self) -> bool:
        """Its death is the end of the attempt: it has an agent above it that restarts no more."""
        most = self.head.get("max_restarts")
        if self.rank is None or self.agent or self.helper or type(most) is not int:
            return False
        return self.restart >= most

    @property
    def failing(self) -> bool:
        """It did not come to a good end, as far as that is known."""
        return bool(self.errors) if self.code is None else self.code != 0

    def _take(self, record: dict[str, Any]) -> None:
        kind = record["ev"]
        if kind == "head":
            self.head, self.rank, self.world = record, record.get("rank"), record.get("world")
        elif kind == "rank":
            self.rank, self.world = record["rank"], record.get("world", self.world)
        elif kind == "open":
            self.open[record["id"]] = record
            if record["name"] == LOAD:
                self.loads.append(record)
        elif kind == "close":
            opened = self.open.pop(record["id"], None)
            if opened is not None:
                lasted = {"name": opened["name"], "t": opened["t"], "end": record["t"]}
                self._over({**opened, **record, **lasted})
                self._lasted(opened["name"], record["t"] - opened["t"])
        elif kind == "span":
            self._lasted(record["name"], record["end"] - record["t"])
            self._over(record)
            if record["name"] == LOAD:
                self.loads.append(record)
        elif kind == "saving":  # goes on in the background: durable when that is done
            where = _where(record)
            taken = [s["t"] for s in self.saves if _where(s) == where]
            self._behind[where] = min(taken, default=record["t"])
            self.saves = [s for s in self.saves if _where(s) != where]
        elif kind == "checkpoint":
            self.outcomes.append(record)
        elif kind == "preempted":
            self.preempted = record
        elif kind == "progress" and record.get("step") is not None:
            self.told_base = int(record["step"])
        elif kind == "error":
            self.errors.append(record)
        elif kind == "worker_failed":
            self.failed.append(record)
            self.agent = True
        elif kind == "agent":
            self.agent = True
        elif kind == "stacks":
            self.stacks = (int(record["signal"]), int(record["fd"]))
        elif kind == "imported":
            self.imported = True
        elif kind == "exit":
            self.left = True

    def _lasted(self, name: str, ns: int) -> None:
        self.longest[name] = max(self.longest.get(name, 0), ns)

    def _over(self, span: dict[str, Any]) -> None:
        if span["name"] != SAVE:
            return
        where = _where(span)
        begun = min(self._behind.get(where, span["t"]), span["t"])
        if where in self._behind and span.get("background") is not True:
            self._behind[where] = begun  # its call is over, its write is not
            return
        self._behind.pop(where, None)
        if not span.get("error"):
            self.saves.append({**span, "t": begun})


def _where(record: dict[str, Any]) -> tuple[Any, Any]:
    return record.get("path"), record.get("step")
