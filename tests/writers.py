"""python -m tests.writers: checkpoint writers that start fast, as forks of a process with torch.

A line of JSON with a name and a linger time starts a writer; the answer is its pid.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from headway.checkpoint.writer import process

ROOT = Path(__file__).parents[1]


def serve() -> None:
    """Serve until stdin is closed and all writers have ended."""
    importlib.import_module(process.DCP_MODULE)
    gc.freeze()  # otherwise the garbage collector of each fork would copy memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for line in sys.stdin:
        name, linger_s = json.loads(line)
        pid = os.fork()
        if not pid:
            _write(name, linger_s)
        print(pid, flush=True)
    with contextlib.suppress(ChildProcessError):  # no more children
        os.wait()


def _write(name: str, linger_s: float) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        process.main(name, linger_s)
        code = 0
    finally:
        os._exit(code)


class Started:
    """A writer with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return None if os.path.exists(f"/proc/{self.pid}") else -signal.SIGKILL

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Server:
    """The process that forks writers."""

    def __init__(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            env={**env, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, name: str, linger_s: float) -> Started:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, linger_s]) + "\n")
        self._process.stdin.flush()
        return Started(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


if __name__ == "__main__":
    serve()
