"""Claims on planned faults: whoever creates the claim file first carries the fault out.

So a fault happens once, over all ranks, restarts and nodes. The file in the journal folder
says who took it and when. For faults that the launcher carries out, the rank waits for it.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # loaded in ranks: nothing that is not needed
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


PREFIX = ".fault"
DONE = ".done"
HOLD_S = 30.0  # a launcher that has not answered by then is gone
POLL_S = 0.002


def claim_name(mark: str, number: int, key: str, rank: int | None = None) -> str:
    """The name of the file: of a plan, a fault in it, one occurrence, one of several ranks."""
    return "-".join(map(str, [PREFIX, mark, number, key, *([] if rank is None else [f"r{rank}"])]))


def parse_claim(file: str, mark: str) -> tuple[int, str] | None:
    """Number and key of a claim of that plan; None for any other file."""
    words = file.split("-")
    if words[:2] != [PREFIX, mark] or len(words) < 4 or file.endswith(DONE):
        return None
    return (int(words[2]), words[3]) if words[2].isdecimal() else None


def take_claim(folder: str, names: Iterable[str], content: dict[str, Any]) -> str | None:
    """Claim the first of these that is free; its name, or None if all are taken."""
    for name in names:
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue
        try:
            os.write(fd, json.dumps(content).encode())
        finally:
            os.close(fd)
        return name
    return None


def read_claim(folder: str, name: str) -> dict[str, Any]:
    """What a claim says; nothing if it is not there, or not written yet."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            content = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def mark_done(folder: str, name: str) -> None:
    """The launcher has done its part: the rank may go on."""
    with open(os.path.join(folder, name + DONE), "wb"):
        pass


def wait_until_done(folder: str, name: str) -> None:
    """Stand still until the launcher has done its part."""
    deadline = time.monotonic() + HOLD_S
    path = os.path.join(folder, name + DONE)
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(POLL_S)
