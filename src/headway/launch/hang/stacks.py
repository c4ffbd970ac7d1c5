"""Request the stacks of processes from outside, and compare where ranks are."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from headway.launch.rank_tail import RankTail
from headway.probe.stacks import MEMFD_NAME

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)$')
_DEBUGGERS = ("pdb.py:", "bdb.py:", "debugpy/", "pydevd", "IPython/")
POLL_S = 0.02
UNCHANGED_LOOKS = 3  # reads without a change after which an answer is complete
_COLLECTIVE_PATHS = ("/torch/distributed/", "/torch/autograd/")  # where ranks wait for a collective


@dataclass
class _Answer:
    """What a process has written since the request."""

    pid: int
    file: BinaryIO
    begin: int  # where it starts to write
    text: bytes = b""
    unchanged: int = 0  # reads in a row

    def look(self) -> bool:
        """Read the answer; return whether it is complete: not empty, and unchanged for a moment."""
        self.file.seek(self.begin)
        text = self.file.read()
        self.unchanged = self.unchanged + 1 if text and text == self.text else 0
        self.text = text
        return self.unchanged >= UNCHANGED_LOOKS


def dump(processes: Sequence[RankTail], limit_s: float = 1.0) -> dict[int, str]:
    """The stacks of each process by pid; empty for a process that cannot be asked.

    All requests are sent before the first answer is read, so that many take no longer than one.
    """
    with contextlib.ExitStack() as files:
        answers = [answer for process in processes if (answer := _ask(process, files))]
        waiting, until = answers, time.monotonic() + limit_s
        while waiting and time.monotonic() < until:
            time.sleep(POLL_S)
            waiting = [answer for answer in waiting if not _is_complete(answer)]
    texts = {answer.pid: answer.text.decode(errors="replace") for answer in answers}
    return {process.pid: texts.get(process.pid, "") for process in processes}


def _ask(process: RankTail, files: contextlib.ExitStack) -> _Answer | None:
    if process.stacks is None:
        return None
    number, fd = process.stacks
    path = f"/proc/{process.pid}/fd/{fd}"
    try:
        if MEMFD_NAME not in os.readlink(path):  # the job has closed it and reused the number
            return None
        file = files.enter_context(open(path, "rb"))  # noqa: SIM115
        begin = file.seek(0, os.SEEK_END)
        os.kill(process.pid, number)
    except OSError:
        return None
    return _Answer(process.pid, file, begin)


def _is_complete(answer: _Answer) -> bool:
    try:
        return answer.look()
    except OSError:  # it has ended
        return True


def main_thread(text: str) -> tuple[str, ...]:
    """The frames of the main thread, innermost first, as `file:line in name`."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            blocks.append([])
        elif blocks and (frame := _FRAME.match(line)):
            blocks[-1].append(f"{frame['file']}:{frame['line']} in {frame['name']}")
    return tuple(blocks[-1]) if blocks else ()  # the main thread is the oldest and comes last


def user_frame(frames: tuple[str, ...]) -> str:
    """The innermost frame of the user's code, or the innermost frame."""
    for frame in frames:
        if "-packages/" not in frame and "/lib/python" not in frame:
            return frame
    return frames[0] if frames else ""


def in_debugger(frames: tuple[str, ...]) -> bool:
    """Whether a user is at a debugger prompt there."""
    return any(f"/{name}" in frame for frame in frames for name in _DEBUGGERS)


def odd_one_out(stacks: Mapping[int, tuple[str, ...]]) -> int | None:
    """The rank that is at another place than all others; None if there is no such rank."""
    if len(stacks) < 2:
        return None
    places = {rank: user_frame(frames) for rank, frames in stacks.items()}
    counts = Counter(places.values()).most_common()
    if len(counts) != 2 or counts[1][1] != 1 or (len(stacks) == 2):
        return _not_in_a_collective(stacks)
    return next(rank for rank, place in places.items() if place == counts[1][0])


def _not_in_a_collective(stacks: Mapping[int, tuple[str, ...]]) -> int | None:
    """Of ranks that wait for each other, the one that does not wait."""
    outside = [
        rank
        for rank, frames in stacks.items()
        if not any(place in frame for frame in frames[:8] for place in _COLLECTIVE_PATHS)
    ]
    return outside[0] if len(outside) == 1 and len(stacks) > 1 else None


def save(folder: str, name: str, text: str) -> str:
    """Write a dump to the run folder; return its path."""
    path = os.path.join(folder, name)
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    return path
