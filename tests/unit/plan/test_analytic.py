from __future__ import annotations

import math

import pytest

from headway.errors import UsageError
from headway.plan.analytic import expected
from headway.plan.job import DAY, PARTS, JobSpec
from headway.plan.simulate import simulate
from tests.support import has_code

META = JobSpec(nodes=1, mtbf=DAY / 3, length=14 * DAY, block=15)
LARGE = JobSpec(
    nodes=512, mtbf=60 * DAY, length=7 * DAY, block=15, durable=60, start=900, recover=300,
    requeue=60, compile=100, compile_again=20,
)  # fmt: skip
SLOW = JobSpec(nodes=4, mtbf=4 * 7200, length=3 * DAY, block=20, durable=900, recover=120)
SHORT = JobSpec(nodes=1, mtbf=DAY / 4, length=3600, interval=7200, block=15, start=300, recover=60)


@pytest.mark.parametrize("case", [META, LARGE, SLOW, SHORT], ids=["meta", "large", "slow", "short"])
@pytest.mark.timeout(60)
def test_both_methods_agree(case: JobSpec) -> None:
    closed, played = expected(case), simulate(case, trials=1000)
    assert abs(closed.ett_percent - played.shares.ett_percent) < 2 * played.ci95
    assert played.ci95 < 2.5 and not played.unfinished
    for part in PARTS:
        assert closed.percent(part) == pytest.approx(played.shares.percent(part), abs=0.8)


def test_the_parts_sum_to_the_wall_time() -> None:
    closed = expected(LARGE)
    assert sum(closed.percent(part) for part in PARTS) == pytest.approx(100)
    assert closed.effective == LARGE.length


def test_without_failures_only_the_start_and_the_saves_are_lost() -> None:
    case = JobSpec(nodes=8, mtbf=math.inf, length=1000, interval=100, block=1, start=20, compile=5)
    for shares in (expected(case), simulate(case, trials=2).shares):
        # The tenth stretch of training ends the job: it needs no save.
        assert shares.wall == pytest.approx(1000 + 9 + 25)
        assert (shares.lost, shares.recover) == (0, 0)
        assert shares.saves == pytest.approx(9)


def test_twice_the_nodes_fail_twice_as_often() -> None:
    small, large = (JobSpec(nodes=n, mtbf=DAY, length=DAY, block=10) for n in (1, 2))
    assert (small.failures_per_day, large.failures_per_day) == (1, 2)
    assert large.interval_in_use == pytest.approx(small.interval_in_use / math.sqrt(2))
    assert expected(large).ett_percent < expected(small).ett_percent


def test_trials_without_progress_are_aborted() -> None:
    case = JobSpec(nodes=1, mtbf=60, length=3 * 3600, interval=3600, block=1)
    played = simulate(case, trials=20)
    assert played.unfinished == played.trials == 20
    assert played.shares.ett_percent < 1 and expected(case).ett_percent < 1


def test_the_seed_determines_the_failures() -> None:
    first, again, other = (simulate(SHORT, trials=50, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("field", "value"),
    [("nodes", 0), ("mtbf", 0.0), ("length", math.inf), ("interval", 0.0), ("recover", -1.0)],
)
def test_invalid_jobs(field: str, value: float) -> None:
    fields = {"nodes": 1, "mtbf": DAY, "length": DAY, field: value}
    with pytest.raises(UsageError, check=has_code("value-out-of-range")) as error:
        JobSpec(**fields)  # type: ignore[arg-type]
    assert error.value.fields == {"field": field}


def test_saves_that_cost_nothing_have_no_best_interval() -> None:
    with pytest.raises(UsageError, check=has_code("interval-undefined")):
        expected(JobSpec(nodes=1, mtbf=DAY, length=DAY))


def test_too_many_failures_cannot_be_simulated() -> None:
    with pytest.raises(UsageError, check=has_code("too-many-failures")):
        simulate(JobSpec(nodes=1, mtbf=1, length=100 * DAY, interval=1, block=1))
