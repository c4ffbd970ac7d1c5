from __future__ import annotations

import math

import pytest

from headway.plan.analytic import POINTS, curve, formulas, point
from headway.plan.job import DAY, JobSpec

META = JobSpec(nodes=1, mtbf=DAY / 3, length=14 * DAY, block=15)


def test_the_optimum_of_metas_figure_7() -> None:
    """15 s of blocking and 3 failures per day: 15.5 minutes, 3.2 % wasted."""
    at = point(META, META.interval_in_use)
    assert (round(at.interval / 60, 1), round(at.wasted, 1)) == (15.5, 3.2)
    assert round(at.exact, 1) == 3.2
    assert round(point(META, 3600).wasted, 1) == 6.7
    assert round(point(META, 300).wasted, 1) == 5.5


def test_the_optimum_lies_in_the_middle_of_the_curve() -> None:
    points = curve(META)
    least = min(points, key=lambda item: item.wasted)
    assert len(points) == POINTS
    assert least is points[POINTS // 2] and least.interval == pytest.approx(META.interval_in_use)
    for item in points:
        assert item.wasted == pytest.approx(item.saves + item.lost + item.recover)
        assert item.exact < min(item.wasted, 100)


def test_recovery_raises_the_curve_but_keeps_the_optimum() -> None:
    slow = JobSpec(nodes=1, mtbf=DAY / 3, length=14 * DAY, block=15, recover=288)
    assert slow.interval_in_use == META.interval_in_use
    assert point(slow, 600).recover == pytest.approx(1)  # 288 s of 8 hours
    assert point(slow, 600).wasted == pytest.approx(point(META, 600).wasted + 1)


def test_the_formulas() -> None:
    points_by_name = {law.name: law.point for law in formulas(META)}
    assert list(points_by_name) == ["Young", "Daly", "exact"]
    assert points_by_name["exact"].exact <= min(
        points_by_name["Young"].exact, points_by_name["Daly"].exact
    )


def test_without_failures_there_is_no_curve() -> None:
    calm = JobSpec(nodes=1, mtbf=math.inf, length=DAY, block=15)
    assert curve(calm) == () and formulas(calm) == ()
    assert point(calm, 600).wasted == pytest.approx(2.5)
