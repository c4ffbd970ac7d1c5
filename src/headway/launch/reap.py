"""Nothing of a dead attempt lives on: every process below the launcher, and what it left shared.

The launcher adopts what its job orphans (it is a subreaper), so that even a daemon with a session
of its own is found below it. Checkpoint writers stay: they hold what the dead have saved, for those
who come next, and are dismissed when nobody will.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from headway.launch import tree

PR_SET_CHILD_SUBREAPER = 36
SHARED = Path("/dev/shm")
LASTING = b"headway.checkpoint.writer"
NAMED_BY_PID = re.compile(
    r"torch_(\d+)_|__KMP_REGISTERED_LIB_(\d+)_|sem\.loky-(\d+)-|mp-(\d+)-|pym-(\d+)-"
)


def adopt_orphans() -> bool:
    """From now on, what loses its parent below this process becomes its child."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def collect(spare: Iterable[int], seen: Mapping[int, tree.Seen]) -> None:
    """Take the exit status of adopted children that have ended, but not of those in `spare`."""
    kept = set(spare)
    for pid, process in seen.items():
        if process.state == "Z" and process.parent == os.getpid() and pid not in kept:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end(pids: Iterable[int], grace_s: float) -> None:
    """SIGTERM to each; SIGKILL at once to what is stopped, and to the rest after the grace."""
    left = set(pids)
    seen = tree.processes()
    for pid in left & seen.keys():
        _send(pid, signal.SIGKILL if seen[pid].state in ("T", "t") else signal.SIGTERM)
    tree.wait_gone(left, grace_s)
    for pid in tree.alive(left):
        _send(pid, signal.SIGKILL)


def clear(spare: Iterable[int] = (), *, grace_s: float, limit_s: float = 60.0) -> list[int]:
    """End everything below this process but `spare` and what is below it; returns what stayed."""
    end(_mine(spare), grace_s)
    until = time.monotonic() + limit_s
    while True:
        collect(spare, tree.processes())
        left = tree.alive(_mine(spare))
        if not left or time.monotonic() > until:
            return sorted(left)
        for pid in left:  # also what was forked meanwhile
            _send(pid, signal.SIGKILL)
        time.sleep(0.002)


def dismiss(limit_s: float) -> bool:
    """Checkpoint writers write what they have and go; whether any did, and was waited for."""
    writers = lasting(tree.processes())
    for pid in writers:
        _send(pid, signal.SIGTERM)
    until = time.monotonic() + limit_s
    while tree.alive(writers) and time.monotonic() < until:
        collect((), tree.processes())
        time.sleep(0.01)
    return bool(writers)


def lasting(seen: Mapping[int, tree.Seen]) -> set[int]:
    """The checkpoint writers below this process."""
    found = set()
    for pid in tree.below(os.getpid(), dict(seen)):
        with contextlib.suppress(OSError):
            if LASTING in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def _mine(spare: Iterable[int]) -> set[int]:
    seen = tree.processes()
    kept = {*spare, *lasting(seen)}
    for pid in list(kept):
        kept |= tree.below(pid, seen)
    return tree.below(os.getpid(), seen) - kept


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def sweep_shared_memory(pids: Iterable[int], since: float, folder: Path = SHARED) -> list[str]:
    """Remove what these dead processes left in shared memory since then; its names.

    Only names that carry the process that made them: what another job or container keeps there
    looks the same otherwise.
    """
    dead = {pid for pid in pids if not os.path.exists(f"/proc/{pid}")}
    removed = []
    for entry in _entries(folder):
        named = NAMED_BY_PID.match(entry.name)
        pid = next((int(group) for group in named.groups() if group), 0) if named else 0
        if pid not in dead:
            continue
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if found.st_uid == os.getuid() and max(found.st_ctime, found.st_mtime) >= since:
                os.unlink(entry.path)
                removed.append(entry.name)
    return sorted(removed)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def strays(journal: str, launch: str) -> set[int]:
    """Processes that record into this run for a launch that is over: their launcher was killed."""
    found = set()
    ours = f"HEADWAY_DIR={journal}".encode()
    for pid in tree.processes():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().split(b"\0")
            if ours not in words:
                continue
            for word in words:
                name, _, value = word.partition(b"=")
                if name == b"HEADWAY_LAUNCH" and value.partition(b".")[0] != launch.encode():
                    found.add(pid)
    return found
