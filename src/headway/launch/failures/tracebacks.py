"""Parse Python tracebacks as blocks, also where ranks are mixed or lines have prefixes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from headway.launch.failures.log_lines import Line
from headway.launch.failures.model import Fact

HEADER = "Traceback (most recent call last)"
MAX_BLOCK_LINES = 600  # lines after which a block without an exception is dropped
MAX_OPEN_LINES = 5000  # lines of other ranks after which an open block is dropped
MAX_CHANNELS = 10_000  # distinct ranks and nodes
MAX_FRAMES = 4  # innermost frames that are kept
MIN_PREFIX = 4
MAX_MESSAGE_LINES = 3  # further lines of a message that are read if the first is empty

_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line \d+(?:, in (?P<name>\S+))?')
_BOX_FRAME = re.compile(r"^\s*[│|]\s*(?P<path>\S+\.py):\d+ in (?P<name>\S+)")
_NOTEBOOK_FRAME = re.compile(r"^(?P<path>\S+\.py) in (?P<name>\w+)\(")
_BOX = re.compile(r"^\s*[│╭╰┌└|]")
_EXCEPTION = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(\w+\))?(?:: ?(?P<message>.*)|)$"
)
_NAMED = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|Failed|Failure|Timeout|TimeOut|Died|Empty|Full|Iteration"
    r"|Closed|Unsupported|Resources|Abort|Aborted|Killed|Canceled|Cancelled|Refused|Unavailable|NotFound"
    r"|Conflict|LimitHit|Fault|Exhausted|error|timeout|gaierror|herror)$"
)
_LINKS = (
    "During handling of the above exception",
    "The above exception was the direct cause",
    "terminated with the following error",
)
_ALONE = re.compile(
    r"^(?:(?:[a-zA-Z_]\w*\.)+(?:[A-Z]\w*|error)|\w+(?:Error|Exception|Failed)|KeyboardInterrupt|SystemExit)"
    r"(?:\(\w+\))?(?:: |:?$)"
)
_ASIDE = re.compile(
    r"^(?:Exception ignored in|Exception in thread |Error in sys\.excepthook|Error in atexit)"
)
_Key = tuple[int | None, str | None]


@dataclass(slots=True)
class _Channel:
    """The state of the block of one process."""

    open: bool = False
    prefix: str = ""
    frames: list[str] = field(default_factory=list)
    source: str = ""  # the last line with an assert
    lines: int = 0
    chain: int = 0
    is_linked: bool = False
    in_worker: bool = False  # the traceback of a worker, reported by its parent
    is_secondary: bool = False  # raised in a destructor or a thread: it ended no process
    indented: bool = False
    result: Fact | None = None
    missing_lines: int = 0


class Tracebacks:
    """Reads lines, returns an exception for each block; ranks may be mixed."""

    def __init__(self) -> None:
        self._channels: dict[_Key, _Channel] = {}
        self._active: set[_Key] = set()
        self._waited_lines = 0
        self._chains = 0
        self._ready: list[Fact] = []

    @property
    def open(self) -> bool:
        """Whether any block is incomplete."""
        return bool(self._active)

    def add_line(self, line: Line, number: int) -> bool:
        """Read a line; True if it is part of a block and has no meaning of its own."""
        key = (line.rank, line.node)
        channel = self._channels.get(key)
        if HEADER in line.text:
            self._begin(key, line)
            return True
        if channel is None:
            if _ASIDE.match(line.text):
                self._channels[key] = _Channel(is_secondary=True)
            self._limit_open_blocks()
            return False
        text = _strip_prefix(channel.prefix, line.text)
        if channel.open:
            part = self._read_block_line(channel, text, line, number)
        else:
            part = False
            self._read_other_line(channel, text)
        if not channel.open and not channel.missing_lines:
            self._active.discard(key)
        self._limit_open_blocks()
        return part

    def completed(self) -> list[Fact]:
        """The exceptions that are complete."""
        completed_facts, self._ready = self._ready, []
        return completed_facts

    def flush(self) -> list[Fact]:
        """All exceptions at the end of a log, complete or not."""
        for channel in self._channels.values():
            self._finish(channel)
        self._active.clear()
        return self.completed()

    def _limit_open_blocks(self) -> None:
        """Bounded wait: a rank may die while it writes a traceback."""
        self._waited_lines = self._waited_lines + 1 if self._active else 0
        if self._waited_lines > MAX_OPEN_LINES:
            for key in self._active:
                self._channels[key].open = False
                self._finish(self._channels[key])
            self._active.clear()

    def _begin(self, key: _Key, line: Line) -> None:
        if len(self._channels) > MAX_CHANNELS:
            self._channels = {active_key: self._channels[active_key] for active_key in self._active}
        channel = self._channels.setdefault(key, _Channel())
        self._finish(channel)
        self._active.add(key)
        self._waited_lines = 0
        before = line.text.partition(HEADER)[0]
        is_inner = before.rstrip().endswith("Original")
        if not channel.is_linked and not is_inner:
            self._chains += 1
            channel.chain = self._chains
        channel.in_worker = is_inner
        channel.prefix = "" if is_inner or "─" in before or len(before) > 200 else before
        channel.open, channel.lines, channel.frames, channel.source = True, 0, [], ""
        channel.is_linked, channel.indented = False, False

    def _read_block_line(self, channel: _Channel, text: str, line: Line, number: int) -> bool:
        channel.lines += 1
        frame = _FRAME.match(text) or _BOX_FRAME.match(text) or _NOTEBOOK_FRAME.match(text)
        if frame is not None:
            channel.indented = channel.indented or text[:1] in " \t"
            channel.frames = [
                *channel.frames[1 - MAX_FRAMES :],
                f"{frame['path']}:{frame['name'] or ''}",
            ]
            return True
        if channel.lines > MAX_BLOCK_LINES:
            channel.open = False
            return False
        exception = None if _BOX.match(text) else _EXCEPTION.match(text.rstrip())
        if exception is None or not _is_exception_name(exception["kind"], channel.indented):
            channel.source = text.strip() if "assert" in text else channel.source
            return True
        channel.open = False
        message = (exception["message"] or "").strip()
        if not message and exception["kind"] == "AssertionError":  # the assertion is its message
            message = channel.source
            text = f"AssertionError: {message}"
        channel.missing_lines = MAX_MESSAGE_LINES if not message or message.endswith(":") else 0
        channel.result = Fact(
            source="log" if channel.is_secondary else "exception",
            text=text.strip(),
            rank=line.rank,
            node=line.node,
            at=line.at,
            line=number,
            level="warning" if channel.is_secondary else "error",
            within=" ".join([*channel.frames, "DataLoader worker" * channel.in_worker]),
            chain=channel.chain,
        )
        channel.is_secondary = False
        if not channel.missing_lines:
            self._finish(channel)
        return True

    def _read_other_line(self, channel: _Channel, text: str) -> None:
        if any(link in text for link in _LINKS):
            channel.is_linked = True
            self._finish(channel)
        elif _ASIDE.match(text):
            channel.is_secondary = True
        elif channel.missing_lines and channel.result is not None and text.strip():
            channel.missing_lines -= 1
            joined = f"{channel.result.text} {text.strip()}"
            channel.result = replace(channel.result, text=joined)
            if not channel.missing_lines:
                self._finish(channel)

    def _finish(self, channel: _Channel) -> None:
        if channel.result is not None:
            self._ready.append(channel.result)
        channel.result, channel.missing_lines = None, 0


def is_part(text: str) -> bool:
    """Whether a line belongs to a traceback or links it with another one."""
    return HEADER in text or any(link in text for link in _LINKS) or _ASIDE.match(text) is not None


def looks_raised(text: str) -> bool:
    """Whether a line looks like the last line of a traceback."""
    return _ALONE.match(text) is not None


def _is_exception_name(kind: str, indented: bool) -> bool:
    last = kind.rpartition(".")[2]
    if last.isupper() and len(last) > 1:
        return False
    if _NAMED.search(last):
        return True
    if "." in kind:
        return last[:1].isupper()
    return indented and last[:1].isupper() and any(letter.islower() for letter in last)


def _strip_prefix(prefix: str, text: str) -> str:
    """The line without what it has in common with the text before the block's header.

    Digits may differ; less than a word and a separator after it is not a prefix.
    """
    if not prefix:
        return text
    pairs = zip(_mask_digits(prefix), _mask_digits(text), strict=False)
    common = next(
        (index for index, (left, right) in enumerate(pairs) if left != right), len(prefix)
    )
    common = min(common, len(text))
    if common < len(prefix):
        common = max(text.rfind(mark, 0, common) + len(mark) for mark in (": ", "] ", "| "))
    return text[common:] if common >= MIN_PREFIX else text


def _mask_digits(text: str) -> str:
    return re.sub(r"\d", "0", text)
