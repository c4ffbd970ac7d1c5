"""What the first real batch compiled again, in words."""

from __future__ import annotations

import pytest

from headway.report import html
from headway.report.ahead import precompile_misses
from tests.support import Golden
from tests.unit.report.shown import page_of, text_of
from tests.unit.report.starts import compiled_ahead

SIZE = "0/0: tensor 'ids' size mismatch at index 0. expected 256, actual 300"


def test_a_hit_is_not_reported(golden: Golden) -> None:
    ledger = compiled_ahead()
    assert not precompile_misses(ledger)
    golden("ahead-hit.txt", text_of(ledger) + page_of(ledger))


def test_which_source_differed_and_what_cures_it(golden: Golden) -> None:
    ledger = compiled_ahead(SIZE, caller="/job/train.py:40 step")
    (miss,) = precompile_misses(ledger)
    assert miss.where == "/job/train.py:7 forward"
    golden("ahead-miss.txt", text_of(ledger) + page_of(ledger))
    (told,) = ledger.to_dict()["compile"]["recompiles"]
    assert told["missed_ahead"] is True


@pytest.mark.parametrize(
    ("name", "reason", "seen"),
    [
        ("integer", "0/0: L['n'] == 3", {"L['n']": 5}),
        ("dtype", "0/0: tensor 'x' dtype mismatch. expected Float, actual Double", {}),
        ("stride", "0/0: tensor 'x' stride mismatch at index 0. expected 4, actual 1", {}),
        ("range", "0/0: 2 <= x.size()[1]", {"x": [4, 1]}),
        ("state", "0/0: GLOBAL_STATE changed: grad_mode", {}),
        ("unknown", "something new in torch", {}),
    ],
)
def test_other_differences(name: str, reason: str, seen: dict[str, object], golden: Golden) -> None:
    (miss,) = precompile_misses(compiled_ahead(reason, seen=seen))
    assert miss.said and miss.cure
    golden(f"ahead-{name}.txt", f"{miss.said}\n{miss.cure}\n")


def test_ranks_are_merged_and_attempts_are_not(golden: Golden) -> None:
    lines = [miss.said for miss in precompile_misses(compiled_ahead(SIZE, attempts=2, ranks=2))]
    assert len(lines) == 2
    golden("ahead-attempts.txt", "\n".join(lines) + "\n")


def test_a_journal_is_text_and_nothing_else() -> None:
    evil = "<img src=x>\x1b[31m"
    ledger = compiled_ahead(f"0/0: tensor '{evil}' size mismatch at index 0. expected 2, actual 3")
    assert "<img" not in html.page(ledger)
    assert "\x1b[31m" not in text_of(ledger)
