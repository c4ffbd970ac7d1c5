"""The smallest set that is good enough for every key."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compile.autotune import cover as module
from headway.compile.autotune.cover import cover, losses
from tests.support import examples

TIMES = st.lists(
    st.dictionaries(st.integers(0, 6), st.floats(0.5, 2.0), min_size=1), min_size=1, max_size=6
)


def good(chosen: list[int], keys: list[dict[int, float]], loss: float) -> bool:
    return all(any(key.get(config, math.inf) <= loss for config in chosen) for key in keys)


def test_losses_are_shares_of_the_best() -> None:
    assert losses({0: 2.0, 1: 1.0, 2: 1.5}) == {0: 1.0, 1: 0.0, 2: 0.5}


def test_a_time_of_zero_is_the_best_there_is() -> None:
    assert losses({0: 0.0, 1: 0.1, 2: 0.0}) == {0: 0.0, 1: math.inf, 2: 0.0}


def test_one_config_that_wins_nowhere_can_be_enough() -> None:
    keys = [losses({0: 1.0, 1: 1.01, 2: 9.0}), losses({0: 9.0, 1: 1.01, 2: 1.0})]
    assert cover(keys, 0.02) == [1]
    assert cover(keys, 0.0) == [0, 2]


def test_of_equal_sets_the_one_that_loses_least() -> None:
    keys = [{0: 0.01, 1: 0.0, 2: 0.015}, {0: 0.01, 1: 0.005, 2: 0.0}]
    assert cover(keys, 0.02) == [1]


def test_a_config_that_was_not_offered_for_a_key_does_not_serve_it() -> None:
    assert cover([{0: 0.0}, {1: 0.0, 0: 0.5}], 0.02) == [0, 1]


@settings(max_examples=examples(200), deadline=None)
@given(TIMES, st.sampled_from([0.0, 0.02, 0.3]))
def test_it_is_the_smallest(times: list[dict[int, float]], loss: float) -> None:
    keys = [losses(each) for each in times]
    found = cover(keys, loss)
    assert good(found, keys, loss)
    everything = sorted({config for key in keys for config in key})
    for size in range(1, len(found)):
        assert not any(good([*one], keys, loss) for one in combinations(everything, size))


@settings(max_examples=examples(100), deadline=None)
@given(TIMES)
def test_the_greedy_answer_is_good_too(times: list[dict[int, float]]) -> None:
    keys = [losses(each) for each in times]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EXACT", 0)
        assert good(cover(keys, 0.02), keys, 0.02)


@pytest.mark.timeout(20)
def test_hundreds_of_configs_and_keys_take_no_time() -> None:
    keys = [{config: (config * key) % 97 / 97 for config in range(300)} for key in range(1, 200)]
    assert good(cover(keys, 0.02), keys, 0.02)
