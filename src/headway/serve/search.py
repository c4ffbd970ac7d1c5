"""Search for regressions, bad hosts and slow jobs in a separate process.

The search takes seconds to minutes and would delay the pages if it ran in the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from headway.errors import HeadwayError

SEARCH_DIMENSIONS = ("team", "model")  # of the slices that are searched for changes
MAX_AGE_S = 600.0  # of a result
RETRY_S = 60.0  # after a failed search

Regressions = dict[str, Any]  # the output of `headway fleet regressions --json`


class Search:
    """A search that runs in the background, started by the first request."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._command = [sys.executable, "-m", "headway", "fleet", "regressions", "--json"]
        self._command += ["--store", url, "--by", ",".join(SEARCH_DIMENSIONS)]
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._result: Regressions | None = None
        self._error = ""
        self._version = ""  # version of the store that was searched
        self._due = float("-inf")
        self._closed = False

    def result(self, version: str) -> Regressions | None:
        """The newest result for a store; None until the first search has finished."""
        with self._lock:
            outdated = self._clock() >= self._due and version != self._version
            idle = self._thread is None or not self._thread.is_alive()
            if idle and outdated and not self._closed:
                self._thread = threading.Thread(target=self._search, args=(version,), daemon=True)
                self._thread.start()
            if self._result is None and self._error:
                raise HeadwayError(
                    f"the search for changes failed: {self._error}", code="search-failed"
                )
            return self._result

    def _search(self, version: str) -> None:
        try:
            result = self._run()
        except (OSError, ValueError) as error:  # not started, failed, or killed
            with self._lock:
                self._error, self._due = str(error), self._clock() + RETRY_S
            return
        with self._lock:
            self._result, self._version, self._due = result, version, self._clock() + MAX_AGE_S

    def _run(self) -> Regressions:
        with self._lock:
            if self._closed:
                raise ValueError("the server is stopping")
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        text, error_output = self._child.communicate()
        if self._child.returncode:
            raise ValueError((error_output.strip().splitlines() or ["it was ended"])[-1])
        result: Regressions = json.loads(text)
        return result

    def wait(self, seconds: float) -> None:
        """Wait until a running search has finished."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """Stop a running search."""
        with self._lock:
            self._closed = True
            if self._child is not None and self._child.poll() is None:
                self._child.kill()
        self.wait(10)
