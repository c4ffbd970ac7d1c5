"""Percentiles and quantiles of Student's t, compared with other definitions."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.stats import percentile, student_t

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=50)


@given(NUMBERS, st.integers(1, 99))
def test_percentiles_are_those_of_the_standard_library(values: list[float], number: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[number - 1]
    assert percentile(values, number / 100) == pytest.approx(expected, rel=1e-6, abs=1e-3)


def test_ends_and_single_values() -> None:
    assert percentile([5.0], 0.95) == 5.0
    assert (percentile([3.0, 1.0, 2.0], 0.0), percentile([3.0, 1.0, 2.0], 1.0)) == (1.0, 3.0)
    assert percentile([float(n) for n in range(101)], 0.95) == 95.0
    assert percentile([1.0, float("inf")], 0.0) == 1.0


# NIST/SEMATECH, upper critical values of Student's t, 0.975.
@pytest.mark.parametrize(
    ("freedom", "expected"),
    [
        *((1, 12.706), (2, 4.303), (5, 2.571), (20, 2.086), (21, 2.080), (22, 2.074)),
        *((30, 2.042), (50, 2.009), (100, 1.984)),
    ],
)
def test_quantiles_of_student_t(freedom: int, expected: float) -> None:
    assert student_t(freedom) == pytest.approx(expected, abs=0.0006)


def test_the_normal_is_the_limit_of_student_t() -> None:
    assert student_t(100_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-4)
    values = [student_t(freedom) for freedom in range(1, 60)]
    assert values == sorted(values, reverse=True)
    assert student_t(10, 0.99) == pytest.approx(3.169, abs=0.0006)
