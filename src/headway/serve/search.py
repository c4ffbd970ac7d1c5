"""Changes, bad hosts and jobs that fall behind: looked for by a process of its own.

It computes for seconds to minutes; here it would hold up the pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

from headway.errors import HeadwayError

BY = ("team", "model")  # the slices in which changes are looked for
AGAIN_S = 600.0  # how old what was found may be

Found = dict[str, Any]  # as `headway fleet regressions --json` tells it


class Search:
    """Begun by the first who asks; nobody waits for it."""

    def __init__(self, url: str) -> None:
        self._command = [sys.executable, "-m", "headway", "fleet", "regressions", "--json"]
        self._command += ["--store", url, "--by", ",".join(BY)]
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._found: Found | None = None
        self._why = ""  # it failed
        self._of, self._at = "", float("-inf")
        self._closed = False

    def found(self, version: str) -> Found | None:
        """The newest that is known of a store; None while it is looked for the first time."""
        with self._lock:
            old = time.monotonic() - self._at > AGAIN_S and version != self._of
            idle = self._thread is None or not self._thread.is_alive()
            if idle and old and not self._closed:
                self._thread = threading.Thread(target=self._look, args=(version,), daemon=True)
                self._thread.start()
            if self._found is None and self._why:
                raise HeadwayError(f"changes could not be looked for: {self._why}")
            return self._found

    def _look(self, version: str) -> None:
        with self._lock:
            if self._closed:
                return
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        told, complaint = self._child.communicate()
        with self._lock:
            self._of, self._at = version, time.monotonic()
            if self._child.returncode:
                self._why = (complaint.strip().splitlines() or ["it was ended"])[-1]
            else:
                self._found = json.loads(told)

    def wait(self, seconds: float) -> None:
        """Until what has begun is done."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._closed = True
            if self._child is not None and self._child.poll() is None:
                self._child.kill()
        self.wait(10)
