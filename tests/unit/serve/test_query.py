"""Query strings: valid and invalid parameters."""

from __future__ import annotations

from datetime import datetime

import pytest

from headway.serve.cache import StoreSummary
from headway.serve.query import BadQuery, PageQuery
from tests.support import has_code

ABOUT = StoreSummary(datetime(2026, 1, 1), datetime(2026, 4, 1), 10, 0)


def test_known_parameters_are_parsed_in_a_fixed_order() -> None:
    one = PageQuery.parse({"team": "ads", "since": "30d", "other": "x", "model": ""})
    assert one == PageQuery.parse({"since": "30d", "team": " ads "})
    assert one.query_string == "?since=30d&team=ads"
    assert one.where == (("team", "ads"),)
    assert PageQuery.parse(dict(one.parameters)) == one


def test_ages_are_relative_to_the_newest_run() -> None:
    since, until = PageQuery.parse({"since": "30d", "until": "2026-03-20"}).time_range(ABOUT)
    assert since == datetime(2026, 3, 2, 0, 0, 1)
    assert until == datetime(2026, 3, 20)


@pytest.mark.parametrize(
    ("parameters", "period"),
    [
        ({"since": "1d"}, "hour"),
        ({}, "day"),
        ({"by": "team"}, "week"),
        ({"since": "7d", "by": "team"}, "day"),
    ],
)
def test_a_chart_has_a_few_dozen_points(parameters: dict[str, str], period: str) -> None:
    assert PageQuery.parse(parameters).period(ABOUT) == period


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"by": "password"}, "split-unknown"),
        ({"since": "yesterday"}, "time-invalid"),
        ({"until": "'; drop table runs; --"}, "time-invalid"),
        ({"page": "-1"}, "page-invalid"),
        ({"page": "²"}, "page-invalid"),
        ({"release": "moon"}, "release-unknown"),
        ({"sort": "run_id; --"}, "order-unknown"),
        ({"team": "x" * 201}, "value-too-long"),
    ],
)
def test_invalid_parameters_are_one_line(parameters: dict[str, str], code: str) -> None:
    with pytest.raises(BadQuery, check=has_code(code)):
        PageQuery.parse(parameters)


def test_pages_are_numbers_from_1_on() -> None:
    assert [PageQuery.parse({"page": text}).page for text in ("0", "7", "9" * 30)] == [
        1,
        7,
        1_000_000,
    ]


def test_parameters_can_be_changed_and_removed() -> None:
    query = PageQuery.parse({"team": "ads", "page": "3", "category": "hang"})
    assert query.with_(page="", host="node 1").query_string == "?category=hang&host=node+1&team=ads"
    assert query.only("team").query_string == "?team=ads"
