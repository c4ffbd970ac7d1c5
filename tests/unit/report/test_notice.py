"""What a notice has saved, in words, in the terminal and on the page."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from headway.ledger.model import NS, Ledger, Notice
from headway.report.html import page
from headway.report.notice import said
from headway.report.terminal import full
from headway.testing import FakeRun

SAVED = Notice(
    attempt=0,
    at=45 * NS,
    answer="saved",
    accelerators=8,
    step=1_041,
    saved=242 * NS,
    saved_steps=412,
    lost=0,
    lost_steps=0,
)
LOST = replace(SAVED, answer="none", step=None, saved=0, saved_steps=0, lost=NS, lost_steps=1)


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (
            SAVED,
            "a last save of step 1,041 has kept 412 steps, 4 m 02 s x 8 accelerators; "
            "nothing was lost",
        ),
        (
            replace(SAVED, accelerators=1, lost=None, lost_steps=None),
            "a last save of step 1,041 has kept 412 steps, 4 m 02 s; "
            "what is lost will show when it trains again",
        ),
        (
            replace(SAVED, lost=6 * NS, lost_steps=6),
            "a last save of step 1,041 has kept 412 steps, 4 m 02 s x 8 accelerators; "
            "lost: 6 steps, 6.0 s x 8 accelerators",
        ),
        (
            replace(LOST, answer="saved", step=1_041),
            "a last save of step 1,041 has kept nothing; lost: 1 step, 1.0 s x 8 accelerators",
        ),
        (
            replace(LOST, answer="late", step=1_041),
            "a last save of step 1,041 was not done in time; lost: 1 step, 1.0 s x 8 accelerators",
        ),
        (
            replace(LOST, answer="late"),
            "a last save was not done in time; lost: 1 step, 1.0 s x 8 accelerators",
        ),
        (
            replace(LOST, answer="skipped"),
            "there was no time for a last save; lost: 1 step, 1.0 s x 8 accelerators",
        ),
        (LOST, "nobody saved at it; lost: 1 step, 1.0 s x 8 accelerators"),
    ],
)
def test_in_words(notice: Notice, words: str) -> None:
    assert said(notice) == words


def preempted() -> Ledger:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(1)
    rank.train(1, 20, 5, 1)
    rank.event("preempted", 25, step=20, saved=True, left_s=20.0)
    rank.event("checkpoint", 28, step=20, level="disk", durable_s=3.0, bytes=1)
    rank.exit(29)
    launcher.exit(30, code=0)
    return job.ledger()


def test_beside_the_failure() -> None:
    words = "a last save of step 20 has kept 20 steps"
    ledger = preempted()
    shown = io.StringIO()
    full(ledger, "run", Console(file=shown, width=120))
    (line,) = [line for line in shown.getvalue().splitlines() if words in line]
    assert line.startswith("    notice ")
    assert f"<p>Notice: {words}" in page(ledger)
    assert "Notice" not in page(replace(ledger, notices=()))
