"""The interval law, against figures worked out by hand and against itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.checkpoint.interval import best, daly, renewal, wasted, young
from headway.errors import UsageError
from tests.support import examples, has_code

COST, MTBF = 15.0, 86_400 / 3  # three failures a day
QUICK = settings(derandomize=True, deadline=None, max_examples=examples(200))
COSTS = st.floats(1e-3, 1e3)
MTBFS = st.floats(1.0, 1e7)
LATE = st.floats(0.0, 1e3)


def test_the_published_optimum() -> None:
    assert young(COST, MTBF) == pytest.approx(929.5, abs=0.05)
    assert young(COST, MTBF) / 60 == pytest.approx(15.49, abs=0.005)
    found = best(cost=COST, mtbf=MTBF)
    assert (found.interval, found.bound) == (young(COST, MTBF), "law")
    assert 100 * found.wasted == pytest.approx(3.227, abs=5e-4)


def test_daly_and_the_renewal_form() -> None:
    assert daly(COST, MTBF) == pytest.approx(919.5, abs=0.05)
    found = best(cost=COST, mtbf=MTBF, exact=True)
    assert found.interval == pytest.approx(920, abs=0.5)
    assert 100 * found.wasted == pytest.approx(3.193, abs=5e-4)


@pytest.mark.parametrize(
    ("minutes", "first_order", "exact"),
    [
        (1, 25.10, 20.10),
        (5, 5.521, 5.282),
        (10, 3.542, 3.477),
        (20, 3.333, 3.303),
        (30, 3.958, 3.919),
        (60, 6.667, 6.534),
        (120, 12.708, 12.187),
        (240, 25.10, 23.03),
    ],
)
def test_what_other_intervals_lose(minutes: float, first_order: float, exact: float) -> None:
    interval = 60 * minutes
    assert 100 * wasted(interval, cost=COST, mtbf=MTBF) == pytest.approx(first_order, abs=0.006)
    assert 100 * renewal(interval, cost=COST, mtbf=MTBF) == pytest.approx(exact, abs=0.006)


@pytest.mark.parametrize(
    ("cost", "interval", "percent"),
    [(5, 8.9 * 60, 1.86), (1, 4.0 * 60, 0.83), (0.1, 76, 0.26), (0.02, 34, 0.12)],
)
def test_a_cheaper_save_is_worth_more_often(cost: float, interval: float, percent: float) -> None:
    found = best(cost=cost, mtbf=MTBF)
    assert found.interval == pytest.approx(interval, rel=0.01)
    assert 100 * found.wasted == pytest.approx(percent, abs=0.006)


def test_a_late_save_loses_the_time_until_it_is_durable() -> None:
    late = best(cost=COST, mtbf=MTBF, durable=67)
    assert late.interval == young(COST, MTBF)
    on_time = wasted(late.interval, cost=COST, mtbf=MTBF)
    assert 100 * (late.wasted - on_time) == pytest.approx(0.2326, abs=1e-4)


def test_bounds_from_below() -> None:
    assert best(cost=0.1, mtbf=3600, durable=300).bound == "durable"
    found = best(cost=0.1, mtbf=3600, durable=10, size=13e9, bandwidth=1e8)
    assert (found.interval, found.bound) == (130.0, "bandwidth")
    assert found.wasted == wasted(130.0, cost=0.1, mtbf=3600, durable=10)
    assert best(cost=15, mtbf=MTBF, size=13e9, bandwidth=1e8).bound == "law"


def test_the_edges() -> None:
    assert best(cost=0, mtbf=3600).interval == 0 == best(cost=0, mtbf=3600, exact=True).interval
    assert best(cost=0, mtbf=3600, durable=4).interval == 4
    for exact in (False, True):
        never = best(cost=1, mtbf=math.inf, exact=exact)
        assert (never.interval, never.wasted) == (math.inf, 0)
    assert daly(10, 5) == 5
    assert wasted(0, cost=1, mtbf=60) == math.inf
    assert renewal(0, cost=1, mtbf=60) == 1
    assert renewal(1e9, cost=1, mtbf=1) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"mtbf": 0},
        {"mtbf": math.nan},
        {"cost": -1},
        {"cost": math.nan},
        {"durable": math.inf},
        {"bandwidth": 0},
        {"size": -1},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, check=has_code("value-out-of-range")) as raised:
        best(**{"cost": 1.0, "mtbf": 60.0, **wrong})
    assert [raised.value.fields["name"]] == list(wrong)


@QUICK
@given(COSTS, MTBFS, LATE, LATE, st.floats(0, 1e12), st.floats(1e6, 1e10), st.floats(1e-3, 1e3))
def test_no_allowed_interval_loses_less(
    cost: float,
    mtbf: float,
    durable: float,
    recover: float,
    size: float,
    bandwidth: float,
    times: float,
) -> None:
    for exact, law in ((False, wasted), (True, renewal)):
        found = best(
            cost=cost,
            mtbf=mtbf,
            durable=durable,
            recover=recover,
            size=size,
            bandwidth=bandwidth,
            exact=exact,
        )
        floor = max(durable, size / bandwidth)
        assert found.interval >= floor
        other = max(found.interval * times, floor)
        lost = law(other, cost=cost, mtbf=mtbf, durable=durable, recover=recover)
        assert found.wasted <= lost * (1 + 1e-9) + 1e-12


@QUICK
@given(st.floats(1, 1e5), COSTS, MTBFS, LATE, LATE)
def test_the_exact_form_is_a_share_and_is_met_by_the_first_order(
    interval: float, cost: float, mtbf: float, durable: float, recover: float
) -> None:
    times = {"cost": cost, "mtbf": mtbf, "durable": durable, "recover": recover}
    assert 0 <= renewal(interval, **times) <= 1
    rare = 1e6 * (interval + cost + durable + recover)  # failures, and saves of no weight
    given_up = {"cost": interval * 1e-6, "mtbf": rare, "durable": durable, "recover": recover}
    assert renewal(interval, **given_up) == pytest.approx(wasted(interval, **given_up), rel=1e-4)


@QUICK
@given(COSTS, MTBFS)
def test_recovery_and_lateness_do_not_move_the_exact_optimum(cost: float, mtbf: float) -> None:
    plain = best(cost=cost, mtbf=mtbf, exact=True)
    slow = best(cost=cost, mtbf=mtbf, durable=plain.interval / 2, recover=100, exact=True)
    assert slow.interval == plain.interval
    assert slow.wasted >= plain.wasted
    assert plain.interval <= mtbf
