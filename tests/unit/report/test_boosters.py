"""What boosters did, in words."""

from __future__ import annotations

from dataclasses import replace

from headway.ledger.model import AutoRun, BoosterResult, Ledger
from headway.report import boosters as report_boosters
from headway.report import html
from tests.support import Golden
from tests.unit.report.ledgers import Line, ledger_of
from tests.unit.report.rendering import page_of, summary_of

S = 10**9


def ledger(*boosters: BoosterResult) -> Ledger:
    line = Line().add("start.launcher_init", 5).add("train.effective", 10)
    return replace(
        ledger_of(line, steps=3), auto=AutoRun(job="j", comparison_key="k", boosters=boosters)
    )


def test_each_state(golden: Golden) -> None:
    boosters = [
        BoosterResult(name="a", state="acted", what="3 save(s)", time=1 * S, baseline=4 * S),
        BoosterResult(name="a", state="acted", what="x", time=4 * S, baseline=1 * S),
        BoosterResult(name="a", state="acted", what="x", time=4 * S),
        BoosterResult(name="a", state="acted", what="x", why="full"),
        BoosterResult(name="a", state="on"),
        BoosterResult(name="a", state="off", why="no\nroom"),
    ]
    golden(
        "boosters-states.txt",
        "".join(f"{report_boosters.describe_booster(booster)}\n" for booster in boosters),
    )


def test_those_that_acted_come_first(golden: Golden) -> None:
    off = BoosterResult(name="off", state="off", why="<b>")
    idle, acted = (
        BoosterResult(name="idle", state="on"),
        BoosterResult(name="did", state="acted", what="x"),
    )
    told = ledger(off, idle, acted)
    assert [name for name, _ in report_boosters.booster_facts(told)] == ["did", "idle", "off"]
    golden("boosters.txt", summary_of(told) + page_of(told))
    assert "off: &lt;b&gt;" in html.page(told)
    assert (
        report_boosters.booster_facts(replace(told, auto=None))
        == []
        == list(report_boosters.booster_lines(replace(told, auto=None)))
    )
