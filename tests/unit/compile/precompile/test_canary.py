"""The first result of a package against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headway.compile.precompile.canary import Canary  # noqa: E402


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return {"y": x * 2, "n": 3}


class Bench:
    """A canary before something that may be wrong."""

    def __init__(self, compiled: Callable[..., Any], *, loaded: bool = True) -> None:
        self.model = Model()
        self.said: list[str] = []
        self.watched = [1]
        self.canary = Canary(
            lambda x: compiled(self.model, x),
            self.model,
            self.model,
            loaded=loaded,
            watch=lambda: lambda: tuple(self.watched),
            distrust=self.distrust,
        )

    def distrust(self, why: str) -> Callable[..., Any]:
        self.said.append(why)
        return self.model


def wrong(model: Any, x: Any) -> Any:
    model.calls += 10
    x += 1
    return {"y": x * 3, "n": 3}


def test_a_right_result_is_believed_once_and_for_all() -> None:
    bench = Bench(lambda model, x: model(x))
    assert bench.canary(torch.ones(3))["y"].tolist() == [2, 2, 2]
    assert bench.model.calls == 1  # eager's own look at it has left no trace
    bench.canary(torch.ones(3))
    assert (bench.model.calls, bench.said) == (2, [])


def test_a_wrong_result_never_comes_out() -> None:
    bench = Bench(wrong)
    given = torch.ones(3)
    assert bench.canary(given.clone())["y"].tolist() == [2, 2, 2]
    assert bench.model.calls == 1
    assert len(bench.said) == 1 and "away from eager's" in bench.said[0]
    assert bench.canary(given)["y"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda x: {"y": (x * 2).double(), "n": 3}, "eager's another"),
        (lambda x: {"y": x[:2] * 2, "n": 3}, "eager's another"),
        (lambda x: {"y": x * 2, "n": 4}, "its result is 4"),
        (lambda x: [x * 2], "another structure"),
        (lambda x: {"y": x * float("nan"), "n": 3}, "away from eager's"),
    ],
)
def test_ways_to_be_wrong(result: Callable[[Any], Any], words: str) -> None:
    bench = Bench(lambda model, x: result(x))
    assert bench.canary(torch.ones(3))["y"].tolist() == [2, 2, 2]
    assert words in bench.said[0]


def test_a_crash_compiles_anew() -> None:
    def crash(model: Any, x: Any) -> Any:
        raise AssertionError("Name already exists")

    bench = Bench(crash)
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.said == ["AssertionError: Name already exists"]


def test_random_numbers_go_on_as_if_nobody_had_looked() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    bench = Bench(lambda model, x: model(x))
    bench.canary.eager = lambda x: {"y": x * 2 + 0 * torch.rand(3), "n": 3}
    bench.canary(torch.ones(3))
    assert "random" in bench.said[0]
    assert torch.equal(torch.rand(2), expected)


def test_a_change_behind_a_dropped_guard_ends_it() -> None:
    bench = Bench(lambda model, x: model(x), loaded=False)
    bench.canary(torch.ones(3))
    bench.canary(torch.ones(3))
    assert bench.said == []
    bench.watched = [2]
    assert bench.canary(torch.ones(3))["n"] == 3
    assert bench.said == ["something it depends on has changed"]
