"""Descriptions of objects for another process, and the guards that torch drops."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.compile.precompile.guards import (
    GUARDS_FILE,
    PackageGuards,
    UnknownIdentity,
    identity,
    mismatch_reason,
)


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
    ("first", "second"),
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
def test_what_computes_something_else_is_something_else(first: Any, second: Any) -> None:
    assert identity(first) != identity(second)


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


def plus(x: int) -> int:
    return x + 1


def minus(x: int) -> int:
    return x - 1


act: Callable[[int], int] = plus


class Model:
    def __init__(self, own: Callable[[int], int] = plus) -> None:
        self.own = own
        self.FLAG = [own]
        self.G = {"G['act']": own}

    def forward(self, x: int) -> int:
        return self.own(act(x))


def entry(source: str, value: Any, kind: str = "CLOSURE_MATCH", *derived: str) -> Any:
    return SimpleNamespace(
        guard_type=kind,
        derived_guard_types=derived,
        value=value,
        orig_guard=SimpleNamespace(name=source),
    )


ENTRIES = [
    entry("L['self'].own", plus),
    entry("G['act']", plus),
    entry("G['__import_json_dot_decoder'].JSONDecoder", json.decoder.JSONDecoder, "ID_MATCH"),
    entry("G['__builtins_dict___17']['iter']", iter, "BUILTIN_MATCH", "ID_MATCH"),
    entry("L['x']", 3, "EQUALS_MATCH"),  # torch keeps it
]


def kept(folder: Path) -> PackageGuards:
    guards = PackageGuards()
    guards.add(ENTRIES, __name__, top=True)
    guards.write(str(folder))
    return guards


def test_the_same_things_agree(tmp_path: Path) -> None:
    guards = kept(tmp_path)
    assert len(guards.dropped) == 4 and not guards.unportable_reason
    assert mismatch_reason(str(tmp_path), Model().forward) == ""


def test_another_function_disagrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path)
    assert "L['self'].own" in mismatch_reason(str(tmp_path), Model(minus).forward)
    monkeypatch.setitem(globals(), "act", minus)
    assert "G['act']" in mismatch_reason(str(tmp_path), Model().forward)


@pytest.mark.parametrize(
    "content", [None, "", "[[1]]", "{}x", '[["L[\'self\'].gone", "json", ""]]']
)
def test_what_cannot_be_told_disagrees(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / GUARDS_FILE).write_text(content)
    assert mismatch_reason(str(tmp_path), Model().forward)


def test_a_guard_on_locals_of_a_part_cannot_be_checked_later() -> None:
    guards = PackageGuards()
    guards.add([entry("L['self'].own", plus)], __name__, top=False)
    assert "L['self'].own" in guards.unportable_reason


def test_a_change_in_mid_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    guards = PackageGuards()
    guards.add(ENTRIES, __name__, top=True)
    model = Model()
    look = guards.make_id_reader(model.forward)
    before = look()
    assert look() == before and len(before) == 4
    model.own = minus
    assert look() != before
    model.own = plus
    monkeypatch.setitem(globals(), "act", minus)
    assert look() != before


@pytest.mark.parametrize("source", ["L['self'].FLAG[0]", """L['self'].G["G['act']"]"""])
def test_names_that_look_like_the_globals(source: str) -> None:
    guards = PackageGuards()
    guards.add([entry(source, plus)], "json", top=True)
    guards.add([entry("G['act']", plus)], __name__, top=True)
    model = Model()
    look = guards.make_id_reader(model.forward)
    before = look()
    assert before == (id(plus), id(plus))
    model.FLAG[0] = minus
    model.G["G['act']"] = minus
    assert sorted(look()) == sorted((id(plus), id(minus)))


def test_without_guards_nothing_changes() -> None:
    assert PackageGuards().make_id_reader(Model().forward)() == ()
