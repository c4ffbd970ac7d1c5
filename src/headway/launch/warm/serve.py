"""The loop of the zygote, and of each nest: keep spares, and hand them out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from headway.launch.warm import birth, wire
from headway.launch.warm.birth import IdleChild
from headway.launch.warm.request import ReceivedRequest

REFILL_DELAY_S = 2.0  # what was just forked needs the processors more than the next spares do


def serve(
    requester: int, spares: int, ahead: Callable[[], int | ReceivedRequest | None] = lambda: None
) -> ReceivedRequest:
    """Returns only in the processes that it forks, with what they shall become.

    `ahead` is what a spare does while it waits.
    """
    waiting: list[IdleChild] = []
    quiet = 0.0
    while True:
        received: ReceivedRequest | None = None
        if len(waiting) < spares and not wire.is_readable(requester, quiet):
            received = _add_idle_child(waiting, ahead)
        else:
            quiet = REFILL_DELAY_S
            message, handles = wire.receive_message(requester)
            if not message:
                os._exit(0)  # who may ask has died; the spares die with this process
            if not waiting:
                received = _add_idle_child(waiting, ahead)
            if received is None:
                _hand_out(waiting, handles)
                for fd in handles:
                    os.close(fd)
                _reap_children()
        if received is not None:
            return received


def _hand_out(waiting: list[IdleChild], handles: list[int]) -> None:
    """To the first that still lives; if none does, the requester sees the end of its reply."""
    while waiting:
        if waiting.pop(0).hand_over(handles):
            return


def _add_idle_child(
    waiting: list[IdleChild], ahead: Callable[[], int | ReceivedRequest | None]
) -> ReceivedRequest | None:
    made = birth.fork_idle_child(ahead)
    if isinstance(made, ReceivedRequest):
        return made
    waiting.append(made)
    return None


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
