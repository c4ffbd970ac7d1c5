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
        self.open_spans: dict[int, dict[str, Any]] = {}  # spans that have not ended
        self.longest_spans: dict[str, int] = {}  # ns, of the spans that have ended, by name
        self.errors: list[dict[str, Any]] = []
        self.worker_failures: list[dict[str, Any]] = []  # what an agent reports of its workers
        self.saves: list[dict[str, Any]] = []  # durable saves
        self.outcomes: list[dict[str, Any]] = []  # what Checkpointers report of their saves
        self.preempted: dict[str, Any] = {}  # it leaves its loop because a stop was requested
        self._pending_saves: dict[
            tuple[Any, Any], int
        ] = {}  # start of each save that is not durable yet
        self.declared_start_step: int | None = None  # the step that the loop declares as its start
        self.loads: list[dict[str, Any]] = []  # with `made`: the number of steps before it
        self._steps_line = b""  # the last steps event
        self._step_thread = 0  # the thread that makes the steps
        self.imported = False
        # The signal that requests stacks, and the descriptor that they are written to.
        self.stacks: tuple[int, int] | None = None
        self.agent = False
        self.exited_cleanly = False  # it recorded its own end
        self.died: int | None = None
        self.code: int | None = None
        self._file: Any = None
        self._page_file: BinaryIO | None = None
        self._has_page = True  # as far as known
        self._last_pulse: Pulse | None = None  # the last state of its page
        self._partial_line = b""

    def read_new(self) -> None:
        """Read what was written since the last call."""
        try:
            if self._file is None:
                self._file = file_access.open_file(self.path)
            data = self._partial_line + self._file.read()
        except OSError:  # the run folder was removed
            return
        *lines, self._partial_line = data.split(b"\n")
        for line in lines:
            if line.startswith(b'{"ev":"steps"'):
                self._steps_line = line
                continue  # the pulse has it earlier
            try:
                record = json.loads(line)
                self._apply(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the journal reader counts damage; the launcher ignores it

    def close(self) -> None:
        self.pulse()
        for file in (self._file, self._page_file):
            if file is not None:
                file.close()
        self._file = self._page_file = None

    def pulse(self) -> Pulse:
        """The current pulse page; the file is opened once, as that may be a request to a server."""
        try:
            if self._page_file is None and self._file is not None and self._has_page:
                self._page_file = file_access.open_file(self.page)
            if self._page_file is not None:
                data = os.pread(self._page_file.fileno(), pulse.CELLS * 8, 0)
                self._last_pulse = pulse.parse(data) or self._last_pulse
        except FileNotFoundError:
            self._has_page = not self.head  # the page is created before the first line is written
        except OSError:
            pass
        return self._last_pulse or self._summary()

    def _summary(self) -> Pulse:
        """The same from the journal, where the file system does not support mapping."""
        try:
            line = json.loads(self._steps_line)
            return Pulse(steps=line["last"], last_step=line["end"])
        except (ValueError, KeyError, TypeError):
            return Pulse()

    @property
    def restart(self) -> int:
        """The number of torchrun's own restart that it belongs to."""
        return int(self.head.get("restart") or 0)

    @property
    def helper(self) -> bool:
        """Whether it works for a rank, as a data loader worker does."""
        return self.head.get("helper") is True

    @property
    def ends_attempt(self) -> bool:
        """Whether its death ends the attempt: its agent has no restarts left."""
        max_restarts = self.head.get("max_restarts")
        if self.rank is None or self.agent or self.helper or type(max_restarts) is not int:
            return False
        return self.restart >= max_restarts

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, as far as known."""
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
        elif kind == "saving":  # continues in the background: durable when that has ended
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
        # Before the first step the event declares the step.
        elif kind == "restored" and self._steps_line:
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
        """Whether the loop made steps while another thread loaded: then no state was restored."""
        if not self._steps_line or load.get("th", 0) == self._step_thread:
            return False
        return bool(json.loads(self._steps_line)["end"] > load["t"])

    def _add_load(self, load: dict[str, Any]) -> None:
        """Record a load; once a process has stepped, it writes a steps event before each load."""
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
            self._pending_saves[key] = start  # the call has ended, the write has not
            return
        self._pending_saves.pop(key, None)
        if not span.get("error"):
            self.saves.append({**span, "t": start})


def _save_key(record: dict[str, Any]) -> tuple[Any, Any]:
    return record.get("path"), record.get("step")
