"""Values read from a frame that recompiles, without running code of the job."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headway.probe.hooks import compile


class Trap:
    """Attributes that are not stored run code of the job."""

    def __init__(self) -> None:
        self.stored = 3

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    @property
    def computed(self) -> int:
        raise AssertionError("a property was run")

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("an item was asked for")


class Tensor:
    shape = (4, 5)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("torch")
    fake.Tensor = Tensor  # type: ignore[attr-defined]
    fake.nn = SimpleNamespace(Parameter=int)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)


def guard_values(reason: str, **local: Any) -> dict[str, Any]:
    frame = SimpleNamespace(
        f_locals=local, f_globals={"SCALE": 7}, f_code=guard_values.__code__
    )  # fmt: skip
    values: dict[str, Any] = compile.explain_recompile([reason], frame).get("seen", {})
    return values


def test_values_of_what_a_guard_names() -> None:
    assert guard_values("0/0: k == 3   # y = k", k=4) == {"k": 4}
    assert guard_values("0/0: G['SCALE'] == 3") == {"G['SCALE']": 7}
    assert guard_values("0/0: d['a b'][1] == 3", d={"a b": [1, 2]}) == {"d['a b'][1]": 2}
    assert guard_values("0/0: tensor 'd['x']' size mismatch at index 0. expected 3, actual 4",
                d={"x": Tensor()}, size=1, expected=2) == {"d['x']": [4, 5]}  # fmt: skip
    assert guard_values("0/0: 2 <= x.size()[0]  # x", x=Tensor()) == {"x": [4, 5]}
    assert guard_values("0/0: len(xs) == 3", xs=[1, 2]) == {"xs": "list of 2"}
    assert guard_values("0/0: name == 'a'", name="b" * 100) == {"name": "'" + "b" * 39}
    assert guard_values("0/0: r == 0.5", r=float("nan")) == {"r": "nan"}
    assert guard_values("0/0: n == 5", n=1 << 70) == {"n": str(1 << 70)}


def test_no_code_of_the_job_is_run() -> None:
    assert guard_values("0/0: t.stored == 1", t=Trap()) == {"t.stored": 3}
    assert guard_values("0/0: t.computed == 1", t=Trap()) == {}
    assert guard_values("0/0: t.missing == 1", t=Trap()) == {}
    assert guard_values("0/0: t['a'] == 1", t=Trap()) == {}
    assert guard_values("0/0: t == 1", t=Trap()) == {"t": "Trap"}


def test_everything_is_bounded() -> None:
    frame = SimpleNamespace(
        f_locals={f"v{n}": n for n in range(99)}, f_globals={}, f_code=guard_values.__code__
    )
    texts = [f"0/{n}: v{n} == 1{' ' * 60}# {'x' * 5000}" for n in range(99)]
    fields = compile.explain_recompile(texts, frame)
    assert len(fields["reasons"]) == 8 and max(map(len, fields["reasons"])) <= 200
    assert len(fields["seen"]) <= 16
    wide = " and ".join(f"v{n} == 1" for n in range(99))
    assert len(compile.explain_recompile([f"0/0: {wide}"], frame)["seen"]) <= 16


def test_the_caller_is_no_library() -> None:
    frame = SimpleNamespace(f_locals={}, f_globals={}, f_code=guard_values.__code__)
    file, _, rest = compile.explain_recompile(["0/0: x"], frame)["caller"].partition(":")
    assert file == __file__ and rest.endswith(" test_the_caller_is_no_library")


class AutoDynamic:
    """The class name in torch."""


def entry(size: Any, scalar: Any = None, stride: Any = None) -> SimpleNamespace:
    return SimpleNamespace(size=size, scalar=scalar, stride=stride)


def test_the_lattice_is_told_once_and_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    pgo = ModuleType("torch._dynamo.pgo")
    monkeypatch.setitem(sys.modules, "torch._dynamo.pgo", pgo)
    lattice, any_size = compile.ShapeHistory(), AutoDynamic()
    assert lattice.changes() == {}
    sources = {"L['x']": entry((4, 3)), "L['k']": entry(any_size, 2), "L['r']": entry(0, 0.5)}
    pgo._CODE_STATE = {"f": SimpleNamespace(automatic_dynamic=sources)}  # type: ignore[attr-defined]
    assert lattice.changes() == {"lattice": [["L['x']", [4, 3]], ["L['k']", 2], ["L['r']", 0.5]]}
    assert lattice.changes() == {}
    sources["L['x']"] = entry((4, 3), stride=(any_size, 1))
    sources["L['k']"] = entry(any_size, any_size)
    assert lattice.changes() == {
        "lattice": [["L['x']", {"size": [4, 3], "stride": ["?", 1]}], ["L['k']", "?"]]
    }
    sources.update({f"L['y{n}']": entry((n,)) for n in range(200)})
    sources["L['z']"] = entry((any_size,))
    first = lattice.changes()["lattice"]
    assert len(first) == 64 and first[0] == ["L['z']", ["?"]]
    assert len(lattice.changes()["lattice"]) == 64
