"""Write a run to a store while it is in progress, in a process that cannot affect the job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headway.errors import with_code
from headway.journal.run_files import JOURNAL
from headway.launch import processes

EVERY_S = 300.0  # between two writes, unless an attempt has ended
MIN_IDLE_RATIO = 20  # it works for at most 1/20 of the time
POLL_S = 5.0
MIN_GAP_S = 30.0  # attempts that end faster are written together
WRITE_LIMIT_S = 600.0  # for one write
FINAL_WRITE_LIMIT_S = 60.0  # the same at the end, as the exit code waits for it


class StoreIngest:
    """Watches the journals folder of one launch and writes the run when it has changed."""

    def __init__(self, folder: Path, url: str, log: Callable[[str], object]) -> None:
        self.folder = folder
        self.url = url
        self._path = str(folder.resolve())  # while the working directory exists
        self._log = log
        self._has_logged = False
        self._stop = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._loop, name="headway-ingest", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Write the run once more; log an error with the command that writes it later."""
        self._stop.set()
        while self._thread.is_alive():
            self._end_child()
            self._thread.join(POLL_S / 50)
        error = self._write(FINAL_WRITE_LIMIT_S)
        if error:
            self._log(
                with_code(
                    f"headway: the run was not written to the store: {error}; "
                    f"to write it later: headway ingest {self.folder} --store {self.url}",
                    code="run-not-in-store",
                )
            )

    def _loop(self) -> None:
        known_count, last, write_s = self._journals(), time.monotonic(), 0.0
        while not self._stop.wait(POLL_S):
            journal_count, since = self._journals(), time.monotonic() - last
            if since < (
                MIN_GAP_S
                if journal_count != known_count
                else max(EVERY_S, MIN_IDLE_RATIO * write_s)
            ):
                continue
            known_count, last = journal_count, time.monotonic()
            error = self._write(WRITE_LIMIT_S)
            write_s = time.monotonic() - last
            if error and not self._has_logged and not self._stop.is_set():
                self._has_logged = True
                text = f"headway: the run was not written to the store: {error}; retrying later"
                self._log(with_code(text, code="store-write-failed"))

    def _journals(self) -> int:
        """The number of journals: it grows when the processes of a new attempt start."""
        try:
            return sum(name.endswith(".jsonl") for name in os.listdir(self.folder / JOURNAL))
        except OSError:
            return 0

    def _write(self, limit: float) -> str:
        """The error as a sentence; empty if there was none."""
        command = [sys.executable, "-m", "headway", "ingest", "--quiet", self._path]
        try:
            with processes.helper_process(
                [*command, "--store", self.url],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the job
            ) as child:
                self._child = child
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, 10)
                try:
                    stderr = child.communicate(timeout=limit)[1]
                except subprocess.TimeoutExpired:
                    child.kill()
                    return f"{self.url} took more than {limit:.0f} s"
        except OSError as error:
            return f"no process can be started: {error.strerror}"
        if not child.returncode:
            return ""
        return (stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1].removeprefix(
            "headway: "
        )

    def _end_child(self) -> None:
        """Kill the current write, as the final one is newer."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
