from __future__ import annotations

from headway.compile.recompiles.steps import step_time
from headway.testing import FakeRun


def test_the_median_of_what_nothing_disturbs() -> None:
    job = FakeRun()
    rank = job.process(0)
    at = rank.train(1, 20, 0, 0.5)  # 10 s
    rank.span("checkpoint_save", at, at + 5)
    at = rank.train(21, 8, at + 5, 0.5)
    rank.span("compile", at + 0.2, at + 0.7)  # within a window of two steps
    rank.train(29, 2, at, 1.0)
    found = step_time([made.journal() for made in job.journals])
    assert found is not None and found.ns == 500_000_000
    assert 20 <= found.steps <= 28


def test_waits_for_data_are_no_part_of_a_step() -> None:
    job = FakeRun()
    rank = job.process(0)
    at = 0.0
    for _ in range(6):
        at = rank.train(rank.steps + 1, 4, at, 0.25, wait=0.5)
    found = step_time([made.journal() for made in job.journals])
    assert found is not None and found.ns == 125_000_000


def test_the_slowest_rank_counts() -> None:
    job = FakeRun()
    for number, each in enumerate((0.1, 0.2)):
        job.process(0, rank=number, world=2).train(1, 100, 0, each)
    found = step_time([made.journal() for made in job.journals])
    assert found is not None and found.ns == 200_000_000


def test_too_few_steps_say_nothing() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(0).train(1, 15, 0, 1.0)
    job.process(0, rank=1).train(1, 100, 0, 0.001)  # one window
    job.process(0, rank=2)
    assert step_time([made.journal() for made in job.journals]) is None
