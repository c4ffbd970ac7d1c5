"""The eviction cost: the formula, and the cost of a ledger."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.cli import main
from headway.eviction_cost import eviction_cost
from headway.schedule.cost import from_ledger, from_run
from headway.testing import FakeRun
from headway.units import NS


def test_the_formula() -> None:
    assert eviction_cost(8, 600, 100) == 8 * 700
    assert eviction_cost(8, 600, 100, save=20, grace=30) == 8 * 120, "saved within the notice"
    assert eviction_cost(8, 600, 100, save=40, grace=30) == 8 * 700, "a save that comes too late"
    assert eviction_cost(8, 5, 100, save=20, grace=30) == 8 * 105, "less to lose than a save takes"
    assert eviction_cost(8, 600, 100, preemptions=3, repeat_penalty_s=60) == 8 * 880
    assert eviction_cost(8, 600, 100, save=None, grace=30) == 8 * 700, "silence is not rewarded"


def trained(job: FakeRun, end: float) -> None:
    rank = job.process(begin=1, rank=0, world=4)
    rank.train(first=1, count=100, start=5, each=0.5)
    rank.event("checkpoint", 60, level="disk", step=90, durable_s=8.0, bytes=10)
    rank.train(first=101, count=round((end - 60) / 0.5), start=60, each=0.5)


def test_a_run_that_saved() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    trained(job, end=100)
    ledger = job.ledger()
    price = from_ledger(ledger)
    assert price.accelerators == 4
    assert price.save == 8.0
    assert price.unsaved == pytest.approx(100 - 52), "since the state that was saved"
    start = (ledger.time_to_start or 0) / NS
    assert price.recover == start > 4, "as long as the start, until one is measured"
    assert price.lost == pytest.approx(4 * (48 + start))
    assert from_ledger(ledger, grace=10).lost == pytest.approx(4 * (8 + start))


def test_a_run_without_saves_is_charged_from_its_start() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    price = from_ledger(job.ledger(), grace=1e6)
    assert price.save is None
    assert price.unsaved == pytest.approx(55)


def test_a_failed_save_saves_nothing() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    rank.event("checkpoint", 54, level="disk", step=90, durable_s=3.0, error="disk full")
    rank.event("checkpoint", 54, level="memory", step=95, durable_s=1.0)
    price = from_ledger(job.ledger())
    assert price.save is None and price.unsaved == pytest.approx(55)


def test_a_run_on_disk(tmp_path: Path) -> None:
    job = FakeRun()
    job.launcher(begin=0)
    trained(job, end=100)
    job.write(tmp_path)
    assert from_run(tmp_path).lost == pytest.approx(from_ledger(job.ledger()).lost)


def test_top_shows_the_cost_of_an_active_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = FakeRun()
    launcher = job.launcher(begin=0)
    trained(job, end=100)
    job.write(tmp_path / "going")
    launcher.exit(101, code=0)
    job.write(tmp_path / "over")
    assert main(["top", str(tmp_path / "going"), "--once"]) == 0
    line = re.search(r"^(\D+)212 .*\b48\.0 s\b", capsys.readouterr().out, re.MULTILINE)
    assert line is not None
    assert main(["top", str(tmp_path / "over"), "--once"]) == 0
    assert line[1] not in capsys.readouterr().out


def test_queue_time_does_not_count() -> None:
    job = FakeRun()
    first = job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=2)
    rank.train(first=1, count=100, start=5, each=0.5)
    first.event("signal", 55, signal=15, **{"from": 1})
    first.exit(60, code=-15)
    job.launcher(begin=1000, launch="L1", index=1)
    again = job.process(begin=1001, rank=0, world=2, launch="L1")
    again.train(first=1, count=100, start=1010, each=0.5)
    ledger = job.ledger()
    assert ledger.time_to_recover[0] / NS > 900
    price = from_ledger(ledger)
    assert price.recover == pytest.approx(1010 - 1000, abs=1), "nor is leaving it a restart"
    assert price.preemptions == 1


def test_an_unfinished_save_does_not_count() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=90, start=5, each=0.5)
    rank.span("checkpoint_save", 40, 41, path="a", step=60)
    rank.span("checkpoint_save", 50, 51, path="b", step=80)
    rank.event("saving", 51, path="b", step=80)
    rank.train(first=91, count=10, start=55, each=0.5)
    assert from_ledger(job.ledger()).unsaved == pytest.approx(60 - 40)
    rank.span("checkpoint_save", 51, 57, th=5, path="b", step=80, background=True)
    assert from_ledger(job.ledger()).unsaved == pytest.approx(60 - 50)


def test_a_checkpointer_save_counts_once_it_is_durable() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=90, start=5, each=0.5)
    rank.span("checkpoint_save", 50, 50.1, step=90, level="disk")
    rank.train(first=91, count=10, start=55, each=0.5)
    price = from_ledger(job.ledger())
    assert price.save is None and price.unsaved == pytest.approx(60), "its writer is at work"
    rank.event("checkpoint", 58, step=90, level="disk", durable_s=8.0, bytes=10)
    price = from_ledger(job.ledger())
    assert price.save == 8.0 and price.unsaved == pytest.approx(60 - 50)
