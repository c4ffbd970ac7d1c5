"""Run a stage in its own process: forked before any thread starts, given its arguments later."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from headway.errors import HeadwayError
from headway.startup.stage_graph import Stage

POLL_S = 0.5  # interval of the check whether the parent is alive


class WorkerLost(HeadwayError):
    """The process died, or its arguments or result cannot be transferred."""


class StageRaised(Exception):
    """The stage raised in its process; holds the traceback."""


class StageProcess:
    """The process of a stage. Tensors are returned in shared memory."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        context = _context()
        own_end, child_end = context.Pipe()
        self._pipe: Connection = own_end
        self._process = context.Process(
            target=_serve,
            args=(child_end, own_end, stage, os.getpid()),
            name=f"stage-{stage.name}",
            daemon=True,
        )
        self._process.start()
        child_end.close()

    def run(self, arguments: list[Any]) -> Any:
        """Run the stage and return its result."""
        try:
            self._pipe.send(arguments)
        except (OSError, ValueError):
            raise WorkerLost(
                f"its process died ({self._exit_text()})", code="stage-process-died"
            ) from None
        except Exception as error:
            raise WorkerLost(
                f"its arguments cannot be sent to a process: {error}",
                code="stage-arguments-not-picklable",
            ) from error
        try:
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise WorkerLost(
                f"its process died ({self._exit_text()})", code="stage-process-died"
            ) from None
        with contextlib.suppress(OSError):
            self._pipe.send(None)  # the tensors are mapped here: the process may exit
        if kind == "raised":
            raise StageRaised(value)
        if kind == "lost":
            raise WorkerLost(value, code="stage-result-not-picklable")
        return value

    def _exit_text(self) -> str:
        self._process.join(1.0)
        return f"exit code {self._process.exitcode}"

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        if self._process.is_alive():
            self._process.join(0.2)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _context() -> Any:
    """The fork context; torch's own, if loaded, transfers tensors in shared memory."""
    if "torch" in sys.modules:
        from torch import multiprocessing as torch_multiprocessing

        return torch_multiprocessing.get_context("fork")
    return multiprocessing.get_context("fork")


def _serve(pipe: Connection, other: Connection, stage: Stage, parent: int) -> None:
    other.close()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    try:
        arguments = pipe.recv()
    except (EOFError, OSError):
        os._exit(0)  # the parent does not need the stage
    try:
        reply = ("done", stage.call(*arguments))
    except BaseException:
        reply = ("raised", traceback.format_exc())
    try:
        pipe.send(reply)
    except Exception as error:
        pipe.send(("lost", f"its result cannot be sent from a process: {error}"))
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os._exit(0)


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent is gone: a killed parent cannot end its children."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
