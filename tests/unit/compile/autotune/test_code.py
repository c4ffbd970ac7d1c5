"""What is printed to be pasted must run, and do what the file does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headway.compile.autotune.advice import advise
from headway.compile.autotune.code import config_code, python_code
from tests.unit.compile.autotune.journals import kernel


class Config:
    """The part of triton.Config that the code meets."""

    def __init__(self, kwargs: dict[str, Any], **options: Any) -> None:
        self.kwargs = kwargs
        self.__dict__.update(options)


class Dtype:
    """A type as a constant of a kernel; its text is in the record."""

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
    assert [one.kwargs for one in names["configs"]] == [{"BLOCK": 128}]
    prune = names["prune_scale"]
    assert [one.kwargs for one in prune(offered(), {"n": 1000, "x": object()})] == [{"BLOCK": 128}]
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
    made = kernel({(1,): [1.0, 2.0, 3.0]})
    made.configs[0]["pre_hook"] = "zero_out"
    assert "pre_hook=zero_out" in python_code(advise(made, 0.02), 2.0)
