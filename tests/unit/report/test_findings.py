from __future__ import annotations

import pytest

from headway.ledger.model import NS, Attempt, Segment
from headway.report import findings
from tests.unit.report.ledgers import Line, killed, large, ledger_of, rank_of


def test_largest_loss_adds_start_and_recovery() -> None:
    loss = findings.largest_loss(killed())
    assert loss is not None
    assert (loss.leaf, loss.ns) == ("pt2_compile", (167 + 166) * NS)
    assert loss.leaves == ("start.pt2_compile", "recover.pt2_compile")


def test_ett_without_a_loss() -> None:
    ledger = ledger_of(Line().add("start.pt2_compile", 50).add("train.effective", 50))
    assert findings.ett_without(ledger, 50 * NS) == 100.0
    assert findings.ett_without(ledger, 25 * NS) == pytest.approx(200 / 3)
    assert findings.ett_without(ledger, ledger.wall) == 0.0


def _attempt(index: int, last: int | None, resumed: int | None) -> Attempt:
    return Attempt(
        index=index, start=index, end=index + 1, outcome="failed", ranks=(0,),
        last_step=last, resumed_from=resumed,
    )  # fmt: skip


def test_rolled_back_skips_an_attempt_that_never_trained() -> None:
    lives = (_attempt(0, 50, None), _attempt(1, None, None), _attempt(2, 80, 40))
    ledger = ledger_of(Line().add("train.effective", 9), attempts=lives)
    assert findings.rolled_back_steps(ledger) == [(41, 50)]


def test_rolled_back_to_zero_and_not_at_all() -> None:
    lives = (_attempt(0, 50, None), _attempt(1, 30, None), _attempt(2, 80, 30))
    ledger = ledger_of(Line().add("train.effective", 9), attempts=lives)
    assert findings.rolled_back_steps(ledger) == [(1, 50)]


def test_saves_of_several_ranks_are_one() -> None:
    saves = findings.merged_saves(killed())
    assert len(saves) == 11
    assert saves[0].step == 160
    assert saves[0].blocked == 5_700_000_000  # the slower rank's
    assert saves[0].written == 9 * NS


def test_recompiles_by_place_and_reason() -> None:
    (row,) = findings.group_recompiles(killed())
    assert (row.where, row.times, row.ns) == ("forward (model.py:88)", 2, 18 * NS)


def test_by_attempt_cuts_at_the_end_of_an_attempt() -> None:
    lives = (
        Attempt(index=0, start=0, end=8, outcome="failed", ranks=(0,)),
        Attempt(index=1, start=10, end=20, outcome="completed", ranks=(0,)),
    )
    ledger = ledger_of(Line(), attempts=lives)
    cut = list(
        findings.segments_by_attempt(ledger, [Segment(0, 9, "unknown"), Segment(9, 20, "unknown")])
    )
    assert cut == [
        (0, Segment(0, 8, "unknown")),
        (1, Segment(8, 9, "unknown")),
        (1, Segment(9, 20, "unknown")),
    ]


def test_by_attempt_loses_no_time() -> None:
    ledger = large(ranks=1, spans=200)
    assert sum(
        s.end - s.start for _, s in findings.segments_by_attempt(ledger, ledger.segments)
    ) == (ledger.wall)
    assert {i for i, _ in findings.segments_by_attempt(ledger, ledger.segments)} == {0, 1, 2}


def test_own_losses_name_the_rank_that_stands_out() -> None:
    usual = Line().add("train.effective", 90).add("waste.blocked", 10)
    slow = Line().add("train.effective", 90).add("waste.data_stall", 10)
    ranks = (rank_of(0, usual, 1), rank_of(1, slow, 1), rank_of(2, usual, 1))
    ledger = ledger_of(usual, ranks=ranks)
    found = [(rank.rank, leaf, ns) for rank, leaf, ns in findings.own_losses(ledger)]
    assert found == [(1, "waste.data_stall", 10 * NS)]
