"""Watch the job's processes on this host: one thread in the launcher, with a pidfd for each."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from headway.journal import pulse
from headway.journal.writer import Writer, now
from headway.launch import processes
from headway.launch.pulse_pages import SUFFIX, PulsePages, page_of
from headway.launch.rank_tail import RankTail
from headway.storage.process_identity import pid_space

REFRESH_NS = 5_000_000_000
IDLE_AFTER_NS = 30_000_000_000
IDLE_ROUND_NS = 500_000_000
SHARED_ROUND_NS = 1_000_000_000
MAX_LIST_SHARE = 50  # listing the folder takes at most 1/50 of the time
ROUND_MS = 100  # between two searches for new journals; also updates the launcher's own pulse


class ProcessWatch:
    """Follows every recording process of this host, and records its `death` when it happens."""

    def __init__(
        self, journal: Path, launch: str, writer: Writer, pages: PulsePages | None = None
    ) -> None:
        self.journal = journal
        self.pages = pages
        self.launch = launch
        self.writer = writer
        self.processes: dict[str, RankTail] = {}  # by name of the journal
        self.journal_files: set[str] = set()  # all files in the folder
        with contextlib.suppress(OSError):
            self.journal_files = set(os.listdir(journal))
        self.on_round: list[Callable[[ProcessWatch], None]] = []
        self.on_refresh: list[Callable[[], None]] = []
        self.on_death: list[Callable[[RankTail], None]] = []
        self._stop, self._wake = os.pipe()
        self._earlier_files = frozenset(self.journal_files)
        self._seen_names = set(self.journal_files)
        self._fds: dict[int, RankTail] = {}
        self._faults: set[str] = set()
        self._list_ns = self._changed_ns = 0
        self._pids = pid_space()
        self._refresh_at = 0
        self._poll = select.poll()
        self._poll.register(self._stop, select.POLLIN)
        self._host = os.uname().nodename
        self._thread = threading.Thread(target=self._loop, name="headway-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Read what is left after the command has ended, and stop."""
        os.close(self._wake)
        self._thread.join()
        self._list_ns = 0
        self._find_new()  # on a busy machine a process may start and end between two rounds
        self._find_others()
        for process in self.processes.values():
            process.read_new()
            process.close()
        if self.pages is not None:
            self.pages.copy_all()
        for fd in (self._stop, *self._fds):
            os.close(fd)

    def recording(self) -> set[int]:
        """The processes of this host that keep a journal and are alive."""
        return {process.pid for process in self._fds.copy().values()}

    def ranks(self) -> list[RankTail]:
        """The ranks of this host, dead or alive, after torchrun's last own restart."""
        return self.elastic_restarts()[-1]

    def elastic_restarts(self) -> list[list[RankTail]]:
        """The ranks of each of torchrun's own restarts, the last one last; at least one list."""
        processes = [p for p in list(self.processes.values()) if not (p.agent or p.helper)]
        ranks = [p for p in processes if p.rank is not None] or processes
        numbers = sorted({p.restart for p in ranks})
        return [[p for p in ranks if p.restart == number] for number in numbers] or [[]]

    def _loop(self) -> None:
        while self._round():
            pass

    def _round(self) -> bool:
        """Wait for deaths; False when the command has ended and all deaths are recorded."""
        self.writer.cells[pulse.ALIVE] = now()
        if now() >= self._refresh_at:
            for call in self.on_refresh:
                self._guarded(call)
            if self.pages is not None:
                self._guarded(self.pages.copy_all)
            self._refresh_at = now() + REFRESH_NS
        self._find_new()
        for process in self._fds.values():
            process.read_new()
        for each in self.on_round:
            self._guarded(each, self)
        ended = False
        for fd, _ in self._poll.poll(ROUND_MS):
            if fd == self._stop:
                ended = True
                continue
            self._died(self._fds.pop(fd))
            self._poll.unregister(fd)
            os.close(fd)
        return not ended

    def _died(self, process: RankTail) -> None:
        process.died = now()
        process.code = processes.zombie_exit_code(process.pid)
        code = {} if process.code is None else {"code": process.code}
        self.writer.write({"ev": "death", "t": process.died, "pid": process.pid, **code})
        process.read_new()
        if self.pages is not None:
            self._guarded(self.pages.copy, os.path.basename(process.page))
        for call in self.on_death:
            self._guarded(call, process)

    def _guarded(self, call: Callable[..., None], *args: object) -> None:
        """An error in one of the callbacks must not stop the watch."""
        try:
            call(*args)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text not in self._faults:
                self._faults.add(text)
                fields = {"hook": "launcher", "code": "launcher-fault", "text": text}
                self.writer.write({"ev": "note", "t": now(), **fields})

    def _find_new(self) -> None:
        names = set(self.journal_files) if self._list() else set()
        if self.pages is not None:
            names |= {page.removesuffix(SUFFIX) + ".jsonl" for page in self.pages.names()}
        for name in names - self._seen_names:
            host, pid = _writer_of(name)
            page = page_of(self.journal, self.pages, name)
            process = RankTail(str(self.journal / name), pid, page)
            if host == self._host:
                process.read_new()
                if not process.head:
                    continue  # its first line is being written
            self._seen_names.add(name)
            if host != self._host or process.head.get("pids") not in (None, self._pids):
                continue  # pids of another host or container belong to other processes here
            self.processes[name] = process
            try:
                fd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                self._died(process)
            except (OSError, AttributeError):
                continue  # an old kernel: the ends of the agent and the command are noticed anyway
            else:
                self._fds[fd] = process
                self._poll.register(fd, select.POLLIN)

    def _list(self) -> bool:
        """List the folder in each round while something happens, then twice per second.

        On a network file system once per second, and for at most 1/50 of the time.
        """
        t = now()
        if t < self._list_ns:
            return False
        try:
            names = set(os.listdir(self.journal))
        except OSError:  # the run folder was removed
            return False
        if names != self.journal_files:
            self.journal_files, self._changed_ns = names, t
        self._list_ns = t + (IDLE_ROUND_NS if t - self._changed_ns > IDLE_AFTER_NS else 0)
        if self.pages is not None:
            listed = now()
            self._list_ns = listed + max(SHARED_ROUND_NS, MAX_LIST_SHARE * (listed - t))
        return True

    def _find_others(self) -> None:
        """Read processes of hosts without a launcher, as below `srun`, at the end."""
        for name in self.journal_files - self._earlier_files:
            host, pid = _writer_of(name)
            launcher_prefix = f"launcher-{self.launch}-{host}-"
            if (
                not host
                or host == self._host
                or any(other.startswith(launcher_prefix) for other in self.journal_files)
            ):
                continue
            self.processes[name] = RankTail(str(self.journal / name), pid)


def _writer_of(name: str) -> tuple[str, int]:
    """Host and pid in the name of a journal; an empty host if it is not a process's journal."""
    host, _, pid = name.removesuffix(".jsonl").rpartition("-")[0].rpartition("-")
    if name.startswith("launcher-") or not name.endswith(".jsonl") or not pid.isdecimal():
        return "", 0
    return host, int(pid)
