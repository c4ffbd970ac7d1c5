"""Descriptions of what a plan depends on."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.support import lazy

torch = lazy("torch")
facts = lazy("headway.startup.sharding.plan_inputs:describe_inputs")
FACTOR = 2
NAMES = frozenset({"alpha", "beta", "gamma", "delta"})


class Kind(enum.Enum):
    ROW = "row"
    COLUMN = "column"


@dataclass
class Limits:
    most: int = 3
    kinds: list[Kind] = field(default_factory=lambda: [Kind.ROW])


@dataclass(slots=True)
class Slotted:
    most: int = 3


class Cost:
    def __init__(self, by: int) -> None:
        self.by = by

    def of(self, rows: int) -> int:
        return rows * self.by


def scaled(by: float) -> Callable[[float], float]:
    return lambda rows: rows * by


def with_default(by: float) -> Callable[..., float]:
    def cost(rows: float, factor: float = by, *, more: float = by) -> float:
        return rows * factor * more

    return cost


def by_factor(rows: int) -> int:
    return rows * FACTOR


def through_another(rows: int) -> int:
    return by_factor(rows) + 1


def among(name: str) -> bool:
    return name in {"alpha", "beta", "gamma", "delta"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda rows: rows * 2, lambda rows: rows * 3),
        (lambda rows: lambda: rows * 2, lambda rows: lambda: rows * 3),
        (lambda rows: rows in (1, 2), lambda rows: rows in (1, 3)),
        (lambda rows, more=0: rows, lambda rows, *more: rows),
        (scaled(2), scaled(3)),
        (with_default(2), with_default(3)),
        (functools.partial(scaled, 2), functools.partial(scaled, 3)),
        (Cost(2).of, Cost(3).of),
        (max, min),
        ([1].append, [2].append),
        (Limits(3), Limits(4)),
        (Limits(kinds=[Kind.ROW]), Limits(kinds=[Kind.COLUMN])),
        (Slotted(3), Slotted(4)),
        (b"one", b"two"),
        (range(3), range(4)),
        (timedelta(seconds=1), timedelta(seconds=2)),
        (Decimal("1.0"), Decimal("2.0")),
        (1j, 2j),
        (1, 1.5),
    ],
)
def test_other_settings_are_other_facts(first: Any, second: Any) -> None:
    assert facts(first) != facts(second)
    assert facts({"setting": first}) != facts({"setting": second})


def test_tensors_by_their_shape() -> None:
    assert facts(torch.zeros(2)) == facts(torch.ones(2)) != facts(torch.zeros(3))
    assert facts(torch.zeros(2)) != facts(torch.zeros(2, dtype=torch.float64))
    assert facts(torch.nn.Dropout(0.1)) != facts(torch.nn.Dropout(0.2))


@pytest.mark.parametrize("cost", [by_factor, through_another])
def test_a_setting_of_the_module(cost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(cost)
    assert facts(cost) == before
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    assert facts(cost) != before


def test_what_refers_to_itself() -> None:
    cost = Cost(2)
    cost.by = cost  # type: ignore[assignment]
    assert facts(cost) == facts(cost)
    assert facts(facts(through_another)) == facts(facts(through_another))


def test_every_process_says_the_same() -> None:
    """Sets have a different order in each process."""
    pytest.importorskip("torch")
    code = (
        "from headway.startup.sharding.plan_inputs import describe_inputs as facts\n"
        "from tests.unit.startup.sharding.test_plan_inputs import NAMES, Limits, Slotted, among\n"
        "print(facts([among, NAMES, Limits(), Slotted()]))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
