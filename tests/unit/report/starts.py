"""Runs whose start was declared as stages, and one that was compiled ahead: from fake journals."""

from __future__ import annotations

import random
from typing import Any

from headway.ledger.model import Ledger
from headway.testing import FakeJournal, FakeRun

# Name, where, needs, begin and end in seconds.
Stage = tuple[str, str, list[str], float, float]
SEVEN: tuple[Stage, ...] = (
    ("device_init", "main", [], 0.0, 0.5),
    ("process_group_init", "main", ["device_init"], 0.5, 1.5),
    ("preproc_creation", "thread", [], 0.0, 2.0),
    ("vocabulary", "process", [], 0.0, 1.2),
    ("train_module_creation", "main", ["process_group_init", "vocabulary"], 1.5, 2.5),
    ("get_first_batch_data", "thread", ["preproc_creation"], 2.0, 6.0),
    ("compile_ahead", "thread", ["train_module_creation"], 2.5, 5.5),
    ("pre_train", "main", ["get_first_batch_data", "compile_ahead"], 6.5, 7.0),
)


def many(count: int, seed: int = 3) -> tuple[Stage, ...]:
    """So many stages that need earlier ones, a sixth of them in the main thread."""
    dice = random.Random(seed)
    found: list[Stage] = []
    main = 0.0
    for number in range(count):
        needs = dice.sample(found, k=min(len(found), dice.choice((0, 1, 1, 2, 3))))
        where = dice.choice(("main", "thread", "thread", "thread", "process", "process"))
        start = max([one[4] for one in needs], default=0.0)
        start = max(start, main) if where == "main" else start
        end = start + dice.choice((0.02, 0.2, 0.6, 1.5, 2.5))
        main = end if where == "main" else main
        found.append((f"stage_{number}", where, [one[0] for one in needs], start, end))
    return tuple(found)


def staged(*starts: tuple[Stage, ...]) -> Ledger:
    """One attempt for each of these starts; all but the last one fail."""
    job = FakeRun()
    at = 0.0
    for index, stages in enumerate(starts):
        launch = f"L{index}"
        launcher = job.launcher(at, launch=launch, index=index)
        rank = job.process(at, launch=launch)
        begun = at + 1
        rows = [
            [name, where, needs, rank.at(begun + start), rank.at(begun + end)]
            for name, where, needs, start, end in stages
        ]
        done = begun + max((stage[4] for stage in stages), default=0.0)
        rank.event("stages", done, stages=rows, overlap=True)
        at = rank.train(1, 20, done, 1)
        launcher.exit(at + 1, code=int(index + 1 < len(starts)))
        at += 5
    return job.ledger()


def compiled_ahead(reason: str = "", attempts: int = 1, ranks: int = 1, **told: Any) -> Ledger:
    """A step compiled on a fast batch, 2 s; with a reason again, 3 s, by the first real batch."""
    job = FakeRun()
    for index in range(attempts):
        at, launch = 40.0 * index, f"L{index}"
        launcher = job.launcher(at, launch=launch, index=index)
        for number in range(ranks):
            rank = job.process(at, launch=launch, rank=number, world=ranks)
            _ahead(rank, at, reason, told)
        launcher.exit(at + 20, code=int(index + 1 < attempts))
    return job.ledger()


def _ahead(rank: FakeJournal, at: float, reason: str, told: dict[str, Any]) -> None:
    frame = {"trigger": "DYNAMO", "step": 0, "where": "/job/train.py:7 forward"}
    ahead = rank.open("compile", at + 1, th=1, what="compile_ahead")
    rank.span("compile", at + 2, at + 4, th=1, compile_id="0/0", **frame)
    rank.close(ahead, at + 5)
    if reason:
        again = {**frame, "compile_id": "0/1", "reason": reason, **told}
        rank.span("compile", at + 6, at + 8, **again)
        rank.span("compile", at + 8, at + 9, compile_id="0/1", trigger="LAZY_BACKWARD")
    rank.train(1, 10, at + 9, 1)
