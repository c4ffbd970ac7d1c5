"""Threads in which torch works, and the end of the process.

Python ends the threads that are left at its end wherever they are. In C++ that is an abort, and the
exit code is 134, whatever the script has ended with. So they are stopped before.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable
from typing import Any


class TorchThread(threading.Thread):
    """At the end of the process it is asked to stop, and waited for, but not for ever.

    It may be in the midst of what never ends, as a GPU can be. `ask`: how it is told; without that
    it is interrupted.
    """

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        *,
        name: str,
        patience_s: float,
        ask: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)
        self._ask, self._patience_s = ask, patience_s

    def start(self) -> None:
        atexit.register(self.leave)
        super().start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            atexit.unregister(self.leave)

    def leave(self) -> None:
        """It ends now, if it can."""
        if self._ask is not None:
            self._ask()
        elif self.ident is not None:
            interrupt(self.ident, SystemExit)
        self.join(self._patience_s)


def interrupt(thread: int, what: type[BaseException]) -> None:
    """That is raised in it, as soon as it runs Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))
