"""Durations and times as text, for flags, rules and pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headway.errors import UsageError
from headway.units import UNITS, format_duration, parse_duration, parse_time
from tests.support import has_code

NOW = datetime(2026, 11, 19, 12)


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_a_duration_and_an_age(unit: str) -> None:
    assert parse_duration(f"30{unit}") == 30 * UNITS[unit]
    assert parse_time(f"30{unit}", NOW) == NOW - timedelta(seconds=30 * UNITS[unit])


@pytest.mark.parametrize(
    "text", ["", "5", "5m", "h", "-5s", "1h30min", "5 minutes", "inf", "٣h", 5, None]
)
def test_what_is_no_duration(text: object) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize("text", ["yesterday", "5m", "", "2026-13-01", "999999999w", "9999999d"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, check=has_code("time-invalid")):
        parse_time(text, NOW)


def test_dates_are_in_utc() -> None:
    assert parse_time(None, NOW) is None
    assert parse_time("2026-11-16", NOW) == datetime(2026, 11, 16)
    assert parse_time("2026-11-16T10:00+02:00", NOW) == datetime(2026, 11, 16, 8)
    assert parse_time(datetime(2026, 1, 2, tzinfo=UTC).isoformat(), NOW) == datetime(2026, 1, 2)


@pytest.mark.parametrize(
    ("text", "short"),
    [("45s", "45s"), ("90s", "1.5min"), ("5min", "5min"), ("2h", "2h"), ("36h", "1.5d")],
)
def test_durations_are_written_in_the_largest_unit(text: str, short: str) -> None:
    assert format_duration(parse_duration(text) or 0.0) == short


def test_a_duration_that_is_not_round_is_rounded() -> None:
    assert [format_duration(value) for value in (0.0, 12.34, 333.3, 1234.5, 12345.6)] == [
        "0.0s",
        "12.3s",
        "333.3s",
        "20.6min",
        "3.4h",
    ]
