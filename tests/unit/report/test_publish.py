"""What a publish cost, in words."""

from __future__ import annotations

from dataclasses import replace

from headway.ledger.model import Attempt, Ledger, Publish
from headway.report import html, publish
from headway.units import NS
from tests.support import Golden
from tests.unit.report.ledgers import Line, ledger_of
from tests.unit.report.rendering import page_of, text_of

OTHER = Publish(run="t-publish", folder="/r/t-publish", anchor="/a", store="/s", log="/r/t/p.log")


def training(one: Publish | None) -> Ledger:
    line = Line().add("train.effective", 100).add("stop.shutdown", 2.5)
    ranks = Attempt(index=0, start=0, end=line.now, outcome="completed", ranks=(0, 1), world=8)
    return ledger_of(line, steps=10, attempts=(ranks,), published_by=one)


def test_nothing_was_published() -> None:
    assert publish.publish_facts(training(None)) == []


def test_a_training_says_what_it_saved(golden: Golden) -> None:
    done = replace(OTHER, snapshot="00000001-ab", took=30 * NS)
    golden("published.txt", text_of(training(done), width=140))


def test_one_that_is_not_done_and_one_that_was_turned_down(golden: Golden) -> None:
    golden("publishing.txt", text_of(training(OTHER), width=140))
    failed = training(replace(OTHER, error="too <large>", took=NS))
    golden("publish-failed.txt", text_of(failed, width=140) + page_of(failed))
    assert "too &lt;large&gt;" in html.page(failed)


def test_a_publish_gets_no_advice_on_its_loop(golden: Golden) -> None:
    line = Line().add("stop.publish", 12)
    ledger = ledger_of(line, publishes_run=Publish(run="t", folder="/r/t", anchor="/a", store="/s"))
    golden("publish-run.txt", text_of(ledger))
