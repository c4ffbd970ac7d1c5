"""Python tracebacks, read as blocks: frames are places, source lines are no news."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headway.launch.failures.lines import Line
from headway.launch.failures.verdict import Fact

HEADER = "Traceback (most recent call last)"
LONGEST = 600  # lines after which a block without an exception is given up
FRAMES = 4  # innermost frames that are kept
CONTINUED = 3  # lines of a message that are taken where the first says nothing

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
    r"^(?:(?:[a-zA-Z_]\w*\.)+[A-Z]\w*|\w+(?:Error|Exception|Failed)|KeyboardInterrupt|SystemExit)(?:\(\w+\))?(?:: |:?$)"
)
IGNORED = re.compile(r"^(?:Exception ignored in|Error in sys\.excepthook|Error in atexit)")
THREAD = re.compile(r"^Exception in thread ")


@dataclass(slots=True)
class _Channel:
    """What one process has written of a block so far."""

    open: bool = False
    prefix: str = ""
    frames: list[str] = field(default_factory=list)
    lines: int = 0
    chain: int = 0
    linked: bool = False
    worker: bool = False  # the block is one of a worker, told by its parent
    aside: bool = False  # raised in a destructor or a thread: it ended no process
    indented: bool = False
    done: Fact | None = None
    wanted: int = 0


class Tracebacks:
    """Takes lines, gives an exception for each block; ranks may be mixed."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int | None, str | None], _Channel] = {}
        self._chains = 0
        self.ready: list[Fact] = []

    @property
    def open(self) -> bool:
        """Whether some block still waits for its end."""
        return any(one.open or one.wanted for one in self._channels.values())

    def feed(self, line: Line, number: int) -> bool:
        """Take a line; True if it is part of a block and tells nothing by itself."""
        key = (line.rank, line.node)
        channel = self._channels.get(key)
        if HEADER in line.text:
            self._begin(key, line)
            return True
        if channel is None:
            if IGNORED.match(line.text) or THREAD.match(line.text):
                self._channels[key] = _Channel(aside=True)
            return False
        text = _without(channel.prefix, line.text)
        if channel.open:
            return self._inside(channel, text, line, number)
        self._outside(channel, text)
        return False

    def flush(self) -> list[Fact]:
        """Every exception that is complete; at the end of a log, all."""
        for channel in self._channels.values():
            self._finish(channel)
        found, self.ready = self.ready, []
        return found

    def _begin(self, key: tuple[int | None, str | None], line: Line) -> None:
        channel = self._channels.setdefault(key, _Channel())
        self._finish(channel)
        before = line.text.partition(HEADER)[0]
        inner = before.rstrip().endswith("Original")
        if not channel.linked and not inner:
            self._chains += 1
            channel.chain = self._chains
        channel.worker = inner
        channel.prefix = "" if inner or "─" in before or len(before) > 200 else before
        channel.open, channel.lines, channel.frames = True, 0, []
        channel.linked, channel.indented = False, False

    def _inside(self, channel: _Channel, text: str, line: Line, number: int) -> bool:
        channel.lines += 1
        frame = _FRAME.match(text) or _BOX_FRAME.match(text) or _NOTEBOOK_FRAME.match(text)
        if frame is not None:
            channel.indented = channel.indented or text[:1] in " \t"
            channel.frames = [
                *channel.frames[1 - FRAMES :],
                f"{frame['path']}:{frame['name'] or ''}",
            ]
            return True
        if channel.lines > LONGEST:
            channel.open = False
            return False
        found = None if _BOX.match(text) else _EXCEPTION.match(text.rstrip())
        if found is None or not _plausible(found["kind"], channel.indented):
            return True
        channel.open = False
        message = (found["message"] or "").strip()
        channel.wanted = CONTINUED if not message or message.endswith(":") else 0
        channel.done = Fact(
            source="log" if channel.aside else "exception",
            text=text.strip(),
            rank=line.rank,
            node=line.node,
            at=line.at,
            line=number,
            level="warning" if channel.aside else "error",
            within=" ".join([*channel.frames, "DataLoader worker" * channel.worker]),
            chain=channel.chain,
        )
        channel.aside = False
        if not channel.wanted:
            self._finish(channel)
        return True

    def _outside(self, channel: _Channel, text: str) -> None:
        if any(link in text for link in _LINKS):
            channel.linked = True
            self._finish(channel)
        elif IGNORED.match(text) or THREAD.match(text):
            channel.aside = True
        elif channel.wanted and channel.done is not None and text.strip():
            channel.wanted -= 1
            joined = f"{channel.done.text} {text.strip()}"
            channel.done = _with_text(channel.done, joined)
            if not channel.wanted:
                self._finish(channel)

    def _finish(self, channel: _Channel) -> None:
        if channel.done is not None:
            self.ready.append(channel.done)
        channel.done, channel.wanted = None, 0


def looks_raised(text: str) -> bool:
    """Whether a line has the form of an exception's last line, without its traceback."""
    return _ALONE.match(text) is not None


def _plausible(kind: str, indented: bool) -> bool:
    last = kind.rpartition(".")[2]
    if last.isupper() and len(last) > 1:
        return False
    if _NAMED.search(last):
        return True
    if "." in kind:
        return last[:1].isupper()
    return indented and last[:1].isupper() and any(letter.islower() for letter in last)


def _without(prefix: str, text: str) -> str:
    """The line without the prefix that the block's first line had; digits may differ."""
    if not prefix or len(text) < len(prefix):
        return text
    head = text[: len(prefix)]
    return text[len(prefix) :] if _blurred(head) == _blurred(prefix) else text


def _blurred(text: str) -> str:
    return re.sub(r"\d", "0", text)


def _with_text(fact: Fact, text: str) -> Fact:
    from dataclasses import replace

    return replace(fact, text=text)
