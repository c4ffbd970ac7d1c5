"""Read the journal and the pulse page of one process of this host while they grow."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

from headway.journal import file_access, pulse
from headway.journal.pulse import Pulse

SAVE, LOAD = "checkpoint_save", "checkpoint_load"


class RankTail:
    """One recording process of this host: its journal up to now, and its pulse."""

    def __init__(self, path: str, pid: int, page: str | None = None) -> None:
        self.path = path
        self.page = page or path.removesuffix(".jsonl") + ".pulse"
        self.pid = pid
        self.head: dict[str, Any] = {}
        self.rank: int | None = None
        self.world: int | None = None
        self.open_spans: dict[int, dict[str, Any]] = {}  # spans that are going on
        self.longest_spans: dict[str, int] = {}  # ns, of the spans that are over, by name
        self.errors: list[dict[str, Any]] = []
        self.worker_failures: list[dict[str, Any]] = []  # what an agent says of its workers
        self.saves: list[dict[str, Any]] = []  # durable ones
        self.outcomes: list[dict[str, Any]] = []  # what Checkpointers say of theirs
        self.preempted: dict[str, Any] = {}  # it leaves its loop, as it was told to
        self._pending_saves: dict[
            tuple[Any, Any], int
        ] = {}  # saves that are not durable yet: begun when
        self.declared_start_step: int | None = None  # the step that the loop says it starts from
        self.loads: list[dict[str, Any]] = []  # with `made`: how many steps it had made
        self._steps_line = b""  # the last one
        self._step_thread = 0  # that makes the steps
        self.imported = False
        self.stacks: tuple[int, int] | None = None  # signal to ask for them, descriptor they go to
        self.agent = False
        self.exited_cleanly = False  # it wrote its own end
        self.died: int | None = None
        self.code: int | None = None
        self._file: Any = None
        self._page_file: BinaryIO | None = None
        self._has_page = True  # as far as that is known
        self._last_pulse: Pulse | None = None  # what its page said last
        self._partial_line = b""

    def read_new(self) -> None:
        """Read what was written since the last time."""
        try:
            if self._file is None:
                self._file = file_access.open_file(self.path)
            data = self._partial_line + self._file.read()
        except OSError:  # somebody has removed the run folder
            return
        *lines, self._partial_line = data.split(b"\n")
        for line in lines:
            if line.startswith(b'{"ev":"steps"'):
                self._steps_line = line
                continue  # the pulse says it sooner
            try:
                record = json.loads(line)
                self._apply(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the reader counts damage; the launcher lives with it

    def close(self) -> None:
        """No more is to come."""
        self.pulse()
        for file in (self._file, self._page_file):
            if file is not None:
                file.close()
        self._file = self._page_file = None

    def pulse(self) -> Pulse:
        """Its pulse page as it stands now; opened once, as that may be a request to a server."""
        try:
            if self._page_file is None and self._file is not None and self._has_page:
                self._page_file = file_access.open_file(self.page)
            if self._page_file is not None:
                data = os.pread(self._page_file.fileno(), pulse.CELLS * 8, 0)
                self._last_pulse = pulse.parse(data) or self._last_pulse
        except FileNotFoundError:
            self._has_page = not self.head  # it is made before the first line is written
        except OSError:
            pass
        return self._last_pulse or self._summary()

    def _summary(self) -> Pulse:
        """The same as the journal tells it, where the file system maps no files."""
        try:
            line = json.loads(self._steps_line)
            return Pulse(steps=line["last"], last_step=line["end"])
        except (ValueError, KeyError, TypeError):
            return Pulse()

    @property
    def restart(self) -> int:
        """Which of torchrun's own restarts it belongs to."""
        return int(self.head.get("restart") or 0)

    @property
    def helper(self) -> bool:
        """It works for a rank."""
        return self.head.get("helper") is True

    @property
    def ends_attempt(self) -> bool:
        """Its death is the end of the attempt: it has an agent above it that restarts no more."""
        max_restarts = self.head.get("max_restarts")
        if self.rank is None or self.agent or self.helper or type(max_restarts) is not int:
            return False
        return self.restart >= max_restarts

    @property
    def failed(self) -> bool:
        """It did not come to a good end, as far as that is known."""
        return bool(self.errors) if self.code is None else self.code != 0

    def _apply(self, record: dict[str, Any]) -> None:
        kind = record["ev"]
        if kind == "head":
            self.head, self.rank, self.world = record, record.get("rank"), record.get("world")
        elif kind == "rank":
            self.rank, self.world = record["rank"], record.get("world", self.world)
        elif kind == "open":
            self.open_spans[record["id"]] = record
            if record["name"] == LOAD:
                self._add_load(record)
        elif kind == "close":
            span = self.open_spans.pop(record["id"], None)
            if span is not None:
                if record.get("error"):
                    span["error"] = record["error"]
                timing = {"name": span["name"], "t": span["t"], "end": record["t"]}
                self._add_save({**span, **record, **timing})
                self._note_duration(span["name"], record["t"] - span["t"])
        elif kind == "span":
            self._note_duration(record["name"], record["end"] - record["t"])
            self._add_save(record)
            if record["name"] == LOAD and not self._stepped_meanwhile(record):
                self._add_load(record)
        elif kind == "stepping":
            self._step_thread = record["th"]
        elif kind == "saving":  # goes on in the background: durable when that is done
            key = _save_key(record)
            starts = [s["t"] for s in self.saves if _save_key(s) == key]
            self._pending_saves[key] = min(starts, default=record["t"])
            self.saves = [s for s in self.saves if _save_key(s) != key]
        elif kind == "checkpoint":
            self.outcomes.append(record)
        elif kind == "preempted":
            self.preempted = record
        elif kind == "progress" and record.get("step") is not None and not self._steps_line:
            self.declared_start_step = int(record["step"])
        elif kind == "restored" and self._steps_line:  # before that it has declared the step
            self._add_load(record)
        elif kind == "error":
            self.errors.append(record)
        elif kind == "worker_failed":
            self.worker_failures.append(record)
            self.agent = True
        elif kind == "agent":
            self.agent = True
        elif kind == "stacks":
            self.stacks = (int(record["signal"]), int(record["fd"]))
        elif kind == "imported":
            self.imported = True
        elif kind == "exit":
            self.exited_cleanly = True

    def _stepped_meanwhile(self, load: dict[str, Any]) -> bool:
        """Whether the loop made steps while another thread loaded: nothing was put back then."""
        if not self._steps_line or load.get("th", 0) == self._step_thread:
            return False
        return bool(json.loads(self._steps_line)["end"] > load["t"])

    def _add_load(self, load: dict[str, Any]) -> None:
        """After its first step a process writes a line of its steps before it tells of a load."""
        load["made"] = json.loads(self._steps_line)["last"] if self._steps_line else 0
        self.loads.append(load)

    def _note_duration(self, name: str, ns: int) -> None:
        self.longest_spans[name] = max(self.longest_spans.get(name, 0), ns)

    def _add_save(self, span: dict[str, Any]) -> None:
        if span["name"] != SAVE:
            return
        key = _save_key(span)
        start = min(self._pending_saves.get(key, span["t"]), span["t"])
        if key in self._pending_saves and span.get("background") is not True:
            self._pending_saves[key] = start  # its call is over, its write is not
            return
        self._pending_saves.pop(key, None)
        if not span.get("error"):
            self.saves.append({**span, "t": start})


def _save_key(record: dict[str, Any]) -> tuple[Any, Any]:
    return record.get("path"), record.get("step")
