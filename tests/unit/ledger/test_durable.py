"""Saves that one could resume from: those of a Checkpointer by its word, others by their files."""

from __future__ import annotations

from headway.ledger.durable import DurableSave, durable_saves
from headway.ledger.model import Checkpoint, CheckpointOutcome


def told(step: int, at: int, took: int, level: str = "disk", error: str = "") -> CheckpointOutcome:
    return CheckpointOutcome(
        attempt=0,
        step=step,
        at=at,
        level=level,
        blocked=1,
        slower=0,
        durable=took,
        size=0,
        error=error,
    )


def file(step: int, start: int, end: int, rank: int = 0, **more: int | bool) -> Checkpoint:
    fields = {"attempt": 0, "rank": rank, "start": start, "end": end, "step": step, "path": "/a"}
    return Checkpoint(**{**fields, **more})  # type: ignore[arg-type]


def test_a_checkpointer_says_itself_what_became_of_its_saves() -> None:
    calls = [file(5, 10, 11, told=True), file(9, 30, 31, told=True)]
    saves = [told(5, 20, 10), told(7, 25, 1, "memory"), told(8, 28, 2, error="disk full")]
    assert durable_saves(saves, calls) == [DurableSave(0, 5, 10, 20)], (
        "the one of step 9 is under way"
    )


def test_files_of_one_step_are_one_save_that_is_there_with_the_last_of_them() -> None:
    files = [file(5, 10, 12), file(5, 11, 15, rank=1), file(5, 40, 41, attempt=1)]
    assert durable_saves([], files) == [DurableSave(0, 5, 10, 15), DurableSave(1, 5, 40, 41)]


def test_what_is_written_behind_the_loop_is_there_when_that_is_done() -> None:
    files = [file(5, 10, 11, durable=19), file(6, 20, 21, unwritten=True)]
    assert durable_saves([], files) == [DurableSave(0, 5, 10, 19)]
