"""The price of an eviction: the formula, and what a ledger says."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli import main
from headway.ledger.model import NS
from headway.schedule.cost import from_run, lost, of_ledger, percentile
from headway.testing import FakeRun


def test_the_formula() -> None:
    assert lost(8, 600, 100) == 8 * 700
    assert lost(8, 600, 100, save=20, grace=30) == 8 * 120, "saved within the notice"
    assert lost(8, 600, 100, save=40, grace=30) == 8 * 700, "a save that comes too late"
    assert lost(8, 5, 100, save=20, grace=30) == 8 * 105, "less to lose than a save takes"
    assert lost(8, 600, 100, preemptions=3, repeat=60) == 8 * 880
    assert lost(8, 600, 100, save=None, grace=30) == 8 * 700, "silence is not rewarded"


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
    price = of_ledger(ledger)
    assert price.accelerators == 4
    assert price.save == 8.0
    assert price.unsaved == pytest.approx(100 - 52), "since the state that was saved"
    start = (ledger.time_to_start or 0) / NS
    assert price.recover == start > 4, "as long as the start, until one is measured"
    assert price.lost == pytest.approx(4 * (48 + start))
    assert of_ledger(ledger, grace=10).lost == pytest.approx(4 * (8 + start))


def test_a_run_that_says_nothing_is_charged_from_its_start() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    price = of_ledger(job.ledger(), grace=1e6)
    assert price.save is None
    assert price.unsaved == pytest.approx(55)


def test_a_failed_save_saves_nothing() -> None:
    job = FakeRun()
    job.launcher(begin=0)
    rank = job.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    rank.event("checkpoint", 54, level="disk", step=90, durable_s=3.0, error="disk full")
    rank.event("checkpoint", 54, level="memory", step=95, durable_s=1.0)
    price = of_ledger(job.ledger())
    assert price.save is None and price.unsaved == pytest.approx(55)


def test_a_run_on_disk(tmp_path: Path) -> None:
    job = FakeRun()
    job.launcher(begin=0)
    trained(job, end=100)
    job.write(tmp_path)
    assert from_run(tmp_path).lost == pytest.approx(of_ledger(job.ledger()).lost)


def test_percentile() -> None:
    assert percentile([5.0], 0.95) == 5.0
    assert percentile([float(n) for n in range(100)], 0.95) == 95.0


def test_top_shows_it_while_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = FakeRun()
    launcher = job.launcher(begin=0)
    trained(job, end=100)
    job.write(tmp_path / "going")
    launcher.exit(101, code=0)
    job.write(tmp_path / "over")
    assert main(["top", str(tmp_path / "going"), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "evicted now: 212 accelerator-seconds lost   48.0 s since the last save" in shown
    assert main(["top", str(tmp_path / "over"), "--once"]) == 0
    assert "evicted now" not in capsys.readouterr().out
