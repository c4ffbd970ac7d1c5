"""python -m tests.integration.checkpointed.server: scenarios, one after the other.

A line of JSON names a function and its arguments; it runs in a fork of this process, which has
torch by then, and the answer is a line with what it returns, or the text of what went wrong.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def serve() -> None:
    """Until nobody asks any more."""
    from tests.integration.checkpointed.tiny import Training

    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    Training(0, 1).step()  # whatever torch imports late, it has by now
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not to be forked"
    gc.freeze()  # or every fork would copy what its collector looks at
    for line in sys.stdin:
        answers, answer = os.pipe()
        pid = os.fork()
        if not pid:
            _answer(json.loads(line), answer)
            os._exit(0)
        os.close(answer)
        with open(answers) as file:
            print(file.read(), flush=True)
        os.waitpid(pid, 0)


def _answer(asked: dict[str, Any], to: int) -> None:
    try:
        module, _, name = asked["run"].partition(":")
        do = getattr(importlib.import_module(f"tests.integration.checkpointed.{module}"), name)
        told = {"found": do(**asked["with"])}
    except BaseException:
        told = {"error": traceback.format_exc()}
    with open(to, "w") as file:
        file.write(json.dumps(told))


@functools.cache
def _server() -> subprocess.Popen[str]:
    unset = ("HEADWAY", "TORCHELASTIC", "SLURM", "RANK", "WORLD_SIZE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()


def ask(run: str, **arguments: Any) -> Any:
    """Run a scenario; what it returns."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps({"run": run, "with": arguments}) + "\n")
    server.stdin.flush()
    told = json.loads(server.stdout.readline())
    assert "error" not in told, told["error"]
    return told["found"]


if __name__ == "__main__":
    serve()
