"""The last report of a run's launcher, read without the ledger."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.errors import RunNotFound
from headway.journal.writer import Writer, head
from headway.schedule.cost_report import SETTLED_S, SILENT_S, read_cost_report
from headway.units import NS


def launcher(run: Path, launch: str, index: int, host: str = "n0", **more: object) -> Writer:
    (run / "journal").mkdir(parents=True, exist_ok=True)
    writer = Writer(str(run / "journal" / f"launcher-{launch}-{host}-7.jsonl"), 7)
    writer.write({**head("launcher", launch=launch, index=index), "host": host, **more})
    return writer


def price(writer: Writer, accelerators: int, age: float) -> None:
    t = time.monotonic_ns()
    writer.write(
        {
            "ev": "price",
            "t": t,
            "accelerators": accelerators,
            "since": t - round(age * NS),
            "saved": True,
            "save_s": 3.0,
            "recover_s": 9.0,
            "preemptions": 1,
        }
    )


def test_the_last_report_is_extrapolated_to_now(tmp_path: Path) -> None:
    writer = launcher(tmp_path / "r", "L0", 0, scheduler_job="42")
    price(writer, 16, age=100)
    report = read_cost_report(tmp_path / "r", time.time() + 20)
    assert report is not None and not report.over
    assert (report.run, report.host, report.job) == ("r", "n0", "42")
    assert report.unsaved == pytest.approx(120, abs=5)
    assert (report.accelerators, report.save, report.recover) == (16, 3.0, 9.0)
    assert report.preemptions == 1 and report.saved
    writer.write({"ev": "exit", "t": time.monotonic_ns(), "code": 1})
    for later, over in ((0.0, False), (SETTLED_S + 1, True)):
        after = read_cost_report(tmp_path / "r", time.time() + later)
        assert after is not None and after.over is over, "first it is decided what follows"
    writer.write({"ev": "decision", "t": time.monotonic_ns(), "action": "restart", "wait_s": 300.0})
    for later, over in ((SILENT_S + 200, False), (SILENT_S + 400, True)):
        after = read_cost_report(tmp_path / "r", time.time() + later)
        assert after is not None and after.over is over, "another attempt is to come"


def test_a_launcher_that_was_killed_is_over(tmp_path: Path) -> None:
    price(launcher(tmp_path, "L0", 0), 1, age=1)
    late = read_cost_report(tmp_path, time.time() + SILENT_S + 5)
    assert late is not None and late.over


def test_the_newest_launch_counts_on_any_node(tmp_path: Path) -> None:
    old = launcher(tmp_path, "L0", 0)
    price(old, 8, age=500)
    old.write({"ev": "exit", "t": time.monotonic_ns(), "code": -15})
    launcher(tmp_path, "L1", 1, "n0").write({"ev": "exit", "t": time.monotonic_ns(), "code": 0})
    price(launcher(tmp_path, "L1", 1, "n1"), 16, age=50)
    report = read_cost_report(tmp_path, time.time())
    assert report is not None
    assert (report.host, report.accelerators, report.over) == ("n1", 16, False)


def test_before_the_first_report_the_start_counts(tmp_path: Path) -> None:
    begin = time.monotonic_ns() - 70 * NS
    launcher(tmp_path, "L0", 0, begin=begin)
    report = read_cost_report(tmp_path, time.time())
    assert report is not None and not report.saved
    assert (report.accelerators, report.save, report.recover) == (1, None, 0.0)
    assert report.unsaved == pytest.approx(70, abs=5)
    rank = Writer(str(tmp_path / "journal" / "n0-9-1.jsonl"), 9)
    rank.write(head("process", launch="L0", rank=3, world=32))
    (tmp_path / "journal" / "n0-8-1.jsonl").write_text("")
    (tmp_path / "journal" / "launcher-L9-n0-1.jsonl").write_text("{")
    report = read_cost_report(tmp_path, time.time())
    assert report is not None and report.accelerators == 32


def test_no_launcher_and_no_run(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    assert read_cost_report(tmp_path, time.time()) is None
    with pytest.raises(RunNotFound):
        read_cost_report(tmp_path / "nowhere", time.time())
