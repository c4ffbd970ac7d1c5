"""Identify a process across hosts and reboots, to tell later whether it has ended."""

from __future__ import annotations

import json
import os


def boot_id() -> str:
    """The boot id of this machine: journals of one boot share the monotonic clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        import socket

        return f"host:{socket.gethostname()}"


def pid_space() -> int | None:
    """The PID namespace of this process: containers have their own."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def identify_process(pid: int | None = None) -> bytes:
    """Identify a process so that no later process with the same id is mistaken for it."""
    who = os.getpid() if pid is None else pid
    return json.dumps({"boot": boot_id(), "space": pid_space(), **_pid_and_start(who)}).encode()


def process_ended(described: bytes) -> bool | None:
    """Whether the process has ended; None if that cannot be determined here."""
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
