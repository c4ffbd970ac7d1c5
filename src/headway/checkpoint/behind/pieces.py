"""A checkpoint of several files, as transformers makes them: whole, or not to be resumed from."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from headway.checkpoint.behind import aside
from headway.checkpoint.behind.queue import Job, queued
from headway.probe import pace

LAST = "trainer_state.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")


def write_last(original: Callable[..., Any], state: Any, json_path: Any) -> Any:
    """In place of TrainerState.save_to_json: by that file a resume takes all others as there."""
    if queued.busy():
        return original(state, json_path)
    start = monotonic_ns()
    with queued.at_work():
        place = os.path.realpath(json_path)
        try:
            beside, now = aside.Aside(place), copy.deepcopy(state)
        except Exception:
            queued.wait("a file beside it")
            return original(state, json_path)

        def write() -> None:
            try:
                original(now, beside.path)
                beside.commit()
            finally:
                beside.drop()

        if not queued.pending:
            write()
            return None
        taken = monotonic_ns() - start
        queued.submit(Job(place, "transformers", 0, write, pace.steps, taken))
    return None


def last_whole(original: Callable[..., Any], folder: Any) -> Any:
    """In place of get_last_checkpoint: without those that a kill has left in the middle."""
    newest = original(folder)
    if newest is None or _whole(newest):
        return newest
    numbers = [name for name in os.listdir(folder) if _NUMBERED.fullmatch(name)]
    for name in sorted(numbers, key=lambda name: -int(name.partition("-")[2])):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and _whole(path):
            return path
    return None


def _whole(folder: str) -> bool:
    """Nothing was left half written, and the file that the Trainer writes last is there."""
    return not aside.left(folder) and os.path.exists(os.path.join(folder, LAST))
