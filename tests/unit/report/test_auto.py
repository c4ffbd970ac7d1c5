"""What boosters did, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.ledger.model import Auto, Boosted, Ledger
from headway.report import auto, html
from tests.unit.report.ledgers import Line, ledger_of

S = 10**9


def ledger(*boosters: Boosted) -> Ledger:
    line = Line().add("start.launcher_init", 5).add("train.effective", 10)
    return replace(ledger_of(line, steps=3), auto=Auto(job="j", kind="k", boosters=boosters))


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (
            Boosted(name="a", state="acted", what="3 save(s)", here=1 * S, before=4 * S),
            "3 save(s): 1.0 s instead of 4.0 s, 3.0 s less",
        ),
        (
            Boosted(name="a", state="acted", what="x", here=4 * S, before=1 * S),
            "x: 4.0 s instead of 1.0 s, 3.0 s more",
        ),
        (
            Boosted(name="a", state="acted", what="x", here=4 * S),
            "x: 4.0 s, what it brought is not known yet",
        ),
        (Boosted(name="a", state="acted", what="x", why="full"), "x; then off: full"),
        (Boosted(name="a", state="on"), "nothing to do"),
        (Boosted(name="a", state="off", why="no\nroom"), "off: no room"),
    ],
)
def test_each_state(one: Boosted, text: str) -> None:
    assert auto.said(one) == text


def test_those_that_acted_come_first() -> None:
    off = Boosted(name="off", state="off", why="<b>")
    idle, acted = Boosted(name="idle", state="on"), Boosted(name="did", state="acted", what="x")
    told = ledger(off, idle, acted)
    assert [name for name, _ in auto.facts(told)] == ["did", "idle", "off"]
    assert list(auto.summary(told)) == [
        "Auto:  did           x",
        "Auto:  on, with nothing to do: idle",
        "Auto:  off           off: <b>",
    ]
    page = html.page(told)
    assert "<h2>Boosters</h2>" in page and "off: &lt;b&gt;" in page
    assert (
        auto.facts(replace(told, auto=None)) == [] == list(auto.summary(replace(told, auto=None)))
    )
