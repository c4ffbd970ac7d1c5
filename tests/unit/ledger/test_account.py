from __future__ import annotations

import pytest

from headway.ledger.model import NS, Ledger
from headway.report import findings
from headway.testing import EPOCH, FakeRun, Host
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
    assert findings.rolled_back_steps(a_detour_from_scratch_loses_only_itself().ledger()) == [
        (1, 10)
    ]
    assert findings.rolled_back_steps(stopped_by_its_user_and_started_again().ledger()) == []


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
    for attempt, segment in findings.segments_by_attempt(ledger, ledger.segments):
        found[attempt] = found.get(attempt, 0) + segment.end - segment.start
        start, end = ledger.windows[attempt]
        assert start <= segment.start < segment.end <= end
    assert list(found.values()) == [end - start for start, end in ledger.windows]
    assert ledger.windows[0][0] == 0
    assert ledger.windows[-1][1] == ledger.wall
    gaps = [
        index
        for index, segment in findings.segments_by_attempt(ledger, ledger.segments)
        if segment.leaf == "recover.downtime"
    ]
    assert 0 not in gaps


def test_a_rank_that_is_not_needed_any_more_does_not_differ() -> None:
    ledger = four_ranks_come_back_as_two().ledger()
    gone = {rank.rank: rank.absent for rank in ledger.ranks}
    assert gone == {0: 0, 1: 0, 2: 95 * NS, 3: 95 * NS}
    assert not [row for row in findings.own_losses(ledger) if row[1] == "unknown"]
    spread = findings.rank_spread(ledger)
    assert spread is not None and {rank.rank for rank in spread} <= {0, 1}


def test_a_rank_whose_journal_is_lost_differs() -> None:
    job = four_ranks_come_back_as_two()
    job.journals = [
        journal
        for journal in job.journals
        if (journal.lines[0].get("rank"), journal.lines[0]["launch"]) != (1, "L1")
    ]
    (row,) = [row for row in findings.own_losses(job.ledger()) if row[1] == "unknown"]
    assert row[0].rank == 1
