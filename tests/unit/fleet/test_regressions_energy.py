"""The statistic against its definition by pairs, and the weights and classes that go into it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.fleet.regressions.energy import CELLS, Deviations
from headway.fleet.regressions.permutation import best_split
from headway.fleet.regressions.series import beside_their_like, capped, lengths

pytestmark = pytest.mark.timeout(60)


def by_pairs(x: np.ndarray, v: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The energy distance as it is defined, times the harmonic weight of the two sides."""

    def apart(a: np.ndarray, p: np.ndarray, b: np.ndarray, q: np.ndarray) -> float:
        return float(p @ np.abs(a[:, None] - b[None]) @ q) / (p.sum() * q.sum())

    distance = 2 * apart(x, v, y, w) - apart(x, v, x, v) - apart(y, w, y, w)
    return distance * v.sum() * w.sum() / (v.sum() + w.sum())


@settings(deadline=None, max_examples=30)
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


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=400), st.floats(0.01, 0.2))
@example([1.0, 1.0, 1.0, 1.0, 1.0, 48572.0, 999999.8216158763, 0.01], 0.1328125)
def test_no_job_weighs_more_than_its_share(given_weights: list[float], most: float) -> None:
    weights = np.array(given_weights)
    found = capped(weights, most)
    assert found.max() <= max(most, 1 / weights.size) * found.sum() * (1 + 1e-9)
    order = np.argsort(weights)
    assert (np.diff(found[order]) >= -1e-9).all()


def test_light_weights_are_left_alone() -> None:
    weights = np.linspace(1, 2, 1000)
    assert capped(weights, 0.01) is weights


def test_classes_of_length_weigh_about_the_same() -> None:
    random = np.random.default_rng(5)
    wall, weights = random.lognormal(8, 2, 4000), random.random(4000)
    classes = lengths(wall, weights, 8)
    assert np.bincount(classes, weights) == pytest.approx(np.full(8, weights.sum() / 8), rel=0.02)
    assert all(wall[classes == i].max() <= wall[classes == i + 1].min() for i in range(7))


@settings(deadline=None)
@given(st.lists(st.sampled_from([60.0, 3600.0, 7200.0]), min_size=1, max_size=60))
def test_jobs_that_ran_as_long_are_of_one_class(walls: list[float]) -> None:
    wall = np.array(walls) + np.linspace(0, 1e-5, len(walls))  # the rounding of a sum
    classes = lengths(wall, np.ones(wall.size))
    for value in set(walls):
        assert len(set(classes[np.array(walls) == value])) == 1
    assert classes.min() >= 0 and classes.max() < 8
    assert (np.diff(classes[np.argsort(wall)]) >= 0).all()


def test_jobs_are_compared_with_jobs_of_their_class() -> None:
    classes = np.array([0, 0, 0, 1, 1, 1])
    values = np.array([[1.0], [2.0], [3.0], [10.0], [20.0], [30.0]])
    found = beside_their_like(values, np.ones(6), classes)[:, 0]
    assert found == pytest.approx([-1.5, 0, 1.5, -1.5, 0, 1.5])
