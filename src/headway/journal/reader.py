"""Parse journals, whatever state they are in.

A torn last line, a damaged line, unknown fields and unknown events are skipped and counted; only a
journal of a newer schema is refused. `has_ended` tells whether the writer of a journal without an
exit line is dead.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.errors import NewerSchema
from headway.journal import file_access, step_windows
from headway.journal import pulse as pulse_page
from headway.journal.pulse import LIMIT, Pulse
from headway.journal.step_windows import Window, Windows
from headway.journal.writer import SCHEMA, started_at
from headway.storage.process_identity import boot_id, pid_space

TICK_NS = 20_000_000  # the kernel reports start times in ticks, rounded up here
SILENT_NS = 600_000_000_000  # for processes of other hosts; file systems delay their pulse pages
DIGITS = 20
_LONG = re.compile(rb"\d{%d}" % (DIGITS - 2))


@dataclass(slots=True)
class Span:
    """A named interval; `end` is None while it is open."""

    start: int
    end: int | None
    name: str
    thread: int
    fields: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Journal:
    """One process's record, on its own clock."""

    name: str
    role: str
    boot: str
    host: str
    pid: int
    begin: int
    opened: int
    wall: int
    file_clock: int | None = None
    rank: int | None = None
    world: int | None = None
    restart: int = 0
    helper: bool = False
    launch: str = ""
    argv: tuple[str, ...] = ()
    spans: list[Span] = field(default_factory=list)
    windows: Windows = field(default_factory=Windows)
    events: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    damaged: int = 0
    latest: int = 0  # the last time in its events and spans
    ended: bool = False  # its process has ended, with or without an exit line: see `has_ended`
    pulse: Pulse | None = None

    def named(self, *names: str) -> Iterator[dict[str, Any]]:
        """The events with these names, in the order of writing."""
        return (event for event in self.events if event["ev"] in names)

    @property
    def pids(self) -> int | None:
        """The pid namespace of its process; None if that is not known."""
        space = self.facts.get("pids")
        return space if type(space) is int else None

    def last_sign(self) -> int:
        """The last time at which this process is known to have been alive."""
        times = [self.opened, self.latest]
        if self.windows:
            times.append(self.windows.end[-1])
        if self.pulse:
            times += [self.pulse.alive, self.pulse.last_step, self.pulse.waiting]
        return max(times)


def read_journals(folder: str) -> tuple[list[Journal], list[str]]:
    """All journals of a run, and a message for each file that could not be used."""
    journals: list[Journal] = []
    problems: list[str] = []
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(".jsonl"):
            continue
        path = os.path.join(folder, entry)
        try:
            data = file_access.read_file(path, file_access.JOURNAL_LIMIT)
        except OSError as error:
            problems.append(f"{entry} cannot be read: {error.strerror}")
            continue
        page = pulse_page.read(path.removesuffix(".jsonl") + ".pulse")
        journal = parse(data, entry.removesuffix(".jsonl"), page)
        if journal is None:
            problems.append(f"{entry} was skipped: its first line cannot be read")
            continue
        if journal.damaged:
            problems.append(f"{entry}: {journal.damaged} damaged line(s) skipped")
        journals.append(journal)
    return journals, problems


def parse(data: bytes, name: str, pulse: Pulse | None = None) -> Journal | None:
    """Parse a journal; None if its first line cannot be read."""
    lines = data.split(b"\n")
    if not lines[-1].endswith(b"}"):  # torn by a kill, or empty when the last line is whole
        lines.pop()
    steps: list[bytes] = []
    others: list[bytes] = []
    for line in lines:
        (steps if line.startswith(step_windows.PREFIX) else others).append(line)
    records, damaged = _decode(line for line in others if line)
    head = records.pop(0) if records and records[0]["ev"] == "head" else None
    if head is None:
        return None
    journal = _from_head(head, name)
    if journal is None:
        return None
    journal.pulse = pulse
    journal.damaged = damaged
    journal.windows = _windows(steps, records, journal)
    _fill(journal, records)
    _close_with_pulse(journal)
    return journal


def _integer(text: str) -> int | str:
    """Convert an integer; a number out of range remains a text, so that it is not used."""
    value = int(text) if len(text) < DIGITS else LIMIT
    return value if abs(value) < LIMIT else text


_plain, _careful = json.JSONDecoder(), json.JSONDecoder(parse_int=_integer)


def _decode(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    records, damaged = [], 0
    for line in lines:
        try:
            record = (_plain if _LONG.search(line) is None else _careful).decode(line.decode())
        except (ValueError, RecursionError):
            damaged += 1
            continue
        if isinstance(record, dict) and isinstance(record.get("ev"), str) and _time(record, "t"):
            records.append(record)
        else:
            damaged += 1
    return records, damaged


def _from_head(head: Mapping[str, Any], name: str) -> Journal | None:
    schema = head.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise NewerSchema(
            f"the journal {name} has schema {schema}, newer than {SCHEMA}, which this version "
            "reads; install a newer Headway"
        )
    try:
        fields: dict[str, Any] = {
            "role": _text(head["role"]),
            "boot": _text(head["boot"]),
            "host": _text(head["host"]),
            "pid": _count(head["pid"]),
            "begin": min(_count(head["begin"]), _count(head["t"])),
            "opened": _count(head["t"]),
            "wall": _count(head["wall"]),
            "file_clock": _maybe(head.get("fs")),
            "rank": _maybe(head.get("rank")),
            "world": _maybe(head.get("world")),
            "restart": _count(head.get("restart") or 0),
            "helper": head.get("helper") is True,
            "launch": _text(head.get("launch") or ""),
            "argv": tuple(str(word) for word in head.get("argv") or ()),
        }
    except (KeyError, TypeError, ValueError):
        return None
    rest = {key: value for key, value in head.items() if key not in fields}
    return Journal(name=name, facts=rest, **fields)


def _windows(lines: list[bytes], others: list[dict[str, Any]], journal: Journal) -> Windows:
    """Windows from the lines of `Writer`; `others` may have lines of another writer."""
    foreign = [record for record in others if record["ev"] == "steps"]
    windows = step_windows.parse_all(lines) if lines and not foreign else None
    if windows is not None:
        return windows
    records, damaged = _decode(lines)
    journal.damaged += damaged
    rows = []
    for record in [*records, *foreign]:
        try:
            rows.append(_window(record))
        except (KeyError, TypeError, ValueError):
            journal.damaged += 1
    return Windows(sorted(rows, key=lambda row: row.last) if foreign else rows)


def _window(record: dict[str, Any]) -> Window:
    return Window(
        start=_count(record["t"]),
        end=_count(record["end"]),
        first=_count(record["first"]),
        last=_count(record["last"]),
        wait=_count(record.get("wait") or 0),
        batches=_count(record.get("batches") or 0),
    )


def _fill(journal: Journal, records: Iterable[dict[str, Any]]) -> None:
    opened: dict[int, Span] = {}
    for record in records:
        kind = record["ev"]
        if kind == "steps":
            continue
        try:
            if kind == "open":
                span = _span(record, None)
                opened[_count(record["id"])] = span
                journal.spans.append(span)
            elif kind == "close":
                span = opened[_count(record["id"])]
                span.end = max(record["t"], span.start)
                span.fields.update(_extra(record))
            elif kind == "detail":
                opened[_count(record["id"])].fields.update(_extra(record))
            elif kind == "span":
                span = _span(record, max(_count(record["end"]), record["t"]))
                journal.spans.append(span)
                journal.latest = max(journal.latest, span.end or 0)
            else:
                _check_event(record)
                journal.events.append(record)
            if kind != "drain":  # of the device: written later
                journal.latest = max(journal.latest, record["t"])
        except (KeyError, TypeError, ValueError):
            journal.damaged += 1
    for event in journal.named("rank"):
        journal.rank = event["rank"]
        journal.world = event.get("world")


def _check_event(record: dict[str, Any]) -> None:
    """Check the types of fields that the ledger computes with."""
    for key in ("pid", "rank", "world", "ns", "lines", "local_rank", "step", "samples"):
        if record.get(key) is not None:
            _count(record[key])
    kind = str if record["ev"] in ("note", "behind") else int  # code of a problem, or exit code
    if record.get("code") is not None and not isinstance(record["code"], kind):
        raise ValueError(record["code"])
    if record["ev"] == "rank" and "rank" not in record:
        raise KeyError("rank")


def _span(record: dict[str, Any], end: int | None) -> Span:
    fields = _extra(record)
    if fields.get("step") is not None:
        _count(fields["step"])
    return Span(record["t"], end, _text(record["name"]), _count(record.get("th") or 0), fields)


def _extra(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k not in ("ev", "id", "t", "end", "name", "th")}


def _close_with_pulse(journal: Journal) -> None:
    """Add the steps after the last summary line, from the pulse page."""
    page = journal.pulse
    if page is None:
        return
    last = journal.windows.last[-1] if journal.windows else 0
    end = journal.windows.end[-1] if journal.windows else 0
    if page.steps > last and page.last_step >= end:
        start = max(page.window_at, end)
        if page.last_step < start:
            start = page.last_step
        batches = max(page.batches - page.window_batches, 0)
        tail = Window(start, page.last_step, last + 1, page.steps, page.wait, batches)
        journal.windows.append(tail)


def _time(record: Mapping[str, Any], key: str) -> bool:
    value = record.get(key)
    return type(value) is int and 0 <= value < LIMIT


def _count(value: Any) -> int:
    if type(value) is int and 0 <= value < LIMIT:
        return value
    raise ValueError(value)


def _maybe(value: Any) -> int | None:
    return None if value is None else _count(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(value)


def has_ended(journal: Journal, wall: int) -> bool:
    """Whether the process of a journal has ended; `wall`: the wall clock now, in ns.

    A process of this boot is looked up by its pid, for others the last sign of life decides. For
    journals without a pid namespace, which Headway did not write, the result is False.
    """
    pids = journal.facts.get("pids")
    if pids is None:
        return False
    if journal.boot == boot_id() and pids == pid_space():
        began = started_at(journal.pid)
        return began is None or began > journal.opened + TICK_NS
    return wall - (journal.wall + journal.last_sign() - journal.opened) > SILENT_NS
