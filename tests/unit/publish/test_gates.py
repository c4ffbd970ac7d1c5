"""Every limit of a recipe, on its own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headway.errors import Reason
from headway.publish import gates
from headway.publish.examine import Answer
from headway.publish.recipe import Limits
from tests.support import Golden

WRONG = {
    "target-does-not-serve": Answer(error="it is gone"),
    "target-not-finite": Answer(finite=False),
    "target-differs": Answer(difference=0.02),
}
FAST, SLOW = Answer(latency_ms=2), Answer(latency_ms=6)


def codes(reasons: Iterable[Reason]) -> list[str]:
    return [reason.code for reason in reasons]


def test_a_target_that_is_right() -> None:
    assert list(gates.target("aoti", Answer(difference=1e-4), 1e-3)) == []


@pytest.mark.parametrize("code", WRONG)
def test_a_target_that_is_wrong(code: str) -> None:
    assert codes(gates.target("aoti", WRONG[code], 1e-3)) == [code]


def test_a_target_that_the_machine_had_no_room_for() -> None:
    answer = Answer(error="it was ended by SIGKILL", transient=True)
    assert codes(gates.target("aoti", answer, 1e-3)) == ["target-not-examined"]
    growth = Limits(latency_growth=2)
    assert codes(gates.latency(growth, {"a": FAST}, {"a": answer})) == ["target-not-examined"]
    assert list(gates.latency(Limits(), {"a": FAST}, {"a": answer})) == []


def test_a_target_that_is_infinitely_wrong() -> None:
    answer = Answer(difference=float("inf"))
    assert codes(gates.target("aoti", answer, 1e-3)) == ["target-differs"]


def test_sizes() -> None:
    limits = Limits(size_mb=2, size_growth=1.5)
    assert list(gates.size(limits, 2_000_000, 1_500_000)) == []
    assert codes(gates.size(limits, 2_100_000, None)) == ["snapshot-too-large"]
    assert codes(gates.size(limits, 1_600_000, 1_000_000)) == ["snapshot-has-grown"]
    assert list(gates.size(Limits(), 10**12, 1)) == []


def test_latencies() -> None:
    limits = Limits(latency_ms=5, latency_growth=2)
    assert list(gates.latency(limits, {"a": FAST}, {"a": FAST})) == []
    both = ["target-too-slow", "target-has-slowed"]
    assert codes(gates.latency(limits, {"a": SLOW}, {"a": FAST})) == both
    gone = {"a": Answer(error="it is gone")}
    assert list(gates.latency(Limits(latency_growth=2), {"a": SLOW, "b": SLOW}, gone)) == []


def test_the_reasons_in_words(golden: Golden) -> None:
    limits = Limits(size_mb=2, size_growth=1.5, latency_ms=5, latency_growth=2)
    reasons = [reason for one in WRONG.values() for reason in gates.target("aoti", one, 1e-3)]
    reasons += gates.size(limits, 2_100_000, 1_000_000)
    reasons += gates.latency(limits, {"aoti": SLOW}, {"aoti": FAST})
    golden("gates.txt", "".join(f"{reason}\n" for reason in reasons))
