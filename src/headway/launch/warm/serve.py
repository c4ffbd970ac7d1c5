"""The loop of the zygote, and of each nest: keep spares, and hand them out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from headway.launch.warm import birth, wire
from headway.launch.warm.birth import Spare
from headway.launch.warm.request import Received

QUIET_S = 2.0  # what was just forked needs the processors more than the next spares do


def serve(
    requester: int, spares: int, ahead: Callable[[], int | Received | None] = lambda: None
) -> Received:
    """Returns only in the processes that it forks, with what they shall become.

    `ahead` is what a spare does while it waits.
    """
    waiting: list[Spare] = []
    quiet = 0.0
    while True:
        received: Received | None = None
        if len(waiting) < spares and not wire.waits(requester, quiet):
            received = _add(waiting, ahead)
        else:
            quiet = QUIET_S
            message, handles = wire.receive(requester)
            if not message:
                os._exit(0)  # who may ask has died; the spares die with this process
            if not waiting:
                received = _add(waiting, ahead)
            if received is None:
                _hand_out(waiting, handles)
                for fd in handles:
                    os.close(fd)
                _collect()
        if received is not None:
            return received


def _hand_out(waiting: list[Spare], handles: list[int]) -> None:
    """To the first that still lives; if none does, the requester sees the end of its reply."""
    while waiting:
        if waiting.pop(0).hand_over(handles):
            return


def _add(waiting: list[Spare], ahead: Callable[[], int | Received | None]) -> Received | None:
    made = birth.fork_spare(ahead)
    if isinstance(made, Received):
        return made
    waiting.append(made)
    return None


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
