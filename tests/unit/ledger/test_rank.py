from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headway
from headway.journal import pulse
from headway.ledger.model import Ledger
from headway.testing import FakeJournal, FakeRun
from headway.units import NS


def ledger_of(write: Callable[[FakeJournal], None], end: float, code: int = 0) -> Ledger:
    """Of one rank that lived from 0 to `end`."""
    job = FakeRun()
    launcher = job.launcher(0)
    write(job.process(0))
    launcher.exit(end, code=code)
    return job.ledger()


def buckets(write: Callable[[FakeJournal], None], end: float, code: int = 0) -> dict[str, float]:
    """Its seconds by leaf."""
    return {leaf: ns / NS for leaf, ns in ledger_of(write, end, code).buckets.items()}


def test_a_first_step_that_is_no_longer_than_others_began_when_all_was_ready() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 1, 5, 3)  # three times a step
        rank.train(2, 9, 8, 1)

    assert buckets(write, 17) == {"start.train_module_creation": 5, "train.effective": 12}


def test_a_first_step_that_took_too_long_hid_something_unknown() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 1, 5, 20)
        rank.train(2, 9, 25, 1)

    assert buckets(write, 34) == {
        "start.train_module_creation": 5,
        "unknown": 19,
        "train.effective": 10,
    }


def test_the_first_line_may_hold_several_steps() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("train_module_creation", 0, 20)
        for start, end, last in ((0, 500, 10), (500, 700, 30)):
            rank.lines.append(
                {
                    "ev": "steps",
                    "t": rank.at(start) if start else 0,
                    "end": rank.at(end),
                    "first": rank.steps + 1,
                    "last": last,
                }
            )
            rank.steps = last

    assert buckets(write, 700) == {
        "start.train_module_creation": 20,
        "unknown": 380,
        "train.effective": 300,
    }


def test_a_compile_is_no_part_of_the_first_step() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("compile", 10.5, 24.5)
        rank.train(1, 1, 0, 25)
        rank.train(2, 9, 25, 1)

    assert buckets(write, 34) == {
        "unknown": 10,
        "start.pt2_compile": 14,
        "train.effective": 10,  # half a second before the compile, and half after
    }


def test_imports_belong_to_the_launch_and_what_lies_between_does_not() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("import", 2, 6, module="torch")
        rank.span("import", 6, 7, module="torchvision")
        rank.span("data_wait", 9, 10)
        rank.train(1, 5, 10, 1)

    assert buckets(write, 15) == {
        "start.launcher_init": 5,
        "unknown": 4,  # 2 before the import, 2 after it
        "start.get_first_batch_data": 1,
        "train.effective": 5,
    }


def test_a_module_that_trains_while_it_is_imported_is_no_import() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("import", 1, 4, module="torch")
        rank.train(1, 20, 4, 1)
        rank.span("import", 0.5, 25, module="train")
        rank.span("import", 2, 30, module="other", th=7)

    found = buckets(write, 26)
    assert found["train.effective"] == 20
    assert found["start.launcher_init"] == pytest.approx(3.5, abs=0.6)


def test_what_is_inside_a_save_is_the_save() -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 5, 0, 1)
        save = rank.open("checkpoint_save", 5, path="a", step=5)
        rank.span("compile", 6, 8)
        rank.close(save, 9)
        rank.train(6, 5, 9, 1)

    assert buckets(write, 14) == {"train.effective": 10, "waste.checkpoint_block": 4}


def test_another_thread_does_not_hold_up_the_steps() -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 5, 0, 1)
        rank.span("checkpoint_save", 2, 4, th=9, path="a", step=2)
        rank.span("evaluation", 3, 5)

    assert buckets(write, 5) == {"train.effective": 3, "waste.evaluation": 2}


def test_the_steps_may_be_made_by_another_thread() -> None:
    def write(rank: FakeJournal) -> None:
        rank.event("stepping", 1, th=9)
        rank.train(1, 5, 0, 1)
        rank.span("checkpoint_save", 2, 4, th=9, path="a", step=2)
        rank.span("evaluation", 3, 5)

    assert buckets(write, 5) == {"train.effective": 3, "waste.checkpoint_block": 2}


def test_a_span_of_no_known_name_is_preparation_and_later_a_block() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("warm up", 0, 2)
        rank.train(1, 5, 2, 1)
        rank.span("ask the parameter server", 7, 8)
        rank.train(6, 5, 8, 1)

    assert buckets(write, 13) == {
        "start.pre_train": 2,
        "train.effective": 10,
        "waste.blocked": 1,
    }


@pytest.mark.parametrize(("silent", "leaf"), [(9.5, "recover.detection"), (10.5, "failure.hang")])
def test_ten_steps_of_silence_are_a_hang(silent: float, leaf: str) -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 20, 0, 1)

    assert buckets(write, 20 + silent, code=-9) == {"train.effective": 20, leaf: silent}


@pytest.mark.parametrize(("silent", "leaf"), [(59.5, "recover.detection"), (60.5, "failure.hang")])
def test_inside_a_span_a_minute_of_silence_is(silent: float, leaf: str) -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 20, 0, 1)
        rank.open("checkpoint_save", 20, path="a", step=20)

    assert buckets(write, 20 + silent, code=-9) == {"train.effective": 20, leaf: silent}


def test_spans_of_its_kind_teach_how_long_is_long() -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 20, 0, 1)
        rank.span("checkpoint_save", 20, 40, path="a", step=20)
        rank.train(21, 20, 40, 1)
        rank.open("checkpoint_save", 60, path="b", step=40)

    found = buckets(write, 60 + 199, code=-9)
    assert found["recover.detection"] == 199
    assert "failure.hang" not in found


def test_who_wrote_his_own_end_did_not_hang() -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 20, 0, 1)
        rank.event("error", 20, type="ValueError", message="no")

    assert buckets(write, 220, code=1) == {"train.effective": 20, "recover.detection": 200}


def test_short_waits_are_all_counted_and_never_outside_the_training() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("train_module_creation", 0, 5)
        rank.train(1, 1, 5, 1)
        for step in range(2, 12):
            rank.train(step, 1, 4 + step, 1, wait=0.9)
        rank.span("evaluation", 16, 20)
        rank.train(12, 1, 20, 1, wait=0.5)

    assert buckets(write, 23) == {
        "start.train_module_creation": 5,
        "unknown": 0.9,  # without its waits, a step takes 0.1 s: the first one hid something
        "train.effective": 12 - 9.5 - 0.9,
        "waste.data_stall": 9.5,
        "waste.evaluation": 4,
        "stop.shutdown": 2,
    }


def test_a_line_takes_no_more_than_its_own_length() -> None:
    """Old probes wrote what the loop read after its last step into the last line."""

    def write(rank: FakeJournal) -> None:
        rank.train(1, 10, 0, 1)
        rank.train(11, 1, 10, 0.5, wait=50)
        rank.train(12, 1, 10.5, 0.5)  # in the same cell

    assert buckets(write, 20) == {
        "train.effective": 10.5,
        "waste.data_stall": 0.5,
        "stop.shutdown": 9,
    }


def test_waits_are_spread_over_the_training_time_of_their_line() -> None:
    def write(rank: FakeJournal) -> None:
        rank.train(1, 1, 0, 0.25)
        rank.span("evaluation", 1, 2)
        rank.train(2, 1, 0.25, 2.75, wait=0.7)  # 0.75 s of it in the first second, 1 in the third

    stalls = [s for s in ledger_of(write, 3).segments if s.bucket == "waste.data_stall"]
    assert [(s.end - s.start, s.end) for s in stalls] == [(300_000_000, NS), (400_000_000, 3 * NS)]


def test_a_drain_before_the_first_step_says_nothing() -> None:
    def write(rank: FakeJournal) -> None:
        rank.span("data_wait", 0, 5)
        rank.event("drain", 1, ns=3 * NS)
        rank.train(1, 5, 5, 1)

    assert buckets(write, 10) == {"start.get_first_batch_data": 5, "train.effective": 5}


def test_a_rank_that_waits_for_a_batch_may_take_its_time(tmp_path: Path) -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 20, 0, 1)
    launcher.exit(70, code=-9)
    assert job.ledger().buckets["failure.hang"] == 50 * NS
    rank.cells[pulse.WAITING] = rank.at(20)
    ledger = headway.load(job.write(tmp_path)).ledger
    assert ledger.buckets["recover.detection"] == 50 * NS
