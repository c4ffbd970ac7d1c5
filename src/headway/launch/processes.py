"""Processes as /proc shows them, and ending everything that a dead attempt leaves behind.

The launcher adopts what its job orphans (it is a subreaper), so that even a daemon with a session
of its own is found below it. Checkpoint writers are spared: they hold what the dead ranks have
saved, for the next attempt, and are ended when there is none.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class ProcInfo(NamedTuple):
    """One process at the moment of a look."""

    parent: int
    group: int
    state: str


def process_table() -> dict[int, ProcInfo]:
    """Every process that may be looked at."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
                table[int(name)] = process_info(int(name))
    return table


def process_info(pid: int) -> ProcInfo:
    """One process; OSError if there is none."""
    fields = stat_fields(pid)
    return ProcInfo(int(fields[1]), int(fields[2]), fields[0].decode())


def zombie_exit_code(pid: int) -> int | None:
    """How a process ended that nobody has waited for yet; negative for a death by signal."""
    try:
        fields = stat_fields(pid)
        if fields[0] not in (b"Z", b"X"):
            return None
        return os.waitstatus_to_exitcode(int(fields[49]))
    except (OSError, ValueError, IndexError):
        return None


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on, after the name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def process_name(pid: int) -> bytes:
    """Its name as the kernel knows it, of 15 bytes at most; empty if there is none."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def descendants(root: int, table: dict[int, ProcInfo] | None = None) -> set[int]:
    """Every process below `root`."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in (process_table() if table is None else table).items():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    pending = [root]
    while pending:
        children_of = [pid for pid in children.get(pending.pop(), []) if pid not in below]
        below.update(children_of)
        pending += children_of
    return below


def ancestors(pid: int, root: int, table: dict[int, ProcInfo]) -> list[int]:
    """From the parent of `pid` up to `root`; nothing if it is not below `root`."""
    path: list[int] = []
    # Not for ever: where numbers were used again during the look, parents may form a ring.
    while pid in table and pid != root and len(path) <= len(table):
        pid = table[pid].parent
        path.append(pid)
    return path if path and path[-1] == root else []


def still_running(pids: Iterable[int]) -> set[int]:
    """Those that have not ended; a zombie has."""
    running = set()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if process_info(pid).state not in ("Z", "X"):
                running.add(pid)
    return running


def wait_gone(pids: Iterable[int], seconds: float) -> bool:
    """Whether all have ended within that time."""
    remaining, until = still_running(pids), time.monotonic() + seconds
    while remaining and time.monotonic() < until:
        time.sleep(0.002)
        remaining = still_running(remaining)
    return not remaining


PR_SET_CHILD_SUBREAPER = 36
SHARED_MEMORY = Path("/dev/shm")
WRITER_MODULE = b"headway.checkpoint.writer"
PID_IN_NAME = re.compile(
    r"torch_(\d+)_|__KMP_REGISTERED_LIB_(\d+)_|sem\.loky-(\d+)-|mp-(\d+)-|pym-(\d+)-"
)

_helpers: set[int] = set()
_starting = threading.Lock()


def adopt_orphans() -> bool:
    """From now on, what loses its parent below this process becomes its child."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


@contextlib.contextmanager
def helper_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of the launcher's own, started from any thread: it is never taken for the job's."""
    with _starting:  # so that nobody sees it before it is known
        child = subprocess.Popen(command, **options)
        _helpers.add(child.pid)
    with child:
        try:
            yield child
        except BaseException:
            child.kill()
            raise
        finally:
            child.wait()
            _helpers.discard(child.pid)


def reap_zombies(excluded: Iterable[int], table: Mapping[int, ProcInfo]) -> None:
    """Take the exit status of adopted children that have ended, but not of those in `spare`."""
    with _starting:
        kept_pids = {*excluded, *_helpers}
        for pid, process in table.items():
            if process.state == "Z" and process.parent == os.getpid() and pid not in kept_pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def reap_ended(pids: Iterable[int], limit_s: float) -> None:
    """The same for certain ones that are about to end; where another process adopts them, it does.

    A process is adopted a moment after it has ended, when its parent is gone as well.
    """
    remaining, until = set(pids), time.monotonic() + limit_s
    while remaining and time.monotonic() < until:
        zombies = {pid: process for pid, process in process_table().items() if pid in remaining}
        reap_zombies((), zombies)
        remaining = {
            pid for pid, process in zombies.items() if (process.state, process.parent) != ("Z", 1)
        }
        time.sleep(0.002)


def end_processes(pids: Iterable[int], grace_s: float) -> None:
    """SIGTERM to each; SIGKILL at once to what is stopped, and to the rest after the grace."""
    remaining = set(pids)
    table = process_table()
    for pid in remaining & table.keys():
        _send(pid, signal.SIGKILL if table[pid].state in ("T", "t") else signal.SIGTERM)
    wait_gone(remaining, grace_s)
    for pid in still_running(remaining):
        _send(pid, signal.SIGKILL)


def end_descendants(
    excluded: Iterable[int] = (),
    *,
    grace_s: float,
    limit_s: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
) -> list[int]:
    """End everything below this process but `spare` and what is below it; returns what stayed.

    `stop`: whether to wait no longer for what got SIGKILL.
    """
    end_processes(_job_processes(excluded), grace_s)
    until = time.monotonic() + limit_s
    while True:
        reap_zombies(excluded, process_table())
        remaining = still_running(_job_processes(excluded))
        if not remaining or time.monotonic() > until or stop():
            return sorted(remaining)
        for pid in remaining:  # also what was forked meanwhile
            _send(pid, signal.SIGKILL)
        time.sleep(0.002)


def wait_for_writers(limit_s: float, is_hurried: Callable[[], bool] = lambda: False) -> set[int]:
    """Checkpoint writers write what they have and go; those that still do when it is over."""
    writers = checkpoint_writers(process_table())
    for pid in writers:
        _send(pid, signal.SIGTERM)
    until = time.monotonic() + limit_s
    while (remaining := still_running(writers)) and time.monotonic() < until and not is_hurried():
        reap_zombies((), process_table())
        time.sleep(0.01)
    return remaining


def checkpoint_writers(table: Mapping[int, ProcInfo]) -> set[int]:
    """The checkpoint writers below this process."""
    writers = set()
    for pid in descendants(os.getpid(), dict(table)):
        with contextlib.suppress(OSError):
            if WRITER_MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                writers.add(pid)
    return writers


def _job_processes(excluded: Iterable[int]) -> set[int]:
    table = process_table()
    not_job = {*excluded, *_helpers, *checkpoint_writers(table)}
    for pid in list(not_job):
        not_job |= descendants(pid, table)
    return descendants(os.getpid(), table) - not_job


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class SharedMemory:
    """What the processes of one attempt keep in shared memory under their own numbers.

    Containers may share the folder and count processes each for itself: a number in a name proves
    nothing, a file that a process of ours has mapped does.
    """

    def __init__(self, folder: Path = SHARED_MEMORY) -> None:
        self.folder = folder
        self._files: dict[str, tuple[int, tuple[int, int]]] = {}  # by name: maker and identity
        self._recorded: set[tuple[str, int]] = set()

    def record_files(self, pids: Collection[int]) -> None:
        """Note what these processes, which live and belong to the job, have made."""
        for entry in _entries(self.folder):
            pid = _creator_pid(entry.name)
            if pid not in pids or (entry.name, entry.inode()) in self._recorded:
                continue
            self._recorded.add((entry.name, entry.inode()))
            with contextlib.suppress(OSError):
                identity = _file_identity(entry)
                if identity in _mapped_files(pid):
                    self._files[entry.name] = pid, identity

    def remove_leftovers(self) -> list[str]:
        """Remove what is left of the dead; its names."""
        removed = []
        for name, (pid, identity) in self._files.items():
            path = self.folder / name
            with contextlib.suppress(OSError):
                if not os.path.exists(f"/proc/{pid}") and _file_identity(path) == identity:
                    path.unlink()
                    removed.append(name)
        self._files = {name: file for name, file in self._files.items() if name not in removed}
        return sorted(removed)


def _creator_pid(name: str) -> int:
    """The number of a process that stands in a name; 0 if there is none."""
    match = PID_IN_NAME.match(name)
    return next((int(group) for group in match.groups() if group), 0) if match else 0


def _file_identity(path: os.DirEntry[str] | Path) -> tuple[int, int]:
    status = path.stat(follow_symlinks=False)
    return status.st_dev, status.st_ino


def _mapped_files(pid: int) -> set[tuple[int, int]]:
    """The files in shared memory that a process has mapped."""
    files = set()
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith(b"/"):
                major, _, minor = fields[3].partition(b":")
                device = os.makedev(int(major, 16), int(minor, 16))
                files.add((device, int(fields[4])))
    return files


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def orphans_of_run(journal: str, launch: str) -> set[int]:
    """Processes that record into this run for a launch that is over: their launcher was killed."""
    orphans = set()
    own_folder = f"HEADWAY_DIR={journal}".encode()
    for pid in process_table():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if own_folder not in variables:
                continue
            for variable in variables:
                name, _, value = variable.partition(b"=")
                if name == b"HEADWAY_LAUNCH" and value.partition(b".")[0] != launch.encode():
                    orphans.add(pid)
    return orphans
