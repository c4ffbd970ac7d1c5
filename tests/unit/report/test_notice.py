"""What a notice has saved, in words, in the terminal and on the page."""

from __future__ import annotations

from dataclasses import replace

from headway.ledger.model import NS, Ledger, PreemptionNotice
from headway.report.notice import describe_notice
from headway.testing import FakeRun
from tests.support import Golden
from tests.unit.report.shown import page_of, text_of

SAVED = PreemptionNotice(
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


def test_in_words(golden: Golden) -> None:
    notices = [
        SAVED,
        replace(SAVED, accelerators=1, lost=None, lost_steps=None),
        replace(SAVED, lost=6 * NS, lost_steps=6),
        replace(LOST, answer="saved", step=1_041),
        replace(LOST, answer="late", step=1_041),
        replace(LOST, answer="late"),
        replace(LOST, answer="skipped"),
        LOST,
    ]
    golden("notices.txt", "".join(f"{describe_notice(notice)}\n" for notice in notices))


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


def test_beside_the_failure(golden: Golden) -> None:
    ledger = preempted()
    golden("preempted.txt", text_of(ledger) + page_of(ledger))
    bare = replace(ledger, notices=())
    assert len(page_of(bare).splitlines()) == len(page_of(ledger).splitlines()) - 1
