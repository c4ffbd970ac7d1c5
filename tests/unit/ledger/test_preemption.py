"""What the notice of a preemption saves: the training since the save before it, if that is kept."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from headway.ledger.model import PreemptionNotice
from headway.testing import FakeJournal, FakeRun
from headway.units import NS

START, EACH, NOTICE = 5.0, 1.0, 45.5  # steps of a second: 40 are made when the notice comes
TRAINED = {"attempt": 0, "at": round(NOTICE * NS), "accelerators": 2}


class Job:
    """Two ranks that make 41 steps, are told to go during the last one, and come back or not."""

    def __init__(self, *, regular: int | None = 10) -> None:
        self.run = FakeRun()
        self.launcher = self.run.launcher(0)
        self.ranks = [self.run.process(1, rank=n, world=2) for n in range(2)]
        for rank in self.ranks:
            rank.train(1, 10, START, EACH)
            if regular:
                self.save(rank, regular, START + regular * EACH)
            rank.train(11, 31, START + 10 * EACH, EACH)
        self.launcher.event("signal", NOTICE, signal=int(signal.SIGTERM), **{"from": 1})

    def save(self, rank: FakeJournal, step: int, t: float, **told: Any) -> None:
        """By a Checkpointer; the next step is made meanwhile, and it is durable after 2 s."""
        rank.span("checkpoint_save", t, t + 0.001, step=step, level="disk")
        told = {"blocked_s": 0.001, "durable_s": 2.0, "bytes": 1, **told}
        if told.pop("done", True):
            rank.event("checkpoint", t + 2.0, step=step, level="disk", **told)

    def heed(self, *, saved: bool = True, **told: Any) -> Job:
        for rank in self.ranks:
            rank.event("preempted", 46, step=41, saved=saved, left_s=20.0)
            if saved:
                self.save(rank, 41, 46, **told)
        return self

    def end(self, *, code: int = 0) -> Job:
        for rank in self.ranks:
            rank.exit(49)
        self.launcher.exit(50, code=code)
        return self

    def again(self, step: int) -> Job:
        """A second life goes on from there."""
        launcher = self.run.launcher(100, launch="L1", index=1)
        for n in range(2):
            rank = self.run.process(101, rank=n, world=2, launch="L1")
            rank.event("progress", 103, step=step)
            rank.train(1, 10, 105, EACH)
            rank.exit(120)
        launcher.exit(121, code=0)
        return self

    def notice(self) -> PreemptionNotice:
        (found,) = self.run.ledger().notices
        return found


def seconds(first: int, last: int) -> int:
    """Of the steps from one to the other."""
    return round((last - first + 1) * EACH * NS)


def test_a_last_save_keeps_what_was_trained_since_the_one_before() -> None:
    job = Job().heed().end()
    known = replace(
        PreemptionNotice(**TRAINED, response="saved", step=41),
        saved=seconds(11, 41) - round(0.001 * NS),  # that long the regular save has blocked
        saved_steps=31,
    )
    assert job.notice() == known, "what is lost nobody knows yet"
    assert job.again(41).notice() == replace(known, lost=0, lost_steps=0)
    assert "failure.lost_training" not in job.run.ledger().buckets


def test_without_a_save_before_it_counts_from_the_start_of_the_attempt() -> None:
    notice = Job(regular=None).heed().end().again(41).notice()
    assert (notice.saved_steps, notice.lost) == (41, 0)
    # The first step is the end of the start: effective time begins with its training.
    assert seconds(2, 41) <= notice.saved <= seconds(1, 41)


def test_nobody_heeds_it() -> None:
    notice = Job().end(code=-15).again(10).notice()
    lost = seconds(11, 41) - round(0.001 * NS)
    assert notice == PreemptionNotice(**TRAINED, response="none", lost=lost, lost_steps=31)


def test_a_job_that_never_saves_loses_it_all() -> None:
    job = Job(regular=None).end(code=-15).again(0)
    notice = job.notice()
    assert (notice.response, notice.saved, notice.saved_steps) == ("none", 0, 0)
    assert notice.lost_steps == 41
    assert notice.lost == job.run.ledger().buckets["failure.lost_training"]


def test_a_save_that_came_too_late() -> None:
    job = Job().heed(done=False)
    job.launcher.exit(50, code=-9)
    assert job.notice() == PreemptionNotice(**TRAINED, response="late", step=41)
    notice = job.again(10).notice()
    assert (notice.response, notice.saved, notice.lost_steps) == ("late", 0, 31)
    assert notice.lost == job.run.ledger().buckets["failure.lost_training"]


def test_a_writer_that_was_done_after_its_rank_was_ended() -> None:
    job = Job().heed(done=False)
    job.launcher.exit(50, code=-9)
    notice = job.again(41).notice()
    assert (notice.response, notice.saved_steps, notice.lost_steps) == ("saved", 31, 0)


def test_a_last_save_that_failed() -> None:
    notice = Job().heed(error="disk full").end().again(10).notice()
    assert (notice.response, notice.saved, notice.lost_steps) == ("late", 0, 31)


def test_no_time_for_a_last_save() -> None:
    notice = Job().heed(saved=False).end().again(10).notice()
    assert (notice.response, notice.step, notice.saved) == ("skipped", None, 0)
    assert notice.lost_steps == 31


def test_a_last_save_that_the_next_attempt_did_not_go_on_from() -> None:
    notice = Job().heed().end().again(10).notice()
    assert (notice.response, notice.step, notice.saved, notice.saved_steps) == ("saved", 41, 0, 0)
    assert notice.lost_steps == 31


def test_a_job_that_saves_by_its_own_callback() -> None:
    job = Job(regular=None)
    job.ranks[0].span("checkpoint_save", 46, 47, step=41, path="/a")
    notice = job.end().notice()
    assert (notice.response, notice.step, notice.saved_steps) == ("saved", 41, 41)


def test_only_the_ranks_know_of_it() -> None:
    job = Job()
    job.launcher.lines.pop()  # SIGUSR1 is none that a launcher notes
    notice = job.heed().end().notice()
    assert (notice.at, notice.response, notice.saved_steps) == (46 * NS, "saved", 31)


@pytest.mark.parametrize("code", [0, 1])
def test_other_ends_have_no_notice(code: int) -> None:
    job = Job()
    job.launcher.lines.pop()
    ledger = job.end(code=code).run.ledger()
    assert ledger.notices == () and "notices" not in ledger.to_dict()


def test_in_the_contract() -> None:
    (told,) = Job().heed().end().again(41).run.ledger().to_dict()["notices"]
    assert told == {
        "attempt": 0,
        "at_s": 45.5,
        "answer": "saved",
        "step": 41,
        "accelerators": 2,
        "saved_s": 30.999,
        "saved_steps": 31,
        "saved_accelerator_s": 61.998,
        "lost_s": 0.0,
        "lost_steps": 0,
        "lost_accelerator_s": 0.0,
    }
