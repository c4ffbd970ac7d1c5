"""Threads that use torch, stopped before the interpreter exits.

Python ends daemon threads at interpreter exit wherever they are. In C++ code that is an abort, with
exit code 134 whatever the exit code of the script.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

INTERRUPT_INTERVAL_S = 0.1  # between interrupts: one may arrive where it is ignored


class TorchThread(threading.Thread):
    """A thread that is stopped and awaited at process exit, for a limited time.

    It may be blocked forever, for example on a GPU. `on_stop` asks it to stop; without it, the
    thread is interrupted.
    """

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        *,
        name: str,
        patience_s: float,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)
        self.on_stop, self.patience_s = on_stop, patience_s

    def run(self) -> None:
        _RUNNING.add(self)
        try:
            with contextlib.suppress(SystemExit):  # from `interrupt`
                super().run()
        finally:
            _RUNNING.discard(self)

    def stop(self) -> None:
        """Stop it now, within its time limit."""
        _stop([self])


_RUNNING: set[TorchThread] = set()


def interrupt(thread: int, what: type[BaseException]) -> None:
    """Raise the exception in that thread as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))


def _stop(threads: Sequence[TorchThread]) -> None:
    begun = time.monotonic()
    for thread in threads:
        if thread.on_stop is not None:
            thread.on_stop()
    while awaited := [
        thread for thread in threads if _is_awaited(thread, time.monotonic() - begun)
    ]:
        for thread in awaited:
            if thread.on_stop is None and thread.ident is not None:
                interrupt(thread.ident, SystemExit)
        awaited[0].join(INTERRUPT_INTERVAL_S)


def _is_awaited(thread: TorchThread, for_s: float) -> bool:
    return thread.is_alive() and for_s < thread.patience_s


@atexit.register
def _stop_all_at_exit() -> None:
    try:
        _stop([thread for thread in tuple(_RUNNING) if thread.is_alive()])
    except KeyboardInterrupt:  # a second interrupt: do not wait
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
