"""Processes as /proc shows them, and ending everything that a failed attempt leaves behind.

The launcher adopts the orphans of its job (it is a subreaper), so that even a daemon with a session
of its own is found below it. Checkpoint writers are not ended: they hold what the dead ranks have
saved, for the next attempt; they are ended when there is none.
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
    """One process at the time of reading."""

    parent: int
    group: int
    state: str


def process_table() -> dict[int, ProcInfo]:
    """All processes that may be read."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                table[int(name)] = process_info(int(name))
    return table


def process_info(pid: int) -> ProcInfo:
    """One process; OSError if it does not exist."""
    fields = stat_fields(pid)
    return ProcInfo(int(fields[1]), int(fields[2]), fields[0].decode())


def zombie_exit_code(pid: int) -> int | None:
    """Exit code of a process that nothing has waited for yet; negative for a death by signal."""
    try:
        fields = stat_fields(pid)
        if fields[0] not in (b"Z", b"X"):
            return None
        return os.waitstatus_to_exitcode(int(fields[49]))
    except (OSError, ValueError, IndexError):
        return None


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on: the name before it may contain anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def process_name(pid: int) -> bytes:
    """Its name as the kernel knows it, at most 15 bytes; empty if there is no process."""
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
    """From the parent of `pid` up to `root`; empty if it is not below `root`."""
    path: list[int] = []
    # Bounded: if pids were reused during the reading, parents may form a ring.
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
    """Wait until all have ended; False after that many seconds."""
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
    """Make this process the parent of all orphans below it."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


@contextlib.contextmanager
def helper_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of the launcher, started from any thread; never treated as part of the job."""
    with _starting:  # so that it is registered before it can be seen
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
    """Reap adopted children that have ended, except those in `excluded`."""
    with _starting:
        kept_pids = {*excluded, *_helpers}
        for pid, process in table.items():
            if process.state == "Z" and process.parent == os.getpid() and pid not in kept_pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def reap_ended(pids: Iterable[int], limit_s: float) -> None:
    """Reap certain processes that are about to end, unless another process adopts them.

    A process is adopted shortly after it has ended, when its parent has ended as well.
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
    """Send SIGTERM, or SIGKILL to stopped ones; after the grace, SIGKILL to those that remain."""
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
    """End everything below this process except `excluded` and its descendants; return what remains.

    `stop` tells whether to stop waiting for processes that got SIGKILL.
    """
    end_processes(_job_processes(excluded), grace_s)
    until = time.monotonic() + limit_s
    while True:
        reap_zombies(excluded, process_table())
        remaining = still_running(_job_processes(excluded))
        if not remaining or time.monotonic() > until or stop():
            return sorted(remaining)
        for pid in remaining:  # including what was forked meanwhile
            _send(pid, signal.SIGKILL)
        time.sleep(0.002)


def wait_for_writers(limit_s: float, is_hurried: Callable[[], bool] = lambda: False) -> set[int]:
    """Ask checkpoint writers to finish; return those that are still running after the limit."""
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
    """Files in shared memory that the processes of one attempt created under their own pids.

    Containers may share the folder and have pids of their own: a pid in a name proves nothing, a
    file that a process of the job has mapped does.
    """

    def __init__(self, folder: Path = SHARED_MEMORY) -> None:
        self.folder = folder
        self._files: dict[str, tuple[int, tuple[int, int]]] = {}  # by name: creator and identity
        self._recorded: set[tuple[str, int]] = set()

    def record_files(self, pids: Collection[int]) -> None:
        """Record the files of these processes, which are alive and belong to the job."""
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
        """Remove files of dead processes; return their names."""
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
    """The pid in a file name; 0 if there is none."""
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
    """Processes that record into this run for a launch whose launcher was killed."""
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
