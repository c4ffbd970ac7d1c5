from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from headway.ledger.model import Failure, Ledger
from headway.report.html import page
from headway.report.terminal import print_report, print_summary
from headway.units import NS
from tests.support import Golden
from tests.unit.report.ledgers import (
    Line,
    killed,
    large,
    ledger_of,
    no_steps,
    rank_of,
    still_running,
)
from tests.unit.report.rendering import text_of

Show = Callable[[Ledger, str, Console], None]


def shown(show: Show, ledger: Ledger, width: int = 100) -> str:
    return text_of(ledger, show, width)


@pytest.mark.parametrize(("name", "show"), [("summary", print_summary), ("full", print_report)])
@pytest.mark.parametrize("make", [killed, no_steps, still_running])
def test_golden(name: str, show: Show, make: Callable[[], Ledger], golden: Golden) -> None:
    golden(f"{make.__name__}-{name}.txt", shown(show, make()))


@pytest.mark.parametrize("show", [print_summary, print_report])
def test_plain_text_is_ascii_and_as_wide_as_asked(show: Show) -> None:
    for ledger in (killed(), no_steps(), large(9, 60)):
        text = shown(show, ledger)
        assert text.isascii()
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 100


def test_the_answer_stands_first_and_the_next_command_last() -> None:
    lines = shown(print_summary, killed()).splitlines()
    assert re.match(r"headway: ETT 68\.9 %", lines[0])
    assert lines[-1].endswith("headway report headway/train-0815 --html")
    assert 5 <= len(lines) <= 11


def test_the_rows_of_the_summary_sum_to_the_wall_time() -> None:
    shares = re.findall(r" {2,}([\d.]+) %  ", shown(print_summary, killed()))
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.3)


def test_a_terminal_gets_blocks_in_the_colours_of_the_groups() -> None:
    out = io.StringIO()
    console = Console(
        file=out, width=100, force_terminal=True, color_system="standard", _environ={}
    )
    print_summary(killed(), "x", console)
    (bar,) = (line for line in out.getvalue().splitlines() if "\u2588" in line)
    assert bar.count("\u2588") == 40
    for code in (32, 34, 35):  # train, start, recover
        assert f"\x1b[{code}m\u2588" in bar


def test_no_colour_means_no_escape_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.report.screen import ascii_only, console

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    made = console()
    assert ascii_only(made)
    assert made.color_system is None


def test_text_of_a_job_cannot_steer_the_terminal_or_rich() -> None:
    nasty = "\x1b]0;owned\x07[red]x[/red]\nsecond line"
    failure = Failure(
        attempt=0, at=NS, category=nasty, owner="user", retry="no", root_rank=None, evidence=nasty
    )
    line = Line().add("train.effective", 9).add("recover.downtime", 3)
    ledger = ledger_of(line, run=nasty, steps=5, failures=(failure,), notes=(nasty,))
    for show in (print_summary, print_report):
        text = shown(show, ledger, width=200)
        assert "\x1b" not in text
        assert "[red]x[/red] second line" in text


def test_a_narrow_terminal_cuts_no_command() -> None:
    text = shown(print_summary, dataclasses.replace(killed(), run="a" * 80), width=40)
    assert f"headway report headway/{'a' * 80} --html\n" in text


def test_a_path_with_a_space_can_be_pasted() -> None:
    out = io.StringIO()
    print_summary(killed(), "my runs/x", Console(file=out, width=100, _environ={}))
    assert "headway report 'my runs/x' --html" in out.getvalue()


def test_an_encoding_without_unicode_still_prints() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ledger = dataclasses.replace(killed(), run="\u00e9t\u00e9", notes=("na\u00efve",))
    print_report(ledger, "x", Console(file=out, width=100, _environ={}))
    out.flush()
    assert b"na?ve" in out.buffer.getvalue()


def test_the_rank_that_differs_is_named(golden: Golden) -> None:
    usual = Line().add("train.effective", 90).add("waste.blocked", 10)
    slow = Line().add("train.effective", 90).add("waste.data_stall", 10)
    ranks = (rank_of(0, usual, 1), rank_of(1, slow, 1, "node-7"), rank_of(2, usual, 1))
    golden("rank-differs.txt", shown(print_report, ledger_of(usual, ranks=ranks, steps=1)))


def test_a_good_run_gets_no_advice(golden: Golden) -> None:
    line = Line().add("start.pt2_compile", 1).add("train.effective", 999)
    golden("good-summary.txt", shown(print_summary, ledger_of(line, steps=10)))


def test_a_pause_between_attempts_is_named_and_not_counted() -> None:
    ledger = dataclasses.replace(killed(), paused=90 * NS)
    assert "paused              1 m 30 s (not counted)" in shown(print_report, ledger)
    assert "1 m 30 s, not counted in the wall time" in page(ledger)
    assert "paused " not in shown(print_report, killed())
