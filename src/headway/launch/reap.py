"""Nothing of a dead attempt lives on: every process below the launcher, and what it left shared.

The launcher adopts what its job orphans (it is a subreaper), so that even a daemon with a session
of its own is found below it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from headway.launch import tree

PR_SET_CHILD_SUBREAPER = 36
SHARED = Path("/dev/shm")
# Names that carry the process that made them; nothing else is touched.
NAMED_BY_PID = re.compile(
    r"torch_(\d+)_|__KMP_REGISTERED_LIB_(\d+)_|sem\.loky-(\d+)-|mp-(\d+)-|pym-(\d+)-"
)
ANONYMOUS = ("psm_", "nccl-", "sem.mp-")


def adopt_orphans() -> bool:
    """From now on, what loses its parent below this process becomes its child."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def collect(spare: Iterable[int] = ()) -> None:
    """Take the exit status of adopted children that have ended, but not of those in `spare`."""
    kept = set(spare)
    for pid, seen in tree.processes().items():
        if seen.state == "Z" and seen.parent == os.getpid() and pid not in kept:
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
        collect(spare)
        left = tree.alive(_mine(spare))
        if not left or time.monotonic() > until:
            return sorted(left)
        for pid in left:  # also what was forked meanwhile
            _send(pid, signal.SIGKILL)
        time.sleep(0.002)


def _mine(spare: Iterable[int]) -> set[int]:
    seen = tree.processes()
    kept = set(spare)
    for pid in list(kept):
        kept |= tree.below(pid, seen)
    return tree.below(os.getpid(), seen) - kept


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def sweep_shared_memory(since: float, folder: Path = SHARED) -> list[str]:
    """Remove what dead processes of this user left in shared memory since then; its names.

    A name with a process in it goes when that process is dead; one without, of a kind that lives
    no longer than its job, when no living process has it open or mapped.
    """
    removed, unsure = [], []
    for entry in _entries(folder):
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if found.st_uid != os.getuid() or max(found.st_ctime, found.st_mtime) < since:
                continue
            named = NAMED_BY_PID.match(entry.name)
            if named:
                pid = next(int(group) for group in named.groups() if group)
                if not os.path.exists(f"/proc/{pid}"):
                    os.unlink(entry.path)
                    removed.append(entry.name)
            elif entry.name.startswith(ANONYMOUS):
                unsure.append(entry)
    held = _held(folder) if unsure else set()
    for entry in unsure:
        if entry.path not in held:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
                removed.append(entry.name)
    return sorted(removed)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _held(folder: Path) -> set[str]:
    """Files of the folder that a living process has mapped or open, as far as we may look."""
    held: set[str] = set()
    prefix = f"{folder}/"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                at = line.find(prefix)
                if at >= 0:
                    held.add(line[at:])
        with contextlib.suppress(OSError):
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)
                    if target.startswith(prefix):
                        held.add(target)
    return held
