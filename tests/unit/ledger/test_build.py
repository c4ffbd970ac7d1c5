"""The ledger as a whole, and the figures beside the buckets."""

from __future__ import annotations

import math

import pytest

from headway.ledger import model
from headway.ledger.model import Ledger
from headway.report import failures, overview
from headway.testing import EPOCH, FakeRun, Host
from headway.units import NS
from tests.truth.definitions import (
    a_detour_from_scratch_loses_only_itself,
    continued_from_an_earlier_save_after_it_was_completed,
    stopped_by_its_user_and_started_again,
)
from tests.truth.interruptions import (
    done,
    four_ranks_come_back_as_two,
    killed,
    life,
    preempted_queued_and_allocated_again,
    save,
)


def test_the_start_is_told_by_the_first_launcher() -> None:
    """Node 1 has booted a moment ago, and its wall clock is an hour off."""
    job = FakeRun()
    fresh = Host("node1", "boot-1", monotonic=3.0, wall=3600.0)
    launcher = job.launcher(0)
    for number, host in enumerate((Host(), fresh)):
        rank = job.process(1, rank=number, world=2, host=host)
        rank.span("process_group_init", 1, 3)
        rank.train(1, 5, 5, 1)
        rank.exit(10)
    launcher.exit(11, code=0)
    assert job.ledger().started_at == EPOCH * NS


def test_time_that_does_not_count_stands_beside_the_wall_time() -> None:
    contract = stopped_by_its_user_and_started_again().ledger().to_dict()
    assert (contract["paused_s"], contract["queue_capacity_s"]) == (78, None)
    assert contract["attempts"][1]["start_s"] == 22
    contract = preempted_queued_and_allocated_again().ledger().to_dict()
    assert (contract["paused_s"], contract["queue_capacity_s"]) == (0, 40)
    assert contract["attempts"][1]["start_s"] == 50  # 90, without 40 in the queue


def test_the_wall_clock_goes_on_where_time_is_left_out() -> None:
    ledger = stopped_by_its_user_and_started_again().ledger()
    assert ledger.outside == ((22 * NS, 78 * NS),)
    clocks = [ledger.clock(s * NS) / NS - EPOCH for s in (0, 21, 22, 37)]
    assert clocks == [0, 21, 100, 115]
    assert ledger.clock(22 * NS, end=True) / NS - EPOCH == 22


def test_a_record_of_the_queue_from_before_the_end_counts_from_the_end() -> None:
    """It was submitted once, and is requeued under the same number."""
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    save(rank, 35, 30, "a.pt")
    job.journals[0].event("signal", 35, signal=15)
    rank.exit(35)
    job.journals[0].exit(36, code=143)
    clocks = {"queued": (EPOCH + 10) * NS, "allocated": (EPOCH + 80) * NS}
    launcher = job.launcher(90, launch="L1", index=1, **clocks)
    rank = job.process(90, launch="L1")
    rank.span("checkpoint_load", 90, 91, path="a.pt")
    rank.train(1, 10, 91, 1)
    launcher.exit(101, code=0)
    ledger = job.ledger()
    assert ledger.queue_capacity == 44 * NS
    assert ledger.wall == (101 - 44) * NS
    assert ledger.buckets["recover.detection"] == NS  # until the launcher was gone
    assert "recover.downtime" not in ledger.buckets
    assert ledger.buckets["recover.hardware_setup"] == 10 * NS


def test_without_a_record_of_the_queue_the_gap_is_downtime() -> None:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    killed(job, rank, 35)
    rank = life(job, 1, 90, 5, 30)
    done(job, rank, 125)
    ledger = job.ledger()
    assert (ledger.wall, ledger.buckets["recover.downtime"]) == (125 * NS, 55 * NS)


def test_an_attempt_that_never_trained_lies_in_the_recovery_of_the_one_before_it() -> None:
    job = FakeRun()
    rank = life(job, 0, 0, 5, 30)
    killed(job, rank, 35)
    rank = life(job, 1, 40, 5, 0)
    killed(job, rank, 46)
    rank = life(job, 2, 50, 5, 30)
    done(job, rank, 85)
    ledger = job.ledger()
    assert [(r.attempt, r.until, r.ns) for r in ledger.recoveries] == [(0, 2, 20 * NS)]
    assert [ledger.recovery_of(attempt) for attempt in range(3)] == [20 * NS, 20 * NS, None]
    assert len(ledger.failures) == 2


def test_failures_are_counted_by_owner() -> None:
    job = FakeRun()
    for number, (kind, message) in enumerate(
        (("ConnectionError", "reset"), ("ValueError", "no"), ("ValueError", "no"))
    ):
        rank = life(job, number, 20 * number, 5, 10)
        rank.event("error", 20 * number + 15, type=kind, message=message)
        rank.exit(20 * number + 15)
        job.journals[-2].exit(20 * number + 16, code=1)
    counts = {"infra": 1, "user": 2, "scheduler": 0, "ambiguous": 0}
    assert job.ledger().to_dict()["failures_by_owner"] == counts


def test_steps_of_a_detour_are_rolled_back_and_no_others() -> None:
    assert failures.rolled_back_steps(a_detour_from_scratch_loses_only_itself().ledger()) == [
        (1, 10)
    ]
    assert failures.rolled_back_steps(stopped_by_its_user_and_started_again().ledger()) == []


@pytest.mark.parametrize(
    "ledger",
    [
        a_detour_from_scratch_loses_only_itself().ledger(),
        continued_from_an_earlier_save_after_it_was_completed().ledger(),
    ],
    ids=["detour", "continued"],
)
def test_what_lies_before_an_attempt_belongs_to_it(ledger: Ledger) -> None:
    found: dict[int, int] = {}
    for attempt, segment in model.segments_by_attempt(ledger, ledger.segments):
        found[attempt] = found.get(attempt, 0) + segment.end - segment.start
        start, end = ledger.windows[attempt]
        assert start <= segment.start < segment.end <= end
    assert list(found.values()) == [end - start for start, end in ledger.windows]
    assert ledger.windows[0][0] == 0
    assert ledger.windows[-1][1] == ledger.wall
    gaps = [
        index
        for index, segment in model.segments_by_attempt(ledger, ledger.segments)
        if segment.bucket == "recover.downtime"
    ]
    assert 0 not in gaps


def test_a_rank_that_is_not_needed_any_more_does_not_differ() -> None:
    ledger = four_ranks_come_back_as_two().ledger()
    gone = {rank.rank: rank.absent for rank in ledger.ranks}
    assert gone == {0: 0, 1: 0, 2: 95 * NS, 3: 95 * NS}
    assert not [row for row in overview.own_losses(ledger) if row[1] == "unknown"]
    spread = overview.rank_spread(ledger)
    assert spread is not None and {rank.rank for rank in spread} <= {0, 1}


def test_a_rank_whose_journal_is_lost_differs() -> None:
    job = four_ranks_come_back_as_two()
    job.journals = [
        journal
        for journal in job.journals
        if (journal.lines[0].get("rank"), journal.lines[0]["launch"]) != (1, "L1")
    ]
    (row,) = [row for row in overview.own_losses(job.ledger()) if row[1] == "unknown"]
    assert row[0].rank == 1


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
    assert [(c.location, c.recompile, c.cached, c.reason) for c in ledger.compiles] == [
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
