"""The choice of configs from measured times, and the advice file."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compile.autotune import advice as module
from headway.compile.autotune.advice import (
    advise,
    check_advice_file,
    cover,
    find_advice_file,
    losses,
    same_setup,
    to_dict,
)
from headway.errors import NewerSchema, RunNotFound, UsageError
from tests.support import examples, has_code
from tests.unit.compile.autotune.journals import H200, kernel


def test_the_fewest_configs_within_the_loss() -> None:
    result = advise(kernel({(1,): [1.0, 1.01, 3.0], (2,): [2.0, 1.0, 0.99]}), 0.02)
    assert result.kept_configs == (1,)
    assert [(key.best, key.use) for key in result.keys] == [(0, (1,)), (2, (1,))]
    assert result.loss == pytest.approx(0.0101, abs=1e-4)


def test_a_loss_of_nothing_keeps_every_winner() -> None:
    result = advise(kernel({(1,): [1.0, 1.01, 3.0], (2,): [2.0, 1.0, 0.99]}), 0.0)
    assert result.kept_configs == (0, 2)
    assert (result.loss, [key.use for key in result.keys]) == (0.0, [(0,), (2,)])


def test_of_those_kept_each_key_takes_its_fastest() -> None:
    result = advise(kernel({(1,): [1.0, 5.0], (2,): [5.0, 1.0], (3,): [1.0, 1.01]}), 0.02)
    assert result.kept_configs == (0, 1)
    assert [key.use for key in result.keys] == [(0,), (1,), (0,)]


def test_one_key_only() -> None:
    result = advise(kernel({(1,): [None, 1.01, 1.0]}), 0.02)
    assert (result.kept_configs, result.keys[0].use, result.loss) == ((2,), (2,), 0.0)


def test_a_key_of_which_everything_failed_is_tuned_in_full_again() -> None:
    result = advise(kernel({(1,): [None, None], (2,): [1.0, 2.0]}), 0.02)
    assert (result.untunable, [key.key.values for key in result.keys]) == (1, [[2]])
    assert advise(kernel({(1,): [None, None]}), 0.02).kept_configs == ()


def test_how_far_behind_each_config_was() -> None:
    result = advise(kernel({(1,): [1.0, 1.5, None], (2,): [1.0, 1.1, 1.2]}), 0.02)
    assert [(row[0], row[1], round(row[2], 3), round(row[3], 3)) for row in result.ranking()] == [
        (0, 2, 0.0, 0.0),
        (2, 0, 0.2, float("inf")),
        (1, 0, 0.3, 0.5),
    ]


def test_what_it_will_cost_is_what_the_kept_ones_cost() -> None:
    result = advise(kernel({(1,): [1.0, 5.0, 5.0], (2,): [1.0, 5.0, 5.0]}, cost=0.2), 0.02)
    assert (result.spent, result.predicted) == (1.0, pytest.approx(0.4))


def test_a_generated_kernel_is_compiled_once_and_not_benchmarked() -> None:
    made = kernel({(1,): [1.0, 5.0, 5.0, 5.0]}, kind="inductor")
    made.compiled["rank"] = 2.0
    result = advise(made, 0.02)
    assert (result.spent, result.predicted) == (2.5, 0.5)


def test_a_template_stays_beside_the_library_it_is_compared_with() -> None:
    made = kernel({("[...]",): [3.0, 1.0, 1.01, 2.0, 5.0]}, kind="template")
    kinds = ["ExternKernel", "TritonTemplate", "TritonTemplate", "ExternKernel", "CppTemplate"]
    for config, by in zip(made.configs, kinds, strict=True):
        config["by"] = by
    assert advise(made, 0.02).keys[0].use == (1, 3)
    made.configs[1]["by"] = made.configs[2]["by"] = "CppTemplate"
    assert advise(made, 0.02).keys[0].use == (1,)


def test_the_gpu_that_most_was_tuned_on_counts() -> None:
    one, two = kernel({(1,): [1.0, 2.0]}), kernel({(1,): [1.0, 2.0], (2,): [1.0, 2.0]})
    three = kernel({(1,): [1.0, 2.0]}, setup={**H200, "gpu": "NVIDIA A100"})
    setup, here = same_setup([one, two, three])
    assert setup is not None and setup.gpu == "NVIDIA H200" and len(here) == 2
    assert same_setup([]) == (None, [])


def test_the_file_says_where_it_is_good() -> None:
    advice = advise(kernel({(1000, "torch.bfloat16"): [1.0, 1.01, 3.0]}), 0.02)
    content = to_dict(advice.kernel.setup, [advice], 0.02, ["night"])
    assert {name: content[name] for name in H200} == H200
    (document,) = content["kernels"]
    assert document["keys"] == [
        {
            "key": [1000, "torch.bfloat16"],
            "rest": "",
            "tried": [0, 1, 2],
            "best": 0,
            "use": [0],
            "ms": 1.0,
            "loss_percent": 0.0,
        }
    ]
    assert (document["kept"], len(document["configs"]), document["id"]) == ([0], 3, "k1")


def test_a_run_or_a_file_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        find_advice_file(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, check=has_code("autotune-file-missing")):
        find_advice_file(str(tmp_path))
    (tmp_path / "autotune.json").write_text('{"schema": 1, "kernels": []}')
    assert find_advice_file(str(tmp_path)) == find_advice_file(str(tmp_path / "autotune.json"))


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"kernels": []}', "\x00"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(UsageError, check=has_code("autotune-file-not-readable")):
        check_advice_file(path)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({"schema": 2, "kernels": []}))
    with pytest.raises(NewerSchema):
        check_advice_file(path)


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
    result = cover(keys, loss)
    assert good(result, keys, loss)
    everything = sorted({config for key in keys for config in key})
    for size in range(1, len(result)):
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
