"""Wrapping of functions and methods."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from headway.probe import import_hook
from headway.probe.patching import wrap


class Owner:
    def plain(self, x: int) -> tuple[object, int]:
        return self, x

    @classmethod
    def of_class(cls, x: int) -> tuple[object, int]:
        return cls, x

    @staticmethod
    def static(x: int) -> tuple[None, int]:
        return None, x


class Heir(Owner):
    pass


def more(original: Callable[..., Any], *args: Any) -> Any:
    *first, x = args
    return original(*first, x + 1)


@pytest.fixture
def owner() -> Iterator[type[Owner]]:
    before = {name: vars(Owner)[name] for name in ("plain", "of_class", "static")}
    yield Owner
    for name, value in before.items():
        setattr(Owner, name, value)


@pytest.mark.parametrize("kind", [Owner, Heir])
def test_methods_of_all_kinds_are_called_as_before(owner: type[Owner], kind: type[Owner]) -> None:
    for name in ("plain", "of_class", "static"):
        wrap(owner, name, more)
    instance = kind()
    assert instance.plain(1) == (instance, 2)
    assert kind.of_class(1) == instance.of_class(1) == (kind, 2)
    assert kind.static(1) == instance.static(1) == (None, 2)


def test_an_inherited_class_method(owner: type[Owner]) -> None:
    class Own(owner):  # type: ignore[valid-type,misc]
        pass

    wrap(Own, "of_class", more)
    assert Own.of_class(1) == (Own, 2)
    assert owner.of_class(1) == (owner, 1)


def test_the_methods_of_a_cache_stay() -> None:
    module: Any = ModuleType("module")
    calls = []
    module.key = functools.cache(lambda x: calls.append(x) or x)
    wrap(module, "key", more)
    assert module.key(1) == module.key(1) == 2
    assert len(calls) == 1
    module.key.cache_clear()
    assert module.key(1) == 2
    assert len(calls) == 2


@pytest.mark.parametrize("late", [False, True])
def test_late_hooks_replace_what_was_imported_from_the_module(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(x: int) -> int:
        return x

    inner: Any = ModuleType("trainer.io")
    package: Any = ModuleType("trainer")
    other: Any = ModuleType("trainers")
    for module in (inner, package, other):
        module.save = save
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(import_hook, "installing_late", late)
    wrap(inner, "save", more)
    assert inner.save(1) == 2
    assert (package.save is inner.save) is late
    assert other.save is save
