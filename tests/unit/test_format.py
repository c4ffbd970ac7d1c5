from __future__ import annotations

import pytest

from headway import format
from headway.units import NS


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (400_000, "0.4 ms"),
        (9_949_999, "9.9 ms"),
        (420_000_000, "420 ms"),
        (999_500_000, "1.0 s"),
        (5_700_000_000, "5.7 s"),
        (59_949_999_999, "59.9 s"),
        (59_950_000_000, "1 m 00 s"),
        (242 * NS, "4 m 02 s"),
        (3599 * NS + 600_000_000, "1 h 00 m"),
        (3 * 3600 * NS + 300 * NS, "3 h 05 m"),
        ((24 * 3600 - 1) * NS, "1 d 00 h"),
        (51 * 3600 * NS, "2 d 03 h"),
        (-90 * NS, "-1 m 30 s"),
    ],
)
def test_duration(ns: int, text: str) -> None:
    assert format.duration(ns) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0 %"), (0.01, "<0.1 %"), (71.44, "71.4 %"), (99.99, "99.9 %"), (100, "100.0 %")],
)
def test_percent_never_rounds_to_the_ends(value: float, text: str) -> None:
    assert format.percent(value) == text


def test_count() -> None:
    assert format.count(1, "rank") == "1 rank"
    assert format.count(3400, "step") == "3,400 steps"
    assert format.count(2, "entry") == "2 entries"


def test_one_line_takes_the_sting_out_of_a_job_s_text() -> None:
    assert format.one_line("a\x1b[31m\nb\u202e\ud800 c") == "a b c"
    assert format.one_line("\x1b]0;title\x07a\x1b[1;31mb\x1b[0m\x9b2Jc\x1b") == "abc"
    assert format.one_line("x" * 20, 10) == "xxxxxxx..."
