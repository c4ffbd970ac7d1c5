"""What the first real batch compiled again, in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headway.ledger.model import Ledger
from headway.report import html, terminal
from headway.report.ahead import misses

from .starts import compiled_ahead

SIZE = "0/0: tensor 'ids' size mismatch at index 0. expected 256, actual 300"


def shown(ledger: Ledger) -> str:
    out = io.StringIO()
    terminal.full(ledger, "headway/a", Console(file=out, width=120))
    return out.getvalue()


def test_a_hit_is_not_worth_a_word() -> None:
    ledger = compiled_ahead()
    assert not misses(ledger)
    assert "compiled again" not in shown(ledger) + html.page(ledger)


def test_which_source_differed_and_what_cures_it() -> None:
    ledger = compiled_ahead(SIZE, caller="/job/train.py:40 step")
    (miss,) = misses(ledger)
    assert miss.said == (
        "the first real batch compiled again, 3.0 s: "
        "L['ids'].size()[0] was 256 on the fast batch and is 300"
    )
    assert miss.cure == (
        "mark that dimension as dynamic; on the fast batch: torch._dynamo.mark_dynamic(ids, 0)"
    )
    assert miss.where == "/job/train.py:7 forward"
    assert miss.said in shown(ledger)
    assert miss.cure in shown(ledger)
    assert "was 256 on the fast batch and is 300" in html.page(ledger)
    (told,) = ledger.to_dict()["compile"]["recompiles"]
    assert told["missed_ahead"] is True


@pytest.mark.parametrize(
    ("reason", "seen", "said"),
    [
        ("0/0: L['n'] == 3", {"L['n']": 5}, "an integer changes; L['n'] was 3 on the fast batch"),
        (
            "0/0: tensor 'x' dtype mismatch. expected Float, actual Double",
            {},
            "a dtype changes; L['x'] was Float on the fast batch and is Double",
        ),
        (
            "0/0: tensor 'x' stride mismatch at index 0. expected 4, actual 1",
            {},
            "L['x'].stride()[0] was 4 on the fast batch and is 1",
        ),
        ("0/0: 2 <= x.size()[1]", {"x": [4, 1]}, "L['x'].size()[1] is 1"),
        ("0/0: GLOBAL_STATE changed: grad_mode", {}, "the guard: 0/0: GLOBAL_STATE changed"),
        ("something new in torch", {}, "torch gives no reason that is known here; the guard: some"),
    ],
)
def test_other_differences(reason: str, seen: dict[str, object], said: str) -> None:
    (miss,) = misses(compiled_ahead(reason, seen=seen))
    assert said in miss.said
    assert miss.cure


def test_ranks_and_attempts_are_told_apart() -> None:
    found = misses(compiled_ahead(SIZE, attempts=2, ranks=2))
    assert [miss.said.partition(":")[0] for miss in found] == ["attempt 0", "attempt 1"]
    assert all("compiled again, 3.0 s on 2 ranks" in miss.said for miss in found)


def test_a_journal_is_text_and_nothing_else() -> None:
    evil = "<img src=x>\x1b[31m"
    ledger = compiled_ahead(f"0/0: tensor '{evil}' size mismatch at index 0. expected 2, actual 3")
    assert "<img" not in html.page(ledger)
    assert "\x1b[31m" not in shown(ledger)
