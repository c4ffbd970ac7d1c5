"""Which process something belongs to, for those who come when it may have ended."""

from __future__ import annotations

import json
import os

from headway.journal.writer import boot_id, pid_space


def identify_process(pid: int | None = None) -> bytes:
    """Which process that is, so that no later one of the same number is taken for it."""
    who = os.getpid() if pid is None else pid
    return json.dumps({"boot": boot_id(), "space": pid_space(), **_pid_and_start(who)}).encode()


def process_ended(described: bytes) -> bool | None:
    """Whether the process has ended; None if that cannot be told from here."""
    try:
        owner = json.loads(described)
        here = json.loads(identify_process())
        if any(owner[key] != here[key] for key in ("boot", "space")):
            return None
        return _pid_and_start(int(owner["pid"])) != {"pid": owner["pid"], "born": owner["born"]}
    except (ValueError, KeyError, TypeError):
        return None


def _pid_and_start(pid: int) -> dict[str, object]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return {"pid": pid, "born": None}
    return {"pid": pid, "born": fields[19].decode()}
