from __future__ import annotations

import pytest

from headway.ledger.attempts import find_attempts, find_launches
from headway.ledger.clocks import align_clocks
from headway.ledger.record import AttemptRecord
from headway.testing import FakeRun
from headway.units import NS


def drafts_of(job: FakeRun) -> list[AttemptRecord]:
    journals = [made.journal() for made in job.journals]
    launchers = [j for j in journals if j.role == "launcher"]
    processes = [j for j in journals if j.role != "launcher"]
    axis = align_clocks(launchers, processes)
    return find_attempts(find_launches(launchers, processes, axis), processes, axis)


def seconds(t: int) -> float:
    return t / NS - 1000  # the fake host's clock


@pytest.mark.parametrize(
    ("code", "signal", "outcome"),
    [
        (0, None, "completed"),
        (0, 15, "preempted"),  # told to stop, and in order
        (1, None, "failed"),
        (-9, None, "failed"),
        (143, 15, "preempted"),
        (130, 2, "stopped"),
        (129, 1, "preempted"),
    ],
)
def test_how_an_attempt_ended(code: int, signal: int | None, outcome: str) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(1).train(1, 3, 5, 1)
    if signal is not None:
        launcher.event("signal", 8, signal=signal)
    launcher.exit(9, code=code)
    (draft,) = drafts_of(job)
    assert draft.outcome == outcome


def test_without_an_end_it_is_running() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(1).train(1, 3, 5, 1)
    (draft,) = drafts_of(job)
    assert (draft.outcome, seconds(draft.end)) == ("running", 8)


def test_a_later_launch_ends_the_one_before_it() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(1).train(1, 3, 5, 1)
    job.launcher(20, launch="L1", index=1)
    job.process(21, launch="L1")
    assert [draft.outcome for draft in drafts_of(job)] == ["failed", "running"]


def test_helpers_are_no_ranks_unless_they_train() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(1, rank=0, pid=10)
    job.process(2, rank=0, pid=11, helper=True)
    job.process(2, rank=None, pid=12)
    trains = job.process(2, rank=None, pid=13, helper=True)
    trains.event("rank", 3, rank=1, world=2)
    (draft,) = drafts_of(job)
    assert [(life.rank, life.journal.pid) for life in draft.ranks] == [(0, 10), (1, 13)]


def test_a_plain_script_is_a_rank() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(1, rank=None, world=None, pid=10)
    (draft,) = drafts_of(job)
    assert [(life.rank, life.journal.pid) for life in draft.ranks] == [(0, 10)]


def test_a_rank_that_appears_again_is_another_life() -> None:
    job = FakeRun()
    job.launcher(0)
    for start in (1, 30):  # restarted by a shell loop, without a restart count
        for number in range(2):
            job.process(start, rank=number, world=2).train(1, 3, start + 5, 1)
    drafts = drafts_of(job)
    assert [[life.rank for life in draft.ranks] for draft in drafts] == [[0, 1], [0, 1]]
    assert [seconds(draft.begin) for draft in drafts] == [0, 30]


def test_two_that_claim_one_rank_at_one_time_are_two() -> None:
    job = FakeRun()
    job.launcher(0)
    for _ in range(2):
        job.process(1, rank=0, world=1).train(1, 3, 5, 1)
    (draft,) = drafts_of(job)
    assert [life.rank for life in draft.ranks] == [0, 1]


def test_a_rank_that_never_steps_is_not_waited_for_once_the_others_trained() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(1, rank=0, world=2).train(1, 9, 5, 1)
    idle = job.process(1, rank=1, world=2)
    (draft,) = drafts_of(job)
    assert [life.rank for life in draft.trainers()] == [0, 1]
    job.journals.remove(idle)
    job.journals[1].train(10, 1, 14, 1)
    job.journals.append(idle)
    (draft,) = drafts_of(job)
    assert [life.rank for life in draft.trainers()] == [0]


def test_the_first_death_ends_the_attempt() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    ranks = [job.process(1, rank=number, world=3) for number in range(3)]
    for rank in ranks:
        rank.train(1, 3, 5, 1)
    ranks[2].exit(9)  # left in order: its death says nothing
    for rank, at in zip(ranks, (12, 11, 9), strict=True):
        launcher.event("death", at, pid=rank.lines[0]["pid"])
    launcher.exit(14, code=1)
    (draft,) = drafts_of(job)
    assert seconds(draft.end) == 11


def test_a_death_before_the_process_began_was_of_another_with_its_pid() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    launcher.event("death", 2, pid=77)
    job.process(5, pid=77).train(1, 3, 6, 1)
    launcher.exit(14, code=1)
    (draft,) = drafts_of(job)
    assert seconds(draft.end) == 14


def test_a_launcher_whose_exit_is_lost_but_not_its_decision_has_an_end() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(1).train(1, 3, 5, 1)
    launcher.event("decision", 11, action="restart", why="it may help")
    (draft,) = drafts_of(job)
    assert (draft.outcome, seconds(draft.end)) == ("failed", 11)
    assert seconds(draft.launch.end) == 11


def test_a_program_that_prepares_is_no_rank_wherever_another_one_trains() -> None:
    job = FakeRun()
    for number, code in ((0, 1), (1, 0)):
        start = 100 * number
        launcher = job.launcher(start, launch=f"L{number}", index=number)
        prepare = job.process(
            start, rank=None, world=None, launch=f"L{number}", argv=["python", "prepare.py"]
        )
        if number:
            prepare.exit(start + 5)
            train = job.process(
                start + 5, rank=None, world=None, launch="L1", argv=["python", "-u", "train.py"]
            )
            train.train(1, 3, start + 6, 1)
            train.exit(start + 10)
        launcher.exit(start + 20, code=code)
    first, second = drafts_of(job)
    assert [draft.outcome for draft in (first, second)] == ["failed", "completed"]
    assert len(second.ranks) == 1
    assert [life.journal.argv[-1] for life in second.ranks] == ["train.py"]
    assert [journal.argv[-1] for journal in second.others] == ["prepare.py"]
    assert [life.journal.argv[-1] for life in first.ranks] == ["prepare.py"]  # there is no other


def test_the_parent_of_ranks_is_none_though_it_raises() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    parent = job.process(0, rank=None, world=None)
    for number in range(2):
        job.process(2, rank=number, world=2).train(1, 3, 5, 1)
    parent.event("error", 9, type="ProcessExitedException", message="process 0 terminated")
    parent.exit(9)
    launcher.exit(10, code=1)
    (draft,) = drafts_of(job)
    assert [life.rank for life in draft.ranks] == [0, 1]


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "completed"), (None, "completed"), (3, "failed")]
)
def test_a_program_before_another_one_of_the_launch_may_have_failed(
    code: int | None, outcome: str
) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for start in (0, 20):
        rank = job.process(start, rank=None, world=None)
        rank.train(1, 3, start + 5, 1)
        rank.exit(start + 9)
        if not start:
            launcher.event("death", 9, pid=rank.lines[0]["pid"], code=code)
    launcher.exit(30, code=0)
    assert [draft.outcome for draft in drafts_of(job)] == [outcome, "completed"]


def test_ranks_that_an_agent_starts_again_have_failed() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for restart in range(2):
        rank = job.process(20 * restart, restart=restart)
        rank.train(1, 3, 20 * restart + 5, 1)
        rank.exit(20 * restart + 9)
    launcher.exit(30, code=0)
    assert [draft.outcome for draft in drafts_of(job)] == ["failed", "completed"]
