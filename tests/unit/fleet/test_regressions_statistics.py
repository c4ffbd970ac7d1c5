"""What the search for regressions computes: statistics, parts, discoveries, bad hosts, alarms."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.fleet.regressions.attribution import by_cell, decompose, field_shifts
from headway.fleet.regressions.changepoint import CELLS, Deviations, best_split
from headway.fleet.regressions.cohorts import cap_weights, duration_bins, standardize_within_cohort
from headway.fleet.regressions.e_detector import EDetector, average_run_length
from headway.fleet.regressions.hosts import benjamini_hochberg, binomial_tail, find_lemons
from headway.fleet.regressions.running import SavedStep, seconds_per_step, watch_running
from tests.support import examples, has_code

pytestmark = pytest.mark.timeout(60)
DAY = 86400.0


# -- the statistic against its definition by pairs, and what goes into it ----------------------


def by_pairs(x: np.ndarray, v: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The energy distance as it is defined, times the harmonic weight of the two sides."""

    def apart(a: np.ndarray, p: np.ndarray, b: np.ndarray, q: np.ndarray) -> float:
        return float(p @ np.abs(a[:, None] - b[None]) @ q) / (p.sum() * q.sum())

    distance = 2 * apart(x, v, y, w) - apart(x, v, x, v) - apart(y, w, y, w)
    return distance * v.sum() * w.sum() / (v.sum() + w.sum())


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 2**32), st.integers(2, CELLS - 1))
def test_the_statistic_is_the_energy_distance_of_all_pairs(seed: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    # Fewer values than cells, and each weighs as much: then nothing is rounded.
    values = np.concatenate([np.arange(levels), random.integers(0, levels, 40)])
    weights = random.uniform(0.1, 5, values.size)
    weights /= np.bincount(values, weights)[values]
    slots = random.integers(0, 10, values.size)
    found = Deviations.of(values[:, None].astype(float), weights, slots, 10).distances(1)[:, 0]
    for split in range(1, 10):
        before = slots < split
        if not before.any() or before.all():
            continue
        expected = by_pairs(values[before], weights[before], values[~before], weights[~before])
        assert found[split - 1] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_shuffled_orders_are_walked_as_the_plain_one() -> None:
    random = np.random.default_rng(0)
    slots = random.integers(0, 30, 400)
    one = Deviations.of(random.normal(size=(400, 3)), random.random(400), slots, 30)
    orders = np.array([random.permutation(30) for _ in range(5)])
    peaks = one.peaks(orders, 2)
    for order, peak in zip(orders, peaks, strict=True):
        again = Deviations(one.parts[order], one.weights[order])
        assert again.distances(2).max(axis=0) == pytest.approx(peak, rel=1e-4)


def test_a_series_of_equal_values_has_no_split() -> None:
    slots = np.arange(200) // 5
    flat = Deviations.of(np.full((200, 2), 3.0), np.ones(200), slots, 40)
    split = best_split(flat, 4, seed=1, shuffles=99)
    assert split is not None and split.p == 1.0


def test_too_short_a_series_is_not_judged() -> None:
    short = Deviations.of(np.zeros((10, 1)), np.ones(10), np.arange(10) % 5, 5)
    assert best_split(short, 4, seed=1) is None


def test_a_step_is_found_where_it_is() -> None:
    random = np.random.default_rng(3)
    slots = np.sort(random.integers(0, 100, 2000))
    values = random.normal(size=(2000, 4))
    values[slots >= 60, 2] += 1.0
    split = best_split(Deviations.of(values, np.ones(2000), slots, 100), 4, seed=1)
    assert split is not None
    assert (split.at, split.channel, split.p) == (60, 2, 1 / 2000)


def test_chance_is_called_chance() -> None:
    """Of 200 series of noise, about a tenth have a p-value of a tenth."""
    random = np.random.default_rng(11)
    slots = np.arange(300) // 10
    small = 0
    for number in range(200):
        # Heavy tails and one bucket that is nearly always 0.
        values = random.standard_t(2, size=(300, 3))
        values[:, 1] = (random.random(300) < 0.05) * random.exponential(size=300)
        weights = random.pareto(1.5, 300) + 0.1
        split = best_split(Deviations.of(values, weights, slots, 30), 3, number, shuffles=99)
        assert split is not None
        small += split.p <= 0.1
    assert 8 <= small <= 34  # 20 expected; 0.1 % of chance on either side


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=400), st.floats(0.01, 0.2))
@example([1.0, 1.0, 1.0, 1.0, 1.0, 48572.0, 999999.8216158763, 0.01], 0.1328125)
def test_no_job_weighs_more_than_its_share(given_weights: list[float], most: float) -> None:
    weights = np.array(given_weights)
    found = cap_weights(weights, most)
    assert found.max() <= max(most, 1 / weights.size) * found.sum() * (1 + 1e-9)
    order = np.argsort(weights)
    assert (np.diff(found[order]) >= -1e-9).all()


def test_light_weights_are_left_alone() -> None:
    weights = np.linspace(1, 2, 1000)
    assert cap_weights(weights, 0.01) is weights


def test_classes_of_length_weigh_about_the_same() -> None:
    random = np.random.default_rng(5)
    wall, weights = random.lognormal(8, 2, 4000), random.random(4000)
    classes = duration_bins(wall, weights, 8)
    assert np.bincount(classes, weights) == pytest.approx(np.full(8, weights.sum() / 8), rel=0.02)
    assert all(wall[classes == i].max() <= wall[classes == i + 1].min() for i in range(7))


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.sampled_from([60.0, 3600.0, 7200.0]), min_size=1, max_size=60))
def test_jobs_that_ran_as_long_are_of_one_class(walls: list[float]) -> None:
    wall = np.array(walls) + np.linspace(0, 1e-5, len(walls))  # the rounding of a sum
    classes = duration_bins(wall, np.ones(wall.size))
    for value in set(walls):
        assert len(set(classes[np.array(walls) == value])) == 1
    assert classes.min() >= 0 and classes.max() < 8
    assert (np.diff(classes[np.argsort(wall)]) >= 0).all()


def test_jobs_are_compared_with_jobs_of_their_class() -> None:
    classes = np.array([0, 0, 0, 1, 1, 1])
    values = np.array([[1.0], [2.0], [3.0], [10.0], [20.0], [30.0]])
    found = standardize_within_cohort(values, np.ones(6), classes)[:, 0]
    assert found == pytest.approx([-1.5, 0, 1.5, -1.5, 0, 1.5])


# -- the parts of a change, discoveries, bad hosts and running jobs ----------------------------

cells = st.lists(
    st.tuples(*(st.integers(0, 50) for _ in range(4)), st.integers(0, 50), st.integers(0, 50)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=examples(100))
@given(cells)
def test_the_parts_of_a_change_sum_to_it_exactly(rows: list[tuple[int, ...]]) -> None:
    weight0, weight1 = ([Fraction(row[i]) for row in rows] for i in (0, 1))
    if not sum(weight0) or not sum(weight1):
        return
    sum0 = [[row[2] * row[0], row[4] * row[0]] for row in rows]
    sum1 = [[row[3] * row[1], row[5] * row[1]] for row in rows]
    parts = decompose(*(np.array(one, dtype=object) for one in (weight0, sum0, weight1, sum1)))
    for column in (0, 1):
        before = Fraction(sum(row[column] for row in sum0)) / sum(weight0)
        after = Fraction(sum(row[column] for row in sum1)) / sum(weight1)
        assert parts.total[column] == after - before


def test_mix_and_within_are_told_apart() -> None:
    weight = np.array([10.0, 10.0])
    same_means = decompose(
        weight, weight[:, None] * [[90], [50]], np.array([5.0, 15.0]), np.array([[450.0], [750.0]])
    )
    assert same_means.within.sum() == 0 and same_means.mix.sum() == pytest.approx(-10)
    same_shares = decompose(
        weight, np.array([[900.0], [500.0]]), weight, np.array([[880.0], [480.0]])
    )
    assert same_shares.mix.sum() == 0 and same_shares.within.sum() == pytest.approx(-2)


def test_a_cell_that_is_new_is_mix() -> None:
    parts = decompose(
        np.array([10.0, 0]),
        np.array([[900.0], [0]]),
        np.array([5.0, 5]),
        np.array([[450.0], [250]]),
    )
    assert parts.within.sum() == 0 and parts.total[0] == pytest.approx(-20)


def test_cells_are_summed() -> None:
    weight, sums = by_cell(
        np.array([0, 1, 1]), 3, np.array([1.0, 2, 3]), np.array([[1.0, 5], [2, 6], [3, 7]])
    )
    assert weight.tolist() == [1, 5, 0]
    assert sums.tolist() == [[1, 5], [13, 33], [0, 0]]


def test_discoveries_as_benjamini_and_hochberg_have_them() -> None:
    p = np.array([0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240,
                  0.4262, 0.5719, 0.6528, 0.7590, 1.0])  # fmt: skip
    assert int((benjamini_hochberg(p) <= 0.05).sum()) == 4  # their paper of 1995, section 3.2
    assert int((benjamini_hochberg(p, dependent=True) <= 0.05).sum()) == 3
    assert benjamini_hochberg(np.array([])).size == 0


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_a_smaller_p_value_is_never_found_later(values: list[float]) -> None:
    p = np.array(values)
    found = benjamini_hochberg(p)
    assert (found >= p - 1e-12).all() and (found <= 1).all()
    assert (np.diff(found[np.argsort(p)]) >= -1e-12).all()


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 99))
def test_the_tail_of_a_binomial_is_exact(k: int, n: int, percent: int) -> None:
    chance = Fraction(percent, 100)
    terms = (math.comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in range(k, n + 1))
    assert binomial_tail(k, n, percent / 100) == pytest.approx(
        float(sum(terms)), rel=1e-9, abs=1e-15
    )


def test_a_host_that_fails_beyond_chance_is_named() -> None:
    random = np.random.default_rng(2)
    hours = random.uniform(500, 5000, 200)
    failures = random.poisson(hours * 2e-4).astype(float)
    assert find_lemons([f"h{i}" for i in range(200)], failures, hours) == []
    failures[17] += 12
    found = find_lemons([f"h{i}" for i in range(200)], failures, hours)
    assert [one.host for one in found] == ["h17"]
    assert found[0].failures == failures[17] and found[0].expected < 2


def test_a_busy_host_may_fail_more_often() -> None:
    hours = np.array([10_000.0, *([100.0] * 100)])
    failures = np.array([20.0, *([1.0] * 20), *([0.0] * 80)])
    assert find_lemons([str(i) for i in range(101)], failures, hours) == []
    assert find_lemons([], np.array([]), np.array([])) == []


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Shares of 0 and 1 are as noisy as shares can be."""
    random = np.random.default_rng(7)
    runs = []
    for _ in range(300):
        one, seen = EDetector(0.9, average_run_length=40), 0
        while seen < 4000 and not one.alarmed:
            one.update(float(random.random() < 0.9))
            seen += 1
        runs.append(seen)
    assert np.mean(runs) >= 40


def test_a_job_that_falls_is_noticed_and_one_that_does_not_is_not() -> None:
    random = np.random.default_rng(8)
    waiting = average_run_length(jobs=100, each_per_week=168)
    assert waiting == 16800
    steady, falling = EDetector(0.9, waiting), EDetector(0.9, waiting)
    for hour in range(500):
        noise = random.normal(0, 0.02)
        assert not steady.update(0.93 + noise)
        falling.update((0.93 if hour < 400 else 0.75) + noise)
        assert falling.alarmed == (hour >= 400 and falling.alarmed)
    assert falling.alarmed


def test_a_share_above_all_that_is_possible_harms_nothing() -> None:
    one = EDetector(1.0, average_run_length=10)
    assert not any(one.update(value) for value in (2.0, 1.0, 1.0))
    assert min(one.wealths) >= 0


@pytest.mark.parametrize(("expected", "waiting"), [(0.0, 10), (1.1, 10), (0.5, 0)])
def test_a_watch_that_makes_no_sense_is_refused(expected: float, waiting: float) -> None:
    with pytest.raises(UsageError, check=has_code("value-out-of-range")):
        EDetector(expected, waiting)


def test_the_best_share_is_not_below_the_expected_one() -> None:
    with pytest.raises(UsageError, check=has_code("value-out-of-range")):
        EDetector(0.9, 10, best=0.8)


def test_alarms_name_the_running_job() -> None:
    slices = {"a": ("t",), "b": ("t",), "c": ("new",)}
    shares = {"a": [0.93] * 100, "b": [0.93] * 20 + [0.5] * 40, "c": [0.1] * 100}
    (alarm,) = watch_running(shares, {}, slices, {("t",): 0.9, ("new",): None})
    assert (alarm.run_id, alarm.slice) == ("b", ("t",))
    assert 20 < alarm.hour < 60 and alarm.lately < 0.9


def test_a_job_that_falls_below_its_own_first_hours_is_named_though_its_slice_is_worse() -> None:
    random = np.random.default_rng(9)
    steady, falls = random.normal(0.97, 0.005, (2, 200)).clip(0, 1)
    falls[60:] -= 0.05
    lines = {"steady": steady.tolist(), "falls": falls.tolist()}
    (alarm,) = watch_running(lines, {}, dict.fromkeys(lines, ("t",)), {("t",): 0.8})
    assert (alarm.run_id, alarm.beside) == ("falls", "share")
    assert 60 < alarm.hour < 100 and alarm.lately < alarm.expected < 0.97
    assert watch_running({"falls": lines["falls"][:60]}, {}, {"falls": ("t",)}, {("t",): 0.8}) == []


def test_a_straggler_slows_the_steps_of_a_job_that_trains_all_the_time() -> None:
    random = np.random.default_rng(10)
    steady, slow = random.lognormal(-1, 0.02, (2, 100))
    slow[40:] *= 1.5
    paces = {"steady": steady.tolist(), "slow": slow.tolist()}
    shares = dict.fromkeys(paces, [0.95] * 100)
    (alarm,) = watch_running(shares, paces, dict.fromkeys(paces, ("t",)), {})
    assert (alarm.run_id, alarm.beside) == ("slow", "pace") and 40 < alarm.hour < 60


def save(minute: int, step: int, attempt: int = 0, accelerators: int = 8) -> SavedStep:
    return SavedStep(attempt, accelerators, datetime(2026, 1, 1) + timedelta(minutes=minute), step)


def test_the_pace_is_that_from_save_to_save_of_an_attempt() -> None:
    first = [save(30 * i, 900 * i) for i in range(5)]
    again = [save(300 + 60 * i, 2700 + 1800 * i, attempt=1) for i in range(3)]
    assert seconds_per_step([*first, *again]) == [2.0, 2.0, 2.0, 2.0]
    smaller = [save(600 + 60 * i, 9000 + 900 * i, attempt=2, accelerators=4) for i in range(3)]
    assert seconds_per_step([*first, *again, *smaller]) == [4.0, 4.0]
    assert seconds_per_step([]) == [] and seconds_per_step([save(0, 5), save(90, 5)]) == []


def test_the_field_that_changed_at_the_break_is_named() -> None:
    random = np.random.default_rng(4)
    start = np.sort(random.uniform(0, 60 * DAY, 3000))
    after = start >= 40 * DAY
    points = random.normal(2, 0.5, 3000) + 2 * after
    fields = {
        "image": np.where(after, "new", "old"),
        "torch": np.full(3000, "2.13.0"),
        "code": (start // DAY).astype(int).astype(str),  # another one each day
        "host_type": np.where(start < 20 * DAY, "a", "b"),  # at another moment
        "config": random.choice(["x", "y"], 3000),
    }
    (found,) = field_shifts(fields, start, np.ones(3000), points, 40 * DAY)
    assert (found.field, found.before, found.after) == ("image", "old", "new")
    assert found.moved == 1 and found.usual < 0.1
    assert found.explains == pytest.approx(1, abs=0.05)
