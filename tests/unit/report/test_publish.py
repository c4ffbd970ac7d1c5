"""What a publish cost, in words."""

from __future__ import annotations

from dataclasses import replace

from headway.ledger.model import NS, Attempt, Ledger, Publish
from headway.report import html, publish, screen, terminal
from tests.unit.report.ledgers import Line, ledger_of

OTHER = Publish(run="t-publish", folder="/r/t-publish", anchor="/a", store="/s", log="/r/t/p.log")


def training(one: Publish | None) -> Ledger:
    line = Line().add("train.effective", 100).add("stop.shutdown", 2.5)
    ranks = Attempt(index=0, start=0, end=line.now, outcome="completed", ranks=(0, 1), world=8)
    return ledger_of(line, steps=10, attempts=(ranks,), publish=one)


def test_nothing_was_published() -> None:
    assert publish.facts(training(None)) == []


def test_a_training_says_what_it_saved() -> None:
    done = replace(OTHER, snapshot="00000001-ab", took=30 * NS)
    told = dict(publish.facts(training(done)))
    assert told["by the run"] == "t-publish (/r/t-publish)"
    assert told["snapshot"] == "00000001-ab in /s"
    assert told["here it would cost"].startswith("240.0 accelerator-seconds (30.0 s x 8 ranks)")
    assert told["and it did cost"].startswith("20.0 accelerator-seconds (2.5 s x 8 ranks)")


def test_one_that_is_not_done_and_one_that_was_turned_down() -> None:
    told = dict(publish.facts(training(OTHER)))
    assert told["not done yet"] == "see /r/t/p.log" and "here it would cost" not in told
    told = dict(publish.facts(training(replace(OTHER, error="too <large>", took=NS))))
    assert told["not published"] == "too <large>"
    page = html.page(training(replace(OTHER, error="too <large>", took=NS)))
    assert "<h2>Publish</h2>" in page and "too &lt;large&gt;" in page


def test_a_publish_gets_no_advice_on_its_loop() -> None:
    line = Line().add("stop.publish", 12)
    ledger = ledger_of(line, publishes=Publish(run="t", folder="/r/t", anchor="/a", store="/s"))
    console = screen.console()
    with console.capture() as captured:
        terminal.full(ledger, "r", console)
    said = captured.get()
    assert "published, in 12.0 s" in said and "headway.step()" not in said
    assert "of the training     t (/r/t)" in said
