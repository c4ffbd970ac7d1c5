"""Synthetic journals on a fake clock, for tests of anything that reads a run.

    job = FakeRun()
    launcher = job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.span("train_module_creation", 1, 5)
    rank.train(first=1, count=100, start=5, each=0.5)
    launcher.exit(60, code=0)
    ledger = job.ledger()

Times are true seconds; each `Host` sees them through its own two clocks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.journal import pulse, writer
from headway.journal.reader import Journal, parse
from headway.ledger.build import build_ledger
from headway.ledger.model import Ledger
from headway.units import NS

EPOCH = 1_790_000_000  # wall-clock time at true second 0


@dataclass(frozen=True)
class Host:
    """A machine: name, boot id, and offsets of its clocks from true time in seconds."""

    name: str = "node0"
    boot: str = "boot-0"
    monotonic: float = 1000.0
    wall: float = 0.0


@dataclass
class FakeJournal:
    """The journal of one process, written line by line."""

    name: str
    host: Host
    lines: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    next_id: int = 1

    def at(self, seconds: float) -> int:
        """True seconds on this host's journal clock."""
        return round((seconds + self.host.monotonic) * NS)

    def event(self, ev: str, t: float, **fields: Any) -> None:
        """Write an event that needs only a time."""
        self.lines.append({"ev": ev, "t": self.at(t), **fields})

    def open(self, name: str, t: float, *, th: int = 0, **fields: Any) -> int:
        """Begin a span; return its id."""
        span = self.next_id
        self.next_id += 1
        line = {"ev": "open", "id": span, "t": self.at(t), "name": name, "th": th, **fields}
        self.lines.append(line)
        return span

    def close(self, span: int, t: float, **fields: Any) -> None:
        """End a span."""
        self.lines.append({"ev": "close", "id": span, "t": self.at(t), **fields})

    def span(self, name: str, start: float, end: float, *, th: int = 0, **fields: Any) -> None:
        """Write a complete span."""
        self.close(self.open(name, start, th=th, **fields), end)

    def train(
        self, first: int, count: int, start: float, each: float, *, wait: float = 0.0
    ) -> float:
        """Write `count` steps of `each` seconds; return when the last one ended."""
        begin = start if self.steps else 0.0
        for number in range(1, count + 1):
            end = start + number * each
            due = self.steps + number == 1 or number == count or end - begin >= 1.0
            if not due:
                continue
            self.lines.append(
                {
                    "ev": "steps",
                    "t": self.at(begin) if begin else 0,
                    "end": self.at(end),
                    "first": first,
                    "last": self.steps + number,
                    "wait": round(wait * NS) if number == count else 0,
                    "batches": self.steps + number - first + 1,
                }
            )
            first = self.steps + number + 1
            begin = end
        self.steps += count
        self.cells[pulse.STEPS] = self.steps
        self.cells[pulse.LAST_STEP] = self.at(start + count * each)
        return start + count * each

    def exit(self, t: float, **fields: Any) -> None:
        """Write the last line of the process; for a launcher, with the exit code of the command."""
        self.event("exit", t, **fields)

    def data(self) -> bytes:
        """The content of the journal file."""
        return b"".join(writer.encode(line) for line in self.lines)

    def page(self) -> bytes:
        """The content of the pulse page."""
        alive = max([line["t"] for line in self.lines if line["ev"] != "drain"], default=0)
        cells = {pulse.MAGIC_CELL: pulse.MAGIC, pulse.ALIVE: alive, **self.cells}
        values = [cells.get(index, 0) for index in range(pulse.CELLS)]
        return struct.pack(f"<{pulse.CELLS}q", *values).ljust(pulse.SIZE, b"\0")

    def journal(self) -> Journal:
        """The journal as the reader parses it."""
        journal = parse(self.data(), self.name)
        assert journal is not None
        return journal


@dataclass
class FakeRun:
    """A run folder in memory."""

    journals: list[FakeJournal] = field(default_factory=list)

    def launcher(
        self,
        begin: float,
        *,
        launch: str = "L0",
        index: int = 0,
        host: Host | None = None,
        spawn: float | None = None,
        **head: Any,
    ) -> FakeJournal:
        """The journal of the launcher of one launch; it starts the command at `spawn`."""
        siblings = sum(journal.name.startswith(f"launcher-{launch}") for journal in self.journals)
        name = f"launcher-{launch}" + (f"-{siblings}" if siblings else "")
        journal = self._journal(
            name, "launcher", begin, host or Host(), launch, index=index, **head
        )
        journal.event("spawn", begin if spawn is None else spawn, command=["train"], pid=1)
        return journal

    def process(
        self,
        begin: float,
        *,
        rank: int | None = 0,
        world: int | None = 1,
        restart: int = 0,
        launch: str = "L0",
        host: Host | None = None,
        pid: int | None = None,
        **head: Any,
    ) -> FakeJournal:
        """A process started by the launcher."""
        number = pid if pid is not None else 100 + len(self.journals)
        name = f"{(host or Host()).name}-{number}-{len(self.journals)}"
        return self._journal(
            name,
            "process",
            begin,
            host or Host(),
            launch,
            rank=rank,
            world=world,
            restart=restart,
            pid=number,
            **head,
        )

    def _journal(
        self, name: str, role: str, begin: float, host: Host, launch: str, **head: Any
    ) -> FakeJournal:
        journal = FakeJournal(name, host)
        line = {
            "ev": "head",
            "schema": writer.SCHEMA,
            "role": role,
            "t": journal.at(begin),
            "wall": round((EPOCH + begin + host.wall) * NS),
            "boot": host.boot,
            "host": host.name,
            "pid": 1,
            "begin": journal.at(begin),
            "launch": launch,
            **head,
        }
        journal.lines.append(line)
        self.journals.append(journal)
        return journal

    def ledger(self, run: str = "fake") -> Ledger:
        """The ledger of the run."""
        return build_ledger([journal.journal() for journal in self.journals], run=run)

    def write(self, folder: Path) -> Path:
        """Write a run folder to disk, including pulse pages."""
        journal_folder = folder / "journal"
        journal_folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text('{"schema": 1, "run": "fake"}')
        for journal in self.journals:
            (journal_folder / f"{journal.name}.jsonl").write_bytes(journal.data())
            (journal_folder / f"{journal.name}.pulse").write_bytes(journal.page())
        return folder
