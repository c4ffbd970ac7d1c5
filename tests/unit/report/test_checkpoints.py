"""What saves cost and how often to make them, as reports say it."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from headway.ledger.model import NS, Ledger, Rhythm, Saved
from headway.report import checkpoints, html, terminal
from tests.unit.report.ledgers import Line, ledger_of


def save(step: int, level: str = "disk", **others: Any) -> Saved:
    told: dict[str, Any] = {"blocked": NS // 50, "slower": NS // 10, "durable": 2 * NS}
    return Saved(attempt=0, step=step, at=step * NS, level=level, **{**told, "size": 0, **others})


def ledger(**others: Any) -> Ledger:
    line = Line().add("train.effective", 99).add("waste.checkpoint_block", 1)
    rhythm = Rhythm(
        level="disk",
        interval=60 * NS,
        recommended=110 * NS,
        wasted_percent=0.5,
        recommended_percent=0.25,
        failures_per_hour=0.14,
        failures_low=0.056,
        failures_high=0.26,
    )
    told = {
        "saves": 2,
        "saved": (save(3, size=13_000_000_000), save(6), save(9, error="disk\nfull")),
        "rhythms": (Rhythm(level="memory", interval=3 * NS), rhythm),
    }
    return ledger_of(line, steps=10, **{**told, **others})


def test_current_recommended_and_what_each_costs() -> None:
    assert checkpoints.facts(ledger()) == [
        ("in memory", "no save was made"),
        ("  interval", "every 3.0 s"),
        (
            "to disk",
            "2 saves; each blocks 20 ms and makes steps 100 ms longer; safe after 2.0 s at most, "
            "13,000 MB",
        ),
        ("  interval", "every 1 m 00 s: 0.5 % of the loop is lost, 7 m 12 s a day"),
        ("  recommended", "every 1 m 50 s: 0.2 % of the loop is lost, 3 m 36 s a day"),
        ("  failures", "0.14 per hour (between 0.056 and 0.26)"),
    ]


def test_an_interval_that_is_bound_by_the_saves_themselves_says_so() -> None:
    told = {"wasted_percent": 1.0, "recommended_percent": 2.0}
    rhythm = Rhythm(level="disk", interval=NS, recommended=9 * NS, **told)
    found = dict(checkpoints.facts(ledger(rhythms=(rhythm,))))
    assert found["  recommended"].endswith("; with a shorter one saves wait for each other")


def test_an_interval_that_loses_everything_says_so() -> None:
    rhythm = Rhythm(level="disk", interval=NS, recommended=NS, wasted_percent=400.0)
    found = dict(checkpoints.facts(ledger(rhythms=(rhythm,))))
    assert found["  interval"] == "every 1.0 s: all of the loop is lost"


def test_saves_that_failed_are_shown_with_their_error() -> None:
    assert checkpoints.failed(ledger()) == ["step 9 to disk, attempt 0: disk full"]


def test_the_terminal_and_the_page_have_a_section() -> None:
    out = io.StringIO()
    terminal.full(ledger(), "run", Console(file=out, width=140))
    text = out.getvalue()
    assert "Checkpoints (2)" in text and "Saves (" not in text
    assert "every 1 m 50 s" in text and "step 9 to disk, attempt 0: disk full" in text
    page = html.page(ledger())
    assert "Checkpoints <span" in page and "every 1 m 50 s" in page
    assert "failed</span> step 9 to disk" in page


def test_where_an_attempt_went_on() -> None:
    assert checkpoints.resumed(None, None) == "-"
    assert checkpoints.resumed(1200, None) == "step 1,200"
    assert checkpoints.resumed(1200, "memory") == "step 1,200, memory"
