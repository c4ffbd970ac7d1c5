from __future__ import annotations

import pytest

from headway.journal import writer
from headway.journal.pulse import LIMIT
from headway.journal.step_windows import Window, Windows, parse_all

ROWS = [
    Window(0, 100, 1, 1, 0, 1),
    Window(100, 250, 2, 9, 7, 8),
    Window(260, 400, 10, 10, 0, 1),
]


def encode(row: Window) -> bytes:
    """A line in the format of the probe."""
    keys = ("t", "end", "first", "last", "wait", "batches")
    return writer.encode({"ev": "steps", **dict(zip(keys, row, strict=True))}).rstrip()


def test_our_own_lines_are_read_all_at_once() -> None:
    windows = parse_all([encode(row) for row in ROWS])
    assert windows is not None
    assert list(windows) == ROWS
    assert (len(windows), windows[-1]) == (3, ROWS[-1])


def test_more_lines_than_are_taken_at_once() -> None:
    rows = [Window(10 * n, 10 * n + 10, n + 1, n + 1, n % 3, 1) for n in range(25_000)]
    windows = parse_all([encode(row) for row in rows])
    assert windows is not None
    assert list(windows) == rows


@pytest.mark.parametrize(
    "line",
    [
        encode(ROWS[1]).replace(b'"t"', b'"u"'),
        encode(ROWS[1]).replace(b"250", b"2.5"),
        encode(ROWS[1]).replace(b"250", b"-25"),
        encode(ROWS[1]).replace(b"250", b""),
        encode(ROWS[1]).replace(b"250", b"025"),
        encode(ROWS[1]).replace(b"250", b"9" * 30),
        encode(ROWS[1]).replace(b"250", str(LIMIT).encode()),
        encode(ROWS[1])[:-1],
        encode(ROWS[1])[:-1] + b',"more":1}',
        encode(ROWS[1]._replace(start=99)),
        encode(ROWS[1]._replace(first=3)),
        encode(ROWS[1]._replace(last=8)),
        encode(ROWS[1]._replace(end=90)),
        encode(ROWS[1]._replace(wait=LIMIT)),
    ],
)
def test_anything_else_is_left_to_the_careful_way(line: bytes) -> None:
    assert parse_all([encode(ROWS[0]), line, encode(ROWS[2])]) is None


def test_rows_that_do_not_follow_are_left_out() -> None:
    early, back, empty = Window(5, 90, 2, 3, 0, 1), Window(100, 200, 1, 1, 0, 1), ROWS[2]
    windows = Windows([ROWS[0], early, back, empty._replace(start=500), ROWS[1]])
    assert list(windows) == ROWS[:2]


def test_a_lost_row_is_bridged() -> None:
    windows = Windows([ROWS[0], ROWS[2]])
    assert list(windows) == [ROWS[0], Window(260, 400, 2, 10, 0, 1)]


def test_an_overlap_is_cut() -> None:
    windows = Windows([ROWS[0], Window(60, 250, 2, 9, 7, 8)])
    assert windows[1] == Window(100, 250, 2, 9, 7, 8)
