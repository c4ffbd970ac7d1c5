"""Single lives of a training, undisturbed or not, and what its ranks have told."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.checkpointed.crash import STUCK_S, referred
from tests.integration.checkpointed.forks import (
    Hurt,
    Nursery,
    before,
    dies,
    fails,
    nursery,
    told,
)
from tests.integration.checkpointed.tiny import Life, Training

_numbers = itertools.count()


def reference(folder: str, steps: int) -> list[dict[str, Any]]:
    """Of an undisturbed training on one rank, by step: digest, loss, samples."""
    with nursery(Path(folder)) as processes:
        return referred(processes, steps)


def live(
    folder: str,
    life: dict[str, Any],
    *,
    failing: tuple[list[str], int, int, int] | None = None,
    removing: int = 0,
) -> dict[str, Any]:
    """One life: its exit codes and what each rank has told.

    `failing`: calls to the disk, by rank 0's writer. `removing`: before that step the store is
    gone.
    """
    with nursery(Path(folder)) as processes:
        if failing is not None:
            processes.hurt_writers[0] = fails(*failing)

        def remove(step: int) -> None:
            if step == removing:
                os.rename(life["store"], f"{life['store']}-gone")
                shutil.rmtree(f"{life['store']}-gone", ignore_errors=True)

        return _lived(processes, life, {0: partial(before, Training, ["step"], remove)})


def _lived(processes: Nursery, life: dict[str, Any], hurt: dict[int, Hurt]) -> dict[str, Any]:
    one = Life(log=f"{processes.folder}/life-{os.getpid()}-{next(_numbers)}", **life)
    processes.start(one, hurt)

    def over() -> bool:
        return not processes.trainers or any(processes.codes.values())

    assert processes.run(over, STUCK_S), told(one.log, one.world)
    processes.kill(*processes.trainers)
    codes = [processes.codes[rank] for rank in range(one.world)]
    return {"codes": codes, "told": told(one.log, one.world)}


def together(folder: str, lives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several at the same time."""
    answers = []
    for life in lives:
        answers.append(Path(folder) / f"answer-{len(answers)}")
        if not os.fork():
            try:
                answers[-1].write_text(json.dumps(live(folder, life)))
            finally:
                os._exit(0)
    for _ in lives:
        os.wait()
    return [json.loads(answer.read_text()) for answer in answers]


def history(folder: str, lives: list[dict[str, Any]]) -> dict[str, Any]:
    """Lives one after the other, each killed at `dying` but the last: the steps that count."""
    steps: dict[int, list[dict[str, Any]]] = {}
    sources, trained = [], 0
    with nursery(Path(folder)) as processes:
        for life in lives:
            rank, step = life.get("dying", (0, 0))
            found = _lived(processes, life["life"], {rank: dies(Training, ["step"], step)})
            for rank, events in enumerate(found["told"]):
                for event in events:
                    if event["what"] == "restored" and rank == 0:
                        sources.append([event["step"], event.get("source", "")])
                        steps = {n: told for n, told in steps.items() if n <= event["step"]}
                    if event["what"] == "step":
                        trained += rank == 0
                        steps.setdefault(event["step"], []).append(event)
    assert not any(found["codes"]), found
    return {"steps": steps, "sources": sources, "trained": trained}
