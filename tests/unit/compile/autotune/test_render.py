"""The autotune report, and the code to paste, which must run and have the effect of the file."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from headway.compile.autotune.advice import KernelAdvice, advise
from headway.compile.autotune.render import config_code, python_code, report_lines
from tests.support import Golden
from tests.unit.compile.autotune.journals import kernel


def page(*advised: KernelAdvice, everything: bool = False) -> str:
    setup = advised[0].kernel.setup
    return "\n".join(report_lines(setup, list(advised), everything=everything)) + "\n"


def test_cost_winner_and_distances(golden: Golden) -> None:
    result = kernel(
        {(1000, "torch.float32"): [1.0, 1.01, None], (5000,): [2.0, 1.0, 1.5]}, cost=0.05
    )
    golden("kernel.txt", page(advise(result, 0.02)))


def test_many_kernels_keys_and_configs_are_cut_and_all_are_there_on_demand(
    golden: Golden,
) -> None:
    times = {(n,): [1.0 + config for config in range(30)] for n in range(30)}
    advised = [advise(kernel(times), 0.02) for _ in range(7)]
    golden("many_kernels.txt", page(*advised))
    full = page(*advised, everything=True)
    assert {int(n) for n in re.findall(r"\bn=(\d+)", full)} == set(range(30))
    assert {int(n) for n in re.findall(r"\bBLOCK=(\d+)", full)} == {64 << n for n in range(30)}


def test_nothing_to_prune(golden: Golden) -> None:
    golden("nothing_to_prune.txt", page(advise(kernel({(1,): [None, None]}), 0.02)))


class Config:
    """The part of triton.Config that the code uses."""

    def __init__(self, kwargs: dict[str, Any], **options: Any) -> None:
        self.kwargs = kwargs
        self.__dict__.update(options)


class Dtype:
    """A type that is a constant of a kernel; the record has its text."""

    def __str__(self) -> str:
        return "fp16"


def pasted(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"triton": SimpleNamespace(Config=Config)}
    exec(text, names)
    return names


def offered() -> list[Config]:
    return [Config({"BLOCK": 64 << n}, num_warps=4, num_stages=3) for n in range(3)]


def test_recorded_sizes_keep_the_kept_and_others_get_all() -> None:
    times = {(1000, "torch.float32"): [1.0, 1.01, 3.0], (5000, "torch.float32"): [2.0, 1.0, 0.99]}
    names = pasted(python_code(advise(kernel(times), 0.02), 2.0))
    assert [item.kwargs for item in names["configs"]] == [{"BLOCK": 128}]
    prune = names["prune_scale"]
    assert [item.kwargs for item in prune(offered(), {"n": 1000, "x": object()})] == [
        {"BLOCK": 128}
    ]
    assert len(prune(offered(), {"n": 1001})) == 3
    assert len(prune([Config({"BLOCK": 7}, num_warps=1, num_stages=1)], {"n": 1000})) == 1


def test_keys_with_strings_types_and_constants() -> None:
    times = {("causal", "fp16", None, True): [1.0, 2.0, 3.0]}
    advice = advise(kernel(times, names=["mode", "dtype", "mask", "flag"]), 0.02)
    prune = pasted(python_code(advice, 2.0))["prune_scale"]
    given = {"mode": "causal", "dtype": Dtype(), "mask": None}
    assert len(prune(offered(), given, flag=True)) == 1
    assert len(prune(offered(), given, flag=False)) == 3


def test_options_stand_beside_the_constants() -> None:
    config = {"BLOCK": 64, "num_warps": 8, "num_stages": 2, "num_ctas": 2, "maxnreg": 128}
    assert config_code(config) == (
        "triton.Config({'BLOCK': 64}, num_warps=8, num_stages=2, num_ctas=2, maxnreg=128)"
    )


def test_a_hook_is_not_forgotten() -> None:
    result = kernel({(1,): [1.0, 2.0, 3.0]})
    result.configs[0]["pre_hook"] = "zero_out"
    assert "pre_hook=zero_out" in python_code(advise(result, 0.02), 2.0)
