"""What the shared compile cache has brought."""

from __future__ import annotations

from typing import Any

import pytest

from headway.ledger.model import Ledger
from headway.report import compiles
from headway.testing import FakeRun


def run(**told: Any) -> Ledger:
    job = FakeRun()
    launcher = job.launcher(0)
    launcher.event("cache", 1, what="load", end=launcher.at(1.5), **told)
    for number, compiling in enumerate((2, 3)):
        rank = job.process(number)
        rank.span("compile_cache", 4, 4.5)
        rank.span("compile", 5, 5 + compiling)
        rank.train(1, 10, 10, 1)
        rank.span("compile", 12, 13)  # in the loop: no part of the start
    launcher.event("cache", 21, what="save", end=launcher.at(22), files=40, bytes=10, cold_s=30.0)
    launcher.exit(25, code=0)
    return job.ledger()


def test_what_an_archive_has_saved() -> None:
    ledger = run(level="exact", why="", files=34, bytes=800_000, cold_s=30.0)
    (one,) = ledger.to_dict()["compile"]["archives"]
    assert one == {
        "attempt": 0,
        "level": "exact",
        "why": "",
        "files": 34,
        "bytes": 800_000,
        "load_s": 0.5,
        "cold_s": 30.0,
        "compile_s": 3.5,
        "saved_s": 26.5,
    }
    assert ledger.to_dict()["compile"]["archived"] == 1
    assert compiles.describe_cache_loads(ledger) == [
        "exact, 34 files loaded in 500 ms: compiled in 3.5 s instead of 30.0 s"
    ]


def test_a_miss_says_why_and_saves_nothing() -> None:
    ledger = run(level="miss", why="torch is 2.13 here and was 2.11", files=0, bytes=0, cold_s=0.0)
    (one,) = ledger.archives
    assert one.saved == 0
    (text,) = compiles.describe_cache_loads(ledger)
    assert text == (
        "no entry for this job (torch is 2.13 here and was 2.11), compiled in 3.5 s; "
        "saved for the next job"
    )


@pytest.mark.parametrize(
    "told", [{}, {"level": 3, "files": "x", "cold_s": None}, {"cold_s": -1, "bytes": -5}]
)
def test_odd_events_break_nothing(told: dict[str, Any]) -> None:
    assert len(run(**told).archives) == 1
