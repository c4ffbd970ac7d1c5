"""Every limit of a recipe, on its own."""

from __future__ import annotations

import pytest

from headway.publish import gates
from headway.publish.examine import Answer
from headway.publish.recipe import Limits


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(difference=1e-4), []),
        (Answer(error="it is gone"), ["aoti does not serve: it is gone"]),
        (Answer(finite=False), ["aoti gives numbers that are not finite"]),
        (
            Answer(difference=0.02),
            ["aoti differs from the model by 0.02 on the golden inputs, and 0.001 is allowed"],
        ),
        (
            Answer(difference=float("inf")),
            ["aoti differs from the model by inf on the golden inputs, and 0.001 is allowed"],
        ),
    ],
)
def test_a_target(answer: Answer, said: list[str]) -> None:
    assert list(gates.target("aoti", answer, 1e-3)) == said


def test_sizes() -> None:
    limits = Limits(size_mb=2, size_growth=1.5)
    assert list(gates.size(limits, 2_000_000, 1_500_000)) == []
    assert list(gates.size(limits, 2_100_000, None)) == ["it has 2.1 MB, and 2 are allowed"]
    assert list(gates.size(limits, 1_600_000, 1_000_000)) == [
        "it has 1.60 x the bytes of the snapshot that serves, and 1.5 x is allowed"
    ]
    assert list(gates.size(Limits(), 10**12, 1)) == []


def test_latencies() -> None:
    limits = Limits(latency_ms=5, latency_growth=2)
    fast, slow = Answer(latency_ms=2), Answer(latency_ms=6)
    assert list(gates.latency(limits, {"a": fast}, {"a": fast})) == []
    assert list(gates.latency(limits, {"a": slow}, {"a": fast})) == [
        "a takes 6.00 ms, and 5 are allowed",
        "a takes 3.00 x as long as the snapshot that serves, and 2 x is allowed",
    ]
    gone = {"a": Answer(error="it is gone")}
    assert list(gates.latency(Limits(latency_growth=2), {"a": slow, "b": slow}, gone)) == []
