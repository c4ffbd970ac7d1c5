"""New data only, and the saves that a run can resume from."""

from __future__ import annotations

from typing import Any

import pytest

from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.model import Checkpoint, CheckpointOutcome
from headway.ledger.resume import DurableSave, durable_saves, mark_lost
from headway.ledger.segments import Segment
from headway.testing import FakeJournal, FakeRun


def resumed(load: dict[str, Any], *saves: dict[str, Any], before: Any = None) -> int | None:
    """The step that the second life of a job resumed from."""
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 30, 5, 1)
    for save in saves:
        rank.span("checkpoint_save", 20, 21, **save)
    if before is not None:
        before(rank)
    launcher.exit(40, code=1)
    job.launcher(50, launch="L1", index=1)
    rank = job.process(50, launch="L1")
    if load:
        rank.span("checkpoint_load", 51, 52, **load)
    rank.train(1, 5, 55, 1)
    return job.ledger().attempts[1].resumed_from


A = {"path": "a", "step": 10}
B = {"path": "b", "step": 20}


@pytest.mark.parametrize(
    ("load", "saves", "step"),
    [
        ({"path": "a"}, [A, B], 10),
        ({"path": "b"}, [A, B], 20),
        ({"path": "elsewhere"}, [A, B], 0),
        ({}, [A, B], 0),
        ({"path": "a"}, [A, {"path": "a", "step": 25}], 25),  # written over
        ({"path": "latest", "file": "7:1:1"}, [{**A, "file": "7:1:1"}, B], 10),  # renamed
        ({"path": "b", "file": "7:1:1"}, [{**A, "file": "7:1:1"}, B], 10),  # the file counts
        ({"path": "a"}, [A, {"path": "a", "step": 25, "error": "OSError"}], 10),
        ({"path": "a"}, [{"path": "a"}], 0),  # of no known step
    ],
)
def test_a_load_is_matched_with_its_save(
    load: dict[str, Any], saves: list[dict[str, Any]], step: int
) -> None:
    assert resumed(load, *saves) == step


def test_a_save_in_the_background_counts_once_it_is_written() -> None:
    def started(rank: FakeJournal) -> None:
        rank.event("saving", 21, save="25:1", path="a", step=25)

    def written(rank: FakeJournal) -> None:
        started(rank)
        rank.span("checkpoint_save", 21, 25, path="a", step=25, background=True, save="25:1")

    def failed(rank: FakeJournal) -> None:
        started(rank)
        rank.span("checkpoint_save", 21, 25, path="a", step=25, background=True, error="upload")

    later = {"path": "a", "step": 25}
    assert resumed({"path": "a"}, A, later, before=started) == 10
    assert resumed({"path": "a"}, A, later, before=failed) == 10
    assert resumed({"path": "a"}, A, later, before=written) == 25


def test_of_several_loads_before_the_first_step_the_highest_counts() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 30, 5, 1)
    rank.span("checkpoint_save", 15, 15, **A)
    rank.span("checkpoint_save", 25, 25, **B)
    launcher.exit(40, code=1)
    job.launcher(50, launch="L1", index=1)
    rank = job.process(50, launch="L1")
    rank.span("checkpoint_load", 51, 52, path="b")
    rank.span("checkpoint_load", 52, 53, path="a")
    rank.train(1, 5, 55, 1)
    ledger = job.ledger()
    assert ledger.attempts[1].resumed_from == 20
    assert ledger.steps == 25


def test_of_several_ranks_the_one_behind_counts() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(0, rank=number, world=2) for number in range(2)]
    for number, rank in enumerate(ranks):
        rank.train(1, 30, 5, 1)
        for step in (10, 20)[: 2 - number]:  # rank 1 did not come to write its second file
            rank.span("checkpoint_save", 5 + step, 5 + step, path=f"{number}.pt", step=step)
    launcher.exit(40, code=1)
    job.launcher(50, launch="L1", index=1)
    for number in range(2):
        rank = job.process(50, rank=number, world=2, launch="L1")
        rank.span("checkpoint_load", 51, 52, path=f"{number}.pt")
        rank.train(1, 5, 55, 1)
    assert job.ledger().attempts[1].resumed_from == 10


def test_a_load_that_no_step_follows_puts_nothing_back() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 30, 5, 1)
    rank.span("checkpoint_save", 15, 15, **A)
    rank.span("checkpoint_load", 35, 36, path="a")  # the best one, for a last evaluation
    rank.span("checkpoint_save", 36, 37, path="best", step=30)
    rank.exit(38)
    launcher.exit(38, code=0)
    ledger = job.ledger()
    assert (ledger.steps, ledger.attempts[0].last_step) == (30, 30)
    assert LOST not in ledger.buckets
    assert [save.step for save in ledger.checkpoints] == [10, 10]  # what it holds


def test_the_loop_may_tell_where_it_starts() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(0).train(1, 30, 5, 1)
    launcher.exit(40, code=1)
    job.launcher(50, launch="L1", index=1)
    rank = job.process(50, launch="L1")
    rank.event("progress", 54, step=12)
    rank.train(1, 5, 55, 1)
    rank.event("progress", 60, step=17)
    ledger = job.ledger()
    assert (ledger.attempts[1].resumed_from, ledger.attempts[1].first_step) == (12, 13)
    assert ledger.steps == 17


def test_a_window_is_divided_at_the_step_that_was_kept() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("train_module_creation", 0, 5)
    rank.train(1, 40, 5, 0.25)  # four steps to a line
    rank.span("checkpoint_save", 10.5, 10.5, path="a", step=22)
    launcher.exit(15, code=1)
    job.launcher(20, launch="L1", index=1)
    rank = job.process(20, launch="L1")
    rank.span("checkpoint_load", 20, 20, path="a")
    rank.train(1, 4, 20, 0.25)
    assert job.ledger().buckets[LOST] == 18 * 250_000_000


def test_move_lost() -> None:
    line = [Segment(0, 4, EFFECTIVE), Segment(4, 6, "waste.evaluation"), Segment(6, 9, EFFECTIVE)]
    assert mark_lost(line, []) == line
    assert mark_lost(line, [(9, None)]) == line
    assert mark_lost(line, [(3, 8)]) == [
        Segment(0, 3, EFFECTIVE),
        Segment(3, 4, LOST),
        Segment(4, 6, "waste.evaluation"),
        Segment(6, 8, LOST),
        Segment(8, 9, EFFECTIVE),
    ]
    assert mark_lost(line, [(0, None)])[0] == Segment(0, 4, LOST)


def test_saves_are_listed_with_their_steps_of_the_run() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 10, 5, 1)
    rank.span("checkpoint_save", 15, 16, path="a", step=10)
    launcher.exit(16, code=1)
    launcher = job.launcher(20, launch="L1", index=1)
    rank = job.process(20, launch="L1")
    rank.span("checkpoint_load", 20, 21, path="a")
    rank.train(1, 10, 25, 1)
    rank.span("checkpoint_save", 35, 36, path="b", step=10)
    rank.span("checkpoint_save", 36, 36, path="b/part", step=10, part=True)
    rank.span("checkpoint_save", 36, 40, path="b", step=10, background=True)
    rank.open("checkpoint_save", 40, path="c", step=10)
    ledger = job.ledger()
    found = [(s.attempt, s.step, s.path) for s in ledger.checkpoints]
    assert found == [(0, 10, "a"), (1, 20, "b"), (1, 20, "b/part")]
    assert ledger.saves == 2
    assert [s.durable for s in ledger.checkpoints] == [None, 40_000_000_000, None]


def told(step: int, at: int, took: int, level: str = "disk", error: str = "") -> CheckpointOutcome:
    return CheckpointOutcome(
        attempt=0,
        step=step,
        at=at,
        level=level,
        blocked=1,
        step_slowdown=0,
        durable=took,
        size=0,
        error=error,
    )


def file(step: int, start: int, end: int, rank: int = 0, **more: int | bool) -> Checkpoint:
    fields = {"attempt": 0, "rank": rank, "start": start, "end": end, "step": step, "path": "/a"}
    return Checkpoint(**{**fields, **more})  # type: ignore[arg-type]


def test_a_checkpointer_says_itself_what_became_of_its_saves() -> None:
    calls = [file(5, 10, 11, from_checkpointer=True), file(9, 30, 31, from_checkpointer=True)]
    saves = [told(5, 20, 10), told(7, 25, 1, "memory"), told(8, 28, 2, error="disk full")]
    assert durable_saves(saves, calls) == [DurableSave(0, 5, 10, 20)], (
        "the one of step 9 is under way"
    )


def test_files_of_one_step_are_one_save_that_is_there_with_the_last_of_them() -> None:
    files = [file(5, 10, 12), file(5, 11, 15, rank=1), file(5, 40, 41, attempt=1)]
    assert durable_saves([], files) == [DurableSave(0, 5, 10, 15), DurableSave(1, 5, 40, 41)]


def test_what_is_written_behind_the_loop_is_there_when_that_is_done() -> None:
    files = [file(5, 10, 11, durable=19), file(6, 20, 21, not_durable=True)]
    assert durable_saves([], files) == [DurableSave(0, 5, 10, 19)]
