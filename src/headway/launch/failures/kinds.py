"""Of what kind a line is, told quickly: most lines of a log differ from others in digits only."""

from __future__ import annotations

import re

from headway.launch.failures import codes, wording
from headway.launch.failures.findings import find_meaning
from headway.launch.failures.lines import Line, parse
from headway.launch.failures.signatures import DIGITS, hints
from headway.launch.failures.tracebacks import is_part
from headway.launch.failures.verdict import Fact

MAX_LINE_BYTES = 1 << 16  # bytes of a line that are looked at
MAX_SHAPES = 200_000  # kinds of lines that are remembered
MAX_WORDS = 200_000  # words that are known to tell nothing
MAX_WORD_BYTES = 64  # letters of a word that is remembered
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
# Parts of something that is told elsewhere: stacks, rulers, tables.
_NOISE = re.compile(
    rb"^\W*(?:frame #\d+|File \"|#\d+ |at \S+ |\*{3,}|={3,}|-{3,}|\^+|Thread 0x|Extension modules"
    rb"|<NO_OTHER|Failures:|Root Cause|\[\d+\]:|error_file|traceback +:|warnings\.warn"
    rb"|For debugging|Compile with|CUDA kernel errors)|\s*$"
)


class LineKinds:
    """Knows the kinds of the lines that were met, and the words that tell nothing."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._plain: set[bytes] = set()
        self._hints: dict[bytes, tuple[bytes, ...]] = {}

    def of(self, lines: list[bytes]) -> list[int]:
        """The kind of each line; lines that differ in digits only are of one kind."""
        known = self._known
        if len(known) > MAX_SHAPES:
            known.clear()
        piece = b"\n".join(lines).translate(None, DIGITS)
        shapes = [hash(shape) for shape in piece.split(b"\n")]
        found = [known.get(shape, 0) for shape in shapes]
        if 0 in found:
            for at, low in enumerate(piece.lower().split(b"\n")):
                if not found[at]:
                    shape = shapes[at]
                    found[at] = known[shape] = known.get(shape) or self._of(lines[at], low)
        return found

    def _of(self, raw: bytes, low: bytes) -> int:
        """The kind of a line; `low` is the same in lower case and without digits."""
        words = low.split()
        if not self._plain.issuperset(words):
            raw, low = raw[:MAX_LINE_BYTES], low[:MAX_LINE_BYTES]
            if self._may_tell(low, words) and _is_relevant(parse(raw)):
                return RELEVANT
            if _STEPPING.search(low) and _PROGRESS.search(raw):
                return ORDINARY if _NOT_TRAINING.match(raw) else PROGRESS
            if b"NCCL INFO" in raw:
                return NOISE
        return NOISE if _NOISE.match(raw) else ORDINARY

    def _may_tell(self, low: bytes, words: list[bytes]) -> bool:
        """Whether a line has the words without which no line tells."""
        for word in set(words).difference(self._plain):
            found = self._hints.get(word)
            for hint in self._new_word(word) if found is None else found:
                if hint in low:
                    return True
        return False

    def _new_word(self, word: bytes) -> tuple[bytes, ...]:
        found = hints(word)
        if len(word) > MAX_WORD_BYTES:
            return found
        if len(self._plain) + len(self._hints) > MAX_WORDS:
            self._plain.clear()
            self._hints.clear()
        if found or _STEPPING.search(word):
            self._hints[word] = found
        else:
            self._plain.add(word)
        return found


def _is_relevant(line: Line) -> bool:
    if is_part(line.text) or codes.parse_exit_code(line.text) is not None:
        return True
    return find_meaning(as_fact(line, 0)) is not None


def as_fact(line: Line, number: int) -> Fact:
    """A line as a fact of its own."""
    return Fact(
        source="kernel" if line.kernel else "log",
        text=line.text.strip(),
        rank=line.rank,
        node=line.node,
        at=line.at,
        line=number,
        level=line.level or wording.level(line.text),
    )


def step_of(raw: bytes) -> bytes:
    """What tells one line of progress from the next: its step, or all of it."""
    found = _STEP.search(raw)
    return next((one for one in found.groups() if one), raw) if found else raw


def has_finite_loss(raw: bytes) -> bool:
    """Whether a line is one of progress, with a loss that is a number."""
    return _PROGRESS.search(raw) is not None and _NAN.search(raw) is None
