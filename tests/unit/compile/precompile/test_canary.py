"""Compare the first result of a package with eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headway.errors import Reason

Compiled = Callable[..., Any]  # takes the model and its input


class Bench:
    """A canary around a function that may be wrong."""

    def __init__(self, torch: Any, compiled: Compiled, *, loaded: bool = True) -> None:
        from headway.compile.precompile.canary import Canary

        class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x: Any) -> Any:
                self.calls += 1
                return {"y": x * 2, "n": 3}

        self.model = Model()
        self.codes: list[str] = []
        self.watched = [1]
        self.canary = Canary(
            lambda x: compiled(self.model, x),
            self.model,
            self.model,
            loaded=loaded,
            make_id_reader=lambda: lambda: tuple(self.watched),
            on_mismatch=self.distrust,
        )

    def distrust(self, why: Reason) -> Callable[..., Any]:
        self.codes.append(why.code)
        return self.model


def wrong(model: Any, x: Any) -> Any:
    model.calls += 10
    x += 1
    return {"y": x * 3, "n": 3}


def test_a_right_result_is_believed_once_and_for_all(torch: Any) -> None:
    bench = Bench(torch, lambda model, x: model(x))
    assert bench.canary(torch.ones(3))["y"].tolist() == [2, 2, 2]
    assert bench.model.calls == 1  # eager's own look at it has left no trace
    bench.canary(torch.ones(3))
    assert (bench.model.calls, bench.codes) == (2, [])


def test_a_wrong_result_never_comes_out(torch: Any) -> None:
    bench = Bench(torch, wrong)
    values = torch.ones(3)
    assert bench.canary(values.clone())["y"].tolist() == [2, 2, 2]
    assert bench.model.calls == 1
    assert bench.codes == ["package-other-numbers"]
    assert bench.canary(values)["y"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (lambda x: {"y": (x * 2).double(), "n": 3}, "package-other-type"),
        (lambda x: {"y": x[:2] * 2, "n": 3}, "package-other-type"),
        (lambda x: {"y": x * 2, "n": 4}, "package-other-value"),
        (lambda x: [x * 2], "package-other-structure"),
        (lambda x: {"y": x * float("nan"), "n": 3}, "package-other-numbers"),
    ],
)
def test_ways_to_be_wrong(torch: Any, result: Callable[[Any], Any], code: str) -> None:
    bench = Bench(torch, lambda model, x: result(x))
    assert bench.canary(torch.ones(3))["y"].tolist() == [2, 2, 2]
    assert bench.codes == [code]


def test_a_crash_compiles_anew(torch: Any) -> None:
    def crash(model: Any, x: Any) -> Any:
        raise AssertionError("Name already exists")

    bench = Bench(torch, crash)
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.codes == ["package-call-failed"]


def test_random_numbers_go_on_as_if_nobody_had_looked(torch: Any) -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    bench = Bench(torch, lambda model, x: model(x))
    bench.canary.eager = lambda x: {"y": x * 2 + 0 * torch.rand(3), "n": 3}
    bench.canary(torch.ones(3))
    assert bench.codes == ["package-draws-random-numbers"]
    assert torch.equal(torch.rand(2), expected)


def test_a_change_behind_a_dropped_guard_ends_it(torch: Any) -> None:
    bench = Bench(torch, lambda model, x: model(x), loaded=False)
    bench.canary(torch.ones(3))
    bench.canary(torch.ones(3))
    assert bench.codes == []
    bench.watched = [2]
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.codes == ["package-outdated"]


def test_what_a_guard_looks_at_is_gone(torch: Any) -> None:
    """The training step continues without the package."""
    bench = Bench(torch, lambda model, x: model(x), loaded=False)
    bench.canary.make_id_reader = lambda: lambda: (id(bench.watched[0]),)
    bench.canary(torch.ones(3))
    bench.watched.clear()
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.codes == ["package-outdated"]


def test_what_cannot_be_looked_at(torch: Any) -> None:
    bench = Bench(torch, lambda model, x: model(x))
    bench.canary.make_id_reader = lambda: lambda: (id(bench.nothing),)  # type: ignore[attr-defined]
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.codes == ["package-outdated"]
    assert bench.canary(torch.ones(3))["n"] == 3


def test_no_memory_for_a_comparison(torch: Any) -> None:
    bench = Bench(torch, lambda model, x: model(x))

    def eager(x: Any) -> Any:
        bench.model.calls += 1
        raise torch.OutOfMemoryError

    bench.canary.eager = eager
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.codes == ["package-not-comparable"] and bench.model.calls == 1


@pytest.mark.parametrize("draw", ["random.random", "numpy.random.random"])
def test_random_numbers_of_others(torch: Any, draw: str) -> None:
    numpy = pytest.importorskip("numpy")
    call: Any = {"random.random": random.random, "numpy.random.random": numpy.random.random}[draw]
    random.seed(0)
    numpy.random.seed(0)
    expected = call()
    random.seed(0)
    numpy.random.seed(0)
    bench = Bench(torch, lambda model, x: model(x))
    bench.canary.eager = lambda x: {"y": x * 2, "n": 3 + 0 * call()}
    bench.canary(torch.ones(3))
    assert bench.codes == ["package-draws-random-numbers"]
    assert call() == expected
