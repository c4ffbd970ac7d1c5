"""Equality of kernels, configs and keys."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.probe.autotune.kernel_identity import (
    config_text,
    config_values,
    digest,
    generated_digest,
    has_pinned_sizes,
    json_value,
    launch_key,
    source_texts,
)


class constexpr:
    def __init__(self, value: Any) -> None:
        self.value = value


def jit(code: str, **names: Any) -> Any:
    """A jit function as in Triton: its source, and the Python function."""
    space: dict[str, Any] = {"constexpr": constexpr, "__name__": "job", **names}
    exec(code, space)
    name = code.partition("def ")[2].partition("(")[0]
    return SimpleNamespace(fn=space[name], src=code)


def tuner(function: Any, *args: Any, keys: tuple[str, ...] = ("n",)) -> Any:
    names = function.fn.__code__.co_varnames[: function.fn.__code__.co_argcount]
    nargs = dict(zip(names, args, strict=False))
    return SimpleNamespace(fn=function, arg_names=names, keys=list(keys), nargs=nargs)


class Tensor:
    dtype = "torch.bfloat16"

    def __init__(self, address: int = 64) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address

    def __str__(self) -> str:
        raise AssertionError("this would wait for the device")

    __repr__ = __str__


KERNEL = "def scale(x, n, stride, SIZE: constexpr, seed=0):\n    return x\n"


def test_a_config_is_its_values_in_any_order() -> None:
    config = SimpleNamespace(kwargs={"A": 1, "B": 2}, num_warps=4, num_stages=2, maxnreg=None)
    reordered = SimpleNamespace(kwargs={"B": 2, "A": 1}, num_stages=2, num_warps=4)
    assert config_text(config_values(config)) == config_text(config_values(reordered))
    reordered.pre_hook = jit
    assert config_values(reordered) == {**config_values(config), "pre_hook": "jit"}


def test_values_are_plain_and_no_tensor_is_asked() -> None:
    values = [
        json_value(value)
        for value in (1, True, None, "s", 2.5, float("inf"), constexpr(3), (1, "a"))
    ]
    assert values == [1, True, None, "s", 2.5, "inf", 3, [1, "a"]]
    assert json_value(Tensor()) == "Tensor" and json_value(jit) == "jit"


def test_the_text_of_what_is_called_and_of_constants_counts() -> None:
    def kernel(helper: str, factor: Any, note: str = "") -> str:
        below = jit(f"def double(x):\n    return {helper}\n", FACTOR=constexpr(factor))
        return digest(
            source_texts(jit("def scale(x):\n    return double(x)\n", double=below, note=note))
        )

    same = kernel("x * FACTOR", 2)
    assert same == kernel("x * FACTOR", 2) == kernel("x * FACTOR", 2, note="not read")
    assert same != kernel("x + FACTOR", 2) and same != kernel("x * FACTOR", 3)


def test_a_function_that_calls_itself_ends() -> None:
    function = jit("def scale(x):\n    return scale(x)\n")
    function.fn.__globals__["scale"] = function
    assert source_texts(function) == ["def scale(x):\n    return scale(x)\n"]


def test_the_key_is_tritons_own() -> None:
    key_values, key, _ = launch_key(tuner(jit(KERNEL), Tensor(), 1000, 1, 64), {"warmup": False})
    assert key_values == (1000, "torch.bfloat16") and key == [1000, "torch.bfloat16"]


@pytest.mark.parametrize(
    "args",
    [
        (Tensor(65), 1000, 32, 64),  # not aligned
        (Tensor(), 1000, 33, 64),  # not divisible by 16
        (Tensor(), 1000, 1, 64),
        (Tensor(), 1000, 32, 128),  # another constant
        (None, 1000, 32, 64),
    ],
)
def test_what_is_compiled_anew_is_another_tuning(args: tuple[Any, ...]) -> None:
    rest = launch_key(tuner(jit(KERNEL), Tensor(), 1000, 32, 64), {})[2]
    assert launch_key(tuner(jit(KERNEL), *args), {})[2] != rest


def test_what_is_not_compiled_anew_is_the_same_tuning() -> None:
    rest = launch_key(tuner(jit(KERNEL), Tensor(), 1000, 32, 64, 5), {})[2]
    assert launch_key(tuner(jit(KERNEL), Tensor(128), 2000, 48, 64, 7), {})[2] == rest
    free = jit(KERNEL)
    free.params = [SimpleNamespace(name="seed", do_not_specialize=True)]
    seeded = [launch_key(tuner(free, Tensor(), 1000, 32, 64, seed), {})[2] for seed in (1, 16, 17)]
    assert len(set(seeded)) == 1


def test_a_generated_kernel_without_its_file_is_known_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("'kernel_name': 'triton_poi_7' def triton_poi_7(): index=0")
    other = tmp_path / "other.py"
    other.write_text("'kernel_name': 'triton_poi_12' def triton_poi_12(): index=3")
    assert generated_digest(str(path), "") == generated_digest(str(other), "")
    assert (
        generated_digest(str(tmp_path / "gone.py"), "text")
        == digest("text")
        == generated_digest(None, "text")
    )


def test_sizes_are_pinned_when_the_text_sets_all_of_them() -> None:
    signature = {"in_ptr0": "*fp32", "xnumel": "i32", "rnumel": "i64", "XBLOCK": "constexpr"}
    assert has_pinned_sizes("    xnumel = 8\n    rnumel = 16\n", signature)
    assert not has_pinned_sizes("    xnumel = 8\n", signature)
    assert not has_pinned_sizes("    xnumel = 8\n    rnumel = ks0 * 16\n", signature)
