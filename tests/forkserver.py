"""A process that imports torch, and runs each script in a fork of itself.

It reads requests from stdin, as lines of JSON, and answers with the pid of the fork and, when that
has ended, its exit code. With the probe, a fork starts like a process of a warm start; the hooks
are already installed in torch.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from types import ModuleType
from typing import Any


def serve() -> dict[str, Any]:
    """Fork for each request; return the request in the fork. End after the last request."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return request
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    os._exit(0)


def begin(request: dict[str, Any]) -> ModuleType:
    """Set folder, streams and environment; return the main module of the script."""
    requested_at = time.monotonic_ns()
    os.chdir(request["folder"])
    for fd, name in enumerate((os.devnull, "stdout", "stderr")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if fd else 0))
        os.dup2(opened, fd)
        os.close(opened)
    for name in os.environ.keys() - request["env"].keys():
        del os.environ[name]
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = sys.argv[0]
    if "headway.probe.import_hook" in sys.modules:
        sys.modules["headway.probe.import_hook"].reset_after_warm_fork(requested_at)
    return main


def run(request: dict[str, Any]) -> None:
    status = 0
    main = begin(request)
    try:
        with open(sys.argv[0]) as file:
            exec(compile(file.read(), sys.argv[0], "exec"), main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except BaseException:
        status = 1
        raise
    finally:
        if not request["finalize"]:
            last.append(status)


def leave() -> None:
    """End without finalizing the interpreter, which takes a second in a process with torch."""
    if last:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(last.pop())


last: list[int] = []  # the exit code of a process that ends early
atexit.register(leave)  # before those of the probe, so that it is called after them

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401  # the first optimizer of a process imports it

assert ("HEADWAY_DIR" in os.environ) == ("headway.probe.patching" in sys.modules)
run(serve())
