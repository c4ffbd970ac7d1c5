"""A checkpoint of several files, as transformers makes them: whole, or not to be resumed from."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from headway.checkpoint.behind import aside
from headway.checkpoint.behind.queue import BackgroundSave, write_queue
from headway.probe import pace

LAST_FILE = "trainer_state.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")


def write_last_file(original: Callable[..., Any], state: Any, json_path: Any) -> Any:
    """In place of TrainerState.save_to_json: by that file a resume takes all others as there."""
    if write_queue.busy():
        return original(state, json_path)
    start = monotonic_ns()
    with write_queue.at_work():
        place = os.path.realpath(json_path)
        try:
            beside, now = aside.AtomicFile(place), copy.deepcopy(state)
        except Exception:
            write_queue.wait("a file beside it")
            return original(state, json_path)

        def write() -> None:
            try:
                original(now, beside.path)
                beside.commit()
            finally:
                beside.drop()

        if not write_queue.pending:
            write()
            return None
        taken = monotonic_ns() - start
        write_queue.submit(BackgroundSave(place, "transformers", 0, write, pace.steps, taken))
    return None


def last_complete(original: Callable[..., Any], folder: Any) -> Any:
    """In place of get_last_checkpoint: without those that a kill has left in the middle."""
    newest = original(folder)
    if newest is None or _is_complete(newest):
        return newest
    numbers = [name for name in os.listdir(folder) if _NUMBERED.fullmatch(name)]
    for name in sorted(numbers, key=lambda name: -int(name.partition("-")[2])):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and _is_complete(path):
            return path
    return None


def _is_complete(folder: str) -> bool:
    """Nothing was left half written, and the file that the Trainer writes last is there."""
    return not aside.has_abandoned_writes(folder) and os.path.exists(
        os.path.join(folder, LAST_FILE)
    )
