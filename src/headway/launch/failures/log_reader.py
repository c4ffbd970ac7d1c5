"""Read a log of any length as a stream, and keep the few lines that may say why it ended.

Lines are first classified by kind, which is fast: most lines of a log differ only in digits.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, NamedTuple

from headway.launch.failures import exit_codes, line_style
from headway.launch.failures.classifier import find_meaning
from headway.launch.failures.log_lines import Line, parse
from headway.launch.failures.model import Fact
from headway.launch.failures.signatures import DECISIVE, DIGITS, hints
from headway.launch.failures.tracebacks import HEADER, Tracebacks, is_part

MAX_LINE_BYTES = 1 << 16  # bytes of a line that are read
MAX_SHAPES = 200_000  # kinds of lines that are cached
MAX_WORDS = 200_000  # irrelevant words that are cached
MAX_WORD_BYTES = 64  # bytes of a word that is cached
ORDINARY, PROGRESS, RELEVANT, NOISE = range(1, 5)

_PROGRESS = re.compile(
    rb"\d+/\d+ \[\d|it/s|s/it|['\"]loss['\"]: "
    rb"|(?:step|iter|iteration|epoch|update|batch)s?['\"\]]?[ :=#\[/]+\d.{0,200}?"
    rb"(?:loss|lr|time|eta|throughput|tok|sample|grad|acc|ppl|mem|ms\b)"
    rb"|loss['\"]?[ :=]+[\d.na].{0,200}?(?:step|iter|epoch|lr|learning_rate)",
    re.IGNORECASE,
)
_STEPPING = re.compile(rb"loss|it/s|s/it|step|iter|epoch")
_NOT_TRAINING = re.compile(
    rb"^\W*(?:load|download|map|generating|tokeniz|resolv|fetch|saving|save|valid|eval|test|filter|extract"
    rb"|pack|group|running tokenizer|sanity|compil|warm|build|read|process|upload|copy|convert"
    rb"|prepar)",
    re.IGNORECASE,
)
_STEP = re.compile(
    rb"(?:step|iter|iteration|update|batch)s?['\"\]]?[ :=#\[/]+(\d+)|(\d+)/\d+ \["
    rb"|epoch['\"]?[ :=\[]+([\d.]+)",
    re.IGNORECASE,
)
_NAN = re.compile(rb"\bnan\b", re.IGNORECASE)
# Parts of something that is reported elsewhere: stacks, rulers, tables.
_NOISE = re.compile(
    rb"^\W*(?:frame #\d+|File \"|#\d+ |at \S+ |\*{3,}|={3,}|-{3,}|\^+|Thread 0x|Extension modules"
    rb"|<NO_OTHER|Failures:|Root Cause|\[\d+\]:|error_file|traceback +:|warnings\.warn"
    rb"|For debugging|Compile with|CUDA kernel errors)|\s*$"
)


class LineKinds:
    """Classifies lines; remembers the kinds of lines and the irrelevant words seen so far."""

    def __init__(self) -> None:
        self._kind_of_shape: dict[int, int] = {}
        self._plain_words: set[bytes] = set()
        self._hints: dict[bytes, tuple[bytes, ...]] = {}

    def classify(self, lines: list[bytes]) -> list[int]:
        """The kind of each line; lines that differ only in digits are of one kind."""
        kinds = self._kind_of_shape
        if len(kinds) > MAX_SHAPES:
            kinds.clear()
        piece = b"\n".join(lines).translate(None, DIGITS)
        shapes = [hash(shape) for shape in piece.split(b"\n")]
        result = [kinds.get(shape, 0) for shape in shapes]
        if 0 in result:
            for index, lowered in enumerate(piece.lower().split(b"\n")):
                if not result[index]:
                    shape = shapes[index]
                    result[index] = kinds[shape] = kinds.get(shape) or self._classify_line(
                        lines[index], lowered
                    )
        return result

    def _classify_line(self, raw: bytes, lowered: bytes) -> int:
        """The kind of a line; `lowered` is the same in lower case without digits."""
        words = lowered.split()
        if not self._plain_words.issuperset(words):
            raw, lowered = raw[:MAX_LINE_BYTES], lowered[:MAX_LINE_BYTES]
            if self._has_keywords(lowered, words) and _is_relevant(parse(raw)):
                return RELEVANT
            if _STEPPING.search(lowered) and _PROGRESS.search(raw):
                return ORDINARY if _NOT_TRAINING.match(raw) else PROGRESS
            if b"NCCL INFO" in raw:
                return NOISE
        return NOISE if _NOISE.match(raw) else ORDINARY

    def _has_keywords(self, lowered: bytes, words: list[bytes]) -> bool:
        """Whether a line has any of the words that every relevant line contains."""
        for word in set(words).difference(self._plain_words):
            word_hints = self._hints.get(word)
            for hint in self._new_word(word) if word_hints is None else word_hints:
                if hint in lowered:
                    return True
        return False

    def _new_word(self, word: bytes) -> tuple[bytes, ...]:
        word_hints = hints(word)
        if len(word) > MAX_WORD_BYTES:
            return word_hints
        if len(self._plain_words) + len(self._hints) > MAX_WORDS:
            self._plain_words.clear()
            self._hints.clear()
        if word_hints or _STEPPING.search(word):
            self._hints[word] = word_hints
        else:
            self._plain_words.add(word)
        return word_hints


def _is_relevant(line: Line) -> bool:
    if is_part(line.text) or exit_codes.parse_exit_code(line.text) is not None:
        return True
    return find_meaning(as_fact(line, 0)) is not None


def as_fact(line: Line, number: int) -> Fact:
    """A line as a fact."""
    return Fact(
        source="kernel" if line.kernel else "log",
        text=line.text.strip(),
        rank=line.rank,
        node=line.node,
        at=line.at,
        line=number,
        level=line.level or line_style.level(line.text),
    )


def step_of(raw: bytes) -> bytes:
    """What distinguishes a progress line from the next: its step, or the whole line."""
    match = _STEP.search(raw)
    return next((group for group in match.groups() if group), raw) if match else raw


def has_finite_loss(raw: bytes) -> bool:
    """Whether it is a progress line with a finite loss."""
    return _PROGRESS.search(raw) is not None and _NAN.search(raw) is None


CHUNK = 1 << 20
MAX_OF_A_KIND = 4  # facts per rank and signature: the first and the last ones
MAX_KINDS = 4000
MAX_FACT_TEXT = 2000  # characters of a fact that are kept
SURVIVED_STEPS = 3  # steps after which an earlier error did not end the training
FORGET_STEPS = 64  # steps after which an earlier error is not reported either
TABLE_LINES = 3  # lines of a table above the exit code
# The table that torchrun prints at its end, one field per line.
_TABLE_FIELD = re.compile(r"^\s*(?P<field>time|host|rank|exitcode|traceback)\s+: (?P<value>\S+)")


def read_log(
    stream: BinaryIO,
    *,
    rank: int | None = None,
    node: str | None = None,
    file: str = "",
    on_read: Callable[[int], None] | None = None,
) -> list[Fact]:
    """The facts of a log, in its order; `on_read` gets the number of bytes of each piece."""
    reader = _LogReader()
    for piece in _pieces(stream):
        reader.read(piece)
        if on_read is not None:
            on_read(len(piece))
    return [
        replace(
            fact,
            rank=rank if fact.rank is None else fact.rank,
            node=node if fact.node is None else fact.node,
            file=file,
        )
        for fact in reader.facts()
    ]


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, many at a time; a line that is too long is cut."""
    rest = b""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    while chunk := stream.read(CHUNK):
        if first and chunk[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            decoder = codecs.getincrementaldecoder("utf-16")("replace")
        first = False
        if decoder is not None:
            chunk = decoder.decode(chunk).encode("utf-8", "replace")
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if end < 0:
            rest = rest if len(rest) > MAX_LINE_BYTES else rest + chunk
            continue
        yield rest + chunk[: end + 1]
        rest = chunk[end + 1 :]
    if rest:
        yield rest


class _Row(NamedTuple):
    """A fact, and the number of steps and ordinary lines before it."""

    fact: Fact
    steps: int
    ordinary: int
    last_word: bool  # of the scheduler: training may continue until it ends the job


class _LogReader:
    """State over a log: kinds of lines, open blocks, steps, and the facts so far."""

    def __init__(self) -> None:
        self._line_kinds = LineKinds()
        self._blocks = Tracebacks()
        self._facts: dict[tuple[int | None, str], list[_Row]] = {}
        self._above: list[bytes] = []
        self._lines = 0
        self._ordinary = 0
        self._steps = 0
        self._last_step = b""

    def read(self, piece: bytes) -> None:
        """Read whole lines. What a progress bar overwrites counts as one line of the file."""
        lines = piece.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        numbers: Sequence[int] = range(self._lines + 1, self._lines + 1 + len(lines))
        self._lines += len(lines)
        if b"\r" in piece:
            parts = [
                (part, number)
                for number, line in zip(numbers, lines, strict=True)
                for part in line.split(b"\r")
                if part
            ]
            lines, numbers = [part for part, _ in parts], [number for _, number in parts]
        if not lines:
            return
        kinds = self._line_kinds.classify(lines)
        if RELEVANT in kinds or self._facts or self._blocks.open:
            self._read(lines, kinds, numbers)
        else:
            self._ordinary += kinds.count(ORDINARY)

    def facts(self) -> list[Fact]:
        """All facts in their order, with what followed each."""
        self._add_all(self._blocks.flush())
        rows = sorted((row for rows in self._facts.values() for row in rows), key=_line_of)
        return [
            replace(
                row.fact,
                after=self._ordinary - row.ordinary,
                survived=self._steps - row.steps >= SURVIVED_STEPS and not row.last_word,
            )
            for row in rows
        ]

    def _read(self, lines: list[bytes], kinds: list[int], numbers: Sequence[int]) -> None:
        for index, (raw, kind) in enumerate(zip(lines, kinds, strict=True)):
            if kind == RELEVANT or self._blocks.open:
                self._above = lines[max(0, index - TABLE_LINES) : index]
                self._read_line(raw[:MAX_LINE_BYTES], numbers[index], kind)
            elif kind == ORDINARY:
                self._ordinary += 1
            elif kind == PROGRESS and self._facts:
                self._step(raw)

    def _step(self, raw: bytes) -> None:
        """Count a step if it differs from the last one."""
        step = step_of(raw)
        if step == self._last_step:
            return
        self._steps += 1
        self._last_step = step
        if self._steps % FORGET_STEPS == 0:
            self._forget()

    def _forget(self) -> None:
        """Drop facts that were survived long ago, so that memory does not grow with the log."""
        for key, rows in list(self._facts.items()):
            rows[:] = [row for row in rows if self._steps - row.steps < FORGET_STEPS]
            if not rows:
                del self._facts[key]

    def _read_line(self, raw: bytes, number: int, kind: int) -> None:
        line = parse(raw)
        before, header, _ = line.text.partition(HEADER)
        if header and "\\n" in line.text:  # a traceback in one line, as in JSON
            for part in line.text.replace('\\"', '"').split("\\n"):
                self._blocks.add_line(line._replace(text=part), number)
            self._add_all(self._blocks.flush())
            return
        if header and before:  # a progress bar or an error without an end of line
            self._add(as_fact(line._replace(text=before), number))
        consumed = self._blocks.add_line(line, number)
        self._add_all(self._blocks.completed())
        if consumed:
            return
        if kind == RELEVANT and not self._in_table(line, number):
            self._add(as_fact(line, number))
            if has_finite_loss(raw):
                self._step(raw)
        elif kind == PROGRESS:
            self._step(raw)
        elif kind == ORDINARY:
            self._ordinary += 1

    def _add_all(self, facts: list[Fact]) -> None:
        for fact in facts:
            self._add(fact)

    def _add(self, fact: Fact) -> None:
        if len(fact.text) > MAX_FACT_TEXT:
            fact = replace(fact, text=fact.text[:MAX_FACT_TEXT])
        code = exit_codes.parse_exit_code(fact.text) if fact.source == "log" else None
        finding = find_meaning(fact)
        if code is not None:
            fact = replace(fact, code=code)
        elif finding is None:
            return
        key = (fact.rank, finding.id if finding else f"code {code}")
        if key not in self._facts and len(self._facts) >= MAX_KINDS:
            return
        is_scheduler_end = (
            finding is not None
            and finding.weight >= DECISIVE
            and finding.category in _SCHEDULER_CAUSES
        )
        row = _Row(fact, self._steps, self._ordinary, is_scheduler_end)
        rows = self._facts.setdefault(key, [])
        if len(rows) < MAX_OF_A_KIND:
            rows.append(row)
        else:
            rows[-2:] = [rows[-1], row]

    def _in_table(self, line: Line, number: int) -> bool:
        """Whether the line belongs to torchrun's table; an exit code is read with what is above."""
        field = _TABLE_FIELD.match(line.text)
        if field is None or field["field"] != "exitcode":
            return field is not None
        above = [_TABLE_FIELD.match(parse(raw).text) for raw in self._above]
        fields = {
            field_match["field"]: field_match["value"]
            for field_match in above
            if field_match is not None
        }
        rank = fields.get("rank", "")
        self._add(
            Fact(
                source="log",
                text=line.text.strip(),
                rank=int(rank) if rank.isdecimal() else line.rank,
                node=fields.get("host", line.node),
                at=parse(f"{fields.get('time', '')} ".encode()).at,
                line=number,
            )
        )
        return True


_SCHEDULER_CAUSES = frozenset({"preemption", "time_limit", "user_cancel", "node_failure"})


def _line_of(row: _Row) -> int:
    return row.fact.line
