"""Reads a log of any length as a stream and keeps the few lines that may tell why it ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO, NamedTuple

from headway.launch.failures import codes
from headway.launch.failures.findings import find
from headway.launch.failures.lines import Line, parse
from headway.launch.failures.signatures import DIGITS, hints
from headway.launch.failures.tracebacks import HEADER, Tracebacks
from headway.launch.failures.verdict import Fact

CHUNK = 1 << 20
LINE = 1 << 16  # bytes of a line that are kept; the rest is passed over
SHAPES = 200_000  # kinds of lines that are remembered
OF_A_KIND = 4  # facts that are kept of one rank and one signature: the first and the last ones
KINDS_KEPT = 4000
TABLE = 3  # lines of a table above the exit code
FORGOTTEN = 64  # steps after which it is not even reported
SURVIVED = 3  # steps after which whatever was before did not end the training
WORDS = 200_000  # words that are known to tell nothing
ORDINARY, PROGRESS, TELLING, NOISE = range(1, 5)

_PROGRESS = re.compile(
    rb"\d+/\d+ \[\d|it/s|s/it|(?:step|iter|iteration|epoch|update|batch)s?['\"\]]?[ :=#\[/]+\d.{0,200}?"
    rb"(?:loss|lr|time|eta|throughput|tok|sample|grad|acc|ppl|mem|ms\b)"
    rb"|loss['\"]?[ :=]+[\d.na].{0,200}?(?:step|iter|epoch|lr|learning_rate)|['\"]loss['\"]: ",
    re.IGNORECASE,
)
_STEPPING = re.compile(rb"loss|it/s|s/it|step|iter|epoch")
_NOT_TRAINING = re.compile(
    rb"^\W*(?:load|download|map|generat|tokeniz|resolv|fetch|sav|valid|eval|test|filter|extract|pack|group"
    rb"|running tokenizer|sanity|compil|warm|build|read|process|upload|copy|convert|prepar)",
    re.IGNORECASE,
)
_STEP = re.compile(
    rb"(?:step|iter|iteration|update|batch)s?['\"\]]?[ :=#\[/]+(\d+)|(\d+)/\d+ \[|epoch['\"]?[ :=\[]+([\d.]+)",
    re.IGNORECASE,
)
_NOISE = re.compile(
    rb"^\W*(?:frame #\d+|File \"|#\d+ |at \S+ |\*{3,}|={3,}|-{3,}|\^+|NCCL INFO|Thread 0x|Extension modules"
    rb"|<NO_OTHER|Failures:|Root Cause|\[\d+\]:|error_file|traceback +:"
    rb"|warnings\.warn|For debugging|Compile with|CUDA kernel errors)|\s*$"
)
_NAN = re.compile(rb"\bnan\b", re.IGNORECASE)
# The table that torchrun prints at its end, one field a line.
_TABLE = re.compile(r"^\s*(?P<field>time|host|rank|exitcode)\s+: (?P<value>\S+)")


def read_log(
    stream: BinaryIO,
    *,
    rank: int | None = None,
    node: str | None = None,
    file: str = "",
    seen: Callable[[int], None] | None = None,
) -> list[Fact]:
    """The facts of a log, in its order; `seen` is told how many bytes each piece had."""
    reader = _Reader()
    number = 0
    for chunk in _pieces(stream):
        number = reader.take(chunk, number)
        if seen is not None:
            seen(len(chunk))
    found = reader.finish()
    return [
        replace(
            fact,
            rank=rank if fact.rank is None else fact.rank,
            node=node if fact.node is None else fact.node,
            file=file,
        )
        for fact in found
    ]


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, many at a time; a line that is too long is cut."""
    rest = b""
    while chunk := stream.read(CHUNK):
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if end < 0:
            rest = rest if len(rest) > LINE else rest + chunk
            continue
        yield rest + chunk[: end + 1]
        rest = chunk[end + 1 :]
    if rest:
        yield rest


class _Reader:
    """State over a log: kinds of lines met so far, open blocks, steps, facts."""

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}
        self._blocks = Tracebacks()
        self._hints: dict[bytes, tuple[bytes, ...]] = {}
        self._plain: set[bytes] = set()
        self._facts: dict[tuple[int | None, str], list[_Row]] = {}
        self._above: list[bytes] = []
        self._ordinary = 0
        self._steps = 0
        self._last_step = b""
        self._year: int | None = None

    def take(self, piece: bytes, number: int) -> int:
        """Read a piece; returns the number of its last line."""
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        kinds = self._kinds_of(lines)
        if TELLING in kinds or self._facts or self._blocks.open:
            self._read(lines, kinds, number)
        else:
            self._ordinary += kinds.count(ORDINARY)
        return number + len(lines)

    def _read(self, lines: list[bytes], kinds: list[int], number: int) -> None:
        blocks = self._blocks
        for at, (raw, kind) in enumerate(zip(lines, kinds, strict=True)):
            if kind == TELLING or blocks.open:
                self._above = lines[max(0, at - TABLE) : at]
                self._tell(raw, number + at + 1, kind)
            elif kind == ORDINARY:
                self._ordinary += 1
            elif kind == PROGRESS and self._facts:
                self._step(raw)

    def finish(self) -> list[Fact]:
        """All facts in their order, with what came after each."""
        self._keep(self._blocks.flush())
        rows = sorted((row for rows in self._facts.values() for row in rows), key=_line_of)
        return [
            replace(
                row.fact,
                after=self._ordinary - row.ordinary,
                survived=self._steps - row.steps >= SURVIVED,
            )
            for row in rows
        ]

    def _kinds_of(self, lines: list[bytes]) -> list[int]:
        """The kind of each line; lines that differ in digits only are of one kind."""
        known = self._kinds
        if len(known) > SHAPES:
            known.clear()
        bare = [raw.translate(None, DIGITS) for raw in lines]
        found = [known.get(hash(shape), -1) for shape in bare]
        if -1 in found:
            for at, kind in enumerate(found):
                if kind < 0:
                    shape = hash(bare[at])
                    found[at] = known[shape] = known.get(shape) or self._kind(lines[at], bare[at])
        return found

    def _kind(self, raw: bytes, bare: bytes) -> int:
        raw, low = raw[:LINE], bare[:LINE].lower()
        if self._may_tell(low):
            line = parse(raw)
            if HEADER in line.text or "above exception" in line.text or "Exception i" in line.text:
                return TELLING
            if codes.told(line.text) is not None or find(_fact(line, 0)) is not None:
                return TELLING
        if _STEPPING.search(low) and _PROGRESS.search(raw):
            return ORDINARY if _NOT_TRAINING.match(raw) else PROGRESS
        return NOISE if _NOISE.match(raw) or b"NCCL INFO" in raw else ORDINARY

    def _may_tell(self, low: bytes) -> bool:
        """Whether a line has the words without which no line tells; in lower case, no digits."""
        words = low.split()
        if self._plain.issuperset(words):
            return False
        for word in set(words).difference(self._plain):
            for hint in self._hints.get(word) or self._new_word(word):
                if hint in low:
                    return True
        return False

    def _new_word(self, word: bytes) -> tuple[bytes, ...]:
        found = hints(word)
        if len(self._plain) + len(self._hints) > WORDS:
            self._plain.clear()
            self._hints.clear()
        if found:
            self._hints[word] = found
        else:
            self._plain.add(word)
        return found

    def _step(self, raw: bytes) -> None:
        """One more step, if it is another one than the last."""
        found = _STEP.search(raw)
        step = next((one for one in found.groups() if one), raw) if found else raw
        if step != self._last_step:
            self._steps += 1
            self._last_step = step
            if self._steps % FORGOTTEN == 0:
                self._forget()

    def _forget(self) -> None:
        """Drop what was survived long ago, so that memory does not grow with the log."""
        for key, rows in list(self._facts.items()):
            rows[:] = [row for row in rows if self._steps - row.steps < FORGOTTEN]
            if not rows:
                del self._facts[key]

    def _tell(self, raw: bytes, number: int, kind: int) -> None:
        line = parse(raw[:LINE], self._year)
        if "\\n" in line.text and HEADER in line.text:  # a traceback in one line, as JSON has it
            for part in line.text.replace('\\"', '"').split("\\n"):
                self._blocks.feed(line._replace(text=part), number)
            self._keep(self._blocks.flush())
            return
        consumed = self._blocks.feed(line, number)
        self._keep(self._ready())
        if consumed:
            return
        if kind == TELLING and not self._in_table(line, number):
            self._add(_fact(line, number))
            if _PROGRESS.search(raw) and _NAN.search(raw) is None:
                self._step(raw)
        elif kind == PROGRESS:
            self._step(raw)
        elif kind == ORDINARY:
            self._ordinary += 1

    def _ready(self) -> list[Fact]:
        found, self._blocks.ready = self._blocks.ready, []
        return found

    def _keep(self, facts: list[Fact]) -> None:
        for fact in facts:
            self._add(fact)

    def _add(self, fact: Fact) -> None:
        code = codes.told(fact.text) if fact.source == "log" else None
        found = find(fact)
        if code is not None:
            fact = replace(fact, code=code)
        elif found is None:
            return
        key = (fact.rank, found.id if found else f"code {code}")
        if key not in self._facts and len(self._facts) >= KINDS_KEPT:
            return
        rows = self._facts.setdefault(key, [])
        row = _Row(fact, self._steps, self._ordinary)
        if len(rows) < OF_A_KIND:
            rows.append(row)
        else:
            rows[-2:] = [rows[-1], row]

    def _in_table(self, line: Line, number: int) -> bool:
        """Whether the line is the exit code of an entry of torchrun's table: with what is above."""
        if _TABLE.match(line.text) is None:
            return False
        above = [_TABLE.match(parse(raw).text) for raw in self._above]
        told = {found["field"]: found["value"] for found in above if found is not None}
        rank = told.get("rank", "")
        self._add(
            Fact(
                source="log",
                text=line.text.strip(),
                rank=int(rank) if rank.isdecimal() else line.rank,
                node=told.get("host", line.node),
                at=parse(f"{told.get('time', '')} ".encode()).at,
                line=number,
            )
        )
        return True


class _Row(NamedTuple):
    """A fact, and how many steps and ordinary lines stood before it."""

    fact: Fact
    steps: int
    ordinary: int


def _line_of(row: _Row) -> int:
    return row.fact.line


def _fact(line: Line, number: int) -> Fact:
    from headway.launch.failures import wording

    return Fact(
        source="kernel" if line.kernel else "log",
        text=line.text.strip(),
        rank=line.rank,
        node=line.node,
        at=line.at,
        line=number,
        level=line.level or wording.level(line.text),
    )
