from __future__ import annotations

import math

import pytest

from headway.ledger.model import NS, Ledger
from headway.testing import FakeRun


def test_the_rhythm_of_the_saves() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(2):
        rank = job.process(0, rank=number, world=2)
        rank.train(1, 30, 0, 1)
        for step in (5, 10, 20):
            rank.span("checkpoint_save", step, step, path=f"{step}-{number}", step=step)
    launcher.exit(30, code=0)
    ledger = job.ledger()
    assert ledger.saves == 3  # files of one step are one checkpoint
    assert ledger.save_interval == 7.5 * NS
    assert ledger.recommended_interval is None  # nothing failed, and nothing blocked


def _one_save(code: int) -> Ledger:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 40, 0, 1)
    rank.span("checkpoint_save", 40, 42, path="a", step=40)
    rank.train(41, 58, 42, 1)
    launcher.exit(100, code=code)
    return job.ledger()


def test_the_recommended_interval_is_youngs_at_the_mean_rate() -> None:
    killed = _one_save(137)
    assert killed.failures[0].retry == "bounded"
    # Jeffreys' prior of half a failure, and one in 100 s; a save blocks for 2 s.
    assert killed.recommended_interval == pytest.approx(math.sqrt(2 * 2 * 100 / 1.5) * NS)


def test_a_failure_of_the_program_says_nothing_of_how_often_to_save() -> None:
    ended = _one_save(1)
    assert ended.failures[0].retry == "no" and ended.recommended_interval is None


def test_compiles_cold_cached_and_again() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("compile", 1, 3, where="a.py:1", trigger="forward")
    rank.span("compile", 3, 4, compile_id="0/1", cached=True)
    rank.train(1, 3, 4, 1)
    rank.span("compile", 5, 6, where="a.py:1", reason="size mismatch")
    rank.span("compile", 6, 7, where="b.py:1")
    rank.open("compile", 7)
    launcher.exit(8, code=0)
    ledger = job.ledger()
    assert [(c.where, c.recompile, c.cached, c.reason) for c in ledger.compiles] == [
        ("a.py:1", False, False, ""),
        ("0/1", False, True, ""),
        ("a.py:1", True, False, "size mismatch"),
        ("b.py:1", True, False, "compiled after the first step"),
    ]
    summary = ledger.to_dict()["compile"]
    assert (summary["cold"], summary["cached"], len(summary["recompiles"])) == (1, 1, 2)


def test_the_longest_gaps_come_first_with_their_neighbours() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("device_init", 1, 2)
    rank.span("train_module_creation", 5, 6)
    rank.span("data_wait", 6.1, 7)  # a tenth of a second is no gap
    rank.train(1, 3, 7, 1)
    launcher.exit(10, code=0)
    found = [(g.start, g.end, g.after, g.before) for g in job.ledger().gaps]
    assert found == [
        (2 * NS, 5 * NS, "start.device_init", "start.train_module_creation"),
        (0, NS, "start", "start.device_init"),
    ]


def test_hidden_seconds_are_those_of_the_rank_that_hid_most() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number, until in ((0, 3), (1, 5)):
        rank = job.process(0, rank=number, world=2)
        rank.span("preproc_creation", 0, until, th=9)
        rank.span("train_module_creation", 0, 8)
        rank.train(1, 3, 8, 1)
    launcher.exit(11, code=0)
    assert job.ledger().hidden == {"start.preproc_creation": 5 * NS}


def test_no_recovery_without_training_again() -> None:
    job = FakeRun()
    job.launcher(0).exit(10, code=1)
    job.process(0).train(1, 5, 0, 1)
    job.launcher(20, launch="L1", index=1).exit(30, code=1)
    job.process(20, launch="L1").span("train_module_creation", 20, 29)
    ledger = job.ledger()
    assert [a.outcome for a in ledger.attempts] == ["failed", "failed"]
    assert ledger.time_to_recover == ()


def test_recovery_begins_at_the_last_step_of_any_rank() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number, steps in ((0, 20), (1, 18)):
        job.process(0, rank=number, world=2).train(1, steps, 0, 1)
    launcher.exit(22, code=1)
    job.launcher(30, launch="L1", index=1)
    for number in range(2):
        rank = job.process(30, rank=number, world=2, launch="L1")
        rank.span("data_wait", 30, 31 + number)
        rank.train(1, 5, 32, 1)
    assert job.ledger().time_to_recover == (12 * NS,)  # 20 to 32: until the last one trains
