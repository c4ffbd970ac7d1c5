"""What saves cost and how often to make them, as reports say it."""

from __future__ import annotations

from typing import Any

from headway.ledger.model import CheckpointOutcome, Ledger, SaveInterval
from headway.report import checkpoints
from headway.units import NS
from tests.support import Golden
from tests.unit.report.ledgers import Line, ledger_of
from tests.unit.report.rendering import page_of, text_of


def save(step: int, level: str = "disk", **others: Any) -> CheckpointOutcome:
    told: dict[str, Any] = {"blocked": NS // 50, "step_slowdown": NS // 10, "durable": 2 * NS}
    return CheckpointOutcome(
        attempt=0, step=step, at=step * NS, level=level, **{**told, "size": 0, **others}
    )


def ledger(**others: Any) -> Ledger:
    line = Line().add("train.effective", 99).add("waste.checkpoint_block", 1)
    rhythm = SaveInterval(
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
        "outcomes": (save(3, size=13_000_000_000), save(6), save(9, error="disk\nfull")),
        "save_intervals": (SaveInterval(level="memory", interval=3 * NS), rhythm),
    }
    return ledger_of(line, steps=10, **{**told, **others})


def lines(ledger: Ledger) -> str:
    return "".join(f"{name}: {text}\n" for name, text in checkpoints.checkpoint_facts(ledger))


def test_an_interval_that_is_bound_by_the_saves_themselves_says_so(golden: Golden) -> None:
    percents = {"wasted_percent": 1.0, "recommended_percent": 2.0}
    rhythm = SaveInterval(level="disk", interval=NS, recommended=9 * NS, **percents)
    golden("checkpoints-bound.txt", lines(ledger(save_intervals=(rhythm,))))


def test_an_interval_that_loses_everything_says_so(golden: Golden) -> None:
    rhythm = SaveInterval(level="disk", interval=NS, recommended=NS, wasted_percent=400.0)
    golden("checkpoints-all-lost.txt", lines(ledger(save_intervals=(rhythm,))))


def test_what_saves_cost_and_which_failed(golden: Golden) -> None:
    assert len(checkpoints.failed_saves(ledger())) == 1
    golden("checkpoints.txt", text_of(ledger(), width=140) + page_of(ledger()))


def test_where_an_attempt_resumed(golden: Golden) -> None:
    cases = ((None, None), (1200, None), (1200, "memory"))
    golden("resumed.txt", "".join(f"{checkpoints.describe_resume(*case)}\n" for case in cases))
