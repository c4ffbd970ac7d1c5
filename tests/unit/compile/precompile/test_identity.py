"""What an object is, for another process."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from headway.compile.precompile.identity import UnknownIdentity, identity


def double(x: float) -> float:
    return x * 2


def triple(x: float) -> float:
    return x * 3


def scaled(by: float) -> Callable[[float], float]:
    def inner(x: float) -> float:
        return x * by

    return inner


def defaulted(power: int) -> Callable[..., float]:
    def inner(x: float, exponent: int = power, *, sign: int = power) -> float:
        return sign * x**exponent

    return inner


class Thing:
    def method(self) -> None: ...

    def other(self) -> None: ...


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (double, triple),
        (scaled(2), scaled(3)),
        (defaulted(2), defaulted(3)),
        (functools.partial(scaled, 2), functools.partial(scaled, 3)),
        (functools.partial(scaled, by=2), functools.partial(triple, by=2)),
        (Thing().method, Thing().other),
        (math.sin, math.cos),
        (True, 1),
        (1, 1.0),
        ("1", 1),
        (int, float),
        (math, functools),
        ({"a": 1}, {"a": 2}),
        ([1, 2], [2, 1]),
        ((1,), [1]),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: lambda: x + 1, lambda x: lambda: x + 2),
    ],
)
def test_what_computes_something_else_is_something_else(one: Any, other: Any) -> None:
    assert identity(one) != identity(other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: scaled(2),
        lambda: defaulted(2),
        lambda: functools.partial(scaled, by=2),
        lambda: Thing(),
        lambda: Thing().method,
        lambda: {"a": [1, None, "x"]},
    ],
)
def test_what_is_made_again_is_the_same(make: Callable[[], Any]) -> None:
    assert identity(make()) == identity(make())


def test_an_empty_cell_is_no_fault() -> None:
    def outer(full: bool) -> Callable[[], Any]:
        if full:
            value = 1

        def inner() -> Any:
            return value

        return inner

    assert identity(outer(False)) != identity(outer(True))


def test_what_is_nested_without_end_is_not_known() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UnknownIdentity):
        identity(circle)
