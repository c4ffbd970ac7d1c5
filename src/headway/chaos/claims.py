"""Claims on planned faults: the process that creates the claim file injects the fault.

Thus a fault is injected once, over all ranks, restarts and nodes. The file, in the journal folder,
records the process and the time. If the launcher injects the fault, the rank waits for it.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # loaded in ranks: keep the import cheap
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


PREFIX = ".fault"
DONE = ".done"
HOLD_S = 30.0  # limit of the wait for the launcher
POLL_S = 0.002


def claim_name(mark: str, number: int, key: str, rank: int | None = None) -> str:
    """The name of the file, from the plan, the fault, the occurrence and the rank."""
    return "-".join(map(str, [PREFIX, mark, number, key, *([] if rank is None else [f"r{rank}"])]))


def parse_claim(file: str, mark: str) -> tuple[int, str] | None:
    """Fault number and key of a claim of this plan; None for any other file."""
    words = file.split("-")
    if words[:2] != [PREFIX, mark] or len(words) < 4 or file.endswith(DONE):
        return None
    return (int(words[2]), words[3]) if words[2].isdecimal() else None


def take_claim(folder: str, names: Iterable[str], content: dict[str, Any]) -> str | None:
    """Create the first of these claims that does not exist; None if all exist."""
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
    """The content of a claim; empty if it does not exist, or is not written yet."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            content = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def mark_done(folder: str, name: str) -> None:
    """Called by the launcher when the fault is injected: the rank continues."""
    with open(os.path.join(folder, name + DONE), "wb"):
        pass


def wait_until_done(folder: str, name: str) -> None:
    """Wait until the launcher has injected the fault."""
    deadline = time.monotonic() + HOLD_S
    path = os.path.join(folder, name + DONE)
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(POLL_S)
