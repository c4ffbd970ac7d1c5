"""The failure rate and how sure it is, against quantiles from tables."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.checkpoint.interval import UNKNOWN_RATE, FailureRate
from headway.errors import UsageError
from tests.support import examples, has_code


# Half the quantiles of chi-squared with 1, 2 and 20 degrees of freedom.
@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        (0.5, 0.00098207 / 2, 5.02389 / 2),
        (1.0, -math.log(0.975), -math.log(0.025)),
        (10.0, 9.59078 / 2, 34.16961 / 2),
    ],
)
def test_the_credible_interval(shape: float, low: float, high: float) -> None:
    for hours in (1.0, 48.0):
        found = FailureRate(shape, hours).credible()
        assert found == pytest.approx((low / hours, high / hours), rel=1e-5)


def test_a_large_shape_is_nearly_normal() -> None:
    low, high = FailureRate(1e4, 1e4).credible()
    assert (low, high) == pytest.approx((1 - 0.0196, 1 + 0.0196), abs=2e-4)


def test_what_is_seen_is_added() -> None:
    prior = FailureRate(2, 48)
    later = prior.after(failures=4, hours=24)
    assert later == FailureRate(6, 72)
    assert later.mean == pytest.approx(1 / 12)
    width = [high - low for low, high in (prior.credible(), prior.after(200, 4800).credible())]
    assert width[1] < width[0] / 5


def test_nothing_is_known_at_first() -> None:
    assert not UNKNOWN_RATE.known and UNKNOWN_RATE.mean == math.inf == UNKNOWN_RATE.quantile(0.5)
    assert UNKNOWN_RATE.after(0, 10).mean == 0.05


def test_what_cannot_be_is_refused() -> None:
    for shape, hours in ((0, 1), (1, -1), (math.nan, 1), (math.inf, 1)):
        with pytest.raises(UsageError, check=has_code("failure-rate-invalid")):
            FailureRate(shape, hours)
    with pytest.raises(UsageError, check=has_code("failures-invalid")):
        UNKNOWN_RATE.after(-1, 1)
    with pytest.raises(UsageError, check=has_code("quantile-out-of-range")):
        UNKNOWN_RATE.quantile(1)


@settings(derandomize=True, deadline=None, max_examples=examples(100))
@given(st.floats(0.1, 500), st.floats(0.01, 1e5), st.floats(0.01, 0.98))
def test_quantiles_rise_and_scale(shape: float, hours: float, share: float) -> None:
    rate = FailureRate(shape, hours)
    assert rate.quantile(share) < rate.quantile(share + 0.01)
    assert rate.quantile(share) == pytest.approx(FailureRate(shape, 1).quantile(share) / hours)


def test_the_interval_holds_as_often_as_it_says() -> None:
    draw = random.Random(4)
    rates = [draw.gammavariate(3, 1 / 20) for _ in range(20_000)]
    low, high = FailureRate(3, 20).credible(0.9)
    assert sum(low <= rate <= high for rate in rates) / len(rates) == pytest.approx(0.9, abs=0.01)
