"""A small compiled function for each kind of cause; CURED=1 applies the fixes that need code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

CURED = bool(os.environ.get("CURED"))
CAUSES: dict[str, Callable[[], None]] = {}


def cause(run: Callable[[], None]) -> Callable[[], None]:
    """The name of the function that a runner calls: `run_batch` calls `batch`."""
    CAUSES[run.__name__.removeprefix("run_")] = run
    return run


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="eager", **options)


# Cured by a setting.


def batch(rows: Any) -> Any:
    return rows * 2


@cause
def run_batch() -> None:
    call = compiled(batch)
    for size in (4, 5, 6, 7):
        call(torch.ones(size, 3))


def jagged(lengths: Any) -> Any:
    return sum(one.sum() for one in lengths.values())


@cause
def run_jagged() -> None:
    call, sizes = compiled(jagged), {f"f{number}": 4 for number in range(6)}
    for number in range(7):
        call({name: torch.ones(size) for name, size in sizes.items()})
        sizes[f"f{number % 6}"] = 5 + number


def named(table: Any) -> Any:
    return table["a, b"] + table["c d"].sum() + table["z-a"].sum()


@cause
def run_named() -> None:
    call = compiled(named)
    for size in (4, 5):
        call({"a, b": torch.ones(3), "c d": torch.ones(size), "z-a": torch.ones(3)})
    for size in (4, 5, 6):
        call({"a, b": torch.ones(size), "c d": torch.ones(size), "z-a": torch.ones(size)})


def int_argument(first: Any, many: int) -> Any:
    return first * many


@cause
def run_int_argument() -> None:
    call = compiled(int_argument)
    for number in (3, 4, 5):
        call(torch.ones(3), number)


class Scaled(torch.nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, width)
        self.drop = torch.nn.Dropout(0.5)
        self.factor = 1

    def forward(self, x: Any) -> Any:
        return self.drop(self.linear(x)) * self.factor


def module_int(scaled: Any, second: Any) -> Any:
    return scaled(second)


@cause
def run_module_int() -> None:
    call, module = compiled(module_int), Scaled()
    for number in (2, 3, 4, 5):
        module.factor = number
        call(module, torch.ones(2, 3))


FACTOR = 1


def global_int(third: Any) -> Any:
    return third * FACTOR


@cause
def run_global_int() -> None:
    global FACTOR
    call = compiled(global_int)
    for number in (2, 3, 4):
        FACTOR = number
        call(torch.ones(3))


def zero_one(few: Any) -> Any:
    return few * 2


@cause
def run_zero_one() -> None:
    call = compiled(zero_one)
    for size in (4, 5, 1, 0, 3):
        call(torch.ones(size, 3))


def duck(left: Any, right: Any) -> Any:
    return left.sum() + right.sum()


@cause
def run_duck() -> None:
    call = compiled(duck, dynamic=True)
    for one, other in ((4, 4), (4, 5), (7, 5)):
        call(torch.ones(one), torch.ones(other))


def parameter(layer: Any, fourth: Any) -> Any:
    return layer(fourth)


@cause
def run_parameter() -> None:
    call = compiled(parameter)
    for width in (3, 4, 5):
        call(torch.nn.Linear(3, width), torch.ones(2, 3))


def graph_break(outer: Any, beside: Any) -> Any:
    between = outer * 2
    print(end="")
    return between + beside.sum()


@cause
def run_graph_break() -> None:
    call = compiled(graph_break)
    for size in (4, 5, 6):
        call(torch.ones(size), torch.ones(size))


# Cured by a change of code.


def float_argument(fifth: Any, rate: Any) -> Any:
    return fifth * rate


@cause
def run_float_argument() -> None:
    call = compiled(float_argument)
    for rate in (0.3, 0.4, 0.5):
        call(torch.ones(3), torch.tensor(rate) if CURED else rate)


def list_length(parts: Any) -> Any:
    return sum(parts[1:], parts[0])


@cause
def run_list_length() -> None:
    call = compiled(list_length)
    for length in (2, 3, 4):
        parts = [torch.ones(3) for _ in range(length)]
        call([torch.stack(parts).sum(0)] if CURED else parts)


def dict_keys(entries: Any) -> Any:
    return sum(one.sum() for one in entries.values())


@cause
def run_dict_keys() -> None:
    call = compiled(dict_keys)
    for key in ("a", "b", "c"):
        given = {key: torch.ones(3)}
        call({name: given.get(name, torch.zeros(3)) for name in "abc"} if CURED else given)


def dtype(precise: Any) -> Any:
    return precise * 2


@cause
def run_dtype() -> None:
    call = compiled(dtype)
    for kind in (torch.float32, torch.float64, torch.int64):
        given = torch.ones(3, dtype=kind)
        call(given.to(torch.float32) if CURED else given)


def requires_grad(leaf: Any) -> Any:
    return leaf * 2


@cause
def run_requires_grad() -> None:
    call = compiled(requires_grad)
    for wanted in (True, False):
        given = torch.ones(3, requires_grad=wanted)
        call(given.detach() if CURED else given)


def stride(laid: Any) -> Any:
    return laid * 2


@cause
def run_stride() -> None:
    call = compiled(stride)
    for given in (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(3, 8)[:, ::2]):
        call(given.contiguous() if CURED else given)


def rank(deep: Any) -> Any:
    return deep * 2


@cause
def run_rank() -> None:
    call = compiled(rank)
    for given in (torch.ones(3), torch.ones(1, 3), torch.ones(1, 1, 3)):
        call(given.view(3) if CURED else given)


def grad_mode(sixth: Any) -> Any:
    return sixth * 2


@cause
def run_grad_mode() -> None:
    call = compiled(grad_mode)
    for on in (True, False):
        with torch.set_grad_enabled(on or CURED):
            call(torch.ones(3))


def autocast(seventh: Any) -> Any:
    if not CURED:
        return seventh @ seventh
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return seventh @ seventh


@cause
def run_autocast() -> None:
    call = compiled(autocast)
    for on in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on and not CURED):
            call(torch.ones(3, 3))


def global_state(eighth: Any) -> Any:
    return eighth * 2


@contextmanager
def default_dtype(kind: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@cause
def run_global_state() -> None:
    call = compiled(global_state)
    for kind in (torch.float32, torch.float64):
        with default_dtype(torch.float32 if CURED else kind):
            call(torch.ones(3, dtype=torch.float32))


def training(dropping: Any, ninth: Any) -> Any:
    return dropping(ninth)


@cause
def run_training() -> None:
    call, module = compiled(training), Scaled()
    call(module, torch.ones(2, 3))
    module.eval()
    (training if CURED else call)(module, torch.ones(2, 3))


def identity(tenth: Any, activation: Any) -> Any:
    return activation(tenth)


@cause
def run_identity() -> None:
    call = compiled(identity)
    for activation in (torch.relu, torch.sigmoid, torch.tanh):
        call(torch.ones(3), torch.relu if CURED else activation)


def none(eleventh: Any, mask: Any) -> Any:
    return eleventh + 1 if mask is None else eleventh * mask


@cause
def run_none() -> None:
    call = compiled(none)
    for mask in (None, torch.ones(3)):
        call(torch.ones(3), torch.ones(3) if CURED else mask)


def type_of(pair: Any) -> Any:
    return pair[0] * 2


@cause
def run_type_of() -> None:
    call = compiled(type_of)
    for kind in (list, tuple):
        call((list if CURED else kind)([torch.ones(3)]))


def constant(twelfth: Any, mode: str) -> Any:
    return twelfth * 2 if mode == "double" else twelfth + 1


@cause
def run_constant() -> None:
    call = compiled(constant)
    for mode in ("double", "add"):
        call(torch.ones(3), "double" if CURED else mode)


def pinned(thirteenth: Any, rounds: int) -> Any:
    if CURED:
        return thirteenth + rounds
    for _ in range(rounds):
        thirteenth = thirteenth + 1
    return thirteenth


@cause
def run_pinned() -> None:
    call = compiled(pinned)
    for rounds in (3, 4, 5):
        call(torch.ones(3), torch.tensor(rounds) if CURED else rounds)


def branch(wide: Any) -> Any:
    if CURED:
        return wide * 2
    return wide * 2 if wide.shape[0] > 8 else wide * 3


@cause
def run_branch() -> None:
    call = compiled(branch)
    for size in (4, 5, 12, 13):
        call(torch.ones(size))


def alias(one: Any, two: Any) -> Any:
    return one * two


@cause
def run_alias() -> None:
    call, same = compiled(alias), torch.ones(3)
    call(same, torch.ones(3))
    call(same, same.clone() if CURED else same)


def tensor_type(weight: Any) -> Any:
    return weight * 2


@cause
def run_tensor_type() -> None:
    call = compiled(tensor_type)
    for given in (torch.ones(3), torch.nn.Parameter(torch.ones(3))):
        call(given.detach() if CURED else given)


def backend(fourteenth: Any) -> Any:
    return fourteenth * 2


@cause
def run_backend() -> None:
    kept = torch.compile(backend, backend=lambda graph, _: graph)
    for _ in range(3):
        call = kept if CURED else torch.compile(backend, backend=lambda graph, _: graph)
        call(torch.ones(3))


if __name__ == "__main__":
    for name in sys.argv[1:] or CAUSES:
        CAUSES[name]()
