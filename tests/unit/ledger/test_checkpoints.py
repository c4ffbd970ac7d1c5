"""What Checkpointers tell of their saves."""

from __future__ import annotations

from typing import Any

import pytest

from headway.ledger.model import Ledger
from headway.report import checkpoints
from headway.testing import FakeJournal, FakeRun
from headway.units import NS

ADVICE = {
    "interval_s": 60.0,
    "recommended_s": 110.0,
    "wasted_percent": 0.42,
    "recommended_percent": 0.35,
    "failures_per_hour": 0.14,
    "failures_low": 0.056,
    "failures_high": 0.26,
}


def tell(rank: FakeJournal, t: float, step: int, level: str, **more: Any) -> None:
    told = {"blocked_s": 0.02, "slower_s": 0.1, "durable_s": 2.0, **more}
    rank.event("checkpoint", t, step=step, level=level, **told)


def run() -> Ledger:
    """Two attempts of two ranks; the second goes on from memory."""
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(2):
        rank = job.process(1, rank=number, world=2)
        rank.train(1, 10, 5, 1)
        rank.span("checkpoint_save", 8, 8.1, step=3, level="disk")
        rank.span("checkpoint_save", 10, 10.1, step=5, level="memory")
        rank.span("checkpoint_save", 10.02, 10.04, step=5, what="torch.save")
        rank.span("checkpoint_save", 12, 12.1, step=7, level="disk")
        tell(rank, 9, 3, "disk", bytes=1000, blocked_s=0.02 + number, **ADVICE)
        if number == 0:
            tell(rank, 10.5, 5, "memory", interval_s=3.0)
        tell(rank, 13, 7, "disk", bytes=10, **({"error": "disk full"} if number else ADVICE))
    launcher.event("death", 16, pid=rank.lines[0]["pid"], code=-9)
    for number in range(2):
        rank = job.process(20, rank=number, world=2, restart=1)
        rank.event("progress", 21, step=5)
        rank.event("restored", 21, step=5, level="memory", source="memory", seconds=0.5)
        rank.train(1, 5, 25, 1)
        rank.event("restored", 28, step=3, level="disk", source="step-3", seconds=0.5)
        rank.exit(31)
    launcher.exit(32, code=0)
    return job.ledger()


def test_the_level_that_a_resume_used() -> None:
    attempts = run().to_dict()["attempts"]
    assert [(a["resumed_from"], a["resumed_by"]) for a in attempts] == [(None, None), (5, "memory")]


def test_saves_are_those_of_all_ranks_together() -> None:
    first, snapshot, second = run().outcomes
    assert (first.step, first.level, first.at, first.error) == (3, "disk", 9 * NS, "")
    assert (first.blocked, first.size) == (round(1.02 * NS), 2000)
    assert (snapshot.step, snapshot.level, snapshot.size) == (5, "memory", 0)
    assert second.error == "disk full"


def test_the_interval_and_the_better_one_are_in_the_contract() -> None:
    told = run().to_dict()["checkpoints"]
    assert (told["saves"], told["interval_s"], told["recommended_interval_s"]) == (2, 4.0, 110.0)
    memory, disk = told["levels"]
    assert memory["interval_s"] == 3.0 and memory["recommended_interval_s"] is None
    assert disk["saves"] == 1 and disk["wasted_percent"] == 0.42 and disk["bytes"] == 2000
    (failed,) = told["failed"]
    assert (failed["step"], failed["at_s"], failed["error"]) == (7, 13.0, "disk full")


@pytest.mark.parametrize(
    ("told", "code", "outcome"),
    [((0, 1), 0, "preempted"), ((0, 1), 1, "preempted"), ((0,), 1, "failed"), ((), 0, "completed")],
)
def test_ranks_that_were_told_to_stop(told: tuple[int, ...], code: int, outcome: str) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(2):
        rank = job.process(1, rank=number, world=2)
        rank.train(1, 20, 5, 0.5)
        if number in told:
            rank.event("preempted", 15, step=20, saved=True, left_s=20.0)
        rank.exit(16)
    launcher.exit(17, code=code)
    ledger = job.ledger()
    assert ledger.attempts[0].outcome == outcome
    if outcome == "preempted":
        (failure,) = ledger.failures
        assert (failure.category, failure.evidence) == ("preemption", "the ranks were told to stop")


def test_without_a_checkpointer_nothing_is_added() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(1)
    rank.train(1, 10, 5, 1)
    rank.span("checkpoint_save", 8, 9, step=3, path="/a")
    launcher.exit(20, code=0)
    ledger = job.ledger().to_dict()
    assert set(ledger["checkpoints"]) == {
        "saves",
        "blocked_s",
        "interval_s",
        "recommended_interval_s",
    }
    assert ledger["attempts"][0]["resumed_by"] is None


@pytest.mark.parametrize(
    "told",
    [
        {"step": "x", "level": "disk"},
        {"step": 3, "level": "tape"},
        {"step": 3},
        {"step": 3, "level": "disk", "blocked_s": "long", "interval_s": -1, "bytes": 1.5},
    ],
)
def test_odd_events_break_nothing(told: dict[str, Any]) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(1)
    rank.event("checkpoint", 2, **told)
    rank.event("restored", 2, **told)
    rank.train(1, 3, 5, 1)
    launcher.exit(20, code=0)
    ledger = job.ledger()
    assert ledger.save_intervals == () and sum(one.blocked for one in ledger.outcomes) == 0


def test_a_checkpoint_of_several_files_blocks_for_all_of_them() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(2):
        rank = job.process(0, rank=number, world=2)
        rank.train(1, 5, 0, 1)
        if number == 0:
            rank.span("checkpoint_save", 5, 7, path="model.pt", step=5)
            rank.span("checkpoint_save", 7, 8, path="optimizer.pt", step=5)
        rank.span("checkpoint_save", 5, 5.5, path=f"rng-{number}.pt", step=5)
        rank.train(6, 5, 8, 1)
    launcher.exit(13, code=0)
    ledger = job.ledger()
    assert ledger.buckets["waste.checkpoint_block"] == 3 * NS
    (saved,) = checkpoints.merged_saves(ledger)
    assert saved.blocked == 3 * NS
