"""Sees the ranks die: one thread in the launcher that holds a pidfd of each."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

from headway.journal import pulse
from headway.journal.writer import Writer, now
from headway.launch import together

REFRESH_NS = 5_000_000_000
ROUND_MS = 100  # how often new journals are looked for, and the launcher's own pulse beats


class Watch:
    """Writes a `death` for every recording process of this host, when it happens."""

    def __init__(self, journal: Path, writer: Writer) -> None:
        self.journal = journal
        self.writer = writer
        self._stop, self._wake = os.pipe()
        self._known: set[str] = set(os.listdir(journal))
        self._fds: dict[int, int] = {}
        self._refresh_at = 0
        self._poll = select.poll()
        self._poll.register(self._stop, select.POLLIN)
        self._host = os.uname().nodename
        self._thread = threading.Thread(target=self._loop, name="headway-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """The command has ended: one last look, and stop."""
        os.close(self._wake)
        self._thread.join()
        for fd in (self._stop, *self._fds):
            os.close(fd)

    def recording(self) -> set[int]:
        """The processes of this host that keep a journal and live."""
        return set(self._fds.copy().values())

    def _loop(self) -> None:
        while self._round():
            pass

    def _round(self) -> bool:
        """Wait for deaths; False when the command has ended and all of them are written."""
        self.writer.cells[pulse.ALIVE] = now()
        if now() >= self._refresh_at:
            together.refresh(self.journal)
            self._refresh_at = now() + REFRESH_NS
        self._find_new()
        ended = False
        for fd, _ in self._poll.poll(ROUND_MS):
            if fd == self._stop:
                ended = True
                continue
            self.writer.write({"ev": "death", "t": now(), "pid": self._fds.pop(fd)})
            self._poll.unregister(fd)
            os.close(fd)
        return not ended

    def _find_new(self) -> None:
        try:
            names = set(os.listdir(self.journal))
        except OSError:  # somebody has removed the run folder
            return
        for name in names - self._known:
            self._known.add(name)
            host, _, rest = name.removesuffix(".jsonl").rpartition("-")[0].rpartition("-")
            if (
                name.startswith("launcher-")
                or not name.endswith(".jsonl")
                or host != self._host
                or not rest.isdecimal()
            ):
                continue
            try:
                fd = os.pidfd_open(int(rest))
            except ProcessLookupError:
                self.writer.write({"ev": "death", "t": now(), "pid": int(rest)})
            except (OSError, AttributeError):
                continue  # an old kernel: the agent's and the command's ends are seen anyway
            else:
                self._fds[fd] = int(rest)
                self._poll.register(fd, select.POLLIN)
